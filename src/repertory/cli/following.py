"""``repertory logs``: shows the events of runs, as they happen."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import aclosing
from functools import partial
from operator import attrgetter
from typing import Final, TypeAlias

import anyio
import msgspec

from repertory._ids import is_in_tree
from repertory.cli import output
from repertory.cli.commands import command
from repertory.cli.databases import need_run, open_source
from repertory.cli.live import Progress
from repertory.cli.options import RUN, At, option
from repertory.cli.output import one_line
from repertory.cli.runs import nodes_of
from repertory.errors import RunNotFound, ServiceGone
from repertory.record import FINAL_STATES
from repertory.record.opening import is_owned
from repertory.runs.events import ModelAnswered
from repertory.runs.waiting_calls import WaitingCall
from repertory.service.requests import MAX_TREES
from repertory.service.sources import RecordSource, RunSource
from repertory.service.views import REMOVED, EventView, event_of

_AGAIN: Final = 0.5  # seconds between two looks at who has the database

Line: TypeAlias = tuple[EventView, str, str]
"""An event, the name of its agent and its line; "" if there is nothing to say."""


@partial(command, backend="trio")
async def logs(
    run_id: str | None = RUN,
    *,
    follow: bool = option("-f, --follow", "Wait for more, until the run ends.", False),
    everything: bool = option("-a, --all", "Show what happened in all runs.", False),
    lines: int = option("-n, --lines N", "Only the last N events so far; 0 for all.", 0, min=0),
    reconnect: float = option(
        "--reconnect SECONDS",
        "How long to wait for a service that went away; 0 for not at all.",
        60.0,  # our systemd unit restarts a service after 2 s; an orderly end takes up to 10 s
        min=0,
        max=86_400,
    ),
    at: At,
    as_json: bool = option("--json", "Write one JSON object a line: an event.", False),
) -> None:
    """Show what happened in a run and its sub-agents, event by event.

    If the service is restarted meanwhile, the log continues behind the last line, unless --socket or --port names it.
    """

    def write(event: EventView, agent: str, line: str) -> None:
        if as_json:
            output.print_json({**msgspec.structs.asdict(event), "agent": agent, "line": line}, on_one_line=True)
        elif line:  # of some events there is nothing to say
            output.write(f"{output.timestamp(event.at)}  {one_line(agent):<13} {line}")

    async with open_source(at, record=True) as source:
        found = None if everything else await need_run(source, run_id, at.db)
        scribe = Scribe(source, found)
        seq = (await source.list_runs(0)).seq  # later events are followed
        is_live = found is None or (await source.read_run(found)).run.live
        for line in await scribe.read_past(seq, lines, every=as_json):
            write(*line)
        if not follow or not is_live:
            return

        while True:
            async with aclosing(source.follow(after=seq)) as events:
                async for event in events:
                    seq = event.seq
                    if scribe.is_ours(event):
                        check_there(event, found)
                        write(*await scribe.take(event))
                    if event.run_id == found and event.type == "StateChanged" and event.body["state"] in FINAL_STATES:
                        return
            if not isinstance(source, RecordSource):
                raise ServiceGone(f"the service at {source.place} has ended")
            output.say(f"no process has {source.database} any more; waiting up to {reconnect:g} s for the next one")
            with anyio.move_on_after(reconnect) as waiting:
                while not await anyio.to_thread.run_sync(is_owned, source.path):  # noqa: ASYNC110 - by others
                    await anyio.sleep(_AGAIN)
            if waiting.cancelled_caught:
                raise ServiceGone(f"no process has {source.database}; repertory serve --resume continues its runs")


# --- lines of events --------------------------------------------------------------------------------------


class Scribe:
    """Turns events into lines.

    Attributes:
        source: Where the events are read.
        root: The run whose events are shown, with those of its sub-agents; None for all runs.
    """

    def __init__(self, source: RunSource, root: str | None) -> None:
        self.source = source
        self.root = root
        self._agents: dict[str, str] = {}
        self._progress = Progress()

    def is_ours(self, of: EventView | WaitingCall) -> bool:
        """Whether an event or a call belongs to one of the runs."""
        return self.root is None or is_in_tree(of.run_id, self.root)

    async def read_past(self, upto: int, lines: int, *, every: bool) -> list[Line]:
        """Take in the events up to a number.

        Args:
            upto: The number.
            lines: How many of the last lines are wanted; 0 for all. Of all runs, no more events are read than needed.
            every: Whether events of which there is nothing to say count, too.
        """
        if self.root is not None:
            runs = [node.run for node in nodes_of((await self.source.read_run(self.root)).tree)]
        else:
            runs = (await self.source.list_runs(MAX_TREES if lines else sys.maxsize)).runs
        self._agents = {run.id: run.agent for run in runs}
        ids: Sequence[str | None] = [None] if self.root is None else [*self._agents]
        least = lines if self.root is None and lines else sys.maxsize
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
            came = " with attachments" if is_told and view.body.get("attached") else ""
            line = f"message{came}: {one_line(view.body['text'], 200)}" if is_told else ""
            return view, agent, f"run {view.run_id} was removed" if is_gone else line
        name, line = self._progress.describe(event)
        if isinstance(event, ModelAnswered) and event.text:
            line = f"{line}: {one_line(event.text, 200)}"
        return view, name, line


def check_there(event: EventView, run_id: str | None) -> None:
    """Raise ``RunNotFound`` if an event says that the followed run was removed; ``run_id`` None stands for all runs."""
    if event.type == REMOVED and run_id is not None and is_in_tree(run_id, event.run_id):
        raise RunNotFound(f"run {run_id} was removed, with its whole record")
