"""The handle that others hold of an actor."""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from anyio.lowlevel import checkpoint

from repertory.actors.calls import ask, current_cell
from repertory.actors.lifecycle import StopReason
from repertory.actors.messages import Askable
from repertory.actors.outcomes import run_inline
from repertory.actors.statistics import ActorStatistics

if TYPE_CHECKING:
    from repertory.actors.cell import Cell

MessageT_contra = TypeVar("MessageT_contra", contravariant=True)
ReplyT = TypeVar("ReplyT")

_NEVER = float("inf")

INLINE_QUOTA = 256
"""Inline asks in one system between two checkpoints."""


class ActorRef(Generic[MessageT_contra]):
    """A reference to an actor that takes messages of one type, usually a union.

    References are cheap, compare by identity, may be put into messages, and stay valid over restarts. ``tell``,
    ``stop``, ``kill``, ``pause`` and ``resume`` may be called from any OS thread, the rest in the scheduler's.
    """

    __slots__ = ("_cell", "_mailbox")

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._mailbox = cell.mailbox

    def __repr__(self) -> str:
        return f"<ActorRef {self._cell.path}>"

    @property
    def path(self) -> str:
        """The actor's place in the tree, such as ``/lead/researcher``."""
        return self._cell.path

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self._cell.name

    def tell(self, message: MessageT_contra) -> None:
        """Put a message into the mailbox and go on.

        From the scheduler's thread this takes well under a microsecond. Another OS thread is recognized, and its
        message travels through the scheduler's thread: a few microseconds, and the messages of one thread keep
        their order.

        Args:
            message: What to send. After the receiver has stopped it goes to dead letters.

        Raises:
            MailboxFull: There is no room and the overflow policy is ``"fail"`` or ``"wait"``; the message stays
                with the caller.
            ActorStopped: Only from another OS thread: the scheduler's thread has ended.
        """
        box = self._mailbox
        if get_ident() != box.thread:
            box.hand_over(message)
            return
        queue = box.queue
        if len(queue) < box.room:  # the common case of Mailbox.put, without its call
            queue.append(message)
            if box.idle:
                self._cell.wake()
        else:
            box.put(message)

    async def send(self, message: MessageT_contra) -> None:
        """Put a message into the mailbox, waiting for room under every overflow policy.

        A checkpoint only if it waits. If it is cancelled, the message was not sent.

        Args:
            message: What to send.

        Raises:
            ActorStopped: The receiver has stopped; the message stays with the caller.
        """
        if get_ident() != self._mailbox.thread:
            raise self._wrong_thread()
        await self._mailbox.send(message)

    def _wrong_thread(self) -> RuntimeError:
        return RuntimeError(
            f"{self.path} lives in another thread: tell() crosses threads; for an answer use "
            "anyio.from_thread.run(ref.ask, request)"
        )

    async def ask(
        self, request: Askable[ActorRef[MessageT_contra], ReplyT], *, reply_timeout: float | None = None
    ) -> ReplyT:
        """Send a request and wait for its answer.

        If the actor is idle and its handler is a plain ``def``, the handler runs right here, and ``ask`` is a
        checkpoint only every 256th time. An ask made while handling an ask ends no later than that one does.

        A cancelled or timed-out ask is not executed if it has not begun; if it has, it goes on to its end.

        Args:
            request: What to ask.
            reply_timeout: Seconds to wait for the answer; None for no limit of its own.

        Returns:
            The answer.

        Raises:
            AskTimeout: The answer did not come in time.
            AskCycle: The receiver waits, directly or through others, for the actor that is asking.
            MailboxFull: There is no room, and the overflow policy is not to wait or drop-old.
            ActorStopped: The receiver has stopped before it answered.
            ActorFailed: The receiver crashed while handling the request; ``__cause__`` has the error.
            UnhandledMessage: The receiver has no handler for this type.
            Exception: An error that the handler declares as expected comes as it is.
        """
        box = self._mailbox
        if get_ident() != box.thread:
            raise self._wrong_thread()
        cell = self._cell
        runtime = cell.runtime
        asker = current_cell.get()
        deadline = _NEVER if asker is None or asker.call is None else asker.call.deadline
        late = False
        if reply_timeout is not None or deadline != _NEVER:
            now = runtime.backend.now()
            if reply_timeout is not None:
                deadline = min(deadline, now + reply_timeout)
            late = now >= deadline
        if box.idle and not late:
            if not runtime.inline_left:
                runtime.inline_left = INLINE_QUOTA
                await checkpoint()
            entry = cell.table.get(type(request))
            if (
                entry is not None
                and not entry.is_async
                and box.idle  # still, after the checkpoint
                and cell.settings.attempts == 1  # else a crash means waiting for the next attempt
            ):
                runtime.inline_left -= 1
                return cast("ReplyT", run_inline(cell, entry, request, deadline))
        return cast("ReplyT", await ask(cell, request, deadline, asker, late=late))

    def stop(self, *, drain_timeout: float | None = None) -> None:
        """Stop gracefully: take no more messages, and handle those accepted.

        Args:
            drain_timeout: Seconds for that, and for the children to stop; then the rest is cancelled, and what was
                not handled goes to dead letters. None for the system's. An earlier end than one asked for before
                is obeyed, a later one ignored.
        """
        cell = self._cell
        cell.in_thread(lambda: cell.stop(drain_timeout))

    def kill(self) -> None:
        """Cancel the actor, its background tasks and its children now. It is not restarted."""
        cell = self._cell
        cell.in_thread(cell.kill)

    def pause(self) -> None:
        """Handle no further message until ``resume``; messages wait. Stopping ends the pause."""
        cell = self._cell
        cell.in_thread(lambda: cell.signal("pause"))

    def resume(self) -> None:
        """Go on after ``pause``."""
        cell = self._cell
        cell.in_thread(lambda: cell.signal("resume"))

    async def wait_stopped(self) -> StopReason:
        """Wait until the actor is gone for good, and its children with it."""
        return await self._cell.until_gone()

    def statistics(self) -> ActorStatistics:
        """The actor's counts at this instant."""
        return self._cell.statistics()


def cell_of(ref: ActorRef[Any]) -> Cell:
    """The runtime's side of a reference."""
    return ref._cell  # pyright: ignore[reportPrivateUsage] - the one way in
