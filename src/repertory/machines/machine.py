"""This machine among those that share a journal: how it joins, takes runs, and leaves."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

import anyio
import anyio.to_thread
import msgspec

from repertory._choices import check_number, show
from repertory._log import Log
from repertory._version import __version__
from repertory.errors import ConfigurationError, JournalClosed, JournalError, LeaseLost
from repertory.machines import ownership
from repertory.machines.lease import Lease
from repertory.machines.listener import Listener
from repertory.machines.ownership import Candidate, Claim, Guard, Standing, WaitingRun, begin_guarded
from repertory.machines.takeover import KERNEL, take_over
from repertory.record.journal import Journal
from repertory.record.postgres_journal import PostgresJournal
from repertory.record.reads import row_as
from repertory.record.records import FINAL_STATES, RunState

if TYPE_CHECKING:
    from repertory.record.postgres_sql import Connection

T = TypeVar("T")
News: TypeAlias = Literal["queue", "command", "answer", "end"]
"""The notifications: a run waits for a machine; a command was given or answered; a placed run has ended."""
Column: TypeAlias = Literal["agent", "client"]
"""Whose runs are counted against a bound."""

log = Log("repertory.machines")

LEASE: Final = 30.0
"""Seconds; longer than a pause of a healthy process, and how long runs of a dead machine have to wait."""
_SHORTEST: Final = 0.5  # seconds; a shorter lease runs out while a busy machine waits for its turn
_HELD: Final = 2 / 3  # share of a lease that a transaction may take


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A process with a supervisor on a shared journal.

    Attributes:
        machine_id: Its id, new at every start.
        name: Its name for people; two machines may have the same.
        labels: Labels that it offers to runs that ask for them.
        lease: Seconds for which it counts as alive after each renewal.
        started_at: Seconds since 1970, by the server's clock.
        left: Seconds until its lease expires, by the server's clock; below 0 if it has expired.
        draining: Whether it releases its runs and takes no more.
        lost_at: When another machine took over its runs; None if none did.
        runs: How many trees of runs it owns.
    """

    machine_id: str
    name: str
    labels: tuple[str, ...]
    host: str
    pid: int
    version: str
    lease: float
    started_at: float
    left: float
    draining: bool
    lost_at: float | None
    runs: int


