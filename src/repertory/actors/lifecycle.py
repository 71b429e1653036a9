"""What an actor may be: any object with handlers, and optionally some of these hooks.

There is no base class. A hook is found by its name; the protocols below are for type checkers and readers.
Each hook may be a plain ``def`` or an ``async def``.

===================  ==========================================================  ================================
hook                 when                                                        when it raises
===================  ==========================================================  ================================
``started``          before the first message of every incarnation               a crash: the supervisor decides
``stopping``         graceful stop, after the last message; children and         logged; the stop goes on
                     background tasks still live; bounded by the drain time
``stopped``          the end of the last incarnation, on stop, kill and final    logged; the stop goes on
                     crash, when children and tasks are gone; shielded,
                     bounded by ``cleanup_timeout``
``restarting``       the end of any other incarnation, likewise                  logged; the restart goes on
``terminated``       a watched actor has stopped                                 a crash: the supervisor decides
===================  ==========================================================  ================================

Every incarnation whose ``started`` was called ends with exactly one of ``stopped`` and ``restarting``.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

import msgspec

if TYPE_CHECKING:
    from repertory.actors.context import ActorContext
    from repertory.actors.refs import ActorRef

MessageT_contra = TypeVar("MessageT_contra", contravariant=True)


class StopReason(msgspec.Struct, frozen=True):
    """Why an actor is gone.

    Attributes:
        kind: ``"stopped"`` by itself or by ``stop()``; ``"killed"`` by ``kill()`` or by cancellation of the tree
            above it; ``"failed"`` by a crash that its supervisor did not repair.
        error: The crash, for ``"failed"``; else None.
    """

    kind: Literal["stopped", "killed", "failed"]
    error: BaseException | None = None


class Accepts(Generic[MessageT_contra]):
    """Declares, in an actor's class body, the messages its reference takes: ``receives: Accepts[Store | Load]``.

    It is an annotation and never a value. ``spawn`` then returns an ``ActorRef[Store | Load]``, and refuses the
    actor if one of the types has no handler.
    """


class Actor(Protocol[MessageT_contra]):
    """An object that declares what it receives."""

    @property
    def receives(self) -> Accepts[MessageT_contra]:
        """The declared messages."""
        ...


class HasStarted(Protocol):
    """Wants to act before the first message."""

    def started(self, ctx: ActorContext, /) -> Awaitable[None] | None:
        """Prepare; messages wait until this returns."""
        ...


class HasStopping(Protocol):
    """Wants to say good-bye while its children and background tasks still live."""

    def stopping(self, ctx: ActorContext, /) -> Awaitable[None] | None:
        """Bring the work to a good end; bounded by what remains of the drain time."""
        ...


class HasStopped(Protocol):
    """Holds something that must be let go."""

    def stopped(self, ctx: ActorContext, /) -> Awaitable[None] | None:
        """Let go; shielded from cancellation, bounded by ``cleanup_timeout``."""
        ...


class HasRestarting(Protocol):
    """Holds something that must be let go before a fresh copy takes over."""

    def restarting(self, ctx: ActorContext, error: BaseException, /) -> Awaitable[None] | None:
        """Let go of what this incarnation holds; ``error`` is the crash, its own or a sibling's."""
        ...


class HasTerminated(Protocol):
    """Wants to hear of the death of the actors it watches."""

    def terminated(self, ctx: ActorContext, ref: ActorRef[Any], reason: StopReason, /) -> Awaitable[None] | None:
        """Take note that ``ref`` has stopped."""
        ...
