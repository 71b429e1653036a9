"""Spawning and sending: safe to repeat, and all or nothing when they are cancelled."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextvars import Context
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
import trio
import trio.testing
from outcome import Outcome

import repertory as rp
from backends import RunAsync
from failing_journals import SlowJournal
from patience import PATIENCE
from repertory.errors import ConfigurationError, RecordRefused, RunError, RunExists, RunNotFound, RunStopped
from repertory.llm.messages import Text, ToolUse, text_of
from repertory.llm.model import ModelRequest, ModelResponse, Usage
from repertory.record.sqlite_journal import MemoryJournal
from repertory.runs import events
from repertory.testing import FunctionModel, ScriptedModel, call
from seeds import seeds
from storms import cancel_storm, cancelled_after, disagreements, unheard


def clerk(**options: object) -> rp.Agent:
    """An agent without tools."""
    return rp.Agent("clerk", **options)  # type: ignore[arg-type]


def test_spawning_an_id_again_gives_the_same_run_also_side_by_side_and_after_a_restart(
    run_async: RunAsync, tmp_path: Path
) -> None:
    """Many callers and two processes' worth of supervisors, one run, one model call."""
    model = FunctionModel(lambda request: "Done.")

    async def main() -> None:
        for _ in range(2):
            runs: list[rp.Run] = []
            async with rp.open_supervisor(tmp_path / "runs.db", model=model) as supervisor:

                async def spawn() -> None:
                    runs.append(await supervisor.spawn(clerk(), "Go.", run_id="run-1"))  # noqa: B023

                async with anyio.create_task_group() as group:
                    for _ in range(8):
                        group.start_soon(spawn)
                runs.append(await supervisor.spawn(clerk(), "Go.", run_id="run-1"))
                assert {await run.wait_result() for run in runs} == {"Done."}
                assert {run.id for run in runs} == {"run-1"}
                again = await supervisor.spawn(clerk(), "Go.", run_id="run-1")
                assert [event.state async for event in again.events()] == ["done"]  # type: ignore[union-attr]
                assert len(await supervisor.runs()) == 1
                assert len(await supervisor.journal.read_entries("run-1")) == 2
        assert len(model.requests) == 1

    run_async(main)


async def test_an_id_that_is_taken_by_another_run_is_refused_with_the_difference() -> None:
    """Another task or another agent under one id is a mistake, and the error says which."""
    model = ScriptedModel(["Done."])
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(clerk(), "Go.", run_id="run-1")
        for _ in range(2):  # while it is under way, and when it is over
            with pytest.raises(RunExists, match=r"another task: 'Go\.', not 'Stay\.'"):
                await supervisor.spawn(clerk(), "Stay.", run_id="run-1")
            with pytest.raises(RunExists, match="another agent: 'clerk', not 'cook'"):
                await supervisor.spawn(rp.Agent("cook"), "Go.", run_id="run-1")
            await run.wait_result()


async def test_a_program_names_a_run_by_its_whole_id() -> None:
    """With one chat for each user, Ann must not be given Anna's because she has none yet."""
    async with rp.open_supervisor(model=FunctionModel(lambda request: "Done.")) as supervisor:
        await (await supervisor.spawn(clerk(), "For Anna.", run_id="chat-anna")).wait_result()
        rewind = partial(supervisor.rewind, iteration=0)
        for again in (supervisor.resume, supervisor.retry, supervisor.fork, rewind):
            with pytest.raises(RunNotFound, match="no run has the id 'chat-ann'"):
                await again("chat-ann", agent=clerk())
        with pytest.raises(RunNotFound):
            await supervisor.remote("chat-ann")
        with pytest.raises(RunNotFound):  # a person's look-up finds beginnings only of ids that nobody chose
            await supervisor.journal.find_run("chat-ann")
        made = await supervisor.spawn(clerk(), "For nobody.")
        assert (await supervisor.journal.find_run(made.id[:-1])).started.run_id == made.id
        await made.wait_result()


async def test_an_id_that_is_the_beginning_of_another_is_another_run() -> None:
    """It is new, though a run has an id that begins like it."""
    async with rp.open_supervisor(model=FunctionModel(lambda request: "Done.")) as supervisor:
        await (await supervisor.spawn(clerk(), "Long.", run_id="run-12")).wait_result()
        short = await supervisor.spawn(clerk(), "Short.", run_id="run-1")
        assert await short.wait_result() == "Done."
        assert short.task == "Short."


