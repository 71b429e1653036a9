"""What bounds the runs of all machines together: quotas, and the queue; and what begins at one machine alone."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest
from test_machine_ownership import machine

import repertory as rp
from backends import RunAsync
from patience import PATIENCE
from postgres_server import PostgresServer
from repertory.errors import PayloadInvalid, QueueFull
from repertory.llm.messages import text_of
from repertory.llm.model import ModelRequest
from repertory.machines.machine import Machines
from repertory.machines.ownership import Claim
from repertory.record.records import RunStarted, RunStateChanged
from repertory.supervisor import Quota, Quotas, Supervisor
from repertory.testing import FunctionModel

CLERK = "test_fleet_bounds:make_clerk"


def make_clerk() -> rp.Agent:
    """An agent that every machine finds."""
    return rp.Agent("clerk", context=None)


class Office:
    """The model of all machines: counts how many runs are at work at once, and lets them go on when it is open."""

    def __init__(self) -> None:
        self.at_work: list[str] = []
        self.most = 0
        self.opened = anyio.Event()

    async def answer(self, request: ModelRequest) -> str:
        """One answer."""
        task = text_of(request.messages[0].content[0])
        self.at_work.append(task)
        self.most = max(self.most, len(self.at_work))
        await self.opened.wait()
        await anyio.sleep(0.01)
        self.at_work.remove(task)
        return "Done."


async def machines_at(stack: AsyncExitStack, uri: str, office: Office, count: int, **options: Any) -> list[Supervisor]:
    """Supervisors on one journal, with the same quotas."""
    options = {"labels": (), "model": FunctionModel(office.answer), **options}
    numbered: list[dict[str, Any]] = [{**options, "name": f"m{number}"} for number in range(count)]
    return [await stack.enter_async_context(rp.open_supervisor(uri, **each)) for each in numbered]


@pytest.mark.parametrize("whose", ["agents", "clients"])
def test_a_quota_bounds_the_runs_of_all_machines_together(
    postgres: PostgresServer, run_async: RunAsync, whose: str
) -> None:
    """However many machines start and take runs at once, there are never more under way than it allows."""
    uri = postgres.emptied_journal()
    quotas = Quotas(**{whose: {"clerk" if whose == "agents" else "*": Quota(runs=2)}})

    async def main() -> None:
        office = Office()
        async with AsyncExitStack() as stack:
            fleet = await machines_at(stack, uri, office, 3, quotas=quotas)
            runs: list[rp.Run[Any]] = []

            async def start(supervisor: Supervisor, number: int) -> None:
                runs.append(await supervisor.spawn(make_clerk(), f"{number}", agent_ref=CLERK, client="ann"))

            async with anyio.create_task_group() as tasks:
                for number in range(6):
                    tasks.start_soon(start, fleet[number % 3], number)
            with anyio.fail_after(PATIENCE):
                while len(office.at_work) < 2:
                    await anyio.sleep(0.01)
                for supervisor in fleet:
                    reasons = {(each.waits_for, each.reason.partition(";")[0]) for each in await supervisor.queue()}
                    name = "agent clerk" if whose == "agents" else "client ann"
                    assert reasons == {("quota", f"{name} has 2 runs under way, as many as its quota allows (runs)")}
                office.opened.set()
                for run in runs:
                    assert await run.wait_result() == "Done."
        assert office.most == 2

    run_async(main)


def test_max_runs_bounds_each_machine_by_itself(postgres: PostgresServer, run_async: RunAsync) -> None:
    """It says what one machine has room for."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        office = Office()
        async with AsyncExitStack() as stack:
            fleet = await machines_at(stack, uri, office, 2, max_runs=2)
            runs = [await fleet[0].spawn(make_clerk(), f"{number}", agent_ref=CLERK) for number in range(5)]
            with anyio.fail_after(PATIENCE):
                while len(office.at_work) < 4:
                    await anyio.sleep(0.01)
                office.opened.set()
                for run in runs:
                    assert await run.wait_result() == "Done."
        assert office.most == 4

    run_async(main)


