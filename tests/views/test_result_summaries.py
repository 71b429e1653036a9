"""A model's summaries of single results: asked for at once, shown when the result is compacted, never waited for."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import trio

import repertory as rp
from context_scenes import STRICT, Reader, clerk, log_of
from repertory.errors import ModelUnavailable
from repertory.llm.messages import text_of
from repertory.llm.model import ModelRequest
from repertory.llm.profiles import OFFLINE, Prices
from repertory.runs.events import SummaryTaken
from repertory.testing import FunctionModel, ScriptedModel, call

FREE = msgspec.structs.replace(
    OFFLINE, prices=(Prices(input=0, output=0, cache_read=0, cache_write=0, cache_write_1h=0),)
)
SUMMARY = rp.ResultPolicy(compact_mode="summary", compact_length=200)
GOOD = '```json\n{"summary": "Ships called at berths 0 to 6.", "facts": ["ship 130 at berth 2"]}\n```'


async def shown_after(answer: object, *, results: rp.ResultPolicy = SUMMARY) -> tuple[str, FunctionModel, rp.Run]:
    """What stands for the first result in the end, if the summarizer's model answers like this."""
    reader = Reader(6, stop_at=2)

    def summarize(request: ModelRequest) -> object:
        if isinstance(answer, Exception):
            raise answer
        return answer

    small = FunctionModel(summarize)  # type: ignore[arg-type]
    async with rp.open_supervisor(model=reader.model, summaries=small) as supervisor:
        run = await supervisor.spawn(clerk(), "Which berths are busy?", results=results)
        await reader.arrived.wait()
        await trio.testing.wait_all_tasks_blocked()
        reader.go()
        assert await run.wait_result() == "Done."
    return reader.shown(7)[0], small, run


async def test_a_compacted_result_shows_the_summary_that_a_model_wrote_for_the_goal() -> None:
    """The head line still says what it stands for; the model was given goal, tool and result, and was asked once."""
    shown, small, run = await shown_after(GOOD)
    head, *body = shown.splitlines()
    assert head.startswith("[shortened: read_log, iteration 1, 2,149 characters; retrieve_content(")
    assert body == ["Ships called at berths 0 to 6.", "- ship 130 at berth 2"]
    asked = text_of(small.requests[0].messages[0].content)
    assert "Which berths are busy?" in asked
    assert log_of(1) in asked
    assert len([request for request in small.requests if log_of(1) in text_of(request.messages[0].content)]) == 1
    assert "Ships called" in run.view()[2].hint


@pytest.mark.parametrize(
    "answer",
    [
        ModelUnavailable("overloaded"),
        "Ships called at berths.",
        '{"abstract": "Ships."}',
        '{"summary": "   "}',
        '{"summary": "%s"}' % ("ship " * 200),
    ],
)
async def test_whatever_goes_wrong_a_stub_is_shown_and_the_run_does_not_notice(answer: object) -> None:
    """No answer, no JSON, another field, nothing in it, too long."""
    shown, small, _ = await shown_after(answer)
    assert shown.startswith("[previously viewed: read_log, iteration 1; retrieve_content(")
    assert "day 1" in shown
    assert "Ships called" not in shown
    assert len(small.requests) >= 2  # it was given a second chance


@pytest.mark.parametrize("answer", [ModelUnavailable("overloaded"), "Ships called at berths."])
async def test_a_summary_that_fails_leaves_a_trace(answer: object, tmp_path: Path) -> None:
    """An event with the reason, a count that a later process knows too, and an alert; and what it cost is counted."""
    reader = Reader(3, stop_at=3)

    def answered(request: ModelRequest) -> str:
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    small = FunctionModel(answered, profile=rp.profile_for("claude-haiku-4-5"))
    path = tmp_path / "runs.db"
    async with rp.open_supervisor(
        path, model=reader.model, summaries=small, drain_timeout=0.01, durability="process"
    ) as supervisor:
        run = await supervisor.spawn(clerk(), "Read.", results=SUMMARY)
        await reader.arrived.wait()
        while run.statistics().summaries_failed < 2:
            await trio.lowlevel.checkpoint()
        reader.go()  # the next iteration sees how many failed
        await run.wait_result()
    async with rp.open_supervisor(path, durability="process") as supervisor:
        resumed = await supervisor.resume(run.id, agent=clerk())
        await resumed.wait_result()
        recorded = (await supervisor.journal.read_statistics(run.id))[run.id]
        events = [kept for _, kept in await supervisor.journal.read_events(run.id)]
    assert resumed.statistics().summaries_failed == recorded.summaries_refused >= 2
    assert resumed.statistics() == recorded
    refused = [kept.body["reason"] for kept in events if kept.type == "SummaryRefused"]
    assert len(refused) >= 2
    assert refused[0].startswith("the result of read_log in entry 2 has no summary: ")
    assert ("overloaded" if isinstance(answer, Exception) else "no JSON") in refused[0]
    assert [kept.body["metric"] for kept in events if kept.type == "Alert"] == ["summary_failures"]


