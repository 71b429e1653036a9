"""The queue of runs: how many at once, who is next, and what becomes of those that wait."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st

import repertory as rp
from backends import RunAsync
from repertory.errors import ConfigurationError, QueueFull, RunError, RunExists, RunStopped
from repertory.llm.messages import Text, text_of
from repertory.llm.model import ModelRequest, ModelResponse, Usage
from repertory.record import MemoryJournal, RunRow
from repertory.record.run_lists import AGEING
from repertory.runs.events import StateChanged
from repertory.supervisor import QueuedRun, Quota, Quotas
from repertory.testing import FunctionModel

DAY = 86_400.0


class Office:
    """A model whose runs go on until they are let go; notes in which order they began, and how many there were."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.open: dict[str, trio.Event] = {}
        self.most = 0
        self.model = FunctionModel(self.answer)

    async def answer(self, request: ModelRequest) -> Any:
        """One answer."""
        task = text_of(request.messages[0].content[:1])
        self.began.append(task)
        self.open[task] = trio.Event()
        self.most = max(self.most, len(self.open))
        try:
            await self.open[task].wait()
        finally:
            del self.open[task]
        return "Done."

    async def let_go(self, *tasks: str) -> None:
        """Let runs come to their end."""
        await settle()
        for task in tasks:
            self.open[task].set()
        await settle()


async def settle() -> None:
    """Wait until everything stands still."""
    await trio.testing.wait_all_tasks_blocked()


agent = rp.Agent("clerk", context=None)
other = rp.Agent("scribe", context=None)


async def test_as_many_run_as_may_and_the_others_wait_in_order(autojump_clock: Any) -> None:
    """Higher priority first, then who came first; places and reasons are shown, and the state is on record."""
    office = Office()
    async with rp.open_supervisor(model=office.model, max_runs=2, clock=trio.current_time) as supervisor:
        runs = {name: await supervisor.spawn(agent, name) for name in ("a", "b", "c", "d")}
        runs["e"] = await supervisor.spawn(agent, "e", priority=1)
        await settle()
        assert office.began == ["a", "b"]
        assert [runs[name].state for name in "abcde"] == ["running", "running", "queued", "queued", "queued"]
        queue = await supervisor.queue()
        assert [(each.run_id, each.position) for each in queue] == [(runs[n].id, p) for p, n in enumerate("ecd", 1)]
        assert {(each.waits_for, each.reason) for each in queue} == {
            ("room", "2 runs under way, and 2 may be at once (max_runs)")
        }
        row = await supervisor.journal.read_run(runs["c"].id)
        assert (row.state, row.reason) == ("queued", "2 runs under way, and 2 may be at once (max_runs)")
        await office.let_go("a")
        assert office.began == ["a", "b", "e"]
        await office.let_go("b", "e")
        await office.let_go("c")
        await office.let_go("d")
        assert [await run.wait_result() for run in runs.values()] == ["Done."] * 5
        states = [event.state async for event in runs["d"].events() if isinstance(event, StateChanged)]
        assert await supervisor.queue() == []
    assert (office.began, office.most) == (["a", "b", "e", "c", "d"], 2)
    assert states == ["queued", "running", "done"]


async def test_waiting_weighs_as_much_as_priority(autojump_clock: Any) -> None:
    """Who has waited longer than so many levels are worth comes before those that are more urgent: nobody starves."""
    office = Office()
    async with rp.open_supervisor(model=office.model, max_runs=1, clock=trio.current_time) as supervisor:
        await supervisor.spawn(agent, "first")
        await supervisor.spawn(agent, "patient")
        await trio.sleep(AGEING - 1)
        await supervisor.spawn(agent, "urgent", priority=1)
        await trio.sleep(2)
        await supervisor.spawn(agent, "late", priority=1)
        for task in ("first", "urgent", "patient", "late"):
            await settle()
            await office.let_go(task)
    assert office.began == ["first", "urgent", "patient", "late"]


