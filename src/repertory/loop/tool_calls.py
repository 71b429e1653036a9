"""Making tool calls.

A call is answered from an earlier one, or runs between its durable intent and its durable outcome. Before either of
these it may wait for somebody outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import anyio
import msgspec
from anyio.lowlevel import checkpoint

from repertory._frozen import thaw
from repertory.agents.delegation import REPORTING
from repertory.errors import JournalError, LimitExceeded, RecordRefused, ToolAbort
from repertory.llm.json_outputs import FINAL_RESULT
from repertory.llm.messages import Text, ToolResult, ToolUse, text_of, tool_uses
from repertory.loop.kept_results import Results
from repertory.loop.open_calls import CLOSED, INTERRUPTED, NOT_MADE, OpenCall, calls_of, error_result, tool_result
from repertory.loop.outside import EndedWaiting, wait_for_result
from repertory.loop.permission import Permitted, Refused, ask_permission, edit_note, needs_permission
from repertory.loop.sharing import Reading
from repertory.memory.payload import Payload
from repertory.record import Draft, Entry, Snapshot
from repertory.record.records import Record, ToolIntended
from repertory.runs.attachments import read_attached
from repertory.runs.events import AnyEvent, ResultAwaited, ResultGiven, ToolProgress, ToolStarted, to_record
from repertory.runs.live import LiveRun
from repertory.runs.payloads import changes_of
from repertory.runs.waiting_calls import waiting_id
from repertory.shortening.shaping import retrieval_note
from repertory.tools import Tool, ToolContext, ToolOutput
from repertory.tools.context import GivenAnswer
from repertory.tools.decorator import DEFAULT_OUTPUT_CAP
from repertory.tools.execution import Unfinished, execute, unknown_tool
from repertory.tools.output import to_output
from repertory.tools.repeats import EarlierCall, arguments_digest
from repertory.tools.threads import from_any_thread
from repertory.views.answers import Answer
from repertory.views.policies import enabled, layered_policy, tools_of
from repertory.views.results import result_form

_LEAST_POINTED = 300  # characters; a shorter result is repeated instead of pointed at
_RECENT = 2  # iterations for which a result is assumed to stay as it is


class _Place(msgspec.Struct, eq=False):
    """The place of a call among those that are about to begin. They begin in the order of their places.

    What each waits for first, such as the disk, may be there for several at once, and trio then continues them in a
    random order.

    Attributes:
        before: The place before it; None if all calls before have begun.
        left: Set once the call has begun, or will not begin.
    """

    before: _Place | None = None
    left: anyio.Event = msgspec.field(default_factory=anyio.Event)

    async def wait_for_turn(self) -> None:
        """Wait until each call before it has begun, or will not begin."""
        while self.before is not None:
            await self.before.left.wait()
            self.before = self.before.before  # it may have left without waiting for its turn


class Caller:
    """Makes the tool calls of one run.

    Attributes:
        tools: The tools, by name.
        form: How the model gives the run's result; None for text.
    """

    def __init__(self, live: LiveRun, team_tools: Iterable[Tool]) -> None:
        """Prepare for a run; ``team_tools`` are the tools with which it delegates."""
        self._live = live
        self._journal = live.shared.journal
        self.tools: dict[str, Tool] = {
            tool.name: tool for tool in (*tools_of(live.agent, live.opened_tools), *enabled(live.agent, team_tools))
        }
        self._policy = layered_policy(live)
        self.form = result_form(live)
        self._results = Results(live, self._policy)
        self._reading = Reading(live)
        self.known_ids: set[str] = set()  # ids of all calls of the run, including those without a result
        self._last_places: dict[bool, _Place] = {}  # by whether the call reports of sub-agents

    def open(self, snapshot: Snapshot) -> None:
        """Prepare from the record; no call is answered from results before now."""
        turns = (entry for entry in snapshot if entry.role == "assistant")
        self.known_ids = {use.id for turn in turns for use in tool_uses(turn.content)}
        self._live.repeats.clear()
        if self._live.state == "waiting":  # an earlier incarnation waited, and its calls are taken up again
            self._live.enter("running")

    async def keep(self, answer: Answer, iteration: int, call: int, records: Sequence[Record]) -> list[OpenCall]:
        """Record the answer to a model call, its records, and a result for each tool call that is not made, in one
        transaction.

        Returns:
            The other calls, which may now be run.
        """
        turn = Draft(
            role="assistant",
            kind="assistant",
            content=answer.content,
            iteration=iteration,
            model_call=call,
            stop_reason=answer.stop_reason,
        )
        uses = tool_uses(answer.content)
        results, also, ends = list[Draft](), [*records], list[AnyEvent]()
        for use in uses:
            if use.id in answer.rejected:
                result = error_result(use, answer.rejected[use.id], iteration)
                finished, ended = self._results.end_of(result, "error")
                results.append(result)
                also += [finished, to_record(ended)]
                ends.append(ended)
        entry, *_ = await self._live.ledger.append(turn, *results, also=also)
        self.known_ids.update([use.id for use in uses])
        for ended in ends:
            self._live.show(ended)
        return [call for call in calls_of(entry) if call.use.id not in answer.rejected]

    async def run(self, calls: Sequence[OpenCall], iteration: int) -> LimitExceeded | None:
        """Make calls concurrently, as many at once as the limits allow; each result becomes durable on its own.

        They begin in the order in which the model wrote them. Equal calls that may be answered from one another run one
        after the other. Calls that give the run's result are answered after all other calls of their turn.

        Returns:
            The limit that has forbidden all of them; None if any was made.

        Raises:
            ToolAbort: A tool ended the run. The other calls are finished first, so that every call has a result.
            JournalError: A call could not be recorded.
        """
        if not calls:
            return None
        refused: list[LimitExceeded] = []
        limiter = anyio.CapacityLimiter(self._live.agent.limits.parallel_tools)
        aborts: list[ToolAbort | JournalError] = []
        self._last_places.clear()  # those of the last message have all been left

        async def each(equal: Sequence[OpenCall]) -> None:
            for call in equal:
                try:
                    await self._call(call, iteration, limiter)
                    self._live.waits.close(call.use.id)
                    self._live.wake()
                except LimitExceeded as error:
                    refused.append(error)
                    told = f"{call.use.name} was not run: {error}. Answer with what you have."
                    await self._results.keep(error_result(call.use, told, iteration), "error")
                except (ToolAbort, JournalError) as error:
                    aborts.append(error)
                except Unfinished:
                    pass  # the supervisor closes; the call stays open for the process that resumes the run

        async with anyio.create_task_group() as group:
            for number, equal in enumerate(self._group_equal(calls)):
                if number:
                    await checkpoint()  # trio begins what is started at once in a random order
                group.start_soon(each, equal)
        if group.cancel_scope.cancel_called:  # on asyncio by a task of it that ended with another's cancellation
            raise RuntimeError("a tool call was cancelled, and not by its run")
        await self._take_result(calls, iteration)
        if aborts:
            raise aborts[0]
        return refused[0] if len(refused) == len(calls) else None

    def _is_final(self, use: ToolUse) -> bool:
        return self.form is not None and bool(self.form.schemas) and use.name == FINAL_RESULT

    async def _take_result(self, calls: Sequence[OpenCall], iteration: int) -> None:
        """Answer the calls that give the run's result, all at once.

        Raises:
            ResultInvalid: A result does not fit, and no retry is left.
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

    def _group_equal(self, calls: Sequence[OpenCall]) -> Iterable[Sequence[OpenCall]]:
        """Group calls so that the first of a group may answer the others; without those that give the run's result."""
        groups: dict[str, list[OpenCall]] = {}
        for call in calls:
            if self._is_final(call.use):
                continue
            tool = self.tools.get(call.use.name)
            same = tool is not None and tool.repeatable and self._live.repeats.remembers
            groups.setdefault(call.digest if same else call.use.id, []).append(call)
        return groups.values()

    async def _call(self, call: OpenCall, iteration: int, limiter: anyio.CapacityLimiter) -> None:
        """Bring one call to its result, in whichever way.

        While the call waits for somebody outside, it does not count towards ``Limits.parallel_tools``.

        Raises:
            LimitExceeded: The call may not be made.
            Unfinished: The call stays open until the run is resumed.
        """
        use, waits = call.use, self._live.waits
        tool = self.tools.get(use.name)
        try:
            if use.id in waits.newest or use.id in waits.given:  # the call was made in an earlier process
                awaited = waits.newest.get(use.id)
                if awaited is not None and waiting_id(awaited) not in waits.given:
                    self._live.show(awaited)  # as a request for an approval is, to whoever answers what it sees
                await self._finish_from_outside(call, iteration, limiter)
            elif call.is_interrupted:
                await self._results.keep(error_result(use, INTERRUPTED, iteration), "interrupted")
            elif tool is None:
                await self._fail(call, unknown_tool(use.name, self.tools), iteration)
            else:
                permitted = Permitted(use.input)
                if needs_permission(self._live, tool):
                    permitted = await ask_permission(self._live, tool, use)
                # A call that waits for a sub-agent is not limited here: ``Delegation.parallel`` limits sub-agents.
                reports = use.name in REPORTING
                place = self._last_places[reports] = _Place(self._last_places.get(reports))
                try:
                    async with nullcontext() if reports else limiter:
                        await self._repeat_or_make(call, tool, permitted, iteration, place)
                finally:
                    place.left.set()
                if use.id in waits.newest:
                    await self._finish_from_outside(call, iteration, limiter)
        except Refused as refused:
            text, status = call.failure(str(refused))
            await self._results.keep(error_result(use, text, iteration), status)
        except EndedWaiting:
            if use.id in waits.newest or call.may_have_acted:
                await self._results.keep(error_result(use, CLOSED, iteration), "interrupted")
            else:
                await self._results.keep(error_result(use, NOT_MADE, iteration), "error")

    async def _fail(self, call: OpenCall, output: ToolOutput, iteration: int, *, note: str = "") -> None:
        """Record that the tool was not run, with the output that says why."""
        text, status = call.failure(output.text)
        output = msgspec.structs.replace(output, content=text, status=status)
        await self._results.append(call.use, output, iteration, note=note)

    async def _repeat_or_make(
        self, call: OpenCall, tool: Tool, permitted: Permitted, iteration: int, place: _Place
    ) -> None:
        """Answer a call from an earlier one if possible, otherwise make it."""
        digest = arguments_digest(tool.name, permitted.arguments) if permitted.note else call.digest
        earlier = self._live.repeats.find(tool, digest) if not permitted.note else None
        if earlier is None or not await self._repeat(call.use, earlier, iteration):
            if not call.begun:
                self._live.spending.begin_tool()
            await self._make(call, tool, permitted, digest, iteration, place=place)

    async def _finish_from_outside(self, call: OpenCall, iteration: int, limiter: anyio.CapacityLimiter) -> None:
        """Wait for what comes from outside: continue the tool with it, or record it like any result."""
        use, waits, tool = call.use, self._live.waits, self.tools.get(call.use.name)
        while True:
            awaited = waits.newest.get(use.id)
            given = waits.given.get(use.id if awaited is None else waiting_id(awaited))
            if given is None:
                assert awaited is not None
                given = await wait_for_result(self._live, awaited)
            await waits.durable(given)
            if awaited is None or awaited.state is None:
                break
            if call.is_interrupted and call.answers >= awaited.round:  # an earlier process continued with it
                await self._results.keep(error_result(use, INTERRUPTED, iteration), "interrupted")
                return
            if tool is None:
                await self._fail(call, unknown_tool(use.name, self.tools), iteration)
                return
            answer = GivenAnswer(
                value=await self._value_of(given),
                state=thaw(awaited.state),
                is_error=given.is_error,
                expired=given.expired,
            )
            async with limiter:
                await self._continue(call, tool, answer, awaited.round, iteration)
            if waits.newest.get(use.id) is awaited:
                return
        cap = DEFAULT_OUTPUT_CAP if tool is None else tool.output_cap
        output = to_output(await self._value_of(given), name=use.name, cap=cap)
        if given.is_error:
            output = msgspec.structs.replace(output, status="error")
        decided = waits.decided.get(use.id)
        await self._results.append(use, output, iteration, note="" if decided is None else edit_note(decided))
        if tool is None or tool.effect != "pure":
            self._live.repeats.clear()

    async def _value_of(self, given: ResultGiven) -> Any:
        """The given value: JSON, or the stored blocks."""
        if not given.content_id:
            return given.result
        blocks = await read_attached(self._journal, self._live.run_id, given.content_id)
        return blocks or f"[what was given for this call, {given.content_id}, is no longer stored]"

    async def _continue(self, call: OpenCall, tool: Tool, answer: GivenAnswer, answers: int, iteration: int) -> None:
        """Call a tool again to continue with what it was given; the earlier permission still applies."""
        decided = self._live.waits.decided.get(call.use.id)
        permitted = Permitted(call.use.input)
        if decided is not None and decided.arguments is not None:
            permitted = Permitted(decided.arguments, edit_note(decided))
        digest = arguments_digest(tool.name, permitted.arguments)
        await self._make(call, tool, permitted, digest, iteration, place=_Place(), answer=answer, answers=answers)

    async def _repeat(self, use: ToolUse, earlier: EarlierCall, iteration: int) -> bool:
        """Answer a call from an earlier one: point at its result, or show the same again under its citation."""
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
        await self._results.keep(Draft(**same), "ok")
        return True

    async def _make(
        self,
        call: OpenCall,
        tool: Tool,
        permitted: Permitted,
        digest: str,
        iteration: int,
        *,
        place: _Place,
        answer: GivenAnswer | None = None,
        answers: int = 0,
    ) -> None:
        """Run the tool, after recording its intent; then record its outcome, or that the outcome comes later.

        ``answer`` is what came from outside, the last of ``answers``; None if the call begins.
        """
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
            answers=answers,
        )
        if tool.effect != "pure":
            await live.shared.may_begin_effect()
        started = live.event(ToolStarted, call_id=use.id, tool=tool.name, arguments=arguments)
        ticket = self._journal.submit([intended, to_record(started)])
        if tool.effect != "pure":
            # A pure call may be repeated at will, so it does not wait for the disk before it starts.
            await ticket.wait()
            await live.shared.may_begin_effect()  # the process may have been suspended meanwhile
        await place.wait_for_turn()
        place.left.set()
        live.show(started)
        mark = live.repeats.begin(tool)
        context = ToolContext(
            run_id=live.run_id,
            agent=live.agent.name,
            iteration=iteration,
            call_id=use.id,
            idempotency_key=key,
            arguments_digest=digest,
            answer=answer,
            record=self._reading,
            progress=self._progress_of(use),
            contents=self._reading,
            memory=live.memory,
            payload=Payload.draft(live.payload, changed_by=tool.effect),
            context=live.context,
        )
        live.waits.making.add(use.id)
        live.wake()  # whoever waits for this call to ask
        try:
            # A copy, as a tool may change its arguments.
            with live.shared.telemetry.tool_call(live, tool, use) as ended:
                output = await execute(tool, thaw(arguments), context)
                ended(output)
        except ToolAbort as error:
            await self._results.append(
                use, ToolOutput(f"{tool.name} ended the run: {error}", status="error"), iteration
            )
            raise
        finally:
            live.waits.making.discard(use.id)
        is_open = output.later is not None and not output.is_error
        try:
            if is_open:
                await self._leave_open(use, output, context.payload)
            elif output.error is not None and output.error.cause == "arguments":
                await self._fail(call, output, iteration, note=permitted.note)
            else:
                await self._results.append(use, output, iteration, context.payload, note=permitted.note)
        except RecordRefused as error:
            # The tool has done its work, so record that much: a crash here would run it again.
            text = f"{tool.name} ran, but its result cannot be kept: {error}"
            output = ToolOutput(text, status="error", duration=output.duration)
            await self._results.append(use, output, iteration, note=permitted.note)
        ok = output.status == "ok" and not is_open
        live.repeats.finish(tool, digest, mark, call_id=use.id, iteration=iteration, ok=ok)

    async def _leave_open(self, use: ToolUse, output: ToolOutput, payload: Payload) -> None:
        """Record that the result of a call comes from outside, with the payload changes that the call has made."""
        live, later = self._live, output.later
        assert later is not None
        earlier = live.waits.newest.get(use.id)
        awaited = live.event(
            ResultAwaited,
            call_id=use.id,
            tool=use.name,
            note=later.note,
            round=1 if earlier is None else earlier.round + 1,
            schema=later.schema,
            state=later.state,
        )
        if later.timeout is not None:
            awaited = msgspec.structs.replace(awaited, expires_at=awaited.at + later.timeout)
        async with nullcontext() if live.payload is None else live.changing_payload():
            changes, conflicts = changes_of(live, payload.staged("tool", use.name), call_id=use.id)
            records = [to_record(awaited), *output.records, *changes, *map(to_record, conflicts)]
            ticket = self._journal.submit(self._journal.redact(records))
            live.adopt_payload(changes)
        live.waits.leave_open(awaited)
        await ticket.wait()
        told: list[AnyEvent] = [awaited, *conflicts]
        for event in told:
            live.show(event)

    def _progress_of(self, use: ToolUse) -> Callable[[str], None]:
        """The function with which a tool reports progress, from any thread: plain functions run in one of their own."""
        live = self._live

        def show(text: str) -> None:
            live.show(live.event(ToolProgress, call_id=use.id, tool=use.name, text=text))

        return from_any_thread(show)

    def _pointer(self, earlier: EarlierCall, entry: Entry) -> str:
        """A pointer that replaces a repeated result if the first one is in view and stays there; otherwise "".

        Only the newest results qualify: older ones may be shortened with the next request, and the pointer would lead
        to nothing.
        """
        length = len(text_of(entry.content))
        if self._policy is None or length <= _LEAST_POINTED:
            return ""
        plan, recent = self._live.plan, self._live.iteration - _RECENT
        whole = plan.representation(entry) in ("verbatim", "shaped", "expanded")
        if not whole or (entry.iteration < recent and entry.position not in plan.pins):
            return ""
        size = f"{length:,} of {entry.original_length:,}" if entry.original_length else f"{length:,}"
        cited = retrieval_note(entry, self._policy.rules(entry.tool)) if entry.content_id else ""
        return (
            f"[already called in iteration {earlier.iteration} with the same arguments; that result ({size} "
            f"characters, call {earlier.call_id}) stands above, unchanged{cited}]"
        )