def test_a_rewind_of_a_run_that_waits_takes_its_place(postgres: PostgresServer, run_async: RunAsync) -> None:
    """Also in a queue that is full: that of all machines, in which it waits for any of them."""
    uri = postgres.emptied_journal()
    quotas = Quotas(clients={"ann": Quota(runs=1, queued=1)})

    async def main() -> None:
        office = Office()
        async with AsyncExitStack() as stack:
            (machine,) = await machines_at(stack, uri, office, 1, quotas=quotas)
            first = await machine.spawn(make_clerk(), "first", agent_ref=CLERK, client="ann")
            with anyio.fail_after(PATIENCE):
                while not office.at_work:
                    await anyio.sleep(0.01)
            second = await machine.spawn(make_clerk(), "second", agent_ref=CLERK, client="ann")
            assert second.state == "queued"
            instead = await machine.rewind(second.id, 0)
            assert instead.state == "queued"
            with pytest.raises(QueueFull):
                await machine.fork(first.id, iteration=0)
            office.opened.set()
            assert await instead.wait_result() == "Done."

    run_async(main)


def test_the_queue_of_a_client_is_bounded_over_all_machines(postgres: PostgresServer, run_async: RunAsync) -> None:
    """Also for runs that several machines queue at once; a place that was kept in vain is free again."""
    uri = postgres.emptied_journal()
    quotas = Quotas(clients={"ann": Quota(runs=1, queued=3)})

    async def main() -> None:
        office = Office()
        async with AsyncExitStack() as stack:
            fleet = await machines_at(stack, uri, office, 2, quotas=quotas)
            first = await fleet[0].spawn(make_clerk(), "first", agent_ref=CLERK, client="ann")
            with anyio.fail_after(PATIENCE):
                while not office.at_work:
                    await anyio.sleep(0.01)
            with pytest.raises(PayloadInvalid):
                await fleet[1].spawn(make_clerk(), "wrong", agent_ref=CLERK, client="ann", payload={"a": 1})
            runs: list[rp.Run[Any]] = [first]
            refused: list[QueueFull] = []

            async def start(supervisor: Supervisor, number: int) -> None:
                try:
                    runs.append(await supervisor.spawn(make_clerk(), f"{number}", agent_ref=CLERK, client="ann"))
                except QueueFull as error:
                    refused.append(error)

            async with anyio.create_task_group() as tasks:
                for number in range(8):
                    tasks.start_soon(start, fleet[number % 2], number)
            assert (len(runs), len(refused)) == (4, 5)
            assert "client ann has 3 runs waiting" in str(refused[0])
            office.opened.set()
            with anyio.fail_after(PATIENCE):
                for run in runs:
                    assert await run.wait_result() == "Done."

    run_async(main)


def started(run_id: str, *, context: bool = False, ref: str = "m:a") -> list[Any]:
    """A run that waits."""
    run = RunStarted(run_id=run_id, agent="a", task="t", at=0.0, agent_ref=ref, client="c", has_context=context)
    return [run, RunStateChanged(run_id=run_id, state="queued", at=0.0)]


