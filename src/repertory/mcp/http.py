"""HTTP to an MCP server, so that what happens to one request is the answer to that request alone.

The SDK ends the whole connection if one request fails, and with it the calls of all runs that share it. And it does not
tell the status with which a request was refused.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from math import ceil
from random import random
from time import time
from typing import Any, Final, Literal, TypeAlias

import anyio
import httpx2
import msgspec
from mcp_types import INTERNAL_ERROR

from repertory._counting import counted
from repertory._error_texts import telling
from repertory.llm.messages import Json
from repertory.llm.retry import RetryPolicy, asked_delay
from repertory.mcp.lines import LONGEST_ANSWER
from repertory.tools.output import one_line

_PATIENCE: Final = 30.0  # seconds for each step of a request other than its answer, and for that while signing in
# When a request is sent again that a busy server has not taken. Nobody else waits for it, unlike for a notification.
_BUSY: Final = RetryPolicy(total_time=_PATIENCE)

Fate: TypeAlias = Literal["answered", "none", "unknown"]

_HANDSHAKE: Final = ("initialize", "server/discover")
_ANSWERS: Final = ("application/json", "text/event-stream")  # types of content
_NOT_SENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)


class _Sent(msgspec.Struct):
    id: int | str | None = None
    method: str = ""


class _Error(msgspec.Struct):
    code: int
    message: str


class _Answer(msgspec.Struct):
    error: _Error


class HttpClient(httpx2.AsyncClient):
    """A client whose failed requests are answered with an error of the protocol, which says what came of them."""

    def __init__(self, headers: dict[str, str], auth: httpx2.Auth | None) -> None:
        super().__init__(
            headers=headers,
            auth=None if auth is None else _BriefAuth(auth),
            timeout=httpx2.Timeout(_PATIENCE, read=None),  # a call takes as long as its deadline allows
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),  # each open call needs its own
        )

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request, and read no more of its answer than a model could be shown."""
        sent = await _read_sent(request)
        response = await self._send_until_taken(request, sent, options)
        response.aread = partial(_read, response, sent)  # type: ignore[method-assign]
        kind = response.headers.get("Content-Type", "nothing")
        is_answer = response.status_code != 202 and kind.lower().startswith(_ANSWERS)
        if sent.id is not None and sent.method not in ("", *_HANDSHAKE) and response.is_success and not is_answer:
            await response.aclose()
            told = f"HTTP {response.status_code} {response.reason_phrase} with {kind}"
            return httpx2.Response(502, json=_failure(sent, told, "unknown"), request=request)
        return await _explained(response, sent) if response.is_error and sent.method else response

    async def _send_until_taken(self, request: httpx2.Request, sent: _Sent, options: dict[str, Any]) -> httpx2.Response:
        """Send a request, and again after a pause if the server is too busy for it."""
        begun, attempt = anyio.current_time(), 1
        while True:
            response = await self._send(request, sent, options)
            attempt += 1
            pause = _BUSY.delay(attempt, asked=_asked(response), chance=random())  # noqa: S311 - spreads requests
            is_late = anyio.current_time() + pause > begun + _BUSY.total_time
            if sent.id is None or not _is_busy(response) or attempt > _BUSY.attempts or is_late:
                return response
            await response.aclose()
            await anyio.sleep(pause)

    async def _send(self, request: httpx2.Request, sent: _Sent, options: dict[str, Any]) -> httpx2.Response:
        try:
            return await super().send(request, **options)
        except Exception as error:  # what signs in may raise anything, and the SDK would end the connection
            if sent.method in _HANDSHAKE:  # no answer says nothing about the protocol that the server speaks
                raise
            fate: Fate = "none" if isinstance(error, _NOT_SENT) else "unknown"
            if not isinstance(error, httpx2.RequestError):  # from ``auth``: the server did not take the request
                fate = "answered"
            return httpx2.Response(502, json=_failure(sent, one_line(telling(error)), fate), request=request)


