"""What may be asked of the memory actor."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from repertory._frozen import freeze_fields
from repertory.actors import ActorRef, Request
from repertory.llm.messages import Json
from repertory.memory.items import FULL, Item, ItemInfo, Transform
from repertory.memory.merging import MergeReport, Prefer
from repertory.record.items import ItemQuery
from repertory.record.records import ScopeMode, ScopeOpened

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
# Levels of a value. Readers and writers of JSON take one of Python's 1,000 frames for each: the others are left to
# whoever has a value written, or reads it again.
_DEEPEST: Final = 500


class Pending(Generic[T]):
    """The actor's answer: what is decided already, and what its asker has still to wait for, the file."""

    __slots__ = ("_rest",)

    def __init__(self, rest: Callable[[], Awaitable[T]]) -> None:
        self._rest = rest

    async def result(self) -> T:
        """Read what was asked for, or wait until what was written is durable; once only.

        A cancelled call takes no write back.
        """
        return await self._rest()


class _OnScope(Request[T_co], Generic[T_co], frozen=True, kw_only=True):
    """A message about one scope.

    Attributes:
        by: The run on whose behalf: a scope of another tree of runs is not found. "" for the application itself,
            which may use them all.
    """

    scope_id: str
    by: str = ""


class Change(_OnScope[T_co], Generic[T_co], frozen=True, kw_only=True):
    """A message that writes to a scope.

    Attributes:
        write: Called with the answer and the records in place of ``Journal.submit``, to write more in the same
            transaction; gives the ticket. None for nothing more.
    """

    write: Any = None


class OpenScope(Request[Pending[ScopeOpened]], frozen=True, kw_only=True):
    """Open a scope; opening it again under the same id gives the one that exists.

    Attributes:
        owner: The run it is for.
        mode: ``root`` and ``isolated`` begin empty, ``shared`` is its parent, ``snapshot`` sees the parent as of
            ``position`` and writes for itself. ``shared-read-only`` and ``snapshot-read-only`` write nothing.
        parent_id: Needed by all but ``root`` and ``isolated``. Who opens it shares the parent with ``owner``.
        scope_id: "" for a new id.
        position: For snapshots: what ``SnapshotScope`` gave; None for now.
        by: As with every message; about the parent.
    """

    owner: str
    mode: ScopeMode = "root"
    parent_id: str | None = None
    scope_id: str = ""
    position: int | None = None
    by: str = ""


class StoreItem(Change[Pending[ItemInfo]], frozen=True, kw_only=True):
    """Write an item, or a new version of one; see ``Memory.store``."""

    content: Any
    type: str = "custom"
    item_id: str = ""
    media_type: str = ""
    source: str = ""
    tags: tuple[str, ...] = ()
    related_to: tuple[str, ...] = ()
    metadata: Json = msgspec.field(default_factory=dict)
    if_position: int | None = None

    def __post_init__(self) -> None:
        freeze_fields(self, "content", "metadata", sequences=("tags", "related_to"), deepest=_DEEPEST)


class RetrieveItem(_OnScope[Pending[Item]], frozen=True, kw_only=True):
    """Read an item in the wanted shape."""

    item_id: str
    transform: Transform = FULL


class QueryItems(_OnScope[Pending[list[ItemInfo]]], frozen=True, kw_only=True):
    """List items that a scope sees, newest first, or best first where words are looked for; without contents."""

    query: ItemQuery = ItemQuery()


class SnapshotScope(_OnScope[Pending[int]], frozen=True):
    """Answers the position that stands for all memory as it is now."""


class DeleteItem(Change[Pending[int]], frozen=True, kw_only=True):
    """End an item; its versions stay in the log."""

    item_id: str
    if_position: int | None = None


class ClearScope(Change[Pending[int]], frozen=True, kw_only=True):
    """End every item that a scope sees; answers how many."""


class RestoreScope(Change[Pending[int]], frozen=True, kw_only=True):
    """Make a scope see again what it saw at a position; answers how many items that changed."""

    position: int


class MergeScope(Change[Pending[MergeReport]], frozen=True, kw_only=True):
    """Bring a snapshot scope's changes into its parent; see ``MergeReport``."""

    prefer: Prefer = "neither"


class ListSnapshots(_OnScope[Pending[list[ScopeOpened]]], frozen=True):
    """The scopes that are snapshots of a scope, oldest first: those that can be merged into it."""


class ForgetOthers(Request[None], frozen=True):
    """Another process has written to the journal, and what it wrote belongs to this one now: read everything again."""


class ForgetTree(msgspec.Struct, frozen=True):
    """A tree of runs has ended: what it asks for from now on is read again.

    Attributes:
        root: The run at its top.
    """

    root: str


SimpleMessage: TypeAlias = OpenScope | StoreItem | RetrieveItem | QueryItems | SnapshotScope
"""What can be decided with what the actor has in memory, as a rule."""


class ReadFirst(Request[Pending[Any]], frozen=True):
    """What the actor could not answer with what it has in memory; its askers send this by themselves."""

    request: SimpleMessage


ScopeMessage: TypeAlias = SimpleMessage | DeleteItem | ClearScope | RestoreScope | MergeScope | ListSnapshots
"""What users of a scope ask."""
MemoryMessage: TypeAlias = ScopeMessage | ReadFirst | ForgetOthers | ForgetTree
MemoryRef: TypeAlias = ActorRef[MemoryMessage]


class AsksMemory(Protocol):
    """What a ``Memory`` asks through: a ``MemoryRef``, or what relays to one on another machine."""

    async def ask(self, request: Any, /) -> Pending[Any]:
        """Ask; raises what the actor refuses."""
        ...
