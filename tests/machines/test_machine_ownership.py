"""Whose a run is: by its records, by claims and by take-overs, and that a machine that was lost writes nothing."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

import repertory as rp
from backends import RunAsync
from patience import PATIENCE
from postgres_server import PostgresServer
from repertory.errors import ConfigurationError, JournalClosed, JournalWriteFailed, LeaseLost
from repertory.machines import Machines, open_machines
from repertory.record import Journal, open_journal
from repertory.record.postgres_journal import PostgresJournal, PostgresReader
from repertory.record.postgres_writer import application_name
from repertory.record.records import RunStarted, RunState, RunStateChanged

LONG = 30.0


@asynccontextmanager
async def machine(
    uri: str, *, labels: tuple[str, ...] = (), lease: float = LONG, name: str | None = None
) -> AsyncGenerator[tuple[Journal, Machines]]:
    """A machine with a journal of its own."""
    async with open_journal(uri) as journal:
        assert isinstance(journal, PostgresJournal)
        async with open_machines(journal, name=name, labels=labels, lease=lease) as machines:
            yield journal, machines


def started(run_id: str, *, priority: int = 0, labels: tuple[str, ...] = (), at: float = 0.0) -> RunStarted:
    """A run of an agent that can be found."""
    return RunStarted(
        run_id=run_id, agent="a", task="t", at=at, agent_ref="m:a", priority=priority, labels=labels, client="c"
    )


def state(run_id: str, state: RunState) -> RunStateChanged:
    """A run is in another state."""
    return RunStateChanged(run_id=run_id, state=state, at=0.0)


def expire(server: PostgresServer, uri: str, machine_id: str) -> None:
    """Let the lease of a machine run out, as if it had stood still."""
    with server.connect(uri) as connection:
        connection.execute(
            "UPDATE machines SET until = clock_timestamp() - interval '1 hour' WHERE machine_id = %s", (machine_id,)
        )


def settle(machines: Machines) -> None:
    """Have a machine that has just begun count as one that was there for a while."""
    machines.lease.steady_since -= LONG


def test_machines_may_share_a_journal_in_a_schema_of_any_name(postgres: PostgresServer, run_async: RunAsync) -> None:
    """One that must be quoted, and is as long as a name may be; a machine hands its runs over there, too."""
    uri, schema = postgres.new_database(), "Über uns " + "ü" * 26
    with postgres.connect(uri) as connection:
        connection.execute(f'CREATE SCHEMA "{schema}"')
        connection.execute(f'ALTER DATABASE "{connection.info.dbname}" SET search_path = "{schema}"')

    async def main() -> None:
        async with machine(uri) as (journal, _):
            await journal.write([started("run-1")])
        async with machine(uri) as (_, machines):
            assert [each.machine_id for each in await machines.known()] == [machines.machine_id]
            assert await machines.owner_of("run-1") == ""

    run_async(main)


def test_a_run_belongs_to_the_machine_that_starts_it_until_it_ends(
    postgres: PostgresServer, run_async: RunAsync
) -> None:
    """Ownership is changed in the transaction of the records that it follows from."""

    async def main() -> None:
        async with machine(postgres.emptied_journal()) as (journal, machines):
            await journal.write([started("run-1"), started("run-2"), state("run-2", "queued")])
            assert await machines.owner_of("run-1") == machines.machine_id
            assert await machines.owner_of("run-2") == ""
            await journal.write([state("run-1", "paused"), state("run-1.1", "done")])
            assert await machines.owner_of("run-1") == machines.machine_id
            await journal.write([state("run-1", "done")])
            assert await machines.owner_of("run-1") is None
            assert await machines.owner_of("run-3") is None

    run_async(main)


def test_machines_claim_each_run_once(postgres: PostgresServer, run_async: RunAsync) -> None:
    """However many take at once from one queue, in the order of priority and age."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        taken: dict[str, list[str]] = {}
        async with machine(uri) as (journal, one), machine(uri) as (_, two), machine(uri) as (_, three):
            for number in range(60):
                run_id = f"run-{number}"
                await journal.write([started(run_id, at=float(number)), state(run_id, "queued")])

            async def work(machines: Machines) -> None:
                own = taken.setdefault(machines.machine_id, [])
                while found := await machines.candidates(()):
                    claim, _ = await machines.claim([each.run_id for each in found])
                    if claim is not None:
                        assert (claim.fence, claim.why) == (2, "queued")
                        own.append(claim.run_id)

            async with anyio.create_task_group() as tasks:
                for machines in (one, two, three):
                    tasks.start_soon(work, machines)
            assert sorted(run_id for own in taken.values() for run_id in own) == sorted(
                f"run-{number}" for number in range(60)
            )
            for own in taken.values():
                assert own == sorted(own, key=lambda run_id: int(run_id[4:]))

    run_async(main)


