"""A payload after real kills: every change is there once, with the outcome that it came with, or not at all."""

from __future__ import annotations

import random
import select
import subprocess
import sys
from pathlib import Path

import pytest
from killed_payloads import RUN_ID, STEPS, WORKERS

from repertory.memory.documents import document_of
from repertory.record import Journal, open_journal

PROGRAM = Path(__file__).with_name("killed_payloads.py")


def kill_one(path: Path, backend: str, steps: int, after: float) -> bool:
    """Start the team, or let it go on, and kill it so many calls and seconds later; whether it had come to its end."""
    words = [sys.executable, str(PROGRAM), str(path), backend, str(steps)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "OPEN\n"
        for _ in range(steps):
            if (line := process.stdout.readline()) != "STEP\n":
                assert line == "DONE\n"
                return True
        select.select([], [], [], after)
        process.kill()
        return "DONE" in process.stdout.read()


async def check(journal: Journal) -> bool:
    """See that each run's payload holds what its ended calls changed, neither more nor less; whether any did."""
    ended = 0
    for row in await journal.read_runs():
        run_id = row.started.run_id
        records = await journal.read_payload(run_id)
        assert [record.version for record in records] == list(range(1, len(records) + 1))
        assert not any(record.conflicts for record in records)
        ok = {
            call.intended.call_id: call.intended.arguments
            for call in await journal.read_tool_calls(run_id)
            if call.finished is not None and call.finished.status == "ok"
        }
        assert {record.call_id for record in records[1:]} == set(ok)
        steps = document_of(records)["steps"]
        assert len(steps) == len(set(steps))
        if row.started.parent_id is not None:
            assert set(steps) == {f"{made['who']}/{made['number']}" for made in ok.values()}
            ended += len(ok)
    return ended > 0


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
async def test_every_change_is_there_once_or_not_at_all_after_kills(backend: str, tmp_path: Path) -> None:
    """Kills at random moments, a look at the record after each, and the whole at the end."""
    path, chance = tmp_path / "p.db", random.Random(backend)
    kills = 0
    while not kill_one(path, backend, chance.randint(1, 4) if kills < 4 else 99, chance.uniform(0, 0.01)):
        kills += 1
        async with open_journal(path, readonly=True) as journal:
            await check(journal)
    assert kills > 0
    async with open_journal(path, readonly=True) as journal:
        assert await check(journal)
        payload = document_of(await journal.read_payload(RUN_ID))
    workers = [f"w{number}" for number in range(WORKERS)]
    assert payload["by_worker"] == dict.fromkeys(workers, STEPS)
    assert sorted(payload["steps"]) == sorted(f"{who}/{number}" for who in workers for number in range(STEPS))
    assert sorted(source["url"] for source in payload["sources"]) == [f"https://shelf/{n}" for n in range(STEPS)]
    assert {source["length"] for source in payload["sources"]} == {2_400}
