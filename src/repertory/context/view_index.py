"""The planner's figures of a plan's view, updated entry by entry, so that planning only processes new entries."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import msgspec

from repertory.context.plan import ExpandEntry, Plan, StubResult
from repertory.context.policy import ContextPolicy
from repertory.llm.estimate import Calibration
from repertory.llm.messages import RedactedThinking, Thinking, ToolResult, ToolUse
from repertory.record.entries import Entry
from repertory.record.records import SummaryStored
from repertory.shortening.rules import ResultRules, expiring_together
from repertory.shortening.trail import is_talk


class ViewIndex:
    """One plan's view in numbers.

    Attributes:
        snapshot: The ledger.
        covered: Tokens of the covers and of what is kept of the entries they replace.
        tokens: Tokens of the whole view.
        results: Uncovered results that are shown in full, oldest first, without those that are pinned.
        stubs: Results that are shown as a stub.
        ends: Positions at which a cover may end, not included: no call is open there.
        kept: Positions of what stays verbatim under a cover: the task, what users said, what is pinned.
        others_before: How many entries that are not kept stand before each of these; equal where none is between two.
        first_thinking: Position of the first entry whose reasoning is in view; -1 for none.
        last_turn: Position of the newest assistant entry; the model has not seen what follows.
    """

    def __init__(
        self, plan: Plan, policy: ContextPolicy, snapshot: Sequence[Entry], *, reuse: ViewIndex | None = None
    ) -> None:
        """Count a view; ``reuse`` is a view of the same policy whose unchanged figures are reused."""
        self.plan = plan
        self.policy = policy
        self.snapshot = snapshot
        shared = 0 if reuse is None else plan.count_shared_covers(reuse.plan)
        # At each index, tokens of that many covers, and of what they keep.
        self._cover_totals: list[tuple[int, int]] = [(0, 0)] if reuse is None else reuse._cover_totals[: shared + 1]
        for cover in plan.covers[shared:]:
            covered, covered_kept = self._cover_totals[-1]
            kept = sum(plan.tokens_of(snapshot[position]) for position in plan.kept(cover))
            self._cover_totals.append((covered + cover.tokens + kept, covered_kept + kept))
        self.covered, self._covered_kept_tokens = self._cover_totals[-1]
        self.tokens = self.covered
        self.results: list[Entry] = []
        self.stubs: list[Entry] = []
        self.ends: list[int] = []
        self.kept: list[int] = []
        self._kept_sums = [0]  # at each index, tokens of that many of these
        self.others_before: list[int] = []
        self._end_iterations: list[int] = []
        self.first_thinking = -1
        self.last_turn = plan.start
        self.position = plan.start
        self._tokens_before = [self.covered]  # tokens of the view before each uncovered entry
        self._open: set[str] = set()
        self._rules: dict[str | None, ResultRules] = reuse._rules if reuse is not None else {}
        self.grow(snapshot)

    def grow(self, snapshot: Sequence[Entry]) -> None:
        """Count the new entries."""
        self.snapshot = snapshot
        for entry in snapshot[self.position :]:
            if entry.tool_call_id is None and not self._open:
                self.ends.append(entry.position)
                self._end_iterations.append(entry.iteration)
            if entry.role == "assistant":
                self.last_turn = entry.position
            for block in entry.content:
                if isinstance(block, ToolUse):
                    self._open.add(block.id)
                elif isinstance(block, ToolResult):
                    self._open.discard(block.tool_use_id)
                elif isinstance(block, Thinking | RedactedThinking) and self.first_thinking < 0:
                    self.first_thinking = entry.position if entry.position >= self.plan.thinking_from else -1
            kept, tokens = self.is_kept(entry), self.plan.tokens_of(entry)
            if entry.tool_call_id is not None:
                shown = self.plan.shown.get(entry.position)
                if (shown is None or isinstance(shown, ExpandEntry)) and not kept:
                    self.results.append(entry)
                elif isinstance(shown, StubResult):
                    self.stubs.append(entry)
            if kept:
                self.others_before.append(entry.position - len(self.kept))
                self.kept.append(entry.position)
                self._kept_sums.append(self._kept_sums[-1] + tokens)
            self.tokens += tokens
            self._tokens_before.append(self.tokens)
        self.position = len(snapshot)

    def replanned(self, plan: Plan) -> ViewIndex:
        """Return the view that another plan makes of the same entries."""
        return ViewIndex(plan, self.policy, self.snapshot, reuse=self)

    def rules(self, tool: str | None) -> ResultRules:
        """Return the rules for a tool's results."""
        if tool not in self._rules:
            self._rules[tool] = self.policy.rules(tool)
        return self._rules[tool]

    def is_pinned(self, entry: Entry, *, pins: bool = True) -> bool:
        """Whether a caller (``pins``), its tool or its policy pins an entry. A caller's pins can be removed."""
        return (pins and entry.position in self.plan.pins) or entry.pinned or self.rules(entry.tool).pin

    def is_kept(self, entry: Entry, *, pins: bool = True) -> bool:
        """Whether an entry stays word for word when its stretch is covered: talk between user and agent, and pins."""
        return self.is_pinned(entry, pins=pins) or is_talk(entry, keep_user_input=self.policy.keep_user_input)

    def view_tokens(self, first: int, upto: int) -> int:
        """Count the tokens between two positions at which covers or turns begin, without what stays there."""
        covered = sum(cover.tokens for cover in self.plan.covers if first <= cover.first and cover.last < upto)
        if upto <= self.plan.start:
            return covered
        kept = self.kept_tokens(upto) - self.kept_tokens(max(first, self.plan.start))
        return covered + self.tokens_before(upto) - self.tokens_before(max(first, self.plan.start)) - kept

    def tokens_before(self, position: int) -> int:
        """Count the tokens of the view before an uncovered entry."""
        return self._tokens_before[min(max(0, position - self.plan.start), len(self._tokens_before) - 1)]

    def end_before(self, position: int) -> int:
        """Return the last position, up to the given one, where a cover may end; the plan's start if there is none."""
        index = bisect_right(self.ends, position) - 1
        return self.ends[index] if index >= 0 else self.plan.start

    def end_at_turn(self, turn: int) -> int:
        """Return where a cover may end so that an iteration and all later ones stay."""
        index = bisect_left(self._end_iterations, turn)
        return self.ends[index] if index < len(self.ends) else self.end_before(self.last_turn)

    def skip_talk(self, position: int) -> int:
        """Move the end of a cover past the talk and pins that directly follow it, as far as a cover may end there."""
        at = bisect_left(self.kept, position)
        end = min(position + bisect_right(self.others_before, position - at, at) - at, self.position - 1)
        return max(position, self.end_before(end))  # a caller may have pinned a turn without its results

    def kept_tokens(self, upto: int) -> int:
        """Count the uncovered tokens before a position that a cover would leave verbatim."""
        return self._kept_sums[bisect_left(self.kept, upto)]

    def restated_tokens(self, upto: int) -> int:
        """Count the tokens that would be repeated beside a summary of everything before a position."""
        return self._covered_kept_tokens + self.kept_tokens(upto)

    def growth(self, turns: int) -> float:
        """Return the average tokens that each of the newest turns added to the view."""
        newest = self.ends[-turns:]
        return (self.tokens - self.tokens_before(newest[0])) / len(newest) if newest else 0.0

    def turns_before(self, position: int) -> int:
        """Count the uncovered iterations that begin before a position."""
        return bisect_left(self.ends, position)

    def expired(self, iteration: int) -> list[tuple[Entry, ResultRules]]:
        """Return the results that have expired at an iteration, with their rules; stubs can still be removed.

        Results of one turn expire together, under the most aggressive of their settings.
        """
        if not self.policy.expires:
            return []
        turns: dict[int, list[Entry]] = {}
        for entry in (*self.results, *self.stubs):
            turns.setdefault(entry.iteration, []).append(entry)
        found: list[tuple[Entry, ResultRules]] = []
        for turn, entries in turns.items():
            for entry, rules in zip(entries, expiring_together([self.rules(e.tool) for e in entries]), strict=True):
                is_over = rules.expiration_mode != "none" and iteration - turn > rules.expiration_turns
                is_short = rules.expiration_mode == "compact" and entry.position in self.plan.shown
                if is_over and not is_short and entry.position < self.last_turn:
                    found.append((entry, rules))
        return found


class Inputs(msgspec.Struct, frozen=True):
    """The inputs of planning the next request; ``size`` is the prompt's tokens before new edits, calibrated."""

    view: ViewIndex
    iteration: int
    calibration: Calibration
    size: int
    cold: bool
    summaries: Sequence[SummaryStored]
