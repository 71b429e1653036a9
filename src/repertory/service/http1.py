"""One client's connection: HTTP/1.1 on h11, handed to an ASGI app request by request.

There is no HTTP/2 and no web socket: a client that asks for an upgrade gets its answer in HTTP/1.1, and one that begins
with another version gets 505. Every wait for a client has a time limit: for the head of a request, and for sending an
answer; the app limits the wait for a body.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from email.utils import formatdate
from typing import Any, Final
from urllib.parse import unquote

import anyio
import anyio.abc
import h11
import msgspec
from starlette.types import ASGIApp, Message, Scope

from repertory._log import Log

HEADER_TIMEOUT: Final = 10.0  # seconds until the head of a request must have arrived; also the limit for idling
SEND_TIMEOUT: Final = 10.0  # seconds until a client must have taken one piece of an answer
_PIECE: Final = 64 * 1024  # bytes of such a piece: a slow link is no stalled client, however long the answer is
_LINGER: Final = 1.0  # seconds that a client which is still sending has to read why it was refused
_MAX_HEAD: Final = 16 * 1024  # bytes of a request's line and headers, plus up to as many of one read
_MAX_AHEAD: Final = 64 * 1024  # bytes that a client may send before it has its answer

_log = Log("repertory.service")


class Connection:
    """Answers the requests of one client, one after the other, until either side ends it.

    Args:
        stream: The client; whoever calls ``run`` closes it.
        app: The ASGI app that answers. For an authorized request it calls
            ``scope["extensions"]["repertory.authenticated"]``.
        report: Called with one line when the client is dropped, or the app fails.

    Attributes:
        authenticated: Whether the client has made an authorized request.
        busy: Whether a request is being answered.
        closing: Set to end the connection after the answer under way.
    """

    def __init__(
        self,
        stream: anyio.abc.SocketStream,
        app: ASGIApp,
        *,
        report: Callable[[str], None],
        header_timeout: float = HEADER_TIMEOUT,
        send_timeout: float = SEND_TIMEOUT,
    ) -> None:
        self._stream = stream
        self._app = app
        self._report = report
        self._header_timeout = header_timeout
        self._send_timeout = send_timeout
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD)
        self._head = b""  # of the answer; it goes out with the first piece of the body
        self._piece: Any = h11.NEED_DATA  # of the request's body, if one came with the head
        self._bodiless = False  # whether the answer must have no body
        self._answering = anyio.CancelScope()  # the app, while it answers
        self._ahead = 0
        self._scope = anyio.CancelScope()
        self.authenticated = False
        self.busy = False
        self.closing = False

    def drop(self) -> None:
        """End the connection now, whatever is under way."""
        self._scope.cancel()

    async def run(self) -> None:
        """Answer requests until the connection is to be closed."""
        with self._scope:
            try:
                while not self.closing and await self._answer_one():
                    self._http.start_next_cycle()
                    self._ahead, self._bodiless = 0, False
            except h11.RemoteProtocolError as error:
                await self._refuse(error.error_status_hint, str(error))
            await self._linger()

    async def _answer_one(self) -> bool:
        """Answer the next request; returns whether another may follow."""
        request: Any = None
        with anyio.move_on_after(self._header_timeout):
            request = await self._next_event()
            if not isinstance(request, h11.Request):
                return False
            if request.http_version not in (b"1.0", b"1.1"):
                await self._refuse(505, "only HTTP/1.1 is spoken here")
                return False
            self.busy = True
        if not self.busy:
            return False
        self._bodiless = request.method == b"HEAD"
        self._answering = anyio.CancelScope()
        self._piece = self._http.next_event()  # if there is no body, h11 finds its end now
        scope = self._scope_of(request)
        try:
            with self._answering:
                await self._app(scope, self._receive, self._send)
        except Exception as error:  # noqa: BLE001 - supervises: one request's error must not end the runs
            _log(logging.ERROR, "request.failed", exc_info=error, target=request.target.decode())
            self._report(f"{request.method.decode()} {request.target.decode()[:200]} failed: {error!r}")
        self.busy = False
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    def _scope_of(self, request: h11.Request) -> Scope:
        target, headers = request.target, list(request.headers)
        if not target.startswith(b"/") and target != b"*":  # a whole address, as to a proxy; RFC 9112, section 3.2.2
            scheme, separator, rest = target.partition(b"://")
            authority, slash, path = rest.partition(b"/")
            if scheme.lower() != b"http" or not separator or not authority:
                raise h11.RemoteProtocolError("the target must be a path or an http address")
            authority, question, query = authority.partition(b"?")
            target = b"/" + (path if slash else question + query)
            headers = [(name, value) for name, value in headers if name != b"host"] + [(b"host", authority)]
        raw_path, _, query = target.partition(b"?")
        return {
            "type": "http",
            # From 2.4 on, Starlette notices only by a failing send that a client has gone; a silent stream has none.
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": request.http_version.decode(),
            "method": request.method.decode(),
            "scheme": "http",
            "path": unquote(raw_path.decode()),
            "raw_path": raw_path,
            "query_string": query,
            "root_path": "",
            "headers": headers,
            "client": None,
            "server": None,
            "extensions": {"repertory.authenticated": self._set_authenticated},
        }

    def _set_authenticated(self) -> None:
        self.authenticated = True

    # --- reading ------------------------------------------------------------------------------------------

    async def _receive(self) -> Message:
        """The next piece of the request's body; after it, wait for the client to go."""
        if self._http.they_are_waiting_for_100_continue:
            await self._write(self._http.send(h11.InformationalResponse(status_code=100, headers=[])))
        piece, self._piece = self._piece, h11.NEED_DATA
        if piece is h11.NEED_DATA and self._http.their_state is h11.SEND_BODY:
            try:
                piece = await self._next_event()
            except h11.RemoteProtocolError:  # the body breaks off or is malformed: ASGI has no other word for that
                return {"type": "http.disconnect"}
        if isinstance(piece, h11.Data):
            return {"type": "http.request", "body": bytes(piece.data), "more_body": True}
        if isinstance(piece, h11.EndOfMessage):
            return {"type": "http.request", "body": b"", "more_body": False}
        while data := await self._read():
            self._ahead += len(data)
            if self._ahead > _MAX_AHEAD:
                self.drop()
            self._http.receive_data(data)
        return {"type": "http.disconnect"}

    async def _next_event(self) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._read())
        return event

    async def _read(self) -> bytes:
        """What the client sent; empty once it has disconnected."""
        try:
            return await self._stream.receive(_MAX_HEAD)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return b""

    # --- writing ------------------------------------------------------------------------------------------

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [*message.get("headers", ()), (b"date", formatdate(usegmt=True).encode())]
            if self.closing or self._http.their_state in (h11.SEND_BODY, h11.ERROR):
                headers.append((b"connection", b"close"))
            self._bodiless = self._bodiless or message["status"] in (204, 304)
            self._head = self._http.send(h11.Response(status_code=message["status"], headers=headers)) or b""
            return
        data, self._head = self._head, b""
        body = message.get("body", b"")
        if body and not self._bodiless:
            data += self._http.send(h11.Data(data=body)) or b""
        more = message.get("more_body", False)
        if self._bodiless or not more:
            data += self._http.send(h11.EndOfMessage()) or b""
        await self._write(data)
        if self._bodiless and more:
            self._answering.cancel()  # without a body nothing more is sent, and an event stream would never end
            await anyio.lowlevel.checkpoint()

    async def _refuse(self, status: int, reason: str) -> None:
        """Answer a request that cannot be passed to the app, if an answer can still be sent."""
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = msgspec.json.encode({"error": reason})
            headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
            await self._send({"type": "http.response.start", "status": status, "headers": headers})
            await self._send({"type": "http.response.body", "body": body})

    async def _write(self, data: bytes | None) -> None:
        left = memoryview(data or b"")
        try:
            while left:
                with anyio.fail_after(self._send_timeout):
                    await self._stream.send(bytes(left[:_PIECE]))
                left = left[_PIECE:]
        except TimeoutError:
            self._report(
                f"dropped a client that took less than {_PIECE // 1024} KiB in {self._send_timeout:g} s; "
                "it can continue from the last id"
            )
            self.drop()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            self.drop()
        await anyio.lowlevel.checkpoint()  # a dropped client is cancelled here

    async def _linger(self) -> None:
        """Let a client that is still sending read the answer: closing with unread bytes would discard it."""
        if self._http.our_state is h11.MUST_CLOSE or self._http.their_state is h11.ERROR:
            try:
                await self._stream.send_eof()
            except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
                return
            with anyio.move_on_after(_LINGER):
                while await self._read():
                    pass