async def test_a_queued_run_is_stopped_killed_paused_and_spoken_to(autojump_clock: Any) -> None:
    """Before it has begun, by the same handle: what was said is heard, and who was stopped never asks a model."""
    office = Office()
    async with rp.open_supervisor(model=office.model, max_runs=1, clock=trio.current_time) as supervisor:
        await supervisor.spawn(agent, "first")
        stopped, killed, paused, told = [await supervisor.spawn(agent, name) for name in ("s", "k", "p", "t")]
        stopped.stop()
        killed.kill()
        killed.stop()  # once more does nothing
        for run in (stopped, killed):
            with pytest.raises(RunStopped, match="after 0 iterations"):
                await run.wait_result()
        paused.pause()
        await told.send("Be quick.")
        await office.let_go("first")
        assert (paused.state, told.state) == ("paused", "running")
        assert (await supervisor.journal.read_run(paused.id)).state == "paused"
        paused.resume()
        assert paused.state == "queued"
        await office.let_go("t")
        assert paused.state == "running"
        paused.pause()
        paused.resume()
        await office.let_go("p")
        assert await paused.wait_result() == "Done."
        rows = await supervisor.runs(states=["stopped"])
        said = [
            entry for entry in await supervisor.journal.read_entries(told.id) if text_of(entry.content) == "Be quick."
        ]
    assert [row.started.run_id for row in rows] == [stopped.id, killed.id]
    assert [row.cancelled for row in rows] == [True, True]
    assert len(said) == 1
    assert "s" not in office.began
    assert "k" not in office.began


class SlowJournal(MemoryJournal):
    """Answers who waits only once it is let go, as the disk of a busy machine may."""

    def __init__(self) -> None:
        super().__init__()
        self.go = trio.Event()
        self.go.set()

    async def read_queue(self, **what: Any) -> Any:
        """The queue as it was when it was asked for."""
        rows = await super().read_queue(**what)
        await self.go.wait()
        return rows


async def test_nobody_overtakes_while_the_queue_is_read(autojump_clock: Any) -> None:
    """A place is free and the queue is being read: a new run waits, and the one that waited begins first."""
    office, journal = Office(), SlowJournal()
    async with rp.open_supervisor(
        model=office.model, journal=journal, max_runs=1, clock=trio.current_time
    ) as supervisor:
        await supervisor.spawn(agent, "first")
        waiting = await supervisor.spawn(agent, "waiting")
        journal.go = trio.Event()
        await office.let_go("first")
        new = await supervisor.spawn(agent, "new")
        assert (waiting.state, new.state) == ("queued", "queued")
        journal.go.set()
        await office.let_go("waiting")
        await office.let_go("new")
    assert office.began == ["first", "waiting", "new"]


async def test_a_run_that_begins_while_the_queue_is_read_is_not_listed_as_left_behind(autojump_clock: Any) -> None:
    """What was read still has it as queued, and this process runs it by now."""
    office, journal = Office(), SlowJournal()
    listed: list[QueuedRun] = []

    async with rp.open_supervisor(
        model=office.model, journal=journal, max_runs=1, clock=trio.current_time
    ) as supervisor:

        async def look() -> None:
            listed.extend(await supervisor.queue())

        runs = [await supervisor.spawn(agent, name) for name in ("a", "b", "c")]
        await settle()
        async with trio.open_nursery() as nursery:
            held = journal.go = trio.Event()
            nursery.start_soon(look)
            await settle()
            journal.go = trio.Event()
            journal.go.set()
            supervisor.change_bounds(max_runs=2, quotas=None)
            await settle()
            assert [run.state for run in runs] == ["running", "running", "queued"]
            held.set()
        assert [(each.run_id, each.position) for each in listed] == [(runs[2].id, 1)]
        for name in ("a", "b", "c"):
            await office.let_go(name)


async def test_who_begins_while_the_queue_is_read_is_counted(autojump_clock: Any) -> None:
    """The one that waits leaves, another takes the place, and the first comes back before the answer does: one runs."""
    office, journal = Office(), SlowJournal()
    async with rp.open_supervisor(
        model=office.model, journal=journal, max_runs=1, clock=trio.current_time
    ) as supervisor:
        await supervisor.spawn(agent, "first")
        waiting = await supervisor.spawn(agent, "waiting")
        journal.go = trio.Event()
        await office.let_go("first")
        waiting.pause()
        new = await supervisor.spawn(agent, "new")
        waiting.resume()
        journal.go.set()
        await settle()
        assert (waiting.state, new.state) == ("queued", "running")
        await office.let_go("new")
        await office.let_go("waiting")
    assert (office.began, office.most) == (["first", "new", "waiting"], 1)