class Machines:
    """This machine, and what it knows of the others.

    What is done in a ``guarded`` transaction raises ``LeaseLost`` if another machine has taken this one over, and
    ``JournalClosed`` once this one has left: claims, new definitions, places in the queue, and duties.

    Attributes:
        machine_id: Its id, new at every start.
        channel: The channel of notifications; these are hints, only the tables count.
        draining: Whether it takes no more runs.
    """

    def __init__(self, journal: PostgresJournal, lease: Lease, *, machine_id: str, name: str, channel: str) -> None:
        self._journal = journal
        self.address = journal.place
        self.lease = lease
        self.machine_id = machine_id
        self.name = name
        self.channel = channel
        self.draining = False
        self.on_queue: Callable[[], None] = lambda: None
        self._left = False
        self._news: dict[str, anyio.Event] = {}

    def hear(self, what: str) -> None:
        """Wake those who wait for news of one kind, or all if it is ""."""
        if what in ("queue", ""):
            self.on_queue()
        for each in [what] if what else [*self._news]:
            if each in self._news:
                self._news.pop(each).set()

    def news(self, what: News) -> anyio.Event:
        """The event that is set at the next news of a kind. News may be lost, so waiters also look now and then."""
        return self._news.setdefault(what, anyio.Event())

    async def use(self, doing: str, work: Callable[[Connection], T]) -> T:
        """Do something over a connection, in a thread; again if the server went away meanwhile, or broke it off."""
        return await self._journal.reader.use(doing, work)

    async def rows(self, doing: str, statement: str, *values: object) -> list[Any]:
        """The rows that a statement returns."""
        return await self.use(doing, lambda connection: connection.execute(statement, values).fetchall())

    # --- who is there -------------------------------------------------------------------------------------

    async def known(self) -> list[Machine]:
        """All machines that take part, and those that were lost within the last day; the oldest first."""
        return await self.use("list the machines of", read_machines)

    async def is_asked_to_drain(self) -> bool:
        """Whether this machine was asked from outside to take no more runs."""
        doing = "read how this machine stands in"
        return not self.draining and await self.rows(doing, ownership.IS_DRAINING, self.machine_id) == [(True,)]

    async def owned_elsewhere(self) -> dict[str, str]:
        """The trees of runs that other machines own, with the machines' names; "" for those that wait for a machine."""
        return dict(await self.rows("read whose runs are in", ownership.ELSEWHERE, self.machine_id))

    async def owner_of(self, run_id: str) -> str | None:
        """The machine that owns a run, by the id of the root of its tree.

        Returns:
            The machine's id; "" for a run that waits for a machine; None for one that has ended, does not exist, or
            waits to be resumed, as it is paused or no machine that is there could begin it.
        """
        rows = await self.rows("read whose run it is in", ownership.OWNER, run_id)
        return rows[0][0] or "" if rows else None

    # --- taking runs --------------------------------------------------------------------------------------

    async def candidates(
        self,
        labels: Sequence[str],
        *,
        only: Collection[str] | None = None,
        without: Collection[str] = (),
        without_agents: Collection[str] = (),
        without_clients: Collection[str] = (),
        placed: bool = False,
        leads: Collection[str] | None = None,
    ) -> list[Candidate]:
        """The runs that wait for any machine and ask for no other labels, in the order in which they should begin.

        With ``placed`` only placed runs of sub-agents, of these ``leads`` if given; otherwise all other runs. An item
        of ``without`` is the id of a run and the digest of its definition, with a space between.
        """
        values: list[object] = [list(labels), list(without), list(without_agents), list(without_clients)]
        values += [None if only is None else list(only), self.machine_id, str(placed)]
        values += [None if leads is None else list(leads)]
        return [Candidate(*row) for row in await self.rows("read the queue of", ownership.CANDIDATES, *values)]

    async def claim(
        self,
        run_ids: Sequence[str],
        bounds_of: Callable[[str, str], Mapping[Column, int]] = lambda _agent, _client: {},
    ) -> tuple[Claim | None, tuple[Column, str] | None]:
        """Take the first of these runs that no machine has taken.

        Args:
            run_ids: The runs, in any order.
            bounds_of: Returns how many runs of an agent, and of a client, may be under way on all machines together, by
                their names; only those that are bounded.

        Returns:
            The claim, None if others have taken all of them; and whose bound prevented it, as the first one would
            exceed it. Bounds are checked in the transaction of the claim, in turn for each name.
        """

        def take(connection: Connection) -> tuple[Claim | None, tuple[Column, str] | None]:
            row = connection.execute(ownership.FIRST, [list(run_ids)]).fetchone()
            if row is None:
                return None, None
            run_id, agent, client = row
            for column, most in bounds_of(agent, client).items():
                place, name = (0, agent) if column == "agent" else (1, client)
                connection.execute(ownership.COUNTING, [f"{column} {name}"])
                counts = connection.execute(ownership.UNDER_WAY).fetchall()  # its snapshot is taken after the lock
                if sum(row[2] for row in counts if row[place] == name) >= most:
                    return None, (column, name)
            return Claim(*connection.execute(ownership.CLAIM, [self.machine_id, run_id]).fetchone()), None

        return await self.guarded("take a run in", take)

    async def claim_to_resume(self, run_id: str) -> Claim | None:
        """Take a run that waits, or has ended; None if another machine has it."""
        claim, _ = await self.claim([run_id])
        if claim is not None:
            return claim

        def take(connection: Connection) -> Claim | None:
            row = connection.execute(ownership.CLAIM_ENDED, [self.machine_id, run_id]).fetchone()
            return None if row is None else Claim(*row)

        return await self.guarded("take a run in", take)

    async def redefine(self, run_id: str, agent_digest: str, labels: Sequence[str]) -> None:
        """Give a run that waits for any machine another definition of its agent, and these labels."""

        def write(connection: Connection) -> None:
            connection.execute(ownership.REDEFINE, [run_id, agent_digest, list(labels)])
            self.notify(connection, "queue")

        await self.guarded("queue a run in", write)

    async def under_way(self) -> dict[tuple[str, str], int]:
        """How many trees of runs are under way on all machines together, by agent and client."""
        rows = await self.rows("count the runs of", ownership.UNDER_WAY)
        return {(agent, client): count for agent, client, count in rows}

    async def waiting(self) -> dict[str, WaitingRun]:
        """The runs that wait for a machine, by id."""
        rows = await self.rows("read the queue of", ownership.WAITING)
        return {run_id: WaitingRun(run_id, tuple(labels), *fields) for run_id, labels, *fields in rows}

    async def keep_place(self, run_id: str, *, agent: str, client: str, most: int) -> int | None:
        """Reserve a place in the queue for a run that is not recorded yet; recording the run takes the place.

        Args:
            client: The client whose waiting runs are counted.
            most: How many of them may wait.

        Returns:
            None; or, if the queue is full, how many wait already. A cancelled call may have reserved a place.
        """

        def write(connection: Connection) -> int | None:
            connection.execute(ownership.COUNTING, [f"queued {client}"])
            (waiting,) = connection.execute(ownership.QUEUED, [client, run_id]).fetchone()
            if waiting >= most:
                return int(waiting)
            connection.execute(ownership.KEEP_PLACE, [run_id, self.machine_id, agent, client])
            return None

        return await self.guarded("queue a run in", write)

    async def give_place_back(self, run_id: str) -> None:
        """Undo ``keep_place`` for a run that was not recorded after all."""
        values = [run_id, self.machine_id]
        await self.use("queue a run in", lambda connection: connection.execute(ownership.GIVE_PLACE_BACK, values))

    async def places(self) -> list[str]:
        """The runs for which this machine has reserved places."""
        return [run_id for (run_id,) in await self.rows("read the queue of", ownership.PLACES, self.machine_id)]

    async def mine(self) -> list[Claim]:
        """The runs of this machine."""
        return [Claim(*row) for row in await self.rows("read whose runs are in", ownership.MINE, self.machine_id)]

    async def claim_of(self, run_id: str) -> Claim | None:
        """How a run came to this machine; None if it is not here."""
        return next((claim for claim in await self.mine() if claim.run_id == run_id), None)

    async def standing(self, run_ids: Sequence[str]) -> dict[str, Standing]:
        """The state of some runs, by their ids."""
        rows = await self.rows("read how runs stand in", ownership.STANDING, list(run_ids))
        return {run_id: Standing(*fields) for run_id, *fields in rows}

    async def left_alone(self) -> list[tuple[str, bool, RunState]]:
        """The placed runs whose lead has ended, if this machine owns them or they wait for any machine.

        Returns:
            For each run its id, whether it waits, and how its lead ended.
        """
        doing = "read whose lead has ended in"
        return await self.rows(doing, ownership.LEFT_ALONE, self.machine_id, sorted(FINAL_STATES))

    async def forget(self, run_id: str) -> None:
        """Note that a run of this machine has ended already."""
        await self.use(
            "note an end in", lambda connection: connection.execute(ownership.FORGET_RUN, [run_id, self.machine_id])
        )

    async def let_go(self, run_id: str, why: str) -> None:
        """Release a run for which this machine writes nothing more; any other may take it."""

        def write(connection: Connection) -> None:
            connection.execute(ownership.LET_GO_RUN, [self.machine_id, run_id, why])
            self.notify(connection, "queue")

        await self.use("let go of a run in", write)

    async def guarded(self, doing: str, work: Callable[[Connection], T]) -> T:
        """Do something in a transaction that commits only if no other machine has taken this one over."""
        self.lease.check()

        def write(connection: Connection) -> T:
            with connection.transaction():
                begin_guarded(connection, self.machine_id)
                return work(connection)

        try:
            return await self.use(doing, write)
        except LeaseLost as error:
            if self._left:
                raise JournalClosed(f"machine {self.name} has left {self.address}; nothing was written") from error
            raise

    # --- duties -------------------------------------------------------------------------------------------

    async def hold_duties(self, names: Collection[str]) -> frozenset[str]:
        """Hold those of some duties that no other machine holds, and give up all others; see ``Supervisor``.

        A duty passes to another machine only if its holder was lost, so that none of its writes are accepted any more,
        or has left, or has given the duty up. So only the holder does a duty, as long as it does it by writing to the
        journal. A draining machine holds none.
        """
        wanted, own = [] if self.draining else sorted(names), [self.machine_id]

        def take(connection: Connection) -> frozenset[str]:
            connection.execute(ownership.GIVE_UP_DUTIES, [*own, wanted])
            held = frozenset(name for (name,) in connection.execute(ownership.DUTIES, own))
            if held.issuperset(wanted) or connection.execute(ownership.ONE_TAKES_DUTIES).fetchone() != (True,):
                return held
            connection.execute(ownership.TAKE_DUTIES, [*own, wanted])
            return frozenset(name for (name,) in connection.execute(ownership.DUTIES, own))

        return await self.guarded("take over duties in", take)

    # --- the others ---------------------------------------------------------------------------------------

    async def take_over(self) -> list[str]:
        """Release the runs of dead machines, so that they wait for any machine; returns the ids of those machines.

        A machine is dead once its lease has expired, or at once if its process was on this host and is gone.
        """

        def take(connection: Connection) -> list[str]:
            taken = take_over(connection, self.machine_id, is_steady=self.lease.is_steady)
            if taken:
                self.notify(connection, "queue")
            return taken

        return await self.use("take over a machine in", take)

    # --- leaving ------------------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Take no more runs from now on, and record that."""
        self.draining = True
        await self.use("drain", lambda connection: connection.execute(ownership.DRAIN, [self.machine_id]))

    async def leave(self) -> None:
        """Release all runs, for which nothing more may be written, and end the lease."""
        self.draining = self._left = True

        def write(connection: Connection) -> None:
            with connection.transaction():
                connection.execute(ownership.LEFT_PLACES, [self.machine_id])
                connection.execute(ownership.LET_GO, [self.machine_id, "moved"])
                connection.execute(ownership.LEAVE, [self.machine_id])
                self.notify(connection, "queue")

        await self.use("leave", write)

    def notify(self, connection: Connection, what: News) -> None:
        """Send a notification on the channel, within the current transaction."""
        connection.execute(ownership.NOTIFY, [self.channel, what])


