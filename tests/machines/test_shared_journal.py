"""Several supervisors on one journal: who takes which run, hands it over, and ends when it was taken over."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from shared_team import FIRED, LEDGER, STEPS, TEAM, make_team

import repertory as rp
from backends import RunAsync
from patience import PATIENCE
from postgres_server import PostgresServer
from repertory._postgres_address import PostgresAddress
from repertory.errors import ConfigurationError, LeaseLost, RecordRefused, RunElsewhere, RunError, RunNotFound
from repertory.llm.model import ModelRequest
from repertory.machines import Machines
from repertory.machines.ownership import CLAIM_ENDED
from repertory.record.postgres_search import PostgresTables
from repertory.record.postgres_sql import connect
from repertory.record.records import EventLogged, ScheduleSettled, WebhookTried
from repertory.record.removal import remove_slice
from repertory.supervisor import Supervisor
from repertory.supervisor.claims import LEFT
from repertory.testing import FunctionModel, call
from repertory.tools import tool
from repertory.torture.team import expected_answer

DONE = expected_answer(STEPS)


@pytest.fixture(autouse=True)
def effects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the team writes down what it did."""
    path = tmp_path / "effects"
    path.touch()
    monkeypatch.setenv(LEDGER, str(path))
    return path


@asynccontextmanager
async def supervisor_at(uri: str, **options: Any) -> AsyncGenerator[Supervisor]:
    """A supervisor that takes runs from the queue."""
    options = {"labels": (), "model": FunctionModel(lambda _: "Done."), **options}
    async with rp.open_supervisor(uri, **options) as supervisor:
        yield supervisor


def machines_of(supervisor: Supervisor) -> Machines:
    """The machine of a supervisor."""
    claims = supervisor._runtime.claims  # pyright: ignore[reportPrivateUsage]
    assert claims is not None
    return claims.machines


async def owners_of(supervisor: Supervisor, run_id: str) -> list[tuple[str, int, str]]:
    """The machines that owned a run, by name, with their numbers and why it came there."""
    records = [record.body for _, record in await supervisor.journal.read_events(run_id, types=["RunClaimed"])]
    return [(body["name"], body["fence"], body["why"]) for body in records]


class Gate:
    """A model that answers once it is let to."""

    def __init__(self) -> None:
        self.asked = anyio.Event()
        self.open = anyio.Event()

    async def answer(self, _request: ModelRequest) -> str:
        """One answer."""
        self.asked.set()
        await self.open.wait()
        return "Done."


def test_a_run_for_which_there_is_no_room_begins_at_another_machine(
    postgres: PostgresServer, run_async: RunAsync
) -> None:
    """Whoever has started it sees its end all the same, and the record says who owned it."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        gate = Gate()
        async with supervisor_at(uri, max_runs=1, name="full", model=FunctionModel(gate.answer)) as full:
            busy = await full.spawn(rp.Agent("busy", context=None), "Wait.")
            await gate.asked.wait()
            run = await full.spawn(make_team(), "Work.", agent_ref=TEAM)
            assert run.state == "queued"
            assert [each.run_id for each in await full.queue()] == [run.id]
            async with supervisor_at(uri, name="free") as free:
                with anyio.fail_after(PATIENCE):
                    assert await run.wait_result() == DONE
                assert await owners_of(free, run.id) == [("free", 2, "queued")]
                assert await full.queue() == []
            gate.open.set()
            assert await busy.wait_result() == "Done."
            assert await owners_of(full, busy.id) == [("full", 1, "started")]

    run_async(main)


def test_runs_that_wait_begin_here_when_there_is_room_again(postgres: PostgresServer, run_async: RunAsync) -> None:
    """Also those that only this process can run, and where it takes nothing from others."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        async with supervisor_at(uri, max_runs=2, labels=None) as supervisor:
            runs = [await supervisor.spawn(rp.Agent("a", context=None), f"task {number}") for number in range(6)]
            with anyio.fail_after(PATIENCE):
                assert [await run.wait_result() for run in runs] == ["Done."] * 6

    run_async(main)


