"""What can be seen of a running system: frozen counts, and its tree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from repertory.actors.deadletters import DeadReason

ActorState: TypeAlias = Literal["new", "starting", "running", "paused", "stopping", "restarting", "stopped"]


class ActorStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """An actor at one instant.

    Attributes:
        path: Its place in the tree, such as ``/lead/researcher``.
        state: Where it is in its life.
        mailbox_length: Messages waiting.
        mailbox_capacity: How many may wait.
        senders_waiting: Tasks blocked in ``send`` or ``ask`` for room.
        handled: Messages handled to the end, inline ones included; also those whose answer was an expected error.
        inline: How many of these ran inside the asker.
        withdrawn: Asks given up by the asker (cancelled, timed out) before they began.
        dead_lettered: Messages to this actor that went to dead letters.
        crashes: How often it crashed.
        restarts: How often it was restarted.
        children: Living children.
        tasks: Living background tasks.
    """

    path: str
    state: ActorState
    mailbox_length: int
    mailbox_capacity: int
    senders_waiting: int
    handled: int
    inline: int
    withdrawn: int
    dead_lettered: int
    crashes: int
    restarts: int
    children: int
    tasks: int


class SystemStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A system at one instant.

    Attributes:
        actors: Living actors.
        spawned: Actors ever spawned.
        crashes: Crashes of all actors ever.
        restarts: Restarts of all actors ever.
        asks_timed_out: Asks that ended with ``AskTimeout``.
        asks_with_deadline: Asks now waiting that have a deadline.
        dead_letters: Messages in dead letters ever, by reason.
    """

    actors: int
    spawned: int
    crashes: int
    restarts: int
    asks_timed_out: int
    asks_with_deadline: int
    dead_letters: Mapping[DeadReason, int]


class ActorTree(msgspec.Struct, frozen=True):
    """A system's actors for display; ``str()`` draws them.

    Attributes:
        name: The actor's own name; the system's for the root.
        statistics: Its counts; None for the root.
        children: Its living children in the order they were started.
    """

    name: str
    statistics: ActorStatistics | None
    children: tuple[ActorTree, ...]

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> list[str]:
        line = self.name
        if (seen := self.statistics) is not None:
            line += f"  {seen.state}, {seen.mailbox_length} waiting, {seen.handled} handled"
            if seen.restarts:
                line += f", {seen.restarts} restarts"
        lines = [line]
        for child in self.children:
            last = child is self.children[-1]
            first, *rest = child._lines()
            lines.append(("└─ " if last else "├─ ") + first)
            lines += [("   " if last else "│  ") + more for more in rest]
        return lines
