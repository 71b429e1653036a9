"""Clients without a right to ask, and with bad manners: they cost themselves a connection and nobody else anything."""

from __future__ import annotations

import errno
import json
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest
from service_parts import TOKEN, open_client
from starlette.types import Receive, Scope, Send

from patience import PATIENCE
from repertory.service import serve_http
from repertory.service.sockets import unix_listener
from repertory.testing import ScriptedModel

GONE = (anyio.EndOfStream, anyio.BrokenResourceError)
H2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# SETTINGS with an initial window of 0, so that no server could ever send the body of an answer.
H2_ZERO_WINDOW = b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x04\x00\x00\x00\x00"


async def silent(stream: anyio.abc.ByteStream) -> None:
    """Say nothing."""


async def http2(stream: anyio.abc.ByteStream) -> None:
    """Speak HTTP/2 from the start, with a window of nothing."""
    await stream.send(H2_PREFACE + H2_ZERO_WINDOW)


async def slow_head(stream: anyio.abc.ByteStream) -> None:
    """Begin a request and stop."""
    await stream.send(b"GET / HTTP/1.1\r\nhost: localh")


async def slow_body(stream: anyio.abc.ByteStream) -> None:
    """Promise a body and send its first byte."""
    await stream.send(b"POST /session HTTP/1.1\r\nhost: %b\r\ncontent-type: application/json\r\n" % HOST[0])
    await stream.send(b"content-length: 1000\r\n\r\n{")


async def never_reading(stream: anyio.abc.ByteStream) -> None:
    """Ask for the page again and again, and take none of the answers."""
    with anyio.move_on_after(0.05):
        await stream.send(b"GET / HTTP/1.1\r\nhost: %b\r\n\r\n" % HOST[0] * 1000)


async def half_closed(stream: anyio.abc.ByteStream) -> None:
    """Ask for the page and say that nothing more will come."""
    await stream.send(b"GET / HTTP/1.1\r\nhost: %b\r\n\r\nGET / HT" % HOST[0])
    await stream.send_eof()


HOST = [b"localhost"]
ATTACKS = [silent, http2, slow_head, slow_body, never_reading, half_closed]


@pytest.mark.parametrize("tcp", [False, True])
@pytest.mark.parametrize("attack", ATTACKS)
def test_strangers_keep_nobody_out(
    short: Path, run_async: Any, attack: Callable[[anyio.abc.ByteStream], Awaitable[None]], tcp: bool
) -> None:
    """More connections than there are places, none with a token: who has one gets in, and the service ends in time."""
    places, attackers_in_all = (64, 80) if attack is silent else (16, 20)

    async def main() -> None:
        async with AsyncExitStack() as attackers:
            with anyio.fail_after(PATIENCE):
                # Its own limits are no help: nobody waits for one to run out.
                limits = {"max_connections": places, "grace": 0.1, "header_timeout": 600.0, "send_timeout": 600.0}
                async with open_client(short, ScriptedModel([]), tcp=tcp, **limits) as client:
                    HOST[0] = b"localhost:%d" % client.address[1] if tcp else b"localhost"
                    for _ in range(attackers_in_all):
                        stream = await attackers.enter_async_context(await client.connect())
                        with suppress(GONE):
                            await attack(stream)
                    for _ in range(5):
                        await client.get("/healthz")
                    async with client.follow("/events", token=TOKEN if tcp else None) as stream:
                        assert stream.status == 200

    run_async(main)


