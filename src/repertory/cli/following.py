"""``repertory logs`` and ``attach``: what happens in a run, as it happens, and something said to it."""

from __future__ import annotations

import getpass
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import aclosing
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from repertory._ids import is_in_tree
from repertory.cli import output
from repertory.cli.conversing import Lines, Screen, terminal_kept
from repertory.cli.databases import At, ask_about_run, open_source
from repertory.cli.options import DATABASE, PORT, RUN, SOCKET, option
from repertory.cli.output import one_line
from repertory.cli.reading import call_line
from repertory.errors import RepertoryError, RunError, ServiceUnavailable

if TYPE_CHECKING:
    import anyio

    from repertory.llm.messages import Json
    from repertory.runs.waiting_calls import WaitingCall
    from repertory.service.client import ServiceClient
    from repertory.service.sources import RunSource
    from repertory.service.views import EventView, RunDetail

_HOW: Final = "y allows it, n REASON denies it"
_RECENT: Final = 500  # events, of all runs, that are looked through for calls when somebody attaches
_CALLS: Final = 10  # of which so many are shown
_LONGEST: Final = 2000  # characters of what was asked, above what is followed


# --- what happened ----------------------------------------------------------------------------------------


def logs(
    run_id: str | None = RUN,
    *,
    follow: bool = option("-f, --follow", "Wait for more, until the run ends.", False),
    everything: bool = option("-a, --all", "What happened in all runs.", False),
    lines: int = option("-n, --lines N", "Only the last of what has happened; 0 for all.", 0, min=0),
    db: str | None = DATABASE,
    socket: Path | None = SOCKET,
    port: int | None = PORT,
    as_json: bool = option("--json", "Write one JSON object a line: an event.", False),
) -> None:
    """Show what happened in a run and those below it, event by event."""
    at = At(db, socket, port)
    write = _write_json if as_json else _write_line

    async def show(source: RunSource, found: str | None) -> None:
        scribe = _Scribe(source, found)
        seq = (await source.list_runs(0)).seq  # what comes behind it is followed
        happened = [event for event in await scribe.read_past() if event.seq <= seq]
        for event in happened[-lines:]:
            await scribe.take(event, write)
        if not follow or (found is not None and not (await source.read_run(found)).run.live):
            return
        async with aclosing(source.follow(None, after=seq)) as events:
            async for event in events:
                if scribe.is_ours(event):
                    await scribe.take(event, write)
                    if event.run_id == found and _ends(event):
                        return

    async def show_all() -> None:
        async with open_source(at) as source:
            await show(source, None)

    if everything:
        import anyio

        anyio.run(show_all, backend="trio")
    else:
        ask_about_run(run_id, at, show, backend="trio")


class _Scribe:
    """Makes lines of events.

    Args:
        source: Where they are from.
        root: The run whose events they are, and those of the runs below it; None for all runs.
    """

    def __init__(self, source: RunSource, root: str | None) -> None:
        from repertory.cli.live import Progress

        self._source = source
        self._root = root
        self._agents: dict[str, str] = {}
        self._progress = Progress()

    def is_ours(self, of: EventView | WaitingCall) -> bool:
        """Whether an event or a call is of one of the runs."""
        return self._root is None or is_in_tree(of.run_id, self._root)

    async def read_past(self) -> list[EventView]:
        """What has happened in the runs, in order."""
        ids: Sequence[str | None] = [None]
        if self._root is not None:
            ids = [run_id for run_id, _ in await self._source.list_ids() if run_id.startswith(self._root)]
        found: list[EventView] = []
        for run_id in ids:
            after = 0
            while page := await self._source.read_events(run_id, after=after):
                found += filter(self.is_ours, page)
                after = page[-1].seq
        return sorted(found, key=attrgetter("seq"))

    async def agent_of(self, event: EventView) -> str:
        """The name of an event's agent."""
        if event.run_id not in self._agents:
            self._agents = {run.id: run.agent for run in (await self._source.list_runs()).runs}
        return self._agents.get(event.run_id, "")

    async def take(self, view: EventView, write: Callable[[EventView, str, str], None]) -> None:
        """Write an event, with the name of its agent and what is worth saying of it."""
        from repertory.runs.events import ModelAnswered
        from repertory.service.views import event_of

        agent = await self.agent_of(view)
        event = event_of(view, agent=agent)
        if event is None:
            write(view, agent, f"is told: {one_line(view.body['text'], 200)}" if view.type == "UserSaid" else "")
            return
        name, line = self._progress.describe(event)
        if isinstance(event, ModelAnswered) and event.text:
            line = f"{line}: {one_line(event.text, 200)}"
        write(view, name, line)


