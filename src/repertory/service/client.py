"""Client of a service on this machine: at its unix socket, or at its port with the token that it keeps."""

from __future__ import annotations

import os
import shlex
import ssl
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

import anyio
import httpx2
import msgspec

from repertory._ids import new_id
from repertory._json_text import json_bytes
from repertory._postgres_address import PostgresAddress
from repertory.errors import (
    ConfigurationError,
    QueueFull,
    RepertoryError,
    RunError,
    RunNotFound,
    ServiceGone,
    ServiceUnavailable,
)
from repertory.llm.messages import Json, encode_block
from repertory.llm.retry import asked_delay
from repertory.runs.streaming import Piece
from repertory.runs.waiting_calls import WaitingCall
from repertory.service.places import Place
from repertory.service.requests import MAX_TREES, UNFINISHED
from repertory.service.tokens import default_token_file, read_token
from repertory.service.views import (
    Accepted,
    EventView,
    Health,
    Reloaded,
    RunDetail,
    RunEnded,
    RunList,
    ServiceView,
    Space,
    Started,
    Waiting,
    WebhookAttempt,
)
from repertory.tools.media import Media

T = TypeVar("T")

GREETING: Final = 4.0  # seconds until a service must say who it is: that needs only its event loop
ANSWER: Final = 6.0  # seconds for everything else, so that no command waits longer than ten for a service that hangs
WHOLE: Final = 60.0  # seconds for what is put together from a whole record, once the service has shown that it answers
REDELIVERY: Final = 35.0  # seconds; the webhook has fifteen to answer, as it has for the attempt before
SILENCE: Final = 40.0  # seconds without a sign of life from a stream, which sends one every 15
_ERRORS: Final[Mapping[int, type[RepertoryError]]] = {
    **dict.fromkeys((400, 401, 403, 415, 421), ConfigurationError),
    404: RunNotFound,
    **dict.fromkeys((409, 422), RunError),
    503: ServiceUnavailable,
}


class _Refused(msgspec.Struct):
    error: str


