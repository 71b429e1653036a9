"""The HTTP interface: a small Starlette app over ``Control``, behind ``Guard``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final, TypeVar

import anyio
import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from repertory.errors import (
    ConfigurationError,
    ContentNotFound,
    ItemNotFound,
    JournalError,
    PayloadInvalid,
    RepertoryError,
    RunError,
    RunNotFound,
    ScopeNotFound,
)
from repertory.record.records import RunRow
from repertory.service.access import Access, Guard
from repertory.service.control import Control
from repertory.service.feed import PING, Along, Follower, event_view
from repertory.service.memories import read_item, read_memory
from repertory.service.metrics import CONTENT_TYPE, read_metrics
from repertory.service.page import CONTENT_SECURITY_POLICY, PAGE
from repertory.service.reports import read_content_page, read_contents, read_payload, read_payload_history

T = TypeVar("T")

MAX_BODY: Final = 2**20  # bytes
BODY_TIMEOUT: Final = 10.0  # seconds
MAX_FOLLOWERS: Final = 32  # event streams at once, so that connections are left for everything else
MAX_TREES: Final = 1000
EVENTS: Final = 500  # in one answer that is no stream
MAX_LISTED: Final = 500  # items or contents in one answer

# The first that fits counts.
_STATUS: Final[tuple[tuple[type[RepertoryError], int], ...]] = (
    (RunNotFound, 404),
    (ScopeNotFound, 404),
    (ItemNotFound, 404),
    (ContentNotFound, 404),
    (ConfigurationError, 400),
    (RunError, 409),
    (PayloadInvalid, 409),  # that of a run on record, by what its agent is now
    (JournalError, 503),
    (RepertoryError, 500),
)


class NewRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``POST /runs``."""

    agent: str
    task: str
    root: str | None = None


class NewMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``POST /runs/{id}/messages``."""

    text: str


class Approval(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``POST /runs/{id}/calls/{call_id}/approve``; without ``arguments`` the call is made as it is."""

    arguments: dict[str, Any] | None = None
    by: str = ""


