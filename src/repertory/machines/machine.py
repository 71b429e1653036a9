"""This machine among those that share a journal: how it takes part, takes runs, and leaves."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

import anyio
import anyio.to_thread
import msgspec

from repertory._choices import check_number, show
from repertory._log import Log
from repertory._postgres_address import PostgresAddress
from repertory._version import __version__
from repertory.errors import ConfigurationError, JournalError
from repertory.machines import ownership
from repertory.machines.lease import Lease
from repertory.machines.listener import Listener
from repertory.machines.ownership import Bound, Candidate, Claim, Guard, Standing, WaitingRun, begin_guarded
from repertory.machines.takeover import KERNEL, take_over
from repertory.record.journal import Journal
from repertory.record.postgres_journal import PostgresJournal
from repertory.record.records import FINAL_STATES, RunState

if TYPE_CHECKING:
    from repertory.record.postgres_sql import Connection

T = TypeVar("T")
News: TypeAlias = Literal["queue", "command", "answer", "end"]
"""What is announced: that a run waits for a machine, that something is asked of one or answered, that a run which was
placed has ended."""

log = Log("repertory.machines")

LEASE: Final = 30.0
"""Seconds; longer than a pause of a healthy process, and what users wait for runs whose machine died."""
_SHORTEST: Final = 0.5  # seconds; a shorter lease runs out while a busy machine waits for its turn
_HELD: Final = 2 / 3  # of a lease, that a transaction may take


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A process with a supervisor on a shared journal.

    Attributes:
        machine_id: New at every start.
        name: For people; two may have the same.
        labels: What it offers to runs that ask for it.
        lease: Seconds for which it counts as alive after each renewal.
        started_at: Seconds since 1970, by the server's clock.
        left: Seconds until its lease runs out, by the server's clock; below 0 where it has.
        draining: Whether it lets its runs go and takes no more.
        lost_at: When another machine took over its runs; None where none did.
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


def _nothing() -> None:
    pass


def _no_bounds(_agent: str, _client: str) -> Sequence[Bound]:
    return ()


class Machines:
    """This machine, and what it knows of the others.

    Attributes:
        machine_id: New at every start.
        address: Of the server.
        channel: Where ``NOTIFY`` says that something has changed; a hint, the tables are what counts.
        lease: That of this machine.
        draining: Whether it takes no more runs.
    """

    def __init__(self, journal: PostgresJournal, lease: Lease, *, machine_id: str, name: str, channel: str) -> None:
        self._journal = journal
        self.lease = lease
        self.machine_id = machine_id
        self.name = name
        self.channel = channel
        self.draining = False
        self.on_queue: Callable[[], None] = _nothing
        self._news: dict[str, anyio.Event] = {}

    def hear(self, what: str) -> None:
        """Have those look at once who wait for news of one kind; or of any, where it is ""."""
        if what in ("queue", ""):
            self.on_queue()
        for each in [what] if what else [*self._news]:
            if each in self._news:
                self._news.pop(each).set()

    def news(self, what: News) -> anyio.Event:
        """What is set at the next news of a kind. Who waits for it looks again now and then: news may be lost."""
        return self._news.setdefault(what, anyio.Event())

    @property
    def address(self) -> PostgresAddress:
        """Where the journal is."""
        return self._journal.address

    async def use(self, doing: str, work: Callable[[Connection], T]) -> T:
        """Do something over a connection, in a thread; once more where the server went away meanwhile."""
        return await self._journal.use(doing, work)

    async def _rows(self, doing: str, statement: str, *values: object) -> list[Any]:
        """The rows that a statement gives."""
        return await self.use(doing, lambda connection: connection.execute(statement, values).fetchall())

    # --- who is there -------------------------------------------------------------------------------------

    async def known(self) -> list[Machine]:
        """All machines that take part, and those that were lost in the last day; the oldest first."""
        return await self.use("list the machines of", read_machines)

    async def is_asked_to_drain(self) -> bool:
        """Whether somebody else has asked this machine to take no more runs."""
        doing = "read how this machine stands in"
        return not self.draining and await self._rows(doing, ownership.IS_DRAINING, self.machine_id) == [(True,)]

    async def owned_elsewhere(self) -> dict[str, str]:
        """The trees of runs that other machines own, and the names of those; "" for those that wait for any machine."""
        return dict(await self._rows("read whose runs are in", ownership.ELSEWHERE, self.machine_id))

    async def owner_of(self, run_id: str) -> str | None:
        """The machine whose a run is, by the id of the run at the top of its tree.

        Returns:
            Its id; "" for a run that waits for any machine; None for one that has ended, or is not there.
        """
        rows = await self._rows("read whose run it is in", ownership.OWNER, run_id)
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
        """Runs that wait for any machine with some of these labels, those first that are to begin first.

        Those of sub-agents that were ``placed``, of these ``leads`` if given, or all others. What is left out
        ``without`` is named by the id of the run and the digest of its definition, with a space between.
        """
        values: list[object] = [list(labels), list(without), list(without_agents), list(without_clients)]
        values += [None if only is None else list(only), self.machine_id, str(placed)]
        values += [None if leads is None else list(leads)]
        return [Candidate(*row) for row in await self._rows("read the queue of", ownership.CANDIDATES, *values)]

    async def claim(
        self, run_ids: Sequence[str], bounds_of: Callable[[str, str], Sequence[Bound]] = _no_bounds
    ) -> Claim | Bound | None:
        """Take the first of these runs that nobody has taken.

        Args:
            run_ids: Which, in any order.
            bounds_of: Gives what bounds the runs of an agent and a client, by their names.

        Returns:
            The claim; None where others have taken all of them; or the bound that the first one would exceed. That is
            decided in the transaction of the claim, one after the other for each name.

        Raises:
            LeaseLost: Another machine has taken this one over.
        """

        def take(connection: Connection) -> Claim | Bound | None:
            row = connection.execute(ownership.FIRST, [list(run_ids)]).fetchone()
            if row is None:
                return None
            run_id, agent, client = row
            for bound in bounds_of(agent, client):
                connection.execute(ownership.COUNTING, [f"{bound.column} {bound.name}"])
                counts = connection.execute(ownership.UNDER_WAY).fetchall()  # by a snapshot that comes after the lock
                place = ("agent", "client").index(bound.column)
                if sum(row[2] for row in counts if row[place] == bound.name) >= bound.most:
                    return bound
            return Claim(*connection.execute(ownership.CLAIM, [self.machine_id, run_id]).fetchone())

        return await self.guarded("take a run in", take)

    async def claim_to_resume(self, run_id: str) -> Claim | None:
        """Take a run that waits, or has ended; None where another machine has it.

        Raises:
            LeaseLost: Another machine has taken this one over.
        """
        claim = await self.claim([run_id])
        if isinstance(claim, Claim):
            return claim

        def take(connection: Connection) -> Claim | None:
            row = connection.execute(ownership.CLAIM_ENDED, [self.machine_id, run_id]).fetchone()
            return None if row is None else Claim(*row)

        return await self.guarded("take a run in", take)

    async def redefine(self, run_id: str, agent_digest: str, labels: Sequence[str]) -> None:
        """Have a run that waits for any machine go on with another definition, where these labels are offered.

        Raises:
            LeaseLost: Another machine has taken this one over.
        """

        def write(connection: Connection) -> None:
            connection.execute(ownership.REDEFINE, [run_id, agent_digest, list(labels)])
            self.notify(connection, "queue")

        await self.guarded("queue a run in", write)

    async def under_way(self) -> dict[tuple[str, str], int]:
        """How many trees of runs all machines together have under way, by their agent and client."""
        rows = await self._rows("count the runs of", ownership.UNDER_WAY)
        return {(agent, client): count for agent, client, count in rows}

    async def waiting(self) -> dict[str, WaitingRun]:
        """The runs that wait for a machine, by id."""
        rows = await self._rows("read the queue of", ownership.WAITING)
        return {run_id: WaitingRun(run_id, tuple(labels), *fields) for run_id, labels, *fields in rows}

    async def keep_place(self, run_id: str, *, agent: str, client: str, most: int) -> int | None:
        """Keep a place in the queue for a run that is not on record yet; it becomes that of the run with its record.

        Args:
            run_id: Its id.
            agent: The agent's name.
            client: Whose runs are counted.
            most: How many of them may wait.

        Returns:
            None; or how many wait already, where those are as many as may. A cancelled call may have kept one.

        Raises:
            LeaseLost: Another machine has taken this one over.
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
        """The runs that this machine keeps places for."""
        return [run_id for (run_id,) in await self._rows("read the queue of", ownership.PLACES, self.machine_id)]

    async def mine(self) -> list[Claim]:
        """The runs of this machine."""
        return [Claim(*row) for row in await self._rows("read whose runs are in", ownership.MINE, self.machine_id)]

    async def claim_of(self, run_id: str) -> Claim | None:
        """How a run came to this machine; None where it is not here."""
        return next((claim for claim in await self.mine() if claim.run_id == run_id), None)

    async def standing(self, run_ids: Sequence[str]) -> dict[str, Standing]:
        """How some runs stand, by their ids."""
        rows = await self._rows("read how runs stand in", ownership.STANDING, list(run_ids))
        return {run_id: Standing(*fields) for run_id, *fields in rows}

    async def left_alone(self) -> list[tuple[str, bool, RunState]]:
        """The runs that were placed and whose lead has ended, if they are this machine's or wait for any.

        Returns:
            For each its id, whether it waits, and how its lead ended.
        """
        doing = "read whose lead has ended in"
        return await self._rows(doing, ownership.LEFT_ALONE, self.machine_id, sorted(FINAL_STATES))

    async def forget(self, run_id: str) -> None:
        """Note that a run of this machine has ended already."""
        await self.use(
            "note an end in", lambda connection: connection.execute(ownership.FORGET_RUN, [run_id, self.machine_id])
        )

    async def let_go(self, run_id: str, why: str) -> None:
        """Give up a run of which this machine writes nothing more; any other may take it."""

        def write(connection: Connection) -> None:
            connection.execute(ownership.LET_GO_RUN, [self.machine_id, run_id, why])
            self.notify(connection, "queue")

        await self.use("let go of a run in", write)

    async def guarded(self, doing: str, work: Callable[[Connection], T]) -> T:
        """Do something in a transaction that holds only as long as nobody has taken this machine over.

        Raises:
            LeaseLost: Another machine has.
        """
        self.lease.check()

        def write(connection: Connection) -> T:
            with connection.transaction():
                begin_guarded(connection, self.machine_id)
                return work(connection)

        return await self.use(doing, write)

    # --- the others ---------------------------------------------------------------------------------------

    async def take_over(self) -> list[str]:
        """Let the runs of machines that are dead wait for any machine; returns the ids of those machines.

        That is after their lease, or at once where their process was on this host and is gone.
        """

        def take(connection: Connection) -> list[str]:
            taken = take_over(connection, self.machine_id, is_steady=self.lease.is_steady)
            if taken:
                self.notify(connection, "queue")
            return taken

        return await self.use("take over a machine in", take)

    # --- leaving ------------------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Take no more runs from now on, and let everybody see that."""
        self.draining = True
        await self.use("drain", lambda connection: connection.execute(ownership.DRAIN, [self.machine_id]))

    async def leave(self) -> None:
        """Let go of all runs, of which nothing more is written, and end the lease."""
        self.draining = True

        def write(connection: Connection) -> None:
            with connection.transaction():
                connection.execute(ownership.LEFT_PLACES, [self.machine_id])
                connection.execute(ownership.LET_GO, [self.machine_id, "moved"])
                connection.execute(ownership.LEAVE, [self.machine_id])
                self.notify(connection, "queue")

        await self.use("leave", write)

    def notify(self, connection: Connection, what: News) -> None:
        """Announce on the channel that something is new, with the transaction that is under way."""
        connection.execute(ownership.NOTIFY, [self.channel, what])


