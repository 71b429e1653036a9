"""Stored contents: which tree they belong to, when they are due, and how the ledger restores those cleaned up.

What an entry holds whole is read from the entry; the content store has the body of a result that was cut on arrival.
Once the agent has retrieved all of it, page by page, the ledger holds it too, and the store may delete its copy.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from repertory.llm.messages import text_of
from repertory.record.entries import Entry
from repertory.record.records import FINAL_STATES, ContentStored


def of_tree(column: str) -> str:
    """SQL that matches a run and all runs below it; its three values are the run's id.

    The ids below it begin with its own and a dot; '/' comes right after '.'.
    """
    return f"({column} = ? OR ({column} > ? || '.' AND {column} < ? || '/'))"


OF_TREE: Final = of_tree("run_id")


def root_of(column: str) -> str:
    """SQL for the id of the root above a run, from the run's own id."""
    return f"substr({column}, 1, instr({column} || '.', '.') - 1)"


STORED: Final = "JOIN content_bodies b ON b.seq = t.seq"
FINAL: Final = ", ".join(f"'{state}'" for state in sorted(FINAL_STATES))
"""The states of runs that have ended, for SQL."""


def due(whose: str) -> str:
    """SQL for the bodies that are due, of the runs that match ``whose``; "" for all."""
    # The end of the tree counts: until then any of its runs may read what another one stored. This does not use the
    # view run_status, for which SQLite would first make a table of the states of all runs, at every run's end.
    return f"""{STORED}
        LEFT JOIN run_states s ON s.seq = (
            SELECT max(seq) FROM run_states WHERE run_id = {root_of("t.run_id")})
            AND s.state IN ({FINAL})
        WHERE {whose} (t.expires_at <= ? OR s.at + t.retention <= ? OR (
            t.expires_at IS NULL AND t.retention IS NULL AND s.at BETWEEN ? AND ?
            AND EXISTS (SELECT 1 FROM entries e WHERE e.run_id = t.run_id AND e.retrieved IS NOT NULL)))
        ORDER BY t.seq"""


HOLDING_SOME: Final = """(t.content_id IN (SELECT value FROM json_each(?)) OR t.retrieved IS NOT NULL)
    ORDER BY t.position"""
HOLDING: Final = "(t.content_id = ? OR (t.retrieved IS NOT NULL AND instr(t.retrieved, ?) > 0)) ORDER BY t.position"


def put_together(stored: ContentStored, entries: Iterable[Entry]) -> str:
    """The whole of a content, put together from entries of its run; "" if they do not hold all of it."""
    pieces: list[tuple[int, str]] = []
    for entry in entries:
        text = text_of(entry.content)
        if entry.content_id == stored.content_id and not entry.deduplicated_from:
            if not entry.original_length:
                return text[: stored.length]  # the runtime may have added a note
            # The head and tail of a result that was cut, or its excerpt.
            for (start, end), where in zip(entry.spans, ("head", "tail"), strict=False):
                pieces.append((0 if where == "head" else stored.length - (end - start), text[start:end]))
        for part in entry.retrieved.parts if entry.retrieved is not None else ():
            if part.source == stored.content_id and part.at >= 0:
                pieces.append((part.start, text[part.at : part.at + part.end - part.start]))
    whole: list[str] = []
    done = 0
    for start, piece in sorted(pieces):
        if start > done:
            return ""
        if start + len(piece) > done:
            whole.append(piece[done - start :])
            done = start + len(piece)
    return "".join(whole) if done == stored.length else ""
