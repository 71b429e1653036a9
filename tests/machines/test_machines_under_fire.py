"""Machines that are killed, stopped, cut off and robbed of their server, and what their journal says afterwards."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest
from fleet import Fleet, stay_under_fire, wait_for
from ownership_check import repeated, strange_writes

from patience import PATIENCE
from postgres_server import PostgresServer


def test_machines_that_are_killed_stopped_and_cut_lose_and_repeat_nothing(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    """The short form: every run ends, no unsafe effect comes twice, and each record is its owner's."""
    fleet = Fleet(postgres, tmp_path, size=2, lease=1.5, pause=0.2)
    plan = ["kill", "stop", "cut", "kill", "cut", "kill"]
    stay_under_fire(fleet, plan, runs=20, between=0.3, patience=300, chance=random.Random(1))


def test_teams_that_work_on_several_machines_lose_and_repeat_nothing(postgres: PostgresServer, tmp_path: Path) -> None:
    """The same, where each deputy may work on another machine than its lead."""
    fleet = Fleet(postgres, tmp_path, size=2, lease=1.5, pause=0.1, placement="deep")
    stay_under_fire(fleet, ["kill", "stop", "cut"], runs=6, between=0.5, patience=300, chance=random.Random(2))


@pytest.mark.nightly
@pytest.mark.parametrize("placement", ["", "deep"])
def test_four_machines_under_two_hundred_faults(placement: str, postgres: PostgresServer, tmp_path: Path) -> None:
    """400 runs of teams; set REPERTORY_FIRE=runs,faults for another size."""
    runs, faults = map(int, os.environ.get("REPERTORY_FIRE", "400,200").split(","))
    fleet = Fleet(postgres, tmp_path, size=4, lease=2.0, pause=0.2, placement=placement)
    chance = random.Random(os.environ.get("REPERTORY_SEED", "0"))
    plan = chance.choices(["kill", "stop", "cut", "restart"], [8, 7, 6, 1], k=faults)
    stay_under_fire(fleet, plan, runs=runs, between=0.7, patience=3600, chance=chance)


def _write_after_a_take_over(server: PostgresServer, folder: Path, *options: str) -> list[str]:
    """Stop a machine for twice its lease while another one takes over its runs, and let it go on."""
    fleet = Fleet(server, folder, size=2, lease=2.5, pause=1.0)
    run_ids = fleet.queue_runs(4)
    try:
        first = fleet.start(*options)
        wait_for(fleet, "SELECT count(DISTINCT run_id) FROM tool_intents", len(run_ids))
        first.send_signal(signal.SIGSTOP)
        fleet.start(*options)
        taken = "SELECT count(*) FROM events WHERE type = 'RunClaimed' AND body LIKE '%taken over%'"
        wait_for(fleet, taken, len(run_ids))
        first.send_signal(signal.SIGCONT)
        wait_for(fleet, "SELECT count(*) FROM run_status WHERE state = 'done' AND depth = 0", 4)
        if not options:
            assert first.wait(PATIENCE) == 3
    finally:
        fleet.close()
    assert repeated(fleet.effects.read_text().splitlines()) == []
    with server.connect(fleet.uri) as connection:
        return strange_writes(connection)


def test_an_owner_that_stood_still_writes_nothing_after_it_was_taken_over(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    """A real process, stopped for as long as it takes until another machine has its runs."""
    assert _write_after_a_take_over(postgres, tmp_path) == []


@pytest.mark.nightly
def test_without_the_guard_two_owners_write(postgres: PostgresServer, tmp_path: Path) -> None:
    """Negative control: then the database shows records of another machine than the owner."""
    assert _write_after_a_take_over(postgres, tmp_path, "unguarded") != []
