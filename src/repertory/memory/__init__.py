"""Agent memory: items in scopes, managed by the memory actor."""

from __future__ import annotations

from repertory.memory.actor import MemoryActor
from repertory.memory.handle import Memory, MemoryMode
from repertory.memory.items import Item, Transform
from repertory.memory.merging import Conflict, MergeReport
from repertory.memory.messages import MemoryRef
from repertory.memory.payload import Payload, PayloadScope
from repertory.memory.quota import MemoryQuota
from repertory.memory.sources import SourceRecord
from repertory.record.items import ItemQuery
from repertory.record.memory_records import ItemInfo

__all__ = [
    "Conflict",
    "Item",
    "ItemInfo",
    "ItemQuery",
    "Memory",
    "MemoryActor",
    "MemoryMode",
    "MemoryQuota",
    "MemoryRef",
    "MergeReport",
    "Payload",
    "PayloadScope",
    "SourceRecord",
    "Transform",
]
