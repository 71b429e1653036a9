"""What the summarizer is asked for a run, and what comes of it: nobody waits, and whatever goes wrong the run goes on.

Three things are asked for: a summary of the record so far, every so many iterations; summaries of single results whose
policy says ``compact_mode="summary"``, when the results are there; and the provider's signed summary of a request that
was sent, when the planner wants it (see ``docs/binding.md``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import msgspec

from repertory.actors import ActorRef
from repertory.context import ContextPolicy, Planner
from repertory.errors import MailboxFull
from repertory.llm.estimate import text_tokens
from repertory.llm.messages import Message, text_of, tool_uses
from repertory.llm.model import Model, ModelRequest, Usage
from repertory.llm.profiles import cost_of
from repertory.record import Entry, Snapshot
from repertory.record.records import SummaryStored
from repertory.runs.events import SummaryRefused, SummaryTaken
from repertory.runs.live import LiveRun
from repertory.shortening.shaping import words_of_plug_in
from repertory.summarizer import (
    ResultNotSummarized,
    ResultSummarized,
    Summarize,
    SummarizeResult,
    SummaryFailed,
    SummaryReady,
)
from repertory.summarizer.messages import EXTRACTIVE, PROVIDER
from repertory.summarizer.stretches import deserved_tokens

SummarizerAnswer: TypeAlias = SummaryReady | SummaryFailed | ResultSummarized | ResultNotSummarized

_DENSE = 25_000  # tokens of new record after which thrifty rhythm asks for a summary early
_LONG_TRAIL = 0.4  # of the comfort; the planner takes a summary from half of it on, and writing one takes time
_MOST_FAILURES = 3  # of the provider's summary in a row; then it is not asked again
_LOST_AFTER = 900.0  # seconds without an answer; a summarizer that was restarted has forgotten the request


class _AskedProvider(msgspec.Struct, frozen=True):
    """The messages that the provider summarizes, the length of the ledger that they showed, and when it was asked."""

    messages: tuple[Message, ...]
    upto: int
    at: float


class SummaryRequests:
    """The requests of one run to the summarizer, and the summaries that wait to be shown.

    Attributes:
        planner: The run's, which knows what was saved and is told what was paid; None for a plain loop.
        ready: Summaries of stretches that the planner may swap in.
        signed: The provider's summary that has come since the last request; None for none.
    """

    def __init__(self, live: LiveRun, policy: ContextPolicy | None, ref: ActorRef[Any], *, head: int) -> None:
        """Prepare for a run; ``head`` are the tokens of system text and tools, which no summary replaces."""
        self.planner: Planner | None = None
        self.ready: list[SummaryStored] = []
        self.signed: SummaryReady | None = None
        self._live = live
        self._policy = policy
        self._profile = live.model.profile
        self._ref = ref
        self._head = head
        self._newest: SummaryStored | None = None
        self._asked_at = head  # tokens of the record when a summary was last asked for
        self._looked = 0  # entries that were looked at for results to summarize
        self._provider: _AskedProvider | None = None
        self._failures = 0

    def open(self, stored: Iterable[SummaryStored]) -> None:
        """Take up what the journal holds, but for a provider's summary that was not swapped in at once."""
        for summary in stored:
            if summary.strategy != PROVIDER:
                self.ready.append(summary)
                self._newest, self._asked_at = summary, self._head + summary.replaced_tokens
        self.drop_covered()
        self._looked = len(self._live.ledger.snapshot())

    def drop_covered(self) -> None:
        """Forget the summaries of which the plan has no more use: nothing stands where they could take its place."""
        plan = self._live.plan
        ends = {cover.last for cover in plan.covers if not cover.summary_id}
        self.ready = [summary for summary in self.ready if summary.last >= plan.start or summary.last in ends]

    # --- asking -------------------------------------------------------------------------------------------

    def ask(self, entries: Sequence[Entry], iteration: int, *, size: int, only_results: bool) -> None:
        """Ask for what is due at the end of an iteration.

        Args:
            entries: The record.
            iteration: The one that ends.
            size: Tokens of the whole record with its head.
            only_results: Whether single results alone may be summarized.
        """
        policy, live = self._policy, self._live
        if policy is None:
            return
        self._ask_for_results(policy, entries[self._looked :], iteration)
        self._looked = len(entries)
        strict = policy.rhythm == "strict"
        if only_results or not policy.summaries or not self._is_due(policy, iteration, size):
            return
        newest, self._asked_at = self._newest, size
        upto = len(entries) if strict else live.plan.start  # else it takes the place of the trail
        _ask(
            live,
            Summarize(
                run_id=live.run_id,
                snapshot=live.ledger.snapshot(),
                first=0,
                upto=upto,
                previous=text_of(newest.content) if newest else "",
                previous_upto=newest.last + 1 if newest else 0,
                tokens=policy.summary_bound,
                retrieval=policy.retrieval,
                fallback=strict,  # else what stands in view already says more than the program could
                iteration=iteration,
                reply_to=self._ref,
            ),
        )

    def _is_due(self, policy: ContextPolicy, iteration: int, size: int) -> bool:
        """Whether it is time for a summary, by the interval or by so many new tokens, somebody writes it, and it can be
        paid: not as long as an earlier one waits to be shown, or as the savings so far are too small."""
        strict, every, new = policy.rhythm == "strict", policy.summarize_every, size - self._asked_at
        if not every or (iteration % every and (strict or new < _DENSE)):
            return False
        if not strict and not (_models_of(self._live) and self._has_long_trail(policy)):
            return False
        written = policy.summary_bound or deserved_tokens(size - self._head)
        price = _price(self._live, new, written)
        waits = price and any(summary.strategy != EXTRACTIVE for summary in self.ready)
        return self.planner is None or (not waits and self.planner.affords(price, written=written))

    def _has_long_trail(self, policy: ContextPolicy) -> bool:
        """Whether what stands for older stretches is about to outgrow its share, and has no summary yet."""
        plan, newest = self._live.plan, self._newest
        comfort = self._profile.comfort if policy.comfort_tokens is None else policy.comfort_tokens
        most = _LONG_TRAIL * (comfort or policy.budget_tokens or self._profile.context_window)
        new = newest is None or newest.last + 1 < plan.start
        return new and sum(cover.tokens for cover in plan.covers) >= most

    def _ask_for_results(self, policy: ContextPolicy, new: Sequence[Entry], iteration: int) -> None:
        for entry in new:
            if entry.tool is None or entry.retrieved is not None:
                continue
            rules = policy.rules(entry.tool)
            if rules.compact_mode != "summary":
                continue
            text = text_of(entry.content)
            if (entry.original_length or len(text)) <= 2 * rules.compact_length or words_of_plug_in(entry, rules):
                continue  # hardly longer than its summary, or a plug-in for it says what it was
            uses = [use for turn in new for use in tool_uses(turn.content)]
            _ask(
                self._live,
                SummarizeResult(
                    run_id=self._live.run_id,
                    position=entry.position,
                    text=text,
                    content_id=entry.content_id if entry.original_length else None,
                    tool=entry.tool,
                    arguments=next((use.input for use in uses if use.id == entry.tool_call_id), {}),
                    kind=entry.kind,
                    turn=entry.iteration,
                    goal=self._live.started.task,
                    prompt=rules.compact_prompt,
                    length=rules.compact_length,
                    iteration=iteration,
                    reply_to=self._ref,
                ),
            )

    def ask_provider(self, request: ModelRequest, snapshot: Snapshot, *, upto: int, iteration: int) -> None:
        """Have the provider summarize what a request said that was answered, unless it is at it or failed too often.

        Args:
            request: The last one.
            snapshot: The ledger.
            upto: The length that it had when the request was made.
            iteration: The one that begins.
        """
        now = self._live.shared.clock()
        if self._provider is not None and now - self._provider.at > _LOST_AFTER:
            self._provider_failed()
        if self._provider is not None or self._failures >= _MOST_FAILURES or not self._profile.compacts:
            return
        taken = _ask(
            self._live,
            Summarize(
                run_id=self._live.run_id,
                snapshot=snapshot,
                first=0,
                upto=upto,
                models=(self._live.model,),
                request=request,
                iteration=iteration,
                reply_to=self._ref,
            ),
        )
        if taken:
            self._provider = _AskedProvider(request.messages, upto, now)

    # --- what comes of it ---------------------------------------------------------------------------------

    def heard(self, message: SummarizerAnswer) -> None:
        """Take what the summarizer has to say."""
        live, awaited = self._live, self._provider.upto if self._provider is not None else -1
        match message:
            case SummaryReady(summary=summary) if summary.strategy == PROVIDER and summary.last + 1 != awaited:
                self.refuse("the provider's summary came too late", message.cost)
            case SummaryReady(summary=summary):
                if summary.strategy == PROVIDER:
                    self.signed = message  # the planner counts its cost when it is swapped in
                else:
                    self._newest = summary
                    self.ready.append(summary)
                    self._charge(message.cost)
                about = {name: getattr(summary, name) for name in ("first", "last", "strategy", "tokens")}
                live.publish(SummaryTaken, **about, replaced_tokens=summary.replaced_tokens, failure=message.failure)
            case SummaryFailed():
                if message.upto == awaited:
                    self._provider_failed()
                self.refuse("" if message.superseded else message.reason, message.cost)
            case ResultSummarized(position=at):
                live.result_summaries[at] = message.text
                self._charge(message.cost)
                entry, tokens = live.ledger.snapshot()[at], text_tokens(message.text)
                replaced = max(entry.tokens, entry.original_length // 4)
                live.publish(
                    SummaryTaken, first=at, last=at, strategy="result", tokens=tokens, replaced_tokens=replaced
                )
            case ResultNotSummarized():
                self.refuse(message.reason, message.cost)

    def take_signed(self, messages: Sequence[Message]) -> SummaryReady | None:
        """The signed summary that has come, where the messages to be sent still begin with those that it summarizes."""
        signed, asked = self.signed, self._provider
        self.signed = self._provider = None
        if signed is None or asked is None or tuple(messages[: len(asked.messages)]) == asked.messages:
            return signed
        self.refuse("the view was edited while the provider wrote its summary", signed.cost)
        return None

    def count_signed(self, *, swapped_in: bool) -> None:
        """Count whether the provider's summary could be swapped in: one more that could not is one more in vain."""
        self._failures = 0 if swapped_in else self._failures + 1

    def refuse(self, reason: str, cost: float) -> None:
        """Go on without a summary that was paid for, and say why; with "" nothing went wrong."""
        self._charge(cost)
        if reason:
            self._live.publish(SummaryRefused, reason=reason)

    def _charge(self, cost: float) -> None:
        if self.planner is not None:
            self.planner.charge(cost)

    def _provider_failed(self) -> None:
        self._provider = None
        self._failures += 1


def _models_of(live: LiveRun) -> tuple[Model, ...]:
    """Those that write a run's summaries, to be tried in this order; none where the program alone does."""
    return live.shared.models.for_summaries(live.model)


def _price(live: LiveRun, tokens: int, written: int) -> float:
    """US dollars for a summary of so many tokens in so many; 0.0 where nobody is known to charge for it."""
    usage = Usage(input_tokens=tokens, output_tokens=written)
    return next((cost_of(model.profile, usage) for model in _models_of(live)), 0.0)


def _ask(live: LiveRun, job: Summarize | SummarizeResult) -> bool:
    """Send the summarizer a request, paid by the run, and go on; one that names no models is for those of the run.

    Returns:
        Whether it was taken; a summarizer with too much to do takes no more, and the run goes on without.
    """
    models = _models_of(live) if job.models is None else job.models
    job = msgspec.structs.replace(job, models=models, budget=live.spending)
    try:
        live.shared.summarizer.tell(job)
    except MailboxFull:
        live.publish(SummaryRefused, reason="the summarizer has more requests waiting than it can hold")
        return False
    return True