async def test_what_is_paused_in_the_queue_begins_at_once_where_there_is_room(autojump_clock: Any) -> None:
    """It need not wait a second time for a place that is free."""
    office = Office()
    async with rp.open_supervisor(model=office.model, max_runs=1, clock=trio.current_time) as supervisor:
        await supervisor.spawn(agent, "first")
        run = await supervisor.spawn(agent, "second")
        run.pause()
        await office.let_go("first")
        run.resume()
        assert run.state == "running"
        await settle()
        await office.let_go("second")
        assert await run.wait_result() == "Done."


async def test_those_who_end_are_asked_on_in_turn(autojump_clock: Any) -> None:
    """What is said to a run that is done lets it go on when there is room, like any other."""
    office = Office()
    async with rp.open_supervisor(model=office.model, max_runs=1, clock=trio.current_time) as supervisor:
        run = await supervisor.spawn(agent, "a")
        await settle()
        await office.let_go("a")
        await supervisor.spawn(agent, "b")
        await run.send("And now?")
        await settle()
        assert run.state == "queued"
        assert (await supervisor.queue())[0].run_id == run.id
        await office.let_go("b")
        assert run.state == "running"
        await office.let_go("a")
        assert await run.wait_result() == "Done."


async def test_closing_leaves_the_queue_on_record_and_the_next_process_keeps_its_order(autojump_clock: Any) -> None:
    """Who waits is told that the run was stopped; taken up again, in whatever order, each has its old place."""
    office, journal = Office(), MemoryJournal()
    async with rp.open_supervisor(
        model=office.model, journal=journal, max_runs=1, clock=trio.current_time, drain_timeout=1
    ) as supervisor:
        runs = [await supervisor.spawn(agent, name, run_id=f"run-{name}") for name in ("a", "b", "c")]
        paused = await supervisor.spawn(agent, "p", run_id="run-p")
        paused.pause()
        await settle()
    for run in (*runs, paused):
        with pytest.raises(RunStopped):
            await run.wait_result()
        run.stop()  # too late, and no harm
    assert {row.started.run_id: row.state for row in await journal.read_runs()} == {
        "run-a": "running", "run-b": "queued", "run-c": "queued", "run-p": "paused"
    }  # fmt: skip
    office = Office()
    async with rp.open_supervisor(
        model=office.model, journal=journal, max_runs=1, clock=trio.current_time
    ) as supervisor:
        assert [(each.waits_for, each.reason.partition(";")[0]) for each in await supervisor.queue()] == [
            ("resume", "nobody has taken it up since the process that queued it ended")
        ] * 2
        new = await supervisor.spawn(agent, "new")  # nobody waits whom this process knows
        for run_id in ("run-c", "run-b", "run-a"):
            await supervisor.resume(run_id, agent=agent)
        await settle()
        assert [each.run_id for each in await supervisor.queue()] == ["run-b", "run-c", "run-a"]
        for task in ("new", "b", "c", "a"):
            await office.let_go(task)
        assert await new.wait_result() == "Done."
    assert office.began == ["new", "b", "c", "a"]


async def test_a_spawn_that_is_repeated_finds_the_run_in_the_queue(autojump_clock: Any) -> None:
    """Also in the next process, and where the queue is full: it is not a run more."""
    office, journal = Office(), MemoryJournal()
    quotas = Quotas(clients={"*": Quota(queued=1)})
    for _ in range(2):
        async with rp.open_supervisor(
            model=office.model, journal=journal, max_runs=1, quotas=quotas, clock=trio.current_time, drain_timeout=1
        ) as supervisor:
            first = [await supervisor.spawn(agent, "a", run_id="run-a") for _ in range(2)]
            second = [await supervisor.spawn(agent, "b", run_id="run-b") for _ in range(2)]
            assert {run.state for run in first} == {"running"}
            assert {run.state for run in second} == {"queued"}
            with pytest.raises(QueueFull, match=r"the queue has 1 run waiting, as many as may \(queued\)") as caught:
                await supervisor.spawn(agent, "c", run_id="run-c")
            assert caught.value.retry_after > 0
            await settle()
    assert len(await journal.read_runs()) == 2
    assert len(await journal.read_scopes()) == 2  # nothing is left of those that were refused


