"""Machines in processes of their own, the harm that is done to them, and what must be true of their journal then."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest
from ownership_check import depths, owners, repeated, states, strange_writes, watch_writers
from shared_team import LEDGER, PAUSE, PLACEMENT, STEPS, TEAM, make_team

import repertory as rp
from patience import PATIENCE
from postgres_server import PostgresServer
from repertory.torture.team import expected_answer

HERE = Path(__file__).parent
DONE = expected_answer(STEPS)


class Fleet:
    """Machines in processes of their own on one journal."""

    def __init__(
        self, server: PostgresServer, folder: Path, *, size: int, lease: float, pause: float, placement: str = ""
    ) -> None:
        self.server, self.lease, self.size = server, lease, size
        self.uri = server.new_journal()
        with server.connect(self.uri) as connection:
            watch_writers(connection)
        self.effects = folder / "effects"
        self.effects.touch()
        self.log = folder / "log"
        self.environment = {
            **os.environ,
            LEDGER: str(self.effects),
            PAUSE: str(pause),
            PLACEMENT: placement,
            "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")]),
        }
        self.machines: list[subprocess.Popen[bytes]] = []
        self.stopped: list[tuple[float, subprocess.Popen[bytes]]] = []  # until when
        self.faults: Counter[str] = Counter()
        self.exits: Counter[int] = Counter()
        self._count = 0

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        """Start a machine."""
        self._count += 1
        process = self.launch(self.uri, f"m{self._count}", *options)
        self.machines.append(process)
        return process

    def launch(self, uri: str, *options: str, before: Sequence[str] = (), **variables: str) -> subprocess.Popen[bytes]:
        """Start the process of a machine."""
        command = [*before, sys.executable, str(HERE / "machine_process.py"), uri, str(self.lease), *options]
        with self.log.open("a") as log:
            return subprocess.Popen(command, env={**self.environment, **variables}, stdout=log, stderr=log)

    def done(self) -> list[str]:
        """The effects that took place."""
        return self.effects.read_text().splitlines()

    def queue_runs(self, count: int) -> list[str]:
        """Start runs that wait for any machine; their ids, which are acknowledged."""

        async def main() -> list[str]:
            async with rp.open_supervisor(self.uri) as supervisor:
                await supervisor.drain()
                return [(await supervisor.spawn(make_team(), "Work.", agent_ref=TEAM)).id for _ in range(count)]

        with pytest.MonkeyPatch.context() as patch:
            for name in (LEDGER, PLACEMENT):
                patch.setenv(name, self.environment[name])
            return anyio.run(main, backend="trio")

    def tend(self) -> None:
        """Let those go on whose time is over, and start new ones for those that ended."""
        for until, process in list(self.stopped):
            if time.monotonic() >= until:
                self.stopped.remove((until, process))
                process.send_signal(signal.SIGCONT)
        for process in list(self.machines):
            if process.poll() is not None:
                self.exits[process.returncode] += 1
                self.machines.remove(process)
        while len(self.machines) < self.size:
            self.start()

    def strike(self, kind: str, chance: random.Random) -> None:
        """Do one harm, to a machine that has runs."""
        still = {process for _, process in self.stopped}
        at_work = self.at_work()
        going = [process for process in self.machines if process not in still and process.pid in at_work]
        if kind == "kill" and going:
            chance.choice(going).kill()
        elif kind == "stop" and going:
            process = chance.choice(going)
            process.send_signal(signal.SIGSTOP)
            self.stopped.append((time.monotonic() + 2 * self.lease, process))
        elif kind == "restart" and self.server.ours:
            self.server.restart()
        else:
            kind = "cut"
            with self.server.connect(self.uri) as connection:
                connection.execute(
                    """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                       WHERE datname = current_database() AND pid <> pg_backend_pid() AND random() < 0.5"""
                )
        self.faults[kind] += 1

    def ended(self) -> Counter[str]:
        """How many runs are in which state."""
        with self.server.connect(self.uri) as connection:
            return Counter(state for state, _ in states(connection).values())

    def at_work(self) -> set[int]:
        """The process ids of machines that have runs."""
        with self.server.connect(self.uri) as connection:
            sql = "SELECT DISTINCT pid FROM ownership JOIN machines m USING (machine_id) WHERE m.lost_at IS NULL"
            return {pid for (pid,) in connection.execute(sql).fetchall()}

    def close(self) -> None:
        """End all machines."""
        for process in self.machines:
            process.kill()
            process.send_signal(signal.SIGCONT)
            process.wait()

    def check(self, run_ids: list[str]) -> None:
        """The database and the effects agree on what was promised."""
        with self.server.connect(self.uri) as connection:
            found = states(connection)
            wrong, came, deep = strange_writes(connection), owners(connection), depths(connection)
        print(f"faults {dict(self.faults)}, exits {dict(self.exits)}, runs came to machines {dict(came)}")
        assert set(run_ids) <= set(found), "a run that was acknowledged is lost"
        assert set(found.values()) == {("done", DONE)}, Counter(found.values())
        assert deep == {(depth, "done"): len(found) for depth in range(3)}, deep
        assert repeated(self.done()) == []
        assert wrong == []


def stay_under_fire(
    fleet: Fleet, plan: list[str], *, runs: int, between: float, patience: float, chance: random.Random
) -> None:
    """Let a fleet work on runs while harm is done to it, then check what became of them."""
    run_ids = fleet.queue_runs(runs)
    until = time.monotonic() + patience
    try:
        fleet.tend()
        while fleet.ended()["done"] < runs:
            fleet.tend()
            time.sleep(between)
            if plan and fleet.at_work():
                fleet.strike(plan.pop(0), chance)
            assert time.monotonic() < until, (fleet.ended(), fleet.faults, fleet.log.read_text()[-3000:])
    finally:
        fleet.close()
    fleet.check(run_ids)


def wait_for(fleet: Fleet, sql: str, least: int) -> None:
    """Wait until a count in the database is as high."""
    until = time.monotonic() + PATIENCE
    with fleet.server.connect(fleet.uri) as connection:
        while connection.execute(sql).fetchone()[0] < least:
            assert time.monotonic() < until, (sql, fleet.log.read_text()[-3000:])
            time.sleep(0.05)