async def test_an_interrupted_run_goes_on_when_it_is_spawned_again_and_an_ended_one_stays() -> None:
    """A caller that repeats itself after a crash needs no other code for it."""
    hang = trio.Event()

    async def answer(request: ModelRequest) -> str:
        if not hang.is_set():
            hang.set()
            await trio.sleep_forever()
        return "Done."

    async with rp.open_journal() as journal:
        async with rp.open_supervisor(journal=journal, model=FunctionModel(answer), drain_timeout=0) as supervisor:
            await supervisor.spawn(clerk(), "Go.", run_id="run-1")
            await hang.wait()
        async with rp.open_supervisor(journal=journal, model=FunctionModel(answer)) as supervisor:
            run = await supervisor.spawn(clerk(), "Go.", run_id="run-1")
            assert await run.wait_result() == "Done."
            stopped = await supervisor.spawn(clerk(), "Go.", run_id="run-2")
            stopped.kill()
            with pytest.raises(rp.errors.RunStopped):
                await stopped.wait_result()
            again = await supervisor.spawn(clerk(), "Go.", run_id="run-2")
            assert again.state == "stopped"


async def test_a_supervisor_may_wait_for_its_runs_without_limit(mock_clock: trio.testing.MockClock) -> None:
    """A model that takes an hour is waited for when the block is left, and what it says then counts."""
    mock_clock.autojump_threshold = 0

    async def answer(_: ModelRequest) -> ToolUse:
        asked.set()
        await trio.sleep(3_600)
        return call("nothing")

    asked = trio.Event()
    async with rp.open_supervisor(model=FunctionModel(answer), drain_timeout=math.inf) as supervisor:
        run = await supervisor.spawn(clerk(), "Go.")
        await asked.wait()
    assert (run.statistics().iterations, run.statistics().tool_errors) == (1, 1)


@pytest.mark.parametrize(
    "run_id", ["", "a/b", "..", ".", "a.b", "a b", " a", "a\n", "a\0", "-a", "é", "a" * 101, "a\\b", "~", 7]
)
async def test_an_id_that_could_not_name_a_file_is_refused_before_anything_is_durable(run_id: str) -> None:
    """Files, actors and the ids of sub-agents are named after it."""
    async with rp.open_supervisor(model=ScriptedModel([])) as supervisor:
        with pytest.raises(ConfigurationError, match="run_id must be a letter or digit"):
            await supervisor.spawn(clerk(), "Go.", run_id=run_id)
        assert await supervisor.runs() == []
        assert await supervisor.journal.read_scopes() == []


def test_what_is_said_twice_under_one_id_is_heard_once_also_after_a_restart(
    run_async: RunAsync, tmp_path: Path
) -> None:
    """While it waits, when it was heard, and when the run is over; another text under the id is refused."""

    async def main() -> None:
        asked, go = anyio.Event(), anyio.Event()

        async def answer(request: ModelRequest) -> str:
            asked.set()
            await go.wait()
            return f"{len(request.messages)} messages"

        path = tmp_path / "runs.db"
        async with rp.open_supervisor(path, model=FunctionModel(answer), drain_timeout=0) as supervisor:
            run = await supervisor.spawn(clerk(), "Go.", run_id="run-1")
            await asked.wait()
            await run.send("More.", message_id="m1")
            await run.send("More.", message_id="m1")
            with pytest.raises(RunError, match="another text"):
                await run.send("Less.", message_id="m1")
        go.set()
        async with rp.open_supervisor(path, model=FunctionModel(answer)) as supervisor:
            run = await supervisor.resume("run-1", agent=clerk())
            await run.send("More.", message_id="m1")
            await run.wait_result()
            await run.send("More.", message_id="m1")  # it was heard, so this is no error
            entries = await supervisor.journal.read_entries("run-1")
        assert [text_of(entry.content) for entry in entries if entry.kind == "user-input"] == ["More."]

    run_async(main)


@pytest.mark.parametrize("message_id", ["", "a b", "a\n", "é", "a" * 201, 7])
async def test_a_malformed_message_id_is_refused(message_id: Any) -> None:
    """It stands in the record and in errors."""
    async with rp.open_supervisor(model=FunctionModel(lambda request: "Done.")) as supervisor:
        run = await supervisor.spawn(clerk(), "Go.")
        with pytest.raises(ConfigurationError, match="message_id"):
            await run.send("More.", message_id=message_id)


