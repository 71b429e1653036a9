"""The loop of one run: show, ask, append, act, until there is an answer; and the actor that runs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

import anyio

from repertory.actors import Accepts, ActorContext, ActorRef, handler
from repertory.errors import (
    ContextError,
    JournalError,
    LimitExceeded,
    ModelError,
    ModelRefused,
    ModelRequestRejected,
    ModelResponseInvalid,
    PromptTooLong,
    RecordRefused,
    RunError,
    ToolAbort,
    ToolSetUnavailable,
)
from repertory.llm.features import is_server_tool
from repertory.llm.messages import Block, Json, Text, text_of, tool_uses
from repertory.llm.model import BrokenOff, ModelRequest, ModelResponse, Reservation, Retrying, StreamEvent
from repertory.llm.profiles import Amount, ModelProfile
from repertory.loop.open_calls import OpenCall, open_calls, read_intents
from repertory.loop.teams import SubRuns, Team
from repertory.loop.tool_calls import Caller
from repertory.record import Draft, Entry
from repertory.record.entries import EntryKind
from repertory.runs.attachments import read_attached
from repertory.runs.end import RunEnd
from repertory.runs.events import ModelRetrying, RunResumed
from repertory.runs.live import LiveRun
from repertory.runs.log import compactor_log
from repertory.shortening.compactors import on_compactor_failure
from repertory.summarizer import ResultNotSummarized, ResultSummarized, SummaryFailed, SummaryReady
from repertory.tools.media import showable
from repertory.views.answers import PAUSED, Answer, check_response, is_part, read_answer
from repertory.views.results import CUT_OFF_RESULT, find_answer, last_asked
from repertory.views.view import ContextView, NotAsked

_CONTINUE = "Your last message was cut off at the output limit. Go on exactly where it stopped."
_GO_ON = "Your last message was paused. Go on exactly where it stopped."
_EMPTY = "Your last message was empty. Either call a tool or give your answer."
_COMPACTED = "Context was compacted and truncated to fit token limits."
_OTHER_FORM = "Your result was taken before the form that is asked for changed. Give it again in the form of now."
_MAX_NUDGES = 3  # answers in a row that were cut off or empty, before the run fails instead of looping


class Loop:
    """Runs one run from wherever its record ends. There is one per incarnation of the run's actor."""

    def __init__(self, live: LiveRun, caller: Caller, team: Team, ref: ActorRef[Any]) -> None:
        self._live = live
        self._journal = live.shared.journal
        self._agent = live.agent
        self._model = live.model
        self._ledger = live.ledger
        self._caller = caller
        self._form = caller.form
        self.view = ContextView(live, tools=caller.tools.values(), form=caller.form, ref=ref)
        self._team = team
        self._nudges = 0
        self._room = Reservation(Amount())  # of the model call under way

    async def run(self) -> RunEnd | None:
        """Run to the end.

        An error of the run itself, of its model or of a limit ends the run as failed, and so does an assertion, which
        would fail again. Any other error is a crash of the actor, which its supervisor handles.

        Returns:
            How it ended; None if the supervisor is closing, so that the run can be resumed from its record.
        """
        on_compactor_failure(compactor_log(self._live.run_id))
        try:
            result = await self._iterate_until_answered()
        except JournalError:
            raise  # nothing can be recorded any more, so there is no honest way to end the run
        except (ModelError, ContextError, ToolAbort, RunError, AssertionError) as error:
            return RunEnd.failed(error)
        if result is not None:
            return RunEnd("done", result)
        return RunEnd("stopped") if self._live.desired_state == "stop" else None

    async def _iterate_until_answered(self) -> str | None:
        await self._open()
        held, upto = None, -1  # an answer that is held back only to mention sub-agents, until the record goes on
        while await self._should_continue():
            answer = await self._finished_answer()
            if answer is not None:
                if not await self._remind_of_team() and self._live.try_to_end():
                    return answer
                held, upto = answer, len(self._ledger.snapshot())
            try:
                await self._iterate()
            except LimitExceeded:
                if answer is None or not self._live.try_to_end():
                    raise
                return answer
        # An answer that exists is kept: stopping does not throw away what is done and paid for.
        snapshot = self._ledger.snapshot()
        answer = held if len(snapshot) == upto else find_answer(snapshot, self._form)
        return answer if answer is not None and self._live.try_to_end() else None

    # --- beginning and between iterations -----------------------------------------------------------------

    async def _open(self) -> None:
        """Read the record, and finish the last iteration."""
        if self._live.begun is not None:
            await self._live.begun.wait()
        await self.view.open()
        self._live.opened(self.view)
        await self._live.wait_for_turn(self.view.head)
        # Only now, as opening the view waits for what an earlier incarnation of the actor was still writing.
        snapshot = self._ledger.snapshot()
        self._caller.open(snapshot)
        iteration = max((entry.iteration for entry in snapshot), default=0)
        if iteration == 0 and not self._live.resumed:
            return
        await self._team.open(snapshot)
        self._live.iteration, self._live.asked = iteration, last_asked(snapshot)
        calls = open_calls(snapshot, await read_intents(self._journal, self._ledger))
        waits, changed = self._live.waits.newest, self._live.agent_changed
        interrupted = sum(call.is_interrupted and call.use.id not in waits for call in calls)
        self._live.publish(RunResumed, entries=len(snapshot), interrupted_calls=interrupted, agent_changed=changed)
        await self._wait_while_paused()
        if self._live.desired_state in ("stop", "close"):
            return  # the calls stay open
        await self._caller.run(calls, iteration)
        if changed and self._form is not None and self._form.is_outdated(self._ledger.snapshot()):
            await self._say("system", _OTHER_FORM)

    async def _should_continue(self) -> bool:
        """Between iterations, wait while paused and read new messages; returns whether to continue."""
        live = self._live
        await self._wait_while_paused()
        if live.desired_state in ("stop", "close"):
            return False
        if live.inbox.has_unread and not self._paused_by_server():  # its tools' results come first
            live.repeats.clear()
            self._nudges = 0
            if self._form is not None:
                self._form.reset_count()
            attachments = await self._read_attachments()
            await self._ledger.append(*live.inbox.take(iteration=live.iteration, attachments=attachments))
            live.asked = last_asked(self._ledger.snapshot())
            live.wake()  # whoever waits for the answer to an earlier message
        return True

    async def _wait_while_paused(self) -> None:
        live = self._live
        if live.desired_state == "pause":
            live.answered(refused=True)  # others must not wait for a first call that is not made now
            await live.enter("paused").wait()
            while live.desired_state == "pause":
                await live.wait_for_change()
            if live.desired_state == "go":
                await live.enter("running").wait()

    async def _read_attachments(self) -> dict[str, Sequence[Block]]:
        """What was sent with the messages that are read next."""
        live, found = self._live, dict[str, Sequence[Block]]()
        while missing := set(live.inbox.unread_attachments) - found.keys():
            await self._journal.write(())  # a message comes here before it is durable
            for content_id in missing:
                blocks = await read_attached(self._journal, live.run_id, content_id)
                lost = Text("[What came with this message is no longer stored.]")
                found[content_id] = showable(blocks or (lost,), documents=live.model.profile.documents)
        return found

    async def _finished_answer(self) -> str | None:
        """The run's answer, if its last turn is one; nudges a model whose turn was cut off, paused, empty or unfit.

        Raises:
            ResultInvalid: The answer does not fit the type asked for, and no retry is left.
            LimitExceeded: Too many turns in a row were useless.
        """
        snapshot = self._ledger.snapshot()
        answer, last = find_answer(snapshot, self._form), snapshot[-1]
        if answer is not None or last.role != "assistant" or tool_uses(last.content):
            return answer
        if self._paused_by_server():
            return None  # it continues where it stopped when it gets the turn back unchanged
        paused, text = last.stop_reason == PAUSED, text_of(last.content).strip()
        if self._form is not None and text and not is_part(last):
            await self._say("retry-context", self._form.ask_again(last))
            return None
        if not paused or not text:
            self._count_nudge()
        cut_off = _CONTINUE if self._form is None else CUT_OFF_RESULT
        nudge = (_GO_ON if paused else cut_off) if text else _EMPTY
        await self._say("retry-context", nudge)
        return None

    def _last(self) -> Entry:
        return self._ledger.snapshot()[-1]

    def _paused_by_server(self) -> bool:
        """Whether the last turn waits for tools that the server runs itself."""
        return self._last().stop_reason == PAUSED and any(map(is_server_tool, self._last().content))

    async def _say(self, kind: EntryKind, text: str) -> None:
        """Add a message of the loop's own for the model."""
        iteration = self._live.iteration
        await self._ledger.append(Draft(role="user", kind=kind, content=(Text(text),), iteration=iteration))

    async def _remind_of_team(self) -> bool:
        """Remind a lead that has answered, once, of sub-agents that it started and has not collected."""
        reminder = self._team.reminder()
        if reminder:
            await self._say("system", reminder)
        return bool(reminder)

    def _count_nudge(self) -> None:
        """Count a useless answer.

        Raises:
            LimitExceeded: There were too many in a row.
        """
        self._nudges += 1
        if self._nudges > _MAX_NUDGES:
            raise LimitExceeded(
                f"the model gave {self._nudges} cut-off or empty answers in a row, or calls that could not be made; "
                f"raise max_tokens of agent {self._agent.name} ({self._agent.max_tokens}) or shorten the task"
            )

    # --- one iteration ------------------------------------------------------------------------------------

    async def _iterate(self) -> None:
        self._live.check_limits()
        self._live.iteration += 1
        iteration = self._live.iteration
        try:
            calls = await self._ask_model(iteration)
        except NotAsked:
            self._live.iteration -= 1
            return
        if calls:
            refused = await self._caller.run(calls, iteration)
            self._nudges = self._nudges + 1 if refused is not None else 0
            if refused is not None and self._nudges > _MAX_NUDGES:
                raise refused
        self.view.request_summaries(iteration)
        self._live.check_alerts()

    async def _ask_model(self, iteration: int) -> list[OpenCall]:
        """Show the model the record; its answer is durable before anything acts on it.

        Returns:
            The calls to make.

        Raises:
            ModelRefused: The model declined, and there is no new message. What it said does not become a turn of the
                run: shown to a model again, it would be declined again.
        """
        while True:
            async with self.view.show(iteration) as shown:
                self._room, begun = shown.room, anyio.current_time()
                if self._live.actor is not None:
                    self._live.actor.start_soon(self.view.read_ahead)
                try:
                    response = await self._complete(shown.request)
                except ModelError as error:
                    self._live.answered(refused=True)
                    took = anyio.current_time() - begun
                    # Then another request is made: a refused one is never sent again unchanged.
                    if not await self.view.failed(shown, error, duration=took):
                        raise
                    if isinstance(error, PromptTooLong) and self.view.retrieval and self._last().kind != "system":
                        await self._say("system", _COMPACTED)
                    continue
                self._live.answered()
                took = anyio.current_time() - begun
                answer = read_answer(
                    response,
                    known=self._caller.known_ids,
                    tools=self._caller.tools,
                    most=_most_characters(shown.request.max_tokens, self._model.profile),
                )
                replied = self.view.replied(shown, answer, response.usage, duration=took)
                if answer.refused:
                    await self._journal.write(replied)
                    if self._live.try_to_end():
                        raise ModelRefused(_refusal(answer, response.extra))
                    return []
                calls = await self._caller.keep(answer, iteration, shown.call, replied)
                if answer.rejected and not calls:
                    self._count_nudge()
                return calls

    async def _complete(self, request: ModelRequest) -> ModelResponse:
        """Call the model.

        Raises:
            ModelError: A subclass of it, also if the application's own model returns something that is not an answer.
        """
        try:
            self._live.stream.begin(self._live.iteration)
            with self._live.shared.telemetry.model_call(self._live, request) as answered:
                response = check_response(await self._model.complete(request, on_event=self._on_stream))
                answered(response)
            self._live.stream.finish()
            return self._journal.redact(response)
        except ModelRequestRejected as error:
            advice = "" if self._form is None else self._form.explain(error)
            if not advice:
                raise
            raise ModelRequestRejected(f"{error}{advice}") from error
        except (RecursionError, RecordRefused) as error:  # making and redacting a block recurse into it
            raise ModelResponseInvalid("the answer contains itself, or is nested too deep to be read") from error

    def _on_stream(self, event: StreamEvent) -> None:
        if isinstance(event, BrokenOff):
            self._room.broke_off()
            return
        self._live.stream.take(event)
        self._live.answered(refused=isinstance(event, Retrying))
        if isinstance(event, Retrying):
            self._live.publish(ModelRetrying, attempt=event.attempt, delay=event.delay, reason=event.reason)


