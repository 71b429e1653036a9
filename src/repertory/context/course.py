"""The planner's state of one run: its view in numbers, its trail and its account; and what an edit costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from repertory.context.account import Account, rates_of
from repertory.context.binding import compactable, compaction_call, signed_cover, signed_tokens
from repertory.context.decisions import Decision, apply, arithmetic_of
from repertory.context.edits import Editor
from repertory.context.live import Live
from repertory.context.plan import CoverRange, DropThinking, Edit, Plan
from repertory.context.policy import ContextPolicy
from repertory.llm.estimate import Calibration, text_tokens
from repertory.llm.messages import Text, equal_items
from repertory.llm.profiles import ModelProfile
from repertory.record.entries import Entry
from repertory.record.records import SummaryStored
from repertory.shortening.trail import SHARE, TALKERS, Trail, log_head

TRAIL_SHARE = 0.5  # of the comfort: a longer trail is summarized, or shortened if necessary
LEAST_CLEARED = 1_000  # tokens; the smallest prefix that most models cache: clearing less is not worth a decision


class Moment(msgspec.Struct, frozen=True):
    """The inputs of planning the next request; ``size`` is the prompt's tokens before new edits, calibrated."""

    live: Live
    snapshot: Sequence[Entry]
    iteration: int
    calibration: Calibration
    size: int
    cold: bool
    summaries: Sequence[SummaryStored]


class Fold(NamedTuple):
    """The effect of replacing what has left the window by trail.

    Attributes:
        upto: Position at which the fold would end, not included.
        old: Tokens that it would take out of view.
        cost: What that costs, in tokens at the input price.
        saves: What it saves at each call, in the same unit.
    """

    upto: int
    old: int
    cost: float
    saves: float


class Wish(msgspec.Struct, frozen=True):
    """A decision before its arithmetic."""

    kind: str
    reason: str
    edits: Sequence[Edit]


