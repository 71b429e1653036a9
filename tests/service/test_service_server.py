"""Connections: bounded in number and in time, and none the business of another."""

from __future__ import annotations

import errno
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from service_parts import open_client
from starlette.responses import Response

from patience import PATIENCE
from repertory.record.records import EventLogged
from repertory.service.http1 import Connection
from repertory.testing import ScriptedModel

BIG = {"text": "x" * 20_000}


async def fill(client: Any, events: int = 200) -> None:
    """Put more into the journal than the buffers of a socket hold."""
    await client.control.journal.write(
        [EventLogged(run_id="run-x", type="Big", body=BIG, at=1.0) for _ in range(events)]
    )


@pytest.mark.parametrize("tcp", [False, True])
def test_a_client_that_reads_nothing_is_dropped_with_a_reason(short: Path, run_async: Any, tcp: bool) -> None:
    """It costs the service nothing but its place, it loses nothing, and nobody else notices."""

    async def main() -> None:
        model = ScriptedModel([])
        async with open_client(short, model, tcp=tcp, send_timeout=0.2) as client:
            await fill(client, 500)  # a socket of TCP can hold 4 MB
            async with await client.connect() as stalled:
                port = f":{client.address[1]}" if tcp else ""
                token = f"authorization: Bearer {'t' * 43}\r\n"
                await stalled.send(f"GET /events HTTP/1.1\r\nhost: localhost{port}\r\n{token}\r\n".encode())
                while not client.reports:
                    assert (await client.get("/healthz"))["status"] == "ok"
                    await anyio.sleep(0.01)
                with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                    while True:  # what was sent before is still there, then the connection ends
                        await stalled.receive()
            assert client.reports == [
                "dropped a client that took less than 64 KiB in 0.2 s; it can continue from the last id"
            ]

    run_async(main)


class SlowLink:
    """A client at the other end of a slow link, which takes 20,000 bytes a second."""

    def __init__(self, sent: bytes) -> None:
        self._sent = [sent]
        self.received = bytearray()

    async def receive(self, _most: int) -> bytes:
        """The request, and then the end."""
        return self._sent.pop() if self._sent else b""

    async def send(self, data: bytes) -> None:
        """Take some of the answer."""
        await anyio.sleep(len(data) / 20_000)
        self.received += data

    async def send_eof(self) -> None:
        """The answer is whole."""