def test_strangers_do_not_drive_out_who_is_known(short: Path, run_async: Any) -> None:
    """An event stream stays open whoever comes; connections that are known but idle make room only after strangers."""

    async def main() -> None:
        async with AsyncExitStack() as others:
            client = await others.enter_async_context(open_client(short, ScriptedModel([]), max_connections=4))
            async with client.follow("/events") as followed:
                known = await others.enter_async_context(await client.connect())
                await known.send(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
                assert b"200" in await known.receive()
                first = await others.enter_async_context(await client.connect())
                for _ in range(10):
                    await others.enter_async_context(await client.connect())
                with pytest.raises(GONE):
                    await first.receive()
                await known.send(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
                assert b"200" in await known.receive()
                await client.start()
                assert (await followed.event())["type"] == "RunSpawned"

    run_async(main)


@pytest.mark.parametrize("attack", [silent, slow_head])
def test_a_head_that_does_not_come_ends_its_connection(short: Path, run_async: Any, attack: Any) -> None:
    """Also where there is room for all."""

    async def main() -> None:
        limits = {"header_timeout": 0.05}
        async with open_client(short, ScriptedModel([]), **limits) as client, await client.connect() as stream:
            await attack(stream)
            with pytest.raises(GONE):
                await stream.receive()

    run_async(main)


def test_http2_is_refused_in_words(short: Path, run_async: Any) -> None:
    """Whoever speaks it without asking learns which version to speak."""

    async def main() -> None:
        async with open_client(short, ScriptedModel([])) as client, await client.connect() as stream:
            await stream.send(H2_PREFACE + H2_ZERO_WINDOW)
            answer = await read_to_end(stream)
            assert answer.startswith(b"HTTP/1.1 505")
            assert json.loads(answer.partition(b"\r\n\r\n")[2]) == {"error": "only HTTP/1.1 is spoken here"}

    run_async(main)


async def read_to_end(stream: anyio.abc.ByteStream) -> bytes:
    """What the service says until it closes the connection."""
    answer = b""
    try:
        while True:
            answer += await stream.receive()
    except GONE:
        return answer


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        (b"http://localhost/healthz", b"localhost", 200),
        (b"HTTP://localhost/healthz", b"evil.example", 200),  # the address counts, as the standard says
        (b"http://localhost?x=1", b"localhost", 200),
        (b"http://localhost/runs?limit=x", b"localhost", 400),
        (b"http://evil.example/healthz", b"localhost", 421),
        (b"https://localhost/healthz", b"localhost", 400),
        (b"http:///healthz", b"localhost", 400),
        (b"localhost:80", b"localhost", 400),
        (b"*", b"localhost", 404),
    ],
)
def test_a_whole_address_is_a_target_too(short: Path, run_async: Any, target: bytes, host: bytes, status: int) -> None:
    """As a client asks that takes the service for a proxy; RFC 9112 wants it understood."""

    async def main() -> None:
        async with open_client(short, ScriptedModel([])) as client, await client.connect() as stream:
            await stream.send(b"GET %b HTTP/1.1\r\nhost: %b\r\nconnection: close\r\n\r\n" % (target, host))
            assert (await read_to_end(stream)).startswith(b"HTTP/1.1 %d " % status)

    run_async(main)


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        (b"POST /runs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 22\r\n\r\n"
         b'{"agent":"\xff","task":""}'[:22], b"HTTP/1.1 400"),
        (b"HEAD / HTTP/1.1\r\nhost: localhost\r\n\r\n", b"HTTP/1.1 200"),
        (b"GET /healthz HTTP/1.0\r\nhost: localhost\r\n\r\n", b"HTTP/1.1 200"),
        (b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 50_000 + b"\r\n\r\n", b"HTTP/1.1 431"),
        (b"GET / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9999999\r\n\r\n" + b"x" * 300_000, b"HTTP/1.1 200"),
        (b"GET / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", b"HTTP/1.1 400"),
        (b"POST /runs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n"
         b"\r\n2\r\n{}\r\nzz\r\n", b"HTTP/1.1 400"),
        (b"POST /runs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{}",
         b"HTTP/1.1 400"),
        (b"POST /runs/a/fork HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
         b"content-length: 9999999\r\n\r\n" + b" " * 2_000_000, b"HTTP/1.1 413"),
    ],
)  # fmt: skip
def test_who_asks_badly_reads_why(short: Path, run_async: Any, asked: bytes, answered: bytes) -> None:
    """The answer arrives whole, also while the client is still sending what nobody reads."""

    async def main() -> None:
        async with open_client(short, ScriptedModel([])) as client, await client.connect() as stream:
            async with anyio.create_task_group() as tasks:

                async def ask() -> None:
                    try:
                        await stream.send(asked)
                        await stream.send_eof()
                    except GONE:
                        pass

                tasks.start_soon(ask)
                assert (await read_to_end(stream)).startswith(answered)
            assert (await client.get("/healthz"))["status"] == "ok"
            assert client.reports == []

    run_async(main)