async def test_a_summary_that_succeeds_counts_among_those_that_were_asked_for() -> None:
    """So that one failure in a hundred is not all of them."""
    reader = Reader(1, stop_at=2)
    async with rp.open_supervisor(model=reader.model, summaries=FunctionModel(lambda request: GOOD)) as supervisor:
        run = await supervisor.spawn(clerk(), "Read.", results=SUMMARY)
        await reader.arrived.wait()
        await trio.testing.wait_all_tasks_blocked()
        reader.go()
        await run.wait_result()
        (taken,) = [event async for event in run.events() if isinstance(event, SummaryTaken)]
    assert (taken.first, taken.last, taken.strategy) == (2, 2, "result")
    assert 0 < taken.tokens < taken.replaced_tokens


async def test_the_summarizer_is_given_the_whole_of_a_result_that_was_cut() -> None:
    """Strict rhythm shows 500 characters of it; the summary is of all, and stands in the stub."""
    reader = Reader(8, stop_at=2)
    small = FunctionModel(lambda request: '{"summary": "Ships called at berths 0 to 6."}')
    async with rp.open_supervisor(model=reader.model, summaries=small) as supervisor:
        context = rp.ContextPolicy(rhythm="strict", window=2)
        run = await supervisor.spawn(
            clerk(context), "Which berths are busy?", results=rp.ResultPolicy(compact_mode="summary")
        )
        await reader.arrived.wait()
        await trio.testing.wait_all_tasks_blocked()
        reader.go()
        await run.wait_result()
    assert log_of(1) not in text_of(reader.model.requests[1].messages[-1].content)
    assert log_of(1) in text_of(small.requests[0].messages[0].content)
    assert reader.shown(9)[0].split("\n")[1:] == ["Ships called at berths 0 to 6."]


@pytest.mark.parametrize(
    ("run", "agent", "tool", "expected"),
    [
        ("run", "agent", "tool", "run"),
        (None, "agent", "tool", "agent"),
        (None, None, "tool", "tool"),
        (None,) * 3 + ("",),
    ],
)
async def test_the_prompt_is_the_strongest_layers_else_the_built_in(
    run: str | None, agent: str | None, tool: str | None, expected: str
) -> None:
    """Run override, agent's entry for the tool, tool default, built-in."""

    def layer(prompt: str | None) -> rp.ResultPolicy:
        return rp.ResultPolicy(compact_mode="summary", compact_length=200, compact_prompt=prompt)

    @rp.tool(effect="pure", policy=layer(tool))
    def read_log(day: int) -> str:
        """Read."""
        return log_of(day)

    reader = Reader(1, stop_at=2)
    small = FunctionModel(lambda request: GOOD)
    context = rp.ContextPolicy(tools={"read_log": layer(agent)})
    async with rp.open_supervisor(model=reader.model, summaries=small) as supervisor:
        spawned = await supervisor.spawn(
            rp.Agent("clerk", tools=[read_log], context=context), "Read.", results=layer(run)
        )
        await reader.arrived.wait()
        await trio.testing.wait_all_tasks_blocked()
        reader.go()
        await spawned.wait_result()
    (request,) = small.requests
    system = text_of(request.system)
    assert system.startswith(f"{expected}\n") if expected else system.startswith("You condense one result")


