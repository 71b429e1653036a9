"""A call that was made before: pointed at where its result still stands, repeated where it does not."""

from __future__ import annotations

import pytest

import repertory as rp
from context_scenes import STRICT, clerk, log_of, read_log
from repertory.llm.messages import ToolResult, text_of
from repertory.record.records import Effect
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
@pytest.mark.parametrize("context", [STRICT, rp.ContextPolicy()])
async def test_a_result_that_stands_in_view_is_pointed_at(context: rp.ContextPolicy, tools: list[rp.Tool]) -> None:
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
    assert ("retrieve_content" in second) == bool(tools or context is STRICT)  # which adds the tools by itself


class Counted:
    """A pure tool that counts how often it ran."""

    def __init__(self, length: int = 60) -> None:
        self.days: list[int] = []

        @rp.tool(effect="pure")
        async def read_log(day: int) -> str:
            """Read the log of a day."""
            self.days.append(day)
            return log_of(day, length)

        self.tool = read_log


@pytest.mark.parametrize(
    ("context", "ran"),
    [
        (None, [1, 1, 2, 1]),
        (rp.ContextPolicy(deduplicate=False), [1, 1, 2, 1]),
        (rp.ContextPolicy(known_calls=0), [1, 1, 2, 1]),
        (rp.ContextPolicy(known_calls=1), [1, 2, 1]),
        (rp.ContextPolicy(), [1, 2]),
    ],
)
async def test_every_call_runs_where_nothing_is_answered_from_earlier_ones(
    context: rp.ContextPolicy | None, ran: list[int]
) -> None:
    """In a plain loop, which shows everything; where an application turns it off; and where the bound is reached."""
    log = Counted()
    model = ScriptedModel([*(call("read_log", day=day) for day in (1, 1, 2, 1)), "Done."])
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(rp.Agent("clerk", tools=[log.tool], context=context), "Read.")
        await run.wait_result()
        assert run.statistics().dedup_hits == 4 - len(ran)
    assert log.days == ran
    if len(ran) == 4:
        assert results(model.requests[-1]) == [log_of(day) for day in ran]


@pytest.mark.parametrize("cite", [False, True], ids=["capped", "cited"])
async def test_a_repeat_of_a_result_that_was_cut_shows_what_that_showed_and_where_the_whole_is(cite: bool) -> None:
    """Not the cut once more cut, stored as if it were all there is; its stub says what the whole was."""
    log = Counted()
    policy = rp.ResultPolicy(cite_on_arrival=cite, cap_chars=0 if cite else 900)
    context = rp.ContextPolicy(rhythm="strict", window=2, results=policy)
    days = [1, 2, 3, 4, 5, 1, 6, 7, 8, 9]
    model = ScriptedModel([*(call("read_log", day=day) for day in days), "Done."])
    async with rp.open_supervisor(model=model) as supervisor:
        agent = rp.Agent("clerk", tools=[log.tool, *context_tools()], context=context)
        run = await supervisor.spawn(agent, "Read.")
        await run.wait_result()
        entries = await supervisor.journal.read_entries(run.id)
        stored = await supervisor.journal.read_contents(run.id)
    first, again = entries[2], entries[12]
    note, shown = text_of(again.content).split("\n", 1)
    assert note == "[already called in iteration 1 with the same arguments; this is that result]"
    assert shown == text_of(first.content)
    assert f'retrieve_content(content_id="{first.content_id}")' in shown
    assert (again.content_id, again.original_length) == (first.content_id, len(log_of(1)))
    assert len(stored) == len(set(days))
    stub = results(model.requests[-1])[5].split("\n")
    assert stub[0].startswith("[previously viewed: read_log, iteration ")
    assert first.content_id is not None
    assert first.content_id in stub[0]
    assert not [line for line in stub[1:] if "already called" in line or first.content_id in line]


@pytest.mark.parametrize(("effect", "ran"), [("pure", 1), ("idempotent", 3)])
async def test_equal_calls_of_one_turn_run_once_if_they_are_pure(effect: Effect, ran: int) -> None:
    """The first answers the others, whatever order its arguments come in; each has its result, in order."""
    calls: list[int] = []

    @rp.tool(effect=effect)
    async def look(a: int, b: int) -> str:
        """Look."""
        calls.append(a)
        return log_of(a)

    turn = [call("look", a=1, b=2), call("look", b=2, a=1), call("look", a=1, b=2)]
    model = ScriptedModel([turn, "Done."])
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(rp.Agent("clerk", tools=[look]), "Look.")
        await run.wait_result()
    assert len(calls) == ran
    first, *others = results(model.requests[1])
    assert first == log_of(1)
    assert all(("stands above" in other) == (ran == 1) for other in others)


async def test_an_equal_call_of_one_turn_runs_where_the_first_failed() -> None:
    """A failure answers nothing."""
    calls: list[int] = []

    @rp.tool(effect="pure")
    async def look(a: int) -> str:
        """Look."""
        calls.append(a)
        if len(calls) == 1:
            raise rp.ToolFailed("fog")
        return "clear"

    model = ScriptedModel([[call("look", a=1), call("look", a=1)], "Done."])
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(rp.Agent("clerk", tools=[look]), "Look.")
        await run.wait_result()
    assert calls == [1, 1]
    assert [text for text in results(model.requests[1]) if "fog" in text or text == "clear"] == results(
        model.requests[1]
    )


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


async def test_the_application_can_have_every_call_run_again() -> None:
    """It knows what no tool of the run can: that something outside has changed."""
    counted = Counted()
    steps = [*[call("read_log", day=1)] * 2, lambda _: run.forget_results() or call("read_log", day=1), "Done."]
    async with rp.open_supervisor(model=ScriptedModel(steps)) as supervisor:
        run = await supervisor.spawn(rp.Agent("clerk", tools=[counted.tool]), "Read.")
        await run.wait_result()
    assert counted.days == [1, 1]
