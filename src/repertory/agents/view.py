"""What the model sees of one run: the planner asked, its decisions journalled, the request made and recorded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial, reduce
from time import perf_counter
from typing import Any

import msgspec

from repertory.actors import ActorRef
from repertory.agents.accounting import with_plain
from repertory.agents.answers import Answer
from repertory.agents.compaction import Compactions
from repertory.agents.counting import PromptCounter
from repertory.agents.edits import PlanEdits
from repertory.agents.events import IterationStarted, ModelAnswered, SummaryRefused, SummaryTaken, to_record
from repertory.agents.gists import Gists
from repertory.agents.live import LiveRun
from repertory.agents.policies import layered_policy
from repertory.agents.refusals import NOT_SENT, ServerLimit
from repertory.agents.summaries import Summaries
from repertory.context import (
    EMPTY,
    Calibration,
    Decision,
    Outcome,
    Planner,
    Projector,
    apply,
    decode_decision,
    priced,
    text_tokens,
    validate,
)
from repertory.context.compaction import Compaction
from repertory.errors import ContextOverflow, ModelError, PromptTooLong
from repertory.llm.estimate import estimate_tokens
from repertory.llm.features import dropping_mismatched
from repertory.llm.messages import Text, canonical_json, text_of, tool_uses
from repertory.llm.model import Model, ModelRequest, Usage, server_of
from repertory.llm.profiles import cost_at_most, cost_of
from repertory.record import Snapshot
from repertory.record.records import DecisionMade, ModelReplied, Record
from repertory.summarizer import (
    ResultNotSummarized,
    ResultSummarized,
    Summarize,
    SummaryFailed,
    SummaryReady,
)
from repertory.summarizer.messages import PROVIDER
from repertory.tools import Tool

_SMALLER = 0.75  # a refused prompt is sent again with at most this share of its tokens
_STRICT_TARGET = 7_500  # tokens (30 kB) that strict rhythm tries for first, whatever the refused prompt had
_MOST_REFUSALS = 3
DROP_BLOCK = "drop-block"  # the kind of the decision to go on without thinking that no longer fits


class Shown(msgspec.Struct, frozen=True):
    """A request that is about to be sent.

    Attributes:
        call: Number of the model call within the run.
        view_estimate: Tokens that its prompt is estimated to have, by characters.
        record_estimate: The same for the prompt that a plain loop would send.
        position: Length of the ledger that it shows.
    """

    request: ModelRequest
    call: int
    view_estimate: int
    record_estimate: int
    position: int


class ContextView:
    """The view of one run: its plan, and everything that makes a request out of it."""

    def __init__(self, live: LiveRun, *, model: Model, tools: Iterable[Tool], ref: ActorRef[Any]) -> None:
        agent = live.agent
        redact = live.shared.journal.redact
        system = redact((Text(agent.instructions),) if agent.instructions.strip() else ())
        schemas = redact([tool.schema for tool in tools])
        max_tokens = min(agent.max_tokens, model.profile.max_output)
        self._live = live
        self._journal = live.shared.journal
        self._model = model
        self._ref = ref
        self._policy = layered_policy(live)
        self._max_tokens = max_tokens
        self._head = estimate_tokens(system) + len(canonical_json(schemas)) // 4
        self._new_projector = partial(
            Projector, profile=model.profile, system=system, tools=schemas, max_tokens=max_tokens
        )
        self._projector = self._new_projector(options=agent.options)
        self._server_limit = ServerLimit(max_tokens)
        self._planner: Planner | None = None
        self._planner = self._new_planner()
        self.edits = PlanEdits(live, self._policy, binding=model.profile.target == "binding", price=self._priced)
        self.expand, self.pin = self.edits.expand, self.edits.pin
        self._compactions = Compactions(self._policy, model.profile, head=self._head)
        self._drops_blocks = False  # whether the server drops thinking that no longer fits, instead of refusing
        self._calibration = Calibration()
        self._counter = PromptCounter(model, max_tokens=max_tokens)
        self._summaries = Summaries(live, self._policy, ref)
        self._answered: Shown | None = None  # the last request that was
        self._calls = 0
        self._called_at: float | None = None
        self._recorded = 0  # entries counted in _record_tokens
        self._record_tokens = 0
        self._shrink_to: int | None = None  # tokens, after a refusal
        self._shrink_at_most: int | None = None  # the same, where the wish for less cannot be fulfilled
        self._refusals = 0
        self._gists = Gists(live, self._policy, ref)

    async def open(self) -> None:
        """Take up the plan and the figures where the record left them."""
        journal, run_id = self._journal, self._live.run_id
        decisions = [decode_decision(made.body) for made in await journal.read_decisions(run_id)]
        live = self._live
        live.plan = reduce(apply, decisions, EMPTY)
        if any(decision.kind == DROP_BLOCK for decision in decisions):
            self._drop_blocks()
        # A provider's summary that was not swapped in at once is not taken up again.
        stored = [s for s in await journal.read_summaries(run_id) if s.strategy != PROVIDER]
        self._summaries.open(stored, head=self._head)
        snapshot = self._live.ledger.snapshot()
        self._compactions.saw(block for entry in snapshot[live.plan.thinking_from :] for block in entry.content)
        called_in = 0
        served = (self._model.profile.name, server_of(self._model))  # others may take longer prompts, or shorter
        counted_in = max((decision.iteration for decision in decisions if decision.counted), default=0)
        for row in await journal.read_model_calls(run_id):
            self._calls = max(self._calls, row.called.call)
            here = (row.called.model, row.called.server) == served
            if row.called.purpose != "agent":
                if row.called.iteration >= counted_in and row.replied is not None:
                    self.charge(row.replied.cost)
            elif row.replied is not None and row.replied.error is None:
                self._called_at = row.replied.at
                self._count(row.replied.usage, view_estimate=row.called.prompt_estimate)
                if here:
                    self._server_limit.accepted(row.replied.usage.prompt_tokens)
                called_in = row.called.iteration
            elif row.replied is not None and here:
                self._learn(row.replied.error or "", view_estimate=row.called.prompt_estimate)
        if live.watch is not None:
            live.watch.check(live.statistics)  # what is beyond by now was said by the process before
        self.edits.open(decisions, called_in=called_in)

    # --- before a call ------------------------------------------------------------------------------------

    async def show(self, iteration: int) -> Shown:
        """Make the next request.

        Raises:
            ContextOverflow: It does not fit, even at its smallest.
        """
        begun = perf_counter()
        live, now = self._live, self._live.shared.clock()
        snapshot = live.ledger.snapshot()
        record_estimate = self._record_estimate(snapshot)
        estimate = record_estimate
        records: list[Any] = []
        live.tell_added()
        decided = [*self.edits.at_boundary(snapshot, iteration), *self._swap_in(snapshot, iteration, now)]
        self._journal_decisions(decided)
        if self._planner is not None:
            try:
                outcome = self._next(self._planner, snapshot, iteration, now)
            except ContextOverflow:
                released = self.edits.release(iteration)
                if not released and self._shrink_to == self._shrink_at_most:
                    raise
                self._shrink_to = self._shrink_at_most
                self._journal_decisions(released)
                outcome = self._next(self._planner, snapshot, iteration, now)
            estimate = outcome.estimate
            self._request_compaction(outcome.compaction, snapshot, iteration, now)
            records.extend(self.edits.take(decision) for decision in outcome.decisions)
            live.plan = outcome.plan  # equal to what the decisions made, and the one that the planner knows
            if outcome.decisions:
                self._summaries.drop_covered()
        request = self._projector.project(snapshot, live.plan)
        validate(request, self._model.profile)
        build_seconds = perf_counter() - begun
        self._calls += 1
        expected = self._calibration.real_tokens(estimate)
        most = cost_at_most(self._model.profile, prompt=expected, output=self._max_tokens)
        live.spending.expect(most)
        called = self._projector.record(
            request,
            run_id=live.run_id,
            call=self._calls,
            iteration=iteration,
            position=len(snapshot),
            at=now,
            prompt_estimate=estimate,
            expected_tokens=expected,
            server=server_of(self._model),
        )
        records.append(msgspec.structs.replace(called, cost_at_most=most))
        started = live.event(
            IterationStarted,
            view_tokens=expected,
            record_tokens=self._calibration.real_tokens(record_estimate),
            build_seconds=build_seconds,
        )
        ticket = self._journal.submit([*records, to_record(started)])
        live.show(started)
        if live.spending.bounded:
            await ticket.wait()  # else a crash could forget a call that is billed
        # Else it need not be durable before the call: it is before the answer, which is all that acts on it.
        return Shown(request, self._calls, estimate, record_estimate, len(snapshot))

    def _journal_decisions(self, made: Sequence[DecisionMade]) -> None:
        """Write down what holds whether or not a request can be made now: it is in the plan, and has been told."""
        if made:
            self._journal.submit(made)

    async def fits(self, shown: Shown, iteration: int) -> bool:
        """Have the server count a request where that is decisive; see ``PromptCounter``.

        Returns:
            Whether to send it. If not, ``show`` makes another one, by the count.
        """
        if self._planner is None:
            return True
        counted = await self._counter.count(
            shown.request, estimate=shown.view_estimate, calibration=self._calibration, iteration=iteration
        )
        if counted is None:
            return True
        self._calibration = self._calibration.observe(estimate=shown.view_estimate, real=counted.tokens)
        if counted.tokens <= counted.bound:
            return True
        words = f"{NOT_SENT}: the server counts {counted.tokens:,} tokens, more than {counted.bound:,}"
        self.failed(shown, PromptTooLong(words), duration=0.0)
        return False

    def _swap_in(self, snapshot: Snapshot, iteration: int, now: float) -> list[DecisionMade]:
        """Let a provider's summary that has come since the last request stand for what it summarized."""
        if not self._compactions.ready:
            return []
        swap, refused = self._compactions.take(
            snapshot,
            self._live.plan,
            shown=self._projector.project(snapshot, self._live.plan).messages,
            iteration=iteration,
            calibration=self._calibration,
            cold=self._cache_is_cold(now),
        )
        if refused:
            self._live.publish(SummaryRefused, reason=refused)
        if swap is None:
            return []
        if self._planner is not None:
            swap = self._planner.counted(
                swap, snapshot, self._live.plan, iteration=iteration, cold=self._cache_is_cold(now)
            )
        return [self.edits.take(swap)]

    def _cache_is_cold(self, now: float) -> bool:
        """Whether the prompt cache has forgotten this run; a model without one has nothing to forget."""
        rules = self._model.profile.cache
        return bool(rules.breakpoints) and self._called_at is not None and now - self._called_at > rules.ttl

    def _next(self, planner: Planner, snapshot: Snapshot, iteration: int, now: float) -> Outcome:
        return planner.next(
            snapshot,
            self._live.plan,
            iteration=iteration,
            calibration=self._calibration,
            cold=self._cache_is_cold(now),
            summaries=self._summaries.ready,
            gists=self._live.gists,
            shrink_to=self._shrink_to,
        )

    def _priced(self, decision: Decision) -> Decision:
        return priced(
            decision,
            self._live.ledger.snapshot(),
            self._live.plan,
            profile=self._model.profile,
            head_tokens=self._head,
            calibration=self._calibration,
        )

    def _record_estimate(self, snapshot: Snapshot) -> int:
        """Tokens of the whole record, results as they came from their tools; counts only what is new."""
        for entry in snapshot[self._recorded :]:
            self._record_tokens += max(entry.tokens, -(-entry.original_length // 4))
        self._recorded = max(self._recorded, len(snapshot))
        return self._head + self._record_tokens

    # --- after a call -------------------------------------------------------------------------------------

    def replied(self, shown: Shown, answer: Answer, usage: Usage, *, duration: float) -> list[Record]:
        """Count an answer, and make the records that go into the journal together with it."""
        now = self._live.shared.clock()
        cost = cost_of(self._model.profile, usage)
        self._called_at = now
        self._shrink_to = self._shrink_at_most = None
        self._refusals = 0
        self._answered = shown
        self._compactions.saw(answer.content)
        self._server_limit.accepted(usage.prompt_tokens)
        self._count(usage, view_estimate=shown.view_estimate)
        answered = self._live.event(
            ModelAnswered,
            usage=usage,
            cost=cost,
            stop_reason=answer.stop_reason,
            text=text_of(answer.content),
            tool_calls=len(tool_uses(answer.content)),
            duration=duration,
        )
        self._live.show(answered)
        replied = with_plain(
            ModelReplied(
                run_id=self._live.run_id,
                call=shown.call,
                at=now,
                content=answer.content,
                raw=answer.raw,
                usage=usage,
                cost=cost,
                stop_reason=answer.stop_reason,
                duration=duration,
            ),
            self._model.profile,
            view_estimate=shown.view_estimate,
            record_estimate=shown.record_estimate,
            previous=self._live.statistics.record_tokens,
        )
        return [replied, to_record(answered)]

    def _count(self, usage: Usage, *, view_estimate: int) -> None:
        self._calibration = self._calibration.observe(estimate=view_estimate, real=usage.prompt_tokens)
        if self._live.watch is not None:
            self._live.watch.saw_prompt(usage.prompt_tokens, estimate=view_estimate)

    def failed(self, shown: Shown, error: ModelError, *, duration: float) -> None:
        """Record a call without an answer."""
        words = f"{type(error).__name__}: {error}"
        self._journal.submit(
            [
                ModelReplied(
                    run_id=self._live.run_id,
                    call=shown.call,
                    at=self._live.shared.clock(),
                    error=words,
                    duration=duration,
                )
            ]
        )

    def shrink(self, shown: Shown, error: PromptTooLong) -> bool:
        """Ask the planner for a strictly smaller request than one that was refused as too long.

        What the server says of its limit holds for the rest of the run, as long as model and server stay the same.

        Returns:
            Whether there is any sense in trying: not after several refusals in a row, nor in a plain loop.
        """
        self._refusals += 1
        if self._planner is None or self._refusals > _MOST_REFUSALS:
            return False
        self._learn(f"{PromptTooLong.__name__}: {error}", view_estimate=shown.view_estimate)
        refused = self._calibration.real_tokens(shown.view_estimate)
        self._shrink_to = self._shrink_at_most = int(refused * _SMALLER)
        if self._policy is not None and self._policy.rhythm == "strict":
            self._shrink_to = min(self._shrink_to, _STRICT_TARGET)
        return True

    def _learn(self, words: str, *, view_estimate: int) -> None:
        """Learn from the record of a refusal how long a prompt may be; its words begin with the error's name."""
        kind, _, said = words.partition(": ")
        if kind != PromptTooLong.__name__ or said.startswith(NOT_SENT):
            return
        size = self._server_limit.refused(self._calibration.real_tokens(view_estimate), said)
        self._calibration = self._calibration.observe(estimate=view_estimate, real=size)
        assert self._server_limit.tokens is not None
        self._counter.learn(self._server_limit.tokens)
        self._planner = self._new_planner()

    def _new_planner(self) -> Planner | None:
        """A planner that knows how long a prompt may be as far as the profile and the server have said it."""
        if self._policy is None:
            return None
        return Planner(
            policy=self._policy,
            profile=self._model.profile,
            head_tokens=self._head,
            max_tokens=self._max_tokens,
            accepted_tokens=self._server_limit.tokens,
            charged=self._planner.charged if self._planner is not None else 0.0,
        )

    def drop_mismatched(self, error: ModelError, iteration: int) -> bool:
        """From now on have the server drop the thinking that it refused; kept with the run, also after a restart.

        Returns:
            Whether there is any sense in trying: once, and only where thinking is bound to the history.
        """
        kind = (self._live.agent.options.get("thinking") or {}).get("type")
        if self._drops_blocks or self._model.profile.target != "binding" or kind == "disabled":
            return False
        self._drop_blocks()
        position = len(self._live.ledger.snapshot())
        warning = f"thinking no longer fits the history and is dropped from now on, which costs reasoning: {error}"
        decision = Decision(kind=DROP_BLOCK, reason=warning, iteration=iteration, position=position, edits=())
        self._journal.submit([self.edits.take(decision)])
        return True

    def _drop_blocks(self) -> None:
        self._drops_blocks = True
        self._projector = self._new_projector(options=dropping_mismatched(self._live.agent.options))

    # --- summaries ----------------------------------------------------------------------------------------

    def request_summary(self, iteration: int) -> None:
        """Send the summarizer a snapshot every so many iterations, and go on; the answer comes by mail."""
        self._gists.request(iteration)
        if not self._compactions.apply:
            # Where thinking is bound any other summary would invalidate it; the planner says when to ask the provider.
            size = self._record_estimate(self._live.ledger.snapshot())
            self._summaries.request(iteration, size=size, head=self._head, planner=self._planner)

    def _request_compaction(self, wanted: Compaction | None, snapshot: Snapshot, iteration: int, now: float) -> None:
        """Have the provider summarize exactly what the last request said, if the planner wants that."""
        sent = self._answered
        if wanted is None or sent is None or sent.position != wanted.upto or not self._compactions.may_ask(now):
            return
        taken = self._live.ask_summarizer(
            Summarize(
                run_id=self._live.run_id,
                snapshot=snapshot,
                first=0,
                upto=sent.position,
                models=(self._model,),
                request=sent.request,
                iteration=iteration,
                reply_to=self._ref,
            ),
        )
        if taken:
            self._compactions.asked(sent.position, sent.request.messages, now)

    def heard(self, message: ResultSummarized | ResultNotSummarized | SummaryReady | SummaryFailed) -> None:
        """Take what the summarizer has to say."""
        match message:
            case SummaryReady():
                self._offer(message)
            case SummaryFailed():
                self.summary_failed(message)
            case ResultSummarized():
                self._live.gists[message.position] = message.text
                self.charge(message.cost)
                entry = self._live.ledger.snapshot()[message.position]
                self._live.publish(
                    SummaryTaken,
                    first=message.position,
                    last=message.position,
                    strategy="result",
                    tokens=text_tokens(message.text),
                    replaced_tokens=max(entry.tokens, entry.original_length // 4),
                )
            case ResultNotSummarized():
                self.charge(message.cost)
                self._live.publish(SummaryRefused, reason=message.reason)

    def _offer(self, message: SummaryReady) -> None:
        """Keep a summary until the planner wants it."""
        summary = message.summary
        if summary.strategy != PROVIDER:
            self.charge(message.cost)
            self._summaries.add(summary)
        elif not self._compactions.arrived(summary):
            self.charge(message.cost)
            self._live.publish(SummaryRefused, reason="the provider's summary came too late")
            return
        self._live.publish(
            SummaryTaken,
            first=summary.first,
            last=summary.last,
            strategy=summary.strategy,
            tokens=summary.tokens,
            replaced_tokens=summary.replaced_tokens,
            failure=message.failure,
        )

    def charge(self, cost: float) -> None:
        """Take from the savings what was paid for the run beside its own calls; US dollars."""
        if self._planner is not None:
            self._planner.charge(cost)

    def summary_failed(self, message: SummaryFailed) -> None:
        """Say so, and go on without."""
        self.charge(message.cost)
        self._compactions.failed(message.upto)
        if not message.superseded:
            self._live.publish(SummaryRefused, reason=message.reason)