async def test_forks_and_further_attempts_wait_in_no_queue_that_is_full(autojump_clock: Any) -> None:
    """They are refused as a new run is, and nothing of them is on record; one that is repeated is no run more."""
    office, journal = Office(), MemoryJournal()
    quotas = Quotas(clients={"*": Quota(queued=1)})
    async with rp.open_supervisor(
        model=office.model, journal=journal, max_runs=1, quotas=quotas, clock=trio.current_time, drain_timeout=1
    ) as supervisor:
        stopped = await supervisor.spawn(agent, "a")
        stopped.kill()
        with pytest.raises(RunStopped):
            await stopped.wait_result()
        going = await supervisor.spawn(agent, "b")
        for _ in range(2):
            waiting = await supervisor.fork(going.id, iteration=0, new_id="waiting", agent=agent)
            assert waiting.state == "queued"
        with pytest.raises(QueueFull):
            await supervisor.fork(going.id, iteration=0, new_id="more", agent=agent)
        with pytest.raises(QueueFull):  # only one that is under way, or waits, has a place to give up
            await supervisor.rewind(stopped.id, 0, agent=agent)
        for again in (supervisor.retry, supervisor.resume):
            with pytest.raises(QueueFull):
                await again(stopped.id, agent=agent)
        with pytest.raises(RunExists, match="no such fork"):
            await supervisor.fork(going.id, iteration=0, new_id="waiting", agent=agent, text="Something else.")
        assert [row.state for row in await journal.read_runs()] == ["stopped", "running", "queued"]
        instead = await supervisor.rewind(waiting.id, 0, agent=agent)
        assert (waiting.state, instead.state) == ("stopped", "queued")


async def test_clients_beside_each_other_queue_no_more_than_they_may(autojump_clock: Any) -> None:
    """The bound holds for spawns that are under way at once, for each client by itself."""
    office, refused = Office(), list[str]()
    quotas = Quotas(clients={"greedy": Quota(queued=3)})

    async def ask(supervisor: rp.Supervisor, client: str) -> None:
        try:
            await supervisor.spawn(agent, "more", client=client)
        except QueueFull:
            refused.append(client)

    async with rp.open_supervisor(
        model=office.model, max_runs=1, quotas=quotas, clock=trio.current_time, drain_timeout=1
    ) as supervisor:
        await supervisor.spawn(agent, "first")
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(ask, supervisor, "greedy" if number % 2 else "modest")
        queue = await supervisor.queue()
    assert refused == ["greedy"] * 7
    assert sorted(each.client for each in queue) == ["greedy"] * 3 + ["modest"] * 10


@pytest.mark.parametrize("bound", [{"max_runs": 2}, {"clients": Quota(queued=1, runs=2)}], ids=["max_runs", "runs"])
async def test_those_who_find_room_together_queue_no_more_than_they_may(
    autojump_clock: Any, bound: dict[str, Any]
) -> None:
    """Each saw the same two places free, so all were taken in, and all but two waited."""
    office, states = Office(), list[str]()
    quotas = Quotas(clients={"*": bound.get("clients", Quota(queued=1))})

    async def ask(supervisor: rp.Supervisor, number: int) -> None:
        try:
            states.append((await supervisor.spawn(agent, f"{number}")).state)
        except QueueFull:
            states.append("refused")

    async with (
        rp.open_supervisor(
            model=office.model,
            max_runs=bound.get("max_runs"),
            quotas=quotas,
            clock=trio.current_time,
            drain_timeout=1,
        ) as supervisor,
        trio.open_nursery() as nursery,
    ):
        for number in range(6):
            nursery.start_soon(ask, supervisor, number)
    assert sorted(states) == ["queued", "refused", "refused", "refused", "running", "running"]


