"""The life of a tool call: asked for in a turn, answered from an earlier one or run between its durable intent and its
durable outcome, its result shaped on arrival; and what becomes of those that a crash or an end left open.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from threading import get_ident
from typing import Any, Literal, TypeAlias

import anyio
import msgspec
from anyio import RunFinishedError, from_thread
from anyio.lowlevel import current_token

from repertory._frozen import thaw
from repertory.agents.answers import Answer
from repertory.agents.delegation import REPORTING
from repertory.agents.events import (
    AnyEvent,
    ResultAwaited,
    StateChanged,
    ToolEnded,
    ToolProgress,
    ToolStarted,
    to_record,
)
from repertory.agents.live import LiveRun
from repertory.agents.log import log
from repertory.agents.outside import EndedWaiting, wait_for_result
from repertory.agents.payloads import changes_of
from repertory.agents.permission import Permitted, Refused, ask_permission, edit_note, needs_permission
from repertory.agents.policies import enabled, layered_policy, tools_of
from repertory.agents.sharing import shared_with
from repertory.agents.teams import Unfinished
from repertory.agents.turns import result_form
from repertory.context.shaping import Shaped, shape_result, whole_of
from repertory.errors import JournalError, LimitExceeded, RecordRefused, RepertoryError, ToolAbort
from repertory.llm.json_outputs import FINAL_RESULT
from repertory.llm.messages import Text, ToolResult, ToolUse, text_of, tool_uses
from repertory.memory.documents import show_path
from repertory.memory.payload import Payload
from repertory.record import Draft, Entry, Journal, Ledger, Snapshot
from repertory.record.entries import Retrieved
from repertory.record.records import (
    ContentStored,
    OutcomeStatus,
    PayloadChanged,
    Record,
    SearchHit,
    ToolCallRow,
    ToolFinished,
    ToolIntended,
)
from repertory.record.waiting import Ticket
from repertory.tools import (
    EarlierCall,
    RunRecord,
    Tool,
    ToolContext,
    ToolOutput,
    arguments_digest,
    execute,
    unknown_tool,
)
from repertory.tools.decorator import DEFAULT_OUTPUT_CAP
from repertory.tools.media import without_documents
from repertory.tools.output import to_output
from repertory.tools.threads import MAX_ON_LOOP, compute

Fate: TypeAlias = Literal["run", "interrupted"]

INTERRUPTED = (
    "[interrupted; effect unknown] The process ended while this tool was running, and it is not safe to run it "
    "again unseen. It may have done all, part or nothing of its work: find out before you repeat it."
)
CLOSED = (
    "[ended; effect unknown] The run was ended before this call had a result. It may not have begun, or have done all, "
    "part or nothing of its work."
)
NOT_MADE = "[ended] The run was ended before anybody allowed this call; it was not made."
_LEAST_POINTED = 300  # characters; less is repeated rather than pointed at
_TRACEBACK = 16_000  # characters of one that is kept; the end says what was raised, and where
_RECENT = 2  # iterations for which a result is taken to stay as it is
_TOLD = ("call_id", "tool", "status", "characters", "shown", "duration", "retrieval")  # by the event, of the record


class OpenCall(msgspec.Struct, frozen=True):
    """A tool call without a result.

    Attributes:
        use: The call.
        position: The place in the ledger of the turn that asked for it.
        index: Which of that turn's calls it is, from 0.
        fate: ``run`` where it never began or may be run again; ``interrupted`` where its effect is unknown.
        begun: Whether it began, in a process that came to its end.
    """

    use: ToolUse
    position: int
    index: int
    fate: Fate = "run"
    begun: bool = False

    def idempotency_key(self, run_id: str, arguments_digest: str) -> str:
        """The key under which it runs, over restarts too: it follows from its place and its arguments."""
        parts = f"{run_id}\0{self.position}\0{self.index}\0{arguments_digest}"
        return hashlib.blake2b(parts.encode(), digest_size=16).hexdigest()


def calls_of(turn: Entry) -> list[OpenCall]:
    """The tool calls that a turn asks for, in order."""
    return [OpenCall(use, turn.position, index) for index, use in enumerate(tool_uses(turn.content))]


def open_calls(entries: Sequence[Entry], calls: Iterable[ToolCallRow]) -> list[OpenCall]:
    """Find the calls of the last turn that have no result, and say what is to become of each.

    A result is written in the same transaction as its outcome, so a call without a result has no outcome. If it
    has no intent either it never began. Otherwise its declared effect decides: ``pure`` and ``idempotent`` calls
    run again (with the same key), ``transactional`` ones too, since their effect would have been committed with
    the outcome, and ``unsafe`` ones never.

    Args:
        entries: The run's ledger.
        calls: The run's tool calls, as journalled.
    """
    last = next((entry for entry in reversed(entries) if entry.role == "assistant"), None)
    if last is None:
        return []
    answered = {
        block.tool_use_id
        for entry in entries[last.position :]
        for block in entry.content
        if isinstance(block, ToolResult)
    }
    unsafe = {row.intended.call_id for row in calls if row.intended.effect == "unsafe"}
    begun = {row.intended.call_id for row in calls}
    return [
        msgspec.structs.replace(
            call, fate="interrupted" if call.use.id in unsafe else "run", begun=call.use.id in begun
        )
        for call in calls_of(last)
        if call.use.id not in answered
    ]


async def close_calls(journal: Journal, ledger: Ledger, *, iteration: int, at: float) -> None:
    """Give every open call of a run that will never go on a result, so that its record is whole.

    Nobody else may append to its ledger any more. ``iteration`` is the run's last, ``at`` in seconds since 1970.
    """
    run_id = ledger.run_id
    uses = [call.use for call in open_calls(ledger.snapshot(), await journal.read_tool_calls(run_id))]
    if uses:
        results = [error_result(use, CLOSED, iteration) for use in uses]
        ends = [ToolFinished(run_id=run_id, call_id=use.id, tool=use.name, status="interrupted", at=at) for use in uses]
        await ledger.append(*results, also=ends)


def error_result(use: ToolUse, text: str, iteration: int) -> Draft:
    """The result of a call that is not made: what the model is told instead."""
    return tool_result(use, text, iteration, wrong=True)


def tool_result(use: ToolUse, text: str, iteration: int, *, wrong: bool = False) -> Draft:
    """The result of a call that no tool ran for."""
    return Draft(
        role="user",
        kind="action-result",
        content=(ToolResult(use.id, text, is_error=wrong),),
        iteration=iteration,
        tool=use.name,
        tool_call_id=use.id,
    )


class Caller:
    """Makes the tool calls of one run.

    Attributes:
        tools: By name.
        form: How the model gives the run's result; None for text.
    """

    def __init__(self, live: LiveRun, team_tools: Iterable[Tool]) -> None:
        """Prepare for a run; ``team_tools`` are those by which it delegates."""
        self._live = live
        self._journal = live.shared.journal
        self.tools: dict[str, Tool] = {
            tool.name: tool for tool in (*tools_of(live.agent, live.opened_tools), *enabled(live.agent, team_tools))
        }
        self._policy = layered_policy(live)
        self.form = result_form(live)
        self._reading = _Reading(live)
        self.known_ids: set[str] = set()  # of all calls of the run, those without a result too

    def open(self, snapshot: Snapshot) -> None:
        """Take up the calls where the record left them; answer none from what was seen before."""
        turns = (entry for entry in snapshot if entry.role == "assistant")
        self.known_ids = {use.id for turn in turns for use in tool_uses(turn.content)}
        self._live.repeats.clear()
        if self._live.state == "waiting":  # an earlier incarnation of the actor was, and its calls are taken up again
            self._live.state = "running"
            self._live.publish(StateChanged, state="running")
            self._journal.submit([self._live.state_record("running")])

    async def keep(self, answer: Answer, iteration: int, records: Sequence[Record]) -> list[OpenCall]:
        """Make an answer durable in one transaction with its records, and a result for each call not to be made.

        Returns:
            Its other calls, which may be run from now on.
        """
        content, reason = answer.content, answer.stop_reason
        turn = Draft(role="assistant", kind="assistant", content=content, iteration=iteration, stop_reason=reason)
        uses = tool_uses(content)
        results = [error_result(use, answer.unmade[use.id], iteration) for use in uses if use.id in answer.unmade]
        ends = [self._end_of(result, "error") for result in results]
        also = [*records, *(record for finished, ended in ends for record in (finished, to_record(ended)))]
        entry, *_ = await self._live.ledger.append(turn, *results, also=also)
        self.known_ids.update(use.id for use in uses)
        for _, ended in ends:
            self._live.show(ended)
        return [call for call in calls_of(entry) if call.use.id not in answer.unmade]

    async def run(self, calls: Sequence[OpenCall], iteration: int) -> LimitExceeded | None:
        """Make calls side by side, as many at once as the limits allow; each result is durable on its own.

        Equal ones that may be answered from one another come one after the other. Calls that give the run's result are
        answered once all others of their turn are.

        Returns:
            The limit that has forbidden all of them; None where any was made.

        Raises:
            ToolAbort: A tool ended the run. The other calls are finished first, so that every call has a result.
            JournalError: A call could not be recorded.
        """
        if not calls:
            return None
        refused: list[LimitExceeded] = []
        limiter = anyio.CapacityLimiter(self._live.agent.limits.parallel_tools)
        aborts: list[ToolAbort | JournalError] = []

        async def each(equal: Sequence[OpenCall]) -> None:
            for call in equal:
                try:
                    await self._call(call, iteration, limiter)
                    self._live.waits.close(call.use.id)
                except LimitExceeded as error:
                    refused.append(error)
                    told = f"{call.use.name} was not run: {error}. Answer with what you have."
                    await self._keep(error_result(call.use, told, iteration), "error")
                except (ToolAbort, JournalError) as error:
                    aborts.append(error)
                except Unfinished:
                    pass  # the supervisor closes; the call stays open for the process that resumes the run

        async with anyio.create_task_group() as group:
            for equal in self._equal([call for call in calls if not self._is_final(call.use)]):
                group.start_soon(each, equal)
        await self._take_result(calls, iteration)
        if aborts:
            raise aborts[0]
        return refused[0] if len(refused) == len(calls) else None

    def _is_final(self, use: ToolUse) -> bool:
        return self.form is not None and bool(self.form.schemas) and use.name == FINAL_RESULT

    async def _take_result(self, calls: Sequence[OpenCall], iteration: int) -> None:
        """Answer the calls that give the run's result, all at once.

        Raises:
            ResultInvalid: It does not fit, and it was the last that may not.
        """
        if self.form is None or not any(self._is_final(call.use) for call in calls):
            return
        snapshot, place = self._live.ledger.snapshot(), calls[0].position
        results = {entry.tool_call_id: entry for entry in snapshot[place + 1 :]}
        replies = self.form.reply(snapshot[place], results)
        if replies:
            told = [tool_result(reply.use, reply.text, iteration, wrong=reply.error is not None) for reply in replies]
            await self._live.ledger.append(*told)
        for reply in replies:
            if reply.error is not None:
                self.form.count(reply.error)

    def _equal(self, calls: Sequence[OpenCall]) -> Iterable[Sequence[OpenCall]]:
        """Calls in groups of which the first may answer the others."""
        groups: dict[str, list[OpenCall]] = {}
        for call in calls:
            tool = self.tools.get(call.use.name)
            same = tool is not None and tool.repeatable and self._live.repeats.remembers
            key = arguments_digest(call.use.name, call.use.input) if same else call.use.id
            groups.setdefault(key, []).append(call)
        return groups.values()

    async def _call(self, call: OpenCall, iteration: int, limiter: anyio.CapacityLimiter) -> None:
        """Bring one call to its result, in whichever way it gets one.

        While it waits for somebody outside, it takes no place among the tools at work.

        Raises:
            LimitExceeded: It may not be made.
            Unfinished: It stays open until the run is resumed.
        """
        use, waits = call.use, self._live.waits
        tool = self.tools.get(use.name)
        try:
            if use.id in waits.awaited or use.id in waits.given:  # it was made, in an earlier process
                await self._bring_in(use, iteration)
            elif call.fate == "interrupted":
                await self._keep(error_result(use, INTERRUPTED, iteration), "interrupted")
            elif tool is None:
                await self._append(use, unknown_tool(use.name, self.tools), iteration)
            else:
                permitted = Permitted(use.input)
                if needs_permission(self._live, tool):
                    permitted = await ask_permission(self._live, tool, use)
                # Who waits for a sub-agent is no tool at work; how many of those work at once, their lead says.
                async with nullcontext() if use.name in REPORTING else limiter:
                    await self._repeat_or_make(call, tool, permitted, iteration)
                if use.id in waits.awaited:
                    await self._bring_in(use, iteration)
        except Refused as refused:
            await self._keep(error_result(use, str(refused), iteration), "error")
        except EndedWaiting:
            if use.id in waits.awaited:
                await self._keep(error_result(use, CLOSED, iteration), "interrupted")
            else:
                await self._keep(error_result(use, NOT_MADE, iteration), "error")

    async def _repeat_or_make(self, call: OpenCall, tool: Tool, permitted: Permitted, iteration: int) -> None:
        """Answer a call from an earlier one where that can be, else make it."""
        digest = arguments_digest(tool.name, permitted.arguments)
        earlier = self._live.repeats.find(tool, digest) if not permitted.note else None
        if earlier is None or not await self._repeat(call.use, earlier, iteration):
            if not call.begun:
                self._live.spending.begin_tool()
            await self._make(call, tool, permitted, digest, iteration)

    async def _bring_in(self, use: ToolUse, iteration: int) -> None:
        """Wait for a result that comes from elsewhere, and keep it like any other."""
        waits, tool = self._live.waits, self.tools.get(use.name)
        given = waits.given.get(use.id) or await wait_for_result(self._live, waits.awaited[use.id])
        await waits.durable(given)
        cap = DEFAULT_OUTPUT_CAP if tool is None else tool.output_cap
        output = to_output(given.result, name=use.name, cap=cap)
        if given.is_error:
            output = msgspec.structs.replace(output, status="error")
        decided = waits.decided.get(use.id)
        await self._append(use, output, iteration, note="" if decided is None else edit_note(decided))
        if tool is None or tool.effect != "pure":
            self._live.repeats.clear()

    async def _repeat(self, use: ToolUse, earlier: EarlierCall, iteration: int) -> bool:
        """Answer a call from an earlier one: point at its result, or show what that showed, under its citation."""
        entries = reversed(self._live.ledger.snapshot())
        entry = next((entry for entry in entries if entry.tool_call_id == earlier.call_id), None)
        if entry is None:
            return False
        told: Any = self._pointer(earlier, entry)
        same: dict[str, Any] = {"role": "user", "kind": entry.kind, "tool": use.name}
        if not told:
            same = {name: getattr(entry, name) for name in Draft.__struct_fields__}
            shown = next(block.content for block in entry.content if isinstance(block, ToolResult))
            told = f"{earlier.note}\n{shown}" if isinstance(shown, str) else (Text(earlier.note), *shown)
            shift = len(earlier.note) + 1
            spans = entry.spans or ((0, len(text_of(entry.content))),)
            same["spans"] = tuple((start + shift, end + shift) for start, end in spans)
        same |= {"content": (ToolResult(use.id, told),), "iteration": iteration, "tool_call_id": use.id}
        same["deduplicated_from"] = earlier.call_id
        await self._keep(Draft(**same), "ok")
        return True

    async def _make(self, call: OpenCall, tool: Tool, permitted: Permitted, digest: str, iteration: int) -> None:
        """Run the tool's body between its intent and its outcome, or what says that the outcome comes later."""
        live, use, arguments = self._live, call.use, permitted.arguments
        key = call.idempotency_key(live.run_id, digest)
        intended = ToolIntended(
            run_id=live.run_id,
            call_id=use.id,
            tool=tool.name,
            effect=tool.effect,
            arguments=arguments,
            arguments_digest=digest,
            idempotency_key=key,
            iteration=iteration,
            at=live.shared.clock(),
        )
        started = live.event(ToolStarted, call_id=use.id, tool=tool.name, arguments=arguments)
        ticket = self._journal.submit([intended, to_record(started)])
        if tool.effect != "pure":
            # A pure call may be repeated unseen, so it need not wait for the disk before it starts.
            await ticket.wait()
        live.show(started)
        mark = live.repeats.begin(tool)
        context = ToolContext(
            run_id=live.run_id,
            agent=live.agent.name,
            iteration=iteration,
            call_id=use.id,
            idempotency_key=key,
            arguments_digest=digest,
            record=self._reading,
            progress=self._progress_of(use),
            contents=self._reading,
            memory=live.memory,
            payload=Payload.draft(live.payload, changed_by=tool.effect),
            context=live.context,
        )
        live.waits.making.add(use.id)
        try:
            # A copy: what a tool does to its arguments is its own affair.
            with live.shared.telemetry.tool_call(live, tool, use) as ended:
                output = await execute(tool, thaw(arguments), context)
                ended(output)
        except ToolAbort as error:
            await self._append(use, ToolOutput(f"{tool.name} ended the run: {error}", status="error"), iteration)
            raise
        finally:
            live.waits.making.discard(use.id)
        is_open = output.later is not None and not output.is_error
        try:
            if is_open:
                await self._leave_open(use, output, context.payload)
            else:
                await self._append(use, output, iteration, context.payload, note=permitted.note)
        except RecordRefused as error:
            # The tool has done its work, so that is said once: a crash here would run it again.
            text = f"{tool.name} ran, but its result cannot be kept: {error}"
            output = ToolOutput(text, status="error", duration=output.duration)
            await self._append(use, output, iteration, note=permitted.note)
        ok = not (output.is_error or is_open)
        live.repeats.finish(tool, digest, mark, call_id=use.id, iteration=iteration, ok=ok)

    async def _leave_open(self, use: ToolUse, output: ToolOutput, payload: Payload) -> None:
        """Record that the result of a call comes from elsewhere, with what the call changed already."""
        live, later = self._live, output.later
        assert later is not None
        expires_at = None if later.timeout is None else live.shared.clock() + later.timeout
        awaited = live.event(ResultAwaited, call_id=use.id, tool=use.name, note=later.note, expires_at=expires_at)
        assert isinstance(awaited, ResultAwaited)
        async with nullcontext() if live.payload is None else live.changing_payload():
            changes, conflicts = changes_of(live, payload.staged("tool", use.name), call_id=use.id)
            records = [to_record(awaited), *output.records, *changes, *map(to_record, conflicts)]
            ticket = self._journal.submit(self._journal.redact(records))
            live.adopt_payload(changes)
        live.waits.awaited[use.id] = awaited
        await ticket.wait()
        told: list[AnyEvent] = [awaited, *conflicts]
        for event in told:
            live.show(event)

    async def _append(
        self, use: ToolUse, output: ToolOutput, iteration: int, payload: Payload | None = None, *, note: str = ""
    ) -> None:
        """Shape a result and keep it, with what the call changed of the payload; ``note`` stands behind it.

        The content store takes the whole where the model is shown less, and memory where the policy says so.
        """
        output, shaped = await compute(partial(self._arrive, use, output), size=len(output.text))
        stored = None if shaped.content_id is None else self._stored(use, output, shaped)
        staged = [] if payload is None or output.is_error else payload.staged("tool", use.name)
        # From here to its being submitted no other change of the payload may come between.
        async with nullcontext() if self._live.payload is None else self._live.changing_payload():
            changes, conflicts = changes_of(self._live, staged, call_id=use.id, stored=stored)
            notes = "\n".join(text for text in (note, _note_on(changes)) if text)
            draft = self._draft_of(use, output, shaped, iteration, note=notes)
            records = [*([] if stored is None else [stored]), *output.records, *changes, *map(to_record, conflicts)]
            crash = output.error.traceback if output.error is not None and output.error.cause == "crash" else ""
            finished, ended = self._end_of(draft, output.status, duration=output.duration, error=crash[-_TRACEBACK:])
            records = [finished, to_record(ended), *records]
            ticket = await self._remember(use, output, draft, records) if self._is_remembered(use, output) else None
            if ticket is None:
                submit = partial(self._live.ledger.submit, draft, also=records)
                ticket = await compute(submit, size=finished.characters)
            self._live.adopt_payload(changes)
        await ticket.wait()
        for event in (ended, *conflicts):
            self._live.show(event)

    def _is_remembered(self, use: ToolUse, output: ToolOutput) -> bool:
        """Whether a result becomes an item of memory: not what came from there, or from the record."""
        if self._policy is None or output.is_error or output.retrieved is not None or output.source_type == "memory":
            return False
        return self._policy.rules(use.name).remember and bool(output.text)

    async def _remember(
        self, use: ToolUse, output: ToolOutput, draft: Draft, records: Sequence[Record]
    ) -> Ticket | None:
        """Write a result together with an item of memory that holds it; None where memory does not take it."""
        live, tickets = self._live, list[Ticket]()

        def write(items: Sequence[Record]) -> Ticket:
            tickets.append(live.ledger.submit(draft, also=[*records, *items]))
            return tickets[0]

        # What is very long is not copied: the item holds what was shown of it, which names the citation.
        text = output.text if len(output.text) <= MAX_ON_LOOP else text_of(draft.content)
        metadata = {"run": live.run_id, "agent": live.agent.name, "iteration": draft.iteration}
        try:
            with anyio.CancelScope(shield=True):  # the tool has done its work, and that must be on record
                await live.memory.store(
                    text,
                    type="action_result",
                    item_id=self._citation(use),
                    source=output.url or use.name,
                    tags=(use.name,),
                    related_to=(use.id,),
                    metadata={**metadata, "size": len(output.text)},
                    write=write,
                )
        except RepertoryError as error:
            if not tickets:  # else whoever waits for the ticket is told
                log(logging.WARNING, "result.not.remembered", run=live.run_id, tool=use.name, reason=str(error))
        return tickets[0] if tickets else None

    def _citation(self, use: ToolUse) -> str:
        """The id of what a call gave, in the content store and in memory."""
        return "c-" + hashlib.blake2b(f"{self._live.run_id}\0{use.id}".encode(), digest_size=5).hexdigest()

    def _draft_of(self, use: ToolUse, output: ToolOutput, shaped: Shaped, iteration: int, *, note: str) -> Draft:
        """The entry of a result; ``note`` is told to the model behind it."""
        content = shaped.content
        if note:
            content = f"{content}\n{note}" if isinstance(content, str) else (*content, Text(note))
        return Draft(
            role="user",
            kind="sub-agent-result" if use.name in REPORTING else "action-result",
            content=(ToolResult(use.id, content, is_error=output.is_error),),
            iteration=iteration,
            tool=use.name,
            tool_call_id=use.id,
            content_id=shaped.content_id,
            original_length=shaped.original_length,
            gist=shaped.gist,
            spans=shaped.spans,
            url=output.url,
            facts=output.facts,
            retrieved=output.retrieved,
            covered=self._brings_back_covered(output.retrieved),
            pinned=output.pin,
            metadata=output.metadata,
        )

    def _stored(self, use: ToolUse, output: ToolOutput, shaped: Shaped) -> ContentStored:
        """What the content store takes in of a result that is cited."""
        return ContentStored(
            content_id=shaped.content_id or "",
            run_id=self._live.run_id,
            source_type=output.source_type,
            source=use.name,
            # What the ledger holds whole is read from there; what it does not, stands here alone.
            body="" if text_of(shaped.content) == output.text else output.text,
            length=len(output.text),
            at=self._live.shared.clock(),
            url=output.url,
            format=output.format,
            retention=self._policy.rules(use.name).retention if self._policy is not None else None,
            metadata=output.metadata,
        )

    def _arrive(self, use: ToolUse, output: ToolOutput) -> tuple[ToolOutput, Shaped]:
        """A result without what is to be redacted, and what the model first sees of it; callable from any thread."""
        output = self._journal.redact(output)
        if not self._live.model.profile.documents:
            output = msgspec.structs.replace(output, content=without_documents(output.content))
        return output, self._shape(use, output)

    def _shape(self, use: ToolUse, output: ToolOutput) -> Shaped:
        """Decide what the model first sees of a result."""
        if self._policy is None or output.paged or output.retrieved is not None:
            # What the agent fetched again comes page by page already, and is not to be taken away at once.
            return Shaped(content=output.content)
        return shape_result(
            output.content,
            rules=self._policy.rules(use.name),
            content_id=self._citation(use),
            tool=use.name,
            url=output.url,
            facts=output.facts,
        )

    async def _keep(self, draft: Draft, status: OutcomeStatus) -> None:
        """Make a result durable together with its outcome."""
        finished, ended = self._end_of(draft, status)
        await self._live.ledger.append(draft, also=[finished, to_record(ended)])
        self._live.show(ended)

    def _end_of(self, draft: Draft, status: OutcomeStatus, **more: Any) -> tuple[ToolFinished, AnyEvent]:
        """The record of how a call ended, and the event that says so."""
        shown = len(text_of(draft.content))
        finished = ToolFinished(
            run_id=self._live.run_id,
            call_id=draft.tool_call_id or "",
            tool=draft.tool or "",
            status=status,
            at=self._live.shared.clock(),
            deduplicated_from=draft.deduplicated_from or None,
            retrieval=draft.retrieved is not None,
            covered=draft.covered,
            characters=draft.original_length or shown,
            shown=shown,
            **more,
        )
        told = {name: getattr(finished, name) for name in _TOLD}
        return finished, self._live.event(ToolEnded, **told, deduplicated=finished.deduplicated_from is not None)

    def _progress_of(self, use: ToolUse) -> Callable[[str], None]:
        """What a tool calls to say how far it is; from any thread, as plain functions run in one."""
        live, token, home = self._live, current_token(), get_ident()

        def show(text: str) -> None:
            live.show(live.event(ToolProgress, call_id=use.id, tool=use.name, text=text))

        def tell(text: str) -> None:
            if get_ident() == home:
                show(text)
            else:
                with suppress(RunFinishedError):  # a thread that was left behind has nobody to tell
                    from_thread.run_sync(show, text, token=token)

        return tell

    def _pointer(self, earlier: EarlierCall, entry: Entry) -> str:
        """What stands for a repeated result whose first telling is in view and stays there; "" where it is not.

        Only the newest results count: older ones may be shortened with the very next request, and then the pointer
        would lead to nothing.
        """
        length = len(text_of(entry.content))
        if self._policy is None or length <= _LEAST_POINTED:
            return ""
        plan, recent = self._live.plan, self._live.iteration - _RECENT
        whole = plan.representation(entry) in ("verbatim", "shaped", "expanded")
        if not whole or (entry.iteration < recent and entry.position not in plan.pins):
            return ""
        size = f"{length:,} of {entry.original_length:,}" if entry.original_length else f"{length:,}"
        cited = whole_of(entry, self._policy.rules(entry.tool)) if entry.content_id else ""
        return (
            f"[already called in iteration {earlier.iteration} with the same arguments; that result ({size} "
            f"characters, call {earlier.call_id}) stands above, unchanged{cited}]"
        )

    def _brings_back_covered(self, retrieved: Retrieved | None) -> bool:
        """Whether a retrieval brought back what a summary stands for."""
        if retrieved is None or retrieved.hint:
            return False
        wanted, cited, plan = retrieved.positions, retrieved.content_id or None, self._live.plan
        return any(
            plan.representation(entry) == "covered"
            for entry in self._live.ledger.snapshot()
            if entry.position in wanted or (cited and entry.content_id == cited)
        )