async def test_a_closed_supervisor_says_what_became_of_its_runs_and_what_to_do_with_a_message() -> None:
    """Its runs hear nothing more, whether they are done or were interrupted; the latter are not taken for stopped."""
    hold = FunctionModel(lambda _: trio.sleep_forever())
    async with rp.open_supervisor(model=FunctionModel(lambda _: "Done."), drain_timeout=0) as supervisor:
        done = await supervisor.spawn(clerk(), "Go.")
        await done.wait_result()
        going = await supervisor.spawn(rp.Agent("clerk", model=hold), "Go.")
    for run in (done, going):
        with pytest.raises(RunError, match="its supervisor is closed; resume it in another one"):
            await run.send("More.")
    with pytest.raises(RunStopped, match=r"was interrupted after \d iterations; wait within its supervisor.s block"):
        await going.wait_result()
    with pytest.raises(RunError, match=r"has ended \(interrupted\); nothing more is shown"):
        await going.pin(0)


async def test_a_run_of_this_process_is_found_by_its_id() -> None:
    """Also one whose spawn was cancelled, and a sub-agent's."""
    held = trio.Event()

    async def answer(request: ModelRequest) -> object:
        if text_of(request.messages[0].content) == "Help.":
            held.set()
            await trio.sleep_forever()
        return call("delegate", agent="clerk", task="Help.")

    async with rp.open_supervisor(model=FunctionModel(answer), drain_timeout=0) as supervisor:
        run = await supervisor.spawn(rp.Agent("lead", team=[clerk()]), "Go.", run_id="run-1")
        await held.wait()
        assert supervisor.run("run-1").id == "run-1"
        assert supervisor.run(run.children[0].id).task == "Help."
        with pytest.raises(RunNotFound, match="resume"):
            supervisor.run("run-2")


async def test_a_cancelled_spawn_goes_on_where_its_record_was_on_its_way() -> None:
    """The disk is slow, the caller gives up: the run is there, and ends."""
    journal = SlowJournal()
    async with rp.open_supervisor(journal=journal, model=ScriptedModel(["Done."])) as supervisor:
        async with trio.open_nursery() as nursery:

            async def spawn() -> None:
                await supervisor.spawn(clerk(), "Go.", run_id="run-1")

            nursery.start_soon(spawn)
            while not await supervisor.journal.read_scopes():  # the next write is the run's
                await trio.lowlevel.checkpoint()
            journal.hold()
            await trio.testing.wait_all_tasks_blocked()
            assert journal.waiting
            nursery.cancel_scope.cancel()
        assert supervisor.run("run-1").state == "running"
        journal.release()
        with trio.fail_after(PATIENCE):
            run = await supervisor.spawn(clerk(), "Go.", run_id="run-1")
            assert await run.wait_result() == "Done."


async def test_a_run_whose_beginning_the_journal_refuses_leaves_nothing_behind() -> None:
    """Its id is free again, and so is its place."""
    async with rp.open_supervisor(model=ScriptedModel(["Done."])) as supervisor:
        with pytest.raises(RecordRefused):
            await supervisor.spawn(clerk(), "Go.", run_id="run-1", options={"share": math.nan})
        assert await supervisor.runs() == []
        with pytest.raises(RunNotFound):
            supervisor.run("run-1")
        assert await (await supervisor.spawn(clerk(), "Go.", run_id="run-1")).wait_result() == "Done."


@pytest.mark.parametrize("bare", [False, True])
def test_a_call_that_is_cancelled_at_any_checkpoint_has_happened_or_has_not(run_async: RunAsync, *, bare: bool) -> None:
    """Spawn, send and resume, cancelled after 0, 1, 2, … steps: the record and the process agree each time."""

    async def main() -> None:
        go = anyio.Event()

        async def answer(request: ModelRequest) -> str:
            await go.wait()
            return "Done."

        async with rp.open_journal() as journal:
            seen = set[tuple[str, bool]]()
            async with rp.open_supervisor(journal=journal, model=FunctionModel(answer), drain_timeout=0) as supervisor:
                for steps in range(40):
                    spawn = partial(supervisor.spawn, clerk(), "Go.", run_id=f"run-{steps}")
                    seen.add(("spawn", await cancelled_after(steps, spawn, bare=bare)))
                there = [row.started.run_id for row in await supervisor.runs()]
                for run_id in there:
                    assert supervisor.run(run_id).state == "running"
                run = supervisor.run(there[-1])
                for steps in range(20):
                    send = partial(run.send, "More.", message_id=f"m{steps}")
                    seen.add(("send", await cancelled_after(steps, send, bare=bare)))
            async with rp.open_supervisor(journal=journal, model=FunctionModel(answer)) as supervisor:
                for steps, run_id in enumerate(there):
                    resume = partial(supervisor.resume, run_id, agent=clerk())
                    seen.add(("resume", await cancelled_after(steps, resume, bare=bare)))
                go.set()
                for run_id in there:
                    run = await supervisor.spawn(clerk(), "Go.", run_id=run_id)
                    assert await run.wait_result() == "Done."
                    assert await unheard(supervisor.journal, run_id) == []
            assert len(seen) == 6

    run_async(main)


