"""Runs that have answered and are asked again."""

from __future__ import annotations

from pathlib import Path

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import repertory as rp
from backends import RunAsync
from patience import PATIENCE
from repertory.errors import ContextMissing, LimitExceeded, ModelUnavailable, RunError, RunFailed, RunStopped
from repertory.llm.messages import text_of
from repertory.llm.model import ModelRequest
from repertory.record import open_journal
from repertory.runs.events import StateChanged
from repertory.testing import FunctionModel, ScriptedModel, call


class Weather(msgspec.Struct, frozen=True):
    """What the weather is."""

    place: str
    degrees: int


@rp.tool
def look_up(word: str) -> str:
    """Look a word up."""
    return f"about {word}"


def said(request: ModelRequest) -> list[str]:
    """What the model is shown, by message."""
    return [text_of(message.content) for message in request.messages]


def echo(request: ModelRequest) -> object:
    """Answer with the last question."""
    return f"to {said(request)[-1].splitlines()[-1]!r}"


def clerk(**options: object) -> rp.Agent:
    """An agent that answers."""
    return msgspec.structs.replace(rp.Agent("clerk", "You answer.", tools=[look_up]), **options)


def test_a_run_that_has_answered_is_asked_again(run_async: RunAsync) -> None:
    """Each question gets its answer; everything said before is before the model; the transcript only grows."""
    model = ScriptedModel([call("look_up", word="tides"), "One.", "Two.", call("look_up", word="moon"), "Three."])

    async def main() -> None:
        async with rp.open_supervisor(model=model) as supervisor:
            run = await supervisor.spawn(clerk(), "First?")
            assert await run.wait_result() == "One."
            assert await run.ask("Second?") == "Two."
            assert run.state == "done"
            assert await run.ask("Third?") == "Three."
            assert await run.wait_result() == "Three."
            states = [row.state for row in await supervisor.runs()]
            assert states == ["done"]
            assert run.statistics().model_calls == 5

    run_async(main)
    assert said(model.requests[-1])[0] == "First?"
    assert [text for text in said(model.requests[-1]) if text.endswith("?")] == ["First?", "Second?", "Third?"]
    for before, after in zip(model.requests, model.requests[1:], strict=False):
        assert said(after)[: len(said(before))] == said(before)


def test_a_run_is_found_for_a_question_whatever_it_is_doing(run_async: RunAsync) -> None:
    """``resume`` gives one that is done or at work; only another definition has to wait for its end."""

    async def main() -> None:
        held, go_on = anyio.Event(), anyio.Event()

        async def answer(request: ModelRequest) -> object:
            if said(request)[-1] == "Second?":
                held.set()
                await go_on.wait()
            return echo(request)

        async with rp.open_supervisor(model=FunctionModel(answer)) as supervisor:
            await (await supervisor.spawn(clerk(), "First?", run_id="talk")).wait_result()
            answers: list[str] = []

            async def ask(question: str) -> None:
                run = await supervisor.resume("talk", agent=clerk())
                answers.append(await run.ask(question))

            async with anyio.create_task_group() as asking:
                asking.start_soon(ask, "Second?")
                await held.wait()
                asking.start_soon(ask, "Third?")
                await anyio.wait_all_tasks_blocked()
                assert (await supervisor.resume("talk")).state == "running"
                with pytest.raises(RunError, match="under way with another definition; wait for its end"):
                    await supervisor.resume("talk", agent=clerk(instructions="Sing."))
                go_on.set()
            assert answers == ["to 'Second?'", "to 'Third?'"]

    run_async(main)


async def test_a_question_is_asked_across_restarts(tmp_path: Path) -> None:
    """``resume`` gives a run that is done, and ``ask`` lets it go on; asked again with its id, it has its answer."""
    model, path = FunctionModel(echo), tmp_path / "runs.db"
    async with rp.open_supervisor(path, model=model) as supervisor:
        run = await supervisor.spawn(clerk(), "First?", run_id="talk")
        await run.wait_result()
        first = await run.ask("Second?", message_id="m2")
    async with rp.open_supervisor(path, model=model) as supervisor:
        run = await supervisor.resume("talk", agent=clerk())
        assert run.state == "done"
        assert await run.ask("Third?") == "to 'Third?'"
        calls = len(model.requests)
        assert await run.ask("Second?", message_id="m2") == first == "to 'Second?'"
        assert len(model.requests) == calls
        with pytest.raises(RunError, match="with another text or other attachments"):
            await run.ask("Fourth?", message_id="m2")


