"""The bounded queue in front of an actor."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from repertory.actors.calls import ENDED, Call
from repertory.errors import ActorStopped, MailboxFull

if TYPE_CHECKING:
    from repertory.actors.cell import Cell

Overflow: TypeAlias = Literal["fail", "drop-new", "drop-old", "wait"]
"""What happens when a mailbox is full.

============  ==================  =====================  ===================
policy        ``tell``            ``await ask``          ``await send``
============  ==================  =====================  ===================
``fail``      ``MailboxFull``     ``MailboxFull``        waits for room
``wait``      ``MailboxFull``     waits for room         waits for room
``drop-new``  to dead letters     ``MailboxFull``        waits for room
``drop-old``  the oldest message  the oldest message     waits for room
              to dead letters     to dead letters
============  ==================  =====================  ===================
"""

CLOSED = -1


class Sender(msgspec.Struct, eq=False):
    """A task that waits in ``send`` for room."""

    message: Any
    admitted: bool = False
    parked: Any = None


class Mailbox:
    """Messages in order, and those waiting for room behind them.

    Asks are in the queue as ``Call``, told messages as they are: an envelope for each would double the cost of
    ``tell``. All methods but ``hand_over`` are for the scheduler's thread.

    Attributes:
        queue: What is accepted and not yet begun, oldest first.
        room: The length at which no more is accepted: the capacity, or ``CLOSED``.
        idle: The actor sleeps on an empty mailbox: the next message must wake it, and may be handled inline.
        thread: The scheduler's thread.
    """

    __slots__ = ("capacity", "cell", "idle", "queue", "room", "senders", "thread")

    def __init__(self, cell: Cell, capacity: int, thread: int) -> None:
        self.cell = cell
        self.capacity = self.room = capacity
        self.queue: deque[Any] = deque()
        self.senders: deque[Sender | Call] | None = None
        self.idle = True
        self.thread = thread

    def put(self, message: Any) -> None:
        """Append a told message, or do what the overflow policy says."""
        if len(self.queue) >= self.room and not self._make_room(message):
            return
        self.queue.append(message)
        if self.idle:
            self.cell.wake()

    def _make_room(self, message: Any) -> bool:
        cell = self.cell
        overflow = cell.settings.overflow
        if self.room == CLOSED:
            cell.bury(message, "stopped")
        elif overflow == "drop-old":
            self._drop_oldest()
            return True
        elif overflow == "drop-new":
            cell.bury(message, "dropped")
        else:
            raise self.full(message)
        return False

    def put_call(self, call: Call) -> None:
        """Append an ask, or do what the overflow policy says."""
        if len(self.queue) >= self.room:
            overflow = self.cell.settings.overflow
            if self.room == CLOSED:
                raise self.cell.stopped_error(call.message)
            if overflow == "wait":
                self._line_up(call)
                return
            if overflow != "drop-old":
                raise self.full(call.message)
            self._drop_oldest()
        self.queue.append(call)
        if self.idle:
            self.cell.wake()

    async def send(self, message: Any) -> None:
        """Append a told message, waiting for room."""
        if len(self.queue) < self.room:
            self.put(message)
            return
        if self.room == CLOSED:
            raise self.cell.stopped_error(message)
        sender = Sender(message)
        self._line_up(sender)
        try:
            await self.cell.runtime.backend.park(sender)
        except BaseException:
            if self.senders is not None and sender in self.senders:
                self.senders.remove(sender)
            raise
        if not sender.admitted:
            raise self.cell.stopped_error(message)

    def _line_up(self, waiting: Sender | Call) -> None:
        if self.senders is None:
            self.senders = deque()
        self.senders.append(waiting)

    def admit(self) -> None:
        """Let in those who wait, first come first served, now that there is room."""
        senders, backend = self.senders, self.cell.runtime.backend
        while senders and len(self.queue) < self.room:
            waiting = senders.popleft()
            if not backend.is_parked(waiting):  # cancelled, or timed out
                self.cell.withdrawn += isinstance(waiting, Call)
            elif isinstance(waiting, Call):
                self.queue.append(waiting)
            else:
                waiting.admitted = True
                self.queue.append(waiting.message)
                backend.unpark(waiting)

    def _drop_oldest(self) -> None:
        oldest = self.queue.popleft()
        if isinstance(oldest, Call):
            if oldest.state == ENDED:
                self.cell.withdrawn += 1
                return
            oldest.fail(self.full(oldest.message))
            oldest = oldest.message
        self.cell.bury(oldest, "dropped")

    def full(self, message: Any) -> MailboxFull:
        """The error of a sender that is not willing to wait."""
        return MailboxFull(
            f"the mailbox of {self.cell.path} is full ({self.capacity}); {type(message).__qualname__} was not "
            "accepted: await send() to wait for room, or spawn with a larger capacity or another overflow policy"
        )

    def close(self) -> None:
        """Accept no more. Those who wait for room get ``ActorStopped``; what is in the queue stays."""
        self.room = CLOSED
        senders, self.senders = self.senders, None
        for waiting in senders or ():
            if isinstance(waiting, Sender):
                self.cell.runtime.backend.unpark(waiting)
            elif waiting.state != ENDED:
                waiting.fail(self.cell.stopped_error(waiting.message))
            else:
                self.cell.withdrawn += 1

    def reopen(self) -> None:
        """Accept again: a permanent actor has stopped itself and comes back."""
        self.room = self.capacity

    def hand_over(self, message: Any) -> None:
        """Put a message from another OS thread, through the scheduler's thread.

        Raises:
            MailboxFull: The mailbox is full as seen from here; the policies that drop decide on arrival.
            ActorStopped: The scheduler's thread has ended.
        """
        runtime = self.cell.runtime
        raises = not self.cell.settings.overflow.startswith("drop")
        # Everything under way counts against this mailbox: a little too strict, and never unbounded.
        if raises and self.room != CLOSED and len(self.queue) + len(runtime.foreign) >= self.capacity:
            raise self.full(message)
        try:
            runtime.hand_over(lambda: self.receive_foreign(message))
        except RuntimeError as error:
            raise ActorStopped(f"{self.cell.path} has stopped: its event loop has ended") from error

    def receive_foreign(self, message: Any) -> None:
        """Take in a message from another OS thread. Nobody is there to raise to, so what is too much is dead."""
        try:
            self.put(message)
        except MailboxFull:
            self.cell.bury(message, "dropped")