def _note_on(changes: Sequence[PayloadChanged]) -> str:
    """What the model is told of changes of the payload that were not made; "" where all were."""
    lines = [
        f"{show_path(conflict.change.path)}: "
        + (f"changed in version {conflict.version} already" if conflict.version else conflict.reason)
        + f"; this value is kept in the record of version {record.version} alone"
        for record in changes
        for conflict in record.conflicts
    ]
    said = "[payload: not everything could be changed, as others changed it meanwhile."
    return "\n".join([said, *lines]) + "]" if lines else ""


class _Record:
    """The record of one run, to read."""

    def __init__(self, journal: Journal, run_id: str, entries: Sequence[Entry]) -> None:
        self._journal = journal
        self._run_id = run_id
        self._entries = entries

    def snapshot(self) -> Sequence[Entry]:
        return self._entries

    async def search(self, query: str, *, limit: int = 20) -> Sequence[SearchHit]:
        return await self._journal.search_entries(self._run_id, query, limit=limit)

    async def of_run(self, run_id: str) -> None:
        """Nobody else's: what may be read is asked of the run that reads."""

    def others(self) -> Sequence[str]:
        return ()


class _Reading:
    """What the tools of a run may read: its own record, those below it and shared with it, and its tree's contents.

    A citation id is no secret: it stands in answers, logs and URLs. So knowing one must not open another tree's
    contents.
    """

    def __init__(self, live: LiveRun) -> None:
        self._live = live
        self._journal = live.shared.journal

    def snapshot(self) -> Snapshot:
        return self._live.ledger.snapshot()

    async def search(self, query: str, *, limit: int = 20) -> Sequence[SearchHit]:
        return await self._journal.search_entries(self._live.run_id, query, limit=limit)

    async def of_run(self, run_id: str) -> RunRecord | None:
        if run_id == self._live.run_id:
            return self
        if not (run_id.startswith(f"{self._live.run_id}.") or run_id in shared_with(self._live)):
            return None
        entries = await self._journal.read_entries(run_id)
        return _Record(self._journal, run_id, entries) if entries else None

    def others(self) -> Sequence[str]:
        below = sorted(run_id for run_id in self._live.root.members if run_id.startswith(f"{self._live.run_id}."))
        return [*shared_with(self._live), *below]

    async def read_content(self, content_id: str) -> ContentStored | None:
        return await self._journal.read_content(content_id, root=self._live.root.run_id)
