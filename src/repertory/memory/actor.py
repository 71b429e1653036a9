"""The memory actor: all scopes and items of a journal behind one mailbox, and what may be asked of it.

Handlers are plain functions: they decide in memory, hand the records to the journal and answer at once, so an ask
of the idle actor runs inline in the asker. The answer to a write carries the ticket of its way to the disk, and it
is the asker who waits for that: many askers wait together for one group commit, and the actor for none. Others may
see an item in the instant between its write and its durability; if the write then fails, the whole journal has
failed with it, and every later write says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import msgspec

from repertory._frozen import freeze_fields
from repertory._ids import new_id
from repertory.actors import Accepts, ActorContext, ActorRef, Request, handler
from repertory.errors import ConfigurationError, JournalError, MemoryStoreError, QuotaExceeded
from repertory.llm.messages import Json
from repertory.memory.items import FULL, Item, ItemInfo, ItemQuery, Transform, item_info, matches, shape_item
from repertory.memory.scopes import MergeReport, Prefer, ScopeTree
from repertory.record.journal import Journal
from repertory.record.records import ItemWritten, ScopeMode, ScopeOpened
from repertory.record.waiting import Ticket

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
    type: str = "custom"
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

_EXPECTED = (MemoryStoreError, ConfigurationError, JournalError)


class MemoryActor:
    """Owns the scopes and items of a journal; there must be one for a journal."""

    receives: Accepts[MemoryMessage]

    def __init__(
        self, journal: Journal, *, quotas: Quotas | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._journal = journal
        self._quotas = quotas or Quotas()
        self._clock = clock
        self._tree = ScopeTree()

    async def started(self, _ctx: ActorContext) -> None:
        """Load everything from the journal, what a crashed predecessor left on its way included."""
        scopes = await self._journal.read_scopes()
        ids = list(dict.fromkeys(scope.scope_id for scope in scopes))
        self._tree = ScopeTree(scopes, await self._journal.read_items(ids))

    def _write(self, items: Sequence[ItemWritten], value: T) -> Queued[T]:
        ticket = self._journal.submit(items)  # may refuse: nothing is applied before it
        for item in items:
            self._tree.log.add(item)
        return Queued(value, ticket)

    @handler(expected=_EXPECTED)
    def open_scope(self, message: OpenScope) -> Queued[ScopeOpened]:
        """Open a scope."""
        known = self._tree.find_scope(message.scope_id)
        if known is not None:
            if (known.mode, known.parent_id) != (message.mode, message.parent_id):
                raise ConfigurationError(
                    f"scope {message.scope_id!r} exists as {known.mode} of {known.parent_id}, "
                    f"not as {message.mode} of {message.parent_id}"
                )
            return Queued(known, self._journal.submit(()))
        position = 0
        if message.mode in {"shared", "snapshot"}:
            if message.parent_id is None:
                raise ConfigurationError(f"a {message.mode} scope needs parent_id, got None")
            self._tree.scope(message.parent_id)
            if message.mode == "snapshot":
                position = self._check_position(message.position)
        elif message.parent_id is not None:
            raise ConfigurationError(f"a {message.mode} scope has no parent, got parent_id={message.parent_id!r}")
        scope = ScopeOpened(
            scope_id=message.scope_id or new_id("scope"),
            owner=message.owner,
            mode=message.mode,
            at=self._clock(),
            parent_id=message.parent_id,
            position=position,
        )
        ticket = self._journal.submit([scope])
        self._tree.add_scope(scope)
        return Queued(scope, ticket)

    def _check_position(self, position: int | None) -> int:
        now = self._tree.log.position
        if position is None:
            return now
        if not 0 <= position <= now:
            raise ConfigurationError(f"position {position} is not within the item log, which is at {now}")
        return position

    @handler(expected=_EXPECTED)
    def store_item(self, message: StoreItem) -> Queued[ItemInfo]:
        """Write an item."""
        target = self._tree.target(message.scope_id).scope_id
        item = ItemWritten(
            scope_id=target,
            item_id=message.item_id or new_id("item"),
            position=self._tree.log.position + 1,
            type=message.type,
            content=message.content,
            at=self._clock(),
            source=message.source,
            tags=message.tags,
            related_to=message.related_to,
            metadata=message.metadata,
        )
        item = self._journal.redact(item)
        self._check_quotas([item])
        return self._write([item], item_info(item))

    def _check_quotas(self, items: Sequence[ItemWritten]) -> None:
        grown: dict[str, tuple[int, int]] = {}
        for item in items:
            count, characters = grown.get(item.scope_id) or self._tree.log.size(item.scope_id)
            before = self._tree.log.version_at(item.scope_id, item.item_id, None)
            if before is not None and not before.deleted:
                count, characters = count - 1, characters - len(before.content)
            if not item.deleted:
                count, characters = count + 1, characters + len(item.content)
                _check_quota(item.scope_id, "characters in one item", len(item.content), self._quotas.item_characters)
            grown[item.scope_id] = count, characters
        for scope_id, (count, characters) in grown.items():
            _check_quota(scope_id, "items", count, self._quotas.items)
            _check_quota(scope_id, "characters", characters, self._quotas.scope_characters)

    @handler(expected=_EXPECTED)
    def retrieve_item(self, message: RetrieveItem) -> Item:
        """Read an item."""
        return shape_item(self._tree.get(message.scope_id, message.item_id), message.transform)

    @handler(expected=_EXPECTED)
    def query_items(self, message: QueryItems) -> list[ItemInfo]:
        """List items."""
        query = message.query
        found = [item for item in self._tree.visible(message.scope_id).values() if matches(item, query)]
        found.sort(key=lambda item: -item.position)
        return [item_info(item) for item in (found if query.limit is None else found[: max(0, query.limit)])]

    @handler(expected=_EXPECTED)
    def delete_item(self, message: DeleteItem) -> Queued[int]:
        """End one item."""
        return self._write(self._tree.delete(message.scope_id, message.item_id, at=self._clock()), 1)

    @handler(expected=_EXPECTED)
    def clear_scope(self, message: ClearScope) -> Queued[int]:
        """End every item."""
        items = self._tree.clear(message.scope_id, at=self._clock())
        return self._write(items, len(items))

    @handler(expected=_EXPECTED)
    def snapshot_scope(self, message: SnapshotScope) -> int:
        """The position now."""
        self._tree.scope(message.scope_id)
        return self._tree.log.position

    @handler(expected=_EXPECTED)
    def restore_scope(self, message: RestoreScope) -> Queued[int]:
        """Go back to a position."""
        items = self._tree.restore(message.scope_id, self._check_position(message.position), at=self._clock())
        self._check_quotas(items)
        return self._write(items, len(items))

    @handler(expected=_EXPECTED)
    def merge_scope(self, message: MergeScope) -> Queued[MergeReport]:
        """Merge into the parent."""
        items, report = self._tree.merge(message.scope_id, at=self._clock(), prefer=message.prefer)
        self._check_quotas(items)
        return self._write(items, report)


def _check_quota(scope_id: str, what: str, would_be: int, limit: int | None) -> None:
    if limit is not None and would_be > limit:
        raise QuotaExceeded(
            f"scope {scope_id!r} would hold {would_be} {what} and may hold {limit}; delete or shorten something first"
        )