async def test_questions_side_by_side_get_the_answers_that_follow_them() -> None:
    """One that comes while another is worked on is answered after it; two that come together share an answer."""
    asked, told = anyio.Event(), anyio.Event()

    async def answer(request: ModelRequest) -> object:
        if said(request)[-1] == "Slow?":
            asked.set()
            await told.wait()
        return echo(request)

    answers: dict[str, str] = {}

    async def ask(run: rp.Run, text: str) -> None:
        answers[text] = await run.ask(text)

    async with rp.open_supervisor(model=FunctionModel(answer)) as supervisor:
        run = await supervisor.spawn(clerk(), "First?")
        await run.wait_result()
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, run, "Slow?")
                await asked.wait()
                tasks.start_soon(ask, run, "Quick?")
                tasks.start_soon(ask, run, "Short?")
                await anyio.wait_all_tasks_blocked()
                told.set()
    assert answers["Slow?"] == "to 'Slow?'"
    assert answers["Quick?"] == answers["Short?"] != answers["Slow?"]


async def test_a_typed_agent_gives_a_typed_answer_each_time() -> None:
    """Also that of an earlier question, and whatever was said between."""
    results = [("Lagos", 31), ("Oslo", -4)]
    model = ScriptedModel([call("final_result", place=place, degrees=degrees) for place, degrees in results])
    agent = rp.Agent("forecaster", output=Weather, model=model)
    async with rp.open_supervisor() as supervisor:
        run = await supervisor.spawn(agent, "Lagos?")
        assert await run.wait_result() == Weather("Lagos", 31)
        assert await run.ask("Oslo?", message_id="oslo") == Weather("Oslo", -4)
        assert await run.ask("Oslo?", message_id="oslo") == Weather("Oslo", -4)


async def test_a_run_that_failed_or_was_stopped_goes_on_with_a_question() -> None:
    """A question it failed over is not said twice where it is repeated; a new one is heard besides."""
    model = ScriptedModel(["One.", ModelUnavailable("gone"), "Two.", ModelUnavailable("gone"), "Three."])
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(clerk(), "First?")
        await run.wait_result()
        with pytest.raises(RunFailed):
            await run.ask("Second?", message_id="m2")
        await run.send("Second?", message_id="m2")  # it has read it: nothing goes on
        assert run.state == "failed"
        assert await run.ask("Second?", message_id="m2") == "Two."
        with pytest.raises(RunFailed):
            await run.ask("Third?")
        assert await run.ask("Or the fourth?") == "Three."
    assert [text for text in said(model.requests[-1]) if "?" in text][1] == "Second?"
    assert str(model.requests[-1].messages).count("Second?") == 1


async def test_a_question_can_be_stopped_and_the_next_one_asked() -> None:
    """``stop`` and ``kill`` end what is under way; what was asked is in the record, and the talk goes on."""
    held = anyio.Event()

    async def answer(request: ModelRequest) -> object:
        if said(request)[-1] == "Hang.":
            held.set()
            await anyio.sleep_forever()
        return echo(request)

    async with rp.open_supervisor(model=FunctionModel(answer)) as supervisor:
        run = await supervisor.spawn(clerk(), "First?")
        await run.wait_result()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run.send, "Hang.")
            await held.wait()
        run.kill()
        with anyio.fail_after(PATIENCE):
            assert (await run.ask("Next?")).endswith("Next?'")
        run.stop()  # it is done: there is nothing to stop
        assert (await run.ask("More?")).endswith("More?'")


async def test_a_question_to_a_killed_run_ends_with_it() -> None:
    """Whoever waits for its answer is told."""
    held = anyio.Event()

    async def hang(_: ModelRequest) -> object:
        held.set()
        await anyio.sleep_forever()

    async with rp.open_supervisor(model=FunctionModel(hang)) as supervisor:
        run = await supervisor.spawn(clerk(), "First?")
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:

                async def ask() -> None:
                    with pytest.raises(RunStopped):
                        await run.ask("Second?")

                await held.wait()
                tasks.start_soon(ask)
                await anyio.wait_all_tasks_blocked()
                run.kill()


async def test_a_model_is_not_told_of_an_ended_process_after_a_person_broke_its_tool_off() -> None:
    """A stop button kills the run alone: what the model may conclude of the rest of the program must be true."""
    held = anyio.Event()

    @rp.tool
    async def order(dish: str) -> None:
        """Order a dish."""
        held.set()
        await anyio.sleep_forever()

    model = ScriptedModel([call("order", dish="dal"), "I do not know whether it is ordered."])
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(rp.Agent("guest", tools=[order]), "Order the dal.")
        with anyio.fail_after(PATIENCE):
            await held.wait()
            run.kill()
            await run.ask("Did you?")
    told = said(model.requests[1])[-1]
    assert told.startswith("[interrupted; effect unknown] The run was interrupted while this tool was running")
    assert "process" not in told