class Course:
    """The state of one run, as the planner follows it.

    Attributes:
        policy: What the application asks for.
        profile: The model's profile.
        head: Estimate of system text and tools.
        charged: US dollars paid for the run, apart from its own calls, that no decision has counted yet.
        comfort: Tokens of a comfortable view.
        rates: The model's prices.
        thrifty: Whether edits are made when they pay.
        editor: Makes the edits; it holds the run's trail.
        account: What the run has paid so far.
    """

    def __init__(
        self, policy: ContextPolicy, profile: ModelProfile, *, head: int, charged: float, comfort: int
    ) -> None:
        """Start a run; the arguments are the attributes of the same name."""
        self.policy = policy
        self.profile = profile
        self.head = head
        self.charged = charged
        self.comfort = comfort
        self.rates = rates_of(profile)
        self.thrifty = policy.rhythm == "thrifty"
        self.editor = Editor(Trail(policy.window, policy.rules))
        self.account = Account(self.rates, head)
        self._live: Live | None = None
        self._logged: tuple[CoverRange, ...] = ()
        self._logged_tokens = [0]  # at each index, tokens of the stretches of that many of these covers

    def follow(self, snapshot: Sequence[Entry], plan: Plan) -> Live:
        """Return the view of a plan, brought up to date. If others changed the plan, only the changes are recounted."""
        live = self._followed(snapshot, plan)
        self.editor.trail.known = live.last_turn
        return live

    def _followed(self, snapshot: Sequence[Entry], plan: Plan) -> Live:
        live, before = self._live, self._live
        if live is not None and live.plan is plan and live.position <= len(snapshot):
            if live.position < len(snapshot):
                live.grow(snapshot)
            return live
        live = Live(plan, self.policy, snapshot, like=before)
        goes_on = before is not None and live.plan.start >= before.plan.start and before.position <= live.position
        if before is not None and goes_on and live.plan.epoch == before.plan.epoch:
            self._live = live  # only pins changed
            self._count_again(live)
            return live
        if not goes_on:
            self.editor, self._live = Editor(Trail(self.policy.window, self.policy.rules)), None
        self.account = Account(self.rates, self.head)
        self.take(live, snapshot)
        self.account.bank -= self._priced_in_tokens(self.charged)
        return live

    def _count_again(self, live: Live) -> None:
        """Recount everything since the plan was made, as it is shown now."""
        self.account.take_up(live.plan, live.before, again=True)
        self.account.bank -= self._priced_in_tokens(self.charged)

    def take(self, live: Live, snapshot: Sequence[Entry]) -> None:
        """Switch to the view of another plan."""
        self.editor.trail.follow(live.plan.covers, live.plan.start, snapshot)
        self._live = live
        self.account.take_up(live.plan, live.before)

    def take_summaries(self, live: Live, result_summaries: Mapping[int, str], snapshot: Sequence[Entry]) -> None:
        """Take in a model's summaries of single results, by position."""
        if self.editor.trail.take_summaries(result_summaries, snapshot):
            self._count_again(live)

    def count(self, live: Live, snapshot: Sequence[Entry]) -> None:
        """Count the requests that were made since the last count; only thrifty rhythm needs it."""
        if self.thrifty:
            self.account.grow(snapshot, live.plan, live.before, partial(self._in_vain, snapshot))

    def is_bound(self, live: Live) -> bool:
        """Whether an edit of the past would invalidate reasoning in view."""
        return self.profile.target == "binding" and live.thinking

    def edge(self, live: Live, iteration: int) -> int:
        """Return where a fold before an iteration's request would end, not included. It extends over talk that follows
        directly, since that stays verbatim."""
        upto = live.end_at_turn(iteration - self.policy.window)
        return live.past_talk(upto)

    def write(self, live: Live, snapshot: Sequence[Entry], iteration: int) -> None:
        """Write the trail of what has left the window before an iteration's request, usually one or two new turns.

        It runs before anything else that reads on, so that the trail does not depend on how often planning ran before.
        """
        if self.policy.summaries:
            self.editor.trail.write(snapshot, max(live.plan.start, live.end_at_turn(iteration - self.policy.window)))

    def read_ahead(self, now: Moment) -> None:
        """Read what a request shows, and write the trail of what will have left the window before the next one."""
        self.editor.trail.known = now.live.position
        self.write(now.live, now.snapshot, now.iteration + 1)

    def _in_vain(self, snapshot: Sequence[Entry], answer: Entry) -> int:
        """Count the unneeded tokens in the request that an entry answers."""
        live = self._live
        assert live is not None
        if self.profile.target == "binding":
            return compactable(live, answer.position, self.log_tokens(live, snapshot, answer.position))
        old, size = self.editor.foldable(live, self.edge(live, answer.iteration))
        return max(0, old - size) if old >= LEAST_CLEARED else 0

    # --- the log beside a provider's summary --------------------------------------------------------------

    def log_tokens(self, live: Live, snapshot: Sequence[Entry], upto: int) -> int:
        """Estimate the tokens of the log of everything before a position."""
        covers = live.plan.covers
        if covers is not self._logged:
            same, self._logged = equal_items(self._logged, covers), covers
            del self._logged_tokens[same + 1 :]
            for cover in covers[same:]:
                self._logged_tokens.append(self._logged_tokens[-1] + sum(map(text_tokens, _stretches(cover))))
        iteration = snapshot[upto].iteration
        self.write(live, snapshot, iteration)
        edge = max(live.plan.start, live.end_at_turn(iteration - self.policy.window))  # the window is not written yet
        window = max(0, live.before(upto) - live.before(edge))
        log = self._logged_tokens[-1] + self.editor.trail.chars(edge) // 4 + round(SHARE * window)
        return min(log, round(TRAIL_SHARE * self.comfort))

    def _log(self, live: Live, snapshot: Sequence[Entry], upto: int) -> list[str]:
        """Return the stretches of the log of everything before a position: as many of the newest as fit."""
        plan, trail = live.plan, self.editor.trail.ahead(snapshot)
        trail.write(snapshot, upto)
        text = trail.text(plan.start, upto, talk=TALKERS[self.policy.keep_user_input :])  # what users said is kept
        span = snapshot[plan.start].iteration, snapshot[upto - 1].iteration
        written = [text for cover in plan.covers for text in _stretches(cover)]
        stretches = [*written, f"{log_head(*span, retrieval=self.policy.retrieval)}\n{text}" if text else ""]
        room, kept = TRAIL_SHARE * self.comfort, list[str]()
        for stretch in reversed(stretches):
            room -= text_tokens(stretch)
            if room < 0:
                break
            kept += [stretch] if stretch else []
        return kept[::-1]

    def affords(self, dollars: float, *, written: int = 0) -> bool:
        """Whether the savings so far pay for a summary of this price, and for swapping in its ``written`` tokens.

        Always true in strict rhythm, if prices are not known, and before the first call.
        """
        live, tokens = self._live, self._priced_in_tokens(dollars)
        if not self.thrifty or live is None or not tokens:
            return True
        rewritten = written + live.restated(live.last_turn)
        return tokens + (self.rates.write - self.rates.read) * rewritten <= self.account.bank

    def charge(self, dollars: float) -> None:
        """Subtract from the savings what was paid for the run apart from its own calls, such as for a summary."""
        self.charged += dollars
        self.account.bank -= self._priced_in_tokens(dollars)

    def _priced_in_tokens(self, dollars: float) -> float:
        """Return how many tokens of input a sum buys; 0 if input costs nothing."""
        price = self.profile.prices[0].input
        return dollars * 1e6 / price if price else 0.0

    # --- what an edit costs -------------------------------------------------------------------------------

    def fold_before(self, live: Live, iteration: int) -> Fold:
        """Calculate the effect of a fold before an iteration's request."""
        upto = self.edge(live, iteration)
        old, size = self.editor.foldable(live, upto)
        cached = min(self.account.cached, self.head + live.tokens)  # what is new is written in any case
        behind = max(0, cached - self.head - live.before(upto))
        cost = (self.rates.write - self.rates.read) * (size + behind)
        return Fold(upto, old, cost, self.rates.read * (old - size))

    def decided(self, now: Moment, wish: Wish) -> tuple[Decision, Live]:
        """Make a decision, with the arithmetic of what its edits really do, and the view after it."""
        live, position = now.live, len(now.snapshot)
        edits = tuple(wish.edits)
        if self.is_bound(live) and wish.kind != "provider":
            # After an edit of the past, the reasoning so far is bound to a history that is no longer shown.
            edits = (*edits, DropThinking(position=live.position))
        plain = Decision(kind=wish.kind, reason=wish.reason, iteration=now.iteration, position=position, edits=edits)
        after = Live(apply(live.plan, plain), self.policy, now.snapshot, like=live)
        plan = after.plan
        first = min((_begins(edit) for edit in edits), default=position)
        # Everything before the oldest result that is still shown in full is settled now.
        edge = plan.start if plan.start != live.plan.start else 0
        if not self.thrifty or wish.kind in ("forced", "recovery", "comfort"):
            edge = max(plan.start, after.end_before(min((e.position for e in after.results), default=live.last_turn)))
        cached = self.account.cached if self.thrifty else self.head + live.before(live.last_turn)
        untouched = min(self._untouched(live, plan, first, cached), cached)
        before = self.head + live.tokens
        arithmetic = arithmetic_of(
            self.profile,
            now.calibration,
            before=before,
            after=self.head + after.tokens,
            untouched=untouched,
            new=before - cached,
            cold=now.cold,
        )
        done = msgspec.structs.replace(plain, edge=edge, arithmetic=arithmetic)
        if self.thrifty:
            done = self._on_account(done, live, after, iteration=now.iteration, untouched=untouched, cold=now.cold)
        after.plan = apply(live.plan, done)
        return done, after

    def priced(self, decision: Decision, snapshot: Sequence[Entry], plan: Plan, calibration: Calibration) -> Decision:
        """Add what it costs to a decision that somebody asked for.

        Args:
            decision: A decision that expands or pins.
            snapshot: The ledger.
            plan: How it is shown without the decision.
            calibration: What was learned from the provider's counts.
        """
        live = Live(plan, self.policy, snapshot, like=self._live)
        after = Live(apply(plan, decision), self.policy, snapshot, like=live)
        first = min(map(_begins, decision.edits), default=len(snapshot))
        arithmetic = arithmetic_of(
            self.profile,
            calibration,
            before=self.head + live.tokens,
            after=self.head + after.tokens,
            untouched=self.head + (live.before(first) if first >= plan.start else 0),
        )
        return msgspec.structs.replace(decision, arithmetic=arithmetic)

    def _untouched(self, live: Live, plan: Plan, first: int, cached: int) -> int:
        """Count the tokens before the first edit that a breakpoint preserves."""
        if first < live.plan.start:
            return self.head
        if plan.start != live.plan.start:
            return self.head + live.covered
        if self.thrifty and first >= live.last_turn:
            return self.head + live.before(first)
        if self.thrifty and live.plan.held and first >= live.plan.held:
            return cached
        edges = [edge for edge in live.plan.edges[-1:] if live.plan.start <= edge <= first]
        return self.head + (live.before(edges[0]) if edges else 0)

    def _on_account(
        self, decision: Decision, before: Live, after: Live, *, iteration: int, untouched: int, cold: bool
    ) -> Decision:
        """Add to a decision what the run will have saved and owe once the request that shows it is paid."""
        account, plan = self.account, after.plan
        held = after.tokens - after.before(plan.held) if plan.held else 0
        view, kept = self.head + after.tokens, min(untouched, account.cached)
        bank = account.bank_after(view, kept, held=held, cold=cold)
        for edit in decision.edits:
            if isinstance(edit, CoverRange) and edit.strategy == "provider":
                bank -= compaction_call(account, before.before(edit.last + 1), signed_tokens(edit))
        owed = 0.0
        if plan.start == before.plan.start:
            old, size = self.editor.foldable(before, self.edge(before, iteration))
            owed = account.owed + self.rates.read * max(0, old - size)
        arithmetic = msgspec.structs.replace(decision.arithmetic, bank=bank, owed=owed)
        return msgspec.structs.replace(decision, counted=True, arithmetic=arithmetic)

    def swap_in(
        self,
        snapshot: Sequence[Entry],
        plan: Plan,
        summary: SummaryStored,
        *,
        iteration: int,
        calibration: Calibration | None = None,
        cold: bool = False,
    ) -> Decision | None:
        """Replace everything up to the last entry of a provider's summary by that summary.

        Args:
            snapshot: The ledger.
            plan: How it was shown so far.
            summary: What the provider wrote.
            iteration: The first iteration whose request shows it.
            calibration: What was learned from the provider's counts; None for nothing.
            cold: Whether the prompt cache has expired.

        Returns:
            The decision; None if the summary cannot be used now, or would not make the view smaller.
        """
        live = self.follow(snapshot, plan)
        fits = plan.start <= summary.last < len(snapshot)
        log = self._log(live, snapshot, summary.last + 1) if fits and self.policy.summaries else []
        cover = signed_cover(live, snapshot, summary, log)
        if cover is None:
            return None
        self.count(live, snapshot)
        known = calibration or Calibration()
        now = Moment(live, snapshot, iteration, known, known.real_tokens(self.head + live.tokens), cold, ())
        decision, after = self.decided(now, Wish("provider", "the provider's summary is ready", [cover]))
        if after.tokens >= live.tokens:
            return None
        if decision.counted:
            self.charged = 0.0
        return decision


def _stretches(cover: CoverRange) -> list[str]:
    """Return the texts of a cover, except for the words that the provider signed."""
    return [block.text for block in cover.content if isinstance(block, Text)]


def _begins(edit: Edit) -> int:
    return edit.first if isinstance(edit, CoverRange) else edit.position
