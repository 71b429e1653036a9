"""The handle that applications and tools hold of a memory scope."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

from repertory._choices import check_choice, check_fields, show
from repertory.actors import Request
from repertory.errors import ConfigurationError
from repertory.llm.messages import Json
from repertory.memory.items import FULL, Item, ItemInfo, NewContent, Transform
from repertory.memory.merging import MergeReport, Prefer
from repertory.memory.messages import (
    AsksMemory,
    ClearScope,
    DeleteItem,
    ListSnapshots,
    MergeScope,
    OpenScope,
    Pending,
    QueryItems,
    RestoreScope,
    RetrieveItem,
    SnapshotScope,
    StoreItem,
)
from repertory.record.items import ItemQuery
from repertory.record.records import Record, ScopeOpened
from repertory.record.waiting import Ticket

T = TypeVar("T")
MemoryMode: TypeAlias = Literal["shared", "shared-read-only", "snapshot", "snapshot-read-only", "isolated"]


class Memory:
    """One scope of memory, for applications and tools. Writes return when they are durable.

    Arguments of another type than they are declared with raise ``ConfigurationError``. Every use raises
    ``ScopeNotFound`` where there is no such scope, or it belongs to another tree of runs; what writes raises
    ``ScopeReadOnly`` in a scope that is read-only.

    Attributes:
        scope_id: The scope.
        owner: The run on whose behalf it is used; "" for the application itself, which may use every scope.
        ref: Whom it asks: the memory actor, of this process or by way of another.
    """

    def __init__(self, ref: AsksMemory, scope_id: str, owner: str = "") -> None:
        """Hold a scope that is open; ``Memory.open`` opens one."""
        self.ref = ref
        self.scope_id = scope_id
        self.owner = owner

    @classmethod
    async def open(cls, ref: AsksMemory, owner: str, *, scope_id: str = "") -> Memory:
        """Open an empty scope of its own, or the one that has this id already.

        Raises:
            RecordRefused: The owner or the id is longer than 1,000 characters, or cannot be written.
        """
        opened: Pending[ScopeOpened] = await ref.ask(OpenScope(owner=owner, scope_id=scope_id))
        return cls(ref, (await opened.result()).scope_id, owner)

    async def fork(
        self, owner: str, *, mode: MemoryMode = "snapshot", scope_id: str = "", position: int | None = None
    ) -> Memory:
        """Open a scope for a sub-agent, or share this one with somebody else's runs.

        Args:
            owner: The run it is for.
            mode: ``shared`` with this one, a ``snapshot`` of it, either of them read-only, or ``isolated``.
            scope_id: "" for a new id; the scope of this id is given if there is one.
            position: For snapshots: what ``snapshot`` gave; None for now.
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
        """Write an item, or a new version of the one with ``item_id``.

        Args:
            content: Text, bytes, or any value that JSON has.
            type: ``action_result``, ``web_content``, ``database_result``, ``custom``, or a word of your own.
            item_id: "" for a new item; at most 1,000 characters.
            media_type: What bytes are, such as ``image/png``.
            source: Where it comes from.
            tags: Words to find it by.
            related_to: Ids of items that it belongs to.
            metadata: The application's own, as JSON.
            if_position: Write only where the version in view is the one at this position; 0 where there must be none.
            write: Called with the answer and the item's records in place of ``Journal.submit``, to write more in the
                same transaction; gives the ticket.

        Raises:
            ItemChanged: There is another version than the one at ``if_position``.
            QuotaExceeded: The scope is full.
            RecordRefused: The item cannot be kept exactly.
        """
        message = StoreItem(
            scope_id=self.scope_id,
            content=content,
            type=type,
            item_id=item_id,
            media_type=media_type,
            source=source,
            tags=_several("tags", tags),
            related_to=_several("related_to", related_to),
            metadata={} if metadata is None else metadata,
            if_position=if_position,
            write=write,
            by=self.owner,
        )
        return await self._ask(message)

    async def retrieve(self, item_id: str, transform: Transform = FULL) -> Item:
        """Read an item. Raises ``ItemNotFound``; and ``ConfigurationError`` where bytes have no such shape."""
        return await self._ask(
            RetrieveItem(scope_id=self.scope_id, item_id=item_id, transform=transform, by=self.owner)
        )

    async def query(self, query: ItemQuery | None = None) -> list[ItemInfo]:
        """List items without their contents, newest first, or best first by ``ItemQuery.text``; None lists all."""
        return await self._ask(QueryItems(scope_id=self.scope_id, query=query or ItemQuery(), by=self.owner))

    async def delete(self, item_id: str, *, if_position: int | None = None) -> None:
        """End an item.

        Args:
            item_id: The item.
            if_position: End it only if it still is as it was written at this position.

        Raises:
            ItemNotFound: There is none.
            ItemChanged: Somebody has written it since.
        """
        await self._ask(DeleteItem(scope_id=self.scope_id, item_id=item_id, if_position=if_position, by=self.owner))

    async def clear(self) -> int:
        """End every item in view; returns how many."""
        return await self._ask(ClearScope(scope_id=self.scope_id, by=self.owner))

    async def snapshot(self) -> int:
        """A position to come back to."""
        return await self._ask(SnapshotScope(scope_id=self.scope_id, by=self.owner))

    async def restore(self, position: int) -> int:
        """See again what was seen at a position; returns how many items that changed."""
        return await self._ask(RestoreScope(scope_id=self.scope_id, position=position, by=self.owner))

    async def merge(self, *, prefer: Prefer = "neither") -> MergeReport:
        """Bring this snapshot's changes into its parent. Merging again changes nothing that a merge has settled.

        Args:
            prefer: Whose version of a conflict the parent has afterwards; ``both`` writes the child's beside it, as
                ``<item id>@<scope id>``; ``neither`` leaves it open: the parent keeps its own until a later merge.
        """
        check_choice("Memory.merge: prefer", prefer, Prefer)
        return await self._ask(MergeScope(scope_id=self.scope_id, prefer=prefer, by=self.owner))

    async def snapshots(self) -> list[Memory]:
        """The scopes that are snapshots of this one, oldest first; ``merge`` brings their changes in here."""
        found = await self._ask(ListSnapshots(scope_id=self.scope_id, by=self.owner))
        return [Memory(self.ref, opened.scope_id, opened.owner) for opened in found]

    async def _ask(self, message: Request[Pending[T]]) -> T:
        """Ask the actor that all scopes share, which must not get a message with a field of another type."""
        check_fields(f"Memory: {type(message).__name__}", message)
        pending: Pending[T] = await self.ref.ask(message)
        return await pending.result()


def _several(name: str, texts: Any) -> tuple[str, ...]:
    """A sequence of texts; not one text, whose letters would be taken for them."""
    if not isinstance(texts, list | tuple):
        raise ConfigurationError(f"Memory.store: {name} must be a list of texts, got {show(texts)}")
    several: tuple[str, ...] = tuple(texts)  # whose items the actor's message checks
    return several
