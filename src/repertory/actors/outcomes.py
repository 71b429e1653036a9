"""What becomes of a message that does not simply come to its end, and of one handled in its asker's task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from repertory.actors.calls import ENDED, NOTHING, WAITING, Call, failed_error
from repertory.actors.dispatch import Entry
from repertory.errors import UnhandledMessage

if TYPE_CHECKING:
    from repertory.actors.cell import Cell


def refuse(cell: Cell, message: Any, call: Call | None, error: BaseException) -> None:
    """The handler raised an error it expects: an answer, if anyone is listening."""
    if call is not None:
        call.fail(error)
    else:
        cell.bury(message, "refused", error)


def unhandled(cell: Cell, message: Any, call: Call | None) -> None:
    """There is no handler."""
    if call is not None:
        call.fail(UnhandledMessage(f"{cell.path} has no handler for {type(message).__qualname__}"))
    else:
        cell.bury(message, "unhandled")


def crashed_on_current(cell: Cell, error: BaseException) -> None:
    """The handler of the current message crashed: put it back for another attempt, or park it."""
    item = _let_go(cell)
    if item is not cell.suspect:
        cell.suspect = item
        cell.suspect_crashes = 0
    cell.suspect_crashes += 1
    if cell.suspect_crashes < cell.settings.attempts:
        _put_back(cell, item)
        return
    cell.suspect = None
    message = item
    if isinstance(item, Call):
        message = item.message
        item.fail(failed_error(cell.path, message, error, "crashed on"))
    cell.bury(message, "failed", error)


def interrupted(cell: Cell) -> None:
    """The incarnation ends in the middle of a message that is not to blame."""
    if cell.current is NOTHING:
        return
    item = _let_go(cell)
    cause = cell.failure or cell.halt_error
    if cause is not None and cell.settings.attempts > 1 and not cell.closing:
        _put_back(cell, item)
        return
    message = item
    if isinstance(item, Call):
        message = item.message
        if cause is None:
            item.fail(cell.stopped_error(message))
        else:
            item.fail(failed_error(cell.path, message, cause, "was interrupted while handling"))
    cell.bury(message, "interrupted", cause)


def _let_go(cell: Cell) -> Any:
    item, cell.current, cell.call = cell.current, NOTHING, None
    return item


def _put_back(cell: Cell, item: Any) -> None:
    if isinstance(item, Call) and item.state != ENDED:
        item.state = WAITING
    cell.mailbox.queue.appendleft(item)


def run_inline(cell: Cell, entry: Entry, message: Any, deadline: float) -> Any:
    """Handle a request in the asker's task. The handler cannot suspend, so nothing can come between."""
    cell.mailbox.idle = False
    cell.inline_deadline = deadline
    try:
        if entry.wants_context:
            value = entry.function(cell.actor, message, cell.context)
        else:
            value = entry.function(cell.actor, message)
    except entry.expected:
        _inline_done(cell)
        raise
    except Exception as error:
        cell.bury(message, "failed", error)
        cell.fail(error)
        raise failed_error(cell.path, message, error, "crashed on") from error
    except BaseException:
        _inline_done(cell)
        raise
    _inline_done(cell)
    return value


def _inline_done(cell: Cell) -> None:
    box = cell.mailbox
    cell.inline_deadline = float("inf")
    cell.handled += 1
    cell.inline_handled += 1
    if box.queue or cell.control or cell.closing:
        cell.wake()
    else:
        box.idle = True
