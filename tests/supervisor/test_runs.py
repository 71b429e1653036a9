"""One run at a time: the loop, its tools, its ends."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trio

import repertory as rp
from backends import RunAsync
from patience import PATIENCE
from repertory.errors import ConfigurationError, LimitExceeded, ModelUnavailable, RunError, RunFailed, RunStopped
from repertory.llm.messages import Text, ToolResult, text_of
from repertory.llm.model import ModelRequest, ModelResponse
from repertory.record import open_journal
from repertory.runs.events import (
    ApprovalRequested,
    IterationStarted,
    ModelAnswered,
    ResultAwaited,
    RunSpawned,
    StateChanged,
    ToolEnded,
    ToolStarted,
)
from repertory.testing import FunctionModel, ScriptedModel, call


@rp.tool(effect="pure")
async def look_up(word: str) -> str:
    """Look a word up.

    Args:
        word: The word.
    """
    return f"{word}: a word of {len(word)} letters"


def agent(**options: object) -> rp.Agent:
    """An agent with one tool."""
    return rp.Agent("clerk", instructions="You are a clerk.", tools=[look_up], **options)  # type: ignore[arg-type]


def results_in(request: object) -> list[ToolResult]:
    """The tool results that a request shows, in order."""
    return [
        block
        for message in request.messages  # type: ignore[attr-defined]
        for block in message.content
        if isinstance(block, ToolResult)
    ]


def test_a_run_calls_its_tools_and_gives_its_answer(run_async: RunAsync) -> None:
    """The model is shown the task and then the result, and its last text is the run's result; on both backends."""

    async def main() -> None:
        model = ScriptedModel([call("look_up", word="tide"), "It has 4 letters."])
        async with rp.open_supervisor(model=model) as supervisor:
            run = await supervisor.spawn(agent(), "How long is 'tide'?")
            assert await run.wait_result() == "It has 4 letters."
            assert run.state == "done"
        model.assert_complete()
        first, second = model.requests
        assert text_of(first.messages[0].content) == "How long is 'tide'?"
        assert [text_of(result) for result in results_in(second)] == ["tide: a word of 4 letters"]

    run_async(main)


async def test_events_tell_the_whole_course_of_a_run() -> None:
    """Whoever watches sees every step in order, and the reader ends with the run."""
    model = ScriptedModel([call("look_up", word="tide"), "Done."])
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(agent(), "Look something up.")
        kinds = [type(event) async for event in run.events()]
    assert kinds == [
        RunSpawned,
        IterationStarted,
        ModelAnswered,
        ToolStarted,
        ToolEnded,
        IterationStarted,
        ModelAnswered,
        StateChanged,
    ]


async def test_tool_calls_of_one_turn_run_side_by_side_and_are_shown_in_the_order_of_the_calls() -> None:
    """The first call may end last: the model still finds the results in the order in which it asked."""
    second_done = trio.Event()

    @rp.tool
    async def first() -> str:
        """Wait for the other."""
        await second_done.wait()
        return "first"

    @rp.tool
    async def second() -> str:
        """Let the other go on."""
        second_done.set()
        return "second"

    model = ScriptedModel([[call("first"), call("second")], "Done."])
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(rp.Agent("pair", tools=[first, second]), "Go.")
        with trio.fail_after(PATIENCE):
            await run.wait_result()
    assert [text_of(result) for result in results_in(model.requests[1])] == ["first", "second"]


async def test_an_unknown_tool_and_wrong_arguments_are_told_to_the_model() -> None:
    """The run goes on: the model is told what exists and what was expected."""
    model = ScriptedModel([[call("lookup", word="x"), call("look_up", wort="x")], "Sorry."])
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(agent(), "Go.")
        assert await run.wait_result() == "Sorry."
    unknown, wrong = results_in(model.requests[1])
    assert unknown.is_error
    assert "Did you mean look_up?" in text_of(unknown)
    assert wrong.is_error
    assert "look_up(word: string)" in text_of(wrong)


