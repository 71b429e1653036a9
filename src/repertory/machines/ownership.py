"""The ownership of runs as SQL statements and rows: what changes with records, and claims, takeovers and releases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from repertory._ids import root_of, unit_of
from repertory.record.postgres_writer import application_name
from repertory.record.records import FINAL_STATES, RunStarted, RunStateChanged, ScheduleSettled, WebhookTried
from repertory.record.rows import TABLES, Value, encode_json
from repertory.record.run_lists import AGEING
from repertory.record.writing import Batch, Statement

if TYPE_CHECKING:
    from repertory.record.postgres_sql import Connection

GUARD: Final = "SELECT guard_machine($1, ARRAY(SELECT value FROM json_each($2)))"
NOTHING: Final = "[]"
# What a machine did with a run that may be another's, or gone, is no record of that run.
_RUN_ID: Final = {
    table.name: table.columns.index("run_id")
    for table in TABLES.values()
    if "run_id" in table.columns and table.record not in (ScheduleSettled, WebhookTried)
}
_RUNS, _STATES = TABLES[RunStarted], TABLES[RunStateChanged]

# If the run exists already, its record is refused later in the transaction, and this is rolled back with it.
# A run for which a place in the queue was reserved takes it now; also one that another machine has reserved since the
# guard looked, as its run is the one that is recorded.
_START: Final = """INSERT INTO ownership SELECT $1, CAST($2 AS uuid), 1, $3, $4, $5, $6, $7,
        ARRAY(SELECT value FROM json_each($8)), $9, CAST($10 AS uuid), $11::boolean
    ON CONFLICT (run_id) DO UPDATE SET machine_id = excluded.machine_id, why = excluded.why, agent = excluded.agent,
        client = excluded.client, agent_ref = excluded.agent_ref, agent_digest = excluded.agent_digest,
        labels = excluded.labels, place = excluded.place, home = excluded.home, portable = excluded.portable
    WHERE ownership.why = 'entering'"""
_END: Final = "DELETE FROM ownership WHERE run_id = $1 AND machine_id = $2"

# Repeated if its answer was lost.
REGISTER: Final = """INSERT INTO machines
    (machine_id, name, labels, host, pid, kernel, version, lease, started_at, until)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, clock_timestamp(), clock_timestamp() + make_interval(secs => $8))
    ON CONFLICT (machine_id) DO UPDATE SET until = excluded.until"""
LIST: Final = """SELECT m.machine_id::text, m.name, m.labels, m.host, m.pid, m.version, m.lease,
        extract(epoch FROM m.started_at)::float8, extract(epoch FROM m.until - clock_timestamp())::float8,
        m.draining, extract(epoch FROM m.lost_at)::float8,
        (SELECT count(*) FROM ownership o WHERE o.machine_id = m.machine_id AND o.why <> 'entering')
    FROM machines m ORDER BY m.started_at, m.machine_id"""
OWNERS: Final = """SELECT o.run_id, coalesce(m.name, '') FROM ownership o LEFT JOIN machines m USING (machine_id)
    WHERE o.why <> 'entering'"""
LIVING_OWNERS: Final = """SELECT o.run_id, coalesce(m.name, '') FROM ownership o LEFT JOIN machines m
    ON m.machine_id = o.machine_id AND m.lost_at IS NULL AND m.until > clock_timestamp() WHERE o.why <> 'entering'"""
ELSEWHERE: Final = f"{OWNERS} AND o.machine_id IS DISTINCT FROM $1"

# Nobody's lease has expired if that of the machine that looks has: then the server's clock has jumped.
OTHERS: Final = """SELECT m.machine_id::text, m.until < clock_timestamp() AND own.until > clock_timestamp(), m.kernel,
        m.pid
    FROM machines m, machines own WHERE own.machine_id = $1 AND m.machine_id <> $1 AND m.lost_at IS NULL
      AND (m.until < clock_timestamp() OR m.kernel = $2)"""
# FOR UPDATE waits for a transaction of this machine that has passed its guard.
LOCK: Final = """SELECT 1 FROM machines WHERE machine_id = $1 AND lost_at IS NULL
    AND (until < clock_timestamp() OR $2::boolean) FOR UPDATE"""
LOSE: Final = "UPDATE machines SET lost_at = clock_timestamp() WHERE machine_id = $1"
LEFT_PLACES: Final = "DELETE FROM ownership WHERE machine_id = $1 AND why = 'entering'"
LET_GO: Final = """UPDATE ownership SET machine_id = NULL, why = $2 WHERE machine_id = $1 RETURNING run_id"""
LET_GO_RUN: Final = """UPDATE ownership SET machine_id = NULL, why = $3 WHERE machine_id = $1 AND run_id = $2"""
_STATE: Final = "(SELECT state FROM run_states s WHERE s.run_id = o.run_id ORDER BY seq DESC LIMIT 1)"
_ORDER: Final = "ORDER BY place, run_id"
# Without one that a machine takes only once somebody resumes it.
OWNER: Final = f"""SELECT o.machine_id::text FROM ownership o
    LEFT JOIN machines m ON m.machine_id = o.home AND m.lost_at IS NULL
    WHERE o.run_id = $1 AND o.why <> 'entering' AND (o.machine_id IS NOT NULL
      OR ((o.portable OR m.machine_id IS NOT NULL) AND coalesce({_STATE}, '') <> 'paused'))"""

# The runs that this machine may take; a paused run waits until somebody resumes it.
PLACED: Final = "run_id LIKE '%.@%'"  # see ``unit_of``; only their leads are counted
_LEAD: Final = "regexp_replace(o.run_id, '\\.@[^@]*$', '')"
CANDIDATES: Final = f"""SELECT run_id, agent, client, agent_ref, agent_digest, why
    FROM ownership o
    WHERE machine_id IS NULL AND labels <@ $1 AND NOT run_id || ' ' || agent_digest = ANY($2) AND NOT agent = ANY($3)
      AND NOT client = ANY($4) AND ($5::text[] IS NULL OR run_id = ANY($5))
      AND (portable OR home = $6) AND coalesce({_STATE}, 'running') <> 'paused' AND ({PLACED}) = $7::boolean
      AND ($8::text[] IS NULL OR {_LEAD} = ANY($8))
    {_ORDER} LIMIT 50"""
FIRST: Final = f"""SELECT run_id, agent, client FROM ownership WHERE machine_id IS NULL AND run_id = ANY($1)
    {_ORDER} LIMIT 1 FOR UPDATE SKIP LOCKED"""
CLAIM: Final = """UPDATE ownership SET machine_id = $1, home = $1, fence = fence + 1 WHERE run_id = $2
    RETURNING run_id, fence, why, agent_digest"""
# Changes the agent's definition and the labels of a run that waits for any machine.
REDEFINE: Final = "UPDATE ownership SET agent_digest = $2, labels = $3 WHERE run_id = $1 AND machine_id IS NULL"
# Transactions that count the runs of one name, to begin another, take turns.
COUNTING: Final = "SELECT pg_advisory_xact_lock('ownership'::regclass::oid::int4, hashtext($1))"
UNDER_WAY: Final = f"""SELECT agent, client, count(*) FROM ownership
    WHERE machine_id IS NOT NULL AND why <> 'entering' AND NOT {PLACED} GROUP BY agent, client"""
# A place in the queue is reserved before a run is recorded, so that a full queue refuses it beforehand.
QUEUED: Final = f"""SELECT count(*) FROM ownership WHERE client = $1 AND run_id <> $2 AND NOT {PLACED}
    AND (why = 'entering' OR (why = 'queued' AND machine_id IS NULL))"""
KEEP_PLACE: Final = """INSERT INTO ownership
    VALUES ($1, $2, 1, 'entering', $3, $4, '', '', ARRAY[]::text[], 0, $2, false) ON CONFLICT (run_id) DO NOTHING"""
GIVE_PLACE_BACK: Final = "DELETE FROM ownership WHERE run_id = $1 AND machine_id = $2 AND why = 'entering'"
PLACES: Final = "SELECT run_id FROM ownership WHERE machine_id = $1 AND why = 'entering'"
WAITING: Final = """SELECT o.run_id, o.labels, o.portable, coalesce(m.name, ''),
        m.name IS NOT NULL AND m.lost_at IS NULL
    FROM ownership o LEFT JOIN machines m ON m.machine_id = o.home WHERE o.machine_id IS NULL"""
FORGET_RUN: Final = "DELETE FROM ownership WHERE run_id = $1 AND machine_id = $2"
# The state of runs on other machines: without a row they have ended, without an owner they wait.
STANDING: Final = f"""SELECT asked.run_id, o.run_id IS NULL, o.run_id IS NOT NULL AND o.machine_id IS NULL,
        coalesce(o.fence, 0), o.machine_id IS NULL AND coalesce({_STATE}, '') = 'paused', coalesce(o.agent_digest, '')
    FROM unnest($1::text[]) asked (run_id) LEFT JOIN ownership o ON o.run_id = asked.run_id"""
# Placed runs that belong to this machine or wait for any, and whose lead has ended.
LEFT_ALONE: Final = f"""SELECT o.run_id, o.machine_id IS NULL, s.state FROM ownership o
    JOIN LATERAL (SELECT state FROM run_states s WHERE s.run_id = {_LEAD} ORDER BY seq DESC LIMIT 1) s ON true
    WHERE o.{PLACED} AND (o.machine_id IS NULL OR o.machine_id = $1) AND s.state = ANY($2)"""
# An ended run has no row any more. Removing a run locks its first record too, so it is either removed or continued.
CLAIM_ENDED: Final = """INSERT INTO ownership
    SELECT r.run_id, $1, coalesce((SELECT max(CAST(json_extract(body, '$.fence') AS bigint)) FROM events
               WHERE run_id = r.run_id AND type = 'RunClaimed'), 0) + 1, 'resumed', r.agent, r.client, r.agent_ref,
           r.agent_digest, ARRAY(SELECT value FROM json_each(r.labels)), r.at, $1,
           r.agent_ref <> '' AND r.has_context = 0
    FROM runs r WHERE r.run_id = $2 FOR UPDATE OF r
    ON CONFLICT (run_id) DO NOTHING RETURNING run_id, fence, why, agent_digest"""
MINE: Final = "SELECT run_id, fence, why, agent_digest FROM ownership WHERE machine_id = $1 AND why <> 'entering'"

# The tasks that one machine at a time does for all. Machines take them one after the other; otherwise a snapshot could
# miss that a machine has just begun. A machine that finds the lock held tries again in a moment, so that it does not
# wait for one that hangs.
ONE_TAKES_DUTIES: Final = "SELECT pg_try_advisory_xact_lock('duties'::regclass::oid::int4, 0)"
GIVE_UP_DUTIES: Final = "DELETE FROM duties WHERE machine_id = $1 AND NOT name = ANY($2)"
TAKE_DUTIES: Final = """INSERT INTO duties SELECT name, $1 FROM unnest($2::text[]) wanted (name)
    ON CONFLICT (name) DO UPDATE SET machine_id = excluded.machine_id
    WHERE NOT EXISTS (SELECT 1 FROM machines m WHERE m.machine_id = duties.machine_id AND m.lost_at IS NULL)"""
DUTIES: Final = "SELECT name FROM duties WHERE machine_id = $1"

IS_DRAINING: Final = "SELECT draining FROM machines WHERE machine_id = $1"
DRAIN: Final = "UPDATE machines SET draining = true WHERE machine_id = $1"
LEAVE: Final = "DELETE FROM machines WHERE machine_id = $1 AND lost_at IS NULL"
END_WRITER: Final = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1"
NOTIFY: Final = "SELECT pg_notify($1, $2)"
FORGET: Final = "DELETE FROM machines WHERE lost_at < clock_timestamp() - interval '1 day'"


class Guard:
    """Makes the first statements of every transaction of a machine: they check that no other machine has taken it
    over, and update the ownership of its runs.

    Ownership follows from the records of a run's beginning and end, and changes in their transaction. The end of a
    placed run is announced, because its lead waits for it.
    """

    def __init__(self, machine_id: str, channel: str) -> None:
        self._machine_id = machine_id
        self._channel = channel

    def __call__(self, group: Sequence[Batch]) -> Sequence[Statement]:
        """The statements for a group of batches."""
        units = {
            unit_of(str(row[_RUN_ID[table]]))
            for batch in group
            for (table, row, _), *_ in batch.rows
            if table in _RUN_ID
        }
        guard = GUARD, (self._machine_id, encode_json(sorted(units)))
        return [guard, *(found for batch in group for found in self._changes(batch))]

    def _changes(self, batch: Batch) -> Iterator[Statement]:
        started: dict[str, dict[str, Any]] = {}
        states: dict[str, str] = {}
        for (table, row, _), *_ in batch.rows:
            if table == _RUNS.name:
                run: dict[str, Any] = dict(zip(_RUNS.columns, row, strict=True))
                if unit_of(run["run_id"]) == run["run_id"]:
                    started[run["run_id"]] = run
            elif table == _STATES.name:
                run_id, state = str(row[0]), str(row[1])
                if unit_of(run_id) == run_id:
                    states[run_id] = state
        for run_id, run in started.items():
            yield _START, self._row(run, queued=states.get(run_id) == "queued")
        for run_id, state in states.items():
            if state in FINAL_STATES:
                yield _END, (run_id, self._machine_id)
            elif state == "queued" and run_id not in started:
                yield LET_GO_RUN, (self._machine_id, run_id, state)
            if run_id != root_of(run_id) and (state == "queued" or state in FINAL_STATES):
                yield NOTIFY, (self._channel, "queue" if state == "queued" else "end")

    def _row(self, run: dict[str, Any], *, queued: bool) -> list[Value]:
        portable = run["agent_ref"] and not run["has_context"]
        texts = [run[name] for name in ("agent", "client", "agent_ref", "agent_digest")]
        owner = None if queued else self._machine_id
        why = "queued" if queued else "started"
        place = run["at"] - AGEING * run["priority"]
        return [run["run_id"], owner, why, *texts, run["labels"], place, self._machine_id, str(bool(portable))]


def begin_guarded(connection: Connection, machine_id: str) -> None:
    """Begin a transaction of a machine so that others can end it if its process hangs."""
    connection.execute("SELECT set_config('application_name', $1, true)", [application_name(machine_id)])
    connection.execute(GUARD, [machine_id, NOTHING])


class Claim(msgspec.Struct, frozen=True):
    """A run that belongs to this machine now.

    Attributes:
        fence: The number of owners that the run has had.
        why: How it came here: ``queued``, ``moved``, ``taken over`` or ``resumed``.
        agent_digest: The digest of the definition with which it continues.
    """

    run_id: str
    fence: int
    why: str
    agent_digest: str


class Candidate(msgspec.Struct, frozen=True):
    """A run that waits for any machine."""

    run_id: str
    agent: str
    client: str
    agent_ref: str
    agent_digest: str
    why: str


class Standing(msgspec.Struct, frozen=True):
    """The state of a run on any machine.

    Attributes:
        ended: Whether it has ended.
        waits: Whether it waits for a machine.
        fence: The number of owners that the run has had; 0 for one that has ended.
        paused: Whether it waits but no machine takes it, because it was paused on its last machine.
        agent_digest: The digest of the definition with which it continues; "" for one that has ended.
    """

    ended: bool
    waits: bool
    fence: int
    paused: bool
    agent_digest: str


class WaitingRun(msgspec.Struct, frozen=True):
    """A run that waits for a machine.

    Attributes:
        labels: Labels that a machine must offer.
        portable: Whether any machine that knows its agent may begin it; otherwise only the one where it was queued.
        home: The name of the machine where it last was, or was queued.
        home_there: Whether that machine still takes part.
    """

    run_id: str
    labels: tuple[str, ...]
    portable: bool
    home: str
    home_there: bool
