"""Full-text search by PostgreSQL: the same words and stems as in a file, ranked by much the same figures."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from repertory._excerpts import fold
from repertory.errors import JournalDamaged, RunError
from repertory.record.postgres_sql import restore, translate
from repertory.record.rows import Value, encode_json
from repertory.record.search import ENTRIES, FullText, Labels, Question, SearchIndex, find_all_words, label, phrases_of

if TYPE_CHECKING:
    from repertory.record.postgres_sql import Connection

# A tsvector holds at most 1 MB of words and places up to 16,383; beyond both a phrase could not be found any more.
# https://www.postgresql.org/docs/current/textsearch-limitations.html
_PIECE_WORDS: Final = 12_000
_PIECE_CHARACTERS: Final = 120_000
_LONGEST: Final = 256  # characters of a word that count
_SLICE: Final = 256  # records whose words one transaction indexes, and
_SLICE_CHARACTERS: Final = 500_000  # the most characters
_REMOVING: Final = "SELECT pg_advisory_xact_lock('removals'::regclass::oid::int4, hashtext($1))"
_SAID: Final = "phraseto_tsquery('repertory_words', ?)"


def words_of_text(text: str) -> list[str]:
    """The words of a text as the index knows them: lower case and without accents, in their order."""
    return [word[:_LONGEST] for word in find_all_words(fold(unicodedata.normalize("NFC", text)))]


def pieces_of(text: str) -> Iterator[str]:
    """The words of a text, in pieces that the index takes."""
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
    """By GIN indexes of ``tsvector`` columns.

    ``ts_rank`` knows how often a word is there and how long the text is. How rare a word is among the entries of the
    run is weighed in as BM25 does: https://en.wikipedia.org/wiki/Okapi_BM25.
    """

    by_score = "ORDER BY f.score"

    def entries(self, run_id: str, query: str, columns: str) -> Question | None:
        """SELECT a score, the better the higher, and ``columns`` of entries ``t`` that have any of the words."""
        phrases = _phrases(query)
        if not phrases:
            return None
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

    def items(self, labels: Labels, text: str, upto: int, most: int) -> Question:
        """SELECT the ``place`` of items up to a position that have labels and all words, newest first."""
        wanted = " & ".join(f"({' | '.join(group)})" for group in labels)
        phrases = _phrases(text)
        if not phrases:
            sql = """SELECT position AS place FROM item_search WHERE labels @@ CAST(? AS tsquery) AND position <= ?
                     GROUP BY position ORDER BY position DESC"""
            return sql, [wanted, upto]
        sql = f"""SELECT position AS place, -max(ts_rank(words, q, 1)) AS score
                  FROM (SELECT {" && ".join([_SAID] * len(phrases))} AS q) asked, item_search
                  WHERE words @@ q AND labels @@ CAST(? AS tsquery) AND position <= ?
                  GROUP BY position ORDER BY position DESC LIMIT {most}"""
        return sql, [*phrases, wanted, upto]


def index_slice(connection: Connection, index: SearchIndex) -> tuple[int, int]:
    """Index the words of the next records that are not indexed yet, in one transaction.

    Returns:
        Up to which ``seq`` the index now is, and the last ``seq`` that has a record.
    """
    table = index.table
    with connection.transaction():
        (indexed,) = _one(connection, f"SELECT {index.progress} FROM search_progress FOR UPDATE")
        (last,) = _one(connection, f"SELECT coalesce(max(seq), 0) FROM {table.name}")
        (bound,) = _one(connection, "SELECT followed_up_to()")
        sql = f"{table.select_from()} WHERE t.seq > $1 AND t.seq < $2 ORDER BY t.seq LIMIT {_SLICE}"
        rows: list[tuple[Any, ...]] = []
        characters = 0
        for row in restore(connection.execute(sql, (indexed, bound)).fetchall()):
            indexed = int(row[0] or 0)
            try:
                found = index.row(*table.read(row))
            except JournalDamaged:
                continue  # whoever reads it is told; everything else can be searched
            if found is not None:
                place, (*labels, words) = found
                known = " ".join([label("run", table.read(row)[1].run_id)] if index is ENTRIES else labels)
                rows += [(place, number, known, piece) for number, piece in enumerate(pieces_of(words))]
                characters += len(words)
                if characters > _SLICE_CHARACTERS:
                    break
        sql = f"""INSERT INTO {index.name} VALUES ($1, $2, CAST($3 AS tsvector), to_tsvector('repertory_words', $4))
                  ON CONFLICT DO NOTHING"""
        with connection.pipeline(), connection.cursor() as cursor:
            cursor.executemany(sql, rows)
            cursor.execute(f"UPDATE search_progress SET {index.progress} = $1", (indexed,))
    return int(indexed), int(last)


class PostgresTables:
    """A connection in a transaction, from which records are removed."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def lock(self, run_id: str) -> None:
        """Let nobody else remove a run, or go on with it, before the end of the transaction.

        Raises:
            RunError: Another machine goes on with it.
        """
        self._connection.execute(_REMOVING, [run_id])
        # Whoever goes on with a run that has ended locks this row as well.
        self._connection.execute("SELECT 1 FROM runs WHERE run_id = $1 FOR UPDATE", [run_id])
        # '/' comes right after '.', so this is every run of the tree that has an owner of its own.
        tree = "SELECT run_id FROM ownership WHERE run_id = $1 OR (run_id > $1 || '.' AND run_id < $1 || '/')"
        if (found := self._connection.execute(tree, [run_id]).fetchone()) is not None:
            raise RunError(f"run {found[0]} goes on at another machine; stop it before run {run_id} is removed")

    def ask(self, sql: str, *values: Value) -> list[Sequence[Any]]:
        """Ask for rows."""
        return [*restore(self._connection.execute(translate(sql), values).fetchall())]

    def tell(self, sql: str, *values: Value) -> None:
        """Change rows."""
        self._connection.execute(translate(sql), values)

    def unindex(self, index: SearchIndex, numbers: Sequence[int]) -> None:
        """Forget the words of records that are about to be deleted."""
        these = "SELECT CAST(value AS BIGINT) FROM json_each(?)"
        if index is ENTRIES:
            sql = f"DELETE FROM entry_search WHERE seq IN ({these})"
        else:
            sql = f"DELETE FROM {index.name} WHERE position IN (SELECT position FROM items WHERE seq IN ({these}))"
        self.tell(sql, encode_json([*numbers]))


def _one(connection: Connection, sql: str) -> tuple[Any, ...]:
    row: tuple[Any, ...] = connection.execute(translate(sql)).fetchone()
    return row
