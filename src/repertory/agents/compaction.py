"""When a run on a binding model asks its provider for a summary, and which summary it takes.

See ``docs/binding.md``. One request at a time; what comes back counts for the first request after its arrival, and only
if the view has not been edited since. Whatever goes wrong, the view stays append-only, which is always legal.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from repertory.context import ContextPolicy, Decision, Plan, swap_in
from repertory.context.tokens import Calibration
from repertory.llm.messages import Block, Message, RedactedThinking, Thinking
from repertory.llm.profiles import ModelProfile
from repertory.record import Snapshot
from repertory.record.records import SummaryStored

_MOST_FAILURES = 3  # in a row; then the provider is not asked again
_LOST_AFTER = 900.0  # seconds without an answer


class _Asked(msgspec.Struct, frozen=True):
    upto: int
    messages: tuple[Message, ...]  # of the request that is summarized
    at: float


class Compactions:
    """The provider's summaries of one run."""

    def __init__(self, policy: ContextPolicy | None, profile: ModelProfile, *, head: int) -> None:
        """Prepare for a run.

        Args:
            policy: What the application asks for; None for a plain loop, which is never summarized.
            profile: The model's.
            head: Estimate of system text and tools, which a summary does not replace.
        """
        self._policy = policy
        self._profile = profile
        self._head = head
        self._thinks = False
        self._asked: _Asked | None = None
        self._ready: SummaryStored | None = None
        self._failures = 0

    @property
    def apply(self) -> bool:
        """Whether the provider's summaries are the ones to ask for: other edits would invalidate the thinking."""
        policy, profile = self._policy, self._profile
        wanted = policy is not None and policy.summaries
        return wanted and self._thinks and profile.target == "binding" and profile.compacts

    def saw(self, content: Iterable[Block]) -> None:
        """Note whether the model thinks."""
        self._thinks = self._thinks or any(isinstance(block, Thinking | RedactedThinking) for block in content)

    def may_ask(self, now: float) -> bool:
        """Whether to ask when the planner wants it: one request at a time, and not again after many failures."""
        if self._asked is not None and now - self._asked.at > _LOST_AFTER:
            self._fail()
        return self.apply and self._asked is None and self._failures < _MOST_FAILURES

    def asked(self, upto: int, messages: tuple[Message, ...], now: float) -> None:
        """Note that the provider was asked for a summary of a request.

        Args:
            upto: Length of the ledger that the request showed.
            messages: What it said.
            now: Seconds since 1970.
        """
        self._asked = _Asked(upto, messages, now)

    def arrived(self, summary: SummaryStored) -> bool:
        """Take a summary; False if it is not the one that was asked for last."""
        if self._asked is None or summary.last + 1 != self._asked.upto:
            return False
        self._ready = summary
        self._failures = 0
        return True

    def failed(self, upto: int) -> None:
        """Note that there will be no summary up to a position."""
        if self._asked is not None and upto == self._asked.upto:
            self._fail()

    def _fail(self) -> None:
        self._asked = None
        self._failures += 1

    @property
    def ready(self) -> bool:
        """Whether a summary has arrived since the last request."""
        return self._ready is not None

    def take(
        self,
        snapshot: Snapshot,
        plan: Plan,
        *,
        shown: tuple[Message, ...],
        iteration: int,
        calibration: Calibration,
        cold: bool,
    ) -> tuple[Decision | None, str]:
        """Swap a summary in that has arrived since the last request.

        Args:
            snapshot: The ledger.
            plan: How it was shown so far.
            shown: The messages that the next request would have without the summary.
            iteration: The iteration of that request.
            calibration: What the provider's counts taught.
            cold: Whether the prompt cache has expired.

        Returns:
            The decision, or None; and why an arrived summary was not taken, "" where there was none.
        """
        summary, asked = self._ready, self._asked
        if summary is None or asked is None or self._policy is None:
            return None, ""
        self._ready = self._asked = None
        if shown[: len(asked.messages)] != asked.messages:
            return None, "the view was edited while the provider wrote its summary"
        decision = swap_in(
            snapshot,
            plan,
            summary,
            policy=self._policy,
            profile=self._profile,
            iteration=iteration,
            head_tokens=self._head,
            calibration=calibration,
            cold=cold,
        )
        return decision, "" if decision else "the provider's summary does not fit what has come since"
