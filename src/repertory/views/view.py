"""What the model sees of one run: plans, makes and records each request, and learns from its answer or refusal."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from hashlib import blake2b
from time import perf_counter
from typing import Any

import msgspec

from repertory._error_texts import name_error
from repertory._json_text import canonical_json
from repertory.actors import ActorRef
from repertory.context import ContextPolicy, Decision, Planner, Projector, apply, decode_decision
from repertory.context.edits import stub_edit
from repertory.context.plan import ExpandEntry, StubResult
from repertory.errors import ContextOverflow, MediaUnreadable, ModelError, PromptTooLong, ThinkingMismatch
from repertory.llm.estimate import Calibration, estimate_tokens
from repertory.llm.features import dropping_mismatched
from repertory.llm.messages import RedactedThinking, Text, Thinking, text_of, tool_uses
from repertory.llm.model import ModelRequest, Reservation, ToolSchema, Usage, server_of
from repertory.llm.profiles import Amount, amount_at_most, cost_of
from repertory.llm.validation import Validator
from repertory.record import Entry
from repertory.record.records import ModelReplied, Record
from repertory.record.requests import RequestRecorder
from repertory.runs.accounting import plain_call
from repertory.runs.events import IterationStarted, ModelAnswered, to_record
from repertory.runs.fan_out import Head
from repertory.runs.live import LiveRun
from repertory.shortening.shaping import is_said_with_media, media_in, without_media
from repertory.tools import Tool
from repertory.views.answers import Answer
from repertory.views.plan_edits import PlanEdits
from repertory.views.policies import layered_policy, system_text
from repertory.views.prompt_limits import PromptLimits
from repertory.views.results import ResultForm
from repertory.views.summary_requests import SummaryRequests

_SMALLER = 0.75  # a refused prompt is sent again with at most this share of its tokens
_STRICT_TARGET = 7_500  # tokens (30 kB) that strict rhythm tries for first, whatever the refused prompt had
_MAX_REFUSALS = 3
_THINKING = frozenset[type]({Thinking, RedactedThinking})
_LEFT_OUT = "left out"  # the kind of the decision to go on without images and documents
_DROP_BLOCK = "drop-block"  # the kind of the decision to go on without thinking that no longer fits


class Shown(msgspec.Struct, frozen=True):
    """A request that is about to be sent.

    Attributes:
        position: Length of the ledger that the request shows.
        epoch: The plan's epoch, see ``Plan.epoch``.
        estimate: Estimated tokens of the prompt, by characters.
        build_seconds: Seconds that it took to plan and make the request.
        call: Number of the model call within the run; 0 before it is recorded.
        room: What is reserved for the call.
    """

    request: ModelRequest
    position: int
    epoch: int
    estimate: int
    build_seconds: float
    call: int = 0
    room: Reservation = Reservation(Amount())


class NotAsked(Exception):
    """The model was not asked, as the run is to pause or end."""


class ContextView:
    """The view of one run: makes requests from its record, and learns from what comes back.

    Attributes:
        retrieval: Whether the model has tools to retrieve what is not shown whole, and is told of them.
        head: The parts of a request that are the same throughout the run.
    """

    def __init__(self, live: LiveRun, *, tools: Iterable[Tool], form: ResultForm | None, ref: ActorRef[Any]) -> None:
        agent, profile, redact = live.agent, live.model.profile, live.shared.journal.redact
        self._live = live
        self._journal = live.shared.journal
        self._profile = profile
        self._server = server_of(live.model)
        self._policy = layered_policy(live)
        self.retrieval = self._policy is not None and self._policy.retrieval
        told, options, final = ("", agent.options, ()) if form is None else (form.told, form.options, form.schemas)
        system = redact(tuple(Text(text) for text in [system_text(live, self._policy, told)] if text))
        own = [_schema_for(tool.schema, profile.provider_types) for tool in tools]
        schemas = redact([*own, *final])
        self._options = options
        self._head = estimate_tokens(system) + len(canonical_json(schemas)) // 4
        head = canonical_json([profile.name, text_of(system), schemas])
        self.head = Head(blake2b(head, digest_size=16).hexdigest(), self._head)
        self._limits = PromptLimits(live.model, max_tokens=min(agent.max_tokens, profile.max_output))
        self._new_projector = partial(Projector, profile=profile, system=system, tools=schemas)
        self._make_projector()
        self._recorder = RequestRecorder()
        self._validator = Validator(profile)
        self._edits = PlanEdits(live, self._policy, binding=profile.target == "binding", price=self._priced)
        self.expand, self.pin = self._edits.expand, self._edits.pin
        self._summaries = SummaryRequests(live, self._policy, ref, head=self._head)
        self.handle_answer = self._summaries.handle_answer
        self._planner: Planner | None = None
        self._make_planner()
        self._calibration = Calibration()
        self._answered: Shown | None = None  # the last answered request
        self._answered_at: float | None = None
        self._entries: list[Entry] = []  # the record, for those who read it repeatedly
        self._record_tokens = 0  # of a plain loop's prompt: the whole record, with results as they arrived
        self._calls = 0
        self._refusals = 0  # in a row
        self._refusal: PromptTooLong | None = None  # the last one
        self._targets: tuple[int | None, ...] = (None,)  # most tokens of a prompt, tried in this order
        self._has_thinking = False
        self._drops_blocks = False  # whether the server drops thinking that no longer fits, instead of refusing

    def _make_projector(self) -> None:
        self._projector = self._new_projector(options=self._options, max_tokens=self._limits.max_tokens)

    def _make_planner(self) -> None:
        """Make a planner with the bounds on prompts that are known from profile and server."""
        if self._policy is not None:
            self._planner = self._summaries.planner = Planner(
                policy=self._policy,
                profile=self._profile,
                head_tokens=self._head,
                max_tokens=self._limits.max_tokens,
                accepted_tokens=self._limits.tokens,
                charged=self._planner.charged if self._planner is not None else 0.0,
            )

    async def open(self) -> None:
        """Restore the plan and the figures from the record."""
        live, run_id = self._live, self._live.run_id
        decisions = [decode_decision(made.body) for made in await self._journal.read_decisions(run_id)]
        if any(decision.kind == _DROP_BLOCK for decision in decisions):
            self._drop_blocks()
        counted_in = max((decision.iteration for decision in decisions if decision.counted), default=0)
        answered_in, shown = await self._learn_from_calls(counted_in)
        self._edits.open(decisions, answered_in=answered_in, shown=shown)
        self._summaries.open(await self._journal.read_summaries(run_id))
        for entry in live.ledger.snapshot()[live.plan.thinking_from :]:
            self._note_thinking(entry.content)
        if live.watch is not None:  # the process before reported what is exceeded already
            live.watch.check(live.statistics, live.spending.used())

    async def _learn_from_calls(self, counted_in: int) -> tuple[int, int]:
        """Learn from the recorded calls what this process would know if it had made them.

        Args:
            counted_in: The iteration up to which a decision has counted what was paid apart from the run's own calls.

        Returns:
            The iteration of the last answered call, and for how many entries calls have been made.
        """
        # A fork has no record of the calls that answered what it copied.
        answered_in = self._live.started.origin_iteration
        turns = (entry.position for entry in reversed(self._live.ledger.snapshot()) if entry.role == "assistant")
        shown = next(turns, 0)
        this_server = (self._profile.name, self._server)  # others may accept longer or shorter prompts
        for row in await self._journal.read_model_calls(self._live.run_id, contents=False):
            called, replied = row.called, row.replied
            self._calls = max(self._calls, called.call)
            shown = max(shown, called.position if called.purpose == "agent" else 0)
            same_server = (called.model, called.server) == this_server
            if replied is None:
                continue
            if called.purpose != "agent":
                if called.iteration >= counted_in and self._planner is not None:
                    self._planner.charge(replied.cost)
            elif replied.error is None:
                self._count(replied.usage, at=replied.at, estimate=called.prompt_estimate, same_server=same_server)
                answered_in = called.iteration
            elif same_server and replied.prompt_limit:
                self._limits.max_tokens = min(self._limits.max_tokens, replied.answer_limit or self._limits.max_tokens)
                self._shorten(replied.prompt_limit, replied.prompt_counted, estimate=called.prompt_estimate)
        return answered_in, shown

    # --- before a call ------------------------------------------------------------------------------------

    @asynccontextmanager
    async def show(self, iteration: int) -> AsyncGenerator[Shown]:
        """Make the next request and, once the limits leave room for it, record it with its decisions.

        Raises:
            ContextOverflow: The prompt does not fit, even at its smallest.
            LimitExceeded: Concurrent calls have used what was left.
            NotAsked: The run was asked to pause or end while it waited for that room.
        """
        self._live.listeners.tell_added()
        try:
            shown = self._make(iteration)
            if self._planner is not None and await self._learn_count(shown, iteration):
                shown = self._make(iteration)
            expected = self._calibration.real_tokens(shown.estimate)
            most = amount_at_most(self._profile, prompt=expected, output=self._limits.max_tokens)
            if not await self._live.spending.wait_for_room(lambda: self._live.desired_state == "go"):
                raise NotAsked
            self._calls += 1
            with self._live.spending.reserved(self._calls, most) as room:
                shown = msgspec.structs.replace(shown, call=self._calls, room=room)
                await self._record(shown, expected, iteration)
                yield shown
        finally:
            if remaining := self._edits.records():  # record them even if no request could be made: listeners were told
                self._journal.submit(remaining)

    def _make(self, iteration: int) -> Shown:
        started, live = perf_counter(), self._live
        estimate = self._read_new_entries()
        if self._planner is not None:
            self._edits.pin_new(self._entries, iteration)
            if self._summaries.signed is not None:
                self._swap_in(self._planner, iteration)
            estimate = self._plan(self._planner, iteration)
        request = self._projector.project(self._entries, live.plan)
        self._validator.validate(request)
        return Shown(request, len(self._entries), live.plan.epoch, estimate, perf_counter() - started)

    def _read_new_entries(self) -> int:
        """Read new entries; return the estimate of a plain loop's prompt, in tokens by characters."""
        new = self._live.ledger.snapshot()[len(self._entries) :]
        self._entries += new
        for entry in new:
            self._record_tokens += max(entry.tokens, -(-entry.original_length // 4))
        return self._head + self._record_tokens

    def _plan(self, planner: Planner, iteration: int) -> int:
        """Let the planner decide; return the estimate of the prompt, in tokens by characters."""
        for target in self._targets:
            with suppress(ContextOverflow):
                return self._decide(planner, iteration, target)
        self._edits.end_temporary_pins(iteration)
        try:
            return self._decide(planner, iteration, self._targets[-1])
        except ContextOverflow as error:
            raise error from self._refusal

    def _decide(self, planner: Planner, iteration: int, target: int | None) -> int:
        outcome = planner.next(
            self._entries,
            self._live.plan,
            iteration=iteration,
            calibration=self._calibration,
            cold=self._cache_is_cold(),
            summaries=self._summaries.ready,
            result_summaries=self._live.result_summaries,
            shrink_to=target,
        )
        for decision in outcome.decisions:
            self._edits.adopt(decision, outcome.plan)
        if outcome.decisions:
            self._summaries.drop_covered()
        sent, wanted, epoch = self._answered, outcome.compaction, self._live.plan.epoch
        # If the past was rewritten since, a summary of what was sent could not be swapped in.
        if wanted is not None and sent is not None and (sent.position, sent.epoch) == (wanted.upto, epoch):
            snapshot = self._live.ledger.snapshot()
            self._summaries.ask_provider(sent.request, snapshot, upto=wanted.upto, iteration=iteration)
        return outcome.estimate

    def _swap_in(self, planner: Planner, iteration: int) -> None:
        """Replace what a provider's summary covers by it, if one has arrived since the last request."""
        plan = self._live.plan
        signed = self._summaries.take_signed(self._projector.project(self._entries, plan).messages)
        if signed is None:
            return
        decision = planner.swap_in(
            self._entries,
            plan,
            signed.summary,
            iteration=iteration,
            calibration=self._calibration,
            cold=self._cache_is_cold(),
        )
        self._summaries.count_signed(swapped_in=decision is not None)
        if decision is None:
            self._summaries.refuse("the provider's summary does not fit what has come since", signed.cost)
        else:
            self._edits.adopt(decision, apply(plan, decision))

    async def _learn_count(self, shown: Shown, iteration: int) -> bool:
        """Have the server count a request if that may change the plan; return whether it did."""
        estimate, known = shown.estimate, self._calibration
        counted = await self._limits.count(shown.request, estimate=estimate, calibration=known, iteration=iteration)
        self._calibration = known.observe(estimate=estimate, real=counted)
        return counted > 0

    async def _record(self, shown: Shown, expected: int, iteration: int) -> None:
        live, most = self._live, shown.room.at_most
        called = self._recorder.record(
            shown.request,
            self._entries,
            run_id=live.run_id,
            call=shown.call,
            iteration=iteration,
            position=shown.position,
            at=live.shared.clock(),
            prompt_estimate=shown.estimate,
            expected_tokens=expected,
            server=self._server,
            cost_at_most=most.cost,
            tokens_at_most=most.tokens,
        )
        started = live.event(
            IterationStarted,
            view_tokens=expected,
            record_tokens=self._calibration.real_tokens(self._head + self._record_tokens),
            build_seconds=shown.build_seconds,
        )
        ticket = self._journal.submit([*self._edits.records(), called, to_record(started)])
        live.show(started)
        if live.spending.bounded:
            await ticket.wait()  # else a crash could lose a call that is billed
        # Otherwise it need not be durable before the call, only before the answer, on which actions are based.

    async def read_ahead(self) -> None:
        """While the model answers, do some of the work of planning the next request."""
        if self._planner is not None:
            self._planner.read_ahead()

    def _cache_is_cold(self) -> bool:
        """Whether the prompt cache of this run has expired; never for a model without a cache."""
        rules, at = self._profile.cache, self._answered_at
        return bool(rules.breakpoints) and at is not None and self._live.shared.clock() - at > rules.ttl

    def _priced(self, decision: Decision) -> Decision:
        assert self._planner is not None  # a plain loop cannot be edited
        return self._planner.priced(decision, self._live.ledger.snapshot(), self._live.plan, self._calibration)

    # --- after a call -------------------------------------------------------------------------------------

    def replied(self, shown: Shown, answer: Answer, usage: Usage, *, duration: float) -> list[Record]:
        """Count an answer, and return the records that go into the journal together with it."""
        live, now, cost = self._live, self._live.shared.clock(), cost_of(self._profile, usage)
        self._answered, self._refusals, self._targets = shown, 0, (None,)
        self._note_thinking(answer.content)
        self._count(usage, at=now, estimate=shown.estimate, same_server=True)
        event = live.event(
            ModelAnswered,
            usage=usage,
            cost=cost,
            stop_reason=answer.stop_reason,
            text=text_of(answer.content),
            tool_calls=len(tool_uses(answer.content)),
            duration=duration,
        )
        live.show(event)
        plain_tokens, plain_cost = plain_call(
            usage,
            self._profile,
            view_estimate=shown.estimate,
            record_estimate=self._head + self._record_tokens,  # nothing was appended since
            previous=live.statistics.record_tokens,
        )
        replied = ModelReplied(
            run_id=live.run_id,
            call=shown.call,
            at=now,
            content=answer.content,
            raw=answer.raw,
            usage=usage,
            cost=cost,
            cost_lost=shown.room.lost.cost,
            tokens_lost=shown.room.lost.tokens,
            stop_reason=answer.stop_reason,
            duration=duration,
            plain_tokens=plain_tokens,
            plain_cost=plain_cost,
        )
        return [replied, to_record(event)]

    def _note_thinking(self, content: Iterable[object]) -> None:
        self._has_thinking = self._has_thinking or not _THINKING.isdisjoint(map(type, content))

    def _count(self, usage: Usage, *, at: float, estimate: int, same_server: bool) -> None:
        """Learn from an answered call; ``same_server`` means that it was from this model on this server."""
        self._answered_at = at
        prompt = usage.prompt_tokens
        if self._live.watch is not None:
            self._live.watch.saw_prompt(prompt, estimate=estimate)
        if same_server and prompt > self._profile.context_window:
            return  # a sum over several prompts, of a server that runs tools itself, say: no single one was so long
        self._calibration = self._calibration.observe(estimate=estimate, real=prompt)
        if same_server:
            self._limits.accepted(prompt)

    async def failed(self, shown: Shown, error: ModelError, *, duration: float) -> bool:
        """Record a call without an answer, and learn from it.

        Returns:
            Whether another request may be answered: a smaller one, if a policy can make one and not too many were
            refused in a row; one without new images and documents; or, once, one for which the server drops the
            thinking that no longer fits.
        """
        policy, limit, counted, answer_limit, again = self._policy, 0, 0, 0, False
        if isinstance(error, PromptTooLong):
            self._refusals, self._refusal = self._refusals + 1, error
            again = policy is not None and self._refusals <= _MAX_REFUSALS
            left_out = policy is not None and self._leave_out(error, self._oldest_media(policy))
            if policy is not None and not (left_out and error.media):
                size = self._calibration.real_tokens(shown.estimate)
                limit, counted = self._limits.refused(size, str(error))
                if self._limits.max_tokens < shown.request.max_tokens:
                    answer_limit = self._limits.max_tokens
                self._shorten(limit, counted, estimate=shown.estimate)
                if limit < (counted or size):
                    most = int(self._calibration.real_tokens(shown.estimate) * _SMALLER)
                    self._targets = (min(most, _STRICT_TARGET), most) if policy.rhythm == "strict" else (most,)
        elif isinstance(error, MediaUnreadable):
            again = self._leave_out(error, self._unread_media())
        elif isinstance(error, ThinkingMismatch):
            again = self._drop_mismatched(error)
        replied = ModelReplied(
            run_id=self._live.run_id,
            call=shown.call,
            at=self._live.shared.clock(),
            error=name_error(error),
            cost_lost=shown.room.lost.cost,
            tokens_lost=shown.room.lost.tokens,
            duration=duration,
            prompt_limit=limit,
            prompt_counted=counted,
            answer_limit=answer_limit,
        )
        await self._journal.write([replied, *self._edits.records()])
        return again

    def _shorten(self, limit: int, counted: int, *, estimate: int) -> None:
        """Plan from now on with what a refusal said: the limit, and the tokens of the refused prompt or 0."""
        self._limits.learn(limit)
        self._calibration = self._calibration.observe(estimate=estimate, real=counted)
        self._make_planner()
        self._make_projector()

    @property
    def _last_turn(self) -> int:
        return max((entry.position for entry in self._entries if entry.role == "assistant"), default=-1)

    def _unread_media(self) -> list[StubResult]:
        """Stubs for images and documents that the server has not accepted before: the newest, and those shown again."""
        turn, shown = self._last_turn, self._live.plan.shown
        return [
            stub_edit(entry, without_media(entry), "cut")
            for entry in (self._entries if self._policy is not None else ())
            if (isinstance(shown[at], ExpandEntry) if (at := entry.position) in shown else at > turn)
            and media_in(entry)
        ]

    def _oldest_media(self, policy: ContextPolicy) -> list[StubResult]:
        """Stubs for those that came with earlier messages; if that was not enough, with all; then with the task."""
        plan, turn, count = self._live.plan, self._last_turn, self._refusals
        said = [each for each in self._entries if is_said_with_media(each) and plan.representation(each) == "verbatim"]
        out = [each for each in said if count > 2 or (each.kind != "task" and (count > 1 or each.position < turn))]
        return [stub_edit(each, without_media(each, policy.rules(each.tool)), "cut") for each in out]

    def _leave_out(self, error: ModelError, stubs: Sequence[StubResult]) -> bool:
        """Show stubs from now on; recorded. Returns whether there are any."""
        if stubs:
            self._edits.leave_out(_LEFT_OUT, str(error), stubs, turn=self._last_turn)
        return bool(stubs)

    def _drop_mismatched(self, error: ThinkingMismatch) -> bool:
        """From now on have the server drop the thinking that it refused; recorded, so it also holds after a restart."""
        thinking = (self._live.agent.options.get("thinking") or {}).get("type")
        if self._drops_blocks or self._profile.target != "binding" or thinking == "disabled":
            return False
        self._drop_blocks()
        warning = f"thinking no longer fits the history and is dropped from now on, which costs reasoning: {error}"
        self._edits.decide(_DROP_BLOCK, warning, self._live.iteration, notify=True)
        return True

    def _drop_blocks(self) -> None:
        self._drops_blocks = True
        self._options = dropping_mismatched(self._options)
        self._make_projector()

    def request_summaries(self, iteration: int) -> None:
        """Ask the summarizer for what is due at the end of an iteration, without waiting; the answer is a message."""
        # If the model binds thinking, any summary but the provider's would invalidate it.
        bound = self._has_thinking and self._profile.target == "binding" and self._profile.compacts
        size = self._read_new_entries()
        self._summaries.ask(self._entries, iteration, size=size, only_results=bound)


def _schema_for(schema: ToolSchema, provider_types: Sequence[str]) -> ToolSchema:
    """Return a tool's description for this model: ours, unless its provider knows the tool."""
    known = schema.provider_type in provider_types
    return schema if known else msgspec.structs.replace(schema, provider_type="")