async def test_a_tool_that_aborts_ends_the_run_and_leaves_a_whole_transcript() -> None:
    """The caller gets the tool's own error, and every call still has a result, so the run can be resumed."""

    @rp.tool
    async def explode() -> str:
        """Give up."""
        raise rp.ToolAbort("the disk is gone")

    model = ScriptedModel([[call("explode"), call("look_up", word="a")]])
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(rp.Agent("a", tools=[explode, look_up]), "Go.")
        with pytest.raises(RunFailed, match="the disk is gone") as caught:
            await run.wait_result()
        assert isinstance(caught.value.__cause__, rp.ToolAbort)
        entries = await supervisor.journal.read_entries(run.id)
    assert [entry.kind for entry in entries] == ["task", "assistant", "action-result", "action-result"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_process_comes_out_as_it_is(run_async: RunAsync, error: type[BaseException]) -> None:
    """Wherever in a run it strikes. In the groups of trio's tasks it was a long error, with another exit status."""

    def answer(request: ModelRequest) -> str:
        raise error

    async def main() -> None:
        async with rp.open_supervisor(model=FunctionModel(answer)) as supervisor:
            await (await supervisor.spawn(agent(), "Go.")).wait_result()

    with pytest.raises(error):
        run_async(main)


async def test_an_answer_that_was_cut_off_is_continued() -> None:
    """The parts become one answer; the model is asked to go on where it stopped."""
    cut = ModelResponse(content=(Text("The tide "),), stop_reason="max_tokens")
    model = ScriptedModel([cut, "turns twice a day."])
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(agent(), "Tell me of the tide.")
        assert await run.wait_result() == "The tide turns twice a day."


async def test_a_model_that_says_nothing_is_asked_again_and_then_given_up() -> None:
    """An endless loop of empty answers ends in a clear error."""
    model = FunctionModel(lambda request: ModelResponse(content=()))
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(agent(), "Say something.")
        with pytest.raises(RunFailed, match="cut-off or empty answers in a row") as caught:
            await run.wait_result()
    assert isinstance(caught.value.__cause__, LimitExceeded)
    assert len(model.requests) == 4


async def test_answers_of_a_busy_chat_that_are_cut_off_now_and_then_are_not_in_a_row() -> None:
    """A run that is spoken to before it has ended failed with the fourth answer that had been cut off in all."""
    cut, left = ModelResponse(content=(Text("The "),), stop_reason="max_tokens"), 6

    async def answer(request: ModelRequest) -> ModelResponse | str:
        nonlocal left
        if "cut off" not in text_of(request.messages[-1].content):
            return cut
        if left := left - 1:
            await run.send(f"Question {left}?")
        return "end."

    async with rp.open_supervisor(model=FunctionModel(answer)) as supervisor:
        run = await supervisor.spawn(agent(), "Begin.")
        assert await run.wait_result() == "The end."


async def test_a_model_error_fails_the_run_and_a_resume_goes_on_with_it() -> None:
    """What was done before is not done again."""
    model = ScriptedModel(
        [call("look_up", word="tide"), ModelUnavailable("overloaded after 5 attempts"), "Four letters."]
    )
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(agent(), "How long is it?")
        with pytest.raises(RunFailed, match="overloaded"):
            await run.wait_result()
        again = await supervisor.resume(run.id, agent=agent())
        assert await again.wait_result() == "Four letters."
    assert [text_of(result) for result in results_in(model.requests[2])] == ["tide: a word of 4 letters"]


async def test_iterations_are_limited() -> None:
    """A model that never answers costs no more than it may."""
    model = FunctionModel(lambda request: call("look_up", word="again"))
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(agent(limits=rp.Limits(iterations=5)), "Loop.")
        with pytest.raises(RunFailed, match="no answer after 5 iterations"):
            await run.wait_result()
    assert len(model.requests) == 5


async def test_the_same_pure_call_is_not_made_twice() -> None:
    """The earlier result is given, marked with the iteration it is from."""
    calls = 0

    @rp.tool(effect="pure")
    async def count() -> str:
        """Count the calls."""
        nonlocal calls
        calls += 1
        return f"called {calls} times"

    model = ScriptedModel([call("count"), call("count"), "Done."])
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(rp.Agent("a", tools=[count]), "Count.")
        await run.wait_result()
        assert run.statistics().dedup_hits == 1
    assert calls == 1
    assert "already called in iteration 1" in text_of(results_in(model.requests[2])[1])


async def test_tool_ids_that_a_model_uses_twice_stay_apart() -> None:
    """Local servers number their calls from zero in each turn; the transcript stays valid all the same."""
    model = ScriptedModel(
        [call("look_up", call_id="call_0", word="a"), call("look_up", call_id="call_0", word="bb"), "Done."]
    )
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(agent(), "Go.")
        await run.wait_result()
    ids = [result.tool_use_id for result in results_in(model.requests[2])]
    assert ids == ["call_0", "call_0_2"]


async def test_a_message_is_read_at_the_next_iteration() -> None:
    """``send`` is durable when it returns, and the model sees it verbatim, even when it was about to end."""
    asked, told = trio.Event(), trio.Event()

    async def answer(request: object) -> str:
        if len(model.requests) == 1:
            asked.set()
            await told.wait()
            return "First answer."
        return "Second answer."

    model = FunctionModel(answer)
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(agent(), "Begin.")
        await asked.wait()
        await run.send("One more thing.")
        told.set()
        with trio.fail_after(PATIENCE):
            assert await run.wait_result() == "Second answer."
    assert text_of(model.requests[1].messages[-1].content) == "One more thing."


async def test_a_run_can_be_paused_and_stopped() -> None:
    """Nothing is asked of the model while it is paused, and a stop ends it at the next boundary."""
    model = FunctionModel(lambda request: call("look_up", word=str(len(model.requests))))
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(agent(), "Go on for ever.")
        states = []
        async for event in run.events():
            if isinstance(event, IterationStarted) and event.iteration == 2:
                run.pause()
            if isinstance(event, StateChanged):
                states.append(event.state)
                if event.state == "paused":
                    before = len(model.requests)
                    await trio.testing.wait_all_tasks_blocked()
                    assert len(model.requests) == before
                    run.resume()
                if event.state == "running":
                    run.stop()
        assert states == ["paused", "running", "stopped"]
        with pytest.raises(rp.RepertoryError, match="was stopped after"):
            await run.wait_result()


async def test_a_paused_run_makes_no_call_in_the_next_process(tmp_path: Path) -> None:
    """Not even one that its last turn asks for: those are made once it is resumed, and by no run that is stopped."""
    called: list[str] = []

    @rp.tool
    async def pay(bill: str) -> str:
        """Pay a bill."""
        called.append(bill)
        if len(called) == 1:
            begun.set()
            await trio.sleep_forever()
        return "paid"

    def answer(request: ModelRequest) -> Any:
        return "Done." if len(request.messages) > 1 else [call("pay", bill="gas"), call("pay", bill="water")]

    begun, model = trio.Event(), FunctionModel(answer)
    clerk = rp.Agent("clerk", tools=[pay], model=model, limits=rp.Limits(parallel_tools=1))

    async def again(supervisor: rp.Supervisor) -> rp.Run[str]:
        run = await supervisor.spawn(clerk, "Pay.", run_id="pay")
        while (await supervisor.journal.read_events("pay"))[-1][1].body.get("state") != "paused":
            await trio.testing.wait_all_tasks_blocked()
        return run

    async with rp.open_supervisor(tmp_path / "a.db", drain_timeout=0) as supervisor:
        run = await supervisor.spawn(clerk, "Pay.", run_id="pay")
        await begun.wait()
        run.pause()
    async with rp.open_supervisor(tmp_path / "a.db") as supervisor:
        run = await again(supervisor)
        run.stop()
        with pytest.raises(rp.RepertoryError, match="was stopped"):
            await run.wait_result()
        assert called == ["gas"]
    async with rp.open_supervisor(tmp_path / "a.db") as supervisor:
        run = await supervisor.resume("pay", agent=clerk)
        run.pause()
    async with rp.open_supervisor(tmp_path / "a.db") as supervisor:
        run = await again(supervisor)
        assert called == ["gas"]
        run.resume()
        assert await run.wait_result() == "Done."
    assert called == ["gas", "water"]  # whether gas was paid, nobody knows


async def test_a_killed_run_ends_at_once() -> None:
    """A hanging model does not hold it up."""

    async def hang(request: object) -> str:
        started.set()
        await trio.sleep_forever()
        return ""

    started = trio.Event()
    async with rp.open_supervisor(model=FunctionModel(hang)) as supervisor:
        run = await supervisor.spawn(agent(), "Hang.")
        await started.wait()
        run.kill()
        with trio.fail_after(PATIENCE), pytest.raises(rp.RepertoryError, match="was stopped"):
            await run.wait_result()


async def test_a_run_that_is_ending_is_resumed_once_it_has_ended() -> None:
    """A stop cannot be taken back by the run; its supervisor waits for the end and continues it."""

    async def answer(request: ModelRequest) -> Any:
        if len(model.requests) > 1:
            return "Done."
        asked.set()
        await go.wait()
        return call("look_up", word="a")

    asked, go = trio.Event(), trio.Event()
    model = FunctionModel(answer)
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(agent(), "Begin.")
        await asked.wait()
        run.stop()
        with pytest.raises(RunError, match="is ending"):
            run.resume()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(supervisor.resume, run.id, agent=run.agent))
            await trio.testing.wait_all_tasks_blocked()
            go.set()
        assert await run.wait_result() == "Done."
        changes = await supervisor.journal.read_events(run.id, types=["StateChanged"])
        assert [event.body["state"] for _, event in changes] == ["stopped", "running", "done"]
        with pytest.raises(RunError, match="has ended"):
            run.resume()