@pytest.mark.parametrize("seed", seeds(3, at_night=125))
def test_a_storm_of_cancelled_calls_leaves_no_run_alone_and_no_message_unheard(
    run_async: RunAsync, *, seed: int
) -> None:
    """Random calls, side by side, cancelled at random."""
    assert run_async(cancel_storm, seed, 120) == []


async def test_the_storm_notices_a_run_that_nobody_runs() -> None:
    """The check can fail: a run that is only on record is found, and so is a message that is never heard."""
    from repertory.record.records import EventLogged, RunStarted

    journal = MemoryJournal()
    async with rp.open_supervisor(journal=journal) as supervisor:
        said = {"message_id": "m", "text": "x", "sender": "", "attached": ""}
        await journal.write(
            [
                RunStarted(run_id="lost", agent="a", task="t", at=0.0),
                EventLogged(run_id="lost", type="UserSaid", body=said, at=0.0),
            ]
        )
        failures = await disagreements(supervisor)
    assert len(failures) == 2


async def test_handles_say_what_they_are() -> None:
    """At a prompt and in a log, where a bare address of an object helps nobody."""
    async with rp.open_supervisor(model=ScriptedModel(["Done."])) as supervisor:
        run = await supervisor.spawn(clerk(), "Go.", run_id="run-1")
        assert repr(supervisor) == "<Supervisor: 1 run under way>"
        assert repr(run.memory) == "<Memory of scope scope-run-1>"
        await run.wait_result()


def test_a_call_from_another_event_loop_is_refused_and_harms_nobody(run_async: RunAsync) -> None:
    """A web framework's worker thread has a loop of its own; a message from there used to end all runs."""
    model = ScriptedModel(["One.", "Two."])

    async def main() -> None:
        async with rp.open_supervisor(model=model) as supervisor:
            run = await supervisor.spawn(clerk(), "Go.", run_id="run-1")
            held = await supervisor.spawn(rp.Agent("held", model=FunctionModel(hang)), "Go.")
            await run.wait_result()
            calls = [run.ask, run.send, partial(supervisor.spawn, clerk()), partial(supervisor.resume), held.ask]
            calls += [lambda _: held.wait_result(), lambda _: held.wait_ended(), lambda _: held.change_payload({})]
            calls += [supervisor.clean]

            def refuse_plain() -> None:
                bound = partial(supervisor.change_bounds, max_runs=1, quotas=None)
                steer = (held.stop, held.pause, held.resume, held.kill, bound)
                for each in (*steer, held.events, held.stream, supervisor.events, lambda: run.memory):
                    with pytest.raises(RunError, match="another event loop"):
                        each()

            async def elsewhere() -> list[str]:
                refused = list[str]()
                for each in calls:
                    with pytest.raises(RunError) as caught:
                        await each("run-1")
                    refused.append(str(caught.value))
                refuse_plain()
                assert await run.wait_result() == "One."
                return refused

            for backend in ("trio", "asyncio"):
                refused = await anyio.to_thread.run_sync(partial(rp.run, elsewhere, backend=backend))
                assert all("was opened in another event loop" in each for each in refused)
            await anyio.to_thread.run_sync(refuse_plain)  # from a thread without a loop
            assert not held.is_ending
            assert await run.ask("And now?") == "Two."
            held.kill()

    async def hang(_: ModelRequest) -> str:
        await anyio.sleep_forever()
        return ""

    run_async(main)


