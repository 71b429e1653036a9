"""Metadata is the application's: kept with results, and never read by the runtime."""

from __future__ import annotations

import json
from typing import Any

import pytest

import repertory as rp
from context_scenes import STRICT, log_of
from repertory._json_text import canonical_json
from repertory.llm.model import encode_request
from repertory.record import Entry
from repertory.testing import ScriptedModel, call
from repertory.tools import context_tools

# What the runtime itself once wrote down beside a result, or might be taken to.
ADVERSARIAL: dict[str, Any] = {
    "retrieval": True,
    "covered": True,
    "as_is": True,
    "hinted": [0],
    "positions": [0, 1, 2, 10**9, -1, "x"],
    "content_id": "c-0000000000",
    "parts": [["position 0", 0, 10], "x", 7],
    "deduplicated_from": "call_1",
    "stop_reason": "refusal",
    "message_id": "msg-1",
    "facts": {"status": 500},
    "retrieved": {"positions": [0]},
    "gist": "nothing",
    "url": "https://elsewhere.example",
}
DAYS = [1, 2, 3, 4, 1, 5, 6, 7, 8, 2, 9, 10]


async def ran(metadata: dict[str, Any], context: rp.ContextPolicy) -> tuple[list[bytes], list[Entry], rp.RunStatistics]:
    """The requests, the record and the figures of a run whose tool returns metadata."""

    @rp.tool(effect="pure")
    def read_log(day: int) -> rp.ToolOutput:
        """Read the log of a day."""
        return rp.ToolOutput(log_of(day, 120 * (day % 3 + 1)), metadata=metadata)

    days = (call("read_log", call_id=f"c{number}", day=day) for number, day in enumerate(DAYS))
    again = call("context_retrieve", call_id="r", iteration=2)
    model = ScriptedModel([*days, again, call("read_log", call_id="c", day=11), "Done."])
    agent = rp.Agent("clerk", tools=[read_log, *context_tools()], context=context)
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(agent, "Read.", run_id="run")
        assert await run.wait_result() == "Done."
        entries = await supervisor.journal.read_entries(run.id)
        return [canonical_json(encode_request(each)) for each in model.requests], entries, run.statistics()


@pytest.mark.parametrize(
    "context",
    [
        STRICT,
        rp.ContextPolicy(budget_tokens=6_000),
        rp.ContextPolicy(results=rp.ResultPolicy(cap_chars=2_000)),
        rp.ContextPolicy(rhythm="strict", summarize_every=3),
    ],
    ids=["strict", "budget", "capped", "summaries"],
)
async def test_metadata_changes_nothing_that_a_model_is_shown(context: rp.ContextPolicy) -> None:
    """With every key that the runtime ever used itself, and without any: equal requests, equal figures; and kept."""
    plain, bare, figures = await ran({}, context)
    marked, kept, same = await ran(ADVERSARIAL, context)
    assert figures.retrievals == 1
    assert marked == plain
    assert (same.retrievals, same.retrievals_covered, same.dedup_hits) == (
        figures.retrievals,
        figures.retrievals_covered,
        figures.dedup_hits,
    )
    assert all(entry.metadata == ADVERSARIAL for entry in kept if entry.tool == "read_log")
    assert not any(entry.metadata for entry in bare)


async def test_a_tool_can_ask_to_keep_one_result_in_view() -> None:
    """It says so in a field of its own, which the record keeps with this one result, and with a repetition of it."""

    @rp.tool(effect="pure")
    def read_rule(number: int) -> rp.ToolOutput:
        """Read a rule."""
        return rp.ToolOutput(f"Rule {number}.", pin=number == 1)

    steps = [call("read_rule", number=1), call("read_rule", number=2), call("read_rule", number=1), "Done."]
    async with rp.open_supervisor(model=ScriptedModel(steps)) as supervisor:
        run = await supervisor.spawn(rp.Agent("clerk", tools=[read_rule]), "Read.")
        await run.wait_result()
        entries = await supervisor.journal.read_entries(run.id)
    assert [entry.pinned for entry in entries if entry.tool] == [True, False, True]
    assert not any(entry.pinned for entry in entries if not entry.tool)


async def test_a_result_that_its_tool_pinned_stays_as_it_is() -> None:
    """In the strictest rhythm, when everything around it is shortened or covered."""

    @rp.tool(effect="pure")
    def read_log(day: int) -> rp.ToolOutput:
        """Read the log of a day."""
        return rp.ToolOutput(log_of(day, 10), pin=day == 2)

    model = ScriptedModel([*(call("read_log", day=day) for day in range(1, 13)), "Done."])
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(rp.Agent("clerk", tools=[read_log], context=STRICT), "Read.")
        await run.wait_result()
    last = canonical_json(encode_request(model.requests[-1])).decode()
    lines = {day: json.dumps(log_of(day, 10))[1:-1] for day in (1, 2)}
    assert lines[2] in last
    assert lines[1] not in last
