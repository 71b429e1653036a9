"""``repertory logs``: shows the events of runs as they happen, even across a restart of the service."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Final, TypeAlias

import anyio
import msgspec

from repertory._ids import is_in_tree
from repertory._postgres_address import postgres_address
from repertory.cli import output
from repertory.cli.commands import command
from repertory.cli.databases import find_service, open_source, open_source_of
from repertory.cli.live import Progress
from repertory.cli.options import RUN, At, option
from repertory.cli.output import one_line
from repertory.cli.runs import nodes_of
from repertory.errors import RunError, RunNotFound, ServiceGone, ServiceUnavailable
from repertory.record import FINAL_STATES
from repertory.runs.events import ModelAnswered
from repertory.service.client import ServiceClient, open_client
from repertory.service.places import Place, service_of
from repertory.service.views import REMOVED, EventView, event_of

if TYPE_CHECKING:
    from repertory.runs.waiting_calls import WaitingCall
    from repertory.service.sources import RunSource

# Our systemd unit restarts a service after 2 s; an orderly end takes up to 10 s, and opening a large record a bit more.
_RECONNECT: Final = 60.0
_AGAIN: Final = 0.5  # seconds between two attempts

Line: TypeAlias = tuple[EventView, str, str]
"""An event, the name of its agent and its line; "" if there is nothing to say."""

RECONNECT = option(
    "--reconnect SECONDS",
    "How long to wait for a service that went away; 0 for not at all.",
    _RECONNECT,
    min=0,
    max=86_400,
)


@partial(command, backend="trio")
async def logs(
    run_id: str | None = RUN,
    *,
    follow: bool = option("-f, --follow", "Wait for more, until the run ends.", False),
    everything: bool = option("-a, --all", "Show what happened in all runs.", False),
    lines: int = option("-n, --lines N", "Only the last N events so far; 0 for all.", 0, min=0),
    reconnect: float = RECONNECT,
    at: At,
    as_json: bool = option("--json", "Write one JSON object a line: an event.", False),
) -> None:
    """Show what happened in a run and its sub-agents, event by event.

    If the service is restarted meanwhile, the log continues behind the last line.
    """

    def write(event: EventView, agent: str, line: str) -> None:
        if as_json:
            output.print_json({**msgspec.structs.asdict(event), "agent": agent, "line": line}, on_one_line=True)
        elif line:  # of some events there is nothing to say
            output.write(f"{output.timestamp(event.at)}  {one_line(agent):<13} {line}")

    async with AsyncExitStack() as stack:
        found: str | None = None
        if everything:
            source = await stack.enter_async_context(open_source(at))
        else:
            source, found = await stack.enter_async_context(open_source_of(run_id, at))
        scribe = Scribe(source, found)
        seq = (await source.list_runs(0)).seq  # later events are followed
        is_live = found is None or (await source.read_run(found)).run.live
        for line in await scribe.read_past(seq, lines, every=as_json):
            write(*line)
        if not follow or not is_live:
            return

        async def take(event: EventView, _missed: bool) -> bool:
            if scribe.is_ours(event):
                check_there(event, found)
                write(*await scribe.take(event))
            return event.run_id == found and event.type == "StateChanged" and event.body["state"] in FINAL_STATES

        async def tell(words: str) -> None:
            output.say(words)

        await follow_on(scribe, at, take, tell, after=seq, within=reconnect)


async def follow_on(
    scribe: Scribe,
    at: At,
    take: Callable[[EventView, bool], Awaitable[bool]],
    tell: Callable[[str], Awaitable[None]],
    *,
    after: int,
    within: float,
    may_rest: bool = False,
) -> None:
    """Follow the events of all runs, from the service and from those that replace it.

    Args:
        scribe: Reads the events; from the next service once there is one.
        at: The options by which the service was found.
        take: Gets each event once, and whether it happened while no service could be asked; returns whether to end. If
            it raises ``ServiceGone``, it gets the event again from the next service.
        tell: Gets lines for a person.
        after: The number of the event before the first.
        within: Seconds until a service that went away must be back.
        may_rest: Follow the next service also if it does not continue the scribe's run.

    Raises:
        ServiceGone: No service came back in time.
        RunError: The new service does not continue the run.
    """
    async with AsyncExitStack() as stack:
        while True:
            source = scribe.source
            try:
                while scribe.gone.is_set():
                    for event in (page := await source.read_events(None, after=after)):
                        if await take(event, True):
                            return
                        after = event.seq
                    if not page:
                        if scribe.root is not None and not may_rest and isinstance(source, ServiceClient):
                            await _wait_live(source, scribe.root, within=within)
                        scribe.has_come_back()
                async with aclosing(source.follow(None, after=after)) as events:
                    async for event in events:
                        if await take(event, False):
                            return
                        after = event.seq
                if not isinstance(source, ServiceClient):
                    return
                error = ServiceGone(f"the service at {source.place} has ended")
            except ServiceGone as gone:
                error = gone
            assert isinstance(source, ServiceClient)
            scribe.gone.set()
            await tell(f"the service at {source.place} went away; waiting up to {within:g} s for it")
            scribe.source = await _find_again(at, source, stack, error, within=within)
            await tell(f"the service at {scribe.source.place} answers")


# --- a service that went away -----------------------------------------------------------------------------


async def _find_again(
    at: At, gone: ServiceClient, stack: AsyncExitStack, error: ServiceGone, *, within: float
) -> ServiceClient:
    """Wait until the service of a database is back, wherever it listens then, and connect to it.

    Args:
        at: The options by which the service was found.
        gone: The client of the service that went away.
        stack: Holds the new client; what it held before is closed.
        error: How the service went away.
        within: Seconds until it must be back.

    Raises:
        ServiceGone: It was not back in time.
    """

    def look() -> Place | None:
        database = postgres_address(gone.database) or gone.database
        beside = None if at.is_service_named else service_of(database)
        return beside or find_service(at)

    deadline = anyio.current_time() + within
    while anyio.current_time() < deadline:
        await stack.aclose()
        try:
            place = await anyio.to_thread.run_sync(look)
            if place is not None:
                client = await stack.enter_async_context(open_client(place))
                if client.database == gone.database:
                    return client
        except ServiceUnavailable:
            pass
        await anyio.sleep(_AGAIN)
    waited = f", and none came back within {within:g} s" if within else ""
    raise ServiceGone(
        f"{error}{waited}; what was acknowledged is on record, and repertory serve --resume or repertory up "
        "continues it"
    )


async def _wait_live(client: ServiceClient, run_id: str, *, within: float) -> None:
    """Wait until a service that has just started continues a run, unless the run has ended.

    Raises:
        RunError: The service does not continue it.
    """
    deadline = anyio.current_time() + within
    while True:
        await client.greet()
        may_come = client.service.resuming and anyio.current_time() < deadline
        run = (await client.read_run(run_id)).run
        if run.live or run.state in FINAL_STATES:
            return
        if not may_come:
            raise RunError(
                f"the service at {client.place} does not continue {run_id}, which is {run.state}; "
                f"repertory resume {run_id} makes it do so"
            )
        await anyio.sleep(_AGAIN)


# --- lines of events --------------------------------------------------------------------------------------


class Scribe:
    """Turns events into lines.

    Attributes:
        source: Where the events are read.
        root: The run whose events are shown, with those of its sub-agents; None for all runs.
        gone: Set while the service has gone away.
        back: Set once the next one is followed, and replaced.
    """

    def __init__(self, source: RunSource, root: str | None) -> None:
        self.source = source
        self.root = root
        self.gone = anyio.Event()
        self.back = anyio.Event()
        self._agents: dict[str, str] = {}
        self._progress = Progress()

    def is_ours(self, of: EventView | WaitingCall) -> bool:
        """Whether an event or a call belongs to one of the runs."""
        return self.root is None or is_in_tree(of.run_id, self.root)

    def has_come_back(self) -> None:
        """A service is followed again, and everything before was shown."""
        self.gone, back, self.back = anyio.Event(), self.back, anyio.Event()
        back.set()

    async def wait_back(self, *, within: float = 0.0) -> bool:
        """If the service went away, or does so in so many seconds, wait for the next one; whether it did."""
        gone, back = self.gone, self.back
        with anyio.move_on_after(within):
            await gone.wait()
        if gone.is_set():
            await back.wait()
        return gone.is_set()

    async def read_past(self, upto: int, lines: int, *, every: bool) -> list[Line]:
        """Take in the events up to a number.

        Args:
            upto: The number.
            lines: How many of the last lines are wanted; 0 for all. Of all runs, no more events are read than needed.
            every: Whether events of which there is nothing to say count, too.
        """
        ids: Sequence[str | None] = [None]
        if self.root is not None:
            ids = [node.run.id for node in nodes_of((await self.source.read_run(self.root)).tree)]
        elif not lines:
            self._agents = {run.id: run.agent for run in (await self.source.list_runs(sys.maxsize)).runs}
        least = sys.maxsize if self.root is not None or not lines else lines
        while True:
            events = [event for run_id in ids for event in await self._read_last(run_id, upto, least)]
            self._progress = Progress()
            told = [await self.take(event) for event in sorted(events, key=attrgetter("seq")) if self.is_ours(event)]
            said = [line for line in told if every or line[2]]
            if len(said) >= lines or len(events) < least:
                return said[-lines:]
            least *= 4

    async def _read_last(self, run_id: str | None, upto: int, least: int) -> list[EventView]:
        pages: list[list[EventView]] = []
        count, before = 0, upto + 1
        while count < least and (page := await self.source.read_events(run_id, before=before)):
            pages.append(page)
            count, before = count + len(page), page[0].seq
        return [event for page in reversed(pages) for event in page]

    async def agent_of(self, event: EventView) -> str:
        """The name of an event's agent; "" if its run was removed."""
        if not self._agents:
            self._agents = {run.id: run.agent for run in (await self.source.list_runs()).runs}
        if event.run_id not in self._agents:
            try:
                self._agents[event.run_id] = (await self.source.read_run(event.run_id)).run.agent
            except RunNotFound:  # it was removed
                return ""
        return self._agents[event.run_id]

    async def take(self, view: EventView) -> Line:
        """Take in an event; returns it with the name of its agent and its line."""
        agent = await self.agent_of(view)
        event = event_of(view, agent=agent)
        if event is None:
            is_told, is_gone = view.type == "UserSaid", view.type == REMOVED
            line = f"message: {one_line(view.body['text'], 200)}" if is_told else ""
            return view, agent, f"run {view.run_id} was removed" if is_gone else line
        name, line = self._progress.describe(event)
        if isinstance(event, ModelAnswered) and event.text:
            line = f"{line}: {one_line(event.text, 200)}"
        return view, name, line


def check_there(event: EventView, run_id: str | None) -> None:
    """Raise ``RunNotFound`` if an event says that the followed run was removed; ``run_id`` None stands for all runs."""
    if event.type == REMOVED and run_id is not None and is_in_tree(run_id, event.run_id):
        raise RunNotFound(f"run {run_id} was removed, with its whole record")
