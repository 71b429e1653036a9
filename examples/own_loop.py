"""A loop of your own around Anthropic's SDK: repertory's planner and projection decide what the model is shown."""

import time
from typing import Any

import anthropic

import repertory as rp
from repertory.context import EMPTY, Calibration, Planner, Projector, decode_content, encode_request
from repertory.llm import Block, Text, ToolResult, ToolUse, estimate_tokens, text_of
from repertory.record import Entry
from repertory.testing import ScriptedModel, call, open_messages_server


@rp.tool(effect="pure")
def read_log(day: int) -> str:
    """Read the harbour's log of a day."""
    return "\n".join(f"day {day}, hour {hour}: ship {day * 24 + hour} at berth {hour % 7}" for hour in range(600))


async def loop(client: anthropic.AsyncAnthropic, model: str, task: str) -> str:
    """Ask the model and make its calls until it makes none."""
    profile, tools = rp.profile_for(model), [read_log.schema]
    planner = Planner(policy=rp.ContextPolicy(), profile=profile, head_tokens=estimate_tokens(tools))
    projector = Projector(profile=profile, tools=tools)  # and what else a request has: system, max_tokens, options
    entries, plan, calibration, iteration = list[Entry](), EMPTY, Calibration(), 0

    def add(kind: Any, *content: Block, **more: Any) -> None:
        more |= {"iteration": iteration, "role": "assistant" if kind == "assistant" else "user"}
        more |= {"position": len(entries), "tokens": estimate_tokens(content), "created_at": time.time()}
        entries.append(Entry(kind=kind, content=content, **more))

    add("task", Text(task))
    while True:
        iteration += 1
        outcome = planner.next(entries, plan, iteration=iteration, calibration=calibration)
        plan = outcome.plan  # outcome.decisions says why it was changed
        answer = await client.messages.create(**encode_request(projector.project(entries, plan)))
        billed = answer.usage
        prompt = billed.input_tokens + (billed.cache_read_input_tokens or 0) + (billed.cache_creation_input_tokens or 0)
        calibration = calibration.observe(estimate=outcome.estimate, real=prompt)
        add("assistant", *(turn := decode_content(block.to_dict() for block in answer.content)))
        for each in (block for block in turn if isinstance(block, ToolUse)):
            add("action-result", ToolResult(each.id, read_log(**each.input)), tool=each.name, tool_call_id=each.id)
        if answer.stop_reason != "tool_use":
            return f"{text_of(turn)} ({sum(entry.tokens for entry in entries):,} tokens on record, {prompt:,} in view)"


async def main() -> None:
    """Read the logs of twenty days from a strict local server's model."""
    script = ScriptedModel([*(call("read_log", day=day) for day in range(1, 21)), "Twenty days, no accident."])
    async with (
        open_messages_server(script) as server,
        anthropic.AsyncAnthropic(api_key="a-key", base_url=server.url) as client,
    ):
        print(await loop(client, "claude-opus-4-6", "Read the logs of twenty days."))


if __name__ == "__main__":
    rp.run(main)
