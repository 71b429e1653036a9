"""An ask on its way: the request, who waits for it, and how it ends."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import msgspec

from repertory.actors.lifecycle import StopReason
from repertory.errors import ActorFailed, ActorStopped, AskCycle, AskTimeout

if TYPE_CHECKING:
    from repertory.actors.cell import Cell

WAITING, BEGUN, ENDED = 0, 1, 2

NOTHING = object()
"""No message in hand; None could be one."""

current_cell: ContextVar[Cell | None] = ContextVar("repertory_current_cell", default=None)
"""The actor whose handler or hook this task runs. Set once per task, not per message: a token costs 0.2 µs."""


class Call(msgspec.Struct, eq=False):
    """The envelope of a request and the slot for its answer, in one object.

    Attributes:
        message: The request.
        target: The actor asked.
        deadline: When the asker gives up, on the scheduler's clock; infinite for never.
        state: ``WAITING`` in the mailbox, ``BEGUN``, or ``ENDED`` (answered, failed, or given up).
        value: The answer.
        error: What to raise in the asker instead.
        parked: The sleeping asker.
    """

    message: Any
    target: Cell
    deadline: float
    state: int = WAITING
    value: Any = None
    error: BaseException | None = None
    parked: Any = None

    def answer(self, value: Any) -> None:
        """End with a value, unless the asker has given up."""
        if self.state != ENDED:
            self.state = ENDED
            self.value = value
            self.target.runtime.backend.unpark(self)

    def fail(self, error: BaseException) -> None:
        """End with an error, unless the asker has given up."""
        if self.state != ENDED:
            self.state = ENDED
            self.error = error
            self.target.runtime.backend.unpark(self)

    def expire(self) -> None:
        """The deadline has passed."""
        self.target.runtime.asks_timed_out += 1
        begun = "begun; it may have acted" if self.state == BEGUN else "not begun, and never will"
        self.fail(AskTimeout(f"{self.target.path} did not answer {_kind(self.message)} in time: it had {begun}"))


def _kind(message: object) -> str:
    return type(message).__qualname__


def waiting_path(start: Cell, goal: Cell) -> list[Cell] | None:
    """Follow who waits for whom.

    Every actor knows the calls its handler waits for, so this finds both an ask up its own chain and two actors
    that ask each other at the same time.

    Args:
        start: The actor to be asked.
        goal: The actor that wants to ask.

    Returns:
        The actors from ``start`` to ``goal`` if ``start`` waits for ``goal``, directly or through others.
    """
    if start is goal:
        return [start]
    for call in start.asking or ():
        if call.state != ENDED and (path := waiting_path(call.target, goal)) is not None:
            return [start, *path]
    return None


async def ask(target: Cell, message: Any, deadline: float, asker: Cell | None, *, late: bool) -> Any:
    """Ask through the mailbox.

    Args:
        target: The actor to ask.
        message: The request.
        deadline: When to give up, on the scheduler's clock; infinite for never.
        asker: The actor whose handler is asking, if one is.
        late: The deadline has passed already.

    Returns:
        The answer.

    Raises:
        ActorError: It did not come; see ``ActorRef.ask``.
    """
    runtime = target.runtime
    call = Call(message, target, deadline)
    if asker is not None:
        if (path := waiting_path(target, asker)) is not None:
            names = " → ".join(cell.path for cell in (asker, *path))
            raise AskCycle(f"{_kind(message)} would wait for itself: {names}; use tell, or ask from a background task")
        if asker.asking is None:
            asker.asking = set()
        asker.asking.add(call)
    timed = deadline != float("inf")
    try:
        if timed:
            if late:
                call.expire()
            else:
                runtime.wheel.add(call)
        if call.state != ENDED:
            target.mailbox.put_call(call)
            await runtime.backend.park(call)
    finally:
        # Reached with the call still open only when the asker is cancelled or the mailbox refuses.
        call.state = ENDED
        if timed:
            runtime.wheel.discard(call)
        if asker is not None and asker.asking is not None:
            asker.asking.discard(call)
    if call.error is not None:
        try:
            raise call.error
        finally:
            call.error = None  # else the traceback keeps this frame, and the frame the error
    return call.value


def stopped_error(path: str, message: Any, reason: StopReason | None) -> ActorStopped:
    """The error of an ask whose receiver is gone."""
    if reason is None or reason.error is None:
        return ActorStopped(f"{path} has stopped; {_kind(message)} was not answered")
    error = ActorStopped(f"{path} has failed for good; {_kind(message)} was not answered")
    error.__cause__ = reason.error
    return error


def failed_error(path: str, message: Any, cause: BaseException, what: str) -> ActorFailed:
    """The error of an ask whose handler did not come to an end."""
    error = ActorFailed(f"{path} {what} {_kind(message)}: {type(cause).__name__}: {cause}")
    error.__cause__ = cause
    return error
