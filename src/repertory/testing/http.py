"""A small HTTP/1.1 server on anyio and h11, for tests that need to break a connection at any byte."""

from __future__ import annotations

import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias

import anyio
import anyio.abc
import h11
import msgspec

MAX_BODY = 64 * 1024 * 1024


class HttpRequest(msgspec.Struct, frozen=True):
    """One request. Header names are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Gone(Exception):
    """The connection was closed, by the client or by us."""


class Reply:
    """Answers one request: at once with ``json``, or in parts with ``start``, ``send`` and ``end``."""

    def __init__(self, stream: anyio.abc.SocketStream, connection: h11.Connection) -> None:
        self._stream = stream
        self._connection = connection

    async def json(self, status: int, value: Any, headers: Mapping[str, str] | None = None) -> None:
        """Answer with a JSON value."""
        body = msgspec.json.encode(value)
        own = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
        await self.start(status, own)
        await self.send(body)
        await self.end()

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the status and the headers; without a content-length the body is chunked."""
        pairs = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        await self._write(h11.Response(status_code=status, headers=pairs))

    async def send(self, data: bytes) -> None:
        """Send a piece of the body.

        Raises:
            Gone: The client has closed the connection.
        """
        await self._write(h11.Data(data=data))

    async def end(self) -> None:
        """End the body."""
        await self._write(h11.EndOfMessage())

    def reset(self) -> None:
        """Reset the connection: the client sees no orderly end."""
        raw = self._stream.extra(anyio.abc.SocketAttribute.raw_socket)  # noqa: S610 - not Django's
        with suppress(OSError):  # if it is closed already, by the client
            # Lingering for no time makes the kernel send RST instead of FIN on close.
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raise Gone

    async def wait_gone(self) -> None:
        """Wait until the client closes the connection."""
        try:
            while await self._stream.receive(65_536):
                pass
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            pass

    async def _write(self, event: Any) -> None:
        data = self._connection.send(event)
        if data:
            try:
                await self._stream.send(data)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
                raise Gone from error


Handler: TypeAlias = Callable[[HttpRequest, Reply], Awaitable[None]]


async def serve_connection(stream: anyio.abc.SocketStream, handler: Handler) -> None:
    """Answer the requests of one connection, one after the other, until either side closes it."""
    async with stream:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=256 * 1024)
        try:
            while (request := await _next_request(stream, connection)) is not None:
                await handler(request, Reply(stream, connection))
                if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                    return
                connection.start_next_cycle()
        except Gone:
            return
        except h11.RemoteProtocolError as error:
            if connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                reply = Reply(stream, connection)
                try:
                    await reply.json(error.error_status_hint, {"error": str(error)})
                    await stream.send_eof()
                except (Gone, anyio.BrokenResourceError, OSError):  # OSError on trio, if the client is gone already
                    return
                await reply.wait_gone()  # closing with something unread would reset the connection, before it is read


async def _next_request(stream: anyio.abc.SocketStream, connection: h11.Connection) -> HttpRequest | None:
    head: h11.Request | None = None
    body = bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            try:
                data = await stream.receive(65_536)
            except anyio.EndOfStream:
                data = b""
            except anyio.BrokenResourceError:
                return None
            connection.receive_data(data)
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > MAX_BODY:
                raise h11.RemoteProtocolError("request body too large", error_status_hint=413)
        elif isinstance(event, h11.EndOfMessage):
            assert head is not None
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
            return HttpRequest(head.method.decode(), head.target.decode("latin-1"), headers, bytes(body))
        else:  # the client closed the connection between two requests
            return None
