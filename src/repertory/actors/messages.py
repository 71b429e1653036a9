"""What may be sent: any object to ``tell``, a ``Request`` to ``ask``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import msgspec

if TYPE_CHECKING:
    from typing import Self

    from repertory.actors.refs import ActorRef

ReplyT_co = TypeVar("ReplyT_co", covariant=True)
RefT_contra = TypeVar("RefT_contra", contravariant=True)


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
    cannot be written down. A method whose parameter is a reference to ``Self`` says the same: it fits exactly
    when the actor's reference is one to the request's own type, which contravariance allows for every member.
    """

    def __answered_by__(self, ref: RefT_contra, /) -> ReplyT_co:
        """Tie a request to its references; for type checkers only."""
        ...
