"""HTTP operations that change nothing: look at runs, follow them, wait for them, and read what they have stored."""

from __future__ import annotations

import re
from contextlib import nullcontext
from functools import partial
from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive

from repertory.llm.messages import Json
from repertory.record.records import FINAL_STATES
from repertory.service.control import Control
from repertory.service.feed import Follower, ModelStream
from repertory.service.memories import MemoryView, read_item, read_memory
from repertory.service.metrics import CONTENT_TYPE, Metrics
from repertory.service.reports import (
    read_content_page,
    read_contents,
    read_inspection,
    read_payload,
    read_payload_history,
    read_record,
    read_stats,
)
from repertory.service.requests import Count, EventHeaders, Listed, RunsQuery, Seconds, Trees
from repertory.service.routes import LongRequests, LongResponse, Operation, as_json, get
from repertory.service.schedules import ScheduleView
from repertory.service.views import (
    AgentView,
    ContentList,
    Health,
    Overview,
    RunDetail,
    RunEnded,
    RunList,
    ServiceView,
    Waiting,
    WebhookList,
    attempt_view,
    event_view,
)
from repertory.supervisor import QueuedRun

EVENTS: Final = 500  # in one answer that is not a stream

_Iteration: TypeAlias = Annotated[Count, Meta(description="Of ``newest``: at this iteration; 0 for the newest one.")]
_Entries: TypeAlias = Annotated[
    Count, Meta(description="How many entries ``record`` has, the newest, beside older ones that are shown; 0 for all.")
]
_Before: TypeAlias = Annotated[
    Count, Meta(description="With ``follow=no``: the last events before this; 0 for the first.")
]


class ReadOperations:
    """The handlers; see ``create_app``."""

    def __init__(self, control: Control, long_requests: LongRequests, *, ping: float, read_only: bool) -> None:
        self._control = control
        self._journal = control.journal
        self._long_requests = long_requests
        self._ping = ping
        self._read_only = read_only
        self._metrics = Metrics(control.journal)

    async def health(self) -> Annotated[Response, Health]:
        """The last results of the health checks: asking waits for nothing."""
        monitor = self._control.monitor
        checks = monitor.checks()
        status: Literal["ok", "fail"] = "fail" if any(check.state == "fail" for check in checks) else "ok"
        health = Health(status=status, seq=monitor.seq, durability=self._journal.durability, checks=checks)
        return as_json(health, 200 if status == "ok" else 503)

    async def metrics(self) -> Response:
        """The figures of all runs as Prometheus reads them."""
        machines = await self._control.supervisor.machines()
        agents = [each.name for each in self._control.offers.list()]
        return Response(await self._metrics.read(machines, agents=agents), media_type=CONTENT_TYPE)

    async def service(self) -> ServiceView:
        """The service that answers here."""
        return await self._control.describe()

    async def agents(self) -> list[AgentView]:
        """The agents that can be started."""
        return self._control.offers.list()

    async def overview(self, *, limit: Trees = 200, since: Count = 0) -> Overview:
        """The newest trees and older ones that have not ended or that failed within a day, with their figures; and what
        was done and spent since midnight or a given time.
        """
        machines = await self._control.supervisor.machines()
        return await self._control.runs.read_overview(limit, since=since, read_only=self._read_only, machines=machines)

    async def stats(self, *, run: str = "", tree: Annotated[int, Meta(ge=0, le=1)] = 0) -> Json:
        """What a run saw and cost, as in ``repertory stats --json``; of the newest run if none is named."""
        return await read_stats(self._journal, run or await self._control.newest(), tree=bool(tree))

    async def list_runs(self, *, query: RunsQuery) -> RunList:
        """The newest trees of runs; with ``figures=yes`` also what each has done and cost."""
        return await self._control.runs.list_runs(query)

    async def schedules(self) -> list[ScheduleView]:
        """The schedules of the company file, with their next due time and the outcome of the last one."""
        return await self._control.scheduler.list()

    async def queue(self) -> list[QueuedRun]:
        """The runs that wait to begin, in the order in which they will, each with what it waits for."""
        return await self._control.supervisor.queue()

    async def read_run(self, run_id: str) -> RunDetail:
        """One run with its figures, its tree and its answer."""
        return await self._control.read_run(run_id)

    async def read_result(self, request: Request, run_id: str, *, wait: Seconds = 0) -> Annotated[Response, RunEnded]:
        """How a run ended. With ``wait`` the answer comes once the run has ended, or after that many seconds.

        202 means that it has not ended yet: ask again.
        """
        with self._long_requests.slot() if wait else nullcontext():
            ended = await self._control.wait_ended(run_id, wait, gone=partial(_wait_gone, request.receive))
        return as_json(ended) if ended.state in FINAL_STATES else as_json(ended, 202, {"retry-after": "1"})

    async def events(
        self,
        run_id: str | None = None,
        *,
        after: Count = 0,
        before: _Before = 0,
        follow: Literal["yes", "no"] = "yes",
        headers: EventHeaders,
    ) -> Annotated[Response, list[Json]]:
        """Events from the journal, then as they happen; with ``follow=no`` one page of past events."""
        if run_id is not None:
            run_id = await self._control.find_id(run_id)
        after = max(headers.last_event_id, after)
        if follow == "no":
            events = await self._journal.read_events(run_id, after=after, before=before or None, limit=EVENTS)
            return as_json([event_view(sequence, event) for sequence, event in events])
        if after:  # a journal that was restored from a backup is behind its clients, which would hear nothing for long
            after = min(after, await self._journal.last_event())
        return self._stream_of(Follower(self._control.feed, run_id, after=after, ping=self._ping))

    async def stream(self, run_id: str) -> Response:
        """What a run says, as it streams in, until the end of its turn."""
        read = partial(self._control.stream, await self._control.find_id(run_id))
        return self._stream_of(ModelStream(self._control.feed, read, ping=self._ping))

    def _stream_of(self, follower: Follower | ModelStream) -> Response:
        answer = StreamingResponse(follower, media_type=_STREAM, headers={"x-accel-buffering": "no"})
        return LongResponse(self._long_requests, answer)

    async def record(self, run_id: str, *, start: Count = 0, limit: Listed = 100) -> Json:
        """The record of a run: up to ``limit`` of its entries from a position on."""
        return await read_record(self._journal, run_id, start=start, stop=start + limit)

    async def inspect(self, run_id: str, call: str, *, iteration: _Iteration = 0, entries: _Entries = 0) -> Json:
        """What the model saw at one call, or at the ``newest``, with the record and the decisions behind it."""
        number = None if call == "newest" else int(call) if re.fullmatch("[0-9]{1,18}", call) else 0  # there is no 0
        return await read_inspection(self._journal, run_id, iteration or None, call=number, newest=entries)

    async def approvals(self) -> Waiting:
        """The tool calls of all runs under way that wait for an approval or for their result."""
        return Waiting(waiting=self._control.supervisor.waiting())

    async def webhooks(self, *, before: Count = 0, limit: Listed = 100) -> WebhookList:
        """What was sent to webhooks, and with what outcome."""
        found = await self._journal.read_webhooks(before=before or None, limit=limit)
        return WebhookList(attempts=[attempt_view(*each) for each in found])

    # --- what a run has kept ------------------------------------------------------------------------------

    async def memory(self, run_id: str, *, text: str = "", skip: Count = 0, limit: Listed = 50) -> MemoryView:
        """What a run sees of memory: the newest items, or the best matches for some words."""
        scope_id = await self._control.scope_of(run_id)
        return await read_memory(self._journal, scope_id, text=text, skip=skip, limit=limit)

    async def item(self, run_id: str, *, id: Annotated[str, Meta(min_length=1)]) -> Annotated[Response, Json]:  # noqa: A002
        """One whole item of a run's memory."""
        # Its id is not part of the path, because it may look like a path that leads elsewhere.
        return as_json(await read_item(self._journal, await self._control.scope_of(run_id), id))

    async def payload(self, run_id: str, *, version: Count = 0) -> Json:
        """A run's payload as it is, or as it was in a version."""
        return await read_payload(self._journal, run_id, version or None)

    async def payload_history(self, run_id: str) -> Json:
        """Who changed what in a run's payload."""
        return await read_payload_history(self._journal, run_id)

    async def contents(self, run_id: str, *, skip: Count = 0, limit: Listed = 50) -> ContentList:
        """What a run and those below it have stored, oldest first."""
        run_id = await self._control.find_id(run_id)
        found = await read_contents(self._journal, run_id, skip=skip, limit=limit + 1)
        return ContentList(run_id=run_id, contents=found[:limit], more=len(found) > limit)

    async def content(self, run_id: str, content_id: str, *, page: Count = 1) -> Json:
        """One page of a stored content."""
        return await read_content_page(self._journal, await self._control.find_id(run_id), content_id, page)