async def test_a_summary_outlives_the_process_and_its_price_is_counted(tmp_path: Path) -> None:
    """It is in the journal before the run hears of it; a resumed run shows it and asks no second time."""
    small = FunctionModel(lambda request: GOOD, profile=rp.profile_for("claude-haiku-4-5"))
    path = tmp_path / "runs.db"
    reader = Reader(1, stop_at=2)
    async with rp.open_supervisor(
        path, model=reader.model, summaries=small, drain_timeout=0.01, durability="process"
    ) as supervisor:
        run = await supervisor.spawn(clerk(), "Read.", results=SUMMARY)
        while not any(kept.type == "ResultSummarized" for _, kept in await supervisor.journal.read_events(run.id)):
            await trio.lowlevel.checkpoint()
        while not run.statistics().cost_seen:
            await trio.lowlevel.checkpoint()
    again = Reader(6, stop_at=99, first=2)
    quiet = FunctionModel(lambda request: '{"summary": "Another."}')
    async with rp.open_supervisor(path, model=again.model, summaries=quiet, durability="process") as supervisor:
        resumed = await supervisor.resume(run.id, agent=clerk())
        await resumed.wait_result()
        assert resumed.statistics().cost_seen > 0
        events = [kept for _, kept in await supervisor.journal.read_events(run.id) if kept.type == "ResultSummarized"]
    assert sum(kept.body["position"] == 2 for kept in events) == 1
    assert again.sees(7, "Ships called at berths 0 to 6.")


async def test_without_a_model_nothing_is_asked_and_the_stub_is_shown() -> None:
    """The extractive summarizer writes no summaries of single results."""
    reader = Reader(6, stop_at=99)
    async with rp.open_supervisor(model=reader.model) as supervisor:
        run = await supervisor.spawn(clerk(), "Read.", results=SUMMARY)
        await run.wait_result()
    assert reader.shown(7)[0].startswith("[previously viewed: read_log")


@pytest.mark.parametrize(
    ("policy", "asked_in"),
    [
        (rp.ContextPolicy(window=1, comfort_tokens=3_000, summarize_every=100), [6]),
        (rp.ContextPolicy(summarize_every=2), []),  # nothing has outgrown its share
        (msgspec.structs.replace(STRICT, summarize_every=3), [3, 6]),
        (STRICT, []),
    ],
)
async def test_dense_work_is_summarized_more_often(policy: rp.ContextPolicy, asked_in: list[int]) -> None:
    """A summary is due when the record has grown by 25,000 tokens, and after so many iterations in any case."""

    @rp.tool(effect="pure")
    def read_year(year: int) -> str:
        """Read the log of a whole year: 60,000 characters."""
        return log_of(year) * 28

    model = ScriptedModel([*(call("read_year", year=year) for year in range(1, 7)), "Done."])
    small = FunctionModel(lambda request: "GOAL: to read_year.", profile=FREE)
    async with rp.open_supervisor(model=model, summaries=small) as supervisor:
        run = await supervisor.spawn(rp.Agent("clerk", tools=[read_year], context=policy), "Read.")
        await run.wait_result()
        await trio.testing.wait_all_tasks_blocked()
        calls = await supervisor.journal.read_model_calls(run.id)
    assert [row.called.iteration for row in calls if row.called.purpose == "summary"] == asked_in


@pytest.mark.parametrize(("days", "asked"), [(6, False), (60, True)])
async def test_a_summary_waits_until_savings_pay_for_it(days: int, asked: bool) -> None:
    """A model that charges is not asked while its summary could not be paid for, nor while one waits to be shown.

    So a run is never dearer for it than one that shows everything.
    """
    reader = Reader(days, stop_at=99)
    small = FunctionModel(lambda request: "GOAL: to read_log.", profile=rp.profile_for("claude-haiku-4-5"))
    async with rp.open_supervisor(model=reader.model, summaries=small) as supervisor:
        policy = rp.ContextPolicy(comfort_tokens=8_000)
        run = await supervisor.spawn(clerk(policy, limits=rp.Limits(iterations=99)), "Read.")
        await run.wait_result()
        figures = run.statistics()
    assert bool(small.requests) == asked
    assert figures.cost_seen <= figures.cost_plain