def test_a_machine_leaves_what_it_cannot_run(postgres: PostgresServer, run_async: RunAsync) -> None:
    """An agent that it does not find, or in another version, or labels that it has not; others take them."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        gate = Gate()
        async with supervisor_at(uri, max_runs=1, labels=None, model=FunctionModel(gate.answer)) as first:
            await first.spawn(rp.Agent("busy", context=None), "Wait.")
            await gate.asked.wait()
            unknown = await first.spawn(make_team(), "Work.", agent_ref="nowhere:team", priority=2)
            changed = await first.spawn(rp.Agent("lead", context=None), "Work.", agent_ref=TEAM, priority=2)
            labelled = await first.spawn(make_team(), "Work.", agent_ref=TEAM, labels=["gpu"], priority=1)
            plain = await first.spawn(make_team(), "Work.", agent_ref=TEAM)
            async with supervisor_at(uri) as second:
                with anyio.fail_after(PATIENCE):
                    assert await plain.wait_result() == DONE
                waiting = {each.run_id for each in await second.queue()}
                assert waiting == {unknown.id, changed.id, labelled.id}
                async with supervisor_at(uri, labels=("gpu", "big")):
                    with anyio.fail_after(PATIENCE):
                        assert await labelled.wait_result() == DONE
            gate.open.set()
            with anyio.fail_after(PATIENCE):
                assert await unknown.wait_result() == DONE  # where it was begun its agent is known

    run_async(main)


async def test_what_is_left_to_others_is_forgotten_once_they_have_it(postgres: PostgresServer) -> None:
    """Else a machine would name every run that it ever left, each time it looks who waits."""
    uri = postgres.emptied_journal()
    gate, agent = Gate(), rp.Agent("other", context=None)
    async with supervisor_at(uri, max_runs=1, labels=None, model=FunctionModel(gate.answer)) as first:
        await first.spawn(rp.Agent("busy", context=None), "Wait.")
        async with supervisor_at(uri) as second:
            claims = second._runtime.claims  # pyright: ignore[reportPrivateUsage]
            assert claims is not None
            left = claims._left  # pyright: ignore[reportPrivateUsage]
            runs = [await first.spawn(agent, "Work.", agent_ref="nowhere:agent") for _ in range(LEFT + 1)]
            with anyio.fail_after(PATIENCE):
                while len(left) <= LEFT:
                    await anyio.sleep(0.02)
                first.change_bounds(max_runs=None, quotas=None)
                gate.open.set()
                for run in runs:
                    await run.wait_result()
                while len(left) > LEFT:
                    await anyio.sleep(0.02)


def test_who_drains_hands_its_runs_over(postgres: PostgresServer, run_async: RunAsync, effects: Path) -> None:
    """At their next boundary; nothing that they did is done twice, and what is started later waits for others."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        async with supervisor_at(uri, name="old") as old:
            runs = [await old.spawn(make_team(), "Work.", agent_ref=TEAM) for _ in range(3)]
            await old.drain()
            later = await old.spawn(make_team(), "Work.", agent_ref=TEAM)
            assert later.state == "queued"
            assert [each.draining for each in await old.machines()] == [True]
            async with supervisor_at(uri, name="new") as new:
                with anyio.fail_after(PATIENCE):
                    assert [await run.wait_result() for run in (*runs, later)] == [DONE] * 4
                for run in runs:
                    names = [name for name, _, _ in await owners_of(new, run.id)]
                    assert names in (["old", "new"], ["old"])
                assert await owners_of(new, later.id) == [("new", 2, "queued")]

    run_async(main)
    fired = [line for line in effects.read_text().splitlines() if line.startswith("unsafe")]
    assert len(fired) == len(set(fired)) == 4 * FIRED


def test_a_run_is_resumed_as_soon_as_the_process_that_had_it_is_dead(
    postgres: PostgresServer, run_async: RunAsync
) -> None:
    """However lately this machine has looked who is there; it does not say that another machine has the run."""
    uri = postgres.emptied_journal()
    agent = rp.Agent("a", context=None)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()

    async def main() -> None:
        async with supervisor_at(uri, name="first") as first:
            await first.drain()
            runs = [await first.spawn(agent, "Work.") for _ in range(3)]
        async with supervisor_at(uri, name="next") as supervisor:
            for run_id in [run.id for run in runs]:
                leave_to_the_dead(run_id)
                run = await supervisor.resume(run_id, agent=agent)
                with anyio.fail_after(PATIENCE):
                    assert await run.wait_result() == "Done."

    def leave_to_the_dead(run_id: str) -> None:
        dead = uuid.uuid4()
        with postgres.connect(uri) as connection, connection.transaction():
            connection.execute(
                """INSERT INTO machines (machine_id, name, labels, host, pid, kernel, version, lease, started_at, until)
                   SELECT %s, 'dead', labels, host, %s, kernel, version, lease, started_at, until FROM machines
                   WHERE name = 'next'""",
                (dead, gone.pid),
            )
            connection.execute(
                "UPDATE ownership SET machine_id = %s, fence = fence + 1 WHERE run_id = %s", (dead, run_id)
            )

    run_async(main)


