"""Two machines on computers of their own, whose links to the database's are cut and healed."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from subprocess import Popen
from typing import Any
from urllib.parse import urlsplit

import pytest
from fleet import Fleet, stay_under_fire, wait_for
from network import Network, NoNetwork, network
from ownership_check import repeated
from shared_team import LEDGER

from postgres_server import MISSING, PostgresServer, find_programs

pytestmark = pytest.mark.nightly
# A computer of its own also in that nobody else sees its processes: a machine that was killed is not seen to be gone.
ALONE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
TAKEN = "SELECT count(*) FROM events WHERE type = 'RunClaimed' AND body LIKE '%taken over%'"

GONE = "SELECT CAST(count(*) = 0 AS int) FROM pg_stat_activity WHERE client_addr = '10.77.1.2'"


class FarFleet(Fleet):
    """Machines on computers of their own, at most one on each."""

    def __init__(self, server: PostgresServer, net: Network, folder: Path, **options: Any) -> None:
        super().__init__(server, folder, size=2, **options)
        self.net = net
        self.places: dict[Popen[bytes], int] = {}
        self.cuts: dict[int, float] = {}  # until when

    def launch(self, uri: str, *options: str, before: Sequence[str] = (), **variables: str) -> Popen[bytes]:
        """Start a machine where none is."""
        place = min({1, 2} - {self.places[process] for process in self.machines})
        self.effects_at(place).touch()
        far = f"postgresql://postgres@{self.net.server_for(place)}/{urlsplit(uri).path[1:]}"
        variables[LEDGER] = str(self.effects_at(place))
        with self.net.inside(place):
            process = super().launch(far, *options, before=(*before, *ALONE), **variables)
        self.places[process] = place
        return process

    def effects_at(self, place: int) -> Path:
        """Where the tools on a computer write down what they did."""
        return self.effects.with_name(f"effects-{place}")

    def done(self) -> list[str]:
        """The effects that took place anywhere."""
        return [line for place in (1, 2) for line in self.effects_at(place).read_text().splitlines()]

    def tend(self) -> None:
        """Heal the links whose time is over, too."""
        for place, until in list(self.cuts.items()):
            if time.monotonic() >= until:
                del self.cuts[place]
                self.net.heal(place)
        super().tend()

    def strike(self, kind: str, chance: random.Random) -> None:
        """Cut one link or both, for less than a lease or for longer; or kill a machine."""
        self.faults[kind] += 1
        if kind == "kill":
            chance.choice(self.machines).kill()
            return
        seconds = chance.uniform(0.1, 0.6) if kind == "blink" else chance.uniform(1.0, 3.0)
        for place in (1, 2) if kind == "both" else (chance.choice((1, 2)),):
            self.cuts[place] = time.monotonic() + seconds * self.lease
            self.net.cut(place)


@pytest.fixture
def net() -> Iterator[Network]:
    """A network with two computers beside the server's."""
    try:
        with network(2) as made:
            yield made
    except NoNetwork as error:
        pytest.skip(f"left out: machines that are cut off from each other; {error}")


@pytest.fixture
def far_server(net: Network) -> Iterator[PostgresServer]:
    """A server on its own computer; these tests reach it by its socket, whatever is cut."""
    programs = find_programs()
    if programs is None:
        pytest.skip(MISSING)
    with net.inside(0):
        server = PostgresServer(None, programs, listen="*")
    try:
        yield server
    finally:
        server.close()


def acts(path: Path) -> list[str]:
    """What was done by tools that do more than look."""
    return [line for line in path.read_text().splitlines() if not line.startswith("pure ")]


def test_a_machine_that_is_cut_off_does_nothing_more(far_server: PostgresServer, net: Network, tmp_path: Path) -> None:
    """It begins no effect after others may have its runs, ends when it hears of that, and none of it is on record."""
    fleet = FarFleet(far_server, net, tmp_path, lease=3.0, pause=0.5)
    run_ids = fleet.queue_runs(6)
    try:
        first = fleet.start()
        wait_for(fleet, "SELECT count(DISTINCT run_id) FROM tool_outcomes", len(run_ids))
        fleet.start()
        wait_for(fleet, "SELECT count(*) FROM machines", 2)
        net.cut(1)
        wait_for(fleet, TAKEN, 1)
        until_then = acts(fleet.effects_at(1))
        wait_for(fleet, "SELECT count(*) FROM run_status WHERE state = 'done' AND depth = 0", len(run_ids))
        assert first.poll() is None  # it waits for its server
        wait_for(fleet, GONE, 1)  # the server notices, too
        assert acts(fleet.effects_at(1)) == until_then
        net.heal(1)
        assert first.wait(60) == 3  # LeaseLost
        assert acts(fleet.effects_at(1)) == until_then
    finally:
        fleet.close()
    assert repeated(fleet.done()) == []
    fleet.check(run_ids)


def test_two_machines_whose_links_are_cut_and_healed(far_server: PostgresServer, net: Network, tmp_path: Path) -> None:
    """Nothing acknowledged is lost, no unsafe effect comes twice, no run has two owners, and every run ends."""
    fleet = FarFleet(far_server, net, tmp_path, lease=2.0, pause=0.2)
    chance = random.Random(5)
    plan = chance.choices(["blink", "cut", "both", "kill"], [3, 6, 2, 1], k=40)
    stay_under_fire(fleet, plan, runs=80, between=1.0, patience=1200, chance=chance)
    assert fleet.faults["cut"] > 0
