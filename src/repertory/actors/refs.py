"""The handle that others hold of an actor."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from repertory.actors.lifecycle import StopReason
from repertory.actors.messages import Askable
from repertory.actors.statistics import ActorStatistics

MessageT_contra = TypeVar("MessageT_contra", contravariant=True)
ReplyT = TypeVar("ReplyT")


class ActorRef(Generic[MessageT_contra]):
    """A reference to an actor that takes messages of one type, usually a union.

    References are cheap, compare by identity, may be put into messages, and stay valid over restarts.
    """

    __slots__ = ("_cell",)

    @property
    def path(self) -> str:
        """The actor's place in the tree, such as ``/lead/researcher``."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """The last part of the path."""
        raise NotImplementedError

    def tell(self, message: MessageT_contra) -> None:
        """Put a message into the mailbox and go on; from any task or OS thread."""
        raise NotImplementedError

    async def send(self, message: MessageT_contra) -> None:
        """Put a message into the mailbox, waiting for room."""
        raise NotImplementedError

    async def ask(
        self, request: Askable[ActorRef[MessageT_contra], ReplyT], *, reply_timeout: float | None = None
    ) -> ReplyT:
        """Send a request and wait for its answer."""
        raise NotImplementedError

    def stop(self, *, drain_timeout: float | None = None) -> None:
        """Stop gracefully: take no more messages, handle those accepted within ``drain_timeout`` seconds."""
        raise NotImplementedError

    def kill(self) -> None:
        """Cancel the actor, its tasks and its children now."""
        raise NotImplementedError

    def pause(self) -> None:
        """Handle no further message until ``resume``; messages wait."""
        raise NotImplementedError

    def resume(self) -> None:
        """Go on after ``pause``."""
        raise NotImplementedError

    async def wait_stopped(self) -> StopReason:
        """Wait until the actor is gone for good."""
        raise NotImplementedError

    def statistics(self) -> ActorStatistics:
        """The actor's counts at this instant."""
        raise NotImplementedError


AnyRef = ActorRef[Any]