def test_who_leaves_hands_its_runs_over(postgres: PostgresServer, run_async: RunAsync) -> None:
    """They go on with the next machine that comes, as if it had been there."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        gate = Gate()
        async with supervisor_at(uri, model=FunctionModel(gate.answer), drain_timeout=0) as first:
            run = await first.spawn(make_team(), "Work.", agent_ref=TEAM)
            run_id = run.id
        async with supervisor_at(uri, name="next") as second:
            with anyio.fail_after(PATIENCE):
                while (row := await second.journal.read_run(run_id)).state != "done":
                    await anyio.sleep(0.01)
            assert row.result == DONE

    run_async(main)


def test_a_run_is_resumed_at_one_machine_alone(postgres: PostgresServer, run_async: RunAsync) -> None:
    """While one owns it no other takes it up; where it has ended, it goes on where it is asked to."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        gate = Gate()
        agent = rp.Agent("a", context=None)
        model = FunctionModel(gate.answer)
        async with supervisor_at(uri, model=model) as one, supervisor_at(uri, model=model) as two:
            run = await one.spawn(agent, "Wait.", run_id="one")
            await gate.asked.wait()
            with pytest.raises(RunElsewhere, match=r"supervisor\.remote"):
                await two.resume(run.id, agent=agent)
            with pytest.raises(RunElsewhere, match=r"supervisor\.remote"):
                await two.spawn(agent, "Wait.", run_id="one")
            run.kill()
            await run.wait_ended()
            again = await two.resume(run.id, agent=agent)
            gate.open.set()
            assert await again.wait_result() == "Done."
            assert [(fence, why) for _, fence, why in await owners_of(two, run.id)] == [(1, "started"), (2, "resumed")]

    run_async(main)


