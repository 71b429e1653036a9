"""``repertory attach``: follows a run of a service at a terminal, streams its text, and sends it messages."""

from __future__ import annotations

import sys
from contextlib import aclosing
from functools import partial
from typing import Final

import anyio

from repertory._repeated_event import RepeatedEvent
from repertory.cli import output
from repertory.cli.commands import command
from repertory.cli.conversing import KEYS, Lines, Screen, decide_by
from repertory.cli.databases import at_option, need_run, open_source
from repertory.cli.following import Scribe, check_there
from repertory.cli.options import RUN, At
from repertory.cli.output import one_line
from repertory.cli.reading import asked_line, awaited_line
from repertory.cli.stopping import stopped_by_signals
from repertory.errors import RepertoryError, RunError, ServiceGone
from repertory.record import FINAL_STATES
from repertory.runs import events
from repertory.runs.waiting_calls import WaitingCall, waiting_id
from repertory.service.client import ServiceClient
from repertory.service.views import EventView, RunDetail, RunView, event_of

_CALLS: Final = 10  # how many calls are shown to somebody who attaches in the middle of a turn
_LONGEST: Final = 2000  # characters of the task or a message that are shown
_BEHIND: Final = 5.0  # seconds by which events may come later than the answer of their turn


@partial(command, backend="trio")
async def attach(run_id: str | None = RUN, *, at: At) -> None:
    """Follow a run of the service, and send it messages.

    At a terminal, each line you type is sent to the run; if a call waits for approval, y allows it, n REASON denies it,
    and e changes its arguments. Ctrl-C or Ctrl-D leaves, and the run continues; several may be attached. Without a
    terminal the command ends with the run.
    """
    async with open_source(at) as source:
        found = await need_run(source, run_id, at.db)
        detail = await source.read_run(found)
        if not isinstance(source, ServiceClient):
            raise RunError(_not_served(detail.run, at_option(at)))
        attached = _Attached(source, detail, at_option(at))
        async with stopped_by_signals() as stop:
            try:
                await attached.main()
            except* ServiceGone as gone:
                await attached.screen.end_line()
                words = gone.exceptions[0]
                raise ServiceGone(
                    f"{words}; once a service runs it again: repertory attach {found}{at_option(at)}"
                ) from None
        if stop.asked.is_set():
            left = stop.interrupted(attached.left())
            if left.exit_code != output.INTERRUPTED:
                raise left
            output.remark("")
            output.say(str(left))


def _not_served(run: RunView, where: str) -> str:
    """The message for a run that no service runs: what to do instead."""
    if run.live:
        shows = f"repertory logs -f {run.id}{where} shows its events"
        return f"{run.id} is not run by a service, so it takes no messages; {shows}"
    return (
        f"no process runs {run.id}, which is {run.state}: repertory chat {run.id}{where} continues it here, "
        f"repertory serve{where} --resume in a service; repertory logs {run.id}{where} shows what it did"
    )