class ServiceClient:
    """Talks to the one service at a place. Its methods raise the same errors as the service's own."""

    service: ServiceView

    def __init__(self, http: httpx2.AsyncClient, place: Place) -> None:
        self._http = http
        self.place = place

    async def greet(self) -> None:
        """Find out who serves. Raises ``ServiceUnavailable``."""
        self.service = await self._ask("GET", "/service", ServiceView, within=GREETING)

    @property
    def database(self) -> str:
        """The absolute path of the database that it serves."""
        return self.service.database

    @property
    def _where(self) -> str:
        return f" --db {shlex.quote(self.database)}"

    # --- reading ------------------------------------------------------------------------------------------

    async def ids_with(self, part: str) -> list[str]:
        """The ids of all runs in trees with a run whose id has this part; only itself if it is a whole id, which costs
        one lookup however many runs there are.
        """
        with suppress(RunNotFound):
            if (await self._ask("GET", f"/runs/{_part(part)}/result", RunEnded)).id == part:
                return [part]
        async with aclosing(self._pages(f"&part={_part(part)}")) as pages:
            return [run.id async for page in pages for run in page.runs]

    async def newest_root(self) -> str | None:
        """The id of the newest root; None if there are no runs."""
        runs = (await self._ask("GET", "/runs?limit=1", RunList)).runs
        return runs[0].id if runs else None

    async def newest_resumable(self) -> str | None:
        """The id of the newest run that ``resume`` continues, or a paused one below it; None if there is none."""
        async with aclosing(self._pages(f"&state={UNFINISHED},failed,stopped")) as pages:
            async for page in pages:
                for run in reversed(page.runs):
                    if run.resumable or run.state == "paused":
                        return run.id
        return None

    async def _pages(self, which: str) -> AsyncGenerator[RunList]:
        """The trees that fit, page by page: the newest page first, each oldest first.

        Raises ``RunNotFound`` if all trees of a page were removed before the next one was asked for.
        """
        edges = [""]  # the next page has what is older than the first of these roots that is still there
        while True:
            edge = edges.pop(0)
            before = f"&before={_part(edge)}" if edge else ""
            try:
                found = await self._ask("GET", f"/runs?limit={MAX_TREES}{which}{before}", RunList)
            except RunNotFound:
                if not edges:
                    raise
                continue
            yield found
            if found.next is None:
                return
            edges = [found.next, *(run.id for run in found.runs if run.parent_id is None)]

    async def list_runs(self, limit: int = MAX_TREES) -> RunList:
        """The newest trees of runs, and older ones that have not ended, as many again at most; with their figures.

        All trees if ``limit`` is more than ``MAX_TREES``.
        """
        if limit <= MAX_TREES:
            return await self._ask("GET", f"/runs?figures=yes&unfinished=yes&limit={limit}", RunList)
        async with aclosing(self._pages("&figures=yes")) as pages:
            found = [page async for page in pages]  # the newest first
        return RunList(runs=[run for page in reversed(found) for run in page.runs], seq=found[0].seq, more=0)

    async def read_run(self, run_id: str) -> RunDetail:
        """One run, by its id or an unambiguous beginning of it. Raises ``RunNotFound``."""
        return await self._ask("GET", f"/runs/{_part(run_id)}", RunDetail)

    async def health(self) -> Health:
        """What is wrong; also answered if the service cannot do its work."""
        return await self._ask("GET", "/healthz", Health, also=503)

    async def vacuum(self) -> Space:
        """Give some unused space in the database back to the disk; call again for more."""
        return await self._ask("POST", "/vacuum", Space, body={})

    async def read_stats(self, run_id: str, *, tree: bool) -> Json:
        """What a run saw and cost; with ``tree`` also each run below it."""
        return await self._ask("GET", f"/stats?run={_part(run_id)}&tree={int(tree)}", Json)

    async def read_inspection(self, run_id: str, iteration: int | None, *, newest: int) -> Json:
        """What the model saw at an iteration; see ``reports.read_inspection``."""
        which = f"iteration={iteration or 0}&entries={newest}"
        return await self._ask("GET", f"/runs/{_part(run_id)}/requests/newest?{which}", Json, within=WHOLE)

    async def read_record(self, run_id: str, start: int, stop: int) -> Json:
        """Some entries of a run's record, at most 500, their contents in the format of the Messages API."""
        return await self._ask("GET", f"/runs/{_part(run_id)}/record?start={start}&limit={stop - start}", Json)

    async def waiting(self) -> list[WaitingCall]:
        """The tool calls that wait for an approval or for their result, oldest first."""
        return (await self._ask("GET", "/approvals", Waiting)).waiting

    async def read_events(self, run_id: str | None, *, before: int) -> list[EventView]:
        """The last recorded events of a run, or of all runs, before a number; [] if there are none."""
        events = "/events" if run_id is None else f"/runs/{_part(run_id)}/events"
        return await self._ask("GET", f"{events}?follow=no&before={before}", list[EventView])

    async def follow(self, *, after: int = 0) -> AsyncGenerator[EventView]:
        """Events of all runs after a number, as they happen. Ends when the service does."""
        async with aclosing(self._stream(f"/events?after={after}")) as blocks:
            async for block in blocks:
                yield self._decode(block, EventView)

    async def stream(self, run_id: str) -> AsyncGenerator[Piece]:
        """What a run's model says, as it streams in, until the end of its turn."""
        async with aclosing(self._stream(f"/runs/{_part(run_id)}/stream")) as blocks:
            async for block in blocks:
                yield self._decode(block, Piece)

    # --- changing -----------------------------------------------------------------------------------------

    async def start(self, agent: str, task: str, *, root: str | None = None, attachments: Sequence[Media] = ()) -> str:
        """Start a run; returns its id once it is durable."""
        body = {"agent": agent, "task": task, **_given_all(attachments)} | ({} if root is None else {"root": root})
        return await self._begin("/runs", body)

    async def _begin(self, path: str, body: Mapping[str, Any]) -> str:
        run_id = new_id("run")  # ours, so that it can be named if the answer is lost
        lost = f"; if the run began all the same, it is {run_id}: repertory ps -a{self._where} shows it"
        return (await self._ask("POST", path, Started, {**body, "run_id": run_id}, lost=lost)).id

    async def send(self, run_id: str, text: str, *, attachments: Sequence[Media] = ()) -> None:
        """Send a message to a run; it is durable afterwards."""
        body = {"text": text, **_given_all(attachments)}
        lost = f"; the message may have come all the same: repertory logs {run_id}{self._where} shows it"
        await self._ask("POST", f"/runs/{_part(run_id)}/messages", Accepted, body, lost=lost)

    async def steer(self, run_id: str, verb: str) -> None:
        """``pause``, ``resume``, ``stop`` or ``kill`` a run."""
        await self._ask("POST", f"/runs/{_part(run_id)}/{verb}", Accepted, {})

    async def fork(self, run_id: str, iteration: int | None, *, text: str | None, rewind: bool = False) -> str:
        """Fork a run, or replace it if ``rewind`` is set; returns the new run's id once it is durable."""
        body: dict[str, Any] = {"iteration": iteration, "text": text}
        verb = "rewind" if rewind else "fork"
        return await self._begin(f"/runs/{_part(run_id)}/{verb}", body)

    async def redeliver(self, change: int, url: str | None) -> WebhookAttempt:
        """Send a change of state to a webhook again."""
        return await self._ask(
            "POST", "/webhooks/redeliver", WebhookAttempt, {"change": change, "url": url}, within=REDELIVERY
        )

    async def remove(self, run_id: str) -> None:
        """Remove a run from the database; see ``Supervisor.remove``."""
        await self._ask("DELETE", f"/runs/{_part(run_id)}", type(None))

    async def decide(self, run_id: str, call_id: str, verb: str, body: Mapping[str, Any]) -> None:
        """``approve`` or ``deny`` a call that waits; it is durable afterwards."""
        await self._ask("POST", f"/runs/{_part(run_id)}/calls/{_part(call_id)}/{verb}", Accepted, body)

    async def give_result(
        self, run_id: str, call_id: str, result: Any, *, attachments: Sequence[Media] = (), is_error: bool = False
    ) -> None:
        """Give a call the result that it waits for, with ``attachments`` a text or ""; it is durable afterwards."""
        body = {"result": result, "is_error": is_error}
        if attachments:
            words = [{"type": "text", "text": result}] if result else []
            body = {"content": [*words, *map(_given, attachments)], "is_error": is_error}
        await self._ask("POST", f"/runs/{_part(run_id)}/calls/{_part(call_id)}/result", Accepted, body)

    async def reload(self) -> list[str]:
        """Let the service read its company file again; returns lines about changes that need a restart.

        Raises ``ConfigurationError`` if the file is wrong; then nothing was changed.
        """
        try:
            return (await self._ask("POST", "/reload", Reloaded, {})).notes
        except RunError as error:  # the status 422, which elsewhere concerns a run
            raise ConfigurationError(str(error)) from None

    # --- the wire -----------------------------------------------------------------------------------------

    async def _ask(
        self,
        method: str,
        path: str,
        kind: type[T],
        body: Mapping[str, Any] | None = None,
        *,
        within: float = ANSWER,
        also: int = 200,
        lost: str = "",
    ) -> T:
        sent = None if body is None else json_bytes(body)
        try:
            with anyio.fail_after(within):
                answer = await self._http.request(method, path, content=sent, timeout=within)
        except (httpx2.HTTPError, OSError, TimeoutError) as error:
            raise ServiceGone(f"{_unreachable(self.place, error, within)}{lost}") from error
        if answer.status_code >= 400 and answer.status_code != also:
            _raise_refusal(self.place, answer.status_code, answer.content, answer.headers)
        found: T = self._decode(answer.content or b"null", kind)
        return found

    def _decode(self, said: bytes | str, kind: Any) -> Any:
        try:
            return msgspec.json.decode(said, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ServiceUnavailable(
                f"what answers at {self.place} is no service of this version: {error}; end it, and start another"
            ) from error

    async def _stream(self, path: str) -> AsyncGenerator[str]:
        """The data of an event stream. Raises ``ServiceUnavailable`` if it breaks off or falls silent."""
        try:
            with anyio.fail_after(ANSWER):
                request = self._http.build_request("GET", path, timeout=httpx2.Timeout(ANSWER, read=SILENCE))
                response = await self._http.send(request, stream=True)
            async with aclosing(response):
                if response.status_code >= 400:
                    with anyio.fail_after(ANSWER):
                        _raise_refusal(self.place, response.status_code, await response.aread(), response.headers)
                async for event in httpx2.EventSource(response, max_event_size=None):
                    if event.event in ("bye", "end"):
                        return
                    if event.data and event.event in ("message", "removed"):
                        yield event.data
        except (httpx2.HTTPError, OSError, TimeoutError) as error:
            raise _unreachable(self.place, error) from error


def _given_all(attachments: Sequence[Media]) -> Json:
    return {"attachments": list(map(_given, attachments))} if attachments else {}


def _given(block: Media) -> Json:
    raw = encode_block(block)
    source = raw["source"]
    return {"type": "media", "media_type": source["media_type"], "data": source["data"], "title": raw.get("title", "")}


def _part(name: str) -> str:
    return quote(name, safe="", errors="replace")  # what is no UTF-8, in an argument of a command, names nothing


def _credentials(place: Place) -> dict[str, str]:
    """What a service at a port must be shown; nothing if no service has made a token yet: it will say what it wants."""
    token_file = default_token_file() if place.token_file is None else Path(place.token_file)
    if place.port is None or not os.path.lexists(token_file):
        return {}
    return {"authorization": f"Bearer {read_token(token_file)}"}


@asynccontextmanager
async def open_client(place: Place, *, database: Path | PostgresAddress | None = None) -> AsyncGenerator[ServiceClient]:
    """Connect to a service until the end of the block, and check that it serves the database; None for any.

    Raises:
        ServiceUnavailable: No service answers there, or not in time, or it serves another database.
        ConfigurationError: The token cannot be read, or is wrong.
    """
    headers = {"content-type": "application/json", **_credentials(place)}
    # Ignore the environment: no proxy is needed for a service on this machine, and no certificates.
    plain = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    transport = httpx2.AsyncHTTPTransport(uds=place.socket, verify=plain, trust_env=False)
    base = "http://localhost" if place.port is None else f"http://127.0.0.1:{place.port}"
    async with httpx2.AsyncClient(
        transport=transport, base_url=base, headers=headers, timeout=ANSWER, trust_env=False
    ) as http:
        client = ServiceClient(http, place)
        await client.greet()
        # Another service may listen there by now, if somebody has removed the socket of ours.
        if database is not None and client.database != _in_json(database):
            raise ServiceUnavailable(f"the service at {place} serves {client.database} and not {database}")
        yield client


def _in_json(database: Path | PostgresAddress) -> str:
    """How a service names a database: a path need not be UTF-8, but JSON is."""
    whole = database.resolve() if isinstance(database, Path) else database
    return str(msgspec.json.decode(json_bytes(str(whole))))


def _raise_refusal(place: Place, status: int, body: bytes, headers: Mapping[str, str]) -> None:
    try:
        words = msgspec.json.decode(body, type=_Refused).error
    except (msgspec.DecodeError, UnicodeDecodeError):  # a bare status, of a service that failed, or of something else
        words = f"the service at {place} answered {status}: {body.decode(errors='replace').strip()[:500]!r}"
    if status == 429:
        raise QueueFull(words, retry_after=asked_delay(headers, now=time.time()) or 0.0)
    raise _ERRORS.get(status, RepertoryError)(words)


def _unreachable(place: Place, error: Exception, within: float = SILENCE) -> ServiceGone:
    if isinstance(error, TimeoutError | httpx2.TimeoutException):
        return ServiceGone(
            f"the service at {place} did not answer within {within:g} s; it may hang: try again, else end it (kill, "
            "then kill -9; nothing that was acknowledged is lost) and start repertory serve --resume"
        )
    words = str(error) or type(error).__name__
    return ServiceGone(f"no service answers at {place} ({words}); start one with repertory serve")
