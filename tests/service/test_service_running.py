"""``run_service`` in this process: what it takes up at the start, and how a signal ends it."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

import anyio
import httpx2
import pytest
from service_parts import JSON, Gate

import repertory as rp
import repertory.service
from patience import PATIENCE
from postgres_server import PostgresServer
from repertory.errors import ConfigurationError, JournalUnavailable
from repertory.service import Options, process, run_service
from repertory.testing import ScriptedModel


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """A service lets the second signal kill. Once it has ended, all signals are handled as before."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    assert {number: signal.getsignal(number) for number in before} == before


class Said:
    """What a service reports, line by line."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._news = anyio.Event()

    def __call__(self, line: str) -> None:
        """Take a line."""
        self.lines.append(line)
        news, self._news = self._news, anyio.Event()
        news.set()

    async def wait_for(self, words: str) -> str:
        """The first line with these words."""
        while True:
            for line in self.lines:
                if words in line:
                    return line
            await self._news.wait()


@asynccontextmanager
async def running(
    folder: Path, model: Any, *, end: signal.Signals = signal.SIGTERM, **options: Any
) -> AsyncIterator[tuple[Said, httpx2.AsyncClient]]:
    """A service until the end of the block, ended by a signal, and a client of its unix socket."""
    said = Said()
    options = {"agents": ["service_parts:clerk"], "socket": folder / "s", "drain_timeout": 0.2, **options}
    made = Options(database=folder / "a.db", model=model, **options)
    transport = httpx2.AsyncHTTPTransport(uds=str(folder / "s"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(run_service, made, report=said))
        async with httpx2.AsyncClient(
            transport=transport, base_url="http://localhost", headers=JSON, timeout=PATIENCE
        ) as http:
            await said.wait_for("serving")
            yield said, http
        os.kill(os.getpid(), end)


async def state_of(http: httpx2.AsyncClient, run_id: str, *states: str) -> str:
    """The state of a run, once it is one of these."""
    while True:
        state = str((await http.get(f"/runs/{run_id}")).json()["run"]["state"])
        if state in states:
            return state
        await anyio.sleep(0.01)


async def start(http: httpx2.AsyncClient) -> str:
    """Start a run; its id."""
    answer = await http.post("/runs", json={"agent": "clerk", "task": "Count."})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def test_a_run_that_hangs_does_not_hold_up_the_end(short: Path, run_async: Any) -> None:
    """After the drain time it is cancelled where it is; the next process says so, and goes on only if it is to."""

    async def main() -> None:
        gate = Gate()
        gate.hold = True
        async with running(short, gate.model) as (said, http):
            run_id = await start(http)
            await gate.held.wait()
        ending, ended = said.lines[-2:]
        assert "runs in progress: 1; each stops at its next boundary" in ending
        assert ended == "ended"
        gate = Gate(answer_after=1)
        async with running(short, gate.model) as (said, http):
            assert "--resume continues it" in await said.wait_for(f"unfinished: {run_id}")
            assert await state_of(http, run_id, "interrupted") == "interrupted"
        assert gate.calls == 0
        async with running(short, gate.model, resume=True) as (said, http):
            await said.wait_for(f"resumed: {run_id}")
            await state_of(http, run_id, "done")

    run_async(main)


def test_a_journal_that_takes_nothing_does_not_hold_up_the_end(
    short: Path, run_async: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program holds its file: the service goes, though its last events cannot be written."""
    monkeypatch.setattr(process, "_CLOSING", 0.1)

    async def main() -> None:
        async def ask() -> None:
            with suppress(httpx2.HTTPError):  # it gets no answer any more
                await http.post("/runs", json={"agent": "clerk", "task": "Count."})

        said, path = Said(), short / "a.db"
        options = Options(
            database=path, model=Gate().model, agents=["service_parts:clerk"], socket=short / "s", drain_timeout=0.1
        )
        transport = httpx2.AsyncHTTPTransport(uds=str(short / "s"))
        async with (
            anyio.create_task_group() as tasks,
            httpx2.AsyncClient(
                transport=transport, base_url="http://localhost", headers=JSON, timeout=PATIENCE
            ) as http,
        ):
            tasks.start_soon(partial(run_service, options, report=said))
            await said.wait_for("serving")
            with closing(sqlite3.connect(path, isolation_level=None)) as foreign:
                foreign.execute("BEGIN IMMEDIATE")
                tasks.start_soon(ask)
                while '"0 batches wait' in (await http.get("/healthz")).text:
                    await anyio.sleep(0.01)
                os.kill(os.getpid(), signal.SIGTERM)
                with anyio.fail_after(PATIENCE):
                    while (short / "s").exists():
                        await anyio.sleep(0.01)
            await said.wait_for("ended")

    run_async(main)


def test_what_was_paused_stays_paused(short: Path, run_async: Any) -> None:
    """``resume`` goes on with what the end of a process interrupted, not with what somebody held on purpose."""

    async def main() -> None:
        async with running(short, Gate().model) as (_, http):
            run_id = await start(http)
            await http.post(f"/runs/{run_id}/pause")
            await state_of(http, run_id, "paused")
        gate = Gate(answer_after=0)
        async with running(short, gate.model, resume=True, end=signal.SIGINT) as (said, http):
            await said.wait_for(f"paused: {run_id}")
            assert await state_of(http, run_id, "paused")
            assert gate.calls == 0
            await http.post(f"/runs/{run_id}/resume")
            await state_of(http, run_id, "done")

    run_async(main)


