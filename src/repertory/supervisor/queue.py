"""The queue: which runs begin at once, which wait, and which is next when there is room.

Only roots wait. A sub-agent's run in the queue would wait for a place that its own lead occupies.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Final, Literal, TypeAlias

import anyio
import msgspec

from repertory._counting import counted
from repertory._repeated_event import RepeatedEvent
from repertory.errors import QueueFull
from repertory.llm.profiles import Amount
from repertory.record.journal import Journal
from repertory.record.records import RunStarted
from repertory.record.run_lists import QueuedRow
from repertory.runs.live import LiveRun
from repertory.supervisor.claims import Claims
from repertory.supervisor.quotas import Quota, Quotas, midnight

_RETRY_AFTER: Final = 10.0
"""Seconds after which a client that was refused may ask again: a run takes minutes, so there may be room by then."""
_REFRESH: Final = 60.0  # seconds; a run waiting for the next day begins at most a minute late, even if the clock is set


WaitsFor: TypeAlias = Literal["room", "quota", "turn", "machine", "resume"]
"""What a queued run waits for; see ``QueuedRun``."""


class QueuedRun(QueuedRow, frozen=True, kw_only=True):
    """A run that waits in the queue, and for what.

    Attributes:
        position: Its place in the queue, from 1.
        at: When it began to wait, in seconds since 1970.
        waits_for: ``room``, as ``max_runs`` are under way; ``quota``, as its agent or client has used up one; its
            ``turn``, as others are before it; a ``machine`` that may begin it, of those that share the journal; or
            ``resume``, as nobody will begin it otherwise.
        reason: The same for people, with the figures.
    """

    position: int
    waits_for: WaitsFor
    reason: str


class Queue:
    """The runs that are under way, and those that wait for their turn.

    The journal determines which runs wait and in what order; this process determines which of them it can begin, and
    whether there is room. A run begins in one step without an await, so the bounds are never exceeded. No run overtakes
    another that may begin: while any run waits, every new run waits too, if only for a moment.

    Args:
        clock: Returns seconds since 1970.
        begin: Starts a run that waited.
        is_here: Whether a run is under way in this process, waiting or not.

    Attributes:
        claims: For a shared journal, in which the database decides who takes which run, and counts them; otherwise
            None.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        clock: Callable[[], float],
        begin: Callable[[LiveRun], None],
        is_here: Callable[[str], bool],
    ) -> None:
        self.claims: Claims | None = None
        self._claiming = 0  # runs that are being claimed for this process
        self._journal = journal
        self._clock = clock
        self._begin = begin
        self._is_here = is_here
        self._max_runs: int | None = None
        self._quotas = Quotas()
        self._going: dict[str, LiveRun] = {}
        self._waiting: dict[str, LiveRun] = {}
        self._elsewhere: set[str] = set()  # on record as waiting, but not taken up in this process
        self._beginning: list[RunStarted] = []  # about to begin, and not under way yet
        self._queueing: list[RunStarted] = []  # about to wait
        self._used: dict[tuple[str, str], Amount] = {}
        self._under_way: Mapping[tuple[str, str], int] = {}  # in all processes that share the journal
        self._changed = RepeatedEvent()

    def bound(self, max_runs: int | None, quotas: Quotas) -> None:
        """Change how much may be under way. Runs already under way continue."""
        self._max_runs, self._quotas = max_runs, quotas
        self.wake()

    def wake(self) -> None:
        """Check again which runs may begin."""
        self._changed.set()

    # --- who enters and leaves ----------------------------------------------------------------------------

    @asynccontextmanager
    async def entering(self, started: RunStarted, *, why: str = "") -> AsyncGenerator[None]:
        """Reserve room in the queue for a new run while it is being made.

        Args:
            why: Why it cannot begin in this process; "" if nothing else prevents it.

        Raises:
            QueueFull: The run would have to wait, and its client has as many runs in the queue as it may.
        """
        client = started.client
        why = why or self.why_waits(started) or self._no_room(started.agent, client, beside=self._beginning)
        most = self._quotas.of_client(client).queued
        waiting = await self._keep_place(started, most) if why and most is not None else None
        if waiting is not None:
            name = f"client {client}" if client else "the queue"
            raise QueueFull(
                f"{name} has {counted(waiting, 'run')} waiting, as many as may (queued); try again later: {why}",
                retry_after=_RETRY_AFTER,
            )
        entering = self._queueing if why else self._beginning
        entering.append(started)
        try:
            yield
        except BaseException:
            if self.claims is not None and why:
                with anyio.CancelScope(shield=True):
                    await self.claims.give_place_back(started)
            raise
        finally:
            entering.remove(started)

    async def _keep_place(self, started: RunStarted, most: int) -> int | None:
        if self.claims is not None:
            return await self.claims.keep_place(started, most=most)
        there = (*self._queueing, *(live.started for live in self._waiting.values()))
        waiting = sum(each.client == started.client for each in there)
        return waiting if waiting >= most else None

    async def refresh(self) -> None:
        """Read from the record what was used today and what others have under way, if a quota bounds these."""
        if self._quotas.is_daily:
            self._used = await self._journal.read_used(midnight(self._clock()))
        if self.claims is not None and self._quotas.bounds_runs:
            self._under_way = await self.claims.machines.under_way()

    def why_waits(self, started: RunStarted) -> str:
        """Why a run cannot begin now; "" if it can."""
        if why := self._no_room(started.agent, started.client):
            return why
        if self.claims is not None and self._quotas.runs_of(started.agent, started.client):
            return "it begins once it is counted among those of all machines"
        return "others wait before it" if self._waiting else ""

    def mark_started(self, live: LiveRun) -> None:
        """Count a run that has begun."""
        self._waiting.pop(live.run_id, None)
        if live.started.placed is None:  # a placed run is not counted: its lead is, wherever that is
            self._going[live.run_id] = live

    def release(self, live: LiveRun) -> None:
        """Free the place of a run that has ended or is no longer run here."""
        if self._going.get(live.run_id) is live:
            del self._going[live.run_id]
        self.wake()

    def put(self, live: LiveRun) -> None:
        """Add a run that is on record as queued."""
        self._elsewhere.discard(live.run_id)
        self._waiting[live.run_id] = live
        self.wake()

    def remove(self, live: LiveRun) -> bool:
        """Remove a waiting run; returns whether it was waiting."""
        return self._waiting.pop(live.run_id, None) is not None

    # --- who is next --------------------------------------------------------------------------------------

    async def serve(self, scope: anyio.CancelScope) -> None:
        """Begin runs whose turn it is, until the scope is cancelled."""
        with scope:
            self._elsewhere = {row.run_id for row in await self._journal.read_queue()} - set(self._waiting)
            while True:
                seen = self._changed.count
                while await self._begin_next():
                    pass
                with anyio.move_on_after(_REFRESH if self._waiting and self._quotas.is_daily else None):
                    await self._changed.wait(seen)

    async def _begin_next(self) -> bool:
        """Claim the first run that may begin, and begin it; returns whether there was one.

        Only one process owns an SQLite file, so its memory decides which run begins. With several processes the
        database decides.
        """
        if self.claims is not None and await self.claims.take_placed():
            return True
        if self._is_full():
            return False
        if self.claims is not None:
            await self.refresh()
            agents = {name for name in self._quotas.agents if self._over_agent(name)}
            known = {client for _, client in (*self._under_way, *self._used)} | set(self._quotas.clients)
            clients = {name for name in known if self._over_client(name)}
            return await self.claims.take_next(agents, clients, self._quotas, self._keep_room)
        if not self._waiting:
            return False
        await self.refresh()
        waiting = self._waiting.values()
        agents = {live.started.agent for live in waiting if self._over_agent(live.started.agent)}
        clients = {live.started.client for live in waiting if self._over_client(live.started.client)}
        rows = await self._journal.read_queue(
            without_runs=self._elsewhere, without_agents=agents, without_clients=clients, limit=1
        )
        for row in rows:
            live = self._waiting.get(row.run_id)
            if live is None:  # queued by an earlier process, or it has just left the queue
                self._elsewhere.add(row.run_id)
            elif not self._no_room(row.agent, row.client):  # else another run began while the queue was read
                self._begin(live)
        return bool(rows)

    @contextmanager
    def _keep_room(self) -> Generator[bool]:
        """Reserve a place while a run is claimed; yields whether there is one."""
        has_room = not self._is_full()
        self._claiming += has_room
        try:
            yield has_room
        finally:
            self._claiming -= has_room

    async def list(self) -> list[QueuedRun]:
        """The waiting runs, in the order in which they will begin, each with the reason why it waits."""
        await self.refresh()
        rows = await self._journal.read_queue()
        reasons: Mapping[str, tuple[WaitsFor, str]] = {} if self.claims is None else await self.claims.reasons()
        if self.claims is None:  # some may have left the queue while it was read
            rows = [row for row in rows if row.run_id in self._waiting or not self._is_here(row.run_id)]
        return [self._queued(row, position, reasons.get(row.run_id)) for position, row in enumerate(rows, 1)]

    def _queued(self, row: QueuedRow, position: int, where: tuple[WaitsFor, str] | None) -> QueuedRun:
        waits_for: WaitsFor
        quota = self._over_agent(row.agent) or self._over_client(row.client)
        if self.claims is not None:
            waits_for, reason = where or ("turn", "it is about to begin")
            if quota:
                waits_for, reason = waits_for if waits_for == "resume" else "quota", f"{quota}; {reason}"
        elif row.run_id not in self._waiting:
            waits_for = "resume"
            reason = "nobody has taken it up since the process that queued it ended; resume it"
        elif full := self._is_full():
            waits_for, reason = "room", full
        else:
            waits_for, reason = ("quota", quota) if quota else ("turn", "others begin before it")
        return QueuedRun(**msgspec.structs.asdict(row), position=position, waits_for=waits_for, reason=reason)

    # --- what there is room for ---------------------------------------------------------------------------

    def _is_full(self, beside: Sequence[RunStarted] = ()) -> str:
        going = len(self._going) + len(beside)
        if self._max_runs is None or going + self._claiming < self._max_runs:
            return ""
        return f"{counted(going, 'run')} under way, and {self._max_runs} may be at once (max_runs)"

    def _counts(self, beside: Sequence[RunStarted]) -> Iterable[tuple[tuple[str, str], int]]:
        """How many runs are under way, by agent and client."""
        yield from (((each.agent, each.client), 1) for each in beside)
        if self.claims is not None:
            yield from self._under_way.items()
        else:
            yield from (((live.started.agent, live.started.client), 1) for live in self._going.values())

    def _over_agent(self, name: str, beside: Sequence[RunStarted] = ()) -> str:
        return self._over(self._quotas.of_agent(name), f"agent {name}", 0, name, beside)

    def _over_client(self, name: str, beside: Sequence[RunStarted] = ()) -> str:
        whose = f"client {name}" if name else "who asks without a name"
        return self._over(self._quotas.of_client(name), whose, 1, name, beside)

    def _over(self, quota: Quota, whose: str, place: int, name: str, beside: Sequence[RunStarted]) -> str:
        """Why a quota lets no further run begin; ``place`` is that of its names among those of agent and client."""
        counts = () if quota.runs is None else self._counts(beside)
        runs = sum(count for names, count in counts if names[place] == name)
        used = sum((amount for names, amount in self._used.items() if names[place] == name), start=Amount())
        return quota.reached(whose, runs=runs, used=used)

    def _no_room(self, agent: str, client: str, *, beside: Sequence[RunStarted] = ()) -> str:
        """Why no run of an agent and a client may begin ``beside`` others that are about to; "" if one may."""
        return self._is_full(beside) or self._over_agent(agent, beside) or self._over_client(client, beside)