def test_a_run_that_no_machine_can_continue_is_removed(postgres: PostgresServer, run_async: RunAsync) -> None:
    """Its agent is gone, so it could neither go on nor be stopped. One that a machine has is not removed."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        held = anyio.Event()

        async def hold(_: ModelRequest) -> str:
            held.set()
            await anyio.sleep_forever()
            raise AssertionError

        async with rp.open_supervisor(uri, model=FunctionModel(hold)) as owner, supervisor_at(uri) as other:
            await owner.spawn(rp.Agent("a"), "x", run_id="one", agent_ref="no_such_module:a")
            await held.wait()
            for supervisor in (owner, other):
                with pytest.raises(RunError, match="stop it before"):
                    await supervisor.remove("one")
        async with supervisor_at(uri) as supervisor:
            await supervisor.remove("one")
            assert await supervisor.runs() == []

    run_async(main)


def test_a_run_is_not_removed_while_another_machine_goes_on_with_it(
    postgres: PostgresServer, run_async: RunAsync
) -> None:
    """Whether the claim comes first or the removal: one is refused, and a run that is gone has no owner."""
    uri, agent = postgres.emptied_journal(), rp.Agent("a", context=None)
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"

    async def main() -> None:
        async with supervisor_at(uri) as one, supervisor_at(uri) as two:
            runs = [await one.spawn(agent, "x") for _ in range(4)]
            for run in runs:
                await run.wait_result()
            claimed, removed, *both = [run.id for run in runs]
            address = PostgresAddress(uri)
            with connect(address) as connection:  # nothing of the claim is on the run's record yet
                connection.execute(CLAIM_ENDED, [str(uuid.uuid4()), claimed])
            with pytest.raises(RunError, match="goes on, or waits for a machine"):
                await one.remove(claimed)
            assert (await one.journal.read_run(claimed)).state == "done"
            with connect(address) as connection, connect(address) as watcher:
                async with anyio.create_task_group() as tasks:
                    with connection.transaction():
                        remove_slice(PostgresTables(connection), removed, 0.0)
                        tasks.start_soon(machines_of(two).claim_to_resume, removed)
                        while watcher.execute(waiting).fetchone() == (0,):
                            await anyio.sleep(0.01)
                assert await machines_of(two).owner_of(removed) is None

                async def remove(supervisor: Supervisor, run_id: str) -> None:
                    with contextlib.suppress(RunNotFound):
                        await supervisor.remove(run_id)

                async with anyio.create_task_group() as tasks:
                    for supervisor in (one, two):
                        for run_id in both:
                            tasks.start_soon(remove, supervisor, run_id)
                assert {row.started.run_id for row in await one.journal.read_runs()} == {claimed}

    run_async(main)


def test_only_what_is_a_runs_own_record_needs_its_owner(postgres: PostgresServer, run_async: RunAsync) -> None:
    """Nothing more of a run that another machine has removed; but what a schedule or a webhook did is always kept."""
    uri, agent, gate = postgres.emptied_journal(), rp.Agent("a", context=None), Gate()

    async def main() -> None:
        async with supervisor_at(uri) as one, supervisor_at(uri) as two:
            gone = await one.spawn(agent, "x")
            await gone.wait_result()
            await two.remove(gone.id)
            going = await two.spawn(rp.Agent("b", context=None, model=FunctionModel(gate.answer)), "x")
            await gate.asked.wait()
            for run_id, fact in ((gone.id, "was removed"), (going.id, "other machines own")):
                written = EventLogged(run_id=run_id, type="t", body={}, at=1.0)
                with pytest.raises(RecordRefused, match=fact):
                    await one.journal.write([written])
                settled = ScheduleSettled(schedule="s", due=1.0, outcome="skipped", at=1.0, run_id=run_id)
                tried = WebhookTried(url="u", run_id=run_id, change=1, outcome="failed", at=1.0)
                await one.journal.write([settled, tried])
            assert await one.journal.read_events(gone.id) == []
            gate.open.set()
            assert await going.wait_result() == "Done."

    run_async(main)


def test_a_supervisor_that_was_taken_over_ends(postgres: PostgresServer, run_async: RunAsync) -> None:
    """Also one that writes nothing at that time; its run goes on elsewhere."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        async with supervisor_at(uri) as taker:
            with pytest.raises(LeaseLost):
                async with supervisor_at(uri, lease=1.0) as lost:
                    with postgres.connect(uri) as connection:
                        connection.execute(
                            "UPDATE machines SET lost_at = clock_timestamp() WHERE machine_id = %s",
                            (machines_of(lost).machine_id,),
                        )
                    await anyio.sleep(PATIENCE)
            assert [each.lost_at is None for each in await taker.machines()] == [True, False]

    run_async(main)


def test_no_effect_begins_while_the_lease_may_have_run_out(postgres: PostgresServer, run_async: RunAsync) -> None:
    """A call that cannot be taken back waits for a renewal, before it is written that it will be made."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        fired = anyio.Event()

        @tool(effect="unsafe")
        async def fire() -> str:
            """Fire."""
            fired.set()
            return "fired"

        def play(request: ModelRequest) -> Any:
            return call("fire") if len(request.messages) == 1 else "Done."

        async with supervisor_at(uri, model=FunctionModel(play), lease=300.0) as supervisor:
            lease = machines_of(supervisor).lease
            lease.renewed -= 250.0  # as if the server had been away
            run = await supervisor.spawn(rp.Agent("a", tools=[fire], context=None), "Fire.")
            with anyio.move_on_after(0.5):
                await fired.wait()
            assert not fired.is_set()
            assert await supervisor.journal.read_intents(run.id, iteration=1) == []
            lease.renewed += 250.0
            with anyio.fail_after(PATIENCE):
                assert await run.wait_result() == "Done."

    run_async(main)


def test_memory_is_kept_in_order_over_machines(postgres: PostgresServer, run_async: RunAsync) -> None:
    """Each gives out positions of its own, and goes on above those of a run that it takes up."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        agent = rp.Agent("a", context=None)
        async with supervisor_at(uri) as one, supervisor_at(uri) as two:
            run = await two.spawn(agent, "x")
            await run.wait_result()
            await run.memory.store("first", item_id="i")
            again = await one.resume(run.id, agent=agent)  # it is done: nothing is claimed
            run = await one.spawn(agent, "y")
            await run.memory.store("second", item_id="i")
            item = await run.memory.retrieve("i")
            assert item.content == "second"
            assert again.state == "done"

    run_async(main)