async def test_agents_and_clients_have_as_many_runs_as_their_quotas_allow(autojump_clock: Any) -> None:
    """Others pass those who are at theirs; the reason names whose it is."""
    office = Office()
    quotas = Quotas(agents={"clerk": Quota(runs=1)}, clients={"web": Quota(runs=2), "*": Quota(runs=1)})
    async with rp.open_supervisor(model=office.model, quotas=quotas, clock=trio.current_time) as supervisor:
        for task, who, client in (
            ("a", agent, "web"),
            ("b", agent, "web"),  # the clerk has one
            ("c", other, "web"),
            ("d", other, "web"),  # the client has two
            ("e", other, "x"),
            ("f", other, "x"),  # any other client has one, each for itself
            ("g", other, "y"),
        ):
            await supervisor.spawn(who, task, client=client)
        await settle()
        assert office.began == ["a", "c", "e", "g"]
        queue = await supervisor.queue()
        assert {each.waits_for for each in queue} == {"quota"}
        assert [each.reason for each in queue] == [
            "agent clerk has 1 run under way, as many as its quota allows (runs)",
            "client web has 2 runs under way, as many as its quota allows (runs)",
            "client x has 1 run under way, as many as its quota allows (runs)",
        ]
        await office.let_go("c")
        assert office.began[4:] == ["d"]
        await office.let_go("a")
        assert office.began[5:] == ["b"]
        supervisor.change_bounds(max_runs=None, quotas=None)
        await settle()
        assert office.began[6:] == ["f"]
        await office.let_go("b", "d", "e", "f", "g")


def spender() -> FunctionModel:
    """A model that takes 1,000 tokens a run."""
    usage = Usage(input_tokens=900, output_tokens=100)
    return FunctionModel(lambda _: ModelResponse(content=(Text("Done."),), usage=usage, stop_reason="end_turn"))


async def test_what_was_used_today_is_counted_from_the_record(autojump_clock: Any) -> None:
    """Over restarts, for the agent at the top and the client; at midnight UTC those who wait begin."""
    journal, model = MemoryJournal(), spender()
    quotas = Quotas(agents={"clerk": Quota(tokens_per_day=2_000)}, clients={"web": Quota(tokens_per_day=3_000)})
    start = 20_000 * DAY + DAY / 2 - trio.current_time()  # noon

    def clock() -> float:
        return start + trio.current_time()

    async with rp.open_supervisor(model=model, journal=journal, quotas=quotas, clock=clock) as supervisor:
        for _ in range(2):
            run = await supervisor.spawn(agent, "Go.", client="web")
            assert await run.wait_result() == "Done."
    async with rp.open_supervisor(model=model, journal=journal, quotas=quotas, clock=clock) as supervisor:
        clerk = await supervisor.spawn(agent, "Go.")
        scribe = await supervisor.spawn(other, "Go.", client="web")
        await scribe.wait_result()
        web = await supervisor.spawn(other, "Go.", client="web")
        free = await supervisor.spawn(other, "Go.", client="else")
        assert await free.wait_result() == "Done."
        assert (clerk.state, web.state) == ("queued", "queued")
        assert [each.reason.partition(" today")[0] for each in await supervisor.queue()] == [
            "agent clerk has used 2,000 of 2,000 tokens",
            "client web has used 3,000 of 3,000 tokens",
        ]
        assert await clerk.wait_result() == "Done."
        assert await web.wait_result() == "Done."
        waited = clock() - 20_001 * DAY
    assert 0 <= waited <= 60


def test_quotas_that_make_no_sense_are_refused() -> None:
    """At once, with the field's name."""
    for wrong in ({"runs": 0}, {"tokens_per_day": -1}, {"cost_per_day": 0}, {"queued": -1}, {"runs": 1.5}):
        with pytest.raises(ConfigurationError, match=f"quota.{next(iter(wrong))} must be"):
            Quota(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"quotas.agents\['a'\] must be a Quota"):
        Quotas(agents={"a": 1})  # type: ignore[dict-item]


async def test_what_makes_no_sense_is_refused_before_anything_is_recorded() -> None:
    """Priority, client and bounds."""
    async with rp.open_supervisor(model=Office().model) as supervisor:
        for wrong in ({"priority": 101}, {"priority": "high"}, {"client": "a b"}, {"client": None}):
            with pytest.raises(ConfigurationError, match=next(iter(wrong))):
                await supervisor.spawn(agent, "Go.", **wrong)
        with pytest.raises(ConfigurationError, match="max_runs must be a whole number of at least 1 or None"):
            supervisor.change_bounds(max_runs=0, quotas=None)
        assert await supervisor.runs() == []


