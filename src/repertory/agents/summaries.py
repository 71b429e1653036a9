"""The summaries of one run: asked for in the background, kept until the planner wants them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from repertory.actors import ActorRef
from repertory.agents.live import LiveRun
from repertory.context import ContextPolicy, Planner
from repertory.llm.messages import text_of
from repertory.record.records import SummaryStored
from repertory.summarizer import Summarize
from repertory.summarizer.messages import EXTRACTIVE

_DENSE = 25_000  # tokens of new record after which thrifty rhythm asks for a summary early


class Summaries:
    """What the summarizer wrote for a run, and when it is asked for more."""

    def __init__(self, live: LiveRun, policy: ContextPolicy | None, ref: ActorRef[Any]) -> None:
        self._live = live
        self._policy = policy
        self._ref = ref
        self._newest: SummaryStored | None = None
        self._asked_at = 0  # tokens of the record when the summarizer was last asked
        self.ready: list[SummaryStored] = []
        """Those that the planner may still swap in."""

    def open(self, stored: Sequence[SummaryStored], *, head: int) -> None:
        """Take up what the journal holds; ``head`` are the tokens of system text and tools."""
        self.ready = list(stored)
        self.drop_covered()
        self._newest = stored[-1] if stored else None
        if self._newest is not None:
            summarized = self._live.ledger.snapshot()[: self._newest.last + 1]
            self._asked_at = head + sum(max(e.tokens, -(-e.original_length // 4)) for e in summarized)

    def drop_covered(self) -> None:
        """Forget those of which the plan has no more use."""
        self.ready = [summary for summary in self.ready if summary.last >= self._live.plan.start]

    def add(self, summary: SummaryStored) -> None:
        """Keep one until the planner wants it."""
        self.ready.append(summary)
        self._newest = summary

    def request(self, iteration: int, *, size: int, head: int, planner: Planner | None) -> None:
        """Send the summarizer a snapshot every so many iterations, and go on; the answer comes by mail.

        One that costs waits for as long as what was saved so far could not pay for it, or an earlier one has not been
        swapped in: until it is shown it would only cost.

        Args:
            iteration: The iteration that has just ended.
            size: Tokens of the whole record, system text and tools included.
            head: Tokens of system text and tools.
            planner: The run's, which knows the savings; None for a plain loop.
        """
        policy = self._policy
        if policy is None or not policy.summaries or not policy.summarize_every:
            return
        if iteration % policy.summarize_every and not self._is_dense(policy, size - max(self._asked_at, head)):
            return
        price = self._live.summary_price(size - max(self._asked_at, head), policy.summary_tokens)
        waits = price and any(summary.strategy != EXTRACTIVE for summary in self.ready)
        if planner is not None and (waits or not planner.affords(price)):
            return
        snapshot, newest = self._live.ledger.snapshot(), self._newest
        self._asked_at = size
        self._live.ask_summarizer(
            Summarize(
                run_id=self._live.run_id,
                snapshot=snapshot,
                first=0,
                upto=len(snapshot),
                previous=text_of(newest.content) if newest else "",
                previous_upto=newest.last + 1 if newest else 0,
                tokens=policy.summary_tokens,
                retrieval=policy.retrieval,
                iteration=iteration,
                reply_to=self._ref,
            ),
        )

    def _is_dense(self, policy: ContextPolicy, new: int) -> bool:
        """Whether so much has come since the last request to the summarizer that the next is due early."""
        most = policy.summarize_tokens
        if most is None:
            most = 0 if policy.rhythm == "strict" else _DENSE
        return 0 < most <= new
