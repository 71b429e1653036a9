"""What the writer does besides writing records; each is one transaction of its own, a ``Job``."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

from repertory.errors import JournalDamaged
from repertory.record.rows import ENTRIES
from repertory.record.search import searchable_text
from repertory.record.sqlite_file import lenient_text

_INDEX_SLICE: Final = 256  # entries whose words one job indexes, and
_INDEX_CHARACTERS: Final = 500_000  # the most characters, so that appends never wait long for a search


def index_slice(connection: sqlite3.Connection) -> tuple[int, int]:
    """Index the words of the next entries that are not indexed yet.

    Returns:
        Up to which ``seq`` the index now is, and the last ``seq`` that has an entry.
    """
    (indexed,) = connection.execute("SELECT indexed FROM search_progress").fetchone()
    (last,) = connection.execute("SELECT coalesce(max(seq), 0) FROM entries").fetchone()
    characters = 0
    sql = f"SELECT {ENTRIES.select('t')} FROM entries t WHERE t.seq > ? ORDER BY t.seq LIMIT ?"
    connection.text_factory = lenient_text
    for row in connection.execute(sql, (indexed, _INDEX_SLICE)).fetchall():
        try:
            seq, record = ENTRIES.read(row)
            words = searchable_text(record.entry.content)
        except JournalDamaged:
            seq, words = row[0], ""  # whoever reads that ledger is told; others can be searched
        connection.execute("INSERT INTO entry_search (rowid, words) VALUES (?, ?)", (seq, words))
        indexed = seq
        characters += len(words)
        if characters > _INDEX_CHARACTERS:
            break
    connection.execute("UPDATE search_progress SET indexed = ?", (indexed,))
    return indexed, last


def delete_contents(connection: sqlite3.Connection, now: float, final_states: Sequence[str]) -> int:
    """Delete the bodies of expired contents. The rules are those of ``pairing.is_expired``."""
    marks = ", ".join("?" * len(final_states))
    return connection.execute(
        f"""DELETE FROM content_bodies WHERE seq IN (
            SELECT c.seq FROM contents c LEFT JOIN run_status s ON s.run_id = c.run_id AND s.state IN ({marks})
            WHERE c.expires_at <= ? OR s.updated_at + c.retention <= ?)""",
        (*final_states, now, now),
    ).rowcount
