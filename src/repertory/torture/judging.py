"""Checks of what must be true of a record after any kill or power cut; they return what is wrong."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from repertory.llm.messages import Block, ToolResult, ToolUse, decode_content, text_of
from repertory.record.sqlite_damage import find_damage
from repertory.torture.team import COMMITTED, EFFECTS

Turn = tuple[str, Sequence[Block]]  # role and content of one entry
Place = tuple[str, int]  # run and position


def transcript_problems(turns: Sequence[Turn], *, ended: bool = True) -> list[str]:
    """What a Messages API would refuse in the entries of one run: calls and results that are not paired.

    If the run has not ``ended``, the calls of its last turn may lack their results.
    """
    found: list[str] = []
    asked: dict[str, int] = {}
    seen = Counter[str]()
    last = max((at for at, (role, _) in enumerate(turns) if role == "assistant"), default=-1)
    for at, (role, content) in enumerate(turns):
        for block in content:
            if isinstance(block, ToolUse):
                if block.id in asked:
                    found.append(f"two calls are named {block.id}")
                asked[block.id] = at
            elif isinstance(block, ToolResult):
                seen[block.tool_use_id] += 1
                if asked.get(block.tool_use_id, at) >= at:
                    found.append(f"{role} entry {at} answers {block.tool_use_id}, which nobody asked")
    for call_id, at in asked.items():
        if seen[call_id] > 1 or (seen[call_id] == 0 and (ended or at != last)):
            found.append(f"{call_id} has {seen[call_id]} results")
    return found


def query(database: Path, statement: str, *values: object) -> list[Any]:
    """Rows of a file, read with the standard library's sqlite3; a damaged file is an error."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return connection.execute(statement, values).fetchall()


def read_transcripts(database: Path) -> dict[str, list[Turn]]:
    """Every run's entries."""
    found: dict[str, list[Turn]] = {}
    entries = query(database, "SELECT run_id, role, content FROM entries ORDER BY run_id, position")
    for run_id, role, content in entries:
        found.setdefault(run_id, []).append((role, decode_content(json.loads(content))))
    return found


def file_problems(database: Path) -> list[str]:
    """The problems that SQLite itself finds in a file."""
    try:
        with closing(sqlite3.connect(database)) as connection:
            found = [str(row[0]) for row in connection.execute("PRAGMA integrity_check")]
    except sqlite3.DatabaseError as error:
        return [f"the file is damaged: {error}"]
    return [] if found == ["ok"] else [f"the file is damaged: {each}" for each in found[:3]]


def record_problems(database: Path) -> list[str]:
    """The problems that ``repertory doctor --deep`` finds: damaged records, and missing records."""
    return [f"doctor says: {each}" for each in find_damage(str(database), deep=True)]


def run_problems(database: Path, *, ended: bool = True) -> list[str]:
    """What is wrong with a file of runs: damage, or else poisoned transcripts; ``ended`` as for these."""
    if damage := file_problems(database) or record_problems(database):
        return damage
    return [
        f"{run_id}: {problem}"
        for run_id, turns in read_transcripts(database).items()
        for problem in transcript_problems(turns, ended=ended)
    ]


def read_results(database: Path) -> dict[tuple[str, str], str]:
    """The text of every result, by its run and its call."""
    return {
        (run_id, block.tool_use_id): text_of(block)
        for run_id, turns in read_transcripts(database).items()
        for _, content in turns
        for block in content
        if isinstance(block, ToolResult)
    }


