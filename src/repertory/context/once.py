"""Shown once: a bulky result that is whole in one request, not written to the prompt cache, and then a stub.

No prefix changes, so this saves from the first time on: it is how a run makes its first savings.
"""

from __future__ import annotations

from collections.abc import Sequence

from repertory.context.course import Course, Fold, Moment
from repertory.context.edits import LEAST_SAVED, worthwhile
from repertory.context.live import Live
from repertory.context.plan import HoldBack, StubResult
from repertory.record.entries import Entry
from repertory.shortening.lines import looks_like_file
from repertory.shortening.shaping import tool_text
from repertory.shortening.trail import room_of

_BULKY = 1_000  # tokens of a result that may be shown once; the smallest prefix that most models cache
_FILE = 2_500  # tokens of a file, about 250 lines: up to that, a file that may be edited stays whole in the window
_LARGE_SHARE = 0.1  # of the comfort: a larger result is shown whole once, whatever it is


class ShownOnce:
    """Decides which results of one run are shown once."""

    def __init__(self, course: Course) -> None:
        """Begin."""
        self._course = course
        self._large = _LARGE_SHARE * course.comfort

    def due(self, now: Moment) -> list[StubResult]:
        """Return the stubs of results that the last request showed without writing them to the cache."""
        return [] if self._course.account.since_counted else self._stubs(now, now.live.last_turn)

    def read_ahead(self, now: Moment) -> None:
        """Choose the lines of the stubs that will be due at the request after this one."""
        if now.live.plan.decided_at == now.live.position:
            self._stubs(now, now.live.position)

    def hold_back(self, now: Moment, stubs: Sequence[StubResult], fold: Fold) -> list[HoldBack]:
        """Keep new, bulky results from being written to the cache; ``stubs`` are made now in any case, ``fold`` is the
        fold that was considered instead."""
        course, live = self._course, now.live
        policy, rates = course.policy, course.rates
        if now.cold or rates.write <= 1.0 or not (policy.show_once and policy.stubs):
            return []
        hold = live.last_turn + 1
        poor = not course.account.pays_for(fold.cost)
        gain, held = 0.0, 0
        for entry in now.snapshot[hold:]:
            stub = self._stub_tokens(live, entry) if poor or entry.tokens >= self._large else 0
            held += entry.tokens
            gain += self._gain(entry.tokens, stub) if stub else -entry.tokens
        before = course.head + live.tokens - sum(edit.was_tokens - edit.tokens for edit in stubs) - held
        return [HoldBack(position=hold)] if gain > 0 and before >= course.profile.cache.minimum_tokens else []

    def _gain(self, whole: int, stub: int) -> float:
        """Return what showing a result once saves within a window, in tokens at the input price.

        It is paid as input instead of being written, then its stub is written, and every call of the window reads less.
        """
        rates, window = self._course.rates, self._course.policy.window
        return (rates.write - 1.0) * whole - rates.write * stub + rates.read * window * (whole - stub)

    def _stubs(self, now: Moment, seen: int) -> list[StubResult]:
        """Return the stubs of what the plan's request held back, as far as the model has seen it."""
        plan, live = now.live.plan, now.live
        shown = now.snapshot[plan.held : min(plan.decided_at, seen)] if plan.held else ()
        stubs = (
            self._course.editor.shorten(live, now.snapshot, entry, "shown once", live.rules(entry.tool))
            for entry in shown
            if self._stub_tokens(live, entry)
        )
        return worthwhile(stubs)

    def _stub_tokens(self, live: Live, entry: Entry) -> int:
        """Estimate the tokens of the stub if a result is shown once; 0 if the result stays."""
        bulky = entry.tool_call_id is not None and entry.tokens >= _BULKY
        if not bulky or entry.position in live.plan.shown or live.stays(entry):
            return 0
        text, rules = tool_text(entry), live.rules(entry.tool)
        if entry.tokens < min(_FILE, self._large) and looks_like_file(text):
            return 0  # it may be edited
        stub = max(room_of(len(text), rules.importance), rules.compact_length) // 4 + LEAST_SAVED
        return stub if stub < entry.tokens // 2 else 0
