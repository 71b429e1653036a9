"""Jobs for single results: in the same queue, under the same bounds, and answered either way."""

from __future__ import annotations

import msgspec
import pytest
import trio
from summarizer_scenes import GOOD, Scene, open_scene
from trio.testing import wait_all_tasks_blocked

from repertory.llm.messages import text_of
from repertory.llm.model import Model, ModelRequest
from repertory.record import MemoryJournal
from repertory.summarizer import ResultNotSummarized, ResultSummarized, SummarizeResult, SummaryReady
from repertory.testing import FunctionModel

SHORT = '{"summary": "It is short."}'


def job(scene: Scene, position: int, *models: Model) -> SummarizeResult:
    """A job for one result."""
    return SummarizeResult(
        run_id="run-1",
        position=position,
        text=f"result {position} " * 100,
        tool="read",
        models=models,
        reply_to=scene.listener,
    )


async def test_results_of_a_run_are_summarized_in_the_order_in_which_they_came() -> None:
    """First come, first served, one at a time for each run; none takes another's place."""
    model = FunctionModel(lambda request: SHORT)
    async with open_scene() as scene:
        for position in range(5):
            scene.summarizer.tell(job(scene, position, model))
        heard = await scene.wait_heard(5)
        kept = [event.body["position"] for _, event in await scene.journal.read_events("run-1")]
    seen = [text_of(request.messages[0].content).split("result ")[1].split()[0] for request in model.requests]
    assert seen == ["0", "1", "2", "3", "4"]
    assert kept == [0, 1, 2, 3, 4] == [message.position for message in heard if isinstance(message, ResultSummarized)]


async def test_a_full_queue_refuses_and_a_job_without_a_model_is_not_one() -> None:
    """The run goes on with a stub; where there is no model that is what was asked for, so nothing is said."""
    gate = trio.Event()

    async def hang(request: ModelRequest) -> str:
        await gate.wait()
        return SHORT

    async with open_scene(queue_limit=2) as scene:
        scene.summarizer.tell(job(scene, 9))
        for position in range(4):
            scene.summarizer.tell(job(scene, position, FunctionModel(hang)))
        (refused,) = await scene.wait_heard(1)
        assert isinstance(refused, ResultNotSummarized)
        words = "the result of read in entry 3 has no summary: 2 requests waiting already"
        assert (refused.position, refused.reason) == (3, words)
        gate.set()
        await scene.wait_heard(4)
        await wait_all_tasks_blocked()
        assert len(scene.heard) == 4


@pytest.mark.parametrize("answer", ["no JSON", '{"summary": "  "}', '{"summary": "%s"}' % ("x" * 801)])
async def test_what_is_no_summary_of_a_result_is_refused_after_a_second_chance(answer: str) -> None:
    """The answer says why; the next model, and the next request, are served by the same actor."""
    broken, good = FunctionModel(lambda request: answer), FunctionModel(lambda request: SHORT)
    async with open_scene() as scene:
        scene.summarizer.tell(job(scene, 1, broken))
        scene.summarizer.tell(job(scene, 2, broken, good))
        refused, written = await scene.wait_heard(2)
    assert isinstance(refused, ResultNotSummarized)
    assert isinstance(written, ResultSummarized)
    assert "ValueError" in refused.reason
    assert written.text == "It is short."
    assert (len(broken.requests), len(good.requests)) == (4, 1)


async def test_the_same_result_is_summarized_once_in_a_tree_of_runs() -> None:
    """Same text, goal, prompt and model: also for another agent of the tree, and after a restart. Nowhere else."""
    journal = MemoryJournal()
    model = FunctionModel(lambda request: SHORT)

    async def summarize(**fields: object) -> float:
        """What it cost to be told the same, by a summarizer that has just been started."""
        async with open_scene(journal=journal) as scene:
            first = job(scene, 1, model)
            scene.summarizer.tell(first)
            await scene.wait_heard(1)
            scene.summarizer.tell(msgspec.structs.replace(first, **fields))
            *_, last = await scene.wait_heard(2)
            assert isinstance(last, ResultSummarized)
            assert last.text == "It is short."
            return last.cost

    assert await summarize(position=9, run_id="run-1.aa") == 0.0
    assert await summarize(run_id="run-1.bb") == 0.0
    assert len(model.requests) == 1
    others = {"run_id": "run-2"}, {"goal": "Another."}, {"prompt": "Condense."}, {"length": 200}, {"text": "longer"}
    for count, other in enumerate(others, start=2):
        assert await summarize(**other) > 0.0
        assert len(model.requests) == count


async def test_the_same_stretch_is_summarized_once() -> None:
    """A sub-agent that was handed what another one has read is not charged for it again."""
    model = FunctionModel(lambda request: GOOD)
    async with open_scene(model) as scene:
        ledger = await scene.work(5)
        scene.ask(ledger)
        (one,) = await scene.wait_heard(1)
        scene.ask(ledger, run_id="run-1.aa")
        _, other = await scene.wait_heard(2)
    assert isinstance(one, SummaryReady)
    assert isinstance(other, SummaryReady)
    assert other.summary.content == one.summary.content
    assert (other.summary.model, other.summary.run_id, other.cost) == ("function", "run-1.aa", 0.0)
    assert len(model.requests) == 1