def effect_problems(database: Path, account: Iterable[str]) -> list[str]:
    """Compare the effects of tools with the record, for every run that has ended.

    The account is kept outside of the process: a line ``CLASS RUN CALL NAME`` for each effect that took place.
    """
    happened = Counter[tuple[str, str, str]]()
    names: dict[tuple[str, str], set[str]] = {}
    for line in account:
        effect, run_id, call_id, name = line.split(" ")
        happened[effect, run_id, call_id] += 1
        if effect == "idempotent":
            names.setdefault((run_id, call_id), set()).add(name)
    calls = query(database, "SELECT DISTINCT run_id, call_id, status, tool FROM tool_calls")
    bodies = query(database, "SELECT body FROM events WHERE type = ?", COMMITTED)
    committed = Counter(json.loads(body)["call"] for (body,) in bodies)
    results = read_results(database)
    found: list[str] = []
    known: set[tuple[str, str, str]] = set()
    for run_id, call_id, status, tool in calls:
        if tool not in EFFECTS:
            continue
        effect = EFFECTS[tool]
        known.add((effect, run_id, call_id))
        times = happened[effect, run_id, call_id]
        what = f"{effect} call {call_id} of {run_id} ({status})"
        if effect == "transactional":
            if committed[f"{run_id} {call_id}"] != 1:
                found.append(f"{what} committed {committed[f'{run_id} {call_id}']} times")
        elif effect == "unsafe":
            told = "effect unknown" in results.get((run_id, call_id), "")
            if times > 1:
                found.append(f"{what} ran {times} times")
            elif (status == "interrupted") != told or (not told and times != 1):
                found.append(f"{what} ran {times} times, and its result says {results.get((run_id, call_id))!r}")
        elif times < 1:
            found.append(f"{what} never ran")
        if effect == "idempotent" and len(names.get((run_id, call_id), ())) != 1:
            found.append(f"{what} ran under {len(names.get((run_id, call_id), ()))} keys")
    keys = Counter(key for kept in names.values() for key in kept)
    found += [f"{count} calls share the key {key}" for key, count in keys.items() if count > 1]
    found += [f"{each[0]} call {each[2]} of {each[1]} ran and is not on record" for each in set(happened) - known]
    return found


def append_problems(
    rows: Sequence[tuple[Place, str, int]], acknowledged: Mapping[str, Place | None], *, gaps: bool = False
) -> list[str]:
    """What is wrong with appends: lost, moved or duplicate ones, gaps, torn batches, and a wrong order of a writer's.

    Args:
        rows: Place, name and sequence number of each entry, in the order of the file. A name consists of the process,
            the writer, the number of its batch, the batch's size, and the place in it: ``7.2.4.3.0``.
        acknowledged: Names with the places that the writers were told; None if they were not told.
        gaps: Whether sequence numbers may have gaps, as on a server.
    """
    found: list[str] = []
    kept = {name: place for place, name, _ in rows}
    for name, place in acknowledged.items():
        if name not in kept or place not in (None, kept[name]):
            found.append(f"lost {name} at {place}, which is {kept.get(name, 'gone')}")
    if len(kept) != len(rows):
        found.append(f"{len(rows) - len(kept)} duplicates")
    ends = Counter[str]()
    for (run_id, position), _, _ in rows:
        if position != ends[run_id]:
            found.append(f"{run_id}[{position}] stands where {ends[run_id]} is next")
            break
        ends[run_id] += 1
    if not gaps and [sequence for _, _, sequence in rows] != list(range(1, len(rows) + 1)):
        found.append("sequence numbers have gaps")
    batches: dict[str, list[int]] = {}
    latest: dict[str, int] = {}
    for name in kept:
        batch, _, part = name.rpartition(".")
        batches.setdefault(batch, []).append(int(part))
        writer, number, _ = batch.rsplit(".", 2)
        if int(number) < latest.get(writer, 0):
            found.append(f"{name} stands behind a later append of its writer")
        latest[writer] = int(number)
    for batch, parts in batches.items():
        if parts != list(range(int(batch.rpartition(".")[2]))):
            found.append(f"batch {batch} is torn: {parts}")
    return found


def read_appends(database: Path) -> list[tuple[Place, str, int]]:
    """Place, name and sequence number of every entry, in the order of the file."""
    rows = query(database, "SELECT run_id, position, json_extract(content, '$[0].text'), seq FROM entries ORDER BY seq")
    return [((run_id, position), text.partition(" ")[0], sequence) for run_id, position, text, sequence in rows]