async def test_a_long_answer_over_a_slow_link_arrives_whole(autojump_clock: object) -> None:
    """A minute and a half for all of it, but some every ten seconds: that is no client that takes nothing."""
    body, reports = b"x" * 2_000_000, list[str]()
    link: Any = SlowLink(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    await Connection(link, Response(body), report=reports.append).run()
    assert (bytes(link.received).partition(b"\r\n\r\n")[2] == body, reports) == (True, [])


def test_a_stalled_client_does_not_hold_up_the_end(short: Path, run_async: Any) -> None:
    """The service ends in time although a send to it would take for ever."""

    async def main() -> None:
        with anyio.fail_after(PATIENCE):
            async with open_client(short, ScriptedModel([]), send_timeout=1000, grace=0.2) as client:
                await fill(client)
                stalled = await client.connect()
                await stalled.send(b"GET /events HTTP/1.1\r\nhost: localhost\r\n\r\n")
                await stalled.receive(1)  # the answer has begun, and fills the buffers
                await anyio.sleep(0.05)
        await stalled.aclose()

    run_async(main)


def test_an_open_stream_ends_with_the_service(short: Path, run_async: Any) -> None:
    """Those who follow hear that it ends; nobody waits for them."""

    async def main() -> None:
        async with open_client(short, ScriptedModel([])) as client:
            connection = await client.connect()
            await connection.send(b"GET /events HTTP/1.1\r\nhost: localhost\r\n\r\n")
            heard = b""
            while b"retry" not in heard:
                heard += await connection.receive()
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            while True:
                heard += await connection.receive()
        assert b"event: bye" in heard
        await connection.aclose()

    run_async(main)


def test_one_connection_too_many_is_closed(short: Path, run_async: Any) -> None:
    """Where all others are being answered; and there is room again once one of them has gone."""

    async def main() -> None:
        async with open_client(short, ScriptedModel([]), max_connections=2) as client:
            held = []
            for _ in range(2):
                held.append(await client.connect())
                await held[-1].send(b"GET /events HTTP/1.1\r\nhost: localhost\r\n\r\n")
                assert (await held[-1].receive()).startswith(b"HTTP/1.1 200")
            async with await client.connect() as third:
                with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                    await third.receive()
            for connection in held:
                await connection.aclose()
            while True:
                async with await client.connect() as again:
                    await again.send(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
                    try:
                        assert (await again.receive()).startswith(b"HTTP/1.1 200")
                    except (anyio.EndOfStream, anyio.BrokenResourceError):
                        continue
                    break

    run_async(main)


GARBAGE = [
    b"\x00" * 100,
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET http://evil.example/ HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n\r\n",
    b"POST /runs HTTP/1.1\r\nhost: localhost\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n",
    b"POST /runs HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 100_000 + b"\r\n\r\n",
    b"GET /%ff%00 HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x04\x08\x00\x00\x00\x00\x00\x00\x00\x00\x00" * 3,
]


def test_garbage_ends_its_own_connection_alone(short: Path, run_async: Any, capfd: Any) -> None:
    """Whatever comes over a connection, the service answers the next one."""

    async def main() -> None:
        async with open_client(short, ScriptedModel([])) as client:
            for garbage in GARBAGE:
                async with await client.connect() as connection:
                    try:
                        await connection.send(garbage)
                        with anyio.move_on_after(0.1):
                            answer = await connection.receive()
                            assert b" 200 " not in answer[:20], garbage[:60]
                    except (anyio.EndOfStream, anyio.BrokenResourceError):
                        pass
                assert (await client.get("/healthz"))["status"] == "ok", garbage[:60]

    run_async(main)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
def test_another_user_is_turned_away(short: Path, run_async: Any) -> None:
    """By the socket's mode, and where somebody has changed that, by who is at the other end."""
    ask = (
        "import os, socket, sys; os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2])); "
        "s = socket.socket(socket.AF_UNIX); s.settimeout(60); s.connect(sys.argv[1]); "
        "s.sendall(b'GET /healthz HTTP/1.1\\r\\nhost: localhost\\r\\n\\r\\n'); print(s.recv(100)[:15])"
    )
    short.chmod(0o755)

    async def main() -> None:
        async with open_client(short, ScriptedModel([])) as client:

            def as_user(user: int) -> subprocess.CompletedProcess[str]:
                command = [sys.executable, "-I", "-c", ask, client.address, str(user)]
                return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)

            assert "HTTP/1.1 200" in (await anyio.to_thread.run_sync(as_user, 0)).stdout
            assert "PermissionError" in (await anyio.to_thread.run_sync(as_user, 65534)).stderr
            os.chmod(client.address, 0o666)
            opened = await anyio.to_thread.run_sync(as_user, 65534)
            assert "HTTP" not in opened.stdout
            assert "ConnectionResetError" in opened.stderr or "b''" in opened.stdout or "BrokenPipe" in opened.stderr

    run_async(main)


def test_files_that_run_out_are_waited_for(short: Path, run_async: Any) -> None:
    """With no descriptor left the service neither dies nor spins, and takes the connection once there is one."""

    async def main() -> None:
        async with open_client(short, ScriptedModel([])) as client:
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as waiting:
                waiting.setblocking(False)
                used = max(int(name) for name in os.listdir("/proc/self/fd"))
                spare = [os.dup(waiting.fileno()) for _ in range(used)]  # fill the gaps, too
                try:
                    resource.setrlimit(resource.RLIMIT_NOFILE, (max(spare) + 1, hard))
                    waiting.connect(client.address)
                    while not client.reports:
                        await anyio.sleep(0.01)
                    assert "cannot take a connection" in client.reports[0]
                finally:
                    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                    for descriptor in spare:
                        os.close(descriptor)
            assert (await client.get("/healthz"))["status"] == "ok"

    run_async(main)


def test_a_client_that_has_gone_before_it_is_accepted_ends_nothing(
    short: Path, run_async: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On macOS ``accept`` fails for a connection that was reset in the queue; the next one is served.

    One report is enough: where no descriptor is left, each attempt was a line of the log, ten a second.
    """
    kind: Any = socket.socket
    accept, gone = kind._accept, [ConnectionAbortedError(errno.ECONNABORTED, "Software caused it")] * 3

    def accept_next(listener: socket.socket) -> Any:
        if gone:
            raise gone.pop()
        return accept(listener)

    async def main() -> None:
        monkeypatch.setattr(kind, "_accept", accept_next)
        async with open_client(short, ScriptedModel([])) as client:
            assert (await client.get("/healthz"))["status"] == "ok"
            assert (not gone, len(client.reports)) == (True, 1)
            assert "Software caused it" in client.reports[0]

    run_async(main)


@pytest.mark.parametrize("tcp", [False, True])
def test_the_end_of_a_connection_is_seen_while_a_forked_child_has_it_too(
    short: Path, run_async: Any, tcp: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a pool of processes that a tool has forked; a browser would send its next request into the void."""
    accept_one: Any = socket.socket
    accept, copies = accept_one._accept, list[int]()

    def accept_and_copy(listener: socket.socket) -> Any:
        descriptor, address = accept(listener)
        copies.append(os.dup(descriptor))
        return descriptor, address

    async def main() -> None:
        monkeypatch.setattr(accept_one, "_accept", accept_and_copy)
        async with (
            open_client(short, ScriptedModel([]), tcp=tcp, header_timeout=0.05) as client,
            await client.connect() as idle,
        ):
            with pytest.raises(anyio.EndOfStream):
                await idle.receive()

    try:
        run_async(main)
    finally:
        for copy in copies:
            os.close(copy)