async def _wait_gone(receive: Receive) -> None:
    """Wait until the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


_STREAM: Final = "text/event-stream"
_JSON: Final = "application/json"
_RUN: Final = "/runs/{run_id}"

READ_OPERATIONS: Final[tuple[Operation, ...]] = (
    get("/healthz", ReadOperations.health, also=(503,)),
    get("/metrics", ReadOperations.metrics, media=("text/plain",)),
    get("/service", ReadOperations.service),
    get("/agents", ReadOperations.agents),
    get("/events", ReadOperations.events, media=(_STREAM, _JSON)),
    get("/overview", ReadOperations.overview),
    get("/stats", ReadOperations.stats, errors=(404,)),
    get("/runs", ReadOperations.list_runs, errors=(404,)),
    get("/queue", ReadOperations.queue),
    get("/schedules", ReadOperations.schedules),
    get("/approvals", ReadOperations.approvals),
    get("/webhooks", ReadOperations.webhooks),
    get(_RUN, ReadOperations.read_run, errors=(404,)),
    get(f"{_RUN}/result", ReadOperations.read_result, also=(202,), errors=(404,)),
    get(f"{_RUN}/events", ReadOperations.events, media=(_STREAM, _JSON), errors=(404,)),
    get(f"{_RUN}/stream", ReadOperations.stream, media=(_STREAM,), errors=(404,)),
    get(f"{_RUN}/record", ReadOperations.record, errors=(404,)),
    get(f"{_RUN}/requests/{{call}}", ReadOperations.inspect, errors=(404,)),
    get(f"{_RUN}/memory", ReadOperations.memory, errors=(404,)),
    get(f"{_RUN}/memory/item", ReadOperations.item, errors=(404,)),
    get(f"{_RUN}/payload", ReadOperations.payload, errors=(404,)),
    get(f"{_RUN}/payload/history", ReadOperations.payload_history, errors=(404,)),
    get(f"{_RUN}/contents", ReadOperations.contents, errors=(404,)),
    get(f"{_RUN}/contents/{{content_id:path}}", ReadOperations.content, errors=(404,)),
)
