"""What those who hold a run see of it that went on at another machine."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Sequence

import anyio
import pytest
from placed_team import Script, make

import repertory as rp
from backends import RunAsync
from patience import PATIENCE
from postgres_server import PostgresServer
from repertory._postgres_address import PostgresAddress
from repertory.errors import RunElsewhere
from repertory.llm.messages import ToolUse, text_of
from repertory.llm.model import ModelRequest
from repertory.machines.ownership import KEEP_PLACE
from repertory.record import Record
from repertory.record.postgres_sql import connect
from repertory.record.records import RunStateChanged
from repertory.testing import FunctionModel, ScriptedModel, call

REF = "placed_team:alone"


@pytest.fixture(autouse=True)
def script() -> Iterator[None]:
    """The models as they are without a test."""
    Script.reset()
    yield
    Script.reset()


class Clerk:
    """A model that makes so many calls, then waits until it may answer."""

    def __init__(self, calls: int) -> None:
        self.calls = calls
        self.asked, self.open = anyio.Event(), anyio.Event()

    async def answer(self, request: ModelRequest) -> object:
        """One answer."""
        if len(request.messages) < 2 * self.calls:
            return call("find", number=len(request.messages))
        if len(request.messages) == 2 * self.calls + 1:
            self.asked.set()
            await self.open.wait()
        return "Done."


class Watcher:
    """Somebody who waits for the end of a run, and follows its events."""

    def __init__(self, run: rp.Run[str]) -> None:
        self.run = run
        self.result = ""
        self.events = list[str]()

    async def watch(self) -> None:
        """Wait for the end and follow."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._wait)
            tasks.start_soon(self._follow)

    async def _wait(self) -> None:
        self.result = await self.run.wait_result()

    async def _follow(self) -> None:
        async for event in self.run.events():
            self.events.append(type(event).__name__)


def test_a_run_that_ended_elsewhere_is_shown_as_it_ended(postgres: PostgresServer, run_async: RunAsync) -> None:
    """Its figures, its record and its payload, and whoever follows its events comes to their end."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        clerk = Clerk(calls=1)
        clerk.open.set()
        Script.worker = clerk.answer
        async with rp.open_supervisor(uri, name="first", labels=()) as first:
            run = await first.spawn(make().team[0], "Find it.", agent_ref=REF, payload={"found": [3]})
            assert (run.state, run.statistics().model_calls) == ("queued", 0)
            watcher = Watcher(run)
            async with rp.open_supervisor(uri, name="second", labels=["gpu"]):
                with anyio.fail_after(PATIENCE):
                    await watcher.watch()
            assert (watcher.result, run.state) == ("Done.", "done")
            assert watcher.events == ["RunSpawned", "StateChanged", "StateChanged"]
            assert run.statistics().model_calls == 2
            assert run.payload == {"found": [3, 1]}
            assert [entry.kind for entry in run.view()] == ["task", "assistant", "action-result", "assistant"]

    run_async(main)


async def test_what_was_used_elsewhere_counts_where_the_run_comes_back(postgres: PostgresServer) -> None:
    """A limit is one for all machines, also for one that has seen the run's beginning alone."""
    uri = postgres.emptied_journal()
    clerk, busy = Clerk(calls=3), anyio.Event()
    Script.worker = clerk.answer

    async def wait(_: ModelRequest) -> str:
        await busy.wait()
        return "Done."

    async with rp.open_supervisor(uri, name="first", labels=["gpu"], max_runs=1) as first:
        await first.spawn(rp.Agent("busy", model=FunctionModel(wait)), "Wait.")
        run = await first.spawn(make().team[0], "Find it.", agent_ref=REF, payload={"found": []})
        watcher = Watcher(run)
        with anyio.fail_after(PATIENCE):
            async with rp.open_supervisor(uri, name="second", labels=["gpu"], drain_timeout=0.1):
                await clerk.asked.wait()
            clerk.open.set()
            busy.set()
            await watcher.watch()
        assert watcher.result == "Done."
        figures = run.statistics()
        assert (figures.tool_calls, figures.model_calls) == (3, 5)  # one of these was cut off when the machine left


