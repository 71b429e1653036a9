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
from repertory.memory.pairing import request_digest, request_tail
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

if TYPE_CHECKING:
    from repertory.memory.memory_journal import MemoryJournal
    from repertory.memory.sqlite_journal import SqliteJournal, open_journal

__all__ = [
    "FINAL_STATES",
    "ContentStored",
    "DecisionMade",
    "Draft",
    "Durability",
    "Effect",
    "Entry",
    "EntryAppended",
    "EntryKind",
    "EventLogged",
    "ItemWritten",
    "Journal",
    "Ledger",
    "MemoryJournal",
    "ModelCallRow",
    "ModelCalled",
    "ModelReplied",
    "OutcomeStatus",
    "Record",
    "RunRow",
    "RunStarted",
    "RunState",
    "RunStateChanged",
    "ScopeMode",
    "ScopeOpened",
    "SearchHit",
    "Snapshot",
    "SqliteJournal",
    "SummaryStored",
    "Ticket",
    "ToolCallRow",
    "ToolFinished",
    "ToolIntended",
    "estimate_entry",
    "open_journal",
    "request_digest",
    "request_tail",
]

_LATE = {
    "MemoryJournal": "repertory.memory.memory_journal",
    "SqliteJournal": "repertory.memory.sqlite_journal",
    "open_journal": "repertory.memory.sqlite_journal",
}


def __getattr__(name: str) -> Any:
    # What needs SQLite or the actor runtime loads when first named: most code needs the shapes alone.
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LATE[name]), name)