def test_a_service_that_is_still_taking_up_what_was_left_ends_at_once(short: Path, run_async: Any) -> None:
    """What it has not come to is left to the next one."""
    count = 30

    async def main() -> None:
        gate = Gate()
        gate.hold = True
        async with rp.open_supervisor(short / "a.db", model=gate.model, drain_timeout=0.1) as supervisor:
            for _ in range(count):
                await supervisor.spawn(rp.Agent("clerk"), "Count.", agent_ref="service_parts:clerk")
        resumed = []

        def report(line: str) -> None:
            if line.startswith("resumed"):
                resumed.append(line)
                if len(resumed) == 1:
                    os.kill(os.getpid(), signal.SIGTERM)

        gate = Gate()
        gate.hold = True
        options = Options(database=short / "a.db", model=gate.model, socket=short / "s", resume=True, drain_timeout=0.1)
        with anyio.fail_after(PATIENCE):
            await run_service(options, report=report)
        assert 0 < len(resumed) < count

    run_async(main)


def test_a_run_whose_agent_is_unknown_keeps_nobody_from_going_on(short: Path, run_async: Any) -> None:
    """It is named with the reason; the others are resumed and the service serves."""

    async def main() -> None:
        gate = Gate()
        gate.hold = True
        async with rp.open_supervisor(short / "a.db", model=gate.model, drain_timeout=0.1) as supervisor:
            nameless = await supervisor.spawn(rp.Agent("nameless"), "Who am I?")
            named = await supervisor.spawn(rp.Agent("clerk"), "Count.", agent_ref="service_parts:clerk")
            await gate.held.wait()
        async with running(short, Gate(answer_after=0).model, resume=True) as (said, http):
            assert "does not say where its agent" in await said.wait_for(f"not resumed: {nameless.id}")
            await said.wait_for(f"resumed: {named.id}")
            await state_of(http, named.id, "done")

    run_async(main)


def test_a_port_is_served_with_a_token_that_is_in_no_line(short: Path, run_async: Any) -> None:
    """The link works once, the token stays in its file."""

    async def main() -> None:
        token_file = short / "token"
        async with running(short, None, socket=None, port=0, token_file=token_file) as (said, _):
            found = re.search(r"(http://127\.0\.0\.1:\d+)/#(\S+)", said.lines[0])
            assert found is not None
            address, code = found.groups()
            token = token_file.read_text().strip()
            async with httpx2.AsyncClient(base_url=address, headers=JSON, timeout=PATIENCE) as http:

                async def ask(method: str, path: str, secret: str) -> int:
                    headers = {"authorization": f"Bearer {secret}"}
                    return int((await http.request(method, path, headers=headers)).status_code)

                assert await ask("GET", "/runs", "x") == 401
                assert await ask("GET", "/runs", code) == 401
                assert await ask("POST", "/session", code) == 204
                http.cookies.clear()
                assert await ask("POST", "/session", code) == 401
                assert await ask("GET", "/runs", token) == 200
        assert token not in "".join(said.lines)

    run_async(main)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"port": 0, "socket": Path("/tmp/x")}, "either a socket or a port"),
        ({"root": Path("/nowhere")}, "there is no folder '/nowhere'"),
        ({"agents": ["clerk"]}, "module:name"),
        ({"agents": ["service_parts:clerk"] * 2}, "already"),
    ],
)
def test_wrong_options_are_told(short: Path, run_async: Any, options: dict[str, Any], words: str) -> None:
    """Before anything is served."""

    async def main() -> None:
        await run_service(Options(database=short / "a.db", model=ScriptedModel([]), **options))

    with pytest.raises(ConfigurationError, match=re.escape(words)):
        run_async(main)


def test_a_service_waits_for_its_database_server(
    short: Path, run_async: Any, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when both start with the machine. A signal ends the waiting too, with the reason."""
    monkeypatch.setattr(process, "_DATABASE_RETRY", 0.01)
    address = urlsplit(postgres.new_database())
    socket_dir = Path(parse_qs(address.query)["host"][0])
    later = short / "later"
    options = Options(
        database=urlunsplit(address._replace(query=urlencode({"host": later}))),
        model=ScriptedModel([]),
        socket=short / "s",
    )
    said: list[str] = []

    async def serve(*, appears: bool) -> None:
        def report(line: str) -> None:
            said.append(line)
            if "trying again" in line and appears:
                later.symlink_to(socket_dir)
            elif line.startswith(("serving", "waiting")):
                os.kill(os.getpid(), signal.SIGTERM)

        with anyio.fail_after(PATIENCE):
            await run_service(options, report=report)

    with pytest.raises(JournalUnavailable, match="is the server running"):
        run_async(partial(serve, appears=False))
    run_async(partial(serve, appears=True))
    assert said[1] == "SIGTERM came, so it ends"  # who reads the log sees that nothing was wrong
    assert "is the server running" in said[2]
    assert said[3].startswith("serving")
    assert said[4:] == [said[1], "ended"]


def test_the_room_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A library that is not installed is named with the extra that brings it; a wrong name is a wrong name."""
    for name in ("server", "http1"):
        monkeypatch.delitem(sys.modules, f"repertory.service.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "h11", None)
    with pytest.raises(ConfigurationError, match=r'h11 is not installed; pip install "repertory\[service\]"'):
        _ = repertory.service.serve_http
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = repertory.service.nothing