def test_labels_priority_and_what_is_left_out_decide_who_takes_what(
    postgres: PostgresServer, run_async: RunAsync
) -> None:
    """A run goes to a machine that has all of its labels."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        async with machine(uri) as (journal, machines):
            await journal.write([started("run-old"), state("run-old", "queued")])
            await journal.write([started("run-gpu", labels=("gpu",)), state("run-gpu", "queued")])
            await journal.write([started("run-urgent", priority=5), state("run-urgent", "queued")])
            await journal.write([started("run-held"), state("run-held", "queued")])
            await journal.write([state("run-held", "paused")])

            async def names(*labels: str, **without: list[str]) -> list[str]:
                return [each.run_id for each in await machines.candidates(labels, **without)]  # type: ignore[arg-type]

            assert await names() == ["run-urgent", "run-old"]
            assert await names("gpu", "big") == ["run-urgent", "run-gpu", "run-old"]
            assert await names(without=["run-old "]) == ["run-urgent"]
            assert await names(without_agents=["a"]) == await names(without_clients=["c"]) == []

    run_async(main)


def test_a_machine_that_was_lost_writes_nothing_and_its_runs_wait_for_others(
    postgres: PostgresServer, run_async: RunAsync
) -> None:
    """Neither a record nor a claim; everything that was acknowledged before stands."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        async with machine(uri) as (journal, taker):
            with pytest.raises(LeaseLost):
                async with machine(uri) as (lost_journal, lost):
                    await lost_journal.write([started("run-1")])
                    expire(postgres, uri, lost.machine_id)
                    assert await taker.take_over() == []  # it has just begun: others may be waking up
                    settle(taker)
                    assert await taker.take_over() == [lost.machine_id]
                    assert await taker.take_over() == []
                    assert await taker.owner_of("run-1") == ""
                    with pytest.raises(JournalWriteFailed, match="taken over"):
                        await lost.claim(["run-1"])
                    claim, _ = await taker.claim(["run-1"])
                    assert claim is not None
                    assert (claim.fence, claim.why) == (2, "taken over")
                    await lost_journal.write([state("run-1", "failed")])
            assert (await journal.read_run("run-1")).state == "running"
            assert [each.lost_at is None for each in await taker.known()] == [True, False]

    run_async(main)


def test_a_take_over_waits_for_no_machine_that_stands_still_in_a_transaction(
    postgres: PostgresServer, run_async: RunAsync
) -> None:
    """While it holds its row nobody takes it over; so the server ends its transaction, and then somebody does."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        async with machine(uri) as (_, taker), machine(uri) as (lost_journal, lost):
            settle(taker)
            await lost_journal.write([started("run-1")])
            assert isinstance(lost_journal, PostgresJournal)
            connection = lost_journal.writer._connection  # pyright: ignore[reportPrivateUsage]
            connection.execute("BEGIN")
            connection.execute("SELECT guard_machine($1, ARRAY[]::text[])", [lost.machine_id])
            expire(postgres, uri, lost.machine_id)
            with anyio.fail_after(PATIENCE):
                while await taker.take_over() != [lost.machine_id]:
                    await anyio.sleep(0.01)
            assert await taker.owner_of("run-1") == ""

    run_async(main)


def test_a_renewal_waits_for_no_transaction(postgres: PostgresServer, run_async: RunAsync) -> None:
    """A batch that takes long does not cost the lease: the guard's lock and a renewal go together."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        async with machine(uri, lease=3.0) as (_, machines):
            with postgres.connect(uri) as connection, connection.transaction():
                connection.execute("SELECT guard_machine(%s, ARRAY[]::text[])", (machines.machine_id,))
                renewed = machines.lease.renewed
                with anyio.fail_after(PATIENCE):
                    while machines.lease.renewed == renewed:
                        await anyio.sleep(0.01)

    run_async(main)


