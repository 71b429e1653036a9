"""What is kept: the ledger of a run, the journal under it, the content store, memory items and their scopes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from repertory.memory.entries import Draft, Entry, EntryKind
from repertory.memory.journal import (
    Durability,
    Journal,
    ModelCallRow,
    RunRow,
    SearchHit,
    Ticket,
    ToolCallRow,
)
from repertory.memory.ledger import Ledger, estimate_entry
from repertory.memory.pairing import request_digest
from repertory.memory.records import (
    FINAL_STATES,
    ContentStored,
    DecisionMade,
    Effect,
    EntryAppended,
    EventLogged,
    ItemWritten,
    ModelCalled,
    ModelReplied,
    OutcomeStatus,
    Record,
    RunStarted,
    RunState,
    RunStateChanged,
    ScopeMode,
    ScopeOpened,
    SummaryStored,
    ToolFinished,
    ToolIntended,
)
from repertory.memory.snapshot import Snapshot
from repertory.memory.statistics import RunStatistics
from repertory.memory.tuning import favour_writers

if TYPE_CHECKING:
    from repertory.memory.actor import MemoryActor
    from repertory.memory.contents import Citation, ContentStore, Passage
    from repertory.memory.excerpts import Excerpt
    from repertory.memory.handle import Memory
    from repertory.memory.items import Item, ItemInfo, ItemQuery, Transform
    from repertory.memory.memory_journal import MemoryJournal
    from repertory.memory.messages import (
        ClearScope,
        DeleteItem,
        MemoryMessage,
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
    from repertory.memory.opening import open_journal
    from repertory.memory.redaction import Redactor
    from repertory.memory.scopes import Conflict, MergeReport
    from repertory.memory.sqlite_journal import SqliteJournal
    from repertory.memory.stress import AppendsReport, run_appends

__all__ = [
    "FINAL_STATES",
    "AppendsReport",
    "Citation",
    "ClearScope",
    "Conflict",
    "ContentStore",
    "ContentStored",
    "DecisionMade",
    "DeleteItem",
    "Draft",
    "Durability",
    "Effect",
    "Entry",
    "EntryAppended",
    "EntryKind",
    "EventLogged",
    "Excerpt",
    "Item",
    "ItemInfo",
    "ItemQuery",
    "ItemWritten",
    "Journal",
    "Ledger",
    "Memory",
    "MemoryActor",
    "MemoryJournal",
    "MemoryMessage",
    "MemoryRef",
    "MergeReport",
    "MergeScope",
    "ModelCallRow",
    "ModelCalled",
    "ModelReplied",
    "OpenScope",
    "OutcomeStatus",
    "Passage",
    "QueryItems",
    "Queued",
    "Quotas",
    "Record",
    "Redactor",
    "RestoreScope",
    "RetrieveItem",
    "RunRow",
    "RunStarted",
    "RunState",
    "RunStateChanged",
    "RunStatistics",
    "ScopeMode",
    "ScopeOpened",
    "SearchHit",
    "Snapshot",
    "SnapshotScope",
    "SqliteJournal",
    "StoreItem",
    "SummaryStored",
    "Ticket",
    "ToolCallRow",
    "ToolFinished",
    "ToolIntended",
    "Transform",
    "estimate_entry",
    "favour_writers",
    "open_journal",
    "request_digest",
    "run_appends",
]

_LATE = {
    "Citation": "repertory.memory.contents",
    "ClearScope": "repertory.memory.messages",
    "Conflict": "repertory.memory.scopes",
    "ContentStore": "repertory.memory.contents",
    "DeleteItem": "repertory.memory.messages",
    "Excerpt": "repertory.memory.excerpts",
    "Item": "repertory.memory.items",
    "ItemInfo": "repertory.memory.items",
    "ItemQuery": "repertory.memory.items",
    "Memory": "repertory.memory.handle",
    "MemoryActor": "repertory.memory.actor",
    "MemoryJournal": "repertory.memory.memory_journal",
    "MemoryMessage": "repertory.memory.messages",
    "MemoryRef": "repertory.memory.messages",
    "MergeReport": "repertory.memory.scopes",
    "MergeScope": "repertory.memory.messages",
    "OpenScope": "repertory.memory.messages",
    "Passage": "repertory.memory.contents",
    "QueryItems": "repertory.memory.messages",
    "Queued": "repertory.memory.messages",
    "Quotas": "repertory.memory.messages",
    "RestoreScope": "repertory.memory.messages",
    "RetrieveItem": "repertory.memory.messages",
    "SnapshotScope": "repertory.memory.messages",
    "SqliteJournal": "repertory.memory.sqlite_journal",
    "StoreItem": "repertory.memory.messages",
    "Transform": "repertory.memory.items",
    "AppendsReport": "repertory.memory.stress",
    "run_appends": "repertory.memory.stress",
    "open_journal": "repertory.memory.opening",
    "Redactor": "repertory.memory.redaction",
}


def __getattr__(name: str) -> Any:
    # What needs SQLite or the actor runtime loads when it is first named: most code needs the shapes alone.
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LATE[name]), name)
