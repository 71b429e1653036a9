"""What happened: the ledger of a run, the journal that stores it, and all types of records."""

from __future__ import annotations

from repertory.record.entries import Draft, Entry
from repertory.record.journal import Durability, Journal
from repertory.record.ledger import Ledger, Snapshot
from repertory.record.opening import open_journal
from repertory.record.records import (
    FINAL_STATES,
    ContentStored,
    EventLogged,
    ModelCallRow,
    Record,
    RunRow,
    RunStarted,
    ToolCallRow,
)
from repertory.record.redaction import Redactor
from repertory.record.search import SearchHit
from repertory.record.sqlite_journal import MemoryJournal, SqliteJournal
from repertory.record.statistics import RunStatistics

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
