"""The storm of appends: tasks and threads at once, and snapshots all the while."""

from __future__ import annotations

from pathlib import Path

import pytest

import journal_kit as kit
from backends import RunAsync
from repertory.record import Snapshot
from repertory.torture.storms import append_storm, snapshot_problems


@pytest.mark.parametrize("kind", kit.KINDS, indirect=True)
def test_concurrent_appends_keep_every_promise(kind: str, tmp_path: Path, run_async: RunAsync) -> None:
    """Thirty writers, a third of them threads, on every kind of journal: nothing is wrong."""
    place = kit.place_of(kind, tmp_path)

    async def main() -> None:
        assert await append_storm(1, place) == []

    run_async(main)


def test_the_snapshot_check_sees_growth_and_change() -> None:
    """Negative controls: a snapshot that grew, one of another record; and two that are as they were."""
    final = [kit.entry(position, f"{position}") for position in range(3)]
    assert snapshot_problems([(2, Snapshot("r", final[:2])), (0, Snapshot("r"))], final) == []
    for length, entries in ((2, final), (2, [kit.entry(0, "other"), final[1]]), (1, final[1:2])):
        assert snapshot_problems([(length, Snapshot("r", entries))], final)