async def test_a_value_as_task_needs_its_type() -> None:
    """Whoever gives a value to an agent that takes text hears how one takes values."""
    async with rp.open_supervisor(model=ScriptedModel([])) as supervisor:
        with pytest.raises(ConfigurationError, match=r"got {'topic': 'tides'}; agent .* takes a value if its input is"):
            await supervisor.spawn(agent(), {"topic": "tides"})


@pytest.mark.parametrize("text", ["", "  \n", None, 5, b"Go."])
async def test_what_says_nothing_is_refused(text: Any) -> None:
    """The Messages API takes no empty text, so the caller hears it before anything begins."""
    async with rp.open_supervisor(model=ScriptedModel(["Gone."])) as supervisor:
        with pytest.raises(ConfigurationError, match="expected a task with some text, got"):
            await supervisor.spawn(agent(), text)
        run = await supervisor.spawn(agent(), "Go.")
        with pytest.raises(ConfigurationError, match="expected a message with some text, got"):
            await run.send(text)
        with pytest.raises(ConfigurationError, match="expected a run_id with some text, got"):
            await supervisor.resume(text)


AN_AGENT = {"agent_ref": rp.Agent("clerk")}


@pytest.mark.parametrize("wrong", [{"agent": None}, {"agent": "clerk"}, {"options": [1]}, {"agent_ref": 5}, AN_AGENT])
async def test_arguments_of_another_type_are_refused_before_anything_is_durable(wrong: dict[str, Any]) -> None:
    """One error of ours, that says what came, and no run on record."""
    async with rp.open_supervisor(model=ScriptedModel([])) as supervisor:
        with pytest.raises(ConfigurationError, match=r"[Ee]xpected .*, got"):
            await supervisor.spawn(**{"agent": agent(), "task": "Go.", **wrong})
        assert await supervisor.runs() == []


