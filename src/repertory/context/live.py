"""The planner's figures of a plan's view, updated entry by entry, so that planning only processes new entries."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from repertory.context.plan import ExpandEntry, Plan, StubResult
from repertory.context.policy import ContextPolicy
from repertory.llm.messages import RedactedThinking, Thinking, ToolResult, ToolUse
from repertory.record.entries import Entry
from repertory.shortening.rules import ResultRules, expiring_together
from repertory.shortening.trail import is_talk


class Live:
    """One plan's view in numbers.

    Attributes:
        covered: Tokens of the covers and of what is kept of the entries they replace.
        tokens: Tokens of the whole view.
        results: Uncovered results that are shown in full, oldest first, without those that are pinned.
        stubs: Results that are shown as a stub.
        ends: Positions at which a cover may end, not included: no call is open there.
        spoken: Positions of what stays verbatim under a cover: the task, what users said, what is pinned.
        thinking: Whether the view holds reasoning.
        last_turn: Position of the newest assistant entry; the model has not seen what follows.
    """

    def __init__(
        self, plan: Plan, policy: ContextPolicy, snapshot: Sequence[Entry], *, like: Live | None = None
    ) -> None:
        """Count a view; ``like`` is a view of the same policy whose unchanged figures are reused."""
        self.plan = plan
        self.policy = policy
        self._expires = policy.expires
        same = 0 if like is None else plan.covers_shared(like.plan)
        self._ends: list[tuple[int, int]] = (
            [(0, 0)] if like is None else like._ends[: same + 1]
        )  # at each index, tokens of that many covers, and of what they keep
        for cover in plan.covers[same:]:
            covered, stays = self._ends[-1]
            kept = sum(plan.tokens_of(snapshot[position]) for position in plan.kept(cover))
            self._ends.append((covered + cover.tokens + kept, stays + kept))
        self.covered, self._stays = self._ends[-1]
        self.tokens = self.covered
        self.results: list[Entry] = []
        self.stubs: list[Entry] = []
        self.ends: list[int] = []
        self.spoken: list[int] = []
        self._spoken_tokens = [0]  # at each index, tokens of that many of these
        self._end_turns: list[int] = []
        self.thinking = False
        self.last_turn = plan.start
        self.position = plan.start
        self._before = [self.covered]  # tokens of the view before each uncovered entry
        self._open: set[str] = set()
        self._rules: dict[str | None, ResultRules] = like._rules if like is not None else {}
        self.grow(snapshot)

    def grow(self, snapshot: Sequence[Entry]) -> None:
        """Count the new entries."""
        for entry in snapshot[self.position :]:
            if entry.tool_call_id is None and not self._open:
                self.ends.append(entry.position)
                self._end_turns.append(entry.iteration)
            if entry.role == "assistant":
                self.last_turn = entry.position
            for block in entry.content:
                if isinstance(block, ToolUse):
                    self._open.add(block.id)
                elif isinstance(block, ToolResult):
                    self._open.discard(block.tool_use_id)
                elif isinstance(block, Thinking | RedactedThinking) and entry.position >= self.plan.thinking_from:
                    self.thinking = True
            if entry.tool_call_id is not None:
                if self._compactable(entry):
                    self.results.append(entry)
                elif isinstance(self.plan.shown.get(entry.position), StubResult):
                    self.stubs.append(entry)
            tokens = self.plan.tokens_of(entry)
            if self.stays(entry):
                self.spoken.append(entry.position)
                self._spoken_tokens.append(self._spoken_tokens[-1] + tokens)
            self.tokens += tokens
            self._before.append(self.tokens)
        self.position = len(snapshot)

    def _compactable(self, entry: Entry) -> bool:
        if self.is_pinned(entry):
            return False
        shown = self.plan.shown.get(entry.position)
        return shown is None or isinstance(shown, ExpandEntry)

    def rules(self, tool: str | None) -> ResultRules:
        """Return the rules for a tool's results."""
        found = self._rules.get(tool)
        if found is None:
            found = self._rules[tool] = self.policy.rules(tool)
        return found

    def is_pinned(self, entry: Entry, *, pins: bool = True) -> bool:
        """Whether a caller (``pins``), its tool or its policy pins an entry. A caller's pins can be removed."""
        return (pins and entry.position in self.plan.pins) or entry.pinned or self.rules(entry.tool).pin

    def stays(self, entry: Entry, *, pins: bool = True) -> bool:
        """Whether an entry stays word for word when its stretch is covered: talk between user and agent, and pins."""
        if entry.kind == "task" or self.is_pinned(entry, pins=pins):
            return True
        if entry.kind in ("user-input", "lead-input"):
            return self.policy.keep_user_input
        return is_talk(entry)

    def view_tokens(self, first: int, upto: int) -> int:
        """Count the tokens between two positions at which covers or turns begin, without what stays there."""
        covered = sum(cover.tokens for cover in self.plan.covers if first <= cover.first and cover.last < upto)
        if upto <= self.plan.start:
            return covered
        spoken = self.spoken_tokens(upto) - self.spoken_tokens(max(first, self.plan.start))
        return covered + self.before(upto) - self.before(max(first, self.plan.start)) - spoken

    def before(self, position: int) -> int:
        """Count the tokens of the view before an uncovered entry."""
        return self._before[min(max(0, position - self.plan.start), len(self._before) - 1)]

    def end_before(self, position: int) -> int:
        """Return the last position, up to the given one, where a cover may end; the plan's start if there is none."""
        index = bisect_right(self.ends, position) - 1
        return self.ends[index] if index >= 0 else self.plan.start

    def end_at_turn(self, turn: int) -> int:
        """Return where a cover may end so that an iteration and all later ones stay."""
        index = bisect_left(self._end_turns, turn)
        return self.ends[index] if index < len(self.ends) else self.end_before(self.last_turn)

    def past_talk(self, position: int) -> int:
        """Move the end of a cover past the talk and pins that directly follow it, as far as a cover may end there."""
        at, end = bisect_left(self.spoken, position), position
        while at < len(self.spoken) and self.spoken[at] == end and end + 1 < self.position:
            at, end = at + 1, end + 1
        return max(position, self.end_before(end))  # a caller may have pinned a turn without its results

    def spoken_tokens(self, upto: int) -> int:
        """Count the uncovered tokens before a position that a cover would leave verbatim."""
        return self._spoken_tokens[bisect_left(self.spoken, upto)]

    def restated(self, upto: int) -> int:
        """Count the tokens that would be repeated beside a summary of everything before a position."""
        return self._stays + self.spoken_tokens(upto)

    def growth(self, turns: int) -> float:
        """Return the average tokens that each of the newest turns added to the view."""
        newest = self.ends[-turns:]
        return (self.tokens - self.before(newest[0])) / len(newest) if newest else 0.0

    def turns_before(self, position: int) -> int:
        """Count the uncovered iterations that begin before a position."""
        return bisect_left(self.ends, position)

    def expired(self, iteration: int) -> list[tuple[Entry, ResultRules]]:
        """Return the results that have expired at an iteration, with their rules; stubs can still be removed.

        Results of one turn expire together, under the most aggressive of their settings.
        """
        if not self._expires:
            return []
        turns: dict[int, list[Entry]] = {}
        for entry in (*self.results, *self.stubs):
            turns.setdefault(entry.iteration, []).append(entry)
        found: list[tuple[Entry, ResultRules]] = []
        for turn, entries in turns.items():
            for entry, rules in zip(entries, expiring_together([self.rules(e.tool) for e in entries]), strict=True):
                over = rules.expiration_mode != "none" and iteration - turn > rules.expiration_turns
                short = rules.expiration_mode == "compact" and entry.position in self.plan.shown
                if over and not short and entry.position < self.last_turn:
                    found.append((entry, rules))
        return found
