"""Full-text search: the words of records are indexed behind them, in slices, when somebody searches."""

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
from repertory.record.records import EntryAppended, SearchHit
from repertory.record.rows import TABLES, Table, Value, encode_json

_PHRASE_OR_WORD = re.compile(r'"([^"]+)"|([^\W_]+)')
# Of scripts without spaces every letter is a word of its own, and several in a row are found as a phrase.
_WORD = re.compile(rf"[{UNSPACED}]|[^\W_{UNSPACED}]+")
_UNSPACED = re.compile(f"[{UNSPACED}]+")

Labels: TypeAlias = Sequence[Sequence[str]]
"""Groups of labels, made by ``label``: what is wanted has one at least of each group."""
Question: TypeAlias = tuple[str, list[Value]]
"""SQL, and the values for its marks."""


def label(kind: str, value: str) -> str:
    """What an index knows a value by that is no text: one word of digits, which no stemmer touches."""
    data = f"{kind}:{value}".encode("utf-8", "surrogatepass")
    return str(int.from_bytes(blake2b(data, digest_size=8).digest()))


class IndexRow(NamedTuple):
    """What an index has of a record: where, and the values of its columns."""

    place: int
    labels: tuple[str, ...]
    words: str


class SearchIndex(msgspec.Struct, frozen=True):
    """A table for full-text search over the records of one kind.

    Attributes:
        name: Of the table.
        table: Where the records stand.
        columns: Of the index; all but the last hold labels.
        progress: The column of ``search_progress`` that says up to which ``seq`` it is.
        row: From a record and its number to its row; None leaves the record out.
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
    """The words of an entry: its texts and results, and the names and arguments of the calls it makes."""
    parts = [text_of(content)]
    parts += [f"{block.name} {encode_json(block.input)}" for block in content if isinstance(block, ToolUse)]
    return indexable("\n".join(part for part in parts if part))


def indexable(text: str) -> str:
    """A text as FTS5 takes it: a lone surrogate is no character, and reading stops at a NUL."""
    return text.encode("utf-8", "replace").decode().replace("\0", " ")


def spaced(text: str) -> str:
    """A text with its words apart, as the index takes it."""
    # By stretches: letter by letter takes six times as long, while the writer waits.
    return text if text.isascii() else _UNSPACED.sub(lambda found: f" {' '.join(found[0])} ", text)


def phrases_of(query: str) -> list[str]:
    """The first words of a query, those between double quotes together as one phrase; everything else is dropped."""
    phrases: dict[str, None] = {}
    left = MOST_WORDS
    for found in _PHRASE_OR_WORD.finditer(query):
        words = [word[0] for word in islice(_WORD.finditer(found[1] or found[2]), left)]
        if any(map(str.isalnum, words)):
            phrases[" ".join(words)] = None
        left -= len(words)
        if not left:
            break
    return [*phrases]


def find_all_words(text: str) -> list[str]:
    """The words of a text, in their order."""
    return _WORD.findall(text)


class FullText:
    """How a journal searches: by SQLite's FTS5, unless another engine has its own way.

    Attributes:
        by_score: What orders items that are joined to a list of the best, best first. SQLite joins them in its order;
            asked to order them, it would read all thousand before it gives the best twenty.
    """

    by_score = ""

    def entries(self, run_id: str, query: str, columns: str) -> Question | None:
        """SELECT a score, the better the higher, and ``columns`` of entries ``t`` that have any of the words.

        None where the query has no word.
        """
        words = " OR ".join(f'"{phrase}"' for phrase in phrases_of(query))
        if not words:
            return None
        sql = f"""SELECT -bm25(entry_search, 0, 1) AS score, {columns} FROM entry_search
                  JOIN entries t ON t.seq = entry_search.rowid WHERE entry_search MATCH ? AND t.run_id = ?"""
        return sql, [f"run : {label('run', run_id)} AND words : ({words})", run_id]

    def items(self, labels: Labels, text: str, upto: int, most: int) -> Question:
        """SELECT the ``place`` of items up to a position that have labels and all words, newest first.

        Where there are words, with a ``score``, the better the lower, and no more than ``most``.
        """
        groups = " AND ".join(f"({' OR '.join(group)})" for group in labels[1:])
        words = " AND ".join(f'"{phrase}"' for phrase in phrases_of(text))
        columns = {"scope": labels[0][0], "labels": groups, "words": words}
        match = " AND ".join(f"{column} : ({wanted})" for column, wanted in columns.items() if wanted)
        score, limit = (", bm25(item_search, 0, 0, 1) AS score", f" LIMIT {most}") if words else ("", "")
        sql = f"""SELECT rowid AS place{score} FROM item_search
                  WHERE item_search MATCH ? AND rowid <= ? ORDER BY rowid DESC{limit}"""
        return sql, [match, upto]


def stems_of(query: str) -> str:
    """What the words of a query begin with, whatever their form: the index stems words, a text does not."""
    return " ".join(word[: max(4, len(word) - 3)] for word in words_of(query))


def search_hit(found: EntryAppended, score: float, query: str) -> SearchHit:
    """One answer, with the words around the place where most words of the query stand together; else the beginning."""
    text = searchable_text(found.entry.content)
    best = find_words(text, stems_of(query), limit=1)
    excerpt = best[0].text if best else first_chars(text, EXCERPT)
    return SearchHit(run_id=found.run_id, position=found.entry.position, score=score, excerpt=excerpt)
