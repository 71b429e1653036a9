"""The journal's tables, indexes and views, and how they are created in a file.

They are declared once, in their current form. A file of an older version gets what it lacks, in one transaction with
the new version number, so that it always has exactly one version. Records are never rewritten, and new columns are
empty in old rows.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from repertory._version import __version__
from repertory.errors import JournalSchemaTooNew, JournalUnreadable
from repertory.record.contents import root_of
from repertory.record.rows import TABLES, Table
from repertory.record.statistics import PROMPT, RESULT_SUMMARIZED, SUMMARY_REFUSED, SUMMARY_TAKEN, statistics_sql

APPLICATION_ID: Final = 0x72707472  # "rptr", at byte 68 of the file
VERSION: Final = 1
"""The version of this schema. After the first release, every change of the schema must increase it."""

# The iteration of the newest call of a run's loop. Calls are numbered, so this is one index lookup.
LATEST_ITERATION: Final = """(SELECT iteration FROM model_calls WHERE run_id = r.run_id AND purpose = 'agent'
                                   ORDER BY call DESC, seq DESC LIMIT 1)"""

# Every record has one number, `seq`, that counts all records of the journal: commits always write at the right
# edge of a table, which was measured to be three times faster than keys scattered by run. Large bodies are in tables
# of their own, so that listing calls and contents never reads them.
_KINDS: Final = {str: "TEXT", int: "INTEGER", float: "REAL"}


def _creations(table: Table) -> Iterator[str]:
    columns = (*table.columns, *([table.side_column] if table.side else []))
    kinds = {column: _KINDS[kind] for column, kind in zip(columns, table.kinds, strict=True)}
    kinds |= {"seq": "INTEGER PRIMARY KEY", "checksum": "INTEGER"}
    for name, own in table.layout.items():
        yield f"CREATE TABLE {name} ({', '.join(f'{column} {kinds[column]}' for column in own)})"


# In the SQL that SQLite and PostgreSQL share, with SQLite's column types.
SHARED: Final = (
    "CREATE TABLE migrations (version INTEGER PRIMARY KEY, at REAL, repertory TEXT)",
    *(sql for table in TABLES.values() for sql in _creations(table)),
    "CREATE UNIQUE INDEX runs_by_id ON runs (run_id)",
    "CREATE INDEX runs_of_roots ON runs (seq) WHERE parent_id IS NULL",
    # Unique, so that two ledgers of one run can never both be written.
    "CREATE UNIQUE INDEX entries_by_position ON entries (run_id, position)",
    # Few entries bring something back; cleaning up checks whether a run has any.
    "CREATE INDEX retrievals_by_run ON entries (run_id) WHERE retrieved IS NOT NULL",
    # With the number; otherwise PostgreSQL searches for a run's newest among those of all runs, from the end.
    "CREATE INDEX run_states_by_run ON run_states (run_id, seq)",
    "CREATE INDEX decisions_by_run ON decisions (run_id)",
    "CREATE INDEX tool_intents_by_run ON tool_intents (run_id)",
    "CREATE INDEX tool_outcomes_by_call ON tool_outcomes (run_id, call_id)",
    "CREATE INDEX model_calls_by_run ON model_calls (run_id, call)",
    "CREATE INDEX model_replies_by_run ON model_replies (run_id, call)",
    # Every check of a quota asks what was used since midnight.
    "CREATE INDEX model_calls_by_time ON model_calls (at)",
    "CREATE INDEX model_replies_by_time ON model_replies (at)",
    "CREATE INDEX contents_by_id ON contents (content_id)",
    "CREATE INDEX contents_by_run ON contents (run_id)",
    "CREATE INDEX summaries_by_run ON summaries (run_id)",
    # To find a summary of the same text, so that a tree pays for it only once.
    "CREATE INDEX summaries_by_key ON summaries (key)",
    f"""CREATE INDEX events_by_key ON events (json_extract(body, '$.key')) WHERE type = '{RESULT_SUMMARIZED}'""",
    "CREATE INDEX scopes_by_id ON scopes (scope_id)",
    "CREATE INDEX scopes_by_parent ON scopes (parent_id)",
    "CREATE INDEX scopes_by_owner ON scopes (owner)",
    "CREATE INDEX scope_merges_by_scope ON scope_merges (scope_id)",
    "CREATE INDEX items_by_scope ON items (scope_id, position)",
    # With the columns from which a scope's size is counted, so that counting reads only the index.
    "CREATE INDEX items_by_id ON items (scope_id, item_id, position, deleted, size)",
    # Unique, like the positions of entries.
    "CREATE UNIQUE INDEX payloads_by_version ON payloads (run_id, version)",
    "CREATE INDEX events_by_run ON events (run_id)",
    "CREATE INDEX schedules_by_name ON schedules (schedule)",
    "CREATE INDEX webhook_attempts_by_run ON webhook_attempts (run_id)",
    "CREATE INDEX webhook_attempts_by_url ON webhook_attempts (url, change)",
    f"CREATE INDEX events_of_summaries ON events (run_id) WHERE type IN ('{SUMMARY_TAKEN}', '{SUMMARY_REFUSED}')",
    # The trees that were removed: how many records, and the highest number and item position until then, as neither
    # is ever reused.
    """CREATE TABLE removals (run_id TEXT PRIMARY KEY, at REAL, finished INTEGER, records INTEGER, newest INTEGER,
                                 position INTEGER)""",
    "CREATE TABLE search_progress (entries INTEGER, items INTEGER)",
    # For a journal that was moved here: the last number, and how many records there were up to it.
    "CREATE TABLE moved (upto INTEGER, records INTEGER)",
    "INSERT INTO search_progress VALUES (0, 0)",
    "CREATE TABLE current_states (seq INTEGER PRIMARY KEY, root INTEGER, state TEXT, changed INTEGER)",
    "CREATE INDEX current_states_by_state ON current_states (state, root, seq)",
)

# The current state of each run, with the numbers of its beginning and of its last state change. It repeats what the
# records say, so that runs in a state are found quickly among any number of runs.
CURRENT_STATES: Final = """SELECT r.seq, CASE WHEN r.parent_id IS NULL THEN 1 ELSE 0 END AS root,
               coalesce(s.state, 'running') AS state, coalesce(s.seq, 0) AS changed
           FROM runs r LEFT JOIN run_states s ON s.seq = (SELECT max(seq) FROM run_states WHERE run_id = r.run_id)"""
# The triggers that keep it up to date, by table and event. The rows of a batch may come in any order of the tables.
TRIGGERS: Final = (
    ("runs", "INSERT", f"INSERT INTO current_states {CURRENT_STATES} WHERE r.seq = new.seq"),
    (
        "run_states",
        "INSERT",
        """UPDATE current_states SET state = new.state, changed = new.seq
           WHERE seq = (SELECT seq FROM runs WHERE run_id = new.run_id) AND changed < new.seq""",
    ),
    ("runs", "DELETE", "DELETE FROM current_states WHERE seq = old.seq"),
)

# For whom the tree was started; only its root says so.
_CLIENT: Final = f"(SELECT client FROM runs WHERE run_id = {root_of('r.run_id')})"

VIEWS: Final = (
    f"""CREATE VIEW run_status AS
           SELECT r.run_id, r.parent_id, r.depth, r.agent, r.model, {_CLIENT} AS client, r.task, r.at AS started_at,
                  coalesce(s.state, 'running') AS state, coalesce(s.at, r.at) AS updated_at,
                  (SELECT max(n) FROM (SELECT coalesce(s.iteration, 0) AS n
                                       UNION ALL SELECT coalesce({LATEST_ITERATION}, 0)) both_say) AS iteration,
                  s.result, s.error
           FROM runs r LEFT JOIN run_states s ON s.seq = (SELECT max(seq) FROM run_states WHERE run_id = r.run_id)""",
    """CREATE VIEW tool_calls AS
           SELECT i.run_id, i.iteration, i.call_id, i.tool, i.effect, i.arguments, i.at AS intended_at, o.status,
                  o.at AS finished_at, o.duration, o.deduplicated_from
           FROM tool_intents i LEFT JOIN tool_outcomes o ON o.seq = (
               SELECT max(seq) FROM tool_outcomes WHERE run_id = i.run_id AND call_id = i.call_id)""",
    f"""CREATE VIEW context_growth AS
           SELECT c.run_id, c.iteration, c.call, c.purpose, c.model, c.position AS entries, c.prompt_estimate,
                  c.expected_tokens,
                  {PROMPT} AS prompt_tokens, r.input_tokens, r.cache_read_tokens,
                  r.cache_write_tokens + r.cache_write_1h_tokens AS cache_write_tokens,
                  r.output_tokens, r.cost, r.plain_tokens, r.plain_cost, r.duration, r.stop_reason, r.error, c.at
           FROM model_calls c LEFT JOIN model_replies r ON r.run_id = c.run_id AND r.call = c.call
           ORDER BY c.seq""",
    f"""CREATE VIEW run_statistics AS
           SELECT r.parent_id, r.agent, r.model, {_CLIENT} AS client, s.*
           FROM ({statistics_sql()}) s JOIN runs r ON r.run_id = s.run_id""",
    # The last call of an iteration says what was expected: a refused prompt is planned again, smaller.
    """CREATE VIEW tokens_by_iteration AS
           SELECT run_id, iteration, count(*) AS model_calls, sum(prompt_tokens) AS prompt_tokens,
                  max(CASE WHEN call = newest THEN expected_tokens ELSE 0 END) AS expected_tokens,
                  sum(plain_tokens) AS plain_tokens,
                  sum(cache_read_tokens) AS cache_read_tokens, sum(cache_write_tokens) AS cache_write_tokens,
                  sum(output_tokens) AS output_tokens, coalesce(sum(cost), 0.0) AS cost
           FROM (SELECT *, max(call) OVER (PARTITION BY run_id, iteration) AS newest
                 FROM context_growth WHERE purpose = 'agent') calls
           GROUP BY run_id, iteration""",
    """CREATE VIEW tool_usage AS
           SELECT run_id, tool, count(*) AS calls, count(*) FILTER (WHERE status = 'error') AS errors,
                  count(*) FILTER (WHERE status = 'interrupted') AS interrupted, sum(retrieval) AS retrievals,
                  count(deduplicated_from) AS deduplicated, sum(duration) AS duration,
                  sum(characters) AS characters, sum(shown) AS shown
           FROM tool_outcomes GROUP BY run_id, tool""",
    """CREATE VIEW decision_log AS
           SELECT seq, run_id, iteration, at, kind, json_extract(body, '$.reason') AS reason,
                  CAST(json_extract(body, '$.arithmetic.prompt_before') AS NUMERIC) AS tokens_before,
                  CAST(json_extract(body, '$.arithmetic.prompt_after') AS NUMERIC) AS tokens_after,
                  CAST(json_extract(body, '$.arithmetic.cleared_tokens') AS NUMERIC) AS tokens_saved,
                  CAST(json_extract(body, '$.arithmetic.cost_now') AS DOUBLE PRECISION) AS cost_now,
                  CAST(json_extract(body, '$.arithmetic.saving_per_call') AS DOUBLE PRECISION) AS saving_per_call,
                  json_array_length(body, '$.edits') AS edits
           FROM decisions""",
    # A path is written as JSON has it: ["findings", 0, "title"]. A change in conflict was not made.
    """CREATE VIEW payload_history AS
           SELECT p.run_id, p.version, p.author, p.call_id, p.source, p.at, json_extract(c.value, '$.path') AS path,
                  json_extract(c.value, '$.op') AS op, json_extract(c.value, '$.value') AS value, NULL AS conflicts_with
           FROM payloads p, json_each(p.changes) c
           UNION ALL
           SELECT p.run_id, p.version, p.author, p.call_id, p.source, p.at, json_extract(c.value, '$.change.path'),
                  json_extract(c.value, '$.change.op'), json_extract(c.value, '$.change.value'),
                  CAST(json_extract(c.value, '$.version') AS NUMERIC)
           FROM payloads p, json_each(p.conflicts) c""",
    # A call that waits has neither a decision nor an outcome: its run has ended, or it is still waiting.
    """CREATE VIEW approvals AS
           SELECT q.run_id, json_extract(q.body, '$.call_id') AS call_id, json_extract(q.body, '$.tool') AS tool,
                  json_extract(q.body, '$.arguments') AS arguments, json_extract(q.body, '$.reason') AS asked_because,
                  q.at AS asked_at, CAST(json_extract(q.body, '$.expires_at') AS DOUBLE PRECISION) AS expires_at,
                  CASE CAST(json_extract(d.body, '$.allowed') AS NUMERIC)
                      WHEN 1 THEN 'allowed' WHEN 0 THEN 'denied' ELSE 'waiting' END AS decision,
                  json_extract(d.body, '$.by') AS decided_by, json_extract(d.body, '$.reason') AS reason,
                  json_extract(d.body, '$.arguments') AS changed_arguments, d.at AS decided_at, o.status
           FROM events q
           LEFT JOIN events d ON d.run_id = q.run_id AND d.type = 'ApprovalDecided'
                AND json_extract(d.body, '$.call_id') = json_extract(q.body, '$.call_id')
           LEFT JOIN tool_outcomes o ON o.run_id = q.run_id AND o.call_id = json_extract(q.body, '$.call_id')
           WHERE q.type = 'ApprovalRequested'""",
    """CREATE VIEW results_from_elsewhere AS
           SELECT a.run_id, json_extract(a.body, '$.call_id') AS call_id,
                  CAST(json_extract(a.body, '$.round') AS NUMERIC) AS round, json_extract(a.body, '$.tool') AS tool,
                  json_extract(a.body, '$.note') AS note, a.at AS asked_at,
                  CAST(json_extract(a.body, '$.expires_at') AS DOUBLE PRECISION) AS expires_at,
                  g.at AS given_at, CAST(json_extract(g.body, '$.is_error') AS NUMERIC) AS is_error, o.status
           FROM events a
           LEFT JOIN events g ON g.run_id = a.run_id AND g.type = 'ResultGiven'
                AND json_extract(g.body, '$.call_id') = json_extract(a.body, '$.call_id')
                AND json_extract(g.body, '$.round') = json_extract(a.body, '$.round')
           LEFT JOIN tool_outcomes o ON o.run_id = a.run_id AND o.call_id = json_extract(a.body, '$.call_id')
           WHERE a.type = 'ResultAwaited'""",
    """CREATE VIEW cost_by_purpose AS
           SELECT run_id, purpose, count(*) AS model_calls, coalesce(sum(prompt_tokens), 0) AS prompt_tokens,
                  coalesce(sum(output_tokens), 0) AS output_tokens, coalesce(sum(cost), 0.0) AS cost
           FROM context_growth GROUP BY run_id, purpose""",
)

# Where a call's own part of its request begins: what it takes from the call that it builds on is before that place.
_START: Final = "CASE WHEN {0}.base_call IS NULL THEN 0 ELSE {0}.shared_messages * 1000000 + {0}.shared_blocks END"


def request_parts(run_id: str, of: str) -> str:
    """SQL for ``parts``, a recursive common table: call ``c`` and the calls that it builds on, newest first.

    A block's place in a request is one number: a million for each message before its own, plus its place there. What a
    request takes from a call that it builds on, directly or through others, is before the place where each of them
    diverged; so each part says where it starts and ends, and holds nothing of the request unless ``start < bound``.

    Args:
        run_id: The run of the call.
        of: What selects ``c``; "" if it is in scope.
    """
    return f"""parts (seq, call, base, start, bound) AS (
                       SELECT c.seq, c.call, c.base_call, {_START.format("c")}, CAST(1e15 AS BIGINT){of}
                       UNION ALL
                       SELECT b.seq, b.call, b.base_call, {_START.format("b")},
                              CASE WHEN start < bound THEN start ELSE bound END
                       FROM parts JOIN model_calls b ON b.call < parts.call AND b.seq = (
                           SELECT max(seq) FROM model_calls WHERE run_id = {run_id} AND call = base)
                       WHERE start > 0)"""


def llm_calls(messages: str, created_at: str) -> str:
    """SQL for the view of all model calls with their whole requests.

    Args:
        messages: How an engine puts the parts together: common tables, and the SELECT of a JSON text with all messages.
            See ``repertory.record.requests`` for the references that may replace a block.
        created_at: How an engine writes ``c.at`` as a time.
    """
    return f"""CREATE VIEW llm_calls AS
           SELECT c.seq AS id, c.run_id, c.call, c.iteration, c.purpose, c.model,
                  (WITH RECURSIVE {request_parts("c.run_id", "")},
                   {messages}) AS request_messages,
                  coalesce({PROMPT}, 0) AS prompt_tokens, coalesce(output_tokens, 0) AS completion_tokens,
                  {created_at} AS created_at
           FROM model_calls c LEFT JOIN model_replies r ON r.run_id = c.run_id AND r.call = c.call"""


_MESSAGES: Final = """blocks (place, role, block) AS (
                       SELECT iif(m.key = 0, start, (start / 1000000 + m.key) * 1000000) + b.key AS place,
                              json_extract(m.value, '$.role'),
                              CASE WHEN json_extract(b.value, '$.type') IS NOT 'entry' THEN b.value
                                   WHEN json_type(b.value, '$.literal') IS NOT NULL
                                       THEN json_extract(b.value, '$.literal')
                                   ELSE (SELECT json_extract(content, '$[' || json_extract(b.value, '$.block') || ']')
                                         FROM entries WHERE run_id = c.run_id
                                         AND position = json_extract(b.value, '$.position')) END
                       FROM parts JOIN request_bodies r ON r.seq = parts.seq AND start < bound,
                            json_each(r.body, '$.messages') m,
                            json_each(m.value, '$.content') b
                       WHERE place < bound ORDER BY place),
                   messages (message) AS (
                       SELECT json_object('role', role, 'content', json_group_array(json(block)))
                       FROM blocks GROUP BY place / 1000000 ORDER BY place)
                   SELECT json_group_array(json(message)) FROM messages"""
_LLM_CALLS: Final = llm_calls(_MESSAGES, "strftime('%Y-%m-%d %H:%M:%f', c.at, 'unixepoch')")

# Only for SQLite; for PostgreSQL see ``repertory.record.postgres_schema``.
_SQLITE: Final = (
    # Indexing words in the append's own transaction makes appends five times slower. So the index lags, and a search
    # first brings it up to date, in slices; `search_progress` says how far it is.
    """CREATE VIRTUAL TABLE entry_search
           USING fts5(run, words, content='', tokenize='porter unicode61 remove_diacritics 2')""",
    # By position in the item log. Runs, scopes and labels (tags, types, …) are numbers in an index, so that one lookup
    # finds the entries of a run, or the newest items of a scope with given labels and words, among any number.
    """CREATE VIRTUAL TABLE item_search
           USING fts5(scope, labels, words, content='', tokenize='porter unicode61 remove_diacritics 2')""",
    *(
        f"CREATE TRIGGER {table}_{event.lower()} AFTER {event} ON {table} BEGIN {sql}; END"
        for table, event, sql in TRIGGERS
    ),
)


_NAMED: Final = re.compile(r"CREATE (?:UNIQUE |VIRTUAL )?(?:TABLE|INDEX|VIEW|SEQUENCE|TRIGGER) (\w+)")
_COLUMN: Final = re.compile(r"[(,]\s*(?!PRIMARY)((\w+) [A-Za-z][^,)]*)")  # its definition and its name
_ADDING: Final = re.compile(r"CREATE (?!VIEW|OR REPLACE)[A-Z ]+ \w+|ALTER TABLE \w+ ADD COLUMN \w+")


def changes(declared: Sequence[str], there: Iterable[tuple[str, str | None]]) -> Iterator[str]:
    """The SQL that adds to a journal whatever is declared and missing; views and functions are always recreated.

    Args:
        declared: The statements, in order. One that names neither a relation nor a function is only for a new journal.
        there: The existing relations, with each of their columns.
    """
    columns: dict[str, set[str | None]] = {}
    for relation, column in there:
        columns.setdefault(relation, set()).add(column)
    if "migrations" not in columns:
        yield from declared
        return
    views = [name for name in re.findall(r"CREATE VIEW (\w+)", "\n".join(declared)) if columns.pop(name, None)]
    yield from (f"DROP VIEW {name}" for name in reversed(views))
    for sql in declared:
        named = _NAMED.match(sql)
        if sql.startswith("CREATE OR REPLACE") or (named is not None and named[1] not in columns):
            yield sql
        elif named is not None and sql.startswith("CREATE TABLE"):
            for definition, column in _COLUMN.findall(sql):
                if column not in columns[named[1]]:
                    yield f"ALTER TABLE {named[1]} ADD COLUMN {definition}"


def check_version(version: int, declared: Sequence[str], there: Iterable[tuple[str, str | None]], where: object) -> int:
    """Check the version that a journal says it has, and return it; the rest is as for ``changes``.

    Raises:
        JournalSchemaTooNew: A newer repertory wrote it.
        JournalUnreadable: It lacks something of its version: before the first release, the schema changed but not its
            version. Views do not count.
    """
    if version > VERSION:
        raise JournalSchemaTooNew(
            f"{where} has schema {version} and repertory {__version__} reads up to {VERSION}; "
            "open it with the repertory that wrote it, or upgrade: pip install -U repertory"
        )
    for sql in changes(declared, there) if version == VERSION else ():
        if lacking := _ADDING.match(sql):
            raise JournalUnreadable(
                f"{where} says that it has schema {VERSION}, but differs from it ({lacking[0]!r} would be the first "
                "change): an unreleased repertory made it, which can still open it, or it is damaged"
            )
    return version


def check_current(version: int, where: object) -> None:
    """Raise ``JournalUnreadable`` if a journal must be brought up to date before it can be read."""
    if version < VERSION:
        raise JournalUnreadable(
            f"{where} has schema {version or 'none'} and {VERSION} is expected; open it once to write, which brings it "
            "up to date"
        )


_DECLARED: Final = (*SHARED, *_SQLITE, *VIEWS, _LLM_CALLS)


def _relations(connection: sqlite3.Connection) -> list[tuple[str, str | None]]:
    sql = "SELECT m.name, c.name FROM sqlite_master m LEFT JOIN pragma_table_info(m.name) c"
    return connection.execute(sql).fetchall()


def schema_version(connection: sqlite3.Connection, path: str) -> int:
    """Read the schema version of a file; 0 for an empty one.

    Raises:
        JournalUnreadable: It is another program's SQLite file, or one of an unreleased repertory.
        JournalSchemaTooNew: A newer repertory wrote it.
    """
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application_id == 0 and version == 0 and tables == 0:
        return 0
    if application_id != APPLICATION_ID:
        raise JournalUnreadable(f"{path} is an SQLite database but not a journal; choose another file")
    return check_version(version, _DECLARED, _relations(connection), path)


def migrate(connection: sqlite3.Connection, path: str) -> None:
    """Create the tables of a new file, or bring an older one up to date."""
    if schema_version(connection, path) == VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statement in changes(_DECLARED, _relations(connection)):
            connection.execute(statement)
        connection.execute("INSERT INTO migrations VALUES (?, ?, ?)", (VERSION, time.time(), __version__))
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