async def test_an_error_without_words_is_told_by_its_name() -> None:
    """No colon with nothing behind it."""

    def fail(_: ModelRequest) -> str:
        raise ExceptionGroup("two", [TimeoutError(), ValueError("no")])

    async with rp.open_supervisor(model=FunctionModel(fail)) as supervisor:
        run = await supervisor.spawn(agent(), "Go.")
        with pytest.raises(rp.errors.RunFailed, match=r"failed: TimeoutError; ValueError: no$"):
            await run.wait_result()


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_the_errors_of_the_callers_own_tasks_are_in_the_callers_own_group_alone(backend: Any) -> None:
    """A program's tasks stand in its task group; those of the supervisor are none of its business."""

    async def fail() -> None:
        raise ValueError("mine")

    async def main() -> None:
        async with rp.open_supervisor(model=ScriptedModel([])), anyio.create_task_group() as tasks:
            tasks.start_soon(fail)

    with pytest.raises(ExceptionGroup) as caught:
        rp.run(main, backend=backend)
    assert [repr(error) for error in caught.value.exceptions] == ["ValueError('mine')"]


@pytest.mark.parametrize("others", [[], [ValueError("mine")]])
def test_ctrl_c_ends_a_program_with_a_keyboard_interrupt(others: list[Exception]) -> None:
    """On trio, too, where it comes in a group for each open task group; what else failed is its cause."""

    async def main() -> None:
        async with rp.open_supervisor(model=ScriptedModel([])), anyio.create_task_group():
            raise BaseExceptionGroup("of a task group", [KeyboardInterrupt(), *others])

    with pytest.raises(KeyboardInterrupt) as caught:
        rp.run(main, backend="trio")
    assert (caught.value.__cause__ is not None) == bool(others)


