"""What more machines gain, and how soon one takes over from another: processes on one PostgreSQL database.

    python benchmarks/machines.py [--short] [--rounds 3] [--only wait|compute|take-over] [--lease 3] [--db …] [--json]

``--short`` is one small round of everything, in about a minute. Each machine is a process with a supervisor that takes
runs from the queue, at most ``max_runs`` at once; the work per machine is the same however many there are. An iteration
is an answer of a model that costs nothing and one call of a tool: one that waits, or one that computes in plain Python,
which keeps its process' only core busy. Speed is measured from the first claim to the end of the last run.

One machine and several take turns with two processes that only compute: their gain is all that this computer can give
at that time, beside the server and whatever else it does. Each figure is the median of the rounds, with the smallest
and the largest.

The time of a takeover is measured from the signal to the record that another machine owns the run, for the last of the
runs. The killed process is once one of the same host, whose end the others can see; once it is made to look like one of
another host.

Without ``--db`` a server is started as the tests start theirs, on this computer, whose cores it shares.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

import repertory as rp
from repertory.llm.messages import ToolResult
from repertory.llm.model import ModelRequest
from repertory.testing import FunctionModel, call
from repertory.testing.models import Answer

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]

from postgres import server_of  # noqa: E402

from postgres_server import PostgresServer  # noqa: E402

WAIT = 1.0  # seconds that a call waits, as for a web page
COMPUTE = 0.1  # seconds of a core that a call computes
ROOM = 10  # runs at once on a machine whose tools wait
CORES = 4  # runs at once on a machine whose tools compute: one computes while others are recorded
PARTS = ("wait", "compute", "take-over")
SETTINGS = "REPERTORY_BENCHMARK_MACHINES"  # iterations of a run, and turns of the loop of a call that computes

TAKEN = "SELECT count(*), max(at) FROM events WHERE type = 'RunClaimed' AND body LIKE '%taken over%'"


# --- what every machine knows -----------------------------------------------------------------------------


def settings() -> tuple[int, int]:
    """Iterations of a run, and turns of the loop of a call that computes."""
    iterations, turns = json.loads(os.environ[SETTINGS])
    return iterations, turns


def compute(turns: int) -> int:
    """Keep a core busy."""
    value = 1
    for number in range(turns):
        value = (value * 31 + number) % 1_000_003
    return value


@rp.tool(effect="pure", repeatable=False)
async def wait() -> str:
    """Wait."""
    await anyio.sleep(WAIT)
    return "waited"


@rp.tool(effect="pure", repeatable=False)
def work() -> str:
    """Compute."""
    return str(compute(settings()[1]))


def _agent(tool: Any) -> rp.Agent:
    iterations = settings()[0]

    def answer(request: ModelRequest) -> Answer:
        done = sum(isinstance(block, ToolResult) for message in request.messages for block in message.content)
        return "Done." if done >= iterations else call(tool.name)

    return rp.Agent("worker", tools=[tool], model=FunctionModel(answer), limits=rp.Limits(iterations=iterations + 1))


def waiting() -> rp.Agent:
    """An agent whose tool waits."""
    return _agent(wait)


def computing() -> rp.Agent:
    """An agent whose tool computes."""
    return _agent(work)


# --- the processes ----------------------------------------------------------------------------------------


def be_machine(uri: str, name: str, room: int, lease: float) -> None:
    """Take runs from the queue, from the first line of standard input until its end."""

    async def main() -> None:
        async with rp.open_supervisor(uri, labels=(), name=name, max_runs=room, lease=lease, drain_timeout=0):
            await anyio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)

    wait_for_start()
    anyio.run(main, backend="trio")


def be_bare(calls: int) -> None:
    """Only compute, and print how long that took."""
    wait_for_start()
    begun = time.time()
    for _ in range(calls):
        compute(settings()[1])
    print(json.dumps([begun, time.time()]), flush=True)


def wait_for_start() -> None:
    """Report that everything is imported, and wait for the start."""
    print("ready", flush=True)
    sys.stdin.readline()


@contextlib.contextmanager
def processes(commands: Sequence[Sequence[object]]) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that were all started at once; killed at the end of the block."""
    script = [sys.executable, str(HERE / "machines.py"), "--as"]
    paths = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    started = [
        subprocess.Popen(
            [*script, *map(str, command)],
            env={**os.environ, "PYTHONPATH": paths},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for command in commands
    ]
    try:
        for each in started:
            assert each.stdout is not None
            assert each.stdout.readline() == "ready\n"
        for each in started:
            assert each.stdin is not None
            each.stdin.write("\n")
            each.stdin.flush()
        yield started
    finally:
        for each in started:
            each.kill()
            each.send_signal(signal.SIGCONT)
            with each:
                pass


def queue_runs(uri: str, agent: str, count: int) -> None:
    """Start runs that wait for any machine."""
    make = {"waiting": waiting, "computing": computing}[agent]

    async def main() -> None:
        async with rp.open_supervisor(uri) as supervisor:
            await supervisor.drain()
            for _ in range(count):
                await supervisor.spawn(make(), "Work.", agent_ref=f"machines:{agent}")

    anyio.run(main, backend="trio")


def wait_until(server: PostgresServer, uri: str, sql: str, least: int) -> None:
    """Wait until a number in the database is at least ``least``."""
    until = time.monotonic() + 300
    with server.connect(uri) as connection:
        while (connection.execute(sql).fetchone()[0] or 0) < least:
            assert time.monotonic() < until, sql
            time.sleep(0.02)


# --- what is measured -------------------------------------------------------------------------------------


def speed(server: PostgresServer, agent: str, machines: int, *, room: int, waves: int) -> float:
    """Iterations per second of ``machines`` machines."""
    uri = server.new_journal()
    runs = machines * room * waves
    queue_runs(uri, agent, runs)
    with processes([("machine", uri, f"m{number}", room, 30.0) for number in range(machines)]):
        wait_until(server, uri, "SELECT count(*) FROM run_states WHERE state = 'done'", runs)
    with server.connect(uri) as connection:
        (begun,) = connection.execute("SELECT min(at) FROM events WHERE type = 'RunClaimed'").fetchone()
        (ended,) = connection.execute("SELECT max(at) FROM run_states WHERE state = 'done'").fetchone()
    return float(runs * settings()[0] / (ended - begun))


def bare_speed(count: int, calls: int) -> float:
    """Calls per second of ``count`` processes that only compute."""
    with processes([("bare", calls)] * count) as started:
        times = [json.loads(each.stdout.readline()) for each in started if each.stdout is not None]
    return float(count * calls / (max(end for _, end in times) - min(begun for begun, _ in times)))


def take_over(server: PostgresServer, harm: str, lease: float, runs: int = 5) -> float:
    """Seconds from a signal to a process until another machine owns all its runs."""
    uri = server.new_journal()
    with processes([("machine", uri, f"m{number}", runs, lease) for number in range(2)]) as started:
        wait_until(server, uri, "SELECT count(*) FROM machines", 2)
        time.sleep(lease)  # a new machine does not yet take over machines whose lease has expired
        queue_runs(uri, "waiting", runs)
        wait_until(server, uri, "SELECT count(*) FROM ownership WHERE machine_id IS NOT NULL", runs)
        with server.connect(uri) as connection:
            sql = "SELECT pid, machine_id, count(*) FROM ownership JOIN machines USING (machine_id) GROUP BY 1, 2"
            pid, machine_id, owned = max(connection.execute(sql).fetchall(), key=lambda row: row[2])
            victim = next(each for each in started if each.pid == pid)
            if harm == "SIGKILL, as on another host":
                sql = "UPDATE machines SET kernel = 'another' WHERE machine_id = %s"
                connection.execute(sql, (machine_id,))
        begun = time.time()
        victim.send_signal(signal.SIGSTOP if harm == "SIGSTOP" else signal.SIGKILL)
        if harm != "SIGSTOP":
            victim.wait()  # until then its process id exists
        wait_until(server, uri, TAKEN, owned)
    with server.connect(uri) as connection:
        _, taken = connection.execute(TAKEN).fetchone()
    return float(taken - begun)


def turns_of_a_call() -> int:
    """The turns of the loop of ``compute`` for one call, by the best of several attempts."""
    times = []
    for _ in range(10):
        begun = time.process_time()
        compute(100_000)
        times.append(time.process_time() - begun)
    return round(100_000 * COMPUTE / min(times))


def measure(
    server: PostgresServer, parts: Sequence[str], *, rounds: int, waves: int, iterations: int, lease: float
) -> dict[str, Any]:
    """All figures."""
    turns = turns_of_a_call()
    found: dict[str, list[float]] = {}

    def compare(what: str, many: str, one: float, more: float) -> None:
        found.setdefault(f"{what}: 1", []).append(one)
        found.setdefault(f"{what}: {many}", []).append(more)
        found.setdefault(f"{what}: {many} / 1", []).append(more / one)

    for _ in range(rounds):
        if "wait" in parts:
            os.environ[SETTINGS] = json.dumps([iterations, turns])
            one, four = (speed(server, "waiting", count, room=ROOM, waves=waves) for count in (1, 4))
            compare("iterations a second of tools that wait, machines", "4", one, four)
        if "compute" in parts:
            os.environ[SETTINGS] = json.dumps([5 * iterations, turns])
            one, two = (speed(server, "computing", count, room=CORES, waves=waves) for count in (1, 2))
            compare("iterations a second of tools that compute, machines", "2", one, two)
            one, two = (bare_speed(count, 20 * iterations * waves) for count in (1, 2))
            compare("calls a second of bare processes", "2", one, two)
        if "take-over" in parts:
            os.environ[SETTINGS] = json.dumps([1000, turns])
            for harm in ("SIGKILL", "SIGKILL, as on another host", "SIGSTOP"):
                seconds = take_over(server, harm, lease)
                found.setdefault(f"seconds to a take-over after {harm}, lease {lease:g} s", []).append(seconds)
    return {
        name: {"median": statistics.median(values), "least": min(values), "most": max(values)}
        for name, values in found.items()
    }


def main(words: Sequence[str] | None = None) -> None:
    """Measure, and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, help="default: 3, or with --short 1")
    parser.add_argument("--short", action="store_true", help="small rounds")
    parser.add_argument("--only", action="append", choices=PARTS, help="this part alone; may be repeated")
    parser.add_argument("--lease", type=float, default=3.0)
    parser.add_argument("--db", help="a server on which databases may be made; default: one that is started")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--as", nargs="+", dest="role", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.role is not None:
        match options.role:
            case ["machine", uri, name, room, lease]:
                be_machine(uri, name, int(room), float(lease))
            case ["bare", calls]:
                be_bare(int(calls))
        return
    rounds, waves, iterations = (1, 1, 3) if options.short else (3, 2, 5)
    size = {"rounds": options.rounds or rounds, "waves": waves, "iterations": iterations}
    with server_of(options.db) as server:
        found = measure(server, options.only or PARTS, **size, lease=options.lease)
    if options.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:66} {value['median']:8.2f}   ({value['least']:.2f} to {value['most']:.2f})")


if __name__ == "__main__":
    main()