async def test_messages_that_come_together_as_a_run_is_killed_all_return_at_once() -> None:
    """The first continues the run; the others are delivered to it and do not wait for its next end."""
    asked, never = anyio.Event(), anyio.Event()

    async def hang(request: ModelRequest) -> object:
        asked.set()
        await never.wait()

    async with rp.open_supervisor(model=FunctionModel(hang), drain_timeout=0.0) as supervisor:
        run = await supervisor.spawn(clerk(), "First?")
        with anyio.fail_after(PATIENCE):
            await asked.wait()
            run.kill()
            async with anyio.create_task_group() as tasks:
                for number in range(4):
                    tasks.start_soon(run.send, f"Message {number}.")
            assert run.state == "running"


async def test_iterations_count_from_the_question_and_the_other_limits_count_on() -> None:
    """A talk may have any number of turns, and not any number of dollars, tokens or tool calls."""

    def answer(request: ModelRequest) -> object:
        last = said(request)[-1]
        return call("look_up", word=last[:-1]) if last.endswith("?") else "Done."

    model = FunctionModel(answer)
    agent = clerk(limits=rp.Limits(iterations=2, tool_calls=3), model=model)
    async with rp.open_supervisor() as supervisor:
        run = await supervisor.spawn(agent, "First?")
        await run.wait_result()
        await run.ask("Second?")
        await run.ask("Third?")
        await run.ask("Fourth?")
    assert "limits.tool_calls" in str(model.requests[-1].messages)


async def test_a_turn_has_events_a_stream_and_a_state_of_its_own() -> None:
    """A handle of the run follows it through its turns, also one that somebody else holds."""
    async with rp.open_supervisor(model=FunctionModel(echo)) as supervisor:
        run = await supervisor.spawn(clerk(), "First?")
        other = await supervisor.spawn(clerk(), "First?", run_id=run.id)
        await run.wait_result()
        assert [piece async for piece in run.stream()] == []
        await other.send("Second?")
        states = [event.state async for event in run.events() if isinstance(event, StateChanged)]
        assert states == ["running", "done"]
        assert await run.wait_result() == await other.wait_result() == "to 'Second?'"
        assert [row.state for row in await supervisor.runs()] == ["done"]


async def test_a_run_with_a_context_needs_it_to_be_asked_again() -> None:
    """Shown, it needs none; asked, it says what to hand in."""
    async with open_journal() as journal:
        model = FunctionModel(echo)
        async with rp.open_supervisor(journal=journal, model=model) as supervisor:
            run = await supervisor.spawn(clerk(), "First?", context=object())
            await run.wait_result()
            await run.ask("Second?")
        async with rp.open_supervisor(journal=journal, model=model) as supervisor:
            run = await supervisor.resume(run.id, agent=clerk())
            with pytest.raises(ContextMissing):
                await run.ask("Third?")
        async with rp.open_supervisor(journal=journal, model=model) as supervisor:
            run = await supervisor.resume(run.id, agent=clerk(), context=object())
            assert await run.ask("Third?") == "to 'Third?'"


async def test_sub_agents_of_earlier_turns_stay_ended() -> None:
    """Those that an answer did without are ended for good, and the lead is not told of them again."""

    async def work(_: ModelRequest) -> object:
        await anyio.sleep_forever()

    def lead(request: ModelRequest) -> object:
        texts = said(request)
        if texts[-1] == "First?":
            return call("delegate_start", agent="worker", task="Dig.")
        return "Done."

    worker = rp.Agent("worker", model=FunctionModel(work))
    model = FunctionModel(lead)
    agent = rp.Agent("lead", team=[worker], model=model, delegation=rp.Delegation(background=True))
    async with rp.open_supervisor() as supervisor:
        run = await supervisor.spawn(agent, "First?")
        with anyio.fail_after(PATIENCE):
            assert await run.wait_result() == "Done."
            calls = len(model.requests)
            assert await run.ask("Second?") == "Done."
        assert len(model.requests) == calls + 1
        assert [child.state for child in run.children] == ["stopped"]
        rows = await supervisor.runs()
        assert [row.state for row in rows] == ["done", "stopped"]


async def test_a_run_that_is_asked_again_keeps_the_sub_agents_that_it_had() -> None:
    """In their order, whether or not a later turn finds them again."""

    start, delegate = (call(name, agent="worker", task=name) for name in ("delegate_start", "delegate"))
    model = ScriptedModel([start, call("delegate_collect"), "Done.", delegate, "Done.", "Done.", "Done."])
    worker = rp.Agent("worker", model=FunctionModel(lambda _: "Dug."))
    agent = rp.Agent("lead", team=[worker], model=model, delegation=rp.Delegation(background=True))
    async with rp.open_supervisor() as supervisor:
        run = await supervisor.spawn(agent, "First?")
        with anyio.fail_after(PATIENCE):
            await run.wait_result()
            for question in ("Second?", "Third?", "Fourth?"):
                await run.ask(question)
        assert [child.task for child in run.children] == ["delegate_start", "delegate"]
        assert [child.id for child in run.children] == [row.started.run_id for row in (await supervisor.runs())[1:]]
        assert [await child.wait_ended() for child in run.children] == [child.state for child in run.children]


