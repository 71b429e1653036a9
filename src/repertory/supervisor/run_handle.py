"""``Run``: the public handle of a run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Generic, cast

import anyio.lowlevel

from repertory._choices import check_pattern, check_text, check_type, check_value
from repertory._counting import counted
from repertory._ids import new_id
from repertory.agents.agent import Agent, ResultT
from repertory.errors import PayloadInvalid, RunError, RunFailed, RunStopped
from repertory.loop.outside import decide, give_result
from repertory.memory import Memory
from repertory.memory.documents import Path
from repertory.memory.payload import Payload
from repertory.record import RunStatistics
from repertory.record.records import RunState, SummaryStored
from repertory.runs.event_hub import EventReader
from repertory.runs.events import Event
from repertory.runs.live import LiveRun
from repertory.runs.payloads import changes_of
from repertory.runs.streaming import StreamReader
from repertory.runs.waiting_calls import WaitingCall
from repertory.supervisor.asking import owner_of, say
from repertory.supervisor.runtime import Runtime
from repertory.tools.media import Media, check_attachments
from repertory.views.listing import ViewEntry, list_view
from repertory.views.results import answer_to, read_result, result_form

_MESSAGE_ID = re.compile(r"[!-~]{1,200}")


class Run(Generic[ResultT]):
    """One agent working on one task. Made by ``Supervisor.spawn`` and ``Supervisor.resume``."""

    def __init__(self, live: LiveRun, runtime: Runtime) -> None:
        self._held = live
        self._runtime = runtime

    @property
    def _live(self) -> LiveRun:
        """The run in its newest form: it may have continued after its end."""
        self._held = self._held.newest
        return self._held

    @property
    def _here(self) -> LiveRun:
        """The run; raises ``RunError`` if it waits for a machine or is under way on another one."""
        self._live.check_here()
        return self._live

    def __repr__(self) -> str:
        return f"<Run {self.id} of {self.agent.name}: {self.state}>"

    @property
    def id(self) -> str:
        """The run's id, as ``repertory ps`` lists it."""
        return self._live.run_id

    @property
    def agent(self) -> Agent[ResultT]:
        """The agent's definition."""
        return self._live.agent

    @property
    def task(self) -> str:
        """What it was asked to do: a text, or JSON if its agent has ``input``."""
        return self._live.started.task

    @property
    def state(self) -> RunState:
        """The run's state: ``queued``, ``running``, ``waiting``, ``paused``; or ``done``, ``failed``, ``stopped``.

        ``waiting`` means that it waits for sub-agents, for its turn among its lead's sub-agents, or for a call that
        ``waiting()`` lists. When its supervisor closes it stays as it is; an unfinished run can be resumed.
        """
        live = self._live
        return "waiting" if live.state == "running" and (live.waiting or live.in_line) else live.state

    def waiting(self, *, tree: bool = False) -> list[WaitingCall]:
        """Its tool calls that wait for an approval or for their result, oldest first.

        Args:
            tree: Include the runs below it.
        """
        runs = self._live.tree() if tree else [self._live]
        calls = [call for live in runs if not live.ended.is_set() for call in live.waits.list()]
        return sorted(calls, key=lambda call: call.since)

    async def approve(self, call_id: str, *, arguments: Mapping[str, Any] | None = None, by: str = "") -> None:
        """Allow a waiting tool call of this run or of one below it. Returns once the decision is durable.

        It is safe to repeat. A cancelled call has either allowed the tool call or done nothing.

        Args:
            call_id: The call, as ``waiting`` lists it.
            arguments: Arguments to call the tool with instead; the model is told so. None for those it asked for.
            by: Who allows it, for the record.

        Raises:
            RunError: No such call waits, it was already denied or allowed with other arguments, a rule forbids the
                changed arguments, or they are given while the run is paused or queued.
            ConfigurationError: The changed arguments do not fit the tool.
        """
        check_value("Run.approve", (call_id, by), tuple[str, str])
        words = "a mapping by name, or None for those asked for"
        check_type("Run.approve: arguments", arguments, Mapping | None, words)
        changed = None if arguments is None else dict(arguments)
        run = await owner_of(self._runtime, self._live, call_id)
        await decide(run, call_id, allowed=True, arguments=changed, reason="", by=by)

    async def deny(self, call_id: str, reason: str, *, by: str = "") -> None:
        """Deny a waiting tool call of this run or of one below it; the model is told why. Otherwise as ``approve``.

        Args:
            call_id: The call, as ``waiting`` lists it.
            reason: Why it is denied.
            by: Who denies it, for the record.

        Raises:
            RunError: No such call waits, or it was decided otherwise.
            ConfigurationError: The reason is empty.
        """
        check_text("a reason", reason)
        check_value("Run.deny", (call_id, by), tuple[str, str])
        run = await owner_of(self._runtime, self._live, call_id)
        await decide(run, call_id, allowed=False, arguments=None, reason=reason, by=by)

    async def give_result(self, call_id: str, result: Any, *, is_error: bool = False) -> None:
        """Give the result of a tool call, of this run or of one below it, that waits for it; see ``ResultLater``.

        Returns once the result is durable. It is safe to repeat. The result is treated like any result of that tool.

        Args:
            call_id: The call, as ``waiting`` lists it, or as ``ToolContext`` gave it to the tool.
            result: A text, anything that can be written as JSON, or what ``media_block`` makes of an image or a
                document, alone or in a list with texts.
            is_error: Whether the call failed; the result then says why.

        Raises:
            RunError: No such call waits, or another result was already given.
            ConfigurationError: The result cannot be written as JSON or shown to a model, or does not fit the schema
                that was asked for.
        """
        check_value("Run.give_result", (call_id, is_error), tuple[str, bool])
        await give_result(await owner_of(self._runtime, self._live, call_id), call_id, result, is_error=is_error)

    @property
    def is_ending(self) -> bool:
        """Whether it has ended, or ends at its next boundary: ``stop`` and ``kill`` cannot be taken back."""
        return self._live.is_ending

    @property
    def children(self) -> tuple[Run[Any], ...]:
        """The runs of its sub-agents, oldest first; without those that had ended before this process had the run.

        ``Journal.read_runs(below=run_id)`` lists all of them.
        """
        return tuple(Run[Any](child, self._runtime) for child in self._live.children)

    @property
    def memory(self) -> Memory:
        """The memory scope that it reads and writes; it can still be read after the run has ended.

        Once another machine has continued the run, this is out of date: use it there.
        """
        self._live.shared.home.check()
        return self._live.memory

    @property
    def payload(self) -> Any:
        """A copy of its current payload, of the type that the agent declares; None if it has none.

        It can still be read after the run has ended. A sub-agent's payload is its own part of the lead's.
        """
        state = self._live.payload
        return None if state is None else state.value

    async def change_payload(
        self,
        values: Mapping[Any, Any] | None = None,
        *,
        append: Mapping[Any, Any] | None = None,
        remove: Sequence[Path] = (),
    ) -> None:
        """Change the run's payload; either all changes are made or none. Returns once they are durable.

        A path is ``"author.name"``, or a tuple of its parts if a name contains a dot; "" is the whole payload. A tool
        under way that changes the same place is told that its change came second. A cancelled call has either made the
        changes or done nothing.

        Args:
            values: New values, by path.
            append: An item to append to a list, by the path of the list.
            remove: Paths to remove from a mapping.

        Raises:
            PayloadInvalid: The payload would not fit its type, or a path does not exist; nothing was changed.
            ConfigurationError: The run has no payload, or an argument is not a mapping by path or a list of paths.
            RunError: The run has ended.
        """
        for name, by_path in (("values", values), ("append", append)):
            check_type(f"Run.change_payload: {name}", by_path, Mapping | None, "a mapping by path, or None")
        check_type("Run.change_payload: remove", remove, list | tuple, "a list of paths")
        await anyio.lowlevel.checkpoint()
        live = self._here
        async with live.changing_payload():
            draft = Payload.draft(live.payload)
            for path, value in (values or {}).items():
                draft.set(path, value)
            for path, value in (append or {}).items():
                draft.append(path, value)
            for path in remove:
                draft.remove(path)
            if live.ending or live.ended.is_set():
                raise RunError(f"run {self.id} has ended ({live.how_ended}); its payload is not changed any more")
            records, _ = changes_of(live, draft.staged("caller"))
            if unfit := [conflict for record in records for conflict in record.conflicts]:
                raise PayloadInvalid(f"the payload does not fit its type once secrets are redacted: {unfit[0].reason}")
            live.shared.journal.submit(records)
            live.adopt_payload(records)
        await live.shared.journal.write(())

    def statistics(self, *, tree: bool = False) -> RunStatistics:
        """What it has done and cost so far, in all processes; with ``tree``, including all runs below it.

        These are sums over the journal's records, the same as in ``repertory stats``, the service and the SQL views.
        """
        return self._live.tally.tree(self.id) if tree else self._live.statistics

    @property
    def listener_errors(self) -> int:
        """How often a lifecycle listener has raised an error in this process."""
        return self._live.listeners.errors

    def events(self, *, tree: bool = False) -> EventReader:
        """Iterate over the run's events until it ends, from its first in this process or the oldest still in memory.

        Args:
            tree: Include the runs below it.
        """
        live, run_id, below = self._live, self.id, f"{self.id}."
        live.check_loop()

        def is_ours(event: Event) -> bool:
            return event.run_id == run_id or (tree and event.run_id.startswith(below))

        return live.shared.hub.reader(is_ours, since=live.first_event, until=lambda: live.end_of_events)

    def stream(self, *, from_start: bool = False) -> StreamReader:
        """Stream what the model says, from the answer it is giving now until the run ends.

        If a run continues after its end, each continuation has its own stream; this is the newest.

        ``async for piece in run.stream()`` yields ``TextStreamed``, ``ThinkingStreamed``, ``ToolCallStreamed``, and
        ``StreamRestarted`` if a call broke off: discard what came of that answer until then. The stream is not
        recorded, so a run that had ended before it was found again has none; ``wait_result`` has its answer. A slow
        reader slows nobody: it gets larger pieces.

        Args:
            from_start: Begin with the first answer since the run began or last continued, or the oldest of the last
                four, so that nothing is missed between ``send`` and this call.
        """
        self._live.check_loop()
        return StreamReader(self._live.stream, from_start=from_start)

    async def wait_ended(self) -> RunState:
        """Wait until the run has ended, in whichever way, and return its state.

        The state is not final if the supervisor was closed first. A run has ended even if it continues later.

        Raises:
            JournalError: The journal failed, so nothing more of the run can be recorded.
        """
        live = self._live
        await live.wait_ended()
        if live.lost is not None:
            raise live.lost
        return live.state if live.end is None else live.end.state

    async def wait_result(self) -> ResultT:
        """Wait for the run's result and return it: a value of the agent's ``output`` type, by default a text.

        Raises:
            RunFailed: The run ended with an error, which is the ``__cause__``; if it ended in another process, only an
                error of ``repertory.errors``. The message names it in any case.
            ResultInvalid: The run was done in an earlier process, and its result does not fit the agent's current
                ``output``; the journal has the result as it was.
            RunStopped: The run was stopped first, or the supervisor was closed.
            JournalError: The journal failed, so nothing more of the run can be recorded.
        """
        live = self._live
        await live.wait_ended()
        return self._read_end(live)

    def _read_end(self, live: LiveRun) -> ResultT:
        """The result of a run that has ended; raises if it has none."""
        if live.lost is not None:
            raise live.lost
        if live.end is not None and live.end.state == "done":
            return self._read_result(live.end.result or "")
        run = f"run {self.id} of {self.agent.name}"
        if live.end is not None and live.end.state == "failed":
            raise RunFailed(f"{run} failed: {live.end.error}") from live.end.cause
        resumable = "; wait within its supervisor's block, or resume it" if live.end is None else ""
        raise RunStopped(f"{run} was {live.how_ended} after {counted(live.iteration, 'iteration')}{resumable}")

    def _read_result(self, text: str) -> ResultT:
        return cast("ResultT", read_result(self.agent.output_type, text, where=f"the result of run {self.id}"))

    async def send(self, text: str, *, attachments: Sequence[Media] = (), message_id: str | None = None) -> None:
        """Send a message to the run. Returns once it is durable; the model reads it at its next iteration.

        A run that has ended, whether done, failed or stopped, continues with the message: its model still has all that
        was said and done, and its limits keep counting, except for ``Limits.iterations``. A cancelled call has either
        sent the message, which will be read, or done nothing; see ``docs/semantics.md``.

        Args:
            text: The message.
            attachments: Images and documents that are shown with it, each made by ``media_block``.
            message_id: Makes the call safe to repeat: a message with the same id is read only once, even if no process
                learned that the first call succeeded. 1 to 200 printable characters without spaces; None generates
                one.

        Raises:
            RunError: The supervisor is closed; the run has ended and is a sub-agent's; or another message has this id.
            ConfigurationError: The message is empty, an attachment could not be shown, or the id is malformed.
            ContextMissing: The run would continue, was spawned with a context, and ``resume`` was given none.
        """
        await self._say(text, checked_id(message_id), attachments)

    async def ask(self, text: str, *, attachments: Sequence[Media] = (), message_id: str | None = None) -> ResultT:
        """Send a message to the run, as ``send`` does, and wait for the answer.

        The answer is the one that the model has given when the run is done or reads its next message. If questions are
        asked concurrently, each gets the first answer that follows it, so one answer may serve several. A cancelled
        call leaves the question asked; ``pause``, ``stop`` and ``kill`` treat it like any work.

        Args:
            text: The question.
            attachments: As for ``send``.
            message_id: Makes the call safe to repeat, also in another process: the question is asked once, and every
                call returns its answer. If the run failed or was stopped before it answered, it continues with the
                question. None generates an id.

        Returns:
            The answer: a value of the agent's ``output`` type, by default a text.

        Raises:
            RunFailed: The run ended with an error before it had an answer; the error is the ``__cause__``.
            RunStopped: The run was stopped first, or the supervisor was closed.
            RunError, ConfigurationError, ContextMissing: As ``send``.
            JournalError: The journal failed, so nothing more of the run can be recorded.
        """
        message_id = checked_id(message_id)
        await self._say(text, message_id, attachments, again=True)
        form = result_form(self._live)
        while True:
            live = self._live
            result = live.end.result if live.end is not None and live.ended.is_set() else None
            answer = answer_to(live.ledger.snapshot(), message_id, form, result=result)
            if answer is not None:
                return self._read_result(answer)
            if live.ended.is_set():
                return self._read_end(live)
            await live.wait_for_change()

    async def _say(self, text: str, message_id: str, attachments: Sequence[Media], *, again: bool = False) -> None:
        text, blocks = check_text("a message", text), check_attachments(attachments, to="a message")
        await say(self._runtime, self._live, message_id, text, blocks, again=again)

    async def summary(self, *, start_iteration: int = 0) -> SummaryStored | None:
        """The newest summary that covers an iteration, whether or not it is in view; also for a resumed run.

        ``text_of(summary.content)`` is its text; ``first`` and ``last`` are the positions that it covers.

        Args:
            start_iteration: The iteration that it must cover; 0 for the beginning.

        Returns:
            The summary; None if none covers that iteration yet.

        Raises:
            ConfigurationError: ``start_iteration`` is not a whole number.
            JournalError: The supervisor is closed, and its journal with it.
        """
        check_value("Run.summary: start_iteration", start_iteration, int)
        journal = self._live.shared.journal
        for summary in reversed(await journal.read_summaries(self.id)):
            ends = (summary.first, summary.last)
            first, last = [await journal.read_entries(self.id, start=at, stop=at + 1) for at in ends]
            if first and last and first[0].iteration <= start_iteration <= last[0].iteration:
                return summary
        return None

    def view(self) -> list[ViewEntry]:
        """All entries of its record, oldest first: how the model sees each, and the original of what was shortened."""
        return list_view(self._live.ledger.snapshot(), self._live.plan)

    async def expand(self, position: int, *, items: tuple[int, int] | None = None, reason: str = "") -> None:
        """Show the model a shortened, removed or covered entry again, from its next request on.

        Returns once this is durable. After a few iterations the entry may be shortened again; ``pin`` it to keep it.
        This edits the past: everything after the entry is written to the prompt cache again.

        Args:
            position: The entry, as ``view`` lists it.
            items: The first and last line to show, counted from 1; None for all.
            reason: Why, for the record.

        Raises:
            ContextError: There is no such entry, nothing to expand, or no such lines.
            RunError: The run has ended.
        """
        check_value("Run.expand", (position, items, reason), tuple[int, tuple[int, int] | None, str])
        await (await self._here.view()).expand(position, items, reason)

    async def pin(self, position: int) -> None:
        """Keep an entry in view verbatim from the next request on, whatever happens around it.

        Raises:
            ContextError: There is no such entry.
            RunError: The run has ended.
        """
        await self._pin(position, on=True)

    async def unpin(self, position: int) -> None:
        """Undo ``pin``: treat the entry like any other again.

        Raises:
            ContextError: There is no such entry.
            RunError: The run has ended.
        """
        await self._pin(position, on=False)

    async def _pin(self, position: int, *, on: bool) -> None:
        check_value("Run.pin", position, int)
        await (await self._here.view()).pin(position, on=on)

    def forget_results(self) -> None:
        """Forget earlier tool results, because something outside has changed what they depend on.

        Without this, a repeated call of a pure tool with the same arguments is answered from the earlier result.
        """
        self._live.repeats.clear()

    def stop(self) -> None:
        """End the run at its next boundary: after the model call or the tools that are now under way."""
        self._runtime.stop(self._here, now=False)

    def kill(self) -> None:
        """End the run now and cancel what is under way. What is in the record stays."""
        self._runtime.stop(self._here, now=True)

    def pause(self) -> None:
        """Pause the run at its next boundary until ``resume``; a queued run leaves the queue.

        The record says so as soon as it is on the disk, and from then on the next process keeps it paused, too; but not
        a sub-agent that was paused alone, if the run above it continues.
        """
        self._runtime.pause(self._here)

    def resume(self) -> None:
        """Continue a paused run; one that was paused while queued goes to the end of the queue.

        Raises:
            RunError: It has ended or ``is_ending``; ``Supervisor.resume`` continues it.
        """
        live = self._here
        if live.is_ending:
            how = "has ended" if live.ended.is_set() else "is ending"
            raise RunError(f"run {self.id} {how}; supervisor.resume(run_id) continues one that failed or was stopped")
        self._runtime.unpause(live)


def checked_id(message_id: str | None) -> str:
    """The id of a message, or a new one; raises ``ConfigurationError`` for one that is malformed."""
    if message_id is None:
        return new_id("msg")
    words = "have 1 to 200 printable ASCII characters without spaces"
    return check_pattern("message_id", message_id, _MESSAGE_ID, words)