def test_renewals_that_fail_are_in_the_log(
    postgres: PostgresServer, run_async: RunAsync, caplog: pytest.LogCaptureFixture
) -> None:
    """Each outage once, at its beginning and at its end, with the machine."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        async with machine(uri, lease=3.0) as (_, machines):
            with anyio.fail_after(PATIENCE), postgres.connect(uri) as connection:
                ended = False
                while not ended:  # its connection is there from the first renewal on
                    await anyio.sleep(0.01)
                    ended = bool(
                        connection.execute(
                            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                            " WHERE datname = current_database() AND query LIKE 'UPDATE machines SET until%'"
                        ).fetchall()
                    )
                    connection.commit()
                for event in ("lease.not.renewed", "lease.renewed"):
                    while f"{event} machine={machines.machine_id}" not in caplog.text:
                        await anyio.sleep(0.01)

    with caplog.at_level("INFO", "repertory"):
        run_async(main)
    assert caplog.text.count("lease.not.renewed") == caplog.text.count("lease.renewed") == 1


def test_nobody_is_taken_over_as_the_clock_of_the_server_jumps(postgres: PostgresServer, run_async: RunAsync) -> None:
    """All leases have expired then, also that of the machine that looks; the others renew theirs as it does."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        async with machine(uri, lease=3.0) as (_, taker), machine(uri) as (_, other):
            settle(taker)
            with anyio.fail_after(PATIENCE):
                while not taker.lease.is_steady:
                    await anyio.sleep(0.01)
            since = taker.lease.steady_since
            for each in (taker, other):
                expire(postgres, uri, each.machine_id)
            assert await taker.take_over() == []
            with anyio.fail_after(PATIENCE):
                while taker.lease.steady_since == since:
                    await anyio.sleep(0.01)
            assert await taker.take_over() == []

    run_async(main)


def test_a_lease_is_renewed_though_the_server_has_too_few_connections(
    postgres: PostgresServer, run_async: RunAsync
) -> None:
    """The readers of its own process would keep all of them, and no effect may begin while the lease is overdue."""
    uri = postgres.new_journal()
    with postgres.connect(uri) as connection:
        connection.execute("DROP ROLE IF EXISTS crowded")
        connection.execute("CREATE ROLE crowded LOGIN IN ROLE pg_write_all_data, pg_read_all_data CONNECTION LIMIT 4")

    async def main() -> None:
        async with machine(uri.replace("postgres@", "crowded@"), lease=3.0) as (journal, machines):
            assert isinstance(journal, PostgresJournal)
            with anyio.fail_after(PATIENCE):
                with postgres.connect(uri) as connection:
                    connection.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'crowded'"
                    )
                together = threading.Barrier(4, timeout=PATIENCE)
                async with anyio.create_task_group() as group:
                    for _ in range(4):
                        group.start_soon(journal.reader.use, "read", lambda _: together.wait())
                lost = time.monotonic()
                while machines.lease.renewed < lost:
                    await anyio.sleep(0.01)

    run_async(main)


