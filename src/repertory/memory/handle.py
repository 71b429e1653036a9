"""The handle that applications and tools hold of a memory scope."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, TypeVar

from repertory._choices import check_choice, check_fields
from repertory.actors import Request
from repertory.llm.messages import Json
from repertory.memory.actor import (
    ClearScope,
    DeleteItem,
    MemoryRef,
    MergeScope,
    OpenScope,
    QueryItems,
    Queued,
    RestoreScope,
    RetrieveItem,
    SnapshotScope,
    StoreItem,
)
from repertory.memory.items import FULL, Item, ItemInfo, ItemQuery, Transform
from repertory.memory.scopes import MergeReport, Prefer

T = TypeVar("T")
ForkMode: TypeAlias = Literal["shared", "snapshot", "isolated"]


class Memory:
    """One scope of memory, for applications and tools. Writes return when they are durable.

    Arguments of another type than they are declared with raise ``ConfigurationError``.
    """

    def __init__(self, ref: MemoryRef, scope_id: str) -> None:
        """Hold a scope that is open; ``Memory.open`` opens one."""
        self._ref = ref
        self.scope_id = scope_id

    @classmethod
    async def open(cls, ref: MemoryRef, owner: str, *, scope_id: str = "") -> Memory:
        """Open an empty scope of its own, or the one that has this id already."""
        opened = await ref.ask(OpenScope(owner=owner, scope_id=scope_id))
        return cls(ref, (await opened.durable()).scope_id)

    async def fork(
        self, owner: str, *, mode: ForkMode = "snapshot", scope_id: str = "", position: int | None = None
    ) -> Memory:
        """Open a scope for a sub-agent: ``shared`` with this one, a ``snapshot`` of it, or ``isolated``."""
        check_choice("Memory.fork: mode", mode, ForkMode)
        parent = self.scope_id if mode in {"shared", "snapshot"} else None
        message = OpenScope(owner=owner, mode=mode, parent_id=parent, scope_id=scope_id, position=position)
        return Memory(self._ref, (await self._write(message)).scope_id)

    async def store(
        self,
        content: str,
        *,
        type: str = "custom",  # noqa: A002 - the name of the thing
        item_id: str = "",
        source: str = "",
        tags: Sequence[str] = (),
        related_to: Sequence[str] = (),
        metadata: Json | None = None,
    ) -> ItemInfo:
        """Write an item, or a new version of the one with ``item_id``.

        Raises:
            QuotaExceeded: The scope is full.
            RecordRefused: The item cannot be kept exactly.
        """
        message = StoreItem(
            scope_id=self.scope_id,
            content=content,
            type=type,
            item_id=item_id,
            source=source,
            tags=tuple(tags),
            related_to=tuple(related_to),
            metadata=metadata or {},
        )
        return await self._write(message)

    async def retrieve(self, item_id: str, transform: Transform = FULL) -> Item:
        """Read an item. Raises ``ItemNotFound``."""
        return await self._ask(RetrieveItem(scope_id=self.scope_id, item_id=item_id, transform=transform))

    async def query(self, query: ItemQuery | None = None) -> list[ItemInfo]:
        """List items, newest first, without their contents; None lists all."""
        return await self._ask(QueryItems(scope_id=self.scope_id, query=query or ItemQuery()))

    async def delete(self, item_id: str) -> None:
        """End an item. Raises ``ItemNotFound``."""
        await self._write(DeleteItem(scope_id=self.scope_id, item_id=item_id))

    async def clear(self) -> int:
        """End every item in view; returns how many."""
        return await self._write(ClearScope(scope_id=self.scope_id))

    async def snapshot(self) -> int:
        """A position to come back to."""
        return await self._ask(SnapshotScope(scope_id=self.scope_id))

    async def restore(self, position: int) -> int:
        """See again what was seen at a position; returns how many items that changed."""
        return await self._write(RestoreScope(scope_id=self.scope_id, position=position))

    async def merge(self, *, prefer: Prefer = "neither") -> MergeReport:
        """Bring this snapshot's changes into its parent; the report names what both had changed."""
        check_choice("Memory.merge: prefer", prefer, Prefer)
        return await self._write(MergeScope(scope_id=self.scope_id, prefer=prefer))

    async def _ask(self, message: Request[T]) -> T:
        """Ask the actor that all scopes share, which must not get a message with a field of another type."""
        check_fields(f"Memory: {type(message).__name__}", message)
        return await self._ref.ask(message)  # type: ignore[arg-type]

    async def _write(self, message: Request[Queued[T]]) -> T:
        return await (await self._ask(message)).durable()