@pytest.mark.parametrize("first", [b"HEAD / HTTP/1.1\r\n", b"POST /session HTTP/1.1\r\n"])
@pytest.mark.parametrize("garbage", [b"GARBAGE\r\n\r\n", b"GET / HTTP/1.2\r\nhost: localhost\r\n\r\n"])
def test_garbage_after_an_answer_without_a_body_is_refused(
    short: Path, run_async: Any, first: bytes, garbage: bytes
) -> None:
    """The refusal has a body again, and everybody else is answered."""

    async def main() -> None:
        async with open_client(short, ScriptedModel([]), tcp=True) as client, await client.connect() as stream:
            head = b"host: localhost:%d\r\nauthorization: Bearer %b\r\n" % (client.address[1], TOKEN.encode())
            head += b"content-type: application/json\r\ncontent-length: 0\r\n\r\n"
            await stream.send(first + head + garbage)
            answers = (await read_to_end(stream)).split(b"HTTP/1.1 ", 2)
            assert answers[1][:3] in (b"200", b"204")
            assert answers[2][:3] in (b"400", b"505")
            assert "error" in json.loads(answers[2].partition(b"\r\n\r\n")[2])
            assert (await client.get("/healthz"))["status"] == "ok"

    run_async(main)


def test_the_head_of_a_stream_is_one_answer(short: Path, run_async: Any) -> None:
    """HEAD ends with the headers, although the events never end; the connection is free for the next request."""

    async def main() -> None:
        async with open_client(short, ScriptedModel([])) as client, await client.connect() as stream:
            await stream.send(b"HEAD /events HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert b"content-type: text/event-stream" in await stream.receive()
            await stream.send(b"GET /runs?limit=x HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            assert (await read_to_end(stream)).startswith(b"HTTP/1.1 400")

    run_async(main)


def test_a_body_that_is_waited_for_is_asked_for(short: Path, run_async: Any) -> None:
    """``expect: 100-continue``, which curl sends before a large body, is answered."""

    async def main() -> None:
        async with open_client(short, ScriptedModel([])) as client, await client.connect() as stream:
            body = b'{"agent": "clerk", "task": "Count."}'
            await stream.send(
                b"POST /runs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nexpect: 100-continue\r\n"
                b"content-length: %d\r\n\r\n" % len(body)
            )
            assert (await stream.receive()).startswith(b"HTTP/1.1 100")
            await stream.send(body)
            assert (await stream.receive()).startswith(b"HTTP/1.1 201")

    run_async(main)


def test_who_sends_on_and_on_before_the_answer_is_dropped(short: Path, run_async: Any) -> None:
    """Beside an open event stream a client has nothing to say; what it says anyway is not kept."""

    async def main() -> None:
        async with open_client(short, ScriptedModel([])) as client, await client.connect() as stream:
            await stream.send(b"GET /events HTTP/1.1\r\nhost: localhost\r\n\r\n")
            with pytest.raises(GONE):
                while True:
                    await stream.send(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n" * 1000)

    run_async(main)


def test_an_error_of_the_app_is_one_answer(short: Path, run_async: Any, caplog: pytest.LogCaptureFixture) -> None:
    """500, one line for the terminal and a traceback in the log; runs and other clients do not notice."""

    async def main() -> None:
        async with open_client(short, ScriptedModel([])) as client:

            def broken() -> None:
                raise ZeroDivisionError

            client.control.offers.list = broken  # type: ignore[method-assign, assignment]
            assert (await client.http.get("/agents")).status_code == 500
            while not client.reports:  # it is told once the answer is out
                await anyio.sleep(0.01)
            assert client.reports == ["GET /agents failed: ZeroDivisionError()"]
            assert "ZeroDivisionError" in caplog.text
            assert (await client.get("/healthz"))["status"] == "ok"

    run_async(main)


def test_an_error_that_cannot_be_reported_ends_nothing(
    short: Path, run_async: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """It costs the one connection; the log has it."""

    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise ZeroDivisionError

    def full(line: str) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    async def main() -> None:
        stopping = anyio.Event()
        with unix_listener(short / "s") as listener:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(serve_http, broken, listener, stopping=stopping, report=full))
                for _ in range(2):
                    async with await anyio.connect_unix(str(short / "s")) as stream:
                        await stream.send(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
                        assert await read_to_end(stream) == b""
                stopping.set()
        assert "connection.failed" in caplog.text

    run_async(main)


def test_a_client_that_resets_its_connection_is_forgotten(short: Path, run_async: Any) -> None:
    """Also in the middle of an answer."""

    async def main() -> None:
        async with open_client(short, ScriptedModel([]), tcp=True) as client:
            for _ in range(20):
                with socket.create_connection(client.address) as raw:
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
                    raw.sendall(b"GET / HTTP/1.1\r\nhost: localhost:%d\r\n\r\n" % client.address[1] * 50)
                assert (await client.get("/healthz"))["status"] == "ok"
            assert client.reports == []

    run_async(main)
