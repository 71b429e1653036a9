"""Summaries of a run: slow, broken and good ones, how they are told apart, and how they are found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import trio

import repertory as rp
from backends import RunAsync
from context_scenes import Reader, clerk
from repertory.errors import ConfigurationError, ModelUnavailable
from repertory.llm.messages import Text, text_of
from repertory.llm.model import ModelResponse
from repertory.llm.profiles import OFFLINE, with_prices
from repertory.runs.events import Alert, SummaryRefused, SummaryTaken
from repertory.testing import FunctionModel, ScriptedModel, call

MANY = rp.Limits(iterations=99)
FREE = with_prices(OFFLINE, input=0, output=0)


@rp.tool(effect="pure")
async def read_log(day: int) -> str:
    """Read the log of a day, which takes two seconds."""
    await trio.sleep(2)
    return "\n".join(f"day {day}, hour {hour}: ship {day * 100 + hour} at berth {hour % 7}" for hour in range(100))


class Slow(FunctionModel):
    """Takes half a minute for a summary."""

    def __init__(self) -> None:
        super().__init__(self._answer, profile=FREE)
        self.asked_at: list[float] = []

    async def _answer(self, request: Any) -> str:
        self.asked_at.append(trio.current_time())
        await trio.sleep(30)
        return f"GOAL: to read_log. FACTS: {len(self.asked_at)}"


@pytest.mark.parametrize("rhythm", ["thrifty", "strict"])
async def test_no_step_waits_for_a_slow_summarizer(rhythm: Any, autojump_clock: Any) -> None:
    """Sixty calls of two seconds take two minutes, with summaries of half a minute each that are taken meanwhile.

    Strict rhythm swaps them in; in thrifty rhythm the digests of such a run are ahead of them.

    One that a newer request takes the place of is neither refused nor failed, so a healthy summarizer raises no alert.
    """
    slow, begun = Slow(), trio.current_time()
    model = ScriptedModel([*(call("read_log", day=day) for day in range(60)), "Done."])
    async with rp.open_supervisor(model=model, summaries=slow, clock=trio.current_time, drain_timeout=0) as supervisor:
        agent = rp.Agent("clerk", tools=[read_log], context=rp.ContextPolicy(rhythm=rhythm, window=3), limits=MANY)
        run = await supervisor.spawn(agent, "Read.")
        assert await run.wait_result() == "Done."
        assert trio.current_time() - begun == 120
        events = [event async for event in run.events()]
        figures = run.statistics()
    waits = [later - earlier for earlier, later in zip(slow.asked_at, slow.asked_at[1:], strict=False)]
    assert len(slow.asked_at) >= 3 or rhythm == "thrifty"  # in which nothing has outgrown its share
    assert min(waits, default=30) >= 30
    assert rhythm == "thrifty" or figures.summaries >= 1
    assert figures.summaries_failed == 0
    assert rhythm == "thrifty" or any(isinstance(event, SummaryTaken) for event in events)
    assert not [event for event in events if isinstance(event, SummaryRefused)]
    assert "summary_failures" not in [event.metric for event in events if isinstance(event, Alert)]


@pytest.mark.parametrize("answer", [ModelUnavailable("down"), "No headings."], ids=["down", "no summary"])
async def test_a_model_that_fails_every_time_raises_an_alert(answer: Any, tmp_path: Path) -> None:
    """The extractive summaries in its place keep the run going; that they had to is said, counted and kept."""
    strict = rp.ContextPolicy(rhythm="strict", window=2, summarize_every=5)
    failing = FunctionModel(lambda request: answer)
    path = tmp_path / "runs.db"
    reader = Reader(13, stop_at=12)  # when iterations 5 and 10 have asked
    async with rp.open_supervisor(path, model=reader.model, summaries=failing, durability="process") as supervisor:
        run = await supervisor.spawn(clerk(strict, limits=MANY), "Read.")
        await reader.arrived.wait()
        while run.statistics().summaries_failed < 2:
            await trio.lowlevel.checkpoint()
        reader.go()
        await run.wait_result()
        events = [event async for event in run.events()]
        taken = [event for event in events if isinstance(event, SummaryTaken)]
        counted = run.statistics()
        recorded = (await supervisor.journal.read_statistics(run.id))[run.id]
    assert len(taken) == 2
    for event in taken:
        assert event.strategy == "extractive"
        assert ("down" if isinstance(answer, Exception) else "headings") in event.failure
    assert counted.summaries_failed == 2 == recorded.summaries_failed
    (alert,) = [event for event in events if isinstance(event, Alert) and event.metric == "summary_failures"]
    assert "100.0% of " in alert.reason
    async with rp.open_supervisor(path, durability="process") as supervisor:
        resumed = await supervisor.resume(run.id, agent=clerk(strict))
        assert resumed.statistics().summaries_failed == counted.summaries_failed


async def test_a_caller_gets_the_newest_summary_that_covers_an_iteration(tmp_path: Path) -> None:
    """Each stands for all before it, words and positions; another process finds it, too."""
    path = tmp_path / "runs.db"
    strict = rp.ContextPolicy(rhythm="strict", window=2, summarize_every=5)
    seen: list[str] = []

    def answer(request: Any) -> str:
        seen.append(text_of(request.messages[0].content))
        return f"GOAL: to read_log, {len(seen)}."

    small = FunctionModel(answer)
    reader = Reader(20, stop_at=12)
    async with rp.open_supervisor(
        path, model=reader.model, summaries=small, durability="process", drain_timeout=0.01
    ) as supervisor:
        run = await supervisor.spawn(clerk(strict, limits=MANY), "Read.")
        await reader.arrived.wait()
        while (found := await run.summary(start_iteration=6)) is None:
            await trio.lowlevel.checkpoint()
        assert (text_of(found.content), found.first, found.last) == ("GOAL: to read_log, 2.", 0, 20)
        assert await run.summary(start_iteration=2) == await run.summary() == found
        assert await run.summary(start_iteration=11) is None
        with pytest.raises(ConfigurationError, match="Expected `int`, got `str`"):
            await run.summary(start_iteration=cast("int", "6"))
    assert "GOAL: to read_log, 1." in seen[1]
    async with rp.open_supervisor(path, model=Reader(0, stop_at=99).model, durability="process") as supervisor:
        resumed = await supervisor.resume(run.id, agent=clerk(strict, limits=MANY))
        assert await resumed.summary(start_iteration=6) == found


class Returning(FunctionModel):
    """Returns what it was made with."""

    def __init__(self, answer: Any) -> None:
        super().__init__(lambda request: "")
        self.answer = answer

    async def complete(self, request: Any, **options: Any) -> Any:
        """Give it."""
        return self.answer


@pytest.mark.parametrize(
    "answer", [42, None, ModelResponse(content=(5,)), ModelResponse(content=(Text("GOAL: \ud800\0"),))], ids=repr
)  # type: ignore[arg-type]
def test_no_run_notices_what_a_model_of_summaries_returns(answer: Any, run_async: RunAsync) -> None:
    """Neither the one that asked nor the next one of the same process."""

    async def main() -> None:
        def reads() -> Callable[[Any], Any]:
            days = iter(range(1, 31))
            return lambda request: next((call("look", day=day) for day in days), "Done.")

        @rp.tool(effect="pure")
        def look(day: int) -> str:
            """Look."""
            return f"day {day} " * 300

        context = rp.ContextPolicy(rhythm="strict", window=2)
        async with rp.open_supervisor(summaries=Returning(answer)) as supervisor:
            for _ in range(2):
                agent = rp.Agent("clerk", tools=[look], context=context, model=FunctionModel(reads()), limits=MANY)
                run = await supervisor.spawn(agent, "Read.")
                assert await run.wait_result() == "Done."
                assert run.statistics().summaries >= 1

    run_async(main)
