"""What watchers cost: how soon a busy service answers while they watch, and how much memory an idle one takes.

::

    python benchmarks/watchers.py [--teams 5] [--watchers 500] [--idle 2000] [--requests 400]

The service is a process of its own. Each team searches a folder and reads what it found, and starts again when it
is done. A fifth of the watchers follow all runs, the others one; one of them never reads.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import runpy
import selectors
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
_service = runpy.run_path(str(Path(__file__).with_name("service.py")))
QUESTIONS, ask, keep_busy = _service["QUESTIONS"], _service["ask"], _service["keep_busy"]
measure, show = _service["measure"], _service["show"]


class Watchers:
    """Event streams that a thread of this process reads as fast as it can."""

    def __init__(self, address: Path) -> None:
        self._address = str(address)
        self._selector = selectors.DefaultSelector()
        self._sockets: list[socket.socket] = []
        self.read = 0
        self.ended = 0
        self._over = False

    def add(self, path: str, *, reads: bool = True) -> socket.socket:
        """Open a stream, and wait for the head of the answer."""
        watcher = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        watcher.settimeout(60)
        watcher.connect(self._address)
        watcher.sendall(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        assert watcher.recv(1) == b"H"
        watcher.setblocking(False)
        if reads:
            self._selector.register(watcher, selectors.EVENT_READ)
        self._sockets.append(watcher)
        return watcher

    def run(self) -> None:
        """Read, until ``close``."""
        while not self._over:
            for key, _ in self._selector.select(0.1):
                watcher: socket.socket = key.fileobj  # type: ignore[assignment]
                data = watcher.recv(65536)
                self.read += len(data)
                if not data:
                    self.ended += 1
                    self._selector.unregister(watcher)
            time.sleep(0.05)  # so that this process does not starve the service

    def close(self) -> None:
        """Close them all."""
        self._over = True
        for watcher in self._sockets:
            watcher.close()


@contextlib.contextmanager
def serving(folder: str) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """A service that offers the research team over this repository."""
    address = Path(folder) / "s"
    command = [sys.executable, "-m", "repertory", "serve", "--db", f"{folder}/a.db", "--socket", str(address)]
    with subprocess.Popen([*command, "--root", str(ROOT), "--model", "offline"], stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        process.stderr.readline()
        yield address, process
        process.terminate()


def memory_of(pid: int) -> int:
    """Bytes of a process that are in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def measure_idle(address: Path, pid: int, count: int) -> None:
    """Memory of watchers of a run that has ended."""
    run_id = ask(address, "POST", "/runs", {"agent": "research", "task": "Name a file."})["id"]
    while ask(address, "GET", f"/runs/{run_id}")["run"]["live"]:
        time.sleep(0.2)
    warm = Watchers(address)
    for _ in range(50):
        warm.add(f"/runs/{run_id}/events?after=999999999")
    time.sleep(1)
    before, idle = memory_of(pid), Watchers(address)
    for _ in range(count):
        idle.add(f"/runs/{run_id}/events?after=999999999")
    time.sleep(2)
    print(f"{count} idle watchers: {(memory_of(pid) - before) / count / 1024:.1f} KiB each")
    show("beside them", measure(address, 100))
    idle.close()
    warm.close()


def measure_busy(address: Path, teams: int, watchers: int, requests: int) -> None:
    """How soon the service answers while teams run and are watched."""
    ended = threading.Event()
    threads = [
        threading.Thread(target=keep_busy, args=(address, QUESTIONS[number % len(QUESTIONS)], ended))
        for number in range(teams)
    ]
    for thread in threads:
        thread.start()
    time.sleep(2)
    show(f"beside {teams} teams", measure(address, requests))
    ids = [run["id"] for run in ask(address, "GET", "/runs")["runs"] if run["live"] and run["parent_id"] is None]
    open_streams = Watchers(address)
    reader = threading.Thread(target=open_streams.run)  # before the first stream opens: none waits for others
    reader.start()
    for number in range(watchers):
        open_streams.add("/events" if number % 5 == 0 else f"/runs/{ids[number % len(ids)]}/events")
    stalled = open_streams.add("/events", reads=False)
    time.sleep(2)
    show(f"beside {teams} teams and {watchers} watchers", measure(address, requests))
    print(f"the watchers read {open_streams.read / 2**20:.1f} MiB; {open_streams.ended} of them were dropped")
    stalled.close()
    ended.set()
    for thread in threads:
        thread.join()
    open_streams.close()
    reader.join()


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teams", type=int, default=5)
    parser.add_argument("--watchers", type=int, default=500)
    parser.add_argument("--idle", type=int, default=2000)
    parser.add_argument("--requests", type=int, default=400)
    options = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    for idle in (True, False):
        with tempfile.TemporaryDirectory(prefix="rp") as folder, serving(folder) as (address, process):
            if idle:
                measure_idle(address, process.pid, options.idle)
            else:
                measure_busy(address, options.teams, options.watchers, options.requests)


if __name__ == "__main__":
    main()
