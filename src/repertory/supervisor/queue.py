"""The queue: which runs begin at once, which wait, and who is next when there is room.

Only runs at the top of a tree wait. One below another would wait for a place that its own lead holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Final, TypeAlias

import anyio
import msgspec

from repertory._choices import check_number
from repertory.errors import QueueFull
from repertory.llm.profiles import Amount
from repertory.record.journal import Journal
from repertory.record.records import QueuedRow, RunStarted
from repertory.runs.live import LiveRun
from repertory.supervisor.quotas import Quotas, midnight

_AGAIN: Final = 10.0
"""Seconds after which a client that was refused may ask again: a run takes minutes, so there may be room by then."""
_LOOK: Final = 60.0  # seconds; whoever waits for the next day begins at most a minute late, also if the clock is set


class QueuedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that waits in the queue.

    Attributes:
        position: Its place, from 1.
        at: Since when it waits, in seconds since 1970.
        reason: What it waits for.
    """

    run_id: str
    agent: str
    client: str
    priority: int
    at: float
    position: int
    reason: str


KeepRoom: TypeAlias = Callable[[], AbstractContextManager[bool]]
ClaimNext: TypeAlias = Callable[[Collection[str], Collection[str], KeepRoom], Awaitable[bool]]


class Queue:
    """Runs that are under way, and those that wait for their turn.

    The journal says who waits, and in what order; this process says which of them it can begin, and whether there is
    room. A run begins in one step, in which nothing is awaited, so there are never more under way than may be. Nobody
    overtakes anybody who may begin: while somebody waits, every new run waits too, be it for a moment.

    Args:
        journal: Where the queue is read.
        clock: Gives seconds since 1970.
        begin: Starts a run that waited.

    Attributes:
        claim_next: Where several processes share the journal: claims the first run that may begin, leaving out those of
            some agents and clients, and begins it here if it can keep room for it; whether to look again. None where
            one process has it alone.
    """

    def __init__(self, journal: Journal, *, clock: Callable[[], float], begin: Callable[[LiveRun], None]) -> None:
        self.claim_next: ClaimNext | None = None
        self._claiming = 0  # runs that are on their way here
        self._journal = journal
        self._clock = clock
        self._begin = begin
        self._max_runs: int | None = None
        self._quotas = Quotas()
        self._going: dict[str, LiveRun] = {}
        self._waiting: dict[str, LiveRun] = {}
        self._elsewhere: set[str] = set()  # on record as waiting, but nobody has taken them up in this process
        self._entering: Counter[str] = Counter()
        self._used: dict[tuple[str, str], Amount] = {}
        self._changed = anyio.Event()

    def bound(self, max_runs: int | None, quotas: Quotas) -> None:
        """Change how much may be under way. What is under way already goes on.

        Raises:
            ConfigurationError: ``max_runs`` is no whole number above 0.
        """
        check_number("max_runs", max_runs, int, least=1, none=True)
        self._max_runs, self._quotas = max_runs, quotas
        self.wake()

    def wake(self) -> None:
        """Look again who may begin."""
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    # --- who enters and leaves ----------------------------------------------------------------------------

    @contextmanager
    def entering(self, started: RunStarted) -> Generator[None]:
        """Keep room in the queue for a new run while it is being made.

        Raises:
            QueueFull: It would have to wait, and its client has as many in the queue as it may.
        """
        client = started.client
        most = self._quotas.of_client(client).queued
        waiting = self._entering[client] + sum(live.started.client == client for live in self._waiting.values())
        if most is not None and waiting >= most and (why := self.why_waits(started)):
            name = f"client {client}" if client else "the queue"
            raise QueueFull(
                f"{name} has {waiting} runs waiting, as many as may (queued); try again later: {why}",
                retry_after=_AGAIN,
            )
        self._entering[client] += 1
        try:
            yield
        finally:
            self._entering[client] -= 1

    async def look(self) -> None:
        """Read from the record what was used today, where a quota bounds that."""
        if self._quotas.is_daily:
            self._used = await self._journal.read_used(midnight(self._clock()))

    def why_waits(self, started: RunStarted) -> str:
        """Why a run cannot begin now; "" where it can."""
        return self._no_room(started.agent, started.client) or ("others wait before it" if self._waiting else "")

    def went(self, live: LiveRun) -> None:
        """Count a run that is under way now."""
        self._waiting.pop(live.run_id, None)
        self._going[live.run_id] = live

    def left(self, live: LiveRun) -> None:
        """Make room: a run has ended, or nobody runs it any more."""
        if self._going.get(live.run_id) is live:
            del self._going[live.run_id]
        self.wake()

    def put(self, live: LiveRun) -> None:
        """Let a run wait that is on record as queued."""
        self._elsewhere.discard(live.run_id)
        self._waiting[live.run_id] = live
        self.wake()

    def remove(self, live: LiveRun) -> bool:
        """Take a run out that waits; whether it did."""
        return self._waiting.pop(live.run_id, None) is not None

    # --- who is next --------------------------------------------------------------------------------------

    async def serve(self, scope: anyio.CancelScope) -> None:
        """Begin those whose turn it is, until the scope is cancelled."""
        with scope:
            self._elsewhere = {row.run_id for row in await self._journal.read_queue()} - set(self._waiting)
            while True:
                changed = self._changed
                while await self._begin_next():
                    pass
                with anyio.move_on_after(_LOOK if self._waiting and self._quotas.is_daily else None):
                    await changed.wait()

    async def _begin_next(self) -> bool:
        """Claim the first that may begin, and begin it; whether there was one.

        One process owns an SQLite file, so what it holds in memory settles who takes what. Of several processes the
        database says so.
        """
        if self._is_full():
            return False
        if self.claim_next is not None:
            await self.look()
            agents = {name for name in self._quotas.agents if self._over_agent(name)}
            known = {live.started.client for live in self._going.values()} | set(self._quotas.clients)
            clients = {name for name in known if self._over_client(name)}
            return await self.claim_next(agents, clients, self._keep_room)
        if not self._waiting:
            return False
        await self.look()
        waiting = self._waiting.values()
        agents = {live.started.agent for live in waiting if self._over_agent(live.started.agent)}
        clients = {live.started.client for live in waiting if self._over_client(live.started.client)}
        rows = await self._journal.read_queue(
            without_runs=self._elsewhere, without_agents=agents, without_clients=clients, limit=1
        )
        for row in rows:
            live = self._waiting.get(row.run_id)
            if live is None:  # of an earlier process, or it has just left
                self._elsewhere.add(row.run_id)
            elif not self._no_room(row.agent, row.client):  # else somebody began while the queue was read
                self._begin(live)
        return bool(rows)

    @contextmanager
    def _keep_room(self) -> Generator[bool]:
        """Keep a place free while a run is claimed; whether there is one."""
        has_room = not self._is_full()
        self._claiming += has_room
        try:
            yield has_room
        finally:
            self._claiming -= has_room

    async def list(self) -> list[QueuedRun]:
        """Who waits, in the order in which they begin, and what for."""
        await self.look()
        rows = await self._journal.read_queue()
        return [
            QueuedRun(**msgspec.structs.asdict(row), position=position, reason=self._reason(row))
            for position, row in enumerate(rows, 1)
        ]

    def _reason(self, row: QueuedRow) -> str:
        if self.claim_next is not None:
            return self._no_room(row.agent, row.client) or "it waits for a machine that can run it"
        if row.run_id not in self._waiting:
            return "nobody has taken it up since the process that queued it ended; resume it"
        return self._no_room(row.agent, row.client) or "others begin before it"

    # --- what there is room for ---------------------------------------------------------------------------

    def _is_full(self) -> str:
        if self._max_runs is None or len(self._going) + self._claiming < self._max_runs:
            return ""
        return f"{len(self._going)} runs are under way, and {self._max_runs} may be at once (max_runs)"

    def _over_agent(self, name: str) -> str:
        quota = self._quotas.of_agent(name)
        runs = 0 if quota.runs is None else sum(live.started.agent == name for live in self._going.values())
        used = sum((amount for (agent, _), amount in self._used.items() if agent == name), start=Amount())
        return quota.reached(f"agent {name}", runs=runs, used=used)

    def _over_client(self, name: str) -> str:
        quota = self._quotas.of_client(name)
        runs = 0 if quota.runs is None else sum(live.started.client == name for live in self._going.values())
        used = sum((amount for (_, client), amount in self._used.items() if client == name), start=Amount())
        return quota.reached(f"client {name}" if name else "who asks without a name", runs=runs, used=used)

    def _no_room(self, agent: str, client: str) -> str:
        return self._is_full() or self._over_agent(agent) or self._over_client(client)