def check_lease(lease: float) -> None:
    """Raise ``ConfigurationError`` for a lease that no machine can keep."""
    check_number("lease", lease, int | float, least=0)
    if lease < _SHORTEST:
        raise ConfigurationError(f"lease must be at least {_SHORTEST:g} seconds, got {lease:g}")


def read_machines(connection: Connection) -> list[Machine]:
    """All machines that take part, and those that were lost within the last day; the oldest first."""
    return [row_as(Machine, row) for row in connection.execute(ownership.LIST)]


@asynccontextmanager
async def open_machines(
    journal: Journal, *, name: str | None, labels: Sequence[str], lease: float
) -> AsyncGenerator[Machines]:
    """Take part in a shared journal until the end of the block; then release all runs of this machine.

    Args:
        journal: A journal to which this process has written nothing yet.
        name: The machine's name for people; None for the host's name and the process id.
        labels: Labels that it offers to runs that ask for them.
        lease: Seconds without a renewal after which its runs may be taken over.
    """
    if name is not None and not name.isprintable():
        raise ConfigurationError(f"name must be printable, got {show(name)}")
    check_lease(lease)
    assert isinstance(journal, PostgresJournal)
    writer = journal.writer
    name = name or f"{socket.gethostname()}:{os.getpid()}"
    own = [writer.id, name, list(labels), socket.gethostname(), os.getpid(), KERNEL, __version__, lease]
    sent = time.monotonic()

    def register(connection: Connection) -> str:
        connection.execute(ownership.FORGET)
        connection.execute(ownership.REGISTER, own)
        # The database may hold other journals in other schemas, with names too long for that of a channel.
        (number,) = connection.execute("SELECT 'machines'::regclass::oid").fetchone()
        return f"repertory {number}"

    channel = await journal.reader.use("take part in", register)
    await anyio.to_thread.run_sync(writer.hold_at_most, _HELD * lease)
    kept = Lease(journal.place, writer.id, lease, sent, journal.reader.drop_idle)
    writer.guard = Guard(writer.id, channel)
    machines = Machines(journal, kept, machine_id=writer.id, name=name, channel=channel)
    listener = Listener(journal.place, channel, machines.hear)
    try:
        yield machines
    finally:
        with anyio.CancelScope(shield=True):
            listener.end()
            with anyio.move_on_after(lease) as leaving:  # after that, others take its runs anyway
                try:
                    await journal.write(())
                    await machines.leave()
                except JournalError as error:  # tasks that write get the error; the lease expires
                    log(logging.WARNING, "machine.not.left", machine=writer.id, exc_info=error)
                writer.guard = None
            if leaving.cancelled_caught:  # what is still queued stays guarded: its runs may be another's by then
                log(logging.WARNING, "machine.not.left", machine=writer.id, waited=lease)
            await anyio.to_thread.run_sync(kept.close)
            await anyio.to_thread.run_sync(listener.close)
