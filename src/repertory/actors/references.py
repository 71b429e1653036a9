"""References to actors, and requests that actors answer."""

from __future__ import annotations

from contextvars import ContextVar
from threading import get_ident
from typing import Generic, Protocol, Self, TypeVar, cast

import msgspec
from anyio.lowlevel import checkpoint

from repertory.actors.mailbox import ENDED, NEVER, Ask, Mailbox
from repertory.actors.observation import ActorStatistics, StopReason
from repertory.actors.runtime import QUOTA
from repertory.actors.supervision import check_timeout
from repertory.actors.tree import ActorNode
from repertory.errors import AskCycle

MessageT_contra = TypeVar("MessageT_contra", contravariant=True)
ReplyT = TypeVar("ReplyT")
ReplyT_co = TypeVar("ReplyT_co", covariant=True)
RefT_contra = TypeVar("RefT_contra", contravariant=True)

asking_mailbox: ContextVar[Mailbox | None] = ContextVar("repertory_asking_mailbox", default=None)
"""The mailbox of the actor whose handler or hook this task runs. Set once per task: per message it costs 0.2 µs."""


class Request(msgspec.Struct, Generic[ReplyT_co], frozen=True):
    """A message that names the type of its answer::

    class Store(Request[ItemId], frozen=True):
        text: str

    item = await memory.ask(Store("…"))  # a type checker knows this is an ItemId
    """

    def __answered_by__(self, ref: ActorRef[Self], /) -> ReplyT_co:
        """Tie this request to the references that take it; for type checkers only, never called."""
        raise NotImplementedError


class Askable(Protocol[RefT_contra, ReplyT_co]):
    """A request that references of type ``RefT_contra`` take, with an answer of type ``ReplyT_co``.

    Python has no intersection types, so "a member of this actor's message union that is also a ``Request[R]``"
    cannot be written directly. A method whose parameter is a reference to ``Self`` expresses the same: it matches if
    the actor's reference is also a reference to the request's own type, which contravariance allows for every member.
    """

    def __answered_by__(self, ref: RefT_contra, /) -> ReplyT_co:
        """Tie a request to its references; for type checkers only."""
        ...


