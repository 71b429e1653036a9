"""How soon a busy service answers: ``GET /healthz`` while teams run whose tools compute.

::

    python benchmarks/service.py [--teams 5] [--requests 400]

The service is a process of its own. Each team searches a folder with patterns and reads what it found, all in plain
Python functions, and starts again when it is done.
"""

from __future__ import annotations

import argparse
import http.client
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

QUESTIONS = (
    "How does the planner decide when to edit the view, and what does an edit cost?",
    "How are acknowledged appends kept through a power cut, and what is not promised?",
    "What becomes of a tool call that was under way when the process was killed?",
    "How are mailboxes bounded, and what happens when one is full?",
    "Which limits are there for runs, and what are they for?",
)


class Unix(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def connect(self) -> None:
        """Connect."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.host)


def ask(address: Path, method: str, path: str, body: Any = None) -> Any:
    """One request over a connection of its own."""
    connection = Unix(str(address), timeout=60)
    headers = {"host": "localhost", "content-type": "application/json"}
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    answer = connection.getresponse()
    value = json.loads(answer.read())
    connection.close()
    assert answer.status < 300, value
    return value


def keep_busy(address: Path, question: str, ended: threading.Event) -> None:
    """Keep a team at work until the end."""
    while not ended.is_set():
        run_id = ask(address, "POST", "/runs", {"agent": "research", "task": question})["id"]
        while not ended.wait(0.2) and ask(address, "GET", f"/runs/{run_id}")["run"]["live"]:
            pass


def measure(address: Path, requests: int) -> list[float]:
    """Milliseconds of each of ``requests`` requests, 20 ms apart."""
    times = []
    for _ in range(requests):
        begun = time.perf_counter()
        ask(address, "GET", "/healthz")
        times.append((time.perf_counter() - begun) * 1000)
        time.sleep(0.02)
    return times


def show(name: str, times: list[float]) -> None:
    """One line of figures."""
    cuts = statistics.quantiles(times, n=100, method="inclusive")  # so that none exceeds the maximum
    print(f"{name}: p50 {cuts[49]:.1f} ms, p95 {cuts[94]:.1f} ms, p99 {cuts[98]:.1f} ms, most {max(times):.1f} ms")


def main() -> None:
    """Measure an idle service, then a busy one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--teams", type=int, default=5)
    parser.add_argument("--requests", type=int, default=400)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rp") as folder:
        address = Path(folder) / "s"
        root = Path(__file__).parent.parent
        command = [sys.executable, "-m", "repertory", "serve", "--db", f"{folder}/a.db", "--socket", str(address)]
        with subprocess.Popen([*command, "--root", str(root), "--model", "offline"], stderr=subprocess.PIPE) as process:
            assert process.stderr is not None
            process.stderr.readline()
            show("idle", measure(address, options.requests))
            ended = threading.Event()
            teams = [
                threading.Thread(target=keep_busy, args=(address, QUESTIONS[number % len(QUESTIONS)], ended))
                for number in range(options.teams)
            ]
            for team in teams:
                team.start()
            time.sleep(1)
            show(f"beside {options.teams} teams", measure(address, options.requests))
            ended.set()
            for team in teams:
                team.join()
            process.terminate()


if __name__ == "__main__":
    main()