def test_a_connection_that_is_lost_while_a_machine_begins_is_opened_again(
    postgres: PostgresServer, run_async: RunAsync
) -> None:
    """It takes part all the same, and what it writes is guarded."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        async with open_journal(uri) as journal:
            assert isinstance(journal, PostgresJournal)
            with postgres.connect(uri) as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s",
                    (application_name(journal.writer.id),),
                )
            async with open_machines(journal, name=None, labels=(), lease=LONG) as machines:
                await journal.write([started("run-1")])
                assert await machines.owner_of("run-1") == machines.machine_id

    run_async(main)


def test_a_machine_whose_joining_was_done_but_not_answered_joins(
    postgres: PostgresServer, run_async: RunAsync, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection was lost in between, and what was sent is sent again."""
    uri, use = postgres.emptied_journal(), PostgresReader._use

    def use_twice(self: PostgresReader, doing: str, work: Callable[[Any], Any]) -> Any:
        if doing == "take part in":
            use(self, doing, work)
        return use(self, doing, work)

    monkeypatch.setattr(PostgresReader, "_use", use_twice)

    async def main() -> None:
        async with machine(uri, name="one") as (_, machines):
            assert [each.name for each in await machines.known()] == ["one"]

    run_async(main)


def test_a_machine_leaves_though_the_server_says_nothing(
    postgres: PostgresServer, run_async: RunAsync, caplog: pytest.LogCaptureFixture
) -> None:
    """Its connections are there, but nobody answers, as behind a proxy: its runs are free once the lease is over."""
    if not postgres.ours:
        pytest.skip("the server is not ours to stop")
    uri = postgres.emptied_journal()
    postmaster = int((postgres.folder / "data" / "postmaster.pid").read_text().split()[0])
    stopped = [postmaster]

    async def main() -> None:
        async with (
            open_journal(uri, close_timeout=0.5) as journal,
            open_machines(journal, name=None, labels=(), lease=1.0),
        ):
            with postgres.connect(uri) as connection:
                own = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> %s"
                stopped.extend(pid for (pid,) in connection.execute(own, [connection.info.backend_pid]))
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)

    try:
        run_async(main)
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    assert "machine.not.left" in caplog.text


def test_a_run_that_has_ended_is_taken_by_one_that_resumes_it(postgres: PostgresServer, run_async: RunAsync) -> None:
    """With a number above those of all its owners."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        async with machine(uri) as (journal, one), machine(uri) as (_, two):
            await journal.write([started("run-1", labels=("gpu",))])
            assert await two.claim_to_resume("run-1") is None  # it is under way
            await journal.write([state("run-1", "failed")])
            claim = await two.claim_to_resume("run-1")
            assert claim is not None
            assert await two.mine() == [claim]
            assert await one.claim_to_resume("run-1") is None
            assert await one.claim_to_resume("run-2") is None
            await two.let_go("run-1", "moved")
            assert [each.why for each in await one.candidates(("gpu",))] == ["moved"]

    run_async(main)


def test_who_leaves_lets_its_runs_go(postgres: PostgresServer, run_async: RunAsync) -> None:
    """At once, so that nobody waits for the end of a lease."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        async with machine(uri, name="other") as (_, other):
            async with machine(uri, name="leaving", labels=("gpu",)) as (journal, leaving):
                await journal.write([started("run-1")])
                await leaving.drain()
                shown = {each.name: each for each in await other.known()}
                assert (shown["leaving"].draining, shown["leaving"].runs) == (True, 1)
                assert shown["leaving"].labels == ("gpu",)
                assert 0 < shown["leaving"].left <= LONG
            assert [each.name for each in await other.known()] == ["other"]
            assert await other.owner_of("run-1") == ""
            async with open_journal(uri) as journal:
                async with open_machines(journal, name="leaving", labels=(), lease=LONG) as leaving:
                    pass
                with pytest.raises(JournalClosed, match="machine leaving has left"):  # nobody has taken it over
                    await leaving.claim(["run-1"])

    run_async(main)


@pytest.mark.parametrize("lease", [0.1, 0, -1.0, float("inf"), "30"])
def test_a_lease_that_makes_no_sense_is_refused(postgres: PostgresServer, run_async: RunAsync, lease: Any) -> None:
    """Before anything is written; 0 is no way to say the default."""

    async def main() -> None:
        with pytest.raises(ConfigurationError, match="lease must be"):
            async with rp.open_supervisor(postgres.emptied_journal(), lease=lease):
                raise AssertionError

    run_async(main)
