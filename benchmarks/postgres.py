"""What PostgreSQL costs compared with a file: iterations per second, and rows, bytes and commits per iteration.

    python benchmarks/postgres.py [--agents 50] [--iterations 40] [--rounds 3] [--db postgresql://…] [--json]

An iteration is one answer of a model that costs nothing and one call of a tool with a result of 2,000 characters. The
records of one run are captured once. Then ``--agents`` tasks write them again, each for its own run and waiting for
every batch as the run did, into a file and into a database, both durable against loss of power: that is the journal
alone. As many whole runs in one supervisor follow: that is what a user has. The engines take turns; each figure is the
median of the rounds. Bytes are those of the engine's own files: tables, indexes and the log written meanwhile.

Without ``--db`` a server is started as the tests start theirs, on this machine, whose cores it shares with the writers.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec

import repertory as rp
from repertory.record import Journal, MemoryJournal, Record, open_journal
from repertory.record.records import ModelCalled
from repertory.record.rows import TABLES

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]

from iteration import LARGE, Meter, run_once  # noqa: E402

from postgres_server import MISSING, PostgresServer, postgres_server  # noqa: E402

Batches = list[list[Record]]


async def take_record(iterations: int) -> Batches:
    """The batches that one run of ``iterations`` iterations writes."""
    batches: Batches = []
    journal = MemoryJournal()
    journal.observe(lambda records: batches.append(list(records)))
    async with rp.open_supervisor(journal=journal) as supervisor:
        await run_once(supervisor, iterations, LARGE, Meter())
    return batches


def of_run(batches: Batches, run_id: str) -> Batches:
    """The same for another run."""

    def renamed(record: Any) -> Record:
        fields = {name: run_id for name in ("run_id", "scope_id", "owner") if hasattr(record, name)}
        changed: Record = msgspec.structs.replace(record, **fields)
        return changed

    return [[renamed(record) for record in batch] for batch in batches]


def weigh(batches: Batches, iterations: int) -> dict[str, float]:
    """Records, rows, characters and batches of one iteration, without the beginning and the end of the run."""
    begins = [n for n, batch in enumerate(batches) if any(isinstance(record, ModelCalled) for record in batch)]
    kept = batches[begins[1] : begins[-1]]
    turns = len(begins) - 2
    rows = [row for batch in kept for record in batch for row in TABLES[type(record)].encode(record)]
    characters = sum(len(value) for _, values, _ in rows for value in values if isinstance(value, str))
    return {
        "batches": len(kept) / turns,
        "records": sum(map(len, kept)) / turns,
        "rows": len(rows) / turns,
        "characters": characters / turns,
    }


async def replay(journal: Journal, batches: Batches, agents: int, name: str) -> tuple[float, list[float]]:
    """Write ``agents`` runs at once; returns the seconds that it took, and those of each batch."""
    runs = [of_run(batches, f"{name}-{number}") for number in range(agents)]
    waits: list[float] = []

    async def write(run: Batches) -> None:
        for batch in run:
            begun = time.perf_counter()
            await journal.write(batch)
            waits.append(time.perf_counter() - begun)

    begun = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for run in runs:
            tasks.start_soon(write, run)
    return time.perf_counter() - begun, waits


async def run_agents(place: str | Path, agents: int, iterations: int) -> float:
    """Seconds that ``agents`` whole runs take in one supervisor."""
    async with rp.open_supervisor(place) as supervisor:
        await run_once(supervisor, 2, LARGE, Meter())
        begun = time.perf_counter()
        async with anyio.create_task_group() as tasks:
            for _ in range(agents):
                tasks.start_soon(run_once, supervisor, iterations, LARGE, Meter())
        return time.perf_counter() - begun


class Size:
    """Bytes and commits of a server, as it reports them."""

    def __init__(self, server: PostgresServer, uri: str) -> None:
        self._server, self._uri = server, uri

    def now(self) -> dict[str, float]:
        """The present figures: the log, tables, indexes."""
        with self._server.connect(self._uri) as connection:
            row = connection.execute(
                """SELECT pg_current_wal_lsn() - '0/0'::pg_lsn,
                          sum(pg_table_size(oid)) FILTER (WHERE relkind = 'r'),
                          sum(pg_indexes_size(oid)) FILTER (WHERE relkind = 'r')
                   FROM pg_class WHERE relnamespace = 'public'::regnamespace"""
            ).fetchone()
        return dict(zip(("log", "tables", "indexes"), map(float, row), strict=True))


async def measure(server: PostgresServer, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Let both engines take turns."""
    agents, iterations = options.agents, options.iterations
    batches = await take_record(iterations)
    found: dict[str, Any] = {"iteration": weigh(batches, iterations)}
    speeds: dict[str, list[float]] = {}
    waits: dict[str, list[float]] = {}
    many = agents * iterations
    for number in range(options.rounds):
        uri = server.new_journal()
        size, before = Size(server, uri), Size(server, uri).now()
        for engine, place in (("sqlite", folder / f"{number}.db"), ("postgres", uri)):
            async with open_journal(place) as journal:
                seconds, each = await replay(journal, batches, agents, f"r{number}")
                commits = journal._writer.commits  # type: ignore[attr-defined]
            speeds.setdefault(f"{engine}: journal", []).append(many / seconds)
            waits.setdefault(engine, []).extend(each)
            found[f"{engine}: commits"] = commits / many
        after = size.now()
        found["postgres: bytes"] = {name: (after[name] - before[name]) / many for name in after}
        found["sqlite: bytes"] = (folder / f"{number}.db").stat().st_size / many
        for engine, place in (("sqlite", folder / f"{number}-agents.db"), ("postgres", server.new_journal())):
            seconds = await run_agents(place, agents, iterations)
            speeds.setdefault(f"{engine}: agents", []).append(many / seconds)
    for name, values in speeds.items():
        found[f"{name}: iterations a second"] = statistics.median(values)
    for engine, values in waits.items():
        cuts = statistics.quantiles(values, n=100, method="inclusive")
        found[f"{engine}: milliseconds of a batch"] = {"p50": 1000 * cuts[49], "p99": 1000 * cuts[98]}
    for what in ("journal", "agents"):
        ratio = statistics.median(speeds[f"postgres: {what}"]) / statistics.median(speeds[f"sqlite: {what}"])
        found[f"postgres / sqlite: {what}"] = ratio
    return found


@contextlib.contextmanager
def server_of(uri: str | None) -> Iterator[PostgresServer]:
    """The server to measure."""
    if uri is not None:
        yield PostgresServer(uri, None)
        return
    with postgres_server() as server:
        if server is None:
            sys.exit(MISSING)
        yield server


def lines(found: dict[str, Any], indent: str = "") -> Iterator[str]:
    """The figures, one per line."""
    for name, value in found.items():
        if isinstance(value, dict):
            yield f"{indent}{name}"
            yield from lines(value, f"{indent}    ")
        else:
            yield f"{indent}{name:45} {value:12,.2f}"


def main(words: Sequence[str] | None = None) -> None:
    """Measure, and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=50)
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--db", help="a server on which databases may be made; default: one that is started")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(words)
    with server_of(options.db) as server, tempfile.TemporaryDirectory(prefix="repertory-postgres-") as name:
        found = anyio.run(partial(measure, server, options, Path(name)), backend="trio")
    sys.stdout.write(json.dumps(found) + "\n" if options.json else "\n".join(lines(found)) + "\n")


if __name__ == "__main__":
    main()