def test_a_place_in_the_queue_is_kept_until_it_is_given_back_or_its_machine_goes(
    postgres: PostgresServer, run_async: RunAsync
) -> None:
    """It is no run yet, belongs to nobody, and becomes that of the run with its record."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        async with machine(uri) as (journal, one):

            async def keep(machines: Machines, run_id: str) -> int | None:
                return await machines.keep_place(run_id, agent="a", client="c", most=2)

            async with machine(uri) as (_, two):
                assert await keep(two, "run-1") is None
                assert await keep(two, "run-1") is None  # the same again
                assert await keep(one, "run-2") is None
                assert await keep(one, "run-3") == 2
                await one.give_place_back("run-1")  # not its own
                assert await keep(one, "run-3") == 2
                assert await two.mine() == []
                assert [each.runs for each in await one.known()] == [0, 0]
            assert await keep(one, "run-3") is None
            assert await one.owner_of("run-3") is None
            await journal.write(started("run-3"))
            assert [each.run_id for each in await one.candidates(())] == ["run-3"]
            assert await keep(one, "run-4") == 2
            assert (await one.claim(["run-3"]))[0] is not None
            assert await keep(one, "run-4") is None
            await one.give_place_back("run-4")
            await one.give_place_back("run-3")  # it is a run now
            assert [each.run_id for each in await one.mine()] == ["run-3"]

    run_async(main)


def test_a_bound_is_counted_in_the_transaction_of_the_claim(postgres: PostgresServer, run_async: RunAsync) -> None:
    """Runs of a machine that died count until they were taken over; the claim says which bound is reached."""
    uri = postgres.emptied_journal()
    runs = ["run-0", "run-1", "run-2"]

    async def main() -> None:
        async with machine(uri) as (journal, one), machine(uri) as (_, two):
            for number in range(3):
                await journal.write(started(f"run-{number}"))
            claims: list[tuple[Claim | None, tuple[str, str] | None]] = []

            async def claim(machines: Machines) -> None:
                claims.append(await machines.claim(runs, lambda _agent, _client: {"agent": 1}))

            async with anyio.create_task_group() as tasks:
                for machines in (one, two) * 3:
                    tasks.start_soon(claim, machines)
            assert sum(each is not None for each, _ in claims) == 1
            assert {reached for each, reached in claims if each is None} <= {("agent", "a"), None}
            assert await one.claim(runs, lambda _agent, _client: {"agent": 1}) == (None, ("agent", "a"))
            assert await one.under_way() == {("a", "c"): 1}

    run_async(main)


def test_what_only_one_process_can_begin_says_so(postgres: PostgresServer, run_async: RunAsync) -> None:
    """No other machine looks at it; once that process has ended, the queue says that it must be resumed."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        async with machine(uri, name="home") as (journal, home):
            await journal.write(started("run-context", context=True))
            await journal.write(started("run-unnamed", ref=""))
            await journal.write(started("run-any"))
            async with machine(uri) as (_, other):
                assert {each.run_id for each in await home.candidates(())} == {"run-context", "run-unnamed", "run-any"}
                assert [each.run_id for each in await other.candidates(())] == ["run-any"]
                waiting = await other.waiting()
                assert {run_id: each.portable for run_id, each in waiting.items()} == {
                    "run-context": False,
                    "run-unnamed": False,
                    "run-any": True,
                }
                assert {(each.home, each.home_there) for each in waiting.values()} == {("home", True)}
        model = FunctionModel(lambda _: "Done.")
        async with rp.open_supervisor(uri, labels=None, model=model) as supervisor:
            reasons = {each.run_id: (each.waits_for, each.reason) for each in await supervisor.queue()}
            assert reasons["run-any"] == ("machine", "it waits for a machine that has room and knows its agent")
            assert reasons["run-context"][0] == "resume"
            assert "resume it" in reasons["run-context"][1]
            assert reasons["run-context"] == reasons["run-unnamed"]

    run_async(main)


def test_the_queue_names_the_machine_that_alone_can_begin_a_run(postgres: PostgresServer, run_async: RunAsync) -> None:
    """Wherever it is asked."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        office = Office()
        async with AsyncExitStack() as stack:
            one, two = await machines_at(stack, uri, office, 2, max_runs=1)
            runs = [await one.spawn(make_clerk(), "first")]
            with anyio.fail_after(PATIENCE):
                while not office.at_work:
                    await anyio.sleep(0.01)
                runs.append(await one.spawn(make_clerk(), "second", agent_ref=CLERK, context={"a": 1}))
                (waiting,) = await two.queue()
                assert waiting.run_id == runs[1].id
                assert waiting.reason.startswith("it waits for machine m0 alone")
                office.opened.set()
                for run in runs:
                    assert await run.wait_result() == "Done."

    run_async(main)


def test_a_run_that_is_resumed_while_the_queue_claims_it_is_run_by_one_machine(
    postgres: PostgresServer, run_async: RunAsync
) -> None:
    """The resumed run found no room, as that was kept for the claim, and waited again; then the claim began it too."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        office = Office()
        async with AsyncExitStack() as stack:
            (first,) = await machines_at(stack, uri, office, 1, max_runs=1)
            await first.spawn(make_clerk(), "before", agent_ref=CLERK)
            run = await first.spawn(make_clerk(), "it", agent_ref=CLERK, run_id="it")
            runtime = first._runtime
            assert runtime.claims is not None
            machines = runtime.claims.machines
            async with anyio.create_task_group() as tasks, runtime.runs.lock("it"):
                tasks.start_soon(first.resume, "it")
                await anyio.wait_all_tasks_blocked()
                office.opened.set()
                office.opened = anyio.Event()
                with anyio.fail_after(PATIENCE):
                    while await machines.claim_of("it") is None:
                        await anyio.sleep(0.01)
            with anyio.fail_after(PATIENCE):
                while "it" not in office.at_work:
                    await anyio.sleep(0.01)
                assert await machines.claim_of("it") is not None  # otherwise another machine could begin it as well
                office.opened.set()
                assert await run.wait_result() == "Done."

    run_async(main)
