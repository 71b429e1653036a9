"""What memory costs: snapshots and forks, queries among many items, and opening a large file.

::

    python benchmarks/memory.py [--json] [--items 1000000] [--searched 100000] [--megabytes 100]

Snapshots and forks are timed until the actor has answered, without the wait for the disk that a fork's caller adds.
Queries are those of a handle, for the twenty newest or best; on a busy machine use the CPU time. Opening is measured in
a process of its own: how much more memory it uses after a run has stored and read an item than with an empty file.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import anyio

from repertory.actors import open_system
from repertory.memory import ItemQuery, Memory, MemoryActor, MemoryQuota
from repertory.memory.messages import OpenScope, SnapshotScope
from repertory.record import Journal, open_journal
from repertory.record.memory_records import ItemWritten, ScopeOpened

BATCH = 2_000  # items per transaction, while a file is filled
WORDS = 5_000  # different words; as in any language, few of them are in most texts
TAGS = 100  # each item has one of these, and one that all items have
UNBOUNDED = MemoryQuota(items=None, scope_bytes=None)


def texts(seed: int, *, words: int = 40) -> Iterator[str]:
    """Texts whose words are distributed as unevenly as in a language."""
    chosen = random.Random(seed)
    known = [f"w{min(int(chosen.paretovariate(0.6)), WORDS)}" for _ in range(50_000)]
    while True:
        yield " ".join(chosen.choices(known, k=words))


async def fill(journal: Journal, count: int, *, scope_id: str = "s", text: str = "", runs: int = 1) -> None:
    """Write ``count`` items in the scopes of ``runs`` ended runs, with different texts unless one is given."""
    more = texts(1)
    scopes = [scope_id if not number else f"{scope_id}-{number}" for number in range(runs)]
    await journal.write([ScopeOpened(scope_id=each, owner=f"run-{each}", mode="root", at=1.0) for each in scopes])
    for start in range(1, count + 1, BATCH):
        await journal.write(
            [
                ItemWritten(
                    scope_id=scopes[position % runs],
                    item_id=f"item-{position:08}",
                    position=position,
                    type="custom",
                    content=text or next(more),
                    at=float(position),
                    tags=(f"t{position % TAGS}", "all"),
                )
                for position in range(start, min(start + BATCH, count + 1))
            ]
        )


async def timed(
    body: Callable[[], Awaitable[object]], times: int, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Seconds of each call, sorted."""
    found: list[float] = []
    for _ in range(times):
        began = clock()
        await body()
        found.append(clock() - began)
    return sorted(found)


async def measure_forks(path: Path, count: int) -> dict[str, float]:
    """Microseconds of a snapshot and of a fork, with ``count`` items."""
    async with open_journal(path, durability="process") as journal, open_system() as system:
        await fill(journal, count, text="a fact")
        ref = system.spawn(lambda: MemoryActor(journal, quota=UNBOUNDED), "memory")
        memory = Memory(ref, "s")
        await memory.snapshot()  # this reads the scope's position
        fork = OpenScope(owner="run-s.a", mode="snapshot", parent_id="s")
        snapshots = await timed(lambda: ref.ask(SnapshotScope(scope_id="s")), 2_000)
        forks = await timed(lambda: ref.ask(fork), 2_000)
        return {
            "snapshot_us": statistics.median(snapshots) * 1e6,
            "fork_us": statistics.median(forks) * 1e6,
        }


async def measure_queries(path: Path, count: int) -> dict[str, float]:
    """Milliseconds of queries among ``count`` items: the median, and the 99th percentile."""
    found: dict[str, float] = {}
    async with open_journal(path, durability="process") as journal, open_system() as system:
        await fill(journal, count)
        memory = Memory(system.spawn(lambda: MemoryActor(journal, quota=UNBOUNDED), "memory"), "s")
        began = time.perf_counter()
        await memory.query(ItemQuery(text="w1", limit=20))
        found["first_search_s"] = time.perf_counter() - began  # this indexes all items
        queries = {
            "tag": lambda chosen: ItemQuery(tags=(f"t{chosen.randrange(TAGS)}",), limit=20),
            "common_tag": lambda _: ItemQuery(tags=("all",), limit=20),
            "text": lambda chosen: ItemQuery(text=f"w{chosen.randrange(1, 500)} w{chosen.randrange(1, 20)}", limit=20),
            "common_text": lambda chosen: ItemQuery(text=f"w{chosen.randrange(1, 4)}", limit=20),
            "text_and_tag": lambda chosen: ItemQuery(text="w1 w2", tags=(f"t{chosen.randrange(TAGS)}",), limit=20),
        }
        for name, make in queries.items():
            for kind, clock in (("", time.perf_counter), ("_cpu", time.process_time)):
                chosen = random.Random(2)
                ask = lambda make=make, chosen=chosen: memory.query(make(chosen))  # noqa: E731
                took = await timed(ask, 300, clock)
                found[f"{name}{kind}_ms"] = statistics.median(took) * 1e3
                found[f"{name}{kind}_p99_ms"] = took[-3] * 1e3
    return found


async def use(path: str) -> None:
    """Open a file, store and read an item of a new run, and print how much memory the process uses."""
    async with open_journal(path, durability="process") as journal, open_system() as system:
        ref = system.spawn(lambda: MemoryActor(journal), "memory")
        memory = await Memory.open(ref, "run-new")
        await memory.retrieve((await memory.store("a fact", tags=["mine"])).item_id)
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        print(pages * os.sysconf("SC_PAGE_SIZE") / 1e6)


def measure_opening(folder: Path, megabytes: int) -> dict[str, float]:
    """How many more megabytes a process uses for a file with ``megabytes``."""

    async def make(path: Path, count: int) -> None:
        async with open_journal(path, durability="process") as journal:
            await fill(journal, count, text="x" * 10_000, runs=100)

    held: list[float] = []
    for name, count in (("empty", 0), ("full", megabytes * 100)):
        anyio.run(make, folder / name, count)
        command = [sys.executable, __file__, "--use", str(folder / name)]
        held.append(statistics.median(float(subprocess.check_output(command)) for _ in range(3)))
    return {"empty_mb": held[0], "full_mb": held[1], "more_mb": held[1] - held[0]}


def main() -> None:
    """Measure, and print tables or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--searched", type=int, default=100_000)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--use", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.use is not None:
        anyio.run(use, options.use)
        return
    with tempfile.TemporaryDirectory(prefix="rp") as name:
        folder = Path(name)
        figures = {
            f"{count:,} items": anyio.run(partial(measure_forks, folder / f"{count}.db", count), backend="trio")
            for count in (1_000, options.items)
        }
        figures[f"queries of {options.searched:,} items"] = anyio.run(
            partial(measure_queries, folder / "searched.db", options.searched), backend="trio"
        )
        figures[f"opening {options.megabytes} MB"] = measure_opening(folder, options.megabytes)
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    for title, found in figures.items():
        print(title)
        for what, value in found.items():
            print(f"  {what:20} {value:10.2f}")


if __name__ == "__main__":
    main()
