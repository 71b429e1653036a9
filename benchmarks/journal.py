"""What durable appends cost, compared with SQLite itself on the same disk in the same minute.

    python benchmarks/journal.py [--json] [--rounds 5] [--folder DIR] [--quick]

Every number is a median over rounds in which all contestants take turns, so that a busy machine affects all of them.
Compare within one table; absolute numbers are this machine's.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import aiosqlite
import anyio
import anyio.lowlevel

from repertory.llm import Text
from repertory.record import Draft, Entry, Ledger, MemoryJournal, open_journal
from repertory.record.records import EntryAppended, Record
from repertory.record.rows import TABLES, encode_records
from repertory.record.sqlite_file import open_to_write
from repertory.record.sqlite_writer import SqliteWriter
from repertory.record.waiting import Ticket
from repertory.record.writing import Batch

BODY = "x" * 300
APPENDERS = 50
SYNCHRONOUS = {"power": "FULL", "process": "NORMAL"}
names = itertools.count()
_MANY = 2_000  # snapshots per measurement


def draft() -> Draft:
    """An entry of 300 characters."""
    return Draft(role="user", kind="user-input", content=(Text(BODY),))


def entry(position: int) -> Entry:
    """The same, with its position."""
    return Entry(role="user", kind="user-input", content=(Text(BODY),), position=position, created_at=1.5, tokens=80)


# --- contestants: each takes a folder, a durability and a number of rows, and gives rows per second ---------


def raw_plain(folder: Path, durability: str, rows: int, batch: int) -> float:
    """The baseline: executemany into a table of two columns, one commit per batch."""
    connection = sqlite3.connect(folder / f"{next(names)}.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {SYNCHRONOUS[durability]}")
    connection.execute("CREATE TABLE log (seq INTEGER PRIMARY KEY, body TEXT)")
    started = time.perf_counter()
    for first in range(0, rows, batch):
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO log VALUES (?, ?)", [(first + n, BODY) for n in range(batch)])
        connection.execute("COMMIT")
    seconds = time.perf_counter() - started
    connection.close()
    return rows / seconds


def raw_schema(folder: Path, durability: str, rows: int, batch: int) -> float:
    """The same with the journal's real table, index and encoded rows: the most that its own writer could reach."""
    connection = open_to_write(str(folder / f"{next(names)}.db"), durability)  # type: ignore[arg-type]
    marks = ", ".join("?" * (2 + len(TABLES[EntryAppended].columns)))
    started = time.perf_counter()
    for first in range(0, rows, batch):
        records = [EntryAppended(run_id="run-1", entry=entry(first + n)) for n in range(batch)]
        encoded = enumerate(encode_records(records), first + 1)
        values = [(seq, *row, checksum ^ seq) for seq, ((_, row, checksum),) in encoded]
        connection.execute("BEGIN")
        connection.executemany(f"INSERT INTO entries VALUES ({marks})", values)
        connection.execute("COMMIT")
    seconds = time.perf_counter() - started
    connection.close()
    return rows / seconds