@pytest.mark.parametrize("state", ["running", "queued"])
@pytest.mark.parametrize("how", ["stop", "kill", "pause"])
def test_a_signal_handler_of_asyncio_steers_a_run(how: str, state: str) -> None:
    """A callback is in no task, so that anyio knows no event loop there: a run in the queue never ended."""

    async def main() -> str:
        asked, go = anyio.Event(), anyio.Event()

        @rp.tool(effect="pure")
        async def look() -> str:
            """Look."""
            return "looked"

        async def answer(_: ModelRequest) -> object:
            asked.set()
            await go.wait()
            return call("look")

        def steer(what: Callable[[], None]) -> None:
            asyncio.get_running_loop().call_soon(what, context=Context())

        agent = rp.Agent("clerk", tools=[look])
        async with rp.open_supervisor(model=FunctionModel(answer), max_runs=1) as supervisor:
            first = await supervisor.spawn(agent, "Go.")
            run = first if state == "running" else await supervisor.spawn(agent, "Go.")
            assert run.state == state
            await asked.wait()
            steer(getattr(run, how))
            await anyio.lowlevel.checkpoint()
            go.set()
            async for event in run.events():
                if isinstance(event, events.StateChanged) and event.state != state:
                    first.kill()
                    await first.wait_ended()
                    if run.state == "paused":  # in the queue; there is room now, so that it begins at once
                        steer(run.resume)
                        await anyio.lowlevel.checkpoint()
                        assert run.state == "running"
                        run.kill()
                    assert await run.wait_ended() == "stopped"
                    return event.state
        return ""

    assert asyncio.run(main()) == ("paused" if how == "pause" else "stopped")


def test_a_callback_of_an_event_loop_that_runs_trio_as_its_guest_is_refused() -> None:
    """It is in the supervisor's thread, but trio's tasks cannot be woken from it."""

    async def main() -> None:
        loop, outcomes = asyncio.get_running_loop(), asyncio.Queue[Outcome[None]]()

        async def guest() -> None:
            async with rp.open_supervisor(model=ScriptedModel(["Done."])) as supervisor:
                run = await supervisor.spawn(clerk(), "Go.")
                told, refused = trio.Event(), list[str]()

                def steer() -> None:
                    for each in (run.stop, run.kill, run.pause, run.resume):
                        with pytest.raises(RunError, match="another event loop"):
                            each()
                    refused.append("all")
                    trio_token.run_sync_soon(told.set)

                trio_token = trio.lowlevel.current_trio_token()
                loop.call_soon_threadsafe(steer)
                await told.wait()
                assert refused == ["all"]
                assert await run.wait_result() == "Done."

        trio.lowlevel.start_guest_run(
            guest, run_sync_soon_threadsafe=loop.call_soon_threadsafe, done_callback=outcomes.put_nowait
        )
        (await outcomes.get()).unwrap()

    asyncio.run(main())


class Markup(str):
    """A text of a subclass, as libraries return them."""


class Letter(msgspec.Struct):
    """A typed task and payload."""

    text: str


def test_a_text_of_a_subclass_is_taken_as_its_text_wherever_it_is_handed_in(run_async: RunAsync) -> None:
    """msgspec writes no subclasses: a run whose id was one had begun when its spawn failed."""
    clerk = rp.Agent(Markup("clerk"), Markup("Sort."), description=Markup("It sorts."), model=Markup("offline"))
    typed = rp.Agent("typed", input=Letter, payload=Letter)
    lead = rp.Agent("lead", team=[clerk], approvals=rp.Approvals(ask=["delegate"]), options={"stop": [Markup("End.")]})

    async def main() -> None:
        def answer(request: ModelRequest) -> ModelResponse | ToolUse:
            if len(request.messages) == 1 and request.tools:
                return call("delegate", agent="clerk", task="Sort.")
            return ModelResponse(content=(Text(Markup("Done.")),), stop_reason="end_turn", usage=Usage(1, 1))

        async with rp.open_supervisor(model=FunctionModel(answer)) as supervisor:
            run = await supervisor.spawn(lead, Markup("Sort."), run_id=Markup("run-1"), options={"by": Markup("me")})
            async for event in run.events():
                if isinstance(event, events.ApprovalRequested):
                    await run.deny(event.call_id, Markup("Not now."), by=Markup("me"))
            assert await run.ask(Markup("And now?"), message_id=Markup("one")) == "Done."
            fork = await supervisor.fork(Markup("run-1"), new_id=Markup("two"), text=Markup("Again."), agent=lead)
            assert await fork.wait_result() == "Done."
            for task in (Letter(Markup("Sort.")), Markup('{"text":"Sort."}')):
                run = await supervisor.spawn(typed, task, payload=Letter(Markup("P")))
                assert await run.wait_result() == "Done."
                assert (run.task, run.payload) == ('{"text":"Sort."}', Letter("P"))

    run_async(main)
