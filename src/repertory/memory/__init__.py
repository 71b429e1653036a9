"""What agents keep: items in scopes, behind the memory actor."""

from __future__ import annotations

from repertory.memory.actor import (
    ClearScope,
    DeleteItem,
    MemoryActor,
    MemoryRef,
    MergeScope,
    OpenScope,
    QueryItems,
    Queued,
    Quotas,
    RestoreScope,
    RetrieveItem,
    SnapshotScope,
    StoreItem,
)
from repertory.memory.handle import Memory
from repertory.memory.items import Item, ItemInfo, ItemQuery, Transform
from repertory.memory.payload import Payload, PayloadScope, SourceRecord
from repertory.memory.scopes import Conflict, MergeReport

__all__ = [
    "ClearScope",
    "Conflict",
    "DeleteItem",
    "Item",
    "ItemInfo",
    "ItemQuery",
    "Memory",
    "MemoryActor",
    "MemoryRef",
    "MergeReport",
    "MergeScope",
    "OpenScope",
    "Payload",
    "PayloadScope",
    "QueryItems",
    "Queued",
    "Quotas",
    "RestoreScope",
    "RetrieveItem",
    "SnapshotScope",
    "SourceRecord",
    "StoreItem",
    "Transform",
]