def test_a_file_has_no_machines(run_async: RunAsync) -> None:
    """There is nobody to share it with, and nothing of this runs."""

    async def main() -> None:
        for options in ({"labels": ("gpu",)}, {"lease": 3.0}, {"name": "x"}):
            with pytest.raises(ConfigurationError, match="PostgreSQL"):
                async with rp.open_supervisor(**options):  # type: ignore[arg-type]
                    raise AssertionError
        async with rp.open_supervisor(model=FunctionModel(lambda _: "Done.")) as supervisor:
            assert await supervisor.machines() == []
            with pytest.raises(ConfigurationError, match="PostgreSQL"):
                await supervisor.drain()

    run_async(main)


def test_runs_are_forked_and_rewound_where_they_are(postgres: PostgresServer, run_async: RunAsync) -> None:
    """Ended or under way; at another machine it is refused and changes nothing."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        gate, agent = Gate(), rp.Agent("clerk")
        async with rp.open_supervisor(uri, name="owner", model=FunctionModel(gate.answer)) as owner:
            run = await owner.spawn(agent, "Go.", run_id="one")
            async with rp.open_supervisor(uri, model=FunctionModel(lambda _: "Done.")) as other:
                for begin in (other.fork("one", iteration=0, agent=agent), other.rewind("one", 0, agent=agent)):
                    with pytest.raises(RunError, match="another machine"):
                        await begin
            forked = await owner.fork("one", iteration=0, agent=agent)
            rewound = await owner.rewind("one", 0, agent=agent)
            with anyio.fail_after(PATIENCE):
                assert await run.wait_ended() == "stopped"
                gate.open.set()
                again = await owner.fork(forked.id, text="And then?", agent=agent)
                for each in (forked, rewound, again):
                    assert await each.wait_result() == "Done."
                    assert await owners_of(owner, each.id) == [("owner", 1, "started")]
            assert len(await owner.runs()) == 4

    run_async(main)


def test_names_and_labels_that_cannot_be_shown_are_refused(postgres: PostgresServer, run_async: RunAsync) -> None:
    """What would steer a terminal, what no text column holds, and a label that no machine can have."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        for options in (
            {"name": "a\0"},
            {"name": "\x1b[31m"},
            {"name": "\ud800"},
            {"labels": ("\0",)},
            {"labels": ("",)},
            {"labels": "gpu"},
        ):
            with pytest.raises(ConfigurationError, match="printable"):
                async with supervisor_at(uri, **options):
                    pass
        async with supervisor_at(uri) as supervisor:
            for labels in ("gpu", ("",), ("\ud800",), (1,), {"gpu"}):
                with pytest.raises(ConfigurationError, match="printable"):
                    await supervisor.spawn(rp.Agent("clerk"), "Go.", labels=labels)  # type: ignore[arg-type]
            assert await supervisor.runs() == []

    run_async(main)


def test_a_paused_run_that_is_asked_for_again_waits_in_no_queue(postgres: PostgresServer, run_async: RunAsync) -> None:
    """Any machine would take it from there, and make it go on. Where there is no room to hold it, that is said."""

    async def main() -> None:
        uri, gate = postgres.new_journal(), Gate()
        clerk = rp.Agent("clerk", model=FunctionModel(gate.answer))
        async with supervisor_at(uri, drain_timeout=0) as supervisor:
            run = await supervisor.spawn(clerk, "Work.", run_id="work")
            await gate.asked.wait()
            run.pause()
        gate = Gate()
        clerk = rp.Agent("clerk", model=FunctionModel(gate.answer))
        async with supervisor_at(uri, max_runs=1) as supervisor:
            other = await supervisor.spawn(clerk, "Wait.")
            with pytest.raises(RunError, match=r"work is paused, and cannot be held here now: .*max_runs"):
                await supervisor.spawn(clerk, "Work.", run_id="work")
            gate.open.set()
            await other.wait_result()
            run = await supervisor.spawn(clerk, "Work.", run_id="work")
            assert (await supervisor.journal.read_run("work")).state == "paused"
            run.resume()
            assert await run.wait_result() == "Done."

    run_async(main)