class _Attached:
    """A terminal, or a pipe in its place, that shows a run of a service."""

    def __init__(self, client: ServiceClient, detail: RunDetail, where: str) -> None:
        self._client = client
        self._where = where
        self._scribe = Scribe(client, detail.run.id)
        self._run_id = detail.run.id
        self._detail = detail  # as it was when its newest turn began or ended
        self._state = detail.run.state  # the newest that was heard of
        self.screen, self._lines = Screen(), Lines("")
        self._typed_at = sys.stdin.isatty() and sys.stdout.isatty()
        self._said: list[str] = []  # typed here, and not yet seen among the events
        self._asked: dict[tuple[str, str], None] = {}  # runs and ids of calls that wait for a person, oldest first
        self._awaited: set[tuple[str, str]] = set()  # the same of calls that wait for their result, once shown
        self._news = RepeatedEvent()  # the state of the run may have changed
        self._moved = RepeatedEvent()  # an event was shown

    async def main(self) -> None:
        """Show the run until it ends, or the person at the terminal leaves."""
        self._seq = (await self._client.list_runs(0)).seq
        await self._read_run()
        await self._show_past()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._show_events)
            if self._typed_at:
                tasks.start_soon(self._type, tasks.cancel_scope)
            await self._show_text()
            tasks.cancel_scope.cancel()
        await self.screen.end_line()
        run = self._detail.run
        if run.state in ("failed", "stopped") and not self._typed_at:  # else a person has left
            raise RunError(f"run {run.id} {run.state}{f': {run.error}' if run.error else ''}")

    def left(self) -> str:
        """The message for a person who leaves."""
        stands = f"is {self._state}" if self._state in FINAL_STATES else "continues"
        return f"left; the run {stands}: repertory attach {self._run_id}{self._where}"

    async def _read_run(self) -> None:
        self._detail = await self._client.read_run(self._run_id)
        self._state = self._detail.run.state

    async def _show_past(self) -> None:
        """Show the task, the last message after it, and the run's own newest calls of the current turn."""
        run = self._detail.run
        keys = "; type to send it messages, Ctrl-C leaves" if self._typed_at else ""
        await self.screen.remark(one_line(f"{run.agent} {run.id}, {run.state}{keys}"))
        said = [run.task]
        recent: list[EventView] = []
        for view in await self._client.read_events(run.id, before=self._seq + 1):
            if view.type == "UserSaid":
                said[1:], recent = [view.body["text"]], []
            elif view.type == "ToolStarted":
                recent.append(view)
        for text in said:
            await self._quote(text)
        for view in recent[-_CALLS:] if run.live else ():
            await self.screen.show_call(event_of(view, agent=await self._scribe.agent_of(view)), run.id)

    async def _quote(self, text: str) -> None:
        """Show a message to the run."""
        await self.screen.remark(f"> {output.clean(text[:_LONGEST])}")

    async def _show_text(self) -> None:
        """Show the text of the run, turn after turn; if nobody can type, only to the end of the current turn."""
        told_at = 0.0  # the time of the last end that was shown
        while True:
            seen = self._news.count
            for call in await self._client.waiting():
                if not self._scribe.is_ours(call):
                    continue
                if call.kind == "approval":
                    await self._ask(call)
                else:
                    await self._tell_awaited(call, call.call_id, call.reason)
            async with aclosing(self._client.stream(self._run_id)) as pieces:
                await self.screen.show_text(pieces)
            await self.screen.end_line()
            await self._catch_up()
            await self._read_run()
            run, result = self._detail.run, self._detail.result
            is_over = run.state in FINAL_STATES or not run.live
            if is_over and run.updated_at != told_at:
                told_at = run.updated_at
                if run.state in FINAL_STATES and result and not self.screen.has_shown(result, run.iteration):
                    await self.screen.show(f"{result}\n")
                if self._typed_at:
                    await self.screen.remark(f"[{run.state}{f': {one_line(run.error, 200)}' if run.error else ''}]")
            if is_over and not self._typed_at:
                return
            # Also if the run continues: the text of a run on another machine is not streamed here.
            await self._news.wait(seen)

    async def _catch_up(self) -> None:
        """Wait until all events so far are shown: text and events are two streams."""
        seq = (await self._client.list_runs(0)).seq
        with anyio.move_on_after(_BEHIND):  # the newest event may be of a run that is removed before the event arrives
            while self._seq < seq:
                await self._moved.wait()

    async def _show_events(self) -> None:
        async with aclosing(self._client.follow(after=self._seq)) as following:
            async for view in following:
                await self._take(view)
        raise ServiceGone(f"the service at {self._client.place} has ended")

    async def _take(self, view: EventView) -> None:
        """Show an event."""
        check_there(view, self._run_id)
        if self._scribe.is_ours(view):
            event = event_of(view, agent=await self._scribe.agent_of(view))
            of_it = view.run_id == self._run_id
            if view.type == "UserSaid" and of_it:
                text = view.body["text"]
                if text in self._said:
                    self._said.remove(text)
                else:  # another client sent it
                    await self._quote(text)
                self._news.set()
            elif isinstance(event, events.ApprovalRequested):
                await self._ask(event)
            elif isinstance(event, events.ResultAwaited):
                await self._tell_awaited(event, waiting_id(event), event.note)
            elif isinstance(event, events.ApprovalDecided) and (view.run_id, event.call_id) in self._asked:
                del self._asked[view.run_id, event.call_id]
                how = "allowed" if event.allowed else "denied"
                by = f" by {event.by}" if event.by else ""
                await self.screen.remark(one_line(f"[{event.tool} was {how}{by}]"))
            elif isinstance(event, events.RunResumed) and of_it:
                self._news.set()
            elif isinstance(event, events.StateChanged) and of_it:
                self._state = event.state
                self._news.set()
                if event.state == "paused":
                    await self.screen.remark("[paused]")
            else:
                await self.screen.show_call(event, self._run_id)
        self._seq = view.seq
        self._moved.set()

    async def _ask(self, call: WaitingCall | events.ApprovalRequested) -> None:
        if (call.run_id, call.call_id) in self._asked:
            return
        self._asked[call.run_id, call.call_id] = None
        how = KEYS if self._typed_at else f"repertory approve {one_line(call.call_id)}"
        wanted = asked_line(call.tool, dict(call.arguments))
        await self.screen.remark(f"[{one_line(call.agent)} wants to call {wanted}; {how}]")

    async def _tell_awaited(self, call: WaitingCall | events.ResultAwaited, call_id: str, note: str) -> None:
        if (call.run_id, call_id) in self._awaited:
            return
        self._awaited.add((call.run_id, call_id))
        what = awaited_line(call.tool, note, 2000)
        await self.screen.remark(f"[{what}; repertory give {one_line(call_id)} RESULT{self._where}]")

    async def _type(self, everything: anyio.CancelScope) -> None:
        """Send each typed line; or decide the oldest call that waits with it, if it is an answer to that."""

        async def ask(prompt: str) -> str | None:
            await self.screen.remark(prompt)
            return await self._lines.read()

        while (line := await self._lines.read()) is not None:
            if not line.strip():
                continue
            try:
                # Those of a run that was ended wait no more. It is the oldest also if others decide it meanwhile.
                waiting = {(call.run_id, call.call_id) for call in await self._client.waiting()}
                oldest = next((call for call in self._asked if call in waiting), None)
                if oldest is None or not await decide_by(line, partial(self._client.decide, *oldest), ask):
                    self._said.append(line)
                    await self._client.send(self._run_id, line)
                    self._news.set()
            except RepertoryError as error:
                await self.screen.remark(one_line(f"[not sent: {error}]"))
        output.say(self.left())
        everything.cancel()
