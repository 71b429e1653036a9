"""A run's requests to the summarizer and their answers. Nobody waits for them, and no failure stops the run.

There are three kinds: a summary of the record so far, every ``summarize_every`` iterations; summaries of single results
whose policy has ``compact_mode="summary"``, when the results arrive; and the provider's signed summary of a request
that was sent, when the planner wants it (see ``docs/binding.md``).
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
from repertory.shortening.shaping import plug_in_text
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

_EARLY_TOKENS = 25_000  # tokens of new record after which thrifty rhythm asks for a summary early
_LONG_TRAIL = 0.4  # of the comfort; the planner uses a summary from half of it on, and writing one takes time
_MAX_FAILURES = 3  # consecutive failures of the provider's summary, after which it is not requested again
_ANSWER_TIMEOUT = 900.0  # seconds without an answer; a summarizer that was restarted has forgotten the request


class _ProviderRequest(msgspec.Struct, frozen=True):
    """The messages that the provider summarizes, the length of the ledger that they show, and when it was asked."""

    messages: tuple[Message, ...]
    upto: int
    at: float


class SummaryRequests:
    """The requests of one run to the summarizer, and the summaries that wait to be shown.

    Attributes:
        planner: The run's planner, which knows the savings and is told what was paid; None for a plain loop.
        ready: Summaries of stretches that the planner may swap in.
        signed: The provider's summary that has arrived since the last request; None for none.
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
        self._tokens_when_asked = head  # tokens of the record when a summary was last asked for
        self._checked = 0  # entries that have been checked for results to summarize
        self._provider: _ProviderRequest | None = None
        self._failures = 0

    def open(self, stored: Iterable[SummaryStored]) -> None:
        """Restore the summaries in the journal, except a provider's summary that was not swapped in at once."""
        for summary in stored:
            if summary.strategy != PROVIDER:
                self.ready.append(summary)
                self._newest, self._tokens_when_asked = summary, self._head + summary.replaced_tokens
        self.drop_covered()
        self._checked = len(self._live.ledger.snapshot())

    def drop_covered(self) -> None:
        """Forget the summaries that the plan can no longer use, because there is nothing that they could replace."""
        plan = self._live.plan
        ends = {cover.last for cover in plan.covers if not cover.summary_id}
        self.ready = [summary for summary in self.ready if summary.last >= plan.start or summary.last in ends]

    # --- asking -------------------------------------------------------------------------------------------

    def ask(self, entries: Sequence[Entry], iteration: int, *, size: int, only_results: bool) -> None:
        """Ask for what is due at the end of an iteration.

        Args:
            entries: The record.
            iteration: The iteration that ends.
            size: Tokens of the whole record with its head.
            only_results: Whether only single results may be summarized.
        """
        policy, live = self._policy, self._live
        if policy is None:
            return
        self._ask_for_results(policy, entries[self._checked :], iteration)
        self._checked = len(entries)
        strict = policy.rhythm == "strict"
        if only_results or not policy.summaries or not self._is_due(policy, iteration, size):
            return
        newest, self._tokens_when_asked = self._newest, size
        upto = len(entries) if strict else live.plan.start  # else the summary replaces the trail
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
                fallback=strict,  # else the trail in view already says more than the program could
                iteration=iteration,
                reply_to=self._ref,
            ),
        )

    def _is_due(self, policy: ContextPolicy, iteration: int, size: int) -> bool:
        """Whether to ask for a summary: one is due by iterations or new tokens, a model or the program can write it,
        no earlier one waits to be shown, and the savings so far pay for it."""
        strict, every, new_tokens = policy.rhythm == "strict", policy.summarize_every, size - self._tokens_when_asked
        if not every or (iteration % every and (strict or new_tokens < _EARLY_TOKENS)):
            return False
        if not strict and not (_models_of(self._live) and self._has_long_trail(policy)):
            return False
        written = policy.summary_bound or deserved_tokens(size - self._head)
        price = _price(self._live, new_tokens, written)
        waits = price and any(summary.strategy != EXTRACTIVE for summary in self.ready)
        return self.planner is None or (not waits and self.planner.affords(price, written=written))

    def _has_long_trail(self, policy: ContextPolicy) -> bool:
        """Whether the covers of older stretches are about to outgrow their share, and have no summary yet."""
        plan, newest = self._live.plan, self._newest
        comfort = self._profile.comfort if policy.comfort_tokens is None else policy.comfort_tokens
        max_tokens = _LONG_TRAIL * (comfort or policy.budget_tokens or self._profile.context_window)
        new = newest is None or newest.last + 1 < plan.start
        return new and sum(cover.tokens for cover in plan.covers) >= max_tokens

    def _ask_for_results(self, policy: ContextPolicy, new: Sequence[Entry], iteration: int) -> None:
        for entry in new:
            if entry.tool is None or entry.retrieved is not None:
                continue
            rules = policy.rules(entry.tool)
            if rules.compact_mode != "summary":
                continue
            text = text_of(entry.content)
            if (entry.original_length or len(text)) <= 2 * rules.compact_length or plug_in_text(entry, rules):
                continue  # hardly longer than its summary, or a compactor of the application describes it
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
        """Ask the provider to summarize an answered request, unless it is already working on one or failed too often.

        Args:
            request: The last request.
            snapshot: The ledger.
            upto: Length of the ledger when the request was made.
            iteration: The iteration that begins.
        """
        now = self._live.shared.clock()
        if self._provider is not None and now - self._provider.at > _ANSWER_TIMEOUT:
            self._provider_failed()
        if self._provider is not None or self._failures >= _MAX_FAILURES or not self._profile.compacts:
            return
        accepted = _ask(
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
        if accepted:
            self._provider = _ProviderRequest(request.messages, upto, now)

    # --- what comes of it ---------------------------------------------------------------------------------

    def handle_answer(self, message: SummarizerAnswer) -> None:
        """Handle an answer of the summarizer."""
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
                fields = {name: getattr(summary, name) for name in ("first", "last", "strategy", "tokens")}
                live.publish(SummaryTaken, **fields, replaced_tokens=summary.replaced_tokens, failure=message.failure)
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
        """Take the signed summary that has arrived, if the next messages still begin with those that it summarizes."""
        signed, asked = self.signed, self._provider
        self.signed = self._provider = None
        if signed is None or asked is None or tuple(messages[: len(asked.messages)]) == asked.messages:
            return signed
        self.refuse("the view was edited while the provider wrote its summary", signed.cost)
        return None

    def count_signed(self, *, swapped_in: bool) -> None:
        """Count whether the provider's summary could be swapped in: if not, it counts as a failure."""
        self._failures = 0 if swapped_in else self._failures + 1

    def refuse(self, reason: str, cost: float) -> None:
        """Charge for a summary that will not be used, and report the reason; "" means that nothing went wrong."""
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
    """Return the models that write a run's summaries, to be tried in this order; none if only the program does."""
    return live.shared.models.for_summaries(live.model)


def _price(live: LiveRun, tokens: int, written: int) -> float:
    """Return the US dollars for a summary of ``tokens`` in ``written`` tokens; 0.0 without a model or a price."""
    usage = Usage(input_tokens=tokens, output_tokens=written)
    return next((cost_of(model.profile, usage) for model in _models_of(live)), 0.0)


def _ask(live: LiveRun, job: Summarize | SummarizeResult) -> bool:
    """Send the summarizer a request that the run pays for; if it names no models, the run's are used.

    Returns:
        Whether it was accepted; a summarizer with a full mailbox accepts none, and the run continues without.
    """
    models = _models_of(live) if job.models is None else job.models
    job = msgspec.structs.replace(job, models=models, budget=live.spending)
    try:
        live.shared.summarizer.tell(job)
    except MailboxFull:
        live.publish(SummaryRefused, reason="the summarizer has more requests waiting than it can hold")
        return False
    return True
