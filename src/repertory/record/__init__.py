"""What happened: the ledger of a run, the journal under it, and every record that either keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from repertory.record.entries import Draft, Entry, EntryKind
from repertory.record.journal import Durability, Journal, ModelCallRow, RunRow, SearchHit, Ticket, ToolCallRow
from repertory.record.ledger import Ledger, estimate_entry
from repertory.record.records import (
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
from repertory.record.requests import request_digest
from repertory.record.snapshot import Snapshot
from repertory.record.statistics import RunStatistics
from repertory.record.tuning import favour_writers

if TYPE_CHECKING:
    from repertory.record.memory_journal import MemoryJournal
    from repertory.record.opening import open_journal
    from repertory.record.redaction import Redactor
    from repertory.record.sqlite_journal import SqliteJournal

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
    "Redactor",
    "RunRow",
    "RunStarted",
    "RunState",
    "RunStateChanged",
    "RunStatistics",
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
    "favour_writers",
    "open_journal",
    "request_digest",
]

_LATE = {
    "MemoryJournal": "repertory.record.memory_journal",
    "Redactor": "repertory.record.redaction",
    "SqliteJournal": "repertory.record.sqlite_journal",
    "open_journal": "repertory.record.opening",
}


def __getattr__(name: str) -> Any:
    # What needs SQLite loads when it is first named: most code needs the shapes alone.
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LATE[name]), name)
