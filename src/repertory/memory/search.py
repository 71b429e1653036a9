"""Full-text search over entries: plain words in, best passages out."""

from __future__ import annotations

import re
import sqlite3
import unicodedata
from collections.abc import Iterable, Sequence

from repertory.llm.messages import Block, ToolUse, text_of
from repertory.memory.entries import Entry
from repertory.memory.journal import SearchHit
from repertory.memory.rows import encode_json

EXCERPT = 500  # characters
TOKENIZER = "porter unicode61 remove_diacritics 2"
CREATE_INDEX = f"CREATE VIRTUAL TABLE entry_search USING fts5(words, content='', tokenize='{TOKENIZER}')"

_PHRASE_OR_WORD = re.compile(r'"([^"]+)"|([^\W_]+)')
_WORD = re.compile(r"[^\W_]+")


def searchable_text(content: Sequence[Block]) -> str:
    """The words of an entry: its texts and results, and the names and arguments of the calls it makes."""
    parts = [text_of(content)]
    parts += [f"{block.name} {encode_json(block.input)}" for block in content if isinstance(block, ToolUse)]
    # A lone surrogate is no character, and FTS5 stops reading at a NUL.
    return "\n".join(part for part in parts if part).encode("utf-8", "replace").decode().replace("\0", " ")


def match_expression(query: str) -> str:
    """Turn plain words into an FTS5 query that finds entries with any of them; "" where there is no word.

    Words between double quotes are a phrase. Everything else that FTS5 would read as syntax is dropped.
    """
    parts = []
    for phrase, word in _PHRASE_OR_WORD.findall(query):
        words = _WORD.findall(phrase) if phrase else [word]
        if words:
            parts.append('"' + " ".join(words) + '"')
    return " OR ".join(parts)


def _plain(text: str) -> str:
    """Lower case without accents, of the same length, so that places in it are places in the text."""
    return "".join(unicodedata.normalize("NFD", char)[0].lower()[:1] or char for char in text)


def cut_at(text: str, start: int, limit: int = EXCERPT) -> tuple[int, int]:
    """Bounds of a piece of at most ``limit`` characters around ``start`` that begins and ends between words."""
    if len(text) <= limit:
        return 0, len(text)
    first = max(0, min(start - limit // 4, len(text) - limit))
    last = first + limit
    if first > 0 and (space := text.find(" ", first, start + 1)) >= 0:
        first = space + 1
    if last < len(text) and (space := text.rfind(" ", start + 1, last)) >= 0:
        last = space
    return first, last


def excerpt_for(text: str, query: str, *, limit: int = EXCERPT) -> str:
    """The words around the place where most words of the query stand together."""
    stems = {word[: max(4, len(word) - 3)] for word in (_plain(word) for word in _WORD.findall(query))}
    if not stems or len(text) <= limit:
        return text[slice(*cut_at(text, 0, limit))]
    found = re.finditer("|".join(rf"\b({re.escape(stem)})" for stem in sorted(stems)), _plain(text))
    places = [(match.start(), match.group()) for match in found]
    best, most = 0, 0
    for index, (start, _) in enumerate(places):
        near = {stem for place, stem in places[index : index + 50] if place < start + limit // 2}
        if len(near) > most:
            best, most = start, len(near)
    return text[slice(*cut_at(text, best, limit))]


def search_hit(run_id: str, entry: Entry, rank: float, query: str) -> SearchHit:
    """One answer; SQLite's rank is better the smaller it is."""
    text = searchable_text(entry.content)
    return SearchHit(run_id=run_id, position=entry.position, score=-rank, excerpt=excerpt_for(text, query))


class EntryIndex:
    """A full-text index in memory, for journals that keep none in a file."""

    def __init__(self) -> None:
        self._db = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._db.execute(CREATE_INDEX)
        self._entries: list[tuple[str, Entry]] = []

    @property
    def size(self) -> int:
        """How many entries are indexed."""
        return len(self._entries)

    def add(self, entries: Iterable[tuple[str, Entry]]) -> None:
        """Index further entries, each with its run."""
        for run_id, entry in entries:
            row = (len(self._entries), searchable_text(entry.content))
            self._db.execute("INSERT INTO entry_search (rowid, words) VALUES (?, ?)", row)
            self._entries.append((run_id, entry))

    def search(self, run_id: str, query: str, *, limit: int) -> list[SearchHit]:
        """The run's best entries; ties in the order of the ledger."""
        if not (match := match_expression(query)):
            return []
        rows = self._db.execute(
            "SELECT rowid, bm25(entry_search) FROM entry_search WHERE entry_search MATCH ? ORDER BY 2, 1", (match,)
        )
        hits = ((rank, *self._entries[rowid]) for rowid, rank in rows)
        found = [search_hit(run, entry, rank, query) for rank, run, entry in hits if run == run_id]
        return found[: max(0, limit)]

    def close(self) -> None:
        """Let the memory go."""
        self._db.close()
