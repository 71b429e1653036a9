"""The HTTP interface: a small Starlette app over ``Control``, behind ``Guard``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from repertory.errors import (
    ConfigurationError,
    ContentNotFound,
    ItemNotFound,
    JournalError,
    ModelError,
    PayloadInvalid,
    QueueFull,
    RepertoryError,
    RunError,
    RunExists,
    RunNotFound,
    ScopeNotFound,
)
from repertory.llm.messages import Block, Json, Text
from repertory.mcp.server import answer_http, serve_tools
from repertory.record.records import FINAL_STATES, RunRow
from repertory.record.sqlite_journal import SqliteJournal
from repertory.service.access import Access, Guard
from repertory.service.control import Control
from repertory.service.feed import PING, Along, Follower
from repertory.service.memories import MemoryView, read_item, read_memory
from repertory.service.metrics import CONTENT_TYPE, Metrics
from repertory.service.openapi import document
from repertory.service.page import CONTENT_SECURITY_POLICY, PAGE, STATIC_FILES
from repertory.service.reports import (
    read_content_page,
    read_contents,
    read_inspection,
    read_payload,
    read_payload_history,
    read_record,
    read_stats,
)
from repertory.service.requests import (
    MAX_LISTED,
    Approval,
    AttemptsQuery,
    Denial,
    EventHeaders,
    EventsQuery,
    GivenMedia,
    GivenResult,
    GivenText,
    InspectQuery,
    ItemQuery,
    MemoryQuery,
    NewFork,
    NewMessage,
    NewRewind,
    NewRun,
    OverviewQuery,
    PageQuery,
    RecordQuery,
    Redelivery,
    ResultQuery,
    RunsQuery,
    StartHeaders,
    StatsQuery,
    VersionQuery,
    WindowQuery,
)
from repertory.service.routes import Operation, as_json, delete, get, make_routes, post, read_bytes
from repertory.service.run_tools import ABOUT, run_tools
from repertory.service.schedules import ScheduleView
from repertory.service.server import MAX_CONNECTIONS
from repertory.service.views import (
    Accepted,
    AgentView,
    ContentList,
    Health,
    Overview,
    Reloaded,
    RunDetail,
    RunEnded,
    RunList,
    ServiceView,
    Space,
    Started,
    Waiting,
    WebhookAttempt,
    WebhookList,
    attempt_view,
    event_view,
)
from repertory.supervisor import QueuedRun
from repertory.tools import media_block
from repertory.tools.threads import compute

MAX_GIVEN: Final = 32 * 2**20  # bytes of a result with images or documents; a request to a model may have no more
RESERVED: Final = 32  # connections that event streams leave for everything else
_GIVEN_BACK: Final = 2048  # pages at once
EVENTS: Final = 500  # in one answer that is no stream

# The first that fits counts.
_STATUS: Final[tuple[tuple[type[RepertoryError], int], ...]] = (
    (RunNotFound, 404),
    (ScopeNotFound, 404),
    (ItemNotFound, 404),
    (ContentNotFound, 404),
    (ConfigurationError, 400),
    (RunExists, 422),
    (QueueFull, 429),
    (RunError, 409),
    (PayloadInvalid, 422),
    (ModelError, 503),
    (JournalError, 503),
    (RepertoryError, 500),
)


def create_app(
    control: Control, access: Access, *, ping: float = PING, max_followers: int = MAX_CONNECTIONS - RESERVED
) -> ASGIApp:
    """Make the app.

    Args:
        control: What the requests are about.
        access: Who may make them.
        ping: Seconds of silence after which an event stream shows that it lives.
        max_followers: Event streams at once.
    """
    return Guard(_Service(control, access, ping, max_followers).app, access)


class _Service:
    """The routes."""

    def __init__(self, control: Control, access: Access, ping: float, max_followers: int) -> None:
        self._control = control
        self._access = access
        self._ping = ping
        self._max_followers = max_followers
        self._followers = 0
        self._metrics = Metrics(control.journal)
        self._mcp: tuple[list[AgentView], Any] | None = None  # the server, and the agents that it offers
        self.app = Starlette(
            routes=[
                *make_routes(OPERATIONS, self),
                Route("/mcp", self.mcp, methods=["POST"]),
                Route("/static/{path:path}", self.static, methods=["GET"]),
            ],
            exception_handlers={RepertoryError: _explain, HTTPException: _refuse},
        )
        self.app.router.redirect_slashes = False

    # --- looking ------------------------------------------------------------------------------------------

    async def page(self, request: Request) -> Response:
        """The page for a browser. It holds no data, so it needs no token."""
        return HTMLResponse(PAGE, headers={"content-security-policy": CONTENT_SECURITY_POLICY})

    async def static(self, request: Request) -> Response:
        """What the page is made of. The path has a digest of it all, so a browser may keep it for good."""
        found = STATIC_FILES.get(request.path_params["path"])
        if found is None:
            raise HTTPException(404, "the page has no such file; load the page again")
        body, media_type = found
        return Response(body, media_type=media_type, headers={"cache-control": "public, max-age=31536000, immutable"})

    async def openapi(self, request: Request) -> Json:
        """This description of the service, for machines."""
        agents = self._control.agents()
        names, root = [agent.name for agent in agents], any(agent.root is not None for agent in agents)
        return document(OPERATIONS, agents=names, root=root)

    async def health(self, request: Request) -> Annotated[Response, Health]:
        """What is wrong, as it was seen last: asking waits for nothing."""
        monitor = self._control.monitor
        failed = monitor.state() == "fail"
        health = Health(
            status="fail" if failed else "ok",
            seq=monitor.seq,
            durability=self._control.journal.durability,
            checks=monitor.checks(),
        )
        return as_json(health, 503 if failed else 200)

    async def vacuum(self, request: Request) -> Space:
        """Give a part of what removed runs have left back to the disk: 8 MiB, so that nobody waits long for it."""
        journal = self._control.journal
        if not isinstance(journal, SqliteJournal):
            raise HTTPException(409, "only a database in a file has space to give back")
        size, free = await journal.give_back(_GIVEN_BACK)
        return Space(size=size, free=free)

    async def metrics(self, request: Request) -> Response:
        """The figures of all runs as Prometheus reads them."""
        machines = await self._control.supervisor.machines()
        return Response(await self._metrics.read(machines), media_type=CONTENT_TYPE)

    async def service(self, request: Request) -> ServiceView:
        """Who answers here."""
        return await self._control.describe()

    async def agents(self, request: Request) -> list[AgentView]:
        """What can be started."""
        return self._control.agents()

    async def overview(self, request: Request, *, query: OverviewQuery) -> Overview:
        """The newest trees of runs with their figures, and what was spent since midnight, or since a time."""
        machines = await self._control.supervisor.machines()
        return await self._control.runs.read_overview(query, read_only=self._access.read_only, machines=machines)

    async def stats(self, request: Request, *, query: StatsQuery) -> Json:
        """What a run saw and cost, as ``repertory stats --json`` says it; of the newest one where none is named."""
        row = await (self._control.journal.read_run(query.run) if query.run else self._control.newest())
        return await read_stats(self._control.journal, row, tree=bool(query.tree))

    async def list_runs(self, request: Request, *, query: RunsQuery) -> RunList:
        """The newest trees of runs, with ``figures=yes`` what each has done and cost."""
        return await self._control.runs.list_runs(query)

    async def reload(self, request: Request) -> Reloaded:
        """Read the company file again. Where it is wrong, nothing changes, and the error says what and where."""
        try:
            return Reloaded(notes=self._control.reload())
        except ConfigurationError as error:  # the file is wrong, not the request
            raise HTTPException(422, str(error)) from error

    async def schedules(self, request: Request) -> list[ScheduleView]:
        """The schedules of the company file, with when they are due next and what became of the last time."""
        return await self._control.scheduler.list()

    async def queue(self, request: Request) -> list[QueuedRun]:
        """The runs that wait to begin, in the order in which they do, each with what it waits for."""
        return await self._control.supervisor.queue()

    async def read_run(self, request: Request) -> RunDetail:
        """One run with its figures, its tree and its answer."""
        return await self._control.read_run(request.path_params["run_id"])

    async def read_result(self, request: Request, *, query: ResultQuery) -> Annotated[Response, RunEnded]:
        """How a run ended. With ``wait`` the answer comes once it has, or after so many seconds.

        202 says that it has not ended yet: ask again.
        """
        gone = partial(_wait_gone, request.receive)
        ended = await self._control.wait_ended(request.path_params["run_id"], query.wait, gone=gone)
        return as_json(ended) if ended.state in FINAL_STATES else as_json(ended, 202, {"retry-after": "1"})

    async def events(
        self, request: Request, *, query: EventsQuery, headers: EventHeaders
    ) -> Annotated[Response, list[Json]]:
        """Events from the journal, then as they happen; with ``follow=no`` a page of those that did."""
        run_id = request.path_params.get("run_id")
        if run_id is not None:
            run_id = await self._control.find_id(run_id)
        after = max(headers.last_event_id, query.after)
        if query.follow == "no":
            before = query.before or None
            events = await self._control.journal.read_events(run_id, after=after, before=before, limit=EVENTS)
            return as_json([event_view(sequence, event) for sequence, event in events])
        self._check_followers()
        follower = Follower(self._control.feed, run_id, after=after, ping=self._ping)
        return _EventStream(follower, self._count_followers)

    async def record(self, request: Request, *, query: RecordQuery) -> Json:
        """The record of a run: so many of its entries from a position on."""
        stop = query.start + query.limit
        return await read_record(self._control.journal, await self._row_of(request), start=query.start, stop=stop)

    async def inspect(self, request: Request, *, query: InspectQuery) -> Json:
        """What the model saw at one call, or at the ``newest``, beside the record and the decisions that made it so."""
        call = request.path_params["call"]
        number = None if call == "newest" else int(call) if re.fullmatch("[0-9]{1,18}", call) else 0  # there is no 0
        row, iteration = await self._row_of(request), query.iteration or None
        return await read_inspection(self._control.journal, row, iteration, call=number)

    # --- what a run has kept ------------------------------------------------------------------------------

    async def memory(self, request: Request, *, query: MemoryQuery) -> MemoryView:
        """What a run sees of memory: the newest items, or the best for some words."""
        scope_id, window = await self._scope_of(request), {"skip": query.skip, "limit": query.limit}
        return await read_memory(self._control.journal, scope_id, text=query.text, **window)

    async def item(self, request: Request, *, query: ItemQuery) -> Annotated[Response, Json]:
        """One item of it, whole."""
        return as_json(await read_item(self._control.journal, await self._scope_of(request), query.id))

    async def payload(self, request: Request, *, query: VersionQuery) -> Json:
        """A run's payload as it is, or as it was in a version."""
        return await read_payload(self._control.journal, await self._row_of(request), query.version or None)

    async def payload_history(self, request: Request) -> Json:
        """Who changed what in it."""
        return await read_payload_history(self._control.journal, await self._row_of(request))

    async def contents(self, request: Request, *, query: WindowQuery) -> ContentList:
        """What a run and those below it have stored, oldest first."""
        run_id = (await self._row_of(request)).started.run_id
        found = await read_contents(self._control.journal, run_id, skip=query.skip, limit=query.limit + 1)
        return ContentList(run_id=run_id, contents=found[: query.limit], more=len(found) > query.limit)

    async def content(self, request: Request, *, query: PageQuery) -> Json:
        """One page of one of them."""
        run_id, wanted = (await self._row_of(request)).started.run_id, request.path_params["content_id"]
        return await read_content_page(self._control.journal, run_id, wanted, query.page)

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
        read = partial(self._control.stream, await self._control.find_id(request.path_params["run_id"]))
        self._check_followers()
        return _EventStream(Along(self._control.feed, read, ping=self._ping), self._count_followers)

    def _check_followers(self) -> None:
        if self._followers >= self._max_followers:
            raise HTTPException(503, f"{self._max_followers} event streams are open already", {"retry-after": "5"})

    def _count_followers(self, more: int) -> None:
        self._followers += more

    async def mcp(self, request: Request) -> Response:
        """A request of an MCP client: the agents and their runs as tools. What it may ask, that protocol describes."""
        body = await read_bytes(request)
        self._check_followers()
        agents = self._control.agents()
        if self._mcp is None or self._mcp[0] != agents:  # to describe an agent as a tool takes about a millisecond
            try:
                self._mcp = agents, serve_tools(run_tools(self._control), instructions=ABOUT)
            except ConfigurationError as error:
                raise HTTPException(501, str(error)) from None
        return _McpAnswer(self._mcp[1], body, self._count_followers)

    # --- steering -----------------------------------------------------------------------------------------

    async def open_session(self, request: Request) -> Response:
        """Give a browser its cookie for the code in its link, or for the token."""
        if not self._access.exchange(request.headers.get("authorization")):
            raise HTTPException(401, "the code was used already or is wrong; see docs/service.md for another way in")
        answer = Response(status_code=204)
        answer.set_cookie(self._access.cookie_name, self._access.cookie, httponly=True, samesite="strict", path="/")
        return answer

    async def start_run(self, request: Request, *, headers: StartHeaders, body: NewRun) -> Annotated[Response, Started]:
        """Start a run; it is durable when the answer comes.

        With a ``run_id`` or an ``Idempotency-Key`` it is safe to repeat: there is one run, whose id every answer has.
        """
        if headers.idempotency_key and body.run_id is not None:
            raise HTTPException(422, "either run_id or Idempotency-Key can make it safe to repeat, got both")
        run_id = await self._control.start(
            body.agent,
            body.task,
            root=body.root,
            payload=body.payload,
            run_id=body.run_id,
            key=headers.idempotency_key,
            priority=body.priority,
            client=body.client,
        )
        return as_json(Started(id=run_id), 201, {"location": f"/runs/{run_id}"})

    async def send(self, request: Request, *, body: NewMessage) -> Accepted:
        """Say something to a run; it is durable when the answer comes."""
        await self._control.send(request.path_params["run_id"], body.text, message_id=body.message_id)
        return Accepted()

    async def approvals(self, request: Request) -> Waiting:
        """The tool calls of all runs under way that wait for an approval or for their result."""
        return Waiting(waiting=self._control.supervisor.waiting())

    async def approve(self, request: Request, *, body: Approval) -> Accepted:
        """Allow a call that waits; it is durable when the answer comes. Safe to repeat, as the two below."""
        await self._control.approve(**request.path_params, arguments=body.arguments, by=body.by)
        return Accepted()

    async def deny(self, request: Request, *, body: Denial) -> Accepted:
        """Deny a call that waits; it is durable when the answer comes."""
        await self._control.deny(**request.path_params, reason=body.reason, by=body.by)
        return Accepted()

    async def give_result(self, request: Request, *, body: GivenResult) -> Accepted:
        """Bring the result of a call that waits for it; it is durable when the answer comes."""
        result = body.result
        if body.content is not None:
            if result is not None:
                raise HTTPException(422, "either result or content can be given, got both")
            size = sum(len(part.data) for part in body.content if isinstance(part, GivenMedia))
            try:
                result = await compute(partial(_blocks_of, body.content), size=size)
            except ValueError as error:
                raise HTTPException(422, f"the content cannot be shown to a model: {error}") from None
        await self._control.tell(**request.path_params, verb="give_result", result=result, is_error=body.is_error)
        return Accepted()

    async def stop(self, request: Request) -> Accepted:
        """End a run at its next boundary."""
        await self._control.tell(request.path_params["run_id"], "stop")
        return Accepted()

    async def kill(self, request: Request) -> Accepted:
        """End a run at once."""
        await self._control.tell(request.path_params["run_id"], "kill")
        return Accepted()

    async def pause(self, request: Request) -> Accepted:
        """Hold a run at its next boundary."""
        await self._control.tell(request.path_params["run_id"], "pause")
        return Accepted()

    async def resume(self, request: Request) -> Accepted:
        """Let a paused run go on, a stopped or failed one, or one of an earlier process."""
        await self._control.resume(request.path_params["run_id"])
        return Accepted()

    async def webhooks(self, request: Request, *, query: AttemptsQuery) -> WebhookList:
        """What webhooks were told of, and what became of it."""
        found = await self._control.journal.read_webhooks(before=query.before or None, limit=query.limit)
        return WebhookList(attempts=[attempt_view(*each) for each in found])

    async def redeliver(self, request: Request, *, body: Redelivery) -> WebhookAttempt:
        """Tell a webhook of a change of state again, now, whatever became of it before."""
        tried = await self._control.deliveries.redeliver(body.change, body.url)
        newest = await self._control.journal.read_webhooks(limit=MAX_LISTED)  # others may have been told meanwhile
        return attempt_view(next((seq for seq, each in newest if each == tried), 0), tried)

    async def retry(self, request: Request) -> Accepted:
        """Let a run go on that failed or was stopped, from where it ended."""
        await self._control.retry(request.path_params["run_id"])
        return Accepted()

    async def fork(self, request: Request, *, body: NewFork) -> Annotated[Response, Started]:
        """Start a run that begins as this one did up to an iteration, beside it; 200 where it was there already."""
        return await self._fork(request, body, rewind=False)

    async def rewind(self, request: Request, *, body: NewRewind) -> Annotated[Response, Started]:
        """End a run, and start one in its place that begins as it did up to an iteration; 200 as for a fork."""
        return await self._fork(request, body, rewind=True)

    async def _fork(self, request: Request, body: NewFork | NewRewind, *, rewind: bool) -> Response:
        origin, text, new_id = request.path_params["run_id"], body.text, body.run_id
        try:
            run_id, is_new = await self._control.fork(origin, body.iteration, text=text, new_id=new_id, rewind=rewind)
        except RunExists as error:
            raise HTTPException(409, str(error)) from error
        return as_json(Started(id=run_id), 201 if is_new else 200, {"location": f"/runs/{run_id}"})

    async def remove(self, request: Request) -> Response:
        """Take a run that has ended, and all below it, out of the journal for good; by its whole id."""
        await self._control.remove(request.path_params["run_id"])
        return Response(status_code=204)