class Denial(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``POST /runs/{id}/calls/{call_id}/deny``."""

    reason: str
    by: str = ""


class GivenResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``POST /runs/{id}/calls/{call_id}/result``."""

    result: Any
    is_error: bool = False


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request that says everything by its path: empty, or an empty object."""


def create_app(control: Control, access: Access, *, ping: float = PING) -> ASGIApp:
    """Make the app.

    Args:
        control: What the requests are about.
        access: Who may make them.
        ping: Seconds of silence after which an event stream shows that it lives.
    """
    return Guard(_Service(control, access, ping).app, access)


class _Service:
    """The routes."""

    def __init__(self, control: Control, access: Access, ping: float) -> None:
        self._control = control
        self._access = access
        self._ping = ping
        self._followers = 0
        get, post = ["GET"], ["POST"]
        self.app = Starlette(
            routes=[
                Route("/", self.page, methods=get),
                Route("/session", self.open_session, methods=post),
                Route("/healthz", self.health, methods=get),
                Route("/metrics", self.metrics, methods=get),
                Route("/agents", self.agents, methods=get),
                Route("/events", self.events, methods=get),
                Route("/runs", self.list_runs, methods=get),
                Route("/runs", self.start_run, methods=post),
                Route("/runs/{run_id}", self.read_run, methods=get),
                Route("/runs/{run_id}/events", self.events, methods=get),
                Route("/runs/{run_id}/memory", self.memory, methods=get),
                Route("/runs/{run_id}/memory/item", self.item, methods=get),
                Route("/runs/{run_id}/payload", self.payload, methods=get),
                Route("/runs/{run_id}/payload/history", self.payload_history, methods=get),
                Route("/runs/{run_id}/contents", self.contents, methods=get),
                Route("/runs/{run_id}/contents/{content_id:path}", self.content, methods=get),
                Route("/runs/{run_id}/stream", self.stream, methods=get),
                Route("/runs/{run_id}/messages", self.send, methods=post),
                Route("/approvals", self.approvals, methods=get),
                Route("/runs/{run_id}/calls/{call_id}/approve", self.approve, methods=post),
                Route("/runs/{run_id}/calls/{call_id}/deny", self.deny, methods=post),
                Route("/runs/{run_id}/calls/{call_id}/result", self.give_result, methods=post),
                Route("/runs/{run_id}/stop", self._steer(control.stop), methods=post),
                Route("/runs/{run_id}/pause", self._steer(control.pause), methods=post),
                Route("/runs/{run_id}/resume", self._steer(control.resume), methods=post),
            ],
            exception_handlers={RepertoryError: _explain, HTTPException: _refuse},
        )
        self.app.router.redirect_slashes = False

    # --- looking ------------------------------------------------------------------------------------------

    async def page(self, request: Request) -> Response:
        """The page for a browser. It holds no data, so it needs no token."""
        return HTMLResponse(PAGE, headers={"content-security-policy": CONTENT_SECURITY_POLICY})

    async def health(self, request: Request) -> Response:
        """What is wrong, as it was seen last: asking waits for nothing."""
        monitor = self._control.monitor
        failed = monitor.state() == "fail"
        durability = self._control.journal.durability
        checks = {"seq": monitor.seq, "durability": durability, "checks": monitor.checks()}
        return _json({"status": "fail" if failed else "ok", **checks}, 503 if failed else 200)

    async def metrics(self, request: Request) -> Response:
        """The figures of all runs as Prometheus reads them."""
        return Response(await read_metrics(self._control.journal), media_type=CONTENT_TYPE)

    async def agents(self, request: Request) -> Response:
        """What can be started."""
        return _json(self._control.agents())

    async def list_runs(self, request: Request) -> Response:
        """The newest trees of runs."""
        return _json(await self._control.list_runs(_number(request, "limit", 100, most=MAX_TREES)))

    async def read_run(self, request: Request) -> Response:
        """One run with its figures, its tree and its answer."""
        return _json(await self._control.read_run(request.path_params["run_id"]))

    async def events(self, request: Request) -> Response:
        """Events from the journal, then as they happen; with ``follow=no`` a page of those that did."""
        run_id = request.path_params.get("run_id")
        if run_id is not None:
            run_id = await self._control.find_id(run_id)
        last_seen = request.headers.get("last-event-id")
        after = _number(request, "after", 0) if last_seen is None else _parse(last_seen, "Last-Event-ID")
        if request.query_params.get("follow") == "no":
            events = await self._control.journal.read_events(run_id, after=after, limit=EVENTS)
            return _json([event_view(sequence, event) for sequence, event in events])
        self._check_followers()
        follower = Follower(self._control.feed, self._control.journal, run_id, after=after, ping=self._ping)
        return _EventStream(follower, self._count_followers)

    # --- what a run has kept ------------------------------------------------------------------------------

    async def memory(self, request: Request) -> Response:
        """What a run sees of memory: the newest items, or the best for some words."""
        scope_id = await self._scope_of(request)
        text, window = request.query_params.get("text", ""), _window(request)
        return _json(await read_memory(self._control.journal, scope_id, text=text, **window))

    async def item(self, request: Request) -> Response:
        """One item of it, whole. Its id is no part of the path: it may look like one that leads elsewhere."""
        item_id = request.query_params.get("id")
        if item_id is None:
            raise HTTPException(400, "which item? add ?id=…, as the list of items has it")
        return _json(await read_item(self._control.journal, await self._scope_of(request), item_id))

    async def payload(self, request: Request) -> Response:
        """A run's payload as it is, or as it was in a version."""
        version = _number(request, "version", 0) or None
        return _json(await read_payload(self._control.journal, await self._row_of(request), version))

    async def payload_history(self, request: Request) -> Response:
        """Who changed what in it."""
        return _json(await read_payload_history(self._control.journal, await self._row_of(request)))

    async def contents(self, request: Request) -> Response:
        """What a run and those below it have stored, oldest first."""
        run_id, window = (await self._row_of(request)).started.run_id, _window(request)
        limit = window["limit"]
        found = await read_contents(self._control.journal, run_id, skip=window["skip"], limit=limit + 1)
        return _json({"run_id": run_id, "contents": found[:limit], "more": len(found) > limit})

    async def content(self, request: Request) -> Response:
        """One page of one of them."""
        run_id = (await self._row_of(request)).started.run_id
        page = _number(request, "page", 1)
        return _json(await read_content_page(self._control.journal, run_id, request.path_params["content_id"], page))

    async def _row_of(self, request: Request) -> RunRow:
        return await self._control.journal.read_run(request.path_params["run_id"])

    async def _scope_of(self, request: Request) -> str:
        started = (await self._row_of(request)).started
        if not started.scope_id:
            raise ScopeNotFound(f"run {started.run_id} has no memory scope")
        return started.scope_id

    # --- counting -----------------------------------------------------------------------------------------

    async def stream(self, request: Request) -> Response:
        """What a run says, as it says it, to the end of its turn."""
        reader = await self._control.stream(request.path_params["run_id"])
        self._check_followers()
        return _EventStream(Along(self._control.feed, reader, ping=self._ping), self._count_followers)

    def _check_followers(self) -> None:
        if self._followers >= MAX_FOLLOWERS:
            raise HTTPException(503, f"{MAX_FOLLOWERS} event streams are open already", {"retry-after": "5"})

    def _count_followers(self, more: int) -> None:
        self._followers += more

    # --- steering -----------------------------------------------------------------------------------------

    async def open_session(self, request: Request) -> Response:
        """Give a browser its cookie for the code in its link, or for the token."""
        await _read(request, Nothing)
        if not self._access.exchange(request.headers.get("authorization")):
            raise HTTPException(401, "the code was used already or is wrong; see docs/service.md for another way in")
        answer = Response(status_code=204)
        answer.set_cookie(self._access.cookie_name, self._access.cookie, httponly=True, samesite="strict", path="/")
        return answer

    async def start_run(self, request: Request) -> Response:
        """Start a run; it is durable when the answer comes."""
        asked = await _read(request, NewRun)
        run_id = await self._control.start(asked.agent, asked.task, root=asked.root)
        return _json({"id": run_id}, 201, {"location": f"/runs/{run_id}"})

    async def send(self, request: Request) -> Response:
        """Say something to a run; it is durable when the answer comes."""
        message = await _read(request, NewMessage)
        await self._control.send(request.path_params["run_id"], message.text)
        return _json({}, 202)

    async def approvals(self, request: Request) -> Response:
        """The tool calls of all runs under way that wait for an approval or for their result."""
        return _json({"waiting": self._control.waiting()})

    async def approve(self, request: Request) -> Response:
        """Allow a call that waits; it is durable when the answer comes. Safe to repeat, as the two below."""
        asked = await _read(request, Approval)
        await self._control.approve(**request.path_params, arguments=asked.arguments, by=asked.by)
        return _json({}, 202)

    async def deny(self, request: Request) -> Response:
        """Deny a call that waits; it is durable when the answer comes."""
        asked = await _read(request, Denial)
        await self._control.deny(**request.path_params, reason=asked.reason, by=asked.by)
        return _json({}, 202)

    async def give_result(self, request: Request) -> Response:
        """Bring the result of a call that waits for it; it is durable when the answer comes."""
        given = await _read(request, GivenResult)
        await self._control.give_result(**request.path_params, result=given.result, is_error=given.is_error)
        return _json({}, 202)

    def _steer(self, action: Callable[[str], Awaitable[None]]) -> Callable[[Request], Awaitable[Response]]:
        async def steer(request: Request) -> Response:
            await _read(request, Nothing)
            await action(request.path_params["run_id"])
            return _json({}, 202)

        return steer


class _EventStream(StreamingResponse):
    """A stream that is counted while it is open."""

    def __init__(self, follower: Follower | Along, count: Callable[[int], None]) -> None:
        super().__init__(follower, media_type="text/event-stream", headers={"x-accel-buffering": "no"})
        self._count = count

    async def __call__(self, *connection: Any) -> None:
        self._count(+1)
        try:
            await super().__call__(*connection)
        finally:
            self._count(-1)


# --- requests and answers ---------------------------------------------------------------------------------


def _json(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers=headers, media_type="application/json")


async def _read(request: Request, kind: type[T]) -> T:
    """The body as a struct. Raises ``HTTPException`` where it is too large, too slow or not what was expected."""
    body = bytearray()
    try:
        with anyio.fail_after(BODY_TIMEOUT):
            async with aclosing(request.stream()) as pieces:
                async for piece in pieces:
                    body += piece
                    if len(body) > MAX_BODY:
                        raise HTTPException(413, f"the body is larger than {MAX_BODY} bytes")
    except TimeoutError:
        raise HTTPException(408, f"the body did not come within {BODY_TIMEOUT:g} s") from None
    except ClientDisconnect:
        raise HTTPException(400, "the body is not whole") from None
    try:
        return msgspec.json.decode(bytes(body) or (b"{}" if kind is Nothing else b""), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HTTPException(400, f"the body is not what was expected: {error}") from error


def _number(request: Request, name: str, default: int, *, most: int | None = None) -> int:
    given = request.query_params.get(name)
    number = default if given is None else _parse(given, name)
    return number if most is None else min(number, most)


def _window(request: Request) -> dict[str, int]:
    """Which part of a list is asked for."""
    return {"skip": _number(request, "skip", 0), "limit": _number(request, "limit", 50, most=MAX_LISTED)}


def _parse(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise HTTPException(400, f"{name} must be a number of at most 18 digits, got {text[:40]!r}")
    return int(text)


async def _explain(request: Request, error: Exception) -> Response:
    status = next(status for kind, status in _STATUS if isinstance(error, kind))
    return _json({"error": str(error)}, status)


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _json({"error": error.detail}, error.status_code, dict(error.headers or {}))