def _write_line(event: EventView, agent: str, line: str) -> None:
    if line:
        sys.stdout.write(f"{output.timestamp(event.at)}  {one_line(agent):<13} {line}\n")
        sys.stdout.flush()


def _write_json(event: EventView, agent: str, line: str) -> None:
    import msgspec

    fields: Json = {**msgspec.to_builtins(event), "agent": agent, "line": line}
    sys.stdout.write(f"{json.dumps(fields)}\n".replace("\x7f", "\\u007f"))
    sys.stdout.flush()


def _ends(event: EventView) -> bool:
    from repertory.record import FINAL_STATES

    return event.type == "StateChanged" and event.body["state"] in FINAL_STATES


# --- live -------------------------------------------------------------------------------------------------


def attach(
    run_id: str | None = RUN, *, db: str | None = DATABASE, socket: Path | None = SOCKET, port: int | None = PORT
) -> None:
    """Follow a run of the service as it works, and say something to it.

    At a terminal, a line that is typed is said to the run; where a call waits for an approval, y allows it and n REASON
    denies it. Ctrl-C or Ctrl-D leaves, and the run goes on; several may be attached. Elsewhere it ends with the run. Of
    a run that another process runs, which is no service, what happens is shown.
    """

    async def follow(source: RunSource, found: str) -> None:
        from repertory.cli.stopping import stopped_by_signals
        from repertory.service.client import ServiceClient

        detail = await source.read_run(found)
        if source.place is None and not detail.run.live:
            raise RunError(
                f"nobody runs {found}, which is {detail.run.state}: repertory chat {found} goes on with it here, "
                "repertory serve --resume in a service; repertory logs shows what it did"
            )
        async with stopped_by_signals() as stop:
            if isinstance(source, ServiceClient):
                await _Attached(source, detail).main()
            else:
                output.say("the process that runs it is no service: it takes no messages, and what it says comes late")
                await _watch(source, detail)
        if stop.asked.is_set():
            left = stop.interrupted(f"left; the run goes on: repertory attach {found}")
            if left.exit_code != output.INTERRUPTED:
                raise left
            output.remark("")
            output.say(str(left))

    with terminal_kept():
        ask_about_run(run_id, At(db, socket, port), follow, backend="trio")


async def _watch(source: RunSource, detail: RunDetail) -> None:
    """Show what happens in a run that a process runs which takes no messages."""
    scribe = _Scribe(source, detail.run.id)
    seq = (await source.list_runs(0)).seq
    async with aclosing(source.follow(None, after=seq)) as events:
        async for event in events:
            if scribe.is_ours(event):
                await scribe.take(event, _write_line)
                if event.run_id == detail.run.id and _ends(event):
                    return


