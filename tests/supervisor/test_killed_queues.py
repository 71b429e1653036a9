"""A queue whose process is killed again and again."""

from __future__ import annotations

import itertools
import random
import select
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from killed_queue import RUNS

from killing import play
from repertory.record import open_journal
from repertory.record.records import RunStateChanged

QUEUE = Path(__file__).with_name("killed_queue.py")


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 21))])
def test_a_killed_queue_loses_nobody_and_begins_nobody_twice(seed: int, tmp_path: Path) -> None:
    """Wherever the kills fall: who was acknowledged is on record, runs once, and never beside more than may be."""
    path, chance, acknowledged = tmp_path / "runs.db", random.Random(seed), set[str]()
    for _ in range(5):
        said = kill_after(path, chance.uniform(0.0, 0.25))
        acknowledged |= {line for line in said if line.startswith("run-")}
        assert acknowledged <= set(anyio.run(states, path))
        if "END" in said:
            break
    assert play(QUEUE, path)[-1] == "END"
    found = anyio.run(states, path)
    assert set(found) == {f"run-{number}" for number in range(RUNS)}
    for run_id, course in found.items():
        assert course[-1] == "done", (run_id, course)
        assert course.count("done") == 1
        assert ("queued", "queued") not in itertools.pairwise(course)  # who waits keeps its place
    assert any("queued" in course for course in found.values())


def kill_after(path: Path, seconds: float) -> list[str]:
    """Let it go on, and kill it so much later, also while it still asks for runs; what it said by then."""
    with subprocess.Popen([sys.executable, str(QUEUE), str(path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "OPEN\n"
        select.select([], [], [], seconds)
        process.kill()
        return process.stdout.read().splitlines()


async def states(path: Path) -> dict[str, list[str]]:
    """The states that each run on record went through."""
    async with open_journal(path, readonly=True) as journal:
        found: dict[str, list[str]] = {row.started.run_id: [] for row in await journal.read_runs()}
        for run_id, course in found.items():
            course += [record.state for record in await journal._of_run(RunStateChanged, run_id)]
    return found