class ActorRef(Generic[MessageT_contra]):
    """A reference to an actor that takes messages of one type, usually a union.

    References are cheap, compare by identity, may be put into messages, and stay valid across restarts. ``tell``,
    ``stop``, ``kill``, ``pause`` and ``resume`` may be called from any OS thread, everything else only in the
    scheduler's thread.
    """

    __slots__ = ("_mailbox", "_node")

    def __init__(self, node: ActorNode) -> None:
        self._node = node
        self._mailbox = node.mailbox
        node.ref = self  # there is one for each actor

    def __repr__(self) -> str:
        return f"<ActorRef {self.path}>"

    @property
    def path(self) -> str:
        """The actor's place in the tree, such as ``/lead/researcher``."""
        return self._mailbox.path

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self._node.name

    def tell(self, message: MessageT_contra) -> None:
        """Put a message into the mailbox without waiting.

        In the scheduler's thread this takes well under a microsecond. From another OS thread, the message is handed to
        the scheduler's thread, which takes a few microseconds; messages of one thread keep their order.

        Args:
            message: What to send. After the receiver has stopped it goes to dead letters.

        Raises:
            MailboxFull: There is no room and the overflow policy is ``"fail"`` or ``"wait"``; the message stays
                with the caller.
            ActorStopped: Only from another OS thread: the scheduler's thread has ended.
        """
        box = self._mailbox
        if get_ident() != box.thread:
            box.put_threadsafe(message)
            return
        queue = box.queue
        if len(queue) < box.room:  # the common case of Mailbox.put, without its call
            queue.append(message)
            if box.idle:
                box.wake()
        else:
            box.put(message)

    async def send(self, message: MessageT_contra) -> None:
        """Put a message into the mailbox, and wait for room under every overflow policy.

        This is a checkpoint only if it waits. If it is cancelled, the message was not sent.

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

        If the actor is idle and its handler is a plain ``def``, the handler runs in the calling task, and ``ask`` is a
        checkpoint only every 256th time. An ask made while handling another ask has at most that one's deadline.

        A cancelled or timed-out ask is not executed if it has not begun; if it has, the handler still finishes.

        Args:
            request: What to ask.
            reply_timeout: Seconds to wait for the answer; None for no limit of its own.

        Returns:
            The answer.

        Raises:
            AskTimeout: The answer did not come in time.
            AskCycle: The receiver waits, directly or through others, for the actor that is asking.
            MailboxFull: There is no room, and the overflow policy is neither ``"wait"`` nor ``"drop-old"``.
            ActorStopped: The receiver stopped before it answered.
            ActorFailed: The receiver crashed while handling the request; ``__cause__`` has the error.
            UnhandledMessage: The receiver has no handler for this type.
            ConfigurationError: ``reply_timeout`` is not a number.
            Exception: An error that the handler declares as expected is raised unchanged.
        """
        box = self._mailbox
        if get_ident() != box.thread:
            raise self._wrong_thread()
        runtime = box.runtime
        asker = asking_mailbox.get()
        asked = None if asker is None else asker.current
        deadline = asked.deadline if type(asked) is Ask else NEVER
        late = False
        if reply_timeout is not None or deadline != NEVER:
            now = runtime.scheduler.now()
            if reply_timeout is not None:
                check_timeout("reply_timeout", reply_timeout)
                deadline = min(deadline, now + reply_timeout)
            late = now >= deadline
        if box.idle and box.handlers and not late:
            if not runtime.inline_left:
                runtime.inline_left = QUOTA
                await checkpoint()
            found = box.handlers.get(type(request)) if box.idle else None  # still idle after the checkpoint
            if found is not None and not found.is_async:
                runtime.inline_left -= 1
                return cast("ReplyT", self._node.handle_inline(found, request))
        ask = Ask(request, box, deadline)
        if asker is not None:
            if box is asker or box.asking:
                _refuse_cycle(ask, asker)
            if asker.asking is None:
                asker.asking = set()
            asker.asking.add(ask)
        timed = deadline != NEVER
        try:
            if late:
                ask.expire()
            else:
                if timed:
                    runtime.wheel.add(ask)
                box.put(ask)
                await runtime.scheduler.park(ask)
        finally:
            if ask.state != ENDED:  # the asker is cancelled, or the mailbox refuses
                ask.state = ENDED
                box.leave(ask)
            if timed:
                runtime.wheel.discard(ask)
            if asker is not None and asker.asking is not None:
                asker.asking.discard(ask)
        if ask.error is not None:
            try:
                raise ask.error
            finally:
                ask.error = None  # breaks the cycle: the traceback holds this frame, which holds the error
        return cast("ReplyT", ask.value)

    def stop(self, *, drain_timeout: float | None = None) -> None:
        """Stop gracefully: accept no more messages, and handle those already accepted.

        Args:
            drain_timeout: Seconds to handle the messages and stop the children. After that the rest is cancelled, and
                unhandled messages go to dead letters. None for the system's. If called again, only an earlier deadline
                takes effect.

        Raises:
            ConfigurationError: ``drain_timeout`` is not a number.
        """
        check_timeout("drain_timeout", drain_timeout)
        self._mailbox.runtime.run_in_thread(self._node.stop, drain_timeout)

    def kill(self) -> None:
        """Cancel the actor, its background tasks and its children now. It is not restarted."""
        self._mailbox.runtime.run_in_thread(self._node.kill)

    def pause(self) -> None:
        """Handle no further messages until ``resume``; they wait in the mailbox. Stopping ends the pause."""
        self._mailbox.runtime.run_in_thread(self._node.signal, "pause")

    def resume(self) -> None:
        """Continue after ``pause``."""
        self._mailbox.runtime.run_in_thread(self._node.signal, "resume")

    async def wait_stopped(self) -> StopReason:
        """Wait until the actor and its children have stopped for good."""
        return await self._node.wait_stopped()

    def statistics(self) -> ActorStatistics:
        """The actor's counts at this instant."""
        node, box = self._node, self._mailbox
        return ActorStatistics(
            path=box.path,
            state="paused" if node.paused and node.state == "running" else node.state,
            mailbox_length=len(box.queue),
            mailbox_capacity=box.settings.capacity,
            senders_waiting=len(box.senders or ()),
            handled=box.handled,
            inline=box.handled_inline,
            withdrawn=box.withdrawn,
            dead_lettered=box.dead_lettered,
            crashes=node.crashes,
            restarts=node.restarts,
            children=0 if node.children is None else len(node.children.members),
            tasks=len(node.tasks or ()),
        )


def _refuse_cycle(ask: Ask, asker: Mailbox) -> None:
    """Raise ``AskCycle`` if the actor asked waits for the asker, directly or through others.

    Every actor knows the asks its handler waits for, so this finds both an ask up its own chain and two actors
    that ask each other at the same time. Each actor is looked at once: handlers that ask several others at a time make
    more ways through them than can be followed.
    """
    ways = {ask.mailbox: [asker, ask.mailbox]}
    looking = [ask.mailbox]
    for box in looking:  # which grows meanwhile
        if box is asker:
            names, kind = " → ".join(each.path for each in ways[box]), type(ask.message).__qualname__
            raise AskCycle(f"{kind} would wait for itself: {names}; use tell, or ask from a background task")
        for other in box.asking or ():
            if other.state != ENDED and other.mailbox not in ways:
                ways[other.mailbox] = [*ways[box], other.mailbox]
                looking.append(other.mailbox)
