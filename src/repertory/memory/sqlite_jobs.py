"""What the writer does besides writing records; each is one transaction of its own, a ``Job``."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

from repertory.llm.messages import decode_block
from repertory.memory.rows import decode_json
from repertory.memory.search import searchable_text

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
    rows = connection.execute(
        "SELECT seq, content FROM entries WHERE seq > ? ORDER BY seq LIMIT ?", (indexed, _INDEX_SLICE)
    ).fetchall()
    for seq, content in rows:
        words = searchable_text([decode_block(raw) for raw in decode_json(content)])
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
