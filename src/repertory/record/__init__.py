"""What happened: the ledger of a run, the journal under it, and every record that either keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from repertory.record.entries import Draft, Entry
from repertory.record.journal import Durability, Journal, ModelCallRow, RunRow, SearchHit, ToolCallRow
from repertory.record.ledger import Ledger, Snapshot
from repertory.record.records import FINAL_STATES, ContentStored, EventLogged, Record, RunStarted
from repertory.record.statistics import RunStatistics

if TYPE_CHECKING:
    from repertory.record.memory_journal import MemoryJournal
    from repertory.record.redaction import Redactor
    from repertory.record.sqlite_journal import SqliteJournal, open_journal

__all__ = [
    "FINAL_STATES",
    "ContentStored",
    "Draft",
    "Durability",
    "Entry",
    "EventLogged",
    "Journal",
    "Ledger",
    "MemoryJournal",
    "ModelCallRow",
    "Record",
    "Redactor",
    "RunRow",
    "RunStarted",
    "RunStatistics",
    "SearchHit",
    "Snapshot",
    "SqliteJournal",
    "ToolCallRow",
    "open_journal",
]

_LATE = {
    "MemoryJournal": "repertory.record.memory_journal",
    "Redactor": "repertory.record.redaction",
    "SqliteJournal": "repertory.record.sqlite_journal",
    "open_journal": "repertory.record.sqlite_journal",
}


def __getattr__(name: str) -> Any:
    # What needs SQLite loads when it is first named: most code needs the shapes alone.
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LATE[name]), name)
