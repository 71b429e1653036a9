"""What the database says of who wrote what. It knows nothing of repertory: tables and numbers alone."""

from __future__ import annotations

import bisect
import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

BLOCK = 1024  # numbers that a transaction takes at once
TABLES = [
    "runs",
    "run_states",
    "entries",
    "decisions",
    "tool_intents",
    "tool_outcomes",
    "model_calls",
    "model_replies",
    "contents",
    "summaries",
    "payloads",
    "events",
]

# The server itself notes which machine takes a block of numbers, by the name of the connection that writes.
WITNESS = f"""CREATE TABLE witnessed (first bigint PRIMARY KEY, machine_id text);
    CREATE FUNCTION note_writer() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO witnessed
        SELECT DISTINCT seq - seq % {BLOCK}, split_part(current_setting('application_name'), ' ', 3) FROM written
        ON CONFLICT DO NOTHING;
        RETURN NULL;
    END $$"""


def watch_writers(connection: Any) -> None:
    """Have the server note who writes, from now on; without it nothing can be said of that."""
    connection.execute(WITNESS)
    for table in TABLES:
        connection.execute(
            f"""CREATE TRIGGER note_writer AFTER INSERT ON {table} REFERENCING NEW TABLE AS written
                FOR EACH STATEMENT EXECUTE FUNCTION note_writer()"""
        )


def strange_writes(connection: Any) -> list[str]:
    """Records of runs that another machine wrote than the one that owned the run at that place of the record."""
    with connection.transaction():
        # All tables as of one moment: the server may be at work yet on what a machine sent before it was killed.
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        return _strange_writes(connection)


def _strange_writes(connection: Any) -> list[str]:
    wrote = dict(connection.execute("SELECT first, machine_id FROM witnessed").fetchall())
    claims: dict[str, list[tuple[int, str, int]]] = {}
    found = connection.execute("SELECT run_id, seq, body FROM events WHERE type = 'RunClaimed' ORDER BY seq").fetchall()
    for run_id, seq, body in found:
        claim = json.loads(body)
        claims.setdefault(run_id, []).append((seq, claim["machine"], claim["fence"]))
    wrong: list[str] = []
    for run_id, own in claims.items():
        fences = [fence for _, _, fence in own]
        if fences != sorted(set(fences)):
            wrong.append(f"{run_id} has the fencing numbers {fences}")
    for table in TABLES:
        for run_id, seq in connection.execute(f"SELECT run_id, seq FROM {table}").fetchall():
            above, placed, below = run_id.rpartition(".@")  # what is placed has an owner of its own
            unit = (above + placed if placed else "") + below.partition(".")[0]
            own = claims.get(unit, [])
            place = bisect.bisect_right(own, seq, key=lambda claim: claim[0])
            writer = wrote.get(seq - seq % BLOCK)
            if place and writer != own[place - 1][1]:
                wrong.append(f"{table} {seq} of {run_id} was written by {writer}, and {own[place - 1][1]} owned it")
    return wrong


def owners(connection: Any) -> Counter[str]:
    """How often runs came to a machine, by the reason."""
    found = connection.execute("SELECT body FROM events WHERE type = 'RunClaimed'").fetchall()
    return Counter(json.loads(body)["why"] for (body,) in found)


def states(connection: Any) -> dict[str, tuple[str, str | None]]:
    """The state and the result of each run at the top of a tree."""
    found = connection.execute("SELECT run_id, state, result FROM run_status WHERE parent_id IS NULL").fetchall()
    return {run_id: (state, result) for run_id, state, result in found}


def depths(connection: Any) -> Counter[tuple[int, str]]:
    """How many runs are in which state, by how far below the top of their tree they are."""
    found = connection.execute("SELECT depth, state, count(*) FROM run_status GROUP BY depth, state").fetchall()
    return Counter({(depth, state): count for depth, state, count in found})


def repeated(lines: Iterable[str]) -> list[str]:
    """Unsafe effects that took place twice."""
    counts = Counter(line for line in lines if line.startswith("unsafe "))
    return [line for line, count in counts.items() if count > 1]
