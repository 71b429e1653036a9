"""``Memory``, the handle on one memory scope for applications and tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias, TypeVar

from repertory._choices import check_choice, check_fields, check_type
from repertory.actors import Request
from repertory.llm.messages import Json
from repertory.memory.items import FULL, Item, NewContent, Transform
from repertory.memory.merging import MergeReport, Prefer
from repertory.memory.messages import (
    AsksMemory,
    ClearScope,
    DeleteItem,
    ListSnapshots,
    MergeScope,
    MoveItems,
    OpenScope,
    Pending,
    QueryItems,
    RestoreScope,
    RetrieveItem,
    SnapshotScope,
    StoreItem,
)
from repertory.record.items import ItemQuery
from repertory.record.memory_records import ItemInfo, ScopeOpened
from repertory.record.records import Record
from repertory.record.waiting import Ticket

T = TypeVar("T")
MemoryMode: TypeAlias = Literal["shared", "shared-read-only", "snapshot", "snapshot-read-only", "isolated"]


class Memory:
    """A handle on one memory scope, for applications and tools. Writes return when they are durable.

    Every method raises ``ConfigurationError`` for an argument of a wrong type, and ``ScopeNotFound`` if there is no
    such scope, its run was removed, or it belongs to another tree of runs. Methods that write raise ``ScopeReadOnly``
    in a read-only scope.

    Attributes:
        scope_id: The id of the scope.
        owner: The run on whose behalf it is used; "" for the application itself, which may use every scope.
        ref: The memory actor, in this process or relayed from another.
    """

    def __init__(self, ref: AsksMemory, scope_id: str, owner: str = "") -> None:
        """Make a handle on a scope that is already open; ``Memory.open`` opens one."""
        self.ref = ref
        self.scope_id = scope_id
        self.owner = owner

    def __repr__(self) -> str:
        return f"<Memory of scope {self.scope_id}>"

    @classmethod
    async def open(cls, ref: AsksMemory, owner: str, *, scope_id: str = "") -> Memory:
        """Open a new, empty scope, or the existing scope with this id.

        Raises:
            RecordRefused: The owner or the id is longer than 1,000 characters, or cannot be written.
        """
        opened: Pending[ScopeOpened] = await ref.ask(OpenScope(owner=owner, scope_id=scope_id))
        return cls(ref, (await opened()).scope_id, owner)

    async def fork(
        self, owner: str, *, mode: MemoryMode = "snapshot", scope_id: str = "", position: int | None = None
    ) -> Memory:
        """Open a scope for a sub-agent, or share this one with another tree of runs.

        Args:
            owner: The run that will use the scope.
            mode: ``shared`` with this one, a ``snapshot`` of it, either of them read-only, or ``isolated``.
            scope_id: "" for a new id. If a scope with this id exists, it is returned.
            position: For snapshots, a position from ``snapshot``; None for the current one.
        """
        check_choice("Memory.fork: mode", mode, MemoryMode)
        parent = None if mode == "isolated" else self.scope_id
        message = OpenScope(
            owner=owner, mode=mode, parent_id=parent, scope_id=scope_id, position=position, by=self.owner
        )
        return Memory(self.ref, (await self._ask(message)).scope_id, owner)

    async def store(
        self,
        content: NewContent,
        *,
        type: str = "custom",  # noqa: A002 - the name of the thing
        item_id: str = "",
        media_type: str = "",
        source: str = "",
        tags: Sequence[str] = (),
        related_to: Sequence[str] = (),
        metadata: Json | None = None,
        if_position: int | None = None,
        write: Callable[[ItemInfo, Sequence[Record]], Ticket] | None = None,
    ) -> ItemInfo:
        """Write an item, or a new version of the item with ``item_id``.

        Args:
            content: Text, bytes, or any JSON value. A tuple comes back as a list.
            type: ``action_result``, ``web_content``, ``database_result``, ``custom``, or a word of your own.
            item_id: "" for a new item; at most 1,000 characters.
            media_type: The type of bytes, such as ``image/png``.
            source: Where the item comes from.
            tags: Words to find it by.
            related_to: Ids of items that it belongs to.
            metadata: The application's own data, as JSON.
            if_position: Write only if the version in view was written at this position; 0 if there must be none.
            write: Called with the answer and the item's records instead of ``Journal.submit``, to write more in the
                same transaction; returns the ticket.

        Raises:
            ItemChanged: The version in view is not the one at ``if_position``.
            QuotaExceeded: The scope is full.
            RecordRefused: The item cannot be kept exactly, such as a value with a date, a set or bytes in it.
        """
        for name, texts in (("tags", tags), ("related_to", related_to)):  # else a text's characters would be the list
            check_type(f"Memory.store: {name}", texts, list | tuple, "a list of texts")
        message = StoreItem(
            scope_id=self.scope_id,
            content=content,
            type=type,
            item_id=item_id,
            media_type=media_type,
            source=source,
            tags=tuple(tags),
            related_to=tuple(related_to),
            metadata={} if metadata is None else metadata,
            if_position=if_position,
            write=write,
            by=self.owner,
        )
        return await self._ask(message)

    async def retrieve(self, item_id: str, transform: Transform = FULL) -> Item:
        """Read an item. Raises ``ItemNotFound``, and ``ConfigurationError`` if the transform does not work on bytes."""
        return await self._ask(
            RetrieveItem(scope_id=self.scope_id, item_id=item_id, transform=transform, by=self.owner)
        )

    async def query(self, query: ItemQuery | None = None) -> list[ItemInfo]:
        """List items without their contents, newest first, or best match first with ``ItemQuery.text``.

        A ``query`` of None lists all items.
        """
        return await self._ask(QueryItems(scope_id=self.scope_id, query=query or ItemQuery(), by=self.owner))

    async def delete(self, item_id: str, *, if_position: int | None = None) -> None:
        """Delete an item. Its versions stay in the log.

        Args:
            item_id: The item's id.
            if_position: Delete it only if its current version was written at this position.

        Raises:
            ItemNotFound: There is no such item.
            ItemChanged: It has been written since.
        """
        await self._ask(DeleteItem(scope_id=self.scope_id, item_id=item_id, if_position=if_position, by=self.owner))

    async def clear(self) -> int:
        """Delete every item in view and return how many there were."""
        return await self._ask(ClearScope(scope_id=self.scope_id, by=self.owner))

    async def move(self, moves: Mapping[str, str | None], *, metadata: Json | None = None) -> list[str]:
        """Give items other ids, or delete them, all at once, and return the old ids of those there were.

        Args:
            moves: The new id of each item, by its id; None deletes it. An item that does not exist is passed over.
            metadata: Put into the metadata of the items that get another id.

        Raises:
            ItemChanged: There is an item with one of the new ids. Nothing was moved.
            QuotaExceeded: The scope has no room for inherited items that would become its own.
        """
        return await self._ask(
            MoveItems(scope_id=self.scope_id, moves={**moves}, metadata=metadata or {}, by=self.owner)
        )

    async def snapshot(self) -> int:
        """Return the current position, to pass to ``restore`` or ``fork`` later."""
        return await self._ask(SnapshotScope(scope_id=self.scope_id, by=self.owner))

    async def restore(self, position: int) -> int:
        """Make the scope what it was at a position, and return how many items that changed."""
        return await self._ask(RestoreScope(scope_id=self.scope_id, position=position, by=self.owner))

    async def merge(self, *, prefer: Prefer = "neither") -> MergeReport:
        """Merge this snapshot's changes into its parent. What one merge has settled, later merges leave alone.

        Args:
            prefer: Whose version the parent keeps of an item in conflict. ``both`` adds the child's version as a copy,
                ``<item id>@<scope id>``. ``neither`` leaves the conflict open: the parent keeps its own until a later
                merge.
        """
        check_choice("Memory.merge: prefer", prefer, Prefer)
        return await self._ask(MergeScope(scope_id=self.scope_id, prefer=prefer, by=self.owner))

    async def snapshots(self) -> list[Memory]:
        """The scopes that are snapshots of this one, oldest first; their ``merge`` brings their changes in here."""
        found = await self._ask(ListSnapshots(scope_id=self.scope_id, by=self.owner))
        return [Memory(self.ref, opened.scope_id, opened.owner) for opened in found]

    async def _ask(self, message: Request[Pending[T]]) -> T:
        """Ask the actor that all scopes share. A message with a field of a wrong type must not reach it."""
        check_fields(f"Memory: {type(message).__name__}", message)
        pending: Pending[T] = await self.ref.ask(message)
        return await pending()
