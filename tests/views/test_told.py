"""What the model is told of what it is not shown: the same for the whole run, and only where it has the tools."""

from __future__ import annotations

from typing import Any

import pytest

import repertory as rp
from context_scenes import STRICT, read_log
from repertory.errors import ModelUnavailable, PromptTooLong, RunFailed
from repertory.llm.messages import text_of
from repertory.record import open_journal
from repertory.testing import ScriptedModel, call
from repertory.tools import context_tools

SILENT = rp.ContextPolicy(rhythm="strict", retrieval=False)
NOTICE = "Context was compacted and truncated to fit token limits."


def clerk(context: rp.ContextPolicy | None, *, tools: bool = True) -> rp.Agent:
    """An agent that reads logs, and may look things up again."""
    return rp.Agent("clerk", "You read.", tools=[read_log, *(context_tools() if tools else ())], context=context)


async def systems(agent: rp.Agent) -> set[str]:
    """The system texts of the requests of a run that fails once and is resumed by another supervisor."""
    model = ScriptedModel([*(call("read_log", day=day) for day in range(1, 9)), ModelUnavailable("gone"), "Done."])
    async with open_journal() as journal:
        async with rp.open_supervisor(model=model, journal=journal) as supervisor:
            run = await supervisor.spawn(agent, "Read.")
            with pytest.raises(RunFailed):
                await run.wait_result()
        async with rp.open_supervisor(model=model, journal=journal) as supervisor:
            await (await supervisor.resume(run.id, agent=agent)).wait_result()
    return {text_of(request.system) for request in model.requests}


@pytest.mark.parametrize(
    ("context", "words"),
    [
        (rp.ContextPolicy(), ["`context_trail`", "cannot be called", "sparingly"]),
        (STRICT, ["citation id", "compacted to save tokens", "sparingly"]),
    ],
    ids=["thrifty", "strict"],
)
async def test_the_model_is_told_how_to_get_back_what_is_not_in_view(context: Any, words: list[str]) -> None:
    """Behind its instructions, with the names of its tools; the same bytes in every request."""
    (text,) = await systems(clerk(context))
    assert text.startswith("You read.\n\n")
    assert all(word in text for word in [*words, "`context_retrieve`", "`retrieve_content`"])


@pytest.mark.parametrize(
    ("context", "tools"),
    [(rp.ContextPolicy(), False), (rp.ContextPolicy(retrieval=False), True), (None, True), (SILENT, False)],
    ids=["no tools", "switched off", "plain loop", "strict, switched off"],
)
async def test_nothing_is_said_to_a_model_that_cannot_retrieve(context: Any, tools: bool) -> None:
    """Nor to one that is shown everything."""
    assert await systems(clerk(context, tools=tools)) == {"You read."}


@pytest.mark.parametrize(("tools", "notices"), [(True, 1), (False, 0)])
async def test_a_model_is_told_when_its_context_was_compacted_after_a_refusal(tools: bool, notices: int) -> None:
    """Once for an iteration, however often the server refuses; the answer behind it is whole."""
    refusals = [PromptTooLong("too long"), PromptTooLong("too long")]
    model = ScriptedModel([*(call("read_log", day=day) for day in range(1, 31)), *refusals, "Done."])
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(clerk(rp.ContextPolicy(), tools=tools), "Read.")
        assert await run.wait_result() == "Done."
    said = [text_of(message.content) for message in model.requests[-1].messages]
    assert sum(text.count(NOTICE) for text in said) == notices
    assert NOTICE not in str(model.requests[30].messages)


@pytest.mark.parametrize(("context", "offered"), [(STRICT, True), (SILENT, False), (rp.ContextPolicy(), False)])
async def test_strict_rhythm_offers_the_tools_by_itself(context: rp.ContextPolicy, offered: bool) -> None:
    """They are called like any other, and what they bring back is whole."""
    steps = [*(call("read_log", day=day) for day in range(1, 6)), call("context_retrieve", iteration=1), "Done."]
    model = ScriptedModel(steps)
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(clerk(context, tools=False), "Read.")
        assert await run.wait_result() == "Done."
        assert run.statistics().retrievals == offered
    names = [tool.name for tool in model.requests[0].tools]
    assert names == ["read_log", *(["context_retrieve", "retrieve_content"] if offered else [])]
    assert ("day 1, hour 30" in str(model.requests[-1].messages[-1])) == offered
