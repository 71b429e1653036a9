"""Full-text search by PostgreSQL: the same words and stems as in a file, ranked in much the same way."""

from __future__ import annotations

import unicodedata
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, Final

from repertory._excerpts import fold
from repertory.errors import RunError
from repertory.record.contents import OF_TREE, of_tree
from repertory.record.items import LAST_POSITION
from repertory.record.postgres_schema import BLOCK
from repertory.record.postgres_sql import driver, translate
from repertory.record.rows import Row, Value, encode_json
from repertory.record.search import (
    ENTRIES,
    WORD,
    FullText,
    IndexRow,
    Labels,
    Question,
    SearchIndex,
    label,
    phrases_of,
)
from repertory.record.tables import Tables

# A tsvector holds at most 1 MB of words, and positions up to 16,383; beyond these, a phrase would not be found.
# https://www.postgresql.org/docs/current/textsearch-limitations.html
_PIECE_WORDS: Final = 12_000
_PIECE_CHARACTERS: Final = 120_000
_LONGEST: Final = 256  # characters of a word that count
_REMOVING: Final = "SELECT pg_advisory_xact_lock('removals'::regclass::oid::int4, hashtext($1))"
_SAID: Final = "phraseto_tsquery('repertory_words', ?)"


def words_of_text(text: str) -> list[str]:
    """The words of a text as in the index: lower case and without accents, in their order."""
    return [word[:_LONGEST] for word in WORD.findall(fold(unicodedata.normalize("NFC", text)))]


def pieces_of(text: str) -> Iterator[str]:
    """The words of a text, in pieces that fit into the index."""
    piece: list[str] = []
    characters = 0
    for word in words_of_text(text):
        if len(piece) == _PIECE_WORDS or characters > _PIECE_CHARACTERS:
            yield " ".join(piece)
            piece, characters = [], 0
        piece.append(word)
        characters += len(word)
    yield " ".join(piece)


def _phrases(query: str) -> list[Value]:
    return [" ".join(words_of_text(phrase)) for phrase in phrases_of(query)]


class PostgresFullText(FullText):
    """Search with GIN indexes of ``tsvector`` columns.

    ``ts_rank`` considers how often a word occurs and how long the text is. The rarity of a word among the run's entries
    is added as in BM25: https://en.wikipedia.org/wiki/Okapi_BM25.
    """

    def entries(self, run_id: str, query: str, columns: str) -> Question:
        """SELECT a score (higher is better) and ``columns`` of entries ``t`` that have any of the words."""
        phrases = _phrases(query)
        names = [f"q{number}" for number in range(len(phrases))]
        asked = ", ".join(f"{_SAID} AS {name}" for name in names)
        found = f"""SELECT s.seq, s.words, {", ".join(names)} FROM asked, entry_search s
                    WHERE s.run @@ CAST(? AS tsquery) AND s.words @@ ({" || ".join(names)})"""
        of = "(SELECT count(*) FROM entries WHERE run_id = ?)"
        having = "count(DISTINCT seq) FILTER (WHERE words @@ {0})"
        rarities = ", ".join(f"ln(1 + ({of} + 0.5) / ({having.format(name)} + 0.5)) AS r{name}" for name in names)
        score = " + ".join(f"r{name} * ts_rank(f.words, f.{name}, 1)" for name in names)
        sql = f"""WITH asked AS (SELECT {asked}), found AS ({found}), rarities AS (SELECT {rarities} FROM found)
                  SELECT f.score, {columns} FROM (
                      SELECT f.seq, max({score}) AS score FROM found f, rarities GROUP BY f.seq) f
                  JOIN entries t ON t.seq = f.seq WHERE t.run_id = ?"""
        return sql, [*phrases, label("run", run_id), *[run_id] * len(phrases), run_id]

    def items(self, labels: Labels, text: str, upto: int) -> Question:
        """SELECT the ``place`` of items up to a position that have the labels and all words, newest first."""
        wanted = " & ".join(f"({' | '.join(group)})" for group in labels)
        phrases = _phrases(text)
        if not phrases:
            sql = """SELECT position AS place FROM item_search WHERE labels @@ CAST(? AS tsquery) AND position <= ?
                     GROUP BY position ORDER BY position DESC"""
            return sql, [wanted, upto]
        sql = f"""SELECT position AS place, -max(ts_rank(words, q, 1)) AS score
                  FROM (SELECT {" && ".join([_SAID] * len(phrases))} AS q) asked, item_search
                  WHERE words @@ q AND labels @@ CAST(? AS tsquery) AND position <= ?
                  GROUP BY position ORDER BY position DESC"""
        return sql, [*phrases, wanted, upto]