def test_run_sync_answers_from_plain_code() -> None:
    """A script needs no event loop of its own."""
    assert rp.run_sync(agent(), "Go.", model=ScriptedModel(["Gone."])) == "Gone."
    assert rp.run_sync(agent(), "Go.", model=ScriptedModel(["Gone."]), backend="asyncio") == "Gone."


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@pytest.mark.parametrize(
    ("approval", "how"), [("always", r"an approval.*run\.approve"), ("never", r"a result.*give_result")]
)
def test_run_sync_does_not_wait_for_what_nobody_can_give(tmp_path: Path, backend: Any, approval: Any, how: str) -> None:
    """It has no handle by which a call could be decided: it hung for ever. The run is on record, and can be resumed."""

    @rp.tool(approval=approval)
    def pay(to: str) -> rp.ResultLater:
        """Pay somebody."""
        return rp.ResultLater("the bank")

    clerk, model = rp.Agent("clerk", tools=[pay]), ScriptedModel([call("pay", to="ann"), "Paid."])
    with pytest.raises(RunError, match=rf"pay of clerk waits for {how}"):
        rp.run_sync(clerk, "Pay.", path=tmp_path / "a.db", model=model, backend=backend)

    async def resume() -> str:
        async with rp.open_supervisor(tmp_path / "a.db", model=model) as supervisor:
            run = await supervisor.resume((await supervisor.runs())[0].started.run_id, agent=clerk)
            async for event in run.events():
                match event:
                    case ApprovalRequested(call_id=call_id):
                        await run.approve(call_id)
                    case ResultAwaited(call_id=call_id):
                        await run.give_result(call_id, "done")
            return await run.wait_result()

    assert rp.run(resume) == "Paid."


def test_run_sync_waits_for_what_expires() -> None:
    """Such a call is denied in time, and the model goes on."""
    clerk = agent(approvals=rp.Approvals(ask=["look_up"], approval_timeout=0.01))
    model = ScriptedModel([call("look_up", word="tide"), "Not looked up."])
    assert rp.run_sync(clerk, "Go.", model=model) == "Not looked up."


async def test_where_a_loop_runs_already_it_is_said_what_to_write_instead() -> None:
    """As in a cell of a notebook: that is no place for a second loop."""
    with pytest.raises(ConfigurationError, match=r"runs in this thread already.*await instead"):
        rp.run_sync(agent(), "Go.", model=ScriptedModel(["Gone."]))


def test_a_function_that_was_called_is_told_from_one_that_is_run() -> None:
    """As habit has it from asyncio.run; no warning of a coroutine that nobody awaited comes on top."""

    async def main() -> None:
        raise AssertionError("it was run")

    with pytest.raises(ConfigurationError, match=r"run\(main\), not run\(main\(\)\)"):
        rp.run(main())  # type: ignore[arg-type]