async def test_who_waits_for_a_run_that_comes_and_goes_hears_of_its_end(postgres: PostgresServer) -> None:
    """It waited here, worked here, and ended at another machine."""
    uri = postgres.emptied_journal()
    clerk, busy = Clerk(calls=1), anyio.Event()

    async def answer(request: ModelRequest) -> object:
        said = await clerk.answer(request)
        return call("find", number=0) if len(request.messages) == 3 else said

    Script.worker = answer

    async def wait(_: ModelRequest) -> str:
        await busy.wait()
        return "Done."

    async with rp.open_supervisor(uri, name="first", labels=["gpu"], max_runs=1) as first:
        await first.spawn(rp.Agent("busy", model=FunctionModel(wait)), "Wait.")
        run = await first.spawn(make().team[0], "Find it.", agent_ref=REF, payload={"found": []})
        watcher = Watcher(run)
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(watcher.watch)
                await anyio.wait_all_tasks_blocked()
                busy.set()
                await clerk.asked.wait()
                await first.drain()
                clerk.open.set()
                async with rp.open_supervisor(uri, name="second", labels=["gpu"]) as second:
                    while (await second.journal.read_run(run.id)).state != "done":
                        await anyio.sleep(0.02)
        assert watcher.result == "Done."
        assert run.statistics().tool_calls == 2


def test_a_machine_goes_on_where_another_resumes_a_run_before_all_below_it_is_tidied_up(
    postgres: PostgresServer, run_async: RunAsync
) -> None:
    """The end of a run gives it up; what is still written for those below it was refused, and ended the supervisor."""
    uri, other = postgres.emptied_journal(), "00000000-0000-4000-8000-000000000000"

    async def main() -> None:
        asked = anyio.Event()

        async def answer(request: ModelRequest) -> str | ToolUse:
            if text_of(request.system) == "work":
                asked.set()
                await anyio.sleep_forever()
            return "Done." if len(request.messages) > 1 else call("delegate", agent="worker", task="x")

        lead = rp.Agent("lead", team=[rp.Agent("worker", instructions="work", team=[rp.Agent("helper")])])
        model = FunctionModel(answer)
        async with rp.open_supervisor(uri, model=model, drain_timeout=0) as supervisor:
            run_id = (await supervisor.spawn(lead, "Go.")).id
            await asked.wait()
        async with rp.open_supervisor(uri, model=model) as supervisor:

            def resume_elsewhere(records: Sequence[Record]) -> None:
                if any(isinstance(each, RunStateChanged) and each.state == "done" for each in records):
                    with postgres.connect(uri) as connection:
                        claim = "VALUES (%s, %s, 9, 'resumed', 'lead', '', '', '', '{}', 0, %s, false)"
                        connection.execute(f"INSERT INTO ownership {claim}", [run_id, other, other])

            end = supervisor.journal.observe(resume_elsewhere)
            run = await supervisor.resume(run_id, agent=rp.Agent("lead"))  # nobody takes up the worker
            with anyio.fail_after(PATIENCE):
                assert await run.wait_result() == "Done."
            end()
            assert await (await supervisor.spawn(rp.Agent("lead", instructions="alone"), "Go.")).wait_ended() == "done"

    run_async(main)


async def test_a_fork_sees_nothing_newer_because_another_machine_has_written(postgres: PostgresServer) -> None:
    """Positions of memory come from blocks of the machines, so those of another one may be above all of the run's."""
    uri = postgres.emptied_journal()

    @rp.tool(effect="idempotent")
    async def note(number: int, context: rp.ToolContext) -> str:
        """Note a number."""
        await context.need_memory().store(f"note {number}", item_id=f"note-{number}")
        return "noted"

    model = ScriptedModel([call("note", number=1), call("note", number=2), "Done.", "Done."])
    async with rp.open_supervisor(uri, model=model) as first, rp.open_supervisor(uri, model=model) as second:
        other = await rp.Memory.open(second._runtime.shared.memory, "run-other")
        await other.store("of another run")
        run = await first.spawn(rp.Agent("clerk", tools=[note]), "Note.")
        await run.wait_result()
        fork = await first.fork(run.id, iteration=1, agent=run.agent)
        await fork.wait_result()
        assert [item.item_id for item in await fork.memory.query()] == ["note-1"]
        assert len(await run.memory.query()) == 2


