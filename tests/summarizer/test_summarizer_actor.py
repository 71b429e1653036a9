"""The summarizer: a queue that blocks nobody, one summary per run at a time, and failures that no run notices."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from summarizer_scenes import GOOD, Gated, Scene, open_scene, text_in
from trio.testing import wait_all_tasks_blocked

from repertory.errors import ModelUnavailable
from repertory.llm.messages import Text, text_of
from repertory.llm.model import ModelRequest, ModelResponse
from repertory.llm.profiles import profile_for
from repertory.record import Draft, Ledger
from repertory.summarizer import SummaryFailed, SummaryReady
from repertory.testing import FunctionModel, ScriptedModel


async def test_a_summary_is_durable_before_anyone_is_told() -> None:
    """What is announced is in the journal already, under its range, with its sizes and who wrote it."""
    async with open_scene() as scene:
        ledger = await scene.work(10)
        scene.ask(ledger)
        (message,) = await scene.wait_heard(1)
        assert isinstance(message, SummaryReady)
        assert await scene.journal.read_summaries("run-1") == [message.summary]
        summary = message.summary
        assert (summary.first, summary.last, summary.strategy, summary.at) == (0, 20, "extractive", 7.0)
        assert summary.tokens <= 500 < summary.replaced_tokens
        assert "Measure the tides" in text_in(message)


async def test_a_summary_holds_nothing_later_than_its_snapshot() -> None:
    """The run goes on while the summary is written; none of that is in it, nor was it given to the model."""
    model = Gated()
    async with open_scene(model) as scene:
        ledger = await scene.work(10)
        scene.ask(ledger)
        await wait_all_tasks_blocked()
        await scene.work(5)
        model.gate.set()
        (message,) = await scene.wait_heard(1)
        assert isinstance(message, SummaryReady)
        assert message.summary.last == 20
        assert "step_10" in model.given[0]
        assert "step_11" not in model.given[0]


async def test_nobody_waits_for_a_slow_model() -> None:
    """While a summary hangs, the mailbox answers, other runs are served, and the ledger grows."""
    model = Gated()
    async with open_scene(model) as scene:
        one, two = await scene.work(5, run_id="run-1"), await scene.work(5, run_id="run-2")
        scene.ask(one)
        await wait_all_tasks_blocked()
        scene.ask(two, models=())
        (message,) = await scene.wait_heard(1)
        assert isinstance(message, SummaryReady)
        assert message.summary.run_id == "run-2"
        await scene.work(3)
        model.gate.set()
        assert len(await scene.wait_heard(2)) == 2


async def test_one_run_has_one_summary_in_work_and_the_newest_waits() -> None:
    """Requests of one run never overlap; a newer one takes the place of the one that waits, which is told."""
    model = Gated()
    async with open_scene(model) as scene:
        ledger = await scene.work(5)
        scene.ask(ledger)
        for _ in range(3):
            await scene.work(2)
            scene.ask(ledger)
        await wait_all_tasks_blocked()
        assert len(model.requests) == 1
        failed = [(m.reason, m.superseded) for m in scene.heard if isinstance(m, SummaryFailed)]
        assert failed == [("a newer request of the same run took its place", True)] * 2
        model.gate.set()
        await scene.wait_heard(4)
        ready = [message.summary.last for message in scene.heard if isinstance(message, SummaryReady)]
        assert ready == [10, 22]


async def test_runs_are_served_in_order() -> None:
    """First come, first served; no more at once than there are workers."""
    model = Gated()
    async with open_scene(model, workers=1) as scene:
        for number in range(4):
            scene.ask(await scene.work(3, run_id=f"run-{number}"))
        await wait_all_tasks_blocked()
        assert len(model.requests) == 1
        model.gate.set()
        heard = await scene.wait_heard(4)
        assert [m.summary.run_id for m in heard if isinstance(m, SummaryReady)] == [f"run-{n}" for n in range(4)]


async def test_the_queue_is_bounded() -> None:
    """One request too many is refused at once, with the reason."""
    model = Gated()
    async with open_scene(model, workers=1, queue_limit=1) as scene:
        for number in range(3):
            scene.ask(await scene.work(3, run_id=f"run-{number}"))
        await wait_all_tasks_blocked()
        (message,) = scene.heard
        assert isinstance(message, SummaryFailed)
        assert (message.run_id, message.reason) == ("run-2", "1 request waiting already")
        model.gate.set()
        await scene.wait_heard(3)


class Beyond(BaseException):
    """What some libraries raise that is no ``Exception``."""


def failing(*answers: Any) -> FunctionModel:
    """A model that fails in several ways, one after the other, the last one for ever."""
    left = [*answers]

    async def answer(request: ModelRequest) -> Any:
        now = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(now, BaseException):
            raise now
        if now == "hang":
            await anyio.sleep_forever()
        return now

    return FunctionModel(answer)


MADE_UP = "GOAL: tides.\nFACTS:\n- it is high\n> tide_table[7] = 'high'"
ELSEWHERE = "GOAL: bake bread.\nFACTS: flour, water, salt."


@pytest.mark.parametrize(
    "answer",
    [
        RuntimeError("bug"),
        GeneratorExit(),
        BaseExceptionGroup("two", [Beyond(), ValueError()]),
        "  ",
        "Let me see what I can do.",
        "GOAL: " + "x" * 5_000,
        *(
            ModelResponse(content=(Text(GOOD),), stop_reason=reason)
            for reason in ("max_tokens", "model_context_window_exceeded", "length")
        ),
        MADE_UP,
        ELSEWHERE,
        "hang",
    ],
    ids=[
        "raises",
        "beyond",
        "group",
        "empty",
        "chats",
        "grows",
        "cut",
        "no room",
        "cut locally",
        "made-up",
        "elsewhere",
        "hangs",
    ],
)
async def test_a_model_that_fails_is_asked_again_and_then_replaced(answer: Any, autojump_clock: Any) -> None:
    """Bounded attempts, each with a deadline; then a text from the record. The agent only sees a summary."""
    model = failing(answer)
    async with open_scene(model, attempts=3, timeout=10.0) as scene:
        scene.ask(await scene.work(10))
        (message,) = await scene.wait_heard(1)
        assert isinstance(message, SummaryReady)
        assert message.summary.strategy == "extractive"
        assert len(model.requests) == 3
        assert message.failure


@pytest.mark.parametrize(
    ("answer", "asked"),
    [
        (ModelUnavailable("down"), 1),
        (ModelResponse(content=(), stop_reason="refusal"), 1),
        ("no headings", 2),
    ],
    ids=["down", "refuses", "chats"],
)
async def test_models_are_tried_in_order(answer: Any, asked: int) -> None:
    """The next one writes what the first one cannot; one that gave no answer has tried again by itself already."""
    first, second, third = failing(answer), failing(GOOD), failing(GOOD)
    async with open_scene(first, second, third) as scene:
        scene.ask(await scene.work(10))
        (message,) = await scene.wait_heard(1)
        assert isinstance(message, SummaryReady)
        assert (message.summary.strategy, message.failure) == ("model", "")
        assert [len(model.requests) for model in (first, second, third)] == [asked, 1, 0]


async def test_without_a_fallback_nothing_takes_the_place_of_a_models_summary() -> None:
    """The view stays as it is then; the reason is told."""
    async with open_scene(failing(ModelUnavailable("down"))) as scene:
        scene.ask(await scene.work(10), fallback=False)
        scene.ask(await scene.work(10, run_id="run-2"), models=(), fallback=False)
        heard = await scene.wait_heard(2)
        reasons = {message.run_id: message.reason for message in heard if isinstance(message, SummaryFailed)}
        assert reasons == {"run-1": "ModelUnavailable: down", "run-2": "there is no model to write one"}
        assert await scene.journal.read_summaries("run-1") == []


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), BaseExceptionGroup("", [KeyboardInterrupt()])])
def test_what_is_meant_for_the_program_goes_through_a_model(run_async: Any, error: BaseException) -> None:
    """Ctrl-C while a summary is written ends the program, not the summary."""

    async def main() -> None:
        async with open_scene(failing(error)) as scene:
            scene.ask(await scene.work(10))
            await anyio.sleep_forever()

    with pytest.raises((BaseExceptionGroup, KeyboardInterrupt, SystemExit)) as caught:
        run_async(main)
    leaf = caught.value
    while isinstance(leaf, BaseExceptionGroup):
        leaf = leaf.exceptions[0]
    assert isinstance(leaf, KeyboardInterrupt | SystemExit)


class Returning(FunctionModel):
    """A model that returns things which are no answers, one after the other, the last one for ever."""

    def __init__(self, *answers: Any) -> None:
        super().__init__(lambda request: "")
        self.answers = list(answers)

    async def complete(self, request: ModelRequest, **options: Any) -> Any:
        """The next one."""
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def said(text: str) -> ModelResponse:
    """An answer."""
    return ModelResponse(content=(Text(text),))


@pytest.mark.parametrize("answer", [42, None, GOOD, ModelResponse(content=(5,))])  # type: ignore[arg-type]
async def test_a_model_that_returns_something_else_fails_like_any_other(answer: Any) -> None:
    """The actor, what it counted and the requests of other runs outlive it; the answer says why it was not used."""
    async with open_scene(Returning(answer, answer, said(GOOD)), workers=1) as scene:
        scene.ask(await scene.work(10))
        scene.ask(await scene.work(10, run_id="run-2"))
        broken, good = await scene.wait_heard(2)
        assert isinstance(broken, SummaryReady)
        assert isinstance(good, SummaryReady)
        assert (broken.summary.strategy, good.summary.strategy) == ("extractive", "model")
        assert broken.failure
        assert good.failure == ""


@pytest.mark.parametrize("grouped", [False, True])
def test_a_model_that_waited_for_something_cancelled_fails_like_any_other(*, grouped: bool) -> None:
    """On asyncio that looks like a cancellation of the summarizer, which would forget the requests of all runs."""

    async def leak(_: ModelRequest) -> str:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        try:
            return str(await future)
        except asyncio.CancelledError as error:
            if grouped:
                raise BaseExceptionGroup("two tasks", [error, ValueError("no")]) from None
            raise

    async def main() -> None:
        async with open_scene(FunctionModel(leak), FunctionModel(lambda _: GOOD), workers=1) as scene:
            scene.ask(await scene.work(10))
            scene.ask(await scene.work(10, run_id="run-2"))
            heard = await scene.wait_heard(2)
            assert [each.summary.strategy for each in heard if isinstance(each, SummaryReady)] == ["model", "model"]
            assert scene.summarizer.statistics().crashes == 0

    anyio.run(main, backend="asyncio")


async def test_what_cannot_be_sent_is_taken_out_of_a_summary() -> None:
    """A lone surrogate would break the request that shows it."""
    async with open_scene(Returning(said("GOAL: \ud800 handler_1\0"))) as scene:
        scene.ask(await scene.work(10))
        (message,) = await scene.wait_heard(1)
        assert isinstance(message, SummaryReady)
        assert message.summary.content == (Text("GOAL: ? handler_1?"),)


async def test_a_text_from_the_record_is_no_failure_where_no_model_was_asked_for() -> None:
    """A short stretch gets a shorter one."""
    async with open_scene() as scene:
        ledger = Ledger(scene.journal, "run-1")
        await ledger.append(Draft(role="user", kind="task", content=(Text("Measure all tides. " * 20),)))
        scene.ask(ledger)
        (message,) = await scene.wait_heard(1)
        assert isinstance(message, SummaryReady)
        assert message.failure == ""


async def test_a_model_that_recovers_needs_no_fallback() -> None:
    """The second attempt counts like a first."""
    async with open_scene(failing(ConnectionError("reset"), GOOD)) as scene:
        scene.ask(await scene.work(10))
        (message,) = await scene.wait_heard(1)
        assert isinstance(message, SummaryReady)
        assert (message.summary.strategy, message.summary.model, message.failure) == ("model", "function", "")


async def test_a_model_with_little_room_is_asked_in_steps() -> None:
    """Each merges what the one before has written; what is stored stands for the whole."""
    profile = msgspec.structs.replace(profile_for("qwen3"), context_window=8_192)
    model = FunctionModel(lambda request: f"{GOOD} at step {len(model.requests)}", profile=profile)
    async with open_scene(model) as scene:
        scene.ask(await scene.work(40), tokens=None)
        (ready,) = await scene.wait_heard(1)
        assert isinstance(ready, SummaryReady)
        asked = [text_of(request.messages[0].content) for request in model.requests]
        assert len(asked) > 2
        assert [f"at step {number}\n</earlier_summary" in text for number, text in enumerate(asked)] == [
            False,
            *[True] * (len(asked) - 1),
        ]
        assert all(sum(f"step_{number}\n" in text for text in asked) == 1 for number in range(1, 41))
        assert (ready.summary.first, ready.summary.last) == (0, 80)
        assert text_of(ready.summary.content) == f"{GOOD} at step {len(asked)}"


async def test_stale_and_impossible_requests_are_refused() -> None:
    """What is covered already, what is empty, what is out of order, and what would not shrink."""
    async with open_scene() as scene:
        ledger = await scene.work(10)
        scene.ask(ledger)
        await scene.wait_heard(1)
        scene.ask(ledger, upto=11)
        scene.ask(ledger, previous="S", previous_upto=21)
        scene.ask(ledger, upto=99)
        scene.ask(ledger, first=5, previous_upto=2)
        tiny = Ledger(scene.journal, "run-tiny")
        await tiny.append(*[])
        small = await scene.work(0, run_id="run-small")
        scene.ask(small)
        heard = await scene.wait_heard(6)
        reasons = sorted(message.reason for message in heard if isinstance(message, SummaryFailed))
        assert len(reasons) == 5
        assert "a summary up to entry 10 is there already" in reasons
        assert "there is nothing new to summarize" in reasons
        assert sum("do not lie in order" in reason for reason in reasons) == 2
        assert sum("too few for one" in reason for reason in reasons) == 1


async def test_summaries_chain() -> None:
    """The next one is given the last and only what is new since, and stands for everything."""
    model = Gated()
    model.gate.set()
    async with open_scene(model) as scene:
        ledger = await scene.work(10)
        scene.ask(ledger)
        await scene.wait_heard(1)
        await scene.work(10)
        scene.ask(ledger, previous=GOOD, previous_upto=21)
        second = (await scene.wait_heard(2))[1]
        assert isinstance(second, SummaryReady)
        assert (second.summary.first, second.summary.last) == (0, 40)
        assert GOOD in model.given[1]
        assert "step_10\n" not in model.given[1]
        assert "step_11\n" in model.given[1]
        assert second.summary.replaced_tokens == sum(entry.tokens for entry in ledger.snapshot())


async def test_an_asker_that_is_gone_or_full_stops_nothing() -> None:
    """The summary is stored; its announcement is lost, not the summarizer."""
    async with open_scene() as scene:
        scene.listener.stop()
        await wait_all_tasks_blocked()
        scene.ask(await scene.work(10))
        scene.ask(await scene.work(10, run_id="run-2"), reply_to=None)
        await wait_all_tasks_blocked()
        assert [len(await scene.journal.read_summaries(run_id)) for run_id in ("run-1", "run-2")] == [1, 1]


async def test_model_calls_are_recorded_with_their_cost() -> None:
    """Every request and answer of the summarizer is in the log of model calls, apart from the run's own."""
    model = ScriptedModel([ValueError("no"), GOOD], profile=profile_for("claude-haiku-5-5"))
    async with open_scene(model) as scene:
        scene.ask(await scene.work(10), iteration=10)
        (message,) = await scene.wait_heard(1)
        assert isinstance(message, SummaryReady)
        assert (message.summary.strategy, message.summary.content) == ("model", (Text(GOOD),))
        rows = await scene.journal.read_model_calls("run-1")
        assert [(row.called.purpose, row.called.call < 0, row.called.iteration) for row in rows] == [
            ("summary", True, 10)
        ] * 2
        assert rows[0].replied is not None
        assert rows[0].replied.error == "ValueError: no"
        assert rows[1].replied is not None
        assert rows[1].replied.usage.prompt_tokens > 0
        assert message.cost == rows[0].replied.cost_lost + rows[1].replied.cost
        assert 0 < rows[1].replied.cost < rows[0].replied.cost_lost
        assert (await scene.journal.read_request("run-1", rows[1].called.call))["messages"]


def test_it_works_on_both_backends(run_async: Any) -> None:
    """Asked, written, stored and told, on trio and on asyncio."""

    async def main() -> None:
        """Ask and wait."""
        async with open_scene() as scene:
            scene.ask(await scene.work(10))
            (message,) = await scene.wait_heard(1)
            assert isinstance(message, SummaryReady)

    run_async(main)


async def test_a_summary_survives_the_process(tmp_path: Path) -> None:
    """With a real file: what was announced is read back after closing."""
    from functools import partial

    from repertory.actors import open_system
    from repertory.record import open_journal
    from repertory.summarizer import SummarizerActor

    path = tmp_path / "journal.db"
    heard: list[Any] = []
    grew = [anyio.Event()]
    from summarizer_scenes import Listener

    async with open_journal(path) as journal, open_system("s") as system:
        listener = system.spawn(partial(Listener, heard, grew), "listener")
        scene = Scene(system.spawn(partial(SummarizerActor, journal), "summarizer"), listener, journal, system)  # type: ignore[arg-type]
        scene.heard, scene.grew = heard, grew
        scene.ask(await scene.work(5))
        await scene.wait_heard(1)
    async with open_journal(path) as journal:
        assert await journal.read_summaries("run-1") == [heard[0].summary]
