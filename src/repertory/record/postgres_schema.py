"""The journal's tables on PostgreSQL: those of ``repertory.record.schema``, and functions that only SQLite has.

The functions do for JSON text what SQLite's functions of the same names do, so that queries and views are written once.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Final

from repertory._postgres_address import PostgresAddress
from repertory._version import __version__
from repertory.errors import JournalMissing, JournalUnreadable
from repertory.record.schema import (
    SHARED,
    TRIGGERS,
    VERSION,
    VIEWS,
    changes,
    check_current,
    check_version,
    llm_calls,
)

if TYPE_CHECKING:
    from repertory.record.postgres_sql import Connection

BLOCK: Final = 1024
"""Record numbers that a transaction takes at once. 2**53 numbers, up to which JavaScript counts exactly, are enough
for 8.8 million million transactions, or 279 years at 1,000 a second."""

ITEM_POSITIONS: Final = 1 << 24
"""Positions of memory items that a machine takes at once: more than it writes between two takeovers of runs. 2**53
positions are enough to take them 536 million times."""

_LOCK: Final = 0x72707472  # "rptr", the same as in a file; a process that creates or changes the tables holds this lock

# JSON can hold what PostgreSQL's text cannot, NUL and lone surrogates, and then cannot be parsed there at all.
# Functions and views show the replacement character instead; the record has the original.
_UNESCAPED: Final = r"(?<!\\)((?:\\\\)*)"  # after an even number of backslashes, so that the next one begins an escape
_HIGH, _LOW = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_NO_TEXT: Final = rf"{_UNESCAPED}(?:\\u0000|{_HIGH}(?!{_LOW})|(?<!{_HIGH}){_LOW})"

# Each in a form whose names are looked up when it is made: an index is built, and restored by pg_restore, with a
# search_path in which they would not be found.
_FUNCTIONS: Final = (
    "CREATE OR REPLACE FUNCTION instr(whole text, part text) RETURNS integer IMMUTABLE RETURN strpos($1, $2)",
    rf"""CREATE OR REPLACE FUNCTION readable_json(body text) RETURNS json IMMUTABLE RETURN
        CASE WHEN $1 ~ '\\u(0000|[dD][89a-fA-F])' THEN regexp_replace($1, '{_NO_TEXT}', '\1\\ufffd', 'g')
        ELSE $1 END::json""",
    """CREATE OR REPLACE FUNCTION json_extract(body text, path text) RETURNS text IMMUTABLE RETURN (
        SELECT CASE json_typeof(found)
            WHEN 'null' THEN NULL
            WHEN 'boolean' THEN CASE found::text WHEN 'true' THEN '1' ELSE '0' END
            WHEN 'string' THEN found #>> '{}'
            ELSE found::text END
        FROM (SELECT readable_json($1) #> string_to_array(substr($2, 3), '.') AS found) looked_up)""",
    """CREATE OR REPLACE FUNCTION json_each(body text) RETURNS TABLE (key bigint, value text) IMMUTABLE BEGIN ATOMIC
        SELECT number - 1, item #>> '{}'
        FROM json_array_elements(readable_json($1)) WITH ORDINALITY AS items (item, number); END""",
    """CREATE OR REPLACE FUNCTION json_array_length(body text, path text) RETURNS bigint IMMUTABLE RETURN (
        SELECT CASE json_typeof(found) WHEN 'array' THEN json_array_length(found) ELSE 0 END
        FROM (SELECT readable_json($1) #> string_to_array(substr($2, 3), '.') AS found) looked_up
        WHERE found IS NOT NULL)""",
)

_NUMBERS: Final = (
    f"CREATE SEQUENCE record_seq AS bigint MINVALUE 0 START 0 INCREMENT {BLOCK}",
    "SELECT nextval('record_seq')",  # otherwise its first number would look the same whether it was taken or not
    # The number below which nothing can be written any more. The number that a transaction takes next is above the
    # floor that it holds a lock on, and numbers that nobody has taken yet are above the last value. Both are read
    # outside of any snapshot, so reading the floors first would miss a transaction that takes its number in between.
    f"""CREATE OR REPLACE FUNCTION followed_up_to() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
        DECLARE newest bigint; lowest bigint;
        BEGIN
            SELECT last_value INTO newest FROM record_seq;
            SELECT min(newest - (newest - objid::bigint & 4294967295)) INTO lowest FROM pg_locks
            WHERE locktype = 'advisory' AND objsubid = 2 AND classid = 'record_seq'::regclass::oid
              AND database = (SELECT oid FROM pg_database WHERE datname = current_database());
            RETURN coalesce(least(newest, lowest), newest) + {BLOCK};
        END $$""",
    # The last batch of each writing process, by which it finds out after a lost connection whether it was written.
    """CREATE TABLE writers (id uuid PRIMARY KEY, batch bigint NOT NULL, at timestamptz NOT NULL)
       WITH (fillfactor = 50)""",
)

# Several machines (processes with a supervisor) share a journal; see ``repertory.machines``.
_MACHINES: Final = (
    # Updated all the time: so there is no index on what changes, and room for the next version of a row beside it.
    """CREATE TABLE machines (machine_id uuid PRIMARY KEY, name text NOT NULL, labels text[] NOT NULL,
       host text NOT NULL, pid integer NOT NULL, kernel text NOT NULL, version text NOT NULL,
       lease double precision NOT NULL, started_at timestamptz NOT NULL, until timestamptz NOT NULL,
       draining boolean NOT NULL DEFAULT false, lost_at timestamptz)
       WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01)""",
    # The trees of runs that have not ended; an owner of NULL means that the tree waits for a machine. `home` is where
    # it was last, or was queued: a tree that is not portable needs something of that process, and runs nowhere else.
    """CREATE TABLE ownership (run_id text COLLATE "C" PRIMARY KEY, machine_id uuid, fence bigint NOT NULL,
       why text NOT NULL, agent text COLLATE "C" NOT NULL, client text COLLATE "C" NOT NULL,
       agent_ref text NOT NULL, agent_digest text NOT NULL, labels text[] NOT NULL,
       place double precision NOT NULL, home uuid NOT NULL, portable boolean NOT NULL)
       WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01)""",
    "CREATE INDEX ownership_by_machine ON ownership (machine_id)",
    "CREATE INDEX ownership_queue ON ownership (place) WHERE machine_id IS NULL",
    # Requests to runs that other machines own. `root_id` is the tree that has an owner, `taken_by` the machine that has
    # begun to carry the request out, `result` is its result, or `error` the error as JSON.
    """CREATE TABLE commands (command_id text COLLATE "C" PRIMARY KEY, root_id text COLLATE "C" NOT NULL,
       run_id text COLLATE "C" NOT NULL, verb text NOT NULL, body text NOT NULL, at timestamptz NOT NULL,
       taken_by uuid, answered_at timestamptz, error text, result text)""",
    "CREATE INDEX commands_open ON commands (root_id, at) WHERE answered_at IS NULL",
    # The tasks that one machine at a time does for all. A duty is free if its machine is lost or has left.
    """CREATE TABLE duties (name text COLLATE "C" PRIMARY KEY, machine_id uuid NOT NULL)""",
    # Taking over a machine locks its row FOR UPDATE, and so waits for a transaction that has passed here; later
    # transactions find the machine lost. A renewal changes no key, so it and this do not wait for each other.
    # A removal takes the lock of its tree for itself, and so waits for whoever still writes there.
    """CREATE OR REPLACE FUNCTION guard_machine(machine uuid, written text[]) RETURNS void LANGUAGE plpgsql AS $$
        DECLARE others text[]; roots text[];
        BEGIN
            PERFORM 1 FROM machines WHERE machine_id = machine AND lost_at IS NULL FOR KEY SHARE;
            IF NOT FOUND THEN
                RAISE EXCEPTION 'machine % was taken over', machine USING ERRCODE = 'RPF01';
            END IF;
            SELECT array_agg(DISTINCT split_part(run_id, '.', 1)) INTO roots FROM unnest(written) run_id;
            PERFORM pg_advisory_xact_lock_shared('removals'::regclass::oid::int4, hashtext(root))
            FROM unnest(roots) root;
            IF EXISTS (SELECT 1 FROM removals WHERE run_id = ANY(roots)) THEN
                RAISE EXCEPTION 'one of % was removed', roots USING ERRCODE = '23RPF';
            END IF;
            SELECT array_agg(run_id) FILTER (WHERE machine_id <> machine) INTO others FROM (
                SELECT run_id, machine_id FROM ownership WHERE run_id = ANY(written) ORDER BY run_id FOR KEY SHARE) o;
            IF others IS NOT NULL THEN
                RAISE EXCEPTION 'other machines own %', others USING ERRCODE = '23RPF';
            END IF;
        END $$""",
    # Each process assigns positions of memory items by itself, from its own starting number.
    f"CREATE SEQUENCE item_positions AS bigint MINVALUE 0 START 0 INCREMENT {ITEM_POSITIONS}",
)

# Words come in lower case, without accents and punctuation; no word is left out, as with FTS5.
_WORDS: Final = (
    "CREATE TEXT SEARCH DICTIONARY repertory_stem (TEMPLATE = pg_catalog.snowball, LANGUAGE = english)",
    """CREATE TEXT SEARCH CONFIGURATION repertory_words (PARSER = pg_catalog."default")""",
    """ALTER TEXT SEARCH CONFIGURATION repertory_words ADD MAPPING FOR asciiword, word, numword, asciihword, hword,
       numhword, hword_asciipart, hword_part, hword_numpart, int, uint, float, sfloat, version WITH repertory_stem""",
    """CREATE TABLE entry_search (seq BIGINT, piece BIGINT, run tsvector, words tsvector, PRIMARY KEY (seq, piece))""",
    "CREATE INDEX entry_search_by_words ON entry_search USING gin (run, words)",
    """CREATE TABLE item_search (position BIGINT, piece BIGINT, labels tsvector, words tsvector,
       PRIMARY KEY (position, piece))""",
    "CREATE INDEX item_search_by_words ON item_search USING gin (labels, words)",
)

_ELEMENTS: Final = """CROSS JOIN LATERAL json_array_elements(
    CASE json_typeof({0}) WHEN 'array' THEN {0} ELSE '[]'::json END) WITH ORDINALITY AS {1} (value, number)"""
_MESSAGES: Final = f"""placed (place, bound, role, block) AS (
                SELECT CASE WHEN m.number = 1 THEN start ELSE (start / 1000000 + m.number - 1) * 1000000 END
                           + b.number - 1,
                       bound, (m.value -> 'role')::text,
                       CASE WHEN (b.value -> 'type')::text IS DISTINCT FROM '"entry"' THEN b.value
                            WHEN b.value -> 'literal' IS NOT NULL THEN b.value -> 'literal'
                            ELSE (SELECT readable_json(content) -> CAST(b.value ->> 'block' AS INTEGER)
                                  FROM entries WHERE run_id = c.run_id
                                  AND position = CAST(b.value ->> 'position' AS BIGINT)) END
                FROM parts JOIN request_bodies r ON r.seq = parts.seq AND start < bound
                     {_ELEMENTS.format("(readable_json(r.body) -> 'messages')", "m")}
                     {_ELEMENTS.format("(m.value -> 'content')", "b")}),
            messages (place, message) AS (
                SELECT place / 1000000, '{{"role":' || min(role) || ',"content":['
                       || string_agg(coalesce(block::text, 'null'), ',' ORDER BY place) || ']}}'
                FROM placed WHERE place < bound GROUP BY place / 1000000)
            SELECT '[' || coalesce(string_agg(message, ',' ORDER BY place), '') || ']' FROM messages"""
_LLM_CALLS: Final = llm_calls(_MESSAGES, "to_char(to_timestamp(c.at) AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.MS')")

# Texts are sorted and compared by their bytes, as in SQLite, whatever the locale of the database.
_KINDS: Final = {"INTEGER": "BIGINT", "REAL": "DOUBLE PRECISION", "TEXT": 'TEXT COLLATE "C"'}
_KIND: Final = re.compile(rf"\b({'|'.join(_KINDS)})\b")


def _translated(sql: str) -> str:
    return _KIND.sub(lambda match: _KINDS[match[0]], sql) if sql.startswith(("CREATE TABLE", "ALTER TABLE")) else sql


def _trigger(table: str, event: str, sql: str) -> tuple[str, str]:
    name = f"{table}_{event}".lower()
    return (
        f"""CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN {sql}; RETURN NULL; END $$""",
        f"CREATE OR REPLACE TRIGGER {name} AFTER {event} ON {table} FOR EACH ROW EXECUTE FUNCTION {name}()",
    )


_TRIGGERS: Final = [sql for trigger in TRIGGERS for sql in _trigger(*trigger)]
_DECLARED: Final = (*_FUNCTIONS, *SHARED, *_TRIGGERS, *_NUMBERS, *_WORDS, *_MACHINES, *VIEWS, _LLM_CALLS)


def _relations(connection: Connection) -> list[tuple[str, str | None]]:
    return [
        *connection.execute(
            """SELECT c.relname, a.attname FROM pg_class c LEFT JOIN pg_attribute a ON a.attrelid = c.oid
               WHERE c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass('migrations'))"""
        )
    ]


def schema_version(connection: Connection, address: PostgresAddress) -> int:
    """Read the schema version of a database; 0 for one without a journal.

    Raises:
        JournalUnreadable: It holds another program's tables under our names, or an unreleased repertory's.
        JournalSchemaTooNew: A newer repertory wrote it.
    """
    found = connection.execute("SELECT to_regclass('migrations') IS NOT NULL, to_regclass('record_seq') IS NOT NULL")
    has_migrations, has_numbers = found.fetchone()
    if has_migrations != has_numbers:
        raise JournalUnreadable(
            f"{address} has a table 'migrations' that is not a journal's; choose another database, or a schema with "
            "?options=-csearch_path%3DNAME"
        )
    if not has_migrations:
        return 0
    (version,) = connection.execute("SELECT max(version) FROM migrations").fetchone()
    return check_version(version, _DECLARED, _relations(connection), address)


def migrate(connection: Connection, address: PostgresAddress) -> None:
    """Create the tables of a new journal, or bring an older one up to date; one process at a time."""
    if schema_version(connection, address) == VERSION:
        return  # without the lock, so that opening waits for nobody
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock($1)", [_LOCK])
        if schema_version(connection, address) == VERSION:
            return
        there = _relations(connection)
        with connection.pipeline():
            for statement in changes(_DECLARED, there):
                connection.execute(_translated(statement))
            values = (VERSION, time.time(), __version__)
            connection.execute("INSERT INTO migrations VALUES ($1, $2, $3)", values)


def check_readable(connection: Connection, address: PostgresAddress) -> None:
    """Check that a journal can be read.

    Raises:
        JournalUnreadable: There is no journal, or one of an older schema.
        JournalSchemaTooNew: A newer repertory wrote it.
    """
    version = schema_version(connection, address)
    if version == 0:
        raise JournalMissing(f"there is no journal at {address}")
    check_current(version, address)