async def test_a_supervisor_that_is_closed_begins_nothing_and_says_so() -> None:
    """What is kept beyond the block is of no use, and the error does not speak of actors and journals."""
    async with rp.open_supervisor(model=ScriptedModel(["Gone."])) as supervisor:
        run = await supervisor.spawn(agent(), "Go.")
        await run.wait_result()
    for begin in (supervisor.spawn(agent(), "Go on."), supervisor.resume(run.id, agent=agent())):
        with pytest.raises(RunError, match="the supervisor is closed"):
            await begin


@pytest.mark.parametrize("steps", range(8))
def test_a_supervisor_that_closes_while_a_run_begins_says_so(run_async: RunAsync, steps: int) -> None:
    """Rather than that an actor of which nobody has heard has stopped."""
    said: list[str] = []

    async def attempt(begin: Awaitable[object]) -> None:
        try:
            await begin
        except RunError as error:
            said.append(str(error))
        else:
            said.append("begun")

    async def main() -> None:
        model = FunctionModel(lambda _: "Gone.")
        async with (
            open_journal() as journal,
            anyio.create_task_group() as tasks,
            rp.open_supervisor(journal=journal, model=model) as supervisor,
        ):
            run = await supervisor.spawn(agent(), "Go.")
            await run.wait_result()
            for begin in (supervisor.spawn(agent(), "x"), run.send("x"), supervisor.fork(run.id, agent=agent())):
                tasks.start_soon(attempt, begin)
            for _ in range(steps):
                await anyio.lowlevel.checkpoint()

    run_async(main)
    assert len(said) == 3
    assert {"supervisor is closed" in each or each == "begun" for each in said} == {True}


async def test_a_supervisor_that_is_closed_forks_and_removes_nothing() -> None:
    """Also where its journal is open still, as somebody else has opened it."""
    async with open_journal() as journal:
        async with rp.open_supervisor(journal=journal, model=ScriptedModel(["Gone."])) as supervisor:
            run = await supervisor.spawn(agent(), "Go.")
            await run.wait_result()
        for change in (supervisor.fork(run.id, agent=agent()), supervisor.remove(run.id)):
            with pytest.raises(RunError, match="the supervisor is closed"):
                await change
        assert [row.started.run_id for row in await journal.read_runs()] == [run.id]


def test_who_waits_outside_of_a_supervisor_that_is_cancelled_hears_of_it(run_async: RunAsync) -> None:
    """Of runs under way, in the queue and stopped there: nobody is left to bring them to their ends."""

    async def main() -> None:
        heard: list[str] = []

        async def wait(run: rp.Run[str]) -> None:
            with pytest.raises(RunStopped):
                await run.wait_result()
            heard.append(run.task)

        async def read_along(run: rp.Run[str]) -> None:
            assert [piece async for piece in run.stream()] == []
            heard.append("stream")

        model = FunctionModel(lambda _: anyio.sleep_forever())
        async with anyio.create_task_group() as outside:
            with anyio.CancelScope() as block:
                async with rp.open_supervisor(model=model, max_runs=1) as supervisor:
                    runs = [await supervisor.spawn(agent(), task) for task in ("going", "waiting", "stopped")]
                    for run in runs:
                        outside.start_soon(wait, run)
                    outside.start_soon(read_along, runs[0])
                    await anyio.wait_all_tasks_blocked()
                    runs[2].stop()
                    block.cancel()
        assert sorted(heard) == ["going", "stopped", "stream", "waiting"]

    run_async(main)


class Mute(Exception):
    """An error that cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


async def test_an_error_whose_text_cannot_be_made_fails_its_run_alone(autojump_clock: object) -> None:
    """The runs beside it go on."""

    def broken(_: object) -> str:
        raise Mute

    async with rp.open_supervisor(model=FunctionModel(broken)) as supervisor:
        run = await supervisor.spawn(rp.Agent("mute"), "Go.")
        with pytest.raises(RunFailed, match="failed: Mute: <Mute without a readable text>"):
            await run.wait_result()
        beside = await supervisor.spawn(rp.Agent("clerk", model=ScriptedModel(["Done."])), "Go.")
        assert await beside.wait_result() == "Done."