class _BriefAuth(httpx2.Auth):
    """An authentication that is not in progress while a request is answered.

    The SDK's hold a lock in between, so that all calls would wait for an open event stream: its issue 3209.
    """

    def __init__(self, auth: httpx2.Auth) -> None:
        self._auth = auth

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Sign a request, send it, and if it is refused sign in and send it once more."""
        refused: httpx2.Response | None = None
        token: str | None = None
        has_told = False
        while True:
            async with aclosing(self._auth.async_auth_flow(request)) as flow:
                try:
                    outgoing = await anext(flow)
                    while True:
                        if outgoing is not request:  # to an address that a server has named, of a host of its choice
                            outgoing.extensions.setdefault("timeout", httpx2.Timeout(_PATIENCE).as_dict())
                            response = yield outgoing
                            response.aiter_bytes = partial(_bounded, response.aiter_bytes)  # type: ignore[method-assign]
                        elif refused is None or has_told or request.headers.get("Authorization") != token:
                            break  # another request may have signed in meanwhile
                        else:
                            response, has_told = refused, True
                        outgoing = await flow.asend(response)
                except StopAsyncIteration:
                    return
            token = request.headers.get("Authorization")
            refused = yield request
            if has_told or refused.status_code not in (401, 403):
                return


async def _read_sent(request: httpx2.Request) -> _Sent:
    content = await request.aread()  # one that follows a redirect has it only as a stream
    try:
        return msgspec.json.decode(content, type=_Sent)
    except msgspec.MsgspecError:  # no message of the protocol, but the end of a session, say
        return _Sent()


async def _read(response: httpx2.Response, sent: _Sent) -> bytes:
    """Read a response as a whole."""
    try:
        async with aclosing(_bounded(response.aiter_bytes)) as pieces:
            return b"".join([piece async for piece in pieces])
    except httpx2.RequestError as error:
        return msgspec.json.encode(_failure(sent, one_line(telling(error)), "unknown"))


async def _bounded(read: Callable[[], AsyncGenerator[bytes]]) -> AsyncGenerator[bytes]:
    """The pieces of a response, counted after decompression: a small one can be a bomb."""
    length = 0
    async with aclosing(read()) as pieces:
        async for piece in pieces:
            length += len(piece)
            if length > LONGEST_ANSWER:
                raise httpx2.StreamError(f"the answer has more than {LONGEST_ANSWER:,} bytes")
            yield piece


def _asked(response: httpx2.Response) -> float | None:
    """The seconds that a server asks to wait."""
    return asked_delay(response.headers, now=time())


def _is_busy(response: httpx2.Response) -> bool:
    """Whether a server says that it has not taken a request, and will take it later."""
    return response.status_code == 429 or (response.status_code == 503 and _asked(response) is not None)


async def _explained(response: httpx2.Response, sent: _Sent) -> httpx2.Response:
    """A refusal with the server's own error, or one that names the status."""
    try:
        body = await response.aread()
        said = msgspec.json.decode(body, type=_Answer).error.message
    except (httpx2.StreamError, msgspec.MsgspecError):
        body, said = b"", ""
    finally:
        await response.aclose()
    status, request = response.status_code, response.request
    fate: Fate = "unknown" if status >= 500 and not said and not _is_busy(response) else "answered"
    # Status 404 says by the protocol that the session is no more; many servers say it with 400.
    if "mcp-session-id" in request.headers and (status == 404 or (status == 400 and "session" in said.lower())):
        fate = "none"
    if fate != "answered" or not said:
        wait = f", again in {counted(ceil(asked), 'second')}" if (asked := _asked(response)) else ""
        told = f"HTTP {status} {response.reason_phrase}{wait}" + (f": {said}" if said else "")
        body = msgspec.json.encode(_failure(sent, told, fate))
    return httpx2.Response(status, headers={"Content-Type": "application/json"}, content=body, request=request)


def _failure(sent: _Sent, message: str, fate: Fate) -> Json:
    error = {"code": INTERNAL_ERROR, "message": message, "data": {"repertory/fate": fate}}
    return {"jsonrpc": "2.0", "id": sent.id, "error": error}