class _Attached:
    """A terminal, or what stands for one, that shows a run of a service."""

    def __init__(self, client: ServiceClient, detail: RunDetail) -> None:
        import anyio

        self._client = client
        self._run_id = detail.run.id
        self._detail = detail
        self._scribe = _Scribe(client, self._run_id)
        self._screen = Screen()
        self._typed_at = sys.stdin.isatty() and sys.stdout.isatty()
        self._said: list[str] = []  # here, and not yet seen among the events
        self._asked: dict[tuple[str, str], WaitingCall] = {}
        self._going = anyio.Event()

    async def main(self) -> None:
        """Show the run until it ends, or the person at the terminal leaves."""
        import anyio

        seq = (await self._client.list_runs(0)).seq
        self._detail = await self._client.read_run(self._run_id)
        await self._greet()
        await self._show_recent(seq)
        for call in await self._client.waiting():
            if self._scribe.is_ours(call):
                await self._ask(call)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._show_events, seq)
            if self._typed_at:
                tasks.start_soon(self._type, tasks.cancel_scope)
            await self._show_text()
            tasks.cancel_scope.cancel()
        await self._screen.end_line()
        run = self._detail.run
        if run.state in ("failed", "stopped"):
            raise RunError(f"run {run.id} {run.state}{f': {run.error}' if run.error else ''}")

    async def _greet(self) -> None:
        run, screen = self._detail.run, self._screen
        keys = "; type to it, Ctrl-C leaves" if self._typed_at else ""
        await screen.remark(one_line(f"{run.agent} {run.id}, {run.state}{keys}"))
        await screen.remark(f"> {output.clean(run.task[:_LONGEST])}")

    async def _show_recent(self, seq: int) -> None:
        """Show what was asked last, behind the task, and the newest calls of the turn that is under way."""
        from repertory.service.views import event_of

        said = ""
        recent: list[EventView] = []
        for view in await self._client.read_events(None, after=max(0, seq - _RECENT)):
            if view.type == "UserSaid" and view.run_id == self._run_id:
                said = view.body["text"]
                recent.clear()
            elif view.type == "ToolStarted" and view.seq <= seq and self._scribe.is_ours(view):
                recent.append(view)
        if said:
            await self._screen.remark(f"> {output.clean(said[:_LONGEST])}")
        for view in recent[-_CALLS:] if self._detail.run.live else ():
            event = event_of(view, agent=await self._scribe.agent_of(view))
            assert event is not None
            await self._screen.show_call(event, self._run_id)

    async def _show_text(self) -> None:
        """Show what the run says, turn after turn; where nobody can type, to the end of this one."""
        import anyio

        from repertory.record import FINAL_STATES

        while True:
            self._going = anyio.Event()
            async with aclosing(self._client.stream(self._run_id)) as pieces:
                shown = await self._screen.show_text(pieces)
            await self._screen.end_line()
            self._detail = await self._client.read_run(self._run_id)
            run, result = self._detail.run, self._detail.result
            if run.state in FINAL_STATES and result and not shown.strip().endswith(result.strip()):
                await self._screen.show(f"{result}\n")
            if not self._typed_at and (run.state in FINAL_STATES or not run.live):
                return
            if run.state in FINAL_STATES or not run.live:
                await self._screen.remark(f"[{run.state}{f': {one_line(run.error, 200)}' if run.error else ''}]")
                await self._going.wait()

    async def _show_events(self, seq: int) -> None:
        from repertory.runs import events
        from repertory.service.views import event_of

        async with aclosing(self._client.follow(None, after=seq)) as views:
            async for view in views:
                if not self._scribe.is_ours(view):
                    continue
                event = event_of(view, agent=await self._scribe.agent_of(view))
                if view.type == "UserSaid" and view.run_id == self._run_id:
                    await self._hear(view.body["text"])
                elif isinstance(event, events.ApprovalRequested):
                    key = event.run_id, event.call_id
                    for call in await self._client.waiting():
                        if (call.run_id, call.call_id) == key:
                            await self._ask(call)
                elif isinstance(event, events.ApprovalDecided) and (view.run_id, event.call_id) in self._asked:
                    del self._asked[view.run_id, event.call_id]
                    how = "allowed" if event.allowed else "denied"
                    await self._screen.remark(one_line(f"[{event.tool} is {how}, by {event.by or 'nobody'}]"))
                elif isinstance(event, events.StateChanged) and event.run_id == self._run_id:
                    if event.state == "running":
                        self._going.set()
                    elif event.state == "paused":
                        await self._screen.remark("[paused]")
                elif event is not None:
                    await self._screen.show_call(event, self._run_id)
        raise ServiceUnavailable(
            f"the service at {self._client.place} has ended; the run is on record and goes on when repertory serve "
            "--resume is back"
        )

    async def _hear(self, text: str) -> None:
        """Something was said to the run; show what others said."""
        if text in self._said:
            self._said.remove(text)
        else:
            await self._screen.remark(f"> {output.clean(text[:_LONGEST])}")
        self._going.set()

    async def _ask(self, call: WaitingCall) -> None:
        key = call.run_id, call.call_id
        if call.kind != "approval" or key in self._asked:
            return
        self._asked[key] = call
        how = _HOW if self._typed_at else f"repertory approve {one_line(call.call_id)}"
        wanted = call_line(call.tool, dict(call.arguments), 1000)
        await self._screen.remark(f"[{one_line(call.agent)} wants to call {wanted}; {how}]")

    async def _type(self, everything: anyio.CancelScope) -> None:
        """Say each line that is typed to the run, or decide what waits with it."""
        lines = Lines("")
        while (line := await lines.read()) is not None:
            try:
                if not line.strip() or await self._decide(line.strip()):
                    continue
                self._said.append(line)
                await self._client.send(self._run_id, line)
                self._going.set()
            except ServiceUnavailable:
                raise
            except RepertoryError as error:
                await self._screen.remark(one_line(f"[{error}]"))
        output.say(f"left; the run goes on: repertory attach {self._run_id}")
        everything.cancel()

    async def _decide(self, line: str) -> bool:
        """Whether a line was the answer to a call that waits."""
        word, _, reason = line.partition(" ")
        if not self._asked or word.lower() not in ("y", "yes", "n", "no"):
            return False
        call = next(iter(self._asked.values()))
        allowed = word.lower().startswith("y")
        body = {} if allowed else {"reason": reason.strip() or "denied at the terminal"}
        await self._client.decide(
            call.run_id, call.call_id, "approve" if allowed else "deny", {"by": getpass.getuser(), **body}
        )
        return True
