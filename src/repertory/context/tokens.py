"""How many tokens a plan's view has: estimates by characters, calibrated by what the provider counted."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from repertory.context.plan import Plan
from repertory.record.entries import Entry

_LEAST, _MOST = 0.3, 4.0  # beyond these the figures do not describe the same prompt
_LEAST_FIRST, _MOST_FIRST = 0.8, 1.25  # beyond these a first prompt holds what no estimate sees
_FORGETS = 0.9  # of what was learned from growth, with each call
_ENOUGH = 500  # estimated tokens of growth before it says more than the whole prompt does
_DOUBT, _FIRST_DOUBT = 0.15, 0.3  # of what has changed since the last count; of a prompt before the first


class Calibration(msgspec.Struct, frozen=True):
    """How far estimates are from what the provider counts.

    Attributes:
        real: What the last prompt really had; 0 before the first call.
        estimate: What it was estimated at, uncalibrated.
        factor: Real tokens per estimated token, for what has changed since. It is learned from how prompts grow: what
            no estimate sees, such as hidden instructions, is the same in each of them.
        grown_real: Real tokens of that growth, the newest counting most.
        grown_estimate: The same, estimated.
    """

    real: int = 0
    estimate: int = 0
    factor: float = 1.0
    grown_real: float = 0.0
    grown_estimate: float = 0.0

    def observe(self, *, estimate: int, real: int) -> Calibration:
        """Learn from one call.

        Args:
            estimate: What its prompt was estimated at, uncalibrated.
            real: What the provider counted: ``usage.prompt_tokens``.

        Returns:
            The calibration for the next call; this one where the provider counted nothing.
        """
        if estimate <= 0 or real <= 0:
            return self
        more, estimated_more = real - self.real, estimate - self.estimate
        grown, estimated = self.grown_real, self.grown_estimate
        if self.real and more > 0 and estimated_more > 0:
            grown, estimated = grown * _FORGETS + more, estimated * _FORGETS + estimated_more
        if estimated > _ENOUGH:
            factor = min(_MOST, max(_LEAST, grown / estimated))
        else:
            factor = min(_MOST_FIRST, max(_LEAST_FIRST, real / estimate))
        return Calibration(real, estimate, factor, grown, estimated)

    def real_tokens(self, estimate: int) -> int:
        """What a prompt of this estimate will have: the last real count and what has changed since."""
        return max(1, round(self.real + (estimate - self.estimate) * self.factor))

    def doubt(self, estimate: int) -> int:
        """By how many tokens ``real_tokens`` may well be off."""
        if not self.real:
            return round(estimate * _FIRST_DOUBT)
        return round(abs(estimate - self.estimate) * self.factor * _DOUBT)


def text_tokens(text: str) -> int:
    """Estimate what a text block costs: four characters a token, and the block around them."""
    return len(text) // 4 + 8


def measure(snapshot: Sequence[Entry], plan: Plan) -> int:
    """Estimate what the plan shows of a snapshot, in tokens; system text and tools not included."""
    total = sum(shown_tokens(entry, plan) for entry in snapshot[plan.start :])
    for cover in plan.covers:
        total += cover.tokens + sum(shown_tokens(snapshot[position], plan) for position in plan.kept(cover))
    return total


def shown_tokens(entry: Entry, plan: Plan) -> int:
    """Estimate what one entry costs as it is shown."""
    shown = plan.shown.get(entry.position)
    return entry.tokens if shown is None else shown.tokens
