"""A run as its caller holds it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Generic, cast

import anyio.lowlevel

from repertory._choices import check_pattern, check_text, check_type, check_value, show
from repertory._ids import new_id
from repertory.agents.agent import Agent, ResultT
from repertory.errors import RunError, RunFailed, RunStopped
from repertory.loop.outside import decide, give_result
from repertory.memory import Memory
from repertory.memory.documents import Path
from repertory.memory.payload import Payload
from repertory.record import RunStatistics
from repertory.record.records import RunState, SummaryStored
from repertory.runs.event_hub import EventReader
from repertory.runs.events import Event
from repertory.runs.inbox import Said
from repertory.runs.live import LiveRun
from repertory.runs.payloads import changes_of
from repertory.runs.streaming import StreamReader
from repertory.runs.waiting_calls import WaitingCall
from repertory.summarizer import GetSummary
from repertory.supervisor.asking import say
from repertory.supervisor.runtime import Runtime
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
        """The run as it stands now, whoever let it go on after its end."""
        self._held = self._held.newest
        return self._held

    @property
    def _here(self) -> LiveRun:
        """The run, where it is this process's to do something with it."""
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
        """The definition it runs."""
        return self._live.agent

    @property
    def task(self) -> str:
        """What it was asked to do: a text, or JSON where its agent has ``input``."""
        return self._live.started.task

    @property
    def state(self) -> RunState:
        """How it stands: ``queued``, ``running``, ``paused``, or how it ended: ``done``, ``failed``, ``stopped``.

        ``waiting`` says that it waits for sub-agents, or as one of them for its turn, or for what ``waiting`` lists.
        """
        live = self._live
        return "waiting" if live.state == "running" and (live.waiting or live.in_line) else live.state

    def waiting(self, *, tree: bool = False) -> list[WaitingCall]:
        """Its tool calls that wait for an approval or for their result, oldest first.

        Args:
            tree: Those of the runs below it as well.
        """
        runs = self._live.tree() if tree else [self._live]
        calls = [call for live in runs if not live.ended.is_set() for call in live.waits.list()]
        return sorted(calls, key=lambda call: call.since)

    async def approve(self, call_id: str, *, arguments: Mapping[str, Any] | None = None, by: str = "") -> None:
        """Allow a tool call that waits, of this run or one below it. Returns once that is durable.

        It is safe to repeat. A cancelled call has allowed it, or has not.

        Args:
            call_id: The call, as ``waiting`` lists it.
            arguments: What to call the tool with instead; the model is told so. None for what it asked for.
            by: Who allows it, for the record.

        Raises:
            RunError: No such call waits, it was decided otherwise, or a rule forbids the changed arguments.
            ConfigurationError: The changed arguments do not fit the tool.
        """
        check_value("Run.approve", (call_id, by), tuple[str, str])
        check_type(
            "Run.approve: arguments", arguments, Mapping | None, "a mapping by name, or None for those asked for"
        )
        changed = None if arguments is None else dict(arguments)
        await decide(self._owner_of(call_id), call_id, allowed=True, arguments=changed, reason="", by=by)

    async def deny(self, call_id: str, reason: str, *, by: str = "") -> None:
        """Deny a tool call that waits, of this run or one below it: the model is told why. Else as ``approve``.

        Args:
            call_id: The call, as ``waiting`` lists it.
            reason: Why.
            by: Who denies it, for the record.

        Raises:
            RunError: No such call waits, or it was decided otherwise.
            ConfigurationError: There is no reason.
        """
        check_text("a reason", reason)
        check_value("Run.deny", (call_id, by), tuple[str, str])
        await decide(self._owner_of(call_id), call_id, allowed=False, arguments=None, reason=reason, by=by)

    async def give_result(self, call_id: str, result: Any, *, is_error: bool = False) -> None:
        """Bring the result of a tool call that waits for it, of this run or one below it; see ``ResultLater``.

        Returns once it is durable. It is safe to repeat, and treated like any result of that tool.

        Args:
            call_id: The call, as ``waiting`` lists it, or as ``ToolContext`` named it to the tool.
            result: A text, anything that can be written as JSON, or what ``media_block`` makes of an image or a
                document, alone or in a list with texts.
            is_error: Whether the call failed, and this says why.

        Raises:
            RunError: No such call waits, or another result was given already.
            ConfigurationError: The result cannot be written as JSON or shown to a model, or is not what was asked for.
        """
        check_value("Run.give_result", (call_id, is_error), tuple[str, bool])
        await give_result(self._owner_of(call_id), call_id, result, is_error=is_error)

    def _owner_of(self, call_id: str) -> LiveRun:
        """The run that knows of a call: this one, or the only one below it that does."""
        if self._here.waits.knows(call_id):
            return self._live
        below = [live for live in self._live.tree() if live.waits.knows(call_id)]
        if len(below) > 1:
            names = ", ".join(live.run_id for live in below)
            raise RunError(f"several runs have a call {show(call_id)}: {names}; say it to one, supervisor.run(run_id)")
        return below[0] if below else self._live

    @property
    def children(self) -> tuple[Run[Any], ...]:
        """The runs that it delegated to, oldest first."""
        return tuple(Run[Any](child, self._runtime) for child in self._live.children)

    @property
    def memory(self) -> Memory:
        """The scope of memory that it reads and writes; it can be read after the run has ended, too."""
        return self._live.memory

    @property
    def payload(self) -> Any:
        """A copy of its payload as it stands, of the type that the agent names; None where it has none.

        It can be read after the run has ended, too. Of a sub-agent it is its own part of the lead's.
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
        """Change the run's payload, all at once or not at all. Returns once it is durable.

        A path is ``"author.name"``, or its parts in a tuple where a name has a dot in it; "" is the whole. A tool that
        is under way and changes the same place is told that it came second. A cancelled call has changed it, or has
        not.

        Args:
            values: What to put where, by path.
            append: One item for the end of each list, by path.
            remove: Paths of what to take out of a mapping.

        Raises:
            PayloadInvalid: The payload would not fit its type, or there is no such place; nothing was changed.
            ConfigurationError: The run has no payload, or these are no mappings by path, nor a list of paths.
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
                raise RunError(f"run {self.id} has ended ({live.state}); its payload is not changed any more")
            records, _ = changes_of(live, draft.staged("caller"))
            live.shared.journal.submit(records)
            live.adopt_payload(records)
        await live.shared.journal.write(())

    def statistics(self, *, tree: bool = False) -> RunStatistics:
        """What it did and cost so far, in all processes; with ``tree``, together with all runs below it.

        The same figures as ``repertory stats``, the service and the SQL views give: sums over the journal's records.
        """
        return self._live.tally.tree(self.id) if tree else self._live.statistics

    @property
    def listener_errors(self) -> int:
        """How often a lifecycle listener raised in this process."""
        return self._live.listener_errors

    def events(self, *, tree: bool = False) -> EventReader:
        """Watch the run to its end, from where this process took it up, or from its oldest event in memory.

        Args:
            tree: Watch the runs below it as well.
        """
        live, run_id, below = self._live, self.id, f"{self.id}."

        def is_ours(event: Event) -> bool:
            return event.run_id == run_id or (tree and event.run_id.startswith(below))

        return live.shared.hub.reader(is_ours, since=live.first_event, until=lambda: live.end_of_events)

    def stream(self, *, from_start: bool = False) -> StreamReader:
        """Read along what the model says, as it comes, from the answer that is on its way now to the run's end.

        A run that is asked again has a stream for each turn; this is that of the newest.

        ``async for piece in run.stream()`` gives ``TextStreamed``, ``ThinkingStreamed``, ``ToolCallStreamed``, and
        ``StreamRestarted`` where a call broke off: what came of that answer is void then. Nothing of it is kept, and a
        slow reader slows nobody: it gets more at once. The record has each answer once it is complete.

        Args:
            from_start: Begin with the first answer of the turn, or the oldest of the last four, so that nothing is
                missed between ``send`` and this.
        """
        return self._live.stream.reader(from_start=from_start)

    async def wait_ended(self) -> RunState:
        """Wait until the run has ended, however it does, and say how it stands.

        That is no final state where the supervisor was closed first. A run that goes on after its end has ended.

        Raises:
            JournalError: The journal failed, so that nothing can be recorded of it any more.
        """
        live = self._live
        await live.ended.wait()
        if live.lost is not None:
            raise live.lost
        return live.state if live.end is None else live.end.state

    async def wait_result(self) -> ResultT:
        """Wait until the run has its result, and return it: a value of the agent's ``output``, by default its text.

        Raises:
            RunFailed: It ended with an error; ``__cause__`` holds it.
            ResultInvalid: It ended well, in an earlier process, and its result does not fit the agent's ``output`` of
                now; the journal has it as it was.
            RunStopped: It was stopped first, or the supervisor was closed.
            JournalError: The journal failed, so that nothing can be recorded of it any more.
        """
        live = self._live
        await live.ended.wait()
        return self._read_end(live)

    def _read_end(self, live: LiveRun) -> ResultT:
        """The result of a run that has ended, or why it has none."""
        if live.lost is not None:
            raise live.lost
        if live.end is not None and live.end.state == "done":
            return self._read_result(live.end.result or "")
        if live.end is not None and live.end.state == "failed":
            raise RunFailed(f"run {self.id} of {self.agent.name} failed: {live.end.error}") from live.end.cause
        raise RunStopped(f"run {self.id} of {self.agent.name} was stopped after {live.iteration} iterations")

    def _read_result(self, text: str) -> ResultT:
        return cast("ResultT", read_result(self.agent.output_type, text, where=f"the result of run {self.id}"))

    async def send(self, text: str, *, message_id: str | None = None) -> None:
        """Say something to the run. Returns once it is durable; the model reads it at its next iteration.

        A run that has ended goes on with it, whether it was done, failed or stopped: everything that was said and done
        is before its model, and its limits count on, but for ``Limits.iterations``. A cancelled call has said it and it
        will be heard, or has said nothing; see ``docs/semantics.md``.

        Args:
            text: What to say.
            message_id: Makes the call safe to repeat: what was said under the same id is heard once, also if this
                process or an earlier one did not come to know that it was. 1 to 200 printable characters without
                spaces; None makes one.

        Raises:
            RunError: The supervisor is closed; the run has ended and is a sub-agent's; or something else was said under
                this id.
            ConfigurationError: There is nothing to say, or the id is malformed.
            ContextMissing: It goes on, was given a context when it was spawned, and ``resume`` was given none.
        """
        await self._say(text, _checked_id(message_id))

    async def ask(self, text: str, *, message_id: str | None = None) -> ResultT:
        """Say something to the run, as ``send`` does, and wait for the answer to it.

        That is the answer that stands when somebody next says something to the run, or when it is done. Of questions
        that are asked side by side, each gets the first answer that follows it; one answer may be that to several. A
        cancelled call leaves the question asked; ``pause``, ``stop`` and ``kill`` treat it as any work.

        Args:
            text: What to ask.
            message_id: Makes the call safe to repeat, also in another process: it is asked once, and its answer comes
                each time. A run that failed or was stopped over the question goes on with it. None makes one.

        Returns:
            The answer: a value of the agent's ``output``, by default its text.

        Raises:
            RunFailed: The run ended with an error before it had an answer; ``__cause__`` holds it.
            RunStopped: It was stopped first, or the supervisor was closed.
            RunError, ConfigurationError, ContextMissing: As ``send``.
            JournalError: The journal failed, so that nothing can be recorded of it any more.
        """
        message_id = _checked_id(message_id)
        await self._say(text, message_id, again=True)
        form = result_form(self._live)
        while True:
            live = self._live
            result = live.end.result if live.end is not None and live.ended.is_set() else None
            answer = answer_to(live.ledger.snapshot(), message_id, form, result=result)
            if answer is not None:
                return self._read_result(answer)
            if live.ended.is_set():
                return self._read_end(live)
            await live.wait_for_wish()

    async def _say(self, text: str, message_id: str, *, again: bool = False) -> None:
        check_text("a message", text)
        journal = self._live.shared.journal
        said = Said(journal.redact(text))  # as it will be read back, to tell whether it was said before
        await anyio.lowlevel.checkpoint()
        await say(self._runtime, self._live, message_id, said, again=again)
        await journal.write(())

    async def summary(self, *, start_iteration: int = 0) -> SummaryStored | None:
        """The newest summary that covers an iteration, whether or not it is in view; also of a run that was resumed.

        ``text_of(summary.content)`` are its words, ``first`` and ``last`` the positions it covers.

        Args:
            start_iteration: The first iteration that is wanted; 0 for the beginning.

        Returns:
            The summary; None where none covers that iteration yet.

        Raises:
            ConfigurationError: ``start_iteration`` is no whole number.
            ActorStopped: The supervisor is closed; the journal has it still, see ``Journal.read_summaries``.
        """
        check_value("Run.summary: start_iteration", start_iteration, int)
        found: SummaryStored | None = await self._live.shared.summarizer.ask(GetSummary(self.id, start_iteration))
        return found

    def view(self) -> list[ViewEntry]:
        """Every entry of its record, oldest first: how the model sees it, and what is behind what was shortened."""
        return list_view(self._live.ledger.snapshot(), self._live.plan)

    async def expand(self, position: int, *, items: tuple[int, int] | None = None, reason: str = "") -> None:
        """Show the model an entry again that was shortened, removed or covered, from its next request on.

        Returns once it is durable. It is left alone for a few iterations, then it may be shortened again; ``pin`` it
        to keep it. This edits the past: what stands behind the entry is written to the prompt cache again.

        Args:
            position: The entry, as ``view`` lists it.
            items: The first and last line to show, counted from 1; None for all.
            reason: Why, for the record.

        Raises:
            ContextError: There is no such entry, nothing to expand, or the lines are none.
            RunError: The run has ended.
        """
        check_value("Run.expand", (position, items, reason), tuple[int, tuple[int, int] | None, str])
        await (await self._here.view()).expand(position, items, reason)

    async def pin(self, position: int) -> None:
        """Keep an entry in view as it stands in the record, from the next request on, whatever happens around it.

        Raises:
            ContextError: There is no such entry.
            RunError: The run has ended.
        """
        await self._pin(position, on=True)

    async def unpin(self, position: int) -> None:
        """Treat an entry like any other again.

        Raises:
            ContextError: There is no such entry.
            RunError: The run has ended.
        """
        await self._pin(position, on=False)

    async def _pin(self, position: int, *, on: bool) -> None:
        check_value("Run.pin", position, int)
        await (await self._here.view()).pin(position, on=on)

    def forget_results(self) -> None:
        """Make every tool call again that comes from now on: something outside has changed what earlier ones saw.

        Else the call of a pure tool that was made before with the same arguments is answered from its result.
        """
        self._live.repeats.clear()

    def stop(self) -> None:
        """End the run at its next boundary: after the model call or the tools that are under way."""
        live = self._here
        live.stop_asked = True
        self._runtime.stop_queued(live)
        live.wish_for("stop")

    def kill(self) -> None:
        """End the run now, cancelling what is under way. What is in the record stays."""
        live = self._here
        live.stop_asked = True
        self._runtime.stop_queued(live)
        live.kill()

    def pause(self) -> None:
        """Hold the run at its next boundary until ``resume``; one that is queued leaves the queue."""
        live = self._here
        live.wish_for("pause")
        self._runtime.pause_queued(live)

    def resume(self) -> None:
        """Let a paused run go on; one that was paused in the queue comes to its end."""
        live = self._here
        live.wish_for("go")
        self._runtime.requeue(live)


def _checked_id(message_id: str | None) -> str:
    if message_id is None:
        return new_id("msg")
    words = "have 1 to 200 printable ASCII characters without spaces"
    check_pattern("message_id", message_id, _MESSAGE_ID, words)
    return message_id