# --- whatever happens ---------------------------------------------------------------------------------------


class Step:
    """What may happen to a queue."""

    kinds = st.one_of(
        st.tuples(st.just("spawn"), st.integers(-2, 2), st.sampled_from(["clerk", "scribe"]), st.sampled_from("xy")),
        st.tuples(st.sampled_from(["end", "stop", "kill", "pause", "resume", "send"]), st.integers(0, 30)),
        st.tuples(st.just("wait"), st.sampled_from([0.0, 10.0, AGEING, 3 * AGEING])),
        st.tuples(st.just("bound"), st.integers(1, 3)),
        st.tuples(st.just("restart")),
    )


class Course:
    """Plays steps, and checks after each what holds of every queue."""

    def __init__(self) -> None:
        self.journal = MemoryJournal()
        self.quotas = Quotas(agents={"scribe": Quota(runs=1)}, clients={"y": Quota(runs=2)})
        self.max_runs = 2
        self.office = Office()
        self.runs: dict[str, rp.Run[Any]] = {}
        self.here: list[str] = []  # of the supervisor that is open
        self.agents = {"clerk": agent, "scribe": other}

    async def play(self, steps: list[tuple[Any, ...]]) -> None:
        """Play them all; then everything comes to its end, so nobody starves and nothing is lost."""
        while steps:
            async with AsyncExitStack() as stack:
                self.supervisor = await stack.enter_async_context(
                    rp.open_supervisor(
                        model=self.office.model, journal=self.journal, max_runs=self.max_runs, quotas=self.quotas,
                        clock=trio.current_time, drain_timeout=0.1, alerts=None,
                    )
                )  # fmt: skip
                await self.take_up()
                while steps and (step := steps.pop(0)) != ("restart",):
                    await getattr(self, step[0])(*step[1:])
                    await settle()
                    await self.check()
                if not steps:
                    await self.finish()

    async def take_up(self) -> None:
        """Resume what an earlier process left, newest first, which must make no difference."""
        self.here = []
        for row in reversed(await self.journal.read_runs(states=["running", "waiting", "queued", "paused"])):
            run = await self.supervisor.resume(row.started.run_id, agent=self.agents[row.started.agent])
            self.runs[row.started.run_id] = run
            self.here.append(row.started.run_id)
        await settle()

    async def spawn(self, priority: int, name: str, client: str) -> None:
        """A new run."""
        run_id = f"run-{len(self.runs)}"
        self.runs[run_id] = await self.supervisor.spawn(
            self.agents[name], run_id, run_id=run_id, priority=priority, client=client
        )
        self.here.append(run_id)

    def chosen(self, number: int) -> rp.Run[Any] | None:
        """One of those that have not ended."""
        going = [run for run in self.runs.values() if run.state not in ("done", "stopped", "failed")]
        return going[number % len(going)] if going else None

    async def end(self, number: int) -> None:
        """One that is with the model gets its answer."""
        if self.office.open:
            await self.office.let_go([*self.office.open][number % len(self.office.open)])

    async def stop(self, number: int) -> None:
        """Stop one."""
        if (run := self.chosen(number)) is not None:
            run.stop()

    async def kill(self, number: int) -> None:
        """Kill one."""
        if (run := self.chosen(number)) is not None:
            run.kill()

    async def pause(self, number: int) -> None:
        """Pause one."""
        if (run := self.chosen(number)) is not None:
            run.pause()

    async def resume(self, number: int) -> None:
        """Let one go on."""
        if (run := self.chosen(number)) is not None and not run.is_ending:
            run.resume()

    async def send(self, number: int) -> None:
        """Say something to one, also to one that is done; who speaks to one that stops waits for the model."""
        here = [self.runs[run_id] for run_id in self.here]
        runs = [run for run in here if run.state == "done" or not run.is_ending]
        if runs:
            await runs[number % len(runs)].send("More.")

    async def wait(self, seconds: float) -> None:
        """Let time pass."""
        await trio.sleep(seconds)

    async def bound(self, most: int) -> None:
        """Change how many may be under way."""
        self.max_runs = most
        self.supervisor.change_bounds(max_runs=most, quotas=self.quotas)

    async def check(self) -> None:
        """What is on record is what the handles say; no bound is passed by a beginning; who can begin does not wait."""
        rows = {row.started.run_id: row for row in await self.journal.read_runs()}
        assert set(rows) == set(self.runs)
        for run_id, row in rows.items():
            state = self.runs[run_id].state
            is_pausing = (row.state, state) == ("paused", "running")  # until its next boundary
            assert row.state == state or is_pausing, run_id
        waiting = [row for row in rows.values() if row.state == "queued"]
        queue = await self.supervisor.queue()
        assert {each.run_id for each in queue} == {row.started.run_id for row in waiting}
        key = [each.at - AGEING * each.priority for each in queue]
        assert key == sorted(key)
        going = [row for run_id, row in rows.items() if self.runs[run_id]._live.ref is not None and self.is_on(row)]
        room = self.max_runs - len(going)
        if room > 0:
            for each in queue:  # whoever still waits is held by a quota
                assert self.held(each.agent, each.client, going), each
        assert sum(row.started.agent == "scribe" for row in going) <= 1
        assert sum(row.started.client == "y" for row in going) <= 2

    @staticmethod
    def is_on(row: RunRow) -> bool:
        """Whether a row is of one under way."""
        return row.state in ("running", "waiting", "paused")

    @staticmethod
    def held(name: str, client: str, going: list[RunRow]) -> bool:
        """Whether a quota holds one."""
        scribes = sum(row.started.agent == "scribe" for row in going)
        ys = sum(row.started.client == "y" for row in going)
        return (name == "scribe" and scribes >= 1) or (client == "y" and ys >= 2)

    async def finish(self) -> None:
        """Let everything come to its end."""
        for _ in range(4 * len(self.runs) + 4):
            for run in self.runs.values():
                if not run.is_ending:
                    run.resume()
            await settle()
            await self.office.let_go(*self.office.open)
        assert {run.state for run in self.runs.values()} <= {"done", "stopped"}


