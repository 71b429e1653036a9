"""What may be asked of the memory actor, and its answers."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from repertory._frozen import freeze_fields
from repertory.actors import ActorRef, Request
from repertory.llm.messages import Json
from repertory.memory.items import FULL, Item, ItemInfo, ItemQuery, ItemType, Transform
from repertory.memory.scopes import MergeReport, Prefer
from repertory.record.journal import Ticket
from repertory.record.records import ScopeMode, ScopeOpened

T = TypeVar("T")


class Queued(Generic[T]):
    """The answer to a write: its value, and the way to wait until it is on the disk."""

    __slots__ = ("ticket", "value")

    def __init__(self, value: T, ticket: Ticket) -> None:
        self.value = value
        self.ticket = ticket

    async def durable(self) -> T:
        """Wait until the write is durable, then give its value. Raises ``JournalWriteFailed``."""
        await self.ticket.wait()
        return self.value


class Quotas(msgspec.Struct, frozen=True, kw_only=True):
    """How much one scope may hold of its own; None for no limit.

    Attributes:
        item_characters: Characters of one item.
        items: Living items.
        scope_characters: Characters of all living items.
    """

    item_characters: int | None = 1_000_000
    items: int | None = 10_000
    scope_characters: int | None = 64_000_000


class OpenScope(Request[Queued[ScopeOpened]], frozen=True, kw_only=True):
    """Open a scope; opening it again under the same id gives the one that exists.

    Attributes:
        owner: The run it is for.
        mode: ``root`` and ``isolated`` begin empty, ``shared`` is its parent, ``snapshot`` sees the parent as of
            ``position`` and writes for itself.
        parent_id: Needed by ``shared`` and ``snapshot``.
        scope_id: "" for a new id.
        position: For ``snapshot``: what ``SnapshotScope`` gave; None for now.
    """

    owner: str
    mode: ScopeMode = "root"
    parent_id: str | None = None
    scope_id: str = ""
    position: int | None = None


class StoreItem(Request[Queued[ItemInfo]], frozen=True, kw_only=True):
    """Write an item, or a new version of one. ``item_id`` "" means a new item."""

    scope_id: str
    content: str
    type: ItemType = "custom"
    item_id: str = ""
    source: str = ""
    tags: tuple[str, ...] = ()
    related_to: tuple[str, ...] = ()
    metadata: Json = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        freeze_fields(self, "metadata", sequences=("tags", "related_to"))


class RetrieveItem(Request[Item], frozen=True, kw_only=True):
    """Read an item in the wanted shape."""

    scope_id: str
    item_id: str
    transform: Transform = FULL


class QueryItems(Request[list[ItemInfo]], frozen=True, kw_only=True):
    """List the items that a scope sees, newest first, without their contents."""

    scope_id: str
    query: ItemQuery = ItemQuery()


class DeleteItem(Request[Queued[int]], frozen=True, kw_only=True):
    """End an item; its versions stay in the log."""

    scope_id: str
    item_id: str


class ClearScope(Request[Queued[int]], frozen=True, kw_only=True):
    """End every item that a scope sees; answers how many."""

    scope_id: str


class SnapshotScope(Request[int], frozen=True, kw_only=True):
    """Answers the position that stands for all memory as it is now."""

    scope_id: str


class RestoreScope(Request[Queued[int]], frozen=True, kw_only=True):
    """Make a scope see again what it saw at a position; answers how many items that changed."""

    scope_id: str
    position: int


class MergeScope(Request[Queued[MergeReport]], frozen=True, kw_only=True):
    """Bring a snapshot scope's changes into its parent; see ``ScopeTree.merge``."""

    scope_id: str
    prefer: Prefer = "neither"


MemoryMessage = (
    OpenScope
    | StoreItem
    | RetrieveItem
    | QueryItems
    | DeleteItem
    | ClearScope
    | SnapshotScope
    | RestoreScope
    | MergeScope
)

MemoryRef = ActorRef[MemoryMessage]
