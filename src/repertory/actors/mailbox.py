"""The messages of one actor: those that wait, the one being handled, and the outcome of each.

No message is lost: an accepted message is handled, withdrawn (an ask that was given up before it began), or sent to
dead letters, and every ask is answered. All of that is decided in this file.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from repertory.actors.handlers import HandlerMethod
from repertory.actors.observation import DeadLetter, DeadReason, StopReason
from repertory.actors.runtime import Runtime
from repertory.actors.supervision import Settings
from repertory.errors import ActorError, ActorFailed, ActorStopped, AskTimeout, MailboxFull

NEVER = float("inf")

WAITING, BEGUN, ENDED = 0, 1, 2

CLOSED = -1

MOST_UNDER_WAY = 10_000
"""How many messages of other OS threads may be under way in one system before mailboxes that drop refuse more: as many
as a mailbox holds by default."""

NOTHING = object()
"""Means that no message is being handled; None could be a message."""


class Ask(msgspec.Struct, eq=False):
    """A pending request, and the slot for its answer, in one object."""

    message: Any
    mailbox: Mailbox  # of the actor asked
    deadline: float = NEVER  # when the asker gives up, on the scheduler's clock
    sent: bool = False  # by ``send``, which asks for room only: the message alone enters the queue
    state: int = WAITING  # in the mailbox; or BEGUN; or ENDED: answered, failed, or given up
    value: Any = None
    error: BaseException | None = None  # to be raised in the asker
    parked: Any = None  # the sleeping asker

    def answer(self, value: Any, error: BaseException | None = None) -> None:
        """End with a value or an error, unless the asker has given up."""
        if self.state != ENDED:
            self.state = ENDED
            self.value = value
            self.error = error
            self.mailbox.runtime.scheduler.unpark(self)

    def expire(self) -> None:
        """The deadline has passed."""
        box = self.mailbox
        box.runtime.asks_timed_out += 1
        box.leave(self)
        begun = "begun; it may have acted" if self.state == BEGUN else "not begun, and never will"
        self.answer(None, AskTimeout(f"{box.path} did not answer {_kind(self)} in time: it had {begun}"))


_empty_queue: Callable[[], deque[Any]] = deque  # calling deque[Any] itself takes twice as long


@dataclass(slots=True, eq=False, repr=False)
class Mailbox:
    """The messages of one actor, over all its incarnations.

    An ask is queued as an ``Ask``, a told message as itself: an envelope for each would double the cost of ``tell``.
    All methods but ``put_threadsafe`` must be called in the scheduler's thread.
    """

    path: str
    runtime: Runtime
    settings: Settings
    launch: Callable[[], None] | None  # starts the actor's task; None once there is one
    thread: int  # the scheduler's
    room: int  # the length at which no more is accepted: the capacity, or CLOSED
    queue: deque[Any] = field(default_factory=_empty_queue)  # accepted and not yet begun, oldest first
    senders: OrderedDict[Ask, None] | None = None  # those that wait for room, behind the queue
    idle: bool = True  # the actor sleeps on an empty queue: a message must wake it, and may be handled inline
    handlers: dict[type, HandlerMethod] | None = None  # by type of message; None while none may run inline
    parked: Any = None  # the sleeping actor
    current: Any = NOTHING  # the message, or Ask, being handled; not set for inline ones
    asking: set[Ask] | None = None  # what the current message waits for
    reason: StopReason | None = None  # why the actor is gone
    handled: int = 0
    handled_inline: int = 0  # of these
    withdrawn: int = 0  # asks given up before they began
    dead_lettered: int = 0
    _suspect: Any = None  # the message that last crashed the actor
    _suspect_crashes: int = 0

    # --- coming in ------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Wake the actor to process its signals and messages; start it if it is a lazy one."""
        self.idle = False
        if self.launch is None:
            self.runtime.scheduler.unpark(self)
        else:
            self.launch()

    def put(self, item: Any) -> None:
        """Append a told message or an ask, or apply the overflow policy."""
        if len(self.queue) >= self.room and not self._make_room(item):
            return
        self.queue.append(item)
        if self.idle:
            self.wake()

    def _make_room(self, item: Any) -> bool:
        """Whether the item may now be appended to a full mailbox. If not, it has already been dealt with."""
        asked = type(item) is Ask
        overflow = self.settings.overflow
        if self.room == CLOSED:
            if asked:
                raise self.stopped_error(item)
            self.send_to_dead_letters(item, "stopped")
        elif overflow == "drop-old":
            oldest = self.queue.popleft()
            self._end_unbegun(oldest, "dropped", self._full(oldest))
            return True
        elif overflow == "wait" and asked:
            self._add_sender(item)
        elif overflow == "drop-new" and not asked:
            self.send_to_dead_letters(item, "dropped")
        else:
            raise self._full(item)
        return False

    async def send(self, message: Any) -> None:
        """Append a told message, waiting for room."""
        if len(self.queue) < self.room:
            self.put(message)
            return
        if self.room == CLOSED:
            raise self.stopped_error(message)
        sender = Ask(message, self, sent=True)
        self._add_sender(sender)
        try:
            await self.runtime.scheduler.park(sender)
        except BaseException:
            self.leave(sender)
            raise
        if sender.error is not None:
            raise self.stopped_error(message)

    def _add_sender(self, waiting: Ask) -> None:
        self.senders = self.senders or OrderedDict()
        self.senders[waiting] = None

    def leave(self, waiting: Ask) -> None:
        """Forget one that was given up, if it waits for room. Otherwise a mailbox that stays full would keep them."""
        if self.senders and waiting in self.senders:
            del self.senders[waiting]
            self.withdrawn += not waiting.sent

    def admit(self) -> None:
        """Accept the messages of those that wait for room, first come first served."""
        senders, scheduler = self.senders, self.runtime.scheduler
        while senders and len(self.queue) < self.room:
            waiting, _ = senders.popitem(last=False)
            if not scheduler.is_parked(waiting):  # cancelled, or timed out
                self.withdrawn += not waiting.sent
            elif waiting.sent:
                self.queue.append(waiting.message)
                waiting.answer(None)
            else:
                self.queue.append(waiting)

    def put_threadsafe(self, message: Any) -> None:
        """Put a message from another OS thread, through the scheduler's thread.

        Raises:
            MailboxFull: The mailbox is full as seen from here. The policies that drop decide on arrival, unless
                ``MOST_UNDER_WAY`` is reached.
            ActorStopped: The scheduler's thread has ended.
        """
        waiting = len(self.queue)  # looked at first: what moves there meanwhile must not count twice
        under_way = len(self.runtime.foreign)
        if self.room == CLOSED or self.settings.overflow.startswith("drop"):
            is_full = under_way >= MOST_UNDER_WAY
        else:  # everything under way counts against this mailbox: slightly too strict, but never unbounded
            is_full = waiting + under_way >= self.settings.capacity
        if is_full:
            raise self._full(message)
        try:
            self.runtime.call_soon_threadsafe(partial(self._receive_foreign, message))
        except RuntimeError as error:
            raise ActorStopped(f"{self.path} has stopped: its event loop has ended") from error

    def _receive_foreign(self, message: Any) -> None:
        """Accept a message from another OS thread; with no caller to raise to, one too many goes to dead letters."""
        try:
            self.put(message)
        except MailboxFull:
            self.send_to_dead_letters(message, "dropped")

    # --- closing --------------------------------------------------------------------------------------

    def close(self) -> None:
        """Accept no more messages. Those waiting for room get ``ActorStopped``; the queue is kept."""
        self.room = CLOSED
        self.idle = False
        senders, self.senders = self.senders, None
        for waiting in senders or ():
            waiting.answer(None, self.stopped_error(waiting))

    def end(self, reason: StopReason) -> None:
        """The actor has stopped for good: deal with all messages that still wait."""
        self.reason = reason
        self.close()
        self._suspect = None
        for item in self.queue:
            self._end_unbegun(item, "stopped", self.stopped_error(item))
        self.queue.clear()

    # --- the outcome of a message that was begun ------------------------------------------------------

    def reject(self, item: Any, answer: Exception, reason: DeadReason, error: Exception | None = None) -> None:
        """Report that an item was not handled: to its asker, or to dead letters if it was told."""
        if isinstance(item, Ask):
            item.answer(None, answer)
        else:
            self.send_to_dead_letters(item, reason, error)

    def crashed(self, error: Exception) -> None:
        """The handler of the current message crashed: retry the message, or send it to dead letters."""
        item = self._take_current()
        if item is not self._suspect:
            self._suspect = item
            self._suspect_crashes = 0
        self._suspect_crashes += 1
        if self._suspect_crashes < self.settings.attempts:
            self._put_back(item)
            return
        self._suspect = None
        self._end(item, "failed", self.failed_error(item, error, "crashed on"), error)

    def interrupt(self, cause: BaseException | None) -> None:
        """The incarnation ends, perhaps while handling a message that is not the cause; None means a stop or a kill."""
        if self.current is NOTHING:
            return
        item = self._take_current()
        if cause is None:
            self._end(item, "interrupted", self.stopped_error(item))
        elif self.settings.attempts > 1 and self.room != CLOSED:
            self._put_back(item)
        else:
            answer = self.failed_error(item, cause, "was interrupted while handling")
            self._end(item, "interrupted", answer, cause)

    def _take_current(self) -> Any:
        item, self.current = self.current, NOTHING
        return item

    def _put_back(self, item: Any) -> None:
        if isinstance(item, Ask) and item.state != ENDED:
            item.state = WAITING
        self.queue.appendleft(item)

    def _end_unbegun(self, item: Any, reason: DeadReason, answer: ActorError) -> None:
        if isinstance(item, Ask) and item.state == ENDED:
            self.withdrawn += 1
        else:
            self._end(item, reason, answer)

    def _end(self, item: Any, reason: DeadReason, answer: ActorError, error: BaseException | None = None) -> None:
        """Send an item to dead letters, and tell its asker what happened."""
        message = item
        if isinstance(item, Ask):
            item.answer(None, answer)
            message = item.message
        self.send_to_dead_letters(message, reason, error)

    def send_to_dead_letters(self, message: Any, reason: DeadReason, error: BaseException | None = None) -> None:
        """Send a message to dead letters."""
        self.dead_lettered += 1
        self.runtime.dead_letters.put(DeadLetter(message, self.path, reason, error))

    # --- what senders are told ------------------------------------------------------------------------

    def _full(self, item: Any) -> MailboxFull:
        return MailboxFull(
            f"the mailbox of {self.path} is full ({self.settings.capacity}); {_kind(item)} was not accepted: await "
            "send() to wait for room, or spawn with a larger capacity or another overflow policy"
        )

    def stopped_error(self, item: Any) -> ActorStopped:
        """The error for the sender of a message that came too late, or was not handled before the end."""
        crash = None if self.reason is None else self.reason.error
        end = "has stopped" if crash is None else "has failed for good"
        error = ActorStopped(f"{self.path} {end}; {_kind(item)} was not answered")
        error.__cause__ = crash
        return error

    def failed_error(self, item: Any, cause: BaseException, what: str) -> ActorFailed:
        """The error for an ask whose handler did not finish."""
        error = ActorFailed(f"{self.path} {what} {_kind(item)}: {type(cause).__name__}: {cause}")
        error.__cause__ = cause
        return error


def _kind(item: object) -> str:
    return type(item.message if isinstance(item, Ask) else item).__qualname__