async def test_a_run_that_two_machines_begin_at_once_is_the_one_of_the_first(postgres: PostgresServer) -> None:
    """The other is told that, and writes nothing to its record: not even that it failed, if the first has ended."""
    uri = postgres.emptied_journal()
    queued = [f"queued-{number}" for number in range(10)]
    outcomes: dict[str, list[str]] = {run_id: [] for run_id in (*queued, *(f"run-{number}" for number in range(20)))}
    forks: dict[str, list[str]] = {f"fork-{number}": [] for number in range(10)}
    clerk = rp.Agent("clerk", model=FunctionModel(lambda _: "Done."))

    async def spawn(supervisor: rp.Supervisor, run_id: str) -> None:
        try:
            run = await supervisor.spawn(clerk, "Work.", run_id=run_id)
            outcomes[run_id].append(await run.wait_result())
        except (RunElsewhere, rp.errors.RunFailed):  # what left the queue here and there at once is refused only then
            outcomes[run_id].append("elsewhere")

    async def fork(supervisor: rp.Supervisor, fork_id: str) -> None:
        try:
            run = await supervisor.fork("run-1", new_id=fork_id, agent=clerk)
            forks[fork_id].append(await run.wait_result())
        except RunElsewhere:
            forks[fork_id].append("elsewhere")

    async with (
        rp.open_supervisor(uri, max_runs=1) as first,
        rp.open_supervisor(uri, max_runs=1) as second,
        anyio.create_task_group() as tasks,
    ):
        for run_id in queued:  # most of them wait in the queue
            tasks.start_soon(spawn, first, run_id)
            tasks.start_soon(spawn, second, run_id)
    async with rp.open_supervisor(uri) as first, rp.open_supervisor(uri) as second:
        for outcome, begin in ((outcomes, spawn), (forks, fork)):
            for run_id in outcome.keys() - queued:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(begin, first, run_id)
                    tasks.start_soon(begin, second, run_id)
    async with rp.open_journal(uri) as journal:
        assert {row.started.run_id: row.state for row in await journal.read_runs()} == dict.fromkeys(
            [*outcomes, *forks], "done"
        )
    assert all("Done." in each for each in (*outcomes.values(), *forks.values()))


async def test_a_run_goes_on_although_another_machine_reserves_a_place_for_it_meanwhile(
    postgres: PostgresServer,
) -> None:
    """That came between two statements of its first transaction, and nobody went on with the run."""
    uri = postgres.emptied_journal()
    clerk = rp.Agent("clerk", model=FunctionModel(lambda _: "Done."))

    async def spawn(supervisor: rp.Supervisor) -> None:
        run = await supervisor.spawn(clerk, "Work.", run_id="one")
        assert await run.wait_result() == "Done."

    async with rp.open_supervisor(uri) as supervisor, anyio.create_task_group() as tasks:
        address = PostgresAddress(uri)
        with connect(address) as watcher, connect(address) as other, other.transaction():
            other.execute(KEEP_PLACE, ["one", str(uuid.uuid4()), "clerk", ""])
            tasks.start_soon(spawn, supervisor)
            while watcher.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchone() is None:
                await anyio.sleep(0.01)


async def test_a_run_that_was_refused_is_left_to_the_agent_that_it_began_with(postgres: PostgresServer) -> None:
    """The refused machine holds it no longer: with room before the other, it would let its own agent work on it."""
    uri = postgres.emptied_journal()
    names = [f"run-{number}" for number in range(10)]
    began: dict[str, tuple[str, rp.Run]] = {}
    gates = {machine: anyio.Event() for machine in ("first", "second")}

    async def wait_at(supervisor: rp.Supervisor, machine: str) -> None:
        @rp.tool(effect="pure")
        async def wait() -> str:
            """Wait until the gate opens."""
            await gates[machine].wait()
            return "open"

        agent = rp.Agent(f"porter-{machine}", tools=[wait], model=ScriptedModel([call("wait"), "Done."]))
        await supervisor.spawn(agent, "Wait.")

    async def spawn(supervisor: rp.Supervisor, machine: str, run_id: str) -> None:
        agent = rp.Agent(machine, instructions=machine, model=FunctionModel(lambda _: f"Done by {machine}."))
        with contextlib.suppress(RunElsewhere):
            began[run_id] = machine, await supervisor.spawn(agent, "Work.", run_id=run_id, agent_ref=REF)

    async with rp.open_supervisor(uri, max_runs=1) as first, rp.open_supervisor(uri, max_runs=1) as second:
        machines = {"first": first, "second": second}
        for machine, supervisor in machines.items():
            await wait_at(supervisor, machine)
        async with anyio.create_task_group() as tasks:
            for run_id in names:
                for machine, supervisor in machines.items():
                    tasks.start_soon(spawn, supervisor, machine, run_id)
        for machine, supervisor in machines.items():
            gates[machine].set()
            last = rp.Agent("last", model=FunctionModel(lambda _: "Done."))
            await (await supervisor.spawn(last, "Follow.")).wait_result()
        assert {run_id: await run.wait_result() for run_id, (_, run) in began.items()} == {
            run_id: f"Done by {machine}." for run_id, (machine, _) in began.items()
        }
    assert sorted(began) == names
