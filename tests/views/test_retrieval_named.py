"""What stands for something names the tool that shows the whole, if the agent has it."""

from __future__ import annotations

import msgspec
import pytest

import repertory as rp
from context_scenes import log_of
from repertory.llm.messages import text_of
from repertory.testing import ScriptedModel, call
from repertory.tools import context_tools


@rp.tool(effect="pure")
def read_log(day: int) -> str:
    """Read the log of a day."""
    return log_of(day, 150)


DAYS = [*range(1, 16), 15]
POLICIES = {
    "cut on arrival, stubs, summaries": rp.ContextPolicy(rhythm="strict", window=2, summarize_every=4),
    "first characters": rp.ContextPolicy(
        rhythm="strict", strict_chars=0, window=1, results=rp.ResultPolicy(compact_mode="first_chars")
    ),
    "citations": rp.ContextPolicy(results=rp.ResultPolicy(cite_on_arrival=True)),
    "digests": rp.ContextPolicy(window=2),
    "removal": rp.ContextPolicy(
        rhythm="strict", strict_chars=0, window=30, results=rp.ResultPolicy(expiration_mode="remove")
    ),
    "short of room": rp.ContextPolicy(budget_tokens=7_000),
    "shown once": rp.ContextPolicy(),
}


def unaided(context: rp.ContextPolicy) -> rp.ContextPolicy:
    """For an agent without the tools; strict rhythm would add them."""
    return msgspec.structs.replace(context, retrieval=context.rhythm != "strict")


async def shown(context: rp.ContextPolicy, tools: list[rp.Tool], *, profile: str) -> tuple[str, set[str]]:
    """All that a run's requests say, and how its entries stand in the end."""
    at_once = [call("read_log", day=day) for day in range(21, 33)]
    steps = [*(call("read_log", day=day) for day in DAYS), at_once, "Done."]
    model = ScriptedModel(steps, profile=rp.profile_for(profile))
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(rp.Agent("clerk", tools=[read_log, *tools], context=context), "Read.")
        assert await run.wait_result() == "Done."
        stands = {entry.representation for entry in run.view()}
    texts = [text_of(message.content) for request in model.requests for message in request.messages]
    return "\n".join(texts), stands


@pytest.mark.parametrize("name", list(POLICIES))
@pytest.mark.parametrize("profile", ["offline", "claude-opus-4-8"])
async def test_no_text_names_a_tool_that_the_agent_does_not_have(name: str, profile: str) -> None:
    """On arrival, in stubs, citations, digests, summaries, removals, pointers and where there is no room."""
    text, _ = await shown(unaided(POLICIES[name]), [], profile=profile)
    assert "retrieve_content" not in text
    assert "context_retrieve" not in text
    with_tools, stands = await shown(POLICIES[name], context_tools(), profile=profile)
    if stands != {"verbatim"}:
        assert "retrieve_content" in with_tools or "context_retrieve" in with_tools


async def test_all_that_stands_for_something_was_seen_without_a_tool() -> None:
    """Negative control: the policies above do shorten in every way there is."""
    heads = ["[shortened: ", "[shown once: ", "[expired: ", "[citation ", "[log of iterations ", "characters shown]"]
    heads += ["the context is full]", "stands above"]
    found = set[str]()
    for context in POLICIES.values():
        text, stands = await shown(unaided(context), [], profile="claude-opus-4-8")
        found |= stands | {head for head in heads if head in text}
    assert not {*heads, "stub", "covered", "removed", "shaped"} - found


async def test_an_application_may_keep_the_tools_unnamed() -> None:
    """It has them, and says itself when to use them."""
    context = msgspec.structs.replace(POLICIES["digests"], retrieval=False)
    text, _ = await shown(context, context_tools(), profile="offline")
    assert "[log of iteration " in text
    assert "context_retrieve" not in text


@pytest.mark.parametrize("budget", [None, 2_000], ids=["strict", "short of room"])
async def test_what_was_retrieved_is_not_said_to_be_retrievable_by_its_iteration(budget: int | None) -> None:
    """There is nothing on record at that place but the call: the same call, or one for less, shows it."""
    context = rp.ContextPolicy(rhythm="strict", strict_chars=0, window=2, budget_tokens=budget)
    steps = [call("read_log", day=1), call("context_retrieve", iteration=1)]
    model = ScriptedModel([*steps, *(call("read_log", day=day) for day in range(2, 12)), "Done."])
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(rp.Agent("clerk", tools=[read_log], context=context), "Read.")
        assert await run.wait_result() == "Done."
    said = "\n".join(text_of(message.content) for request in model.requests for message in request.messages)
    assert "context_retrieve(iteration=2) shows the whole" not in said
    assert ("context is full; ask for less at once]" in said) is (budget is not None)
    assert ("; the same call shows it again] " in said) is (budget is None)