@given(steps=st.lists(Step.kinds, max_size=25))
def test_whatever_happens_no_bound_is_passed_and_everybody_has_a_turn(steps: list[tuple[Any, ...]]) -> None:
    """Random spawns, ends, stops, pauses, messages, bounds and restarts: the invariants hold after each step."""

    async def main() -> None:
        await Course().play(list(steps))

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("checkpoints", range(12))
def test_a_run_that_comes_as_its_supervisor_closes_is_refused_or_ends_for_its_waiters(
    run_async: RunAsync, checkpoints: int
) -> None:
    """It waits in no queue that nobody looks after: whoever waited for it there would wait for ever."""
    told: list[str] = []

    async def main() -> None:
        async def forever(_: ModelRequest) -> str:
            await anyio.sleep_forever()
            return ""

        async def spawn() -> None:
            try:
                told.append(await (await supervisor.spawn(agent, "b")).wait_ended())
            except RunError as error:
                told.append(str(error))

        async with anyio.create_task_group() as tasks:
            options: dict[str, Any] = {"max_runs": 1, "drain_timeout": 0}
            async with rp.open_supervisor(model=FunctionModel(forever), **options) as supervisor:
                await supervisor.spawn(agent, "a")
                tasks.start_soon(spawn)
                for _ in range(checkpoints):
                    await checkpoint()

    run_async(main)
    (said,) = told
    assert said == "queued" or said.startswith("the supervisor is closed")


def test_on_both_backends_and_in_a_file(run_async: RunAsync, tmp_path: Path) -> None:
    """The public way, with a real file."""

    async def main() -> list[str]:
        model = FunctionModel(lambda request: f"Done: {text_of(request.messages[0].content)}")
        async with rp.open_supervisor(tmp_path / "a.db", model=model, max_runs=1) as supervisor:
            runs = [await supervisor.spawn(agent, f"{number}", priority=number) for number in range(4)]
            return [await run.wait_result() for run in runs]

    assert run_async(main) == [f"Done: {number}" for number in range(4)]
