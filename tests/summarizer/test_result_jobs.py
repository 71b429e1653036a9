"""Jobs for single results: in the same queue, under the same bounds, and answered either way."""

from __future__ import annotations

from functools import partial

import trio

from repertory.actors import open_system
from repertory.llm.model import ModelRequest
from repertory.record import open_journal
from repertory.summarizer import GetStatistics, ModelStrategy, SummarizerActor, SummarizeResult
from repertory.testing import FunctionModel


def job(position: int, run_id: str = "run-1") -> SummarizeResult:
    """A job for one result."""
    return SummarizeResult(run_id=run_id, position=position, text=f"result {position} " * 100, tool="read")


async def test_results_of_a_run_are_summarized_in_the_order_in_which_they_came() -> None:
    """First come, first served, one at a time for each run; none takes another's place."""
    seen: list[str] = []

    def answer(request: ModelRequest) -> str:
        seen.append(str(request.messages[0].content[0]).split("result ")[1].split()[0])
        return '{"summary": "It is short."}'

    async with open_journal() as journal, open_system("test") as system:
        strategy = ModelStrategy(FunctionModel(answer))
        ref = system.spawn(partial(SummarizerActor, journal, strategy), "summarizer")
        for position in range(5):
            ref.tell(job(position))
        await trio.testing.wait_all_tasks_blocked()
        counts = await ref.ask(GetStatistics())
        kept = [event.body["position"] for _, event in await journal.read_events("run-1")]
    assert seen == ["0", "1", "2", "3", "4"]
    assert kept == [0, 1, 2, 3, 4]
    assert (counts.asked, counts.results, counts.superseded, counts.queued) == (5, 5, 0, 0)


async def test_a_full_queue_and_a_strategy_without_a_model_refuse() -> None:
    """The run goes on with a stub, so it is only counted here."""
    stuck = trio.Event()

    async def hang(request: ModelRequest) -> str:
        await stuck.wait()
        return '{"summary": "It is short."}'

    async with open_journal() as journal, open_system("test", drain_timeout=0.1) as system:
        make = partial(SummarizerActor, journal, ModelStrategy(FunctionModel(hang)), queue_limit=2)
        ref = system.spawn(make, "summarizer")
        for position in range(4):
            ref.tell(job(position))
        counts = await ref.ask(GetStatistics())
        assert (counts.running, counts.queued, counts.refused) == (1, 2, 1)
        stuck.set()
        await trio.testing.wait_all_tasks_blocked()
        assert (await ref.ask(GetStatistics())).results == 3
        plain = system.spawn(partial(SummarizerActor, journal), "plain")
        plain.tell(job(9))
        assert (await plain.ask(GetStatistics())).refused == 1
