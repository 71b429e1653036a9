"""Duties that only one of the services sharing a journal does for all: schedules, webhooks, removing old runs.

Each duty belongs to one machine at a time, and passes to another if that one is lost, drains or ends. A service that
does not share its journal has every duty.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from repertory._repeated_event import RepeatedEvent
from repertory.supervisor import Supervisor


class Duties:
    """The duties of one service.

    Attributes:
        alone: Whether this service does not share its journal.
        on_change: Called when the duties that this service holds have changed.
    """

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self.alone = not supervisor.journal.is_shared
        self.on_change: list[Callable[[], object]] = []
        self._wanted: dict[str, Collection[str]] = {}
        self._held: frozenset[str] = frozenset()
        self._changed = RepeatedEvent()

    @property
    def take_over(self) -> float:
        """How many seconds may pass until another machine takes over a dead one's duties; 0 if none can."""
        return self._supervisor.lease

    def want(self, kind: str, names: Collection[str]) -> None:
        """Want these duties of one kind, and no others of it; from the next look on it holds those that are free."""
        self._wanted[kind] = [f"{kind} {name}" for name in names]

    def held(self, kind: str, name: str) -> bool:
        """Whether this service holds the duty."""
        return self.alone or f"{kind} {name}" in self._held

    async def wait_held(self, kind: str, name: str) -> None:
        """Wait until this service holds the duty."""
        while not self.held(kind, name):
            await self._changed.wait()

    async def look(self) -> None:
        """Take over the duties that no machine holds. Raises ``JournalError`` if the server cannot be reached."""
        wanted = [name for names in self._wanted.values() for name in names]
        held = await self._supervisor.hold_duties(wanted)
        if held != self._held:
            self._held = held
            self._changed.set()
            for tell in self.on_change:
                tell()
