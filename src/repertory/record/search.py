"""Full-text search: the words of records are indexed later than they are written, in slices, before a search."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from repertory._cutting import first_chars
from repertory._excerpts import EXCERPT, MOST_WORDS, UNSPACED, find_words, words_of
from repertory.llm.messages import Block, ToolUse, text_of
from repertory.record.records import EntryAppended
from repertory.record.rows import TABLES, Table, Value, encode_json

_PHRASE_OR_WORD = re.compile(r'"([^"]+)"|([^\W_]+)')
# In scripts without spaces every letter is a word of its own, and several in a row are found as a phrase.
WORD: Final = re.compile(rf"[{UNSPACED}]|[^\W_{UNSPACED}]+")
_UNSPACED = re.compile(f"[{UNSPACED}]+")

Labels: TypeAlias = Sequence[Sequence[str]]
"""Groups of labels, made by ``label``. What is searched for has at least one label of each group."""
Question: TypeAlias = tuple[str, list[Value]]
"""SQL, and the values for its placeholders."""


def label(kind: str, value: str) -> str:
    """A label by which an index holds a value that is not text: one word of digits, which no stemmer changes."""
    data = f"{kind}:{value}".encode("utf-8", "surrogatepass")
    return str(int.from_bytes(blake2b(data, digest_size=8).digest()))


class IndexRow(NamedTuple):
    """A record in an index: its place and the values of its columns."""

    place: int
    labels: tuple[str, ...]
    words: str


class SearchIndex(msgspec.Struct, frozen=True):
    """A table for full-text search over the records of one kind.

    Attributes:
        columns: The columns of the index; all but the last hold labels.
        progress: The column of ``search_progress`` with the last ``seq`` that is indexed.
        row: Makes the row from a record and its number; None leaves the record out.
    """

    name: str
    table: Table
    columns: tuple[str, ...]
    progress: str
    row: Callable[[int, Any], IndexRow | None]


def _of_entry(seq: int, record: EntryAppended) -> IndexRow:
    return IndexRow(seq, (label("run", record.run_id),), spaced(searchable_text(record.entry.content)))


ENTRIES: Final = SearchIndex("entry_search", TABLES[EntryAppended], ("run", "words"), "entries", _of_entry)


def searchable_text(content: Sequence[Block]) -> str:
    """The text of an entry to search: its texts and results, and the names and arguments of the calls it makes."""
    parts = [text_of(content)]
    parts += [f"{block.name} {encode_json(block.input)}" for block in content if isinstance(block, ToolUse)]
    return indexable("\n".join(part for part in parts if part))


def indexable(text: str) -> str:
    """A text as FTS5 accepts it: without lone surrogates, and without NUL, at which reading would stop."""
    return text.encode("utf-8", "replace").decode().replace("\0", " ")


def spaced(text: str) -> str:
    """A text with spaces between its words, for the index."""
    # Run by run: going letter by letter takes six times as long, while the writer waits.
    return text if text.isascii() else _UNSPACED.sub(lambda found: f" {' '.join(found[0])} ", text)


def phrases_of(query: str) -> list[str]:
    """The first words of a query; words in double quotes become one phrase. Everything else is dropped."""
    phrases: dict[str, None] = {}
    left = MOST_WORDS
    for found in _PHRASE_OR_WORD.finditer(query):
        words = [word[0] for word in islice(WORD.finditer(found[1] or found[2]), left)]
        if any(map(str.isalnum, words)):
            phrases[" ".join(words)] = None
        left -= len(words)
        if not left:
            break
    return [*phrases]


class FullText:
    """The SQL for searching with SQLite's FTS5; other engines override it."""

    def entries(self, run_id: str, query: str, columns: str) -> Question:
        """SELECT a score (higher is better) and ``columns`` of entries ``t`` that have any of the words."""
        words = " OR ".join(f'"{phrase}"' for phrase in phrases_of(query))
        sql = f"""SELECT -bm25(entry_search, 0, 1) AS score, {columns} FROM entry_search
                  JOIN entries t ON t.seq = entry_search.rowid WHERE entry_search MATCH ? AND t.run_id = ?"""
        return sql, [f"run : {label('run', run_id)} AND words : ({words})", run_id]

    def items(self, labels: Labels, text: str, upto: int) -> Question:
        """SELECT the ``place`` of items up to a position that have the labels and all words, newest first.

        If there are words, also a ``score`` (lower is better).
        """
        groups = " AND ".join(f"({' OR '.join(group)})" for group in labels[1:])
        words = " AND ".join(f'"{phrase}"' for phrase in phrases_of(text))
        columns = {"scope": labels[0][0], "labels": groups, "words": words}
        match = " AND ".join(f"{column} : ({wanted})" for column, wanted in columns.items() if wanted)
        score = ", bm25(item_search, 0, 0, 1) AS score" if words else ""
        sql = f"""SELECT rowid AS place{score} FROM item_search
                  WHERE item_search MATCH ? AND rowid <= ? ORDER BY rowid DESC"""
        return sql, [match, upto]


class SearchHit(msgspec.Struct, frozen=True, kw_only=True):
    """One entry that a full-text search found.

    Attributes:
        score: Higher is better; comparable only within the hits of one search.
        excerpt: The words around the best match.
    """

    run_id: str
    position: int
    score: float
    excerpt: str


def stems_of(query: str) -> str:
    """Approximate stems of a query's words. The index finds other forms of a word, a search in plain text does not."""
    return " ".join(word[: max(4, len(word) - 3)] for word in words_of(query))


def search_hit(found: EntryAppended, score: float, query: str) -> SearchHit:
    """One hit, with the words around the place where most words of the query occur together, or the beginning."""
    text = searchable_text(found.entry.content)
    best = find_words(text, stems_of(query), limit=1)
    excerpt = best[0].text if best else first_chars(text, EXCERPT)
    return SearchHit(run_id=found.run_id, position=found.entry.position, score=score, excerpt=excerpt)