_STREAM: Final = "text/event-stream"
_JSON: Final = "application/json"
_RUN: Final = "/runs/{run_id}"
_CALL: Final = "/runs/{run_id}/calls/{call_id}"

OPERATIONS: Final[tuple[Operation, ...]] = (
    get("/", _Service.page, media=("text/html",)),
    get("/openapi.json", _Service.openapi),
    post("/session", _Service.open_session, status=204),
    get("/healthz", _Service.health, also=(503,)),
    post("/vacuum", _Service.vacuum, errors=(409,)),
    get("/metrics", _Service.metrics, media=("text/plain",)),
    get("/service", _Service.service),
    get("/agents", _Service.agents),
    get("/events", _Service.events, media=(_STREAM, _JSON)),
    get("/overview", _Service.overview),
    get("/stats", _Service.stats, errors=(404,)),
    get("/runs", _Service.list_runs, errors=(404,)),
    post("/runs", _Service.start_run, status=201, errors=(409, 422, 429)),
    get("/queue", _Service.queue),
    get("/schedules", _Service.schedules),
    post("/reload", _Service.reload, errors=(422,)),
    get(_RUN, _Service.read_run, errors=(404,)),
    get(f"{_RUN}/result", _Service.read_result, also=(202,), errors=(404,)),
    get(f"{_RUN}/events", _Service.events, media=(_STREAM, _JSON), errors=(404,)),
    get(f"{_RUN}/record", _Service.record, errors=(404,)),
    get(f"{_RUN}/requests/{{call}}", _Service.inspect, errors=(404,)),
    get(f"{_RUN}/memory", _Service.memory, errors=(404,)),
    get(f"{_RUN}/memory/item", _Service.item, errors=(404,)),
    get(f"{_RUN}/payload", _Service.payload, errors=(404,)),
    get(f"{_RUN}/payload/history", _Service.payload_history, errors=(404,)),
    get(f"{_RUN}/contents", _Service.contents, errors=(404,)),
    get(f"{_RUN}/contents/{{content_id:path}}", _Service.content, errors=(404,)),
    get(f"{_RUN}/stream", _Service.stream, media=(_STREAM,), errors=(404,)),
    post(f"{_RUN}/messages", _Service.send, status=202, errors=(404, 409, 422)),
    get("/webhooks", _Service.webhooks),
    post("/webhooks/redeliver", _Service.redeliver, errors=(404,)),
    get("/approvals", _Service.approvals),
    post(f"{_CALL}/approve", _Service.approve, status=202, errors=(404, 409)),
    post(f"{_CALL}/deny", _Service.deny, status=202, errors=(404, 409)),
    post(f"{_CALL}/result", _Service.give_result, status=202, errors=(404, 409, 422), most=MAX_GIVEN),
    post(f"{_RUN}/stop", _Service.stop, status=202, errors=(404, 409)),
    post(f"{_RUN}/kill", _Service.kill, status=202, errors=(404, 409)),
    post(f"{_RUN}/pause", _Service.pause, status=202, errors=(404, 409)),
    post(f"{_RUN}/resume", _Service.resume, status=202, errors=(404, 409, 422, 429)),
    post(f"{_RUN}/retry", _Service.retry, status=202, errors=(404, 409, 422, 429)),
    post(f"{_RUN}/fork", _Service.fork, status=201, also=(200,), errors=(404, 409, 422, 429)),
    post(f"{_RUN}/rewind", _Service.rewind, status=201, also=(200,), errors=(404, 409, 422, 429)),
    delete(_RUN, _Service.remove, status=204, errors=(404, 409)),
)


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


class _McpAnswer(Response):
    """What the MCP server says to one request; counted while it lasts, as it may be a stream."""

    def __init__(self, server: Any, body: bytes, count: Callable[[int], None]) -> None:
        super().__init__()
        self._server = server
        self._messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def receive_again() -> Message:
            return self._messages.pop() if self._messages else await receive()

        self._count(+1)
        try:
            await answer_http(self._server, scope, receive_again, send)
        finally:
            self._count(-1)


async def _wait_gone(receive: Receive) -> None:
    """Wait until the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _blocks_of(content: Sequence[GivenText | GivenMedia]) -> list[Block]:
    """Content as the blocks that a model is shown. Raises ``ValueError`` where it would not be."""
    return [
        media_block(part.data, part.media_type, title=part.title) if isinstance(part, GivenMedia) else Text(part.text)
        for part in content
    ]


async def _explain(request: Request, error: Exception) -> Response:
    status = next(status for kind, status in _STATUS if isinstance(error, kind))
    headers = {"retry-after": f"{math.ceil(error.retry_after)}"} if isinstance(error, QueueFull) else None
    return as_json({"error": str(error)}, status, headers)


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return as_json({"error": error.detail}, error.status_code, error.headers)
