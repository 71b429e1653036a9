"""A call that was made before: pointed at where its result still stands, repeated where it does not."""

from __future__ import annotations

import pytest
from context_scenes import STRICT, clerk, log_of, read_log

import repertory as rp
from repertory.llm.messages import ToolResult, text_of
from repertory.testing import ScriptedModel, call
from repertory.tools import context_tools


def results(request: object) -> list[str]:
    """The results that a request shows."""
    return [
        text_of(block)
        for message in request.messages  # type: ignore[attr-defined]
        for block in message.content
        if isinstance(block, ToolResult)
    ]


@pytest.mark.parametrize("tools", [[], context_tools()])
@pytest.mark.parametrize("context", [None, STRICT, rp.ContextPolicy()])
async def test_a_result_that_stands_in_view_is_pointed_at(
    context: rp.ContextPolicy | None, tools: list[rp.Tool]
) -> None:
    """The log is in the request once, and the pointer says where and, to an agent that can, how to get it."""
    model = ScriptedModel([call("read_log", day=1), call("read_log", day=1), "Done."])
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(rp.Agent("clerk", tools=[read_log, *tools], context=context), "Read.")
        await run.wait_result()
        assert run.statistics().dedup_hits == 1
    first, second = results(model.requests[2])
    assert first == log_of(1)
    assert "already called in iteration 1" in second
    assert "stands above" in second
    assert len(second) < 400
    assert ("retrieve_content" in second) == (context is not None and bool(tools))


async def test_a_result_that_was_shortened_is_repeated() -> None:
    """Pointing at a stub would leave the agent without what it asked for."""
    days = [*range(1, 7), 1]
    model = ScriptedModel([*(call("read_log", day=day) for day in days), "Done."])
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(clerk(), "Read.")
        await run.wait_result()
    shown = results(model.requests[-1])
    assert shown[0] != log_of(1)
    assert shown[-1].endswith(log_of(1))


async def test_a_short_result_is_repeated() -> None:
    """A pointer would be longer than what it points at."""

    @rp.tool(effect="pure")
    def tide() -> str:
        """Say how the tide is."""
        return "high"

    model = ScriptedModel([call("tide"), call("tide"), "Done."])
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(rp.Agent("a", tools=[tide]), "Look.")
        await run.wait_result()
    assert results(model.requests[2])[1].endswith("\nhigh")


async def test_retrievals_of_what_a_summary_stands_for_are_counted_apart() -> None:
    """Fetching a stub's whole is ordinary; fetching what a summary covers says that the summary lacked it."""
    policy = rp.ContextPolicy(rhythm="strict", window=2, strict_chars=0, summarize_every=3)
    agent = rp.Agent("clerk", tools=[read_log, *context_tools()], context=policy)
    steps = [
        *(call("read_log", day=day) for day in range(1, 12)),
        call("context_retrieve", iteration=1),
        call("context_retrieve", iteration=11),
        "Done.",
    ]
    async with rp.open_supervisor(model=ScriptedModel(steps)) as supervisor:
        run = await supervisor.spawn(agent, "Read.")
        await run.wait_result()
        seen = run.statistics()
        assert run.view()[1].representation == "covered"
    assert (seen.retrievals, seen.retrievals_covered) == (2, 1)
    assert seen.retrieval_rate == 1 / seen.summaries
    assert rp.RunStatistics().retrieval_rate == 0.0