def _most_characters(max_tokens: int, profile: ModelProfile) -> int:
    """How long an answer may be: no text has 16 characters a token, and one that fills the window cannot be resent."""
    return min(16 * max_tokens, 3 * profile.context_window)


def _refusal(answer: Answer, extra: Json) -> str:
    """Why a model declined, if it says so."""
    details: object = extra.get("stop_details")
    said = cast("Json", details) if isinstance(details, dict) else {}
    category, why = said.get("category"), said.get("explanation") or text_of(answer.content).strip()
    kind = f" ({category})" if category else ""
    said_why = str(why)[:500] or "it gave no reason"
    return f"the model refused to go on{kind}: {said_why}; resume the run with another model or with a message"


# --- the actor --------------------------------------------------------------------------------------------


class _Ends(Protocol):
    """Ends runs."""

    async def end_run(self, live: LiveRun, end: RunEnd) -> None: ...


class AgentActor:
    """Runs the loop of one run, and meanwhile receives messages from the summarizer.

    A crash of the loop is a crash of the actor: its supervisor starts a fresh one, whose loop continues from the last
    durable iteration.
    """

    receives: Accepts[ResultSummarized | ResultNotSummarized | SummaryReady | SummaryFailed]

    def __init__(self, live: LiveRun, sub_runs: SubRuns, ends: _Ends) -> None:
        self._live = live
        self._sub_runs = sub_runs
        self._ends = ends
        self._finished = anyio.Event()
        self._loop: Loop | None = None

    def started(self, ctx: ActorContext) -> None:
        """Begin, or continue from the record."""
        self._live.ref, self._live.actor = ctx.ref, ctx
        self._live.opened(None)
        self._team = Team(self._live, self._sub_runs, ctx)
        ctx.start_soon(self._run, ctx)

    async def _run(self, ctx: ActorContext) -> None:
        try:
            end = await self._run_loop(ctx)
            if end is not None:
                await self._team.end(end)
                await self._ends.end_run(self._live, end)
        except JournalError as error:
            try:
                await self._ends.end_run(self._live, RunEnd.failed(error))
            except JournalError:  # not even that can be recorded, so the supervisor ends
                self._live.lost = error
        self._finished.set()
        ctx.stop()

    async def _run_loop(self, ctx: ActorContext) -> RunEnd | None:
        """Open everything that the loop needs, and run it; a tool set that cannot be opened ends the run."""
        live = self._live
        with live.shared.telemetry.run(live) as ended:
            try:
                async with live.shared.tool_sets.open(live.agent) as live.opened_tools:
                    self._loop = Loop(live, Caller(live, self._team.tools()), self._team, ctx.ref)
                    end = await self._loop.run()
            except ToolSetUnavailable as error:
                end = RunEnd.failed(error)
            ended(end.error if end is not None else None)
        return end

    async def stopping(self, ctx: ActorContext) -> None:
        """Let the loop reach its next boundary; the drain time bounds the wait."""
        self._live.set_desired_state("close")
        await self._finished.wait()

    @handler
    def handle_answer(self, message: ResultSummarized | ResultNotSummarized | SummaryReady | SummaryFailed) -> None:
        """Hand the message to the view, which keeps it until it is needed."""
        if self._loop is not None:  # otherwise an earlier incarnation asked; the record has it
            self._loop.view.handle_answer(message)