def check_lease(lease: float) -> None:
    """Raise ``ConfigurationError`` for what no machine can keep."""
    check_number("lease", lease, int | float, least=0)
    if lease < _SHORTEST:
        raise ConfigurationError(f"lease must be at least {_SHORTEST:g} seconds, got {lease:g}")


def read_machines(connection: Connection) -> list[Machine]:
    """All machines that take part, and those that were lost in the last day; the oldest first."""
    rows = connection.execute(ownership.LIST).fetchall()
    return [msgspec.convert(dict(zip(Machine.__struct_fields__, row, strict=True)), Machine) for row in rows]


@asynccontextmanager
async def open_machines(
    journal: Journal, *, name: str | None, labels: Sequence[str], lease: float
) -> AsyncGenerator[Machines]:
    """Take part in a journal that others share, until the end of the block; what is here is let go of then.

    Args:
        journal: Nothing was written to it yet.
        name: For people; None for the host's name and the process id.
        labels: What it offers to runs that ask for it.
        lease: Seconds after which its runs may be taken over when it is not heard of.
    """
    if name is not None and not name.isprintable():
        raise ConfigurationError(f"name must be printable, got {show(name)}")
    check_lease(lease)
    assert isinstance(journal, PostgresJournal)
    writer = journal.postgres_writer
    name = name or f"{socket.gethostname()}:{os.getpid()}"
    own = [writer.id, name, list(labels), socket.gethostname(), os.getpid(), KERNEL, __version__, lease]
    sent = time.monotonic()

    def register(connection: Connection) -> str:
        connection.execute(ownership.FORGET)
        connection.execute(ownership.REGISTER, own)
        (schema,) = connection.execute("SELECT current_schema()").fetchone() or ("",)
        return f"repertory {schema}"[:63]

    channel = await journal.use("take part in", register)
    await anyio.to_thread.run_sync(writer.hold_at_most, _HELD * lease)
    kept = Lease(journal.address, writer.id, lease, sent)
    writer.guard = Guard(writer.id, channel)
    machines = Machines(journal, kept, machine_id=writer.id, name=name, channel=channel)
    listener = Listener(journal.address, channel, machines.hear)
    try:
        yield machines
    finally:
        with anyio.CancelScope(shield=True):
            listener.end()
            try:
                await journal.write(())
                await machines.leave()
            except JournalError as error:  # whoever writes has heard of it; the lease runs out
                log(logging.WARNING, "machine.not.left", machine=writer.id, exc_info=error)
            writer.guard = None
            await anyio.to_thread.run_sync(kept.close)
            await anyio.to_thread.run_sync(listener.join)
