"""Shown once: a bulky result that is whole in one request, not written to the prompt cache, and then a stub.

No prefix changes, unless a stub costs bound reasoning. So this saves at once: it is how a run makes its first savings.
"""

from __future__ import annotations

from collections.abc import Sequence

from repertory.context.course import Course, Fold, first_position
from repertory.context.edits import MIN_SAVED, worthwhile
from repertory.context.plan import CoverRange, Edit, HoldBack, RemoveResult, StubResult
from repertory.context.view_index import Inputs, ViewIndex
from repertory.llm.estimate import text_tokens
from repertory.record.entries import Entry
from repertory.shortening.lines import looks_like_file
from repertory.shortening.shaping import tool_text
from repertory.shortening.trail import room_of

_FILE_TOKENS = 2_500  # about 250 lines: up to that, a file that may be edited stays whole in the window
_LARGE_SHARE = 0.1  # of the comfort: results of one turn that have more are shown whole once, whatever they are


class ShownOnce:
    """Decides which results of one run are shown once."""

    def __init__(self, course: Course) -> None:
        self._course = course
        self._pays = course.thrifty and course.policy.show_once and course.policy.stubs and course.rates.write > 1.0
        self._large_tokens = _LARGE_SHARE * course.comfort

    def due(self, now: Inputs) -> list[StubResult]:
        """Return the stubs of results that the last request showed without writing them to the cache."""
        return [] if self._course.account.uncounted_requests else self._stubs(now, now.view.last_turn)

    def read_ahead(self, now: Inputs) -> None:
        """Choose the lines of the stubs that will be due at the request after this one."""
        if now.view.plan.decided_at == now.view.position:
            self._stubs(now, now.view.position)

    def hold_back(self, now: Inputs, edits: Sequence[Edit], fold: Fold) -> list[HoldBack]:
        """Keep new, bulky results from being written to the cache by the request that shows these edits."""
        course, view = self._course, now.view
        first_new = view.last_turn + 1
        held = view.tokens - view.tokens_before(first_new)
        thinks = course.profile.target == "binding" and (course.is_bound(view) or view.plan.thinking_from)
        if not self._pays or (held < self._large_tokens and (thinks or course.account.pays_for(fold.cost))):
            return []
        gain = 0.0
        for entry in view.snapshot[first_new:]:
            stub = self._stub_tokens(view, entry)
            gain += self._gain(entry.tokens, stub) if stub else -entry.tokens
        if gain <= 0 or any(first_position(edit) >= first_new for edit in edits):
            return []
        if course.is_bound(view) and not edits:
            # The stubs will cost the reasoning in view, and what follows the first of it is written again.
            again = view.tokens_before(first_new) - view.tokens_before(view.first_thinking)
            gain -= (course.rates.write - course.rates.read) * again
        changed = (edit for edit in edits if isinstance(edit, CoverRange | StubResult | RemoveResult))
        before = course.head + view.tokens - sum(edit.was_tokens - edit.tokens for edit in changed) - held
        return [HoldBack(position=first_new)] if gain > 0 and before >= course.profile.cache.minimum_tokens else []

    def _gain(self, whole: int, stub: int) -> float:
        """Return what showing a result once saves within a window, in tokens at the input price.

        It is paid as input instead of being written, then its stub is written, and every call of the window reads less.
        """
        rates, window = self._course.rates, self._course.policy.window
        return (rates.write - 1.0) * whole - rates.write * stub + rates.read * window * (whole - stub)

    def _stubs(self, now: Inputs, seen: int) -> list[StubResult]:
        """Return the stubs of what the plan's request held back, as far as the model has seen it."""
        plan, view = now.view.plan, now.view
        if not plan.held:
            return []
        stubs = (
            self._course.editor.shorten(view, entry, "shown once", view.rules(entry.tool))
            for entry in view.snapshot[plan.held : min(plan.decided_at, seen)]
            if self._stub_tokens(view, entry)
        )
        return worthwhile(stubs)

    def _stub_tokens(self, view: ViewIndex, entry: Entry) -> int:
        """Estimate the tokens of the stub if a result is shown once; 0 if the result stays."""
        if entry.tool_call_id is None or entry.position in view.plan.shown or view.is_kept(entry):
            return 0
        text, rules = tool_text(entry), view.rules(entry.tool)
        if entry.tokens < min(_FILE_TOKENS, self._large_tokens) and looks_like_file(text):
            return 0  # it may be edited
        stub = text_tokens(text[: max(room_of(len(text), rules.importance), rules.compact_length)]) + MIN_SAVED
        return stub if stub < entry.tokens // 2 else 0
