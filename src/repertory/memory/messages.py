"""The messages that the memory actor takes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, cast

from repertory._frozen import EMPTY_DICT, freeze_fields
from repertory.actors import ActorRef, Request
from repertory.llm.messages import Json
from repertory.memory.items import BYTES, FULL, Item, Transform, check_json
from repertory.memory.merging import MergeReport, Prefer
from repertory.record.items import ItemQuery
from repertory.record.memory_records import ItemInfo, ScopeMode, ScopeOpened

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


Pending: TypeAlias = Callable[[], Awaitable[T]]
"""The actor's answer: the decision is made, and the asker calls this once, to wait for the file to be read or written.

Cancelling the call does not take a write back.
"""


class _OnScope(Request[T_co], Generic[T_co], frozen=True, kw_only=True):
    """A message about one scope.

    Attributes:
        by: The run on whose behalf it is sent. A scope of another tree of runs is not found. "" for the application
            itself, which may use every scope.
    """

    scope_id: str
    by: str = ""


class Change(_OnScope[T_co], Generic[T_co], frozen=True, kw_only=True):
    """A message that writes to a scope.

    Attributes:
        write: Called with the answer and the records instead of ``Journal.submit``, to write more in the same
            transaction; returns the ticket. A change of many items calls it in a thread. None writes nothing more.
    """

    write: Any = None


class OpenScope(Request[Pending[ScopeOpened]], frozen=True, kw_only=True):
    """Open a scope; opening it again under the same id returns the existing one.

    Attributes:
        owner: The run that will use the scope.
        mode: ``root`` and ``isolated`` begin empty; ``shared`` is another name for its parent; ``snapshot`` sees the
            parent as of ``position`` and keeps its own writes. ``shared-read-only`` and ``snapshot-read-only`` allow
            no writes.
        parent_id: Needed by all modes but ``root`` and ``isolated``. Opening the scope shares the parent with
            ``owner``.
        scope_id: "" for a new id.
        position: For snapshots, the answer to ``SnapshotScope``; None for the current position.
        by: As in ``_OnScope``, for the parent.
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
    metadata: Json = EMPTY_DICT
    if_position: int | None = None

    def __post_init__(self) -> None:
        freeze_fields(self, "content", "metadata", sequences=("tags", "related_to"))
        # Here, as a message to another machine is encoded before the actor sees it.
        if not isinstance(self.content, BYTES):
            check_json("content", self.content)
        metadata: Any = self.metadata
        if isinstance(metadata, dict):  # anything else is refused with the fields of a wrong type
            check_json("metadata", metadata)


class RetrieveItem(_OnScope[Pending[Item]], frozen=True, kw_only=True):
    """Read an item through a transform."""

    item_id: str
    transform: Transform = FULL


class QueryItems(_OnScope[Pending[list[ItemInfo]]], frozen=True, kw_only=True):
    """List the items that a scope sees, without contents: newest first, or best match first if words are given."""

    query: ItemQuery = ItemQuery()


class SnapshotScope(_OnScope[Pending[int]], frozen=True):
    """Get the position that stands for the current state of all memory."""


class DeleteItem(Change[Pending[int]], frozen=True, kw_only=True):
    """Delete an item; its versions stay in the log."""

    item_id: str
    if_position: int | None = None


class ClearScope(Change[Pending[int]], frozen=True, kw_only=True):
    """Delete every item that a scope sees; the answer is how many."""


class MoveItems(Change[Pending[list[str]]], frozen=True, kw_only=True):
    """Give items other ids, or delete them, all in one transaction; see ``Memory.move``."""

    moves: dict[str, str | None]
    metadata: Json = EMPTY_DICT

    def __post_init__(self) -> None:
        if isinstance(cast("object", self.metadata), dict):  # as in ``StoreItem``
            check_json("metadata", self.metadata)


class RestoreScope(Change[Pending[int]], frozen=True, kw_only=True):
    """Make a scope see again what it saw at a position; the answer is how many items that changed."""

    position: int


class MergeScope(Change[Pending[MergeReport]], frozen=True, kw_only=True):
    """Merge a snapshot scope's changes into its parent; see ``MergeReport``."""

    prefer: Prefer = "neither"


class ListSnapshots(_OnScope[Pending[list[ScopeOpened]]], frozen=True):
    """List the snapshots of a scope, oldest first: those that can be merged into it."""


class ForgetOthers(Request[None], frozen=True):
    """Another process has written to the journal, and this one owns it now: forget everything and read it again."""


class ForgetTree(Request[None], frozen=True):
    """A tree of runs has ended, or is being removed: forget its scopes. If they are asked for, they are read again.

    Attributes:
        root: The id of its root run.
    """

    root: str


ScopeMessage: TypeAlias = (
    OpenScope
    | StoreItem
    | RetrieveItem
    | QueryItems
    | SnapshotScope
    | DeleteItem
    | ClearScope
    | MoveItems
    | RestoreScope
    | MergeScope
    | ListSnapshots
)
"""The requests of a scope's users."""
MemoryMessage: TypeAlias = ScopeMessage | ForgetOthers | ForgetTree
MemoryRef: TypeAlias = ActorRef[MemoryMessage]


class AsksMemory(Protocol):
    """What a ``Memory`` sends its requests to: a ``MemoryRef``, or a relay to one on another machine."""

    async def ask(self, request: Any, /) -> Pending[Any]:
        """Send a request; raises the error with which the actor refuses it."""
        ...