class PostgresTables(Tables):
    """A connection to PostgreSQL."""

    for_update = " FOR UPDATE"

    def _execute(self, sql: str, values: Sequence[Value]) -> Any:
        return self._connection.execute(translate(sql), values)

    def stream(self, sql: str, *values: Value, at_once: int) -> Generator[Row]:
        """Query rows, of which at most ``at_once`` are in memory."""
        with driver().RawServerCursor(self._connection, "stream") as cursor:
            cursor.execute(translate(sql), values)
            while rows := cursor.fetchmany(at_once):
                yield from rows

    def fill(self, table: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        """Write rows into a table."""
        sql = f"COPY {table} ({', '.join(columns)}) FROM STDIN"
        with self._connection.cursor() as cursor, cursor.copy(sql) as copy:
            for row in rows:
                copy.write_row(row)

    def lock_run(self, run_id: str) -> None:
        """Prevent others from removing or continuing a run until the end of the transaction; see ``Tables``."""
        self._connection.execute(_REMOVING, [run_id])
        # A machine that continues a run that has ended locks this row too.
        self._connection.execute("SELECT 1 FROM runs WHERE run_id = $1 FOR UPDATE", [run_id])
        for (owned,) in self.query(f"SELECT run_id FROM ownership WHERE {OF_TREE}", run_id, run_id, run_id):
            raise RunError(f"run {owned} goes on, or waits for a machine; stop it before run {run_id} is removed")

    def forget_commands(self, run_id: str) -> None:
        """Delete what machines have asked of a tree of runs, once it is answered; see ``Tables``."""
        those = f"answered_at IS NOT NULL AND {of_tree('root_id')}"
        self.execute(f"DELETE FROM commands WHERE {those}", run_id, run_id, run_id)

    def complete_below(self) -> int:
        """The number below which nothing can be written any more."""
        ((bound,),) = self.query("SELECT followed_up_to()")
        return int(bound)

    def number_above(self, newest: int) -> None:
        """Number later records above a number, and later items above those that are there."""
        self.execute("SELECT setval('record_seq', ?::bigint)", newest // BLOCK * BLOCK)
        self.execute(f"SELECT setval('item_positions', coalesce(({LAST_POSITION}), 0))")

    def index(self, index: SearchIndex, rows: Iterable[IndexRow]) -> None:
        """Add the words of records to an index."""
        sql = f"""INSERT INTO {index.name} VALUES ($1, $2, CAST($3 AS tsvector), to_tsvector('repertory_words', $4))
                  ON CONFLICT DO NOTHING"""
        pieces = [
            (row.place, number, " ".join(row.labels), piece)
            for row in rows
            for number, piece in enumerate(pieces_of(row.words))
        ]
        with self._connection.pipeline(), self._connection.cursor() as cursor:
            cursor.executemany(sql, pieces)

    def unindex(self, index: SearchIndex, numbers: Sequence[int]) -> None:
        """Remove the words of records that are about to be deleted."""
        these = "SELECT CAST(value AS BIGINT) FROM json_each(?)"
        if index is ENTRIES:
            sql = f"DELETE FROM entry_search WHERE seq IN ({these})"
        else:
            sql = f"DELETE FROM {index.name} WHERE position IN (SELECT position FROM items WHERE seq IN ({these}))"
        self.execute(sql, encode_json([*numbers]))