async def test_a_sub_agent_that_has_ended_hears_nothing_more() -> None:
    """It is said to whom."""
    worker = rp.Agent("worker", model=ScriptedModel(["Dug."]))
    model = ScriptedModel([call("delegate", agent="worker", task="Dig."), "Done."])
    async with rp.open_supervisor() as supervisor:
        run = await supervisor.spawn(rp.Agent("lead", team=[worker], model=model), "First?")
        await run.wait_result()
        with pytest.raises(RunError, match="say it to that one"):
            await run.children[0].send("More.")


async def test_a_cancelled_question_has_been_asked_or_not(tmp_path: Path) -> None:
    """Wherever it is cut off: asked again with its id there is one question and one answer, in the next process too."""
    model, path = FunctionModel(echo), tmp_path / "runs.db"
    async with rp.open_supervisor(path, model=model, durability="process") as supervisor:
        run = await supervisor.spawn(clerk(), "First?", run_id="talk")
        await run.wait_result()
    for checkpoints in range(40):
        async with rp.open_supervisor(path, model=model, durability="process") as supervisor:
            run = await supervisor.resume("talk", agent=clerk())
            text = f"Question {checkpoints}?"
            async with anyio.create_task_group() as tasks:

                async def ask(text: str = text, run: rp.Run = run, at: int = checkpoints) -> None:
                    await run.ask(text, message_id=f"m{at}")

                tasks.start_soon(ask)
                for _ in range(checkpoints):
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
            with anyio.fail_after(PATIENCE):
                assert await run.ask(text, message_id=f"m{checkpoints}") == f"to {text!r}"
    async with open_journal(path, readonly=True) as journal:
        entries = await journal.read_entries("talk")
    asked = [entry.message_id for entry in entries if entry.kind == "user-input"]
    assert asked == [f"m{number}" for number in range(40)]


@given(st.lists(st.sampled_from(["ask", "send", "restart", "again", "stop", "fail"]), min_size=1, max_size=12))
def test_whatever_happens_between_each_question_has_one_answer(steps: list[str]) -> None:
    """Asked, repeated, over restarts, after failures and stops."""
    failing = False

    def answer(request: ModelRequest) -> object:
        if failing:
            raise ModelUnavailable("gone")
        return echo(request)

    async def main() -> None:
        nonlocal failing
        asked: list[str] = []
        async with open_journal() as journal:
            left = [*steps]
            first = True
            while left or first:
                async with rp.open_supervisor(journal=journal, model=FunctionModel(answer)) as supervisor:
                    if first:
                        run = await supervisor.spawn(clerk(), "First?", run_id="talk")
                        await run.wait_result()
                        first = False
                    else:
                        run = await supervisor.resume("talk", agent=clerk())
                    while left and (step := left.pop(0)) != "restart":
                        number = len(asked)
                        if step in ("ask", "fail"):
                            failing = step == "fail"
                            asked.append(f"m{number}")
                            try:
                                assert await run.ask(f"{number}?", message_id=f"m{number}") == f"to '{number}?'"
                            except RunFailed:
                                assert failing
                            failing = False
                        elif step == "send":
                            asked.append(f"m{number}")
                            await run.send(f"{number}?", message_id=f"m{number}")
                        elif step == "again" and asked:
                            given = await run.ask(f"{number - 1}?", message_id=asked[-1])
                            assert given == f"to '{number - 1}?'"
                        elif step == "stop":
                            run.stop()
                    left = left if left else []
            entries = await journal.read_entries("talk")
            heard = [entry.message_id for entry in entries if entry.kind == "user-input"]
            assert len(heard) == len(set(heard))
            assert heard == [message_id for message_id in asked if message_id in heard]

    anyio.run(main, backend="trio")


async def test_a_failed_limit_says_so_and_more_room_lets_the_question_go_on() -> None:
    """The question is not lost: a definition with other limits answers it."""
    async with open_journal() as journal:
        tight = clerk(limits=rp.Limits(tokens=1), model=FunctionModel(echo))
        async with rp.open_supervisor(journal=journal) as supervisor:
            run = await supervisor.spawn(tight, "First?")
            await run.wait_result()
            with pytest.raises(RunFailed) as failed:
                await run.ask("Second?", message_id="m2")
            assert isinstance(failed.value.__cause__, LimitExceeded)
        async with rp.open_supervisor(journal=journal) as supervisor:
            run = await supervisor.resume(run.id, agent=clerk(model=FunctionModel(echo)))
            assert await run.ask("Second?", message_id="m2") == "to 'Second?'"
