"""Shown once: a bulky result that is whole in one request, unwritten to the prompt cache, and a stub from the next on.

No prefix changes, so this saves from the first time: it is how a run that has saved nothing yet begins to.
"""

from __future__ import annotations

from collections.abc import Sequence

from repertory.context.course import Course, Fold, Moment
from repertory.context.plan import HoldBack, StubResult
from repertory.record.entries import Entry
from repertory.shortening.lines import looks_like_file
from repertory.shortening.shaping import tool_text
from repertory.shortening.trail import room_of

_BULKY = 1_000  # tokens of a result that may be shown once; the smallest prefix that most models cache
_FILE = 2_500  # tokens of a file, about 250 lines: what is read to be edited stays whole in the window up to that
_LARGE_SHARE = 0.1  # of the comfort: a larger result is shown whole once, whatever it is


class ShownOnce:
    """Decides it for the results of one run."""

    def __init__(self, course: Course) -> None:
        """Begin."""
        self._course = course
        self._large = _LARGE_SHARE * course.comfort

    def due(self, now: Moment) -> list[StubResult]:
        """The stubs of results that the last request showed without writing them to the cache."""
        plan = now.live.plan
        if not plan.held or self._course.account.since_counted:
            return []
        shown = now.snapshot[plan.held : min(plan.decided_at, now.live.last_turn)]
        return [stub for entry in shown if (stub := self._stub(now, entry)) is not None]

    def hold_back(self, now: Moment, stubs: Sequence[StubResult], fold: Fold) -> list[HoldBack]:
        """Keep what is new and bulky from being written to the cache, beside the stubs that are made now; ``fold`` is
        what would be folded otherwise."""
        course, live = self._course, now.live
        policy, rates = course.policy, course.rates
        if now.cold or rates.write <= 1.0 or not (policy.show_once and policy.stubs):
            return []
        hold = live.last_turn + 1
        poor = not course.account.pays_for(fold.cost)
        gain, held = 0.0, 0
        for entry in now.snapshot[hold:]:
            stub = self._stub(now, entry) if poor or entry.tokens >= self._large else None
            held += entry.tokens
            gain += self._gain(entry.tokens, stub.tokens) if stub else -entry.tokens
        before = course.head + live.tokens - sum(edit.was_tokens - edit.tokens for edit in stubs) - held
        return [HoldBack(position=hold)] if gain > 0 and before >= course.profile.cache.minimum_tokens else []

    def _gain(self, whole: int, stub: int) -> float:
        """What showing a result once saves within a window, in tokens at the input price.

        It is paid as input instead of written, its stub is written behind it, and every call of the window reads less.
        """
        rates, window = self._course.rates, self._course.policy.window
        return (rates.write - 1.0) * whole - rates.write * stub + rates.read * window * (whole - stub)

    def _stub(self, now: Moment, entry: Entry) -> StubResult | None:
        """The stub of a result that is shown once; None for one that stays."""
        live, bulky = now.live, entry.tool_call_id is not None and entry.tokens >= _BULKY
        if not bulky or entry.position in live.plan.shown or live.stays(entry):
            return None
        text, rules = tool_text(entry), live.rules(entry.tool)
        may_be_edited = entry.tokens < min(_FILE, self._large) and looks_like_file(text)
        if may_be_edited or room_of(len(text), rules.importance) > len(text) // 2:
            return None
        stub = self._course.editor.shorten(live, now.snapshot, entry, "shown once", rules)
        return stub if stub.tokens < entry.tokens // 2 else None
