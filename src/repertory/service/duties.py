"""What the services that share a journal do once for all of them: schedules, webhooks, removing what is old.

Each such duty is one machine's at a time, and another's once that one is lost, drains or ends. Where a service has its
journal alone every duty is its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import anyio

from repertory.supervisor import Supervisor


class Duties:
    """The duties of one service.

    Args:
        supervisor: Takes part in the journal.

    Attributes:
        alone: Whether the journal is this service's alone.
        on_change: Called when this service holds others than before.
    """

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self.alone = not supervisor.journal.is_shared
        self.on_change: list[Callable[[], object]] = []
        self._wanted: dict[str, Collection[str]] = {}
        self._held: frozenset[str] = frozenset()
        self._changed = anyio.Event()

    @property
    def take_over(self) -> float:
        """How many seconds may pass until another machine goes on with what a dead one did; 0 where there is none."""
        return self._supervisor.lease

    def want(self, kind: str, names: Collection[str]) -> None:
        """Do these of one kind from the next look on, as far as nobody else does, and no others of that kind."""
        self._wanted[kind] = [f"{kind} {name}" for name in names]

    def held(self, kind: str, name: str) -> bool:
        """Whether it is this service that does it."""
        return self.alone or f"{kind} {name}" in self._held

    async def wait_held(self, kind: str, name: str) -> None:
        """Wait until it is."""
        while not self.held(kind, name):
            await self._changed.wait()

    async def look(self) -> None:
        """Take over what nobody does. Raises ``JournalError`` where the server is away."""
        wanted = [name for names in self._wanted.values() for name in names]
        held = await self._supervisor.hold_duties(wanted)
        if held != self._held:
            self._held = held
            changed, self._changed = self._changed, anyio.Event()
            changed.set()
            for tell in self.on_change:
                tell()
