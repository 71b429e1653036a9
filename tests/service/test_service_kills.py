"""SIGKILL at random instants while a client starts, talks, approves and watches: its view is the journal's, once."""

from __future__ import annotations

import http.client
import json
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from test_service_process import Served, _Unix

from patience import PATIENCE
from repertory.record import open_journal

AGENT = ("--agent", "counting_agents:counter", "--resume")


class Client:
    """Asks again whatever happens, as one does who knows that it is safe to."""

    def __init__(self, address: Path) -> None:
        self.address = address
        self.deadline = time.monotonic() + PATIENCE

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """One request that is repeated until it is answered well."""
        while True:
            try:
                return self.ask_once(method, path, body, **headers)
            except (OSError, http.client.HTTPException, ValueError):
                assert time.monotonic() < self.deadline, f"{method} {path} was never answered"
                time.sleep(0.02)

    def ask_once(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """One request; ``ValueError`` where it is refused, as by a process that has not taken the run up yet."""
        connection = _Unix(str(self.address), timeout=10)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            sent = None if body is None else json.dumps(body)
            connection.request(method, path, sent, {"host": "localhost", "content-type": "application/json", **named})
            answer = connection.getresponse()
            value = json.loads(answer.read())
            if answer.status >= 300:
                raise ValueError(value)
            return value
        finally:
            connection.close()

    def run(self, number: int, ids: dict[int, str]) -> None:
        """Start a run, talk to it, approve what it wants, and wait for its answer."""
        task = {"agent": "counter", "task": f"Count {number}."}
        run_id = ids[number] = self.ask("POST", "/runs", task, idempotency_key=f"k{number}")["id"]
        message = {"text": "Please hurry.", "message_id": f"m{number}"}
        self.ask("POST", f"/runs/{run_id}/messages", message)
        self.ask("POST", f"/runs/{run_id}/calls/c1/approve", {"by": "ann"})
        while self.ask("GET", f"/runs/{run_id}")["run"]["state"] != "done":
            time.sleep(0.02)


class Watcher:
    """Follows every run, and comes back behind the last number it saw."""

    def __init__(self, address: Path) -> None:
        self._address = str(address)
        self.events: list[dict[str, Any]] = []
        self.enough = threading.Event()
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def _follow(self) -> None:
        while not self.enough.is_set():
            try:
                for event in self._read(self.events[-1]["seq"] if self.events else 0):
                    self.events.append(event)
            except OSError:
                time.sleep(0.02)

    def _read(self, last: int) -> Iterator[dict[str, Any]]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(0.5)
            connection.connect(self._address)
            connection.sendall(f"GET /events HTTP/1.0\r\nhost: localhost\r\nlast-event-id: {last}\r\n\r\n".encode())
            text = b""
            while not self.enough.is_set():
                try:
                    data = connection.recv(65536)
                except TimeoutError:
                    continue
                if not data:
                    return
                text += data
                *blocks, text = text.split(b"\n\n")
                for block in blocks:
                    if block.startswith(b"id: "):
                        yield json.loads(block.partition(b"\ndata: ")[2])

    def close(self) -> None:
        """Stop following."""
        self.enough.set()
        self._thread.join()


def kill_while_a_client_works(folder: Path, *, kills: int, seed: int) -> None:
    """Kill so often, then compare what the client saw and caused with the journal."""
    chance = random.Random(seed)
    client, ids = Client(folder / "s"), dict[int, str]()
    watcher = Watcher(folder / "s")
    over = threading.Event()

    def work(first: int) -> None:
        number = first
        while not over.is_set():
            client.run(number, ids)
            number += 2

    workers = [threading.Thread(target=work, args=(first,)) for first in (0, 1)]
    for worker in workers:
        worker.start()
    try:
        for _ in range(kills):
            served = Served(folder, *AGENT)
            if chance.random() < 0.8:  # else it may be killed while it takes the record up
                served.hear("serving")
            client.deadline = time.monotonic() + PATIENCE
            time.sleep(chance.random() * 0.5)
            served.kill()
        served = Served(folder, *AGENT)
        over.set()
        for worker in workers:
            worker.join()
        newest = client.ask("GET", "/runs")["seq"]
        while not watcher.events or watcher.events[-1]["seq"] < newest:
            assert time.monotonic() < client.deadline, "the watcher never came to the end"
            time.sleep(0.02)
        views = {run_id: client.ask("GET", f"/runs/{run_id}") for run_id in ids.values()}
    finally:
        over.set()
        client.deadline = 0.0
        watcher.close()
        served.process.terminate()
        served.end()
        for worker in workers:
            worker.join()
    compare(folder, ids, watcher.events, views)


def compare(folder: Path, ids: dict[int, str], events: list[dict[str, Any]], views: dict[str, Any]) -> None:
    """What the client has is what the journal has, and everything happened once."""

    async def read() -> tuple[Any, Any]:
        async with open_journal(folder / "a.db", readonly=True) as journal:
            return await journal.read_runs(), await journal.read_events(None)

    rows, recorded = anyio.run(read)
    assert len(ids) > 1
    assert sorted(row.started.run_id for row in rows) == sorted(ids.values())  # nothing was started twice
    known = [(event["seq"], event["run_id"], event["type"], event["body"]) for event in events]
    assert known == [(seq, each.run_id, each.type, each.body) for seq, each in recorded][: len(known)]
    said = Counter(each.run_id for _, each in recorded if each.type == "UserSaid")
    for row in rows:
        run_id = row.started.run_id
        assert (row.state, row.result) == ("done", views[run_id]["result"])
        assert row.result.startswith("hurried "), row.result
        assert said[run_id] == 1
    fired = Counter((folder / "fired").read_text().splitlines())
    assert set(fired.values()) == {1}  # an unsafe call is never made twice
    paid = Counter(line.split()[0] for line in set((folder / "paid").read_text().splitlines()))
    assert all(paid[run_id] == 1 for run_id in ids.values())  # one key for each


@pytest.mark.parametrize("seed", [1])
def test_a_client_sees_what_the_journal_has_through_kills(short: Path, seed: int) -> None:
    """With keys for what it starts and says, it may ask again until it is answered."""
    kill_while_a_client_works(short, kills=6, seed=seed)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [*range(10)])
def test_a_client_sees_what_the_journal_has_through_two_hundred_kills(short: Path, seed: int) -> None:
    """The same twenty times as often."""
    kill_while_a_client_works(short, kills=20, seed=seed)


@pytest.mark.parametrize(("headers", "runs"), [({"idempotency_key": "one"}, 1), ({}, 2)], ids=["with", "without"])
def test_a_start_is_repeated_without_harm_only_with_a_key(short: Path, headers: dict[str, str], runs: int) -> None:
    """The negative control: a client that lost the answer and asks again without a key has started two."""
    first = Served(short, *AGENT)
    first.hear("serving")
    client, task = Client(short / "s"), {"agent": "counter", "task": "Count."}
    client.ask("POST", "/runs", task, **headers)  # the answer of which is lost with the process
    first.kill()
    second = Served(short, *AGENT)
    try:
        second.hear("serving")
        client.ask("POST", "/runs", task, **headers)
        assert len(client.ask("GET", "/runs")["runs"]) == runs
    finally:
        second.kill()