async def journal_rows(folder: Path, durability: str, rows: int, batch: int) -> float:
    """50 tasks that each wait for the durability of their own batch, with the journal alone."""
    async with open_journal(folder / f"{next(names)}.db", durability=durability) as journal:  # type: ignore[arg-type]
        numbers = itertools.count()

        async def append() -> None:
            for _ in range(rows // batch // APPENDERS):
                await journal.write([EntryAppended(run_id="run-1", entry=entry(next(numbers))) for _ in range(batch)])

        return await _all(append, rows)


async def journal_runs(folder: Path, durability: str, rows: int, batch: int) -> float:
    """The same, with each task writing for its own run, which scatters the index of positions."""
    async with open_journal(folder / f"{next(names)}.db", durability=durability) as journal:  # type: ignore[arg-type]
        names_of_runs = itertools.count()

        async def append() -> None:
            run_id, numbers = f"run-{next(names_of_runs)}", itertools.count()
            for _ in range(rows // batch // APPENDERS):
                await journal.write([EntryAppended(run_id=run_id, entry=entry(next(numbers))) for _ in range(batch)])

        return await _all(append, rows)


async def ledger_rows(folder: Path, durability: str, rows: int, batch: int) -> float:
    """50 tasks that append to one ledger: estimate, position, snapshot bookkeeping and all."""
    async with open_journal(folder / f"{next(names)}.db", durability=durability) as journal:  # type: ignore[arg-type]
        ledger = await Ledger.open(journal, "run-1")

        async def append() -> None:
            for _ in range(rows // batch // APPENDERS):
                await ledger.append(*[draft() for _ in range(batch)])

        return await _all(append, rows)


class _NullWriter(SqliteWriter):
    """Takes batches and acknowledges them from its thread, and writes nothing."""

    def _write(self, group: Sequence[Batch]) -> None:
        return


async def null_writer(folder: Path, durability: str, rows: int, batch: int) -> float:
    """The limit set by tasks, threads and wake-ups alone: rows are encoded and dropped."""
    path = str(folder / f"{next(names)}.db")
    writer = _NullWriter(open_to_write(path, durability), path)  # type: ignore[arg-type]
    numbers = itertools.count()

    async def append() -> None:
        for _ in range(rows // batch // APPENDERS):
            records = [EntryAppended(run_id="run-1", entry=entry(next(numbers))) for _ in range(batch)]
            await writer.submit(Batch(encode_records(records))).wait()

    speed = await _all(append, rows)
    writer.close(10)
    return speed


def fsyncs(folder: Path) -> float:
    """Microseconds that this disk takes to make a small write durable."""
    with (folder / f"{next(names)}.bin").open("wb", buffering=0) as file:

        def write() -> None:
            file.write(BODY.encode())
            os.fdatasync(file.fileno())

        return _median(write, 200) / 1000


async def naive_aiosqlite(folder: Path, durability: str, rows: int, _batch: int) -> float:
    """50 tasks on one aiosqlite connection, execute and commit each."""
    async with aiosqlite.connect(folder / f"{next(names)}.db") as connection:
        await connection.execute("PRAGMA journal_mode = WAL")
        await connection.execute(f"PRAGMA synchronous = {SYNCHRONOUS[durability]}")
        await connection.execute("CREATE TABLE log (seq INTEGER PRIMARY KEY, body TEXT)")

        async def append() -> None:
            for _ in range(rows // APPENDERS):
                await connection.execute("INSERT INTO log (body) VALUES (?)", (BODY,))
                await connection.commit()

        return await _all(append, rows)


async def sequential_aiosqlite(folder: Path, durability: str, rows: int, _batch: int) -> float:
    """One task, a commit for each row."""
    async with aiosqlite.connect(folder / f"{next(names)}.db") as connection:
        await connection.execute("PRAGMA journal_mode = WAL")
        await connection.execute(f"PRAGMA synchronous = {SYNCHRONOUS[durability]}")
        await connection.execute("CREATE TABLE log (seq INTEGER PRIMARY KEY, body TEXT)")
        started = time.perf_counter()
        for _ in range(rows // 10):
            await connection.execute("INSERT INTO log (body) VALUES (?)", (BODY,))
            await connection.commit()
        return rows // 10 / (time.perf_counter() - started)


async def _all(append: Callable[[], Coroutine[Any, Any, None]], rows: int) -> float:
    started = time.perf_counter()
    async with anyio.create_task_group() as group:
        for _ in range(APPENDERS):
            group.start_soon(append)
    return rows / (time.perf_counter() - started)


def on(backend: str, contestant: Callable[..., Awaitable[float]]) -> Callable[..., float]:
    """Run a contestant on one event loop."""
    return lambda *arguments: anyio.run(contestant, *arguments, backend=backend)


CONTESTANTS: dict[str, tuple[Callable[..., float], int]] = {
    "raw executemany(50), 2 columns": (raw_plain, 50),
    "raw executemany(50), our table": (raw_schema, 50),
    "raw executemany(1000), 2 columns": (raw_plain, 1000),
    "raw executemany(1000), our table": (raw_schema, 1000),
    "nothing written, 50 x 1 row, asyncio": (on("asyncio", null_writer), 1),
    "nothing written, 50 x 1 row, trio": (on("trio", null_writer), 1),
    "journal, 50 x 1 row, asyncio": (on("asyncio", journal_rows), 1),
    "journal, 50 x 1 row, trio": (on("trio", journal_rows), 1),
    "journal, 50 runs x 1 row, trio": (on("trio", journal_runs), 1),
    "ledger, 50 x 1 row, asyncio": (on("asyncio", ledger_rows), 1),
    "ledger, 50 x 1 row, trio": (on("trio", ledger_rows), 1),
    "journal, 50 x 20 rows, asyncio": (on("asyncio", journal_rows), 20),
    "journal, 50 x 20 rows, trio": (on("trio", journal_rows), 20),
    "ledger, 50 x 20 rows, trio": (on("trio", ledger_rows), 20),
    "aiosqlite, 50 tasks, commit per row": (on("asyncio", naive_aiosqlite), 1),
    "aiosqlite, 1 task, commit per row": (on("asyncio", sequential_aiosqlite), 1),
}


def measure_throughput(folder: Path, rounds: int, rows: int) -> dict[str, dict[str, float]]:
    """Rows per second of every contestant at both durability levels."""
    out: dict[str, dict[str, float]] = {}
    for durability in SYNCHRONOUS:
        seen: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
        for turn in range(rounds + 1):
            for name, (contestant, batch) in CONTESTANTS.items():
                speed = contestant(folder, durability, rows, batch)
                if turn:  # the first round warms up
                    seen[name].append(speed)
        out[durability] = {name: statistics.median(speeds) for name, speeds in seen.items()}
    return out


# --- a busy event loop --------------------------------------------------------------------------------------


async def _appends_beside_work(folder: Path, seconds: float) -> list[float]:
    """Latencies of durable appends while other tasks keep the loop busy, a millisecond at a time."""
    latencies: list[float] = []
    async with open_journal(folder / f"{next(names)}.db") as journal:
        ledger = await Ledger.open(journal, "run-1")

        async def append() -> None:
            while True:
                started = time.perf_counter()
                await ledger.append(draft())
                latencies.append(time.perf_counter() - started)

        async def work() -> None:
            while True:
                until = time.perf_counter() + 0.001
                while time.perf_counter() < until:
                    pass
                await anyio.lowlevel.checkpoint()

        with anyio.move_on_after(seconds):
            async with anyio.create_task_group() as group:
                group.start_soon(work)
                for _ in range(APPENDERS):
                    group.start_soon(append)
    return latencies


def measure_busy(folder: Path, seconds: float) -> dict[str, dict[str, float]]:
    """Milliseconds of an append, with Python's switch interval and with a shorter one."""
    before = sys.getswitchinterval()
    out: dict[str, dict[str, float]] = {}
    try:
        for backend, interval in itertools.product(("asyncio", "trio"), (0.005, 0.0005)):
            sys.setswitchinterval(interval)
            latencies = sorted(anyio.run(_appends_beside_work, folder, seconds, backend=backend)) or [seconds]
            out[f"{backend}, {interval * 1000:g} ms"] = {
                "p50": latencies[len(latencies) // 2] * 1000,
                "p99": latencies[len(latencies) * 99 // 100] * 1000,
                "per_second": len(latencies) / seconds,
            }
    finally:
        sys.setswitchinterval(before)
    return out


# --- snapshots ----------------------------------------------------------------------------------------------


class _Nowhere(MemoryJournal):
    """Acknowledges and forgets, so that only the ledger is measured."""

    def submit(
        self,
        records: Sequence[Record],
        *,
        on_commit: Callable[[], None] | None = None,
        after: Ticket | None = None,
        emptied: Sequence[int] = (),
    ) -> Ticket:
        if on_commit is not None:
            on_commit()
        ticket = Ticket()
        ticket.finish()
        return ticket


def measure_snapshots(rounds: int) -> dict[int, dict[str, float]]:
    """Nanoseconds of an append with a snapshot, a snapshot, a copied list, and an iterated item."""
    out: dict[int, dict[str, float]] = {}
    for size in (1_000, 10_000, 100_000, 1_000_000):
        ledger = Ledger(_Nowhere(), "run-1", entries=[entry(0)] * size)
        plain = list(ledger.snapshot())
        one = draft()

        def append(ledger: Ledger = ledger, one: Draft = one) -> None:
            for _ in range(_MANY):
                ledger.append_sync(one)
                ledger.snapshot()

        def snapshot(ledger: Ledger = ledger) -> None:
            for _ in range(_MANY):
                ledger.snapshot()

        def iterate(items: Sequence[Entry]) -> None:
            for _ in items:
                pass

        view = ledger.snapshot()
        out[size] = {
            "append+snapshot": _median(append, rounds) / _MANY,
            "snapshot": _median(snapshot, rounds) / _MANY,
            "list copy": _median(lambda plain=plain: plain.copy(), rounds),  # type: ignore[misc]
            "iterate snapshot": _median(lambda view=view: iterate(view), rounds) / size,  # type: ignore[misc]
            "iterate list": _median(lambda plain=plain: iterate(plain), rounds) / size,  # type: ignore[misc]
        }
    return out


def _median(work: Callable[[], object], rounds: int) -> float:
    times: list[float] = []
    for _ in range(rounds + 1):
        started = time.perf_counter_ns()
        work()
        times.append(time.perf_counter_ns() - started)
    return statistics.median(times[1:])


# --- the whole ----------------------------------------------------------------------------------------------

RATIOS = [  # (what, contestant, floor, target by durability)
    ("1 row/await, asyncio", "journal, 50 x 1 row, asyncio", "raw executemany(50), 2 columns", (0.50, 0.40)),
    ("1 row/await, trio", "journal, 50 x 1 row, trio", "raw executemany(50), 2 columns", (0.45, 0.33)),
    ("1 row/await, asyncio", "journal, 50 x 1 row, asyncio", "raw executemany(50), our table", (None, None)),
    ("1 row/await, trio", "journal, 50 x 1 row, trio", "raw executemany(50), our table", (None, None)),
    ("1 row/await, asyncio", "journal, 50 x 1 row, asyncio", "nothing written, 50 x 1 row, asyncio", (None, None)),
    ("1 row/await, trio", "journal, 50 x 1 row, trio", "nothing written, 50 x 1 row, trio", (None, None)),
    ("20 rows/await, asyncio", "journal, 50 x 20 rows, asyncio", "raw executemany(1000), our table", (0.80, 0.80)),
    ("20 rows/await, trio", "journal, 50 x 20 rows, trio", "raw executemany(1000), our table", (0.80, 0.80)),
    ("beside naive aiosqlite", "journal, 50 x 1 row, asyncio", "aiosqlite, 50 tasks, commit per row", (2.5, 3.0)),
    ("beside sequential aiosqlite", "journal, 50 x 1 row, asyncio", "aiosqlite, 1 task, commit per row", (20.0, None)),
    ("50 runs beside one run, trio", "journal, 50 runs x 1 row, trio", "journal, 50 x 1 row, trio", (None, None)),
]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=10_000, help="rows of each contestant in a round")
    parser.add_argument("--folder", help="on the disk to be measured; default: the system's temporary folder")
    parser.add_argument("--quick", action="store_true", help="2 rounds of 2,000 rows")
    options = parser.parse_args()
    rounds, rows = (2, 2_000) if options.quick else (options.rounds, options.rows)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        found: dict[str, Any] = {
            "fsync_microseconds": fsyncs(folder),
            "throughput": measure_throughput(folder, rounds, rows),
            "busy": measure_busy(folder, 1.0 if options.quick else 4.0),
            "snapshots": measure_snapshots(rounds),
        }
    speeds = found["throughput"]
    ratios = [
        {
            "what": what,
            "durability": durability,
            "floor": floor,
            "ratio": speeds[durability][contestant] / speeds[durability][floor],
            "target": targets[place],
        }
        for what, contestant, floor, targets in RATIOS
        for place, durability in enumerate(SYNCHRONOUS)
    ]
    if options.json:
        print(json.dumps({**found, "ratios": ratios, "sqlite": sqlite3.sqlite_version}, indent=2))
        return
    print(f"SQLite {sqlite3.sqlite_version}, Python {sys.version.split()[0]}, {rounds} rounds; ", end="")
    print(f"a durable write of the file system takes {found['fsync_microseconds']:.0f} µs")
    print("rows per second")
    for name in CONTESTANTS:
        print(f"  {name:40}" + "".join(f"{durability:>9} {speeds[durability][name]:>9,.0f}" for durability in speeds))
    print("ratios")
    for each in ratios:
        target = "" if each["target"] is None else f"  (target {each['target']:g})"
        print(f"  {each['what']:30} {each['durability']:8} {each['ratio']:6.2f} of {each['floor']}{target}")
    print("an append beside a busy loop, 50 appenders, power")
    for name, each in found["busy"].items():
        print(f"  {name:20} p50 {each['p50']:7.1f} ms   p99 {each['p99']:7.1f} ms   {each['per_second']:8,.0f}/s")
    print("snapshots, nanoseconds")
    for size, each in found["snapshots"].items():
        print(f"  {size:>9,} " + "   ".join(f"{what} {nanoseconds:,.0f}" for what, nanoseconds in each.items()))


if __name__ == "__main__":
    main()
