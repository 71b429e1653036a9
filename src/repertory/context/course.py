"""The planner's state of one run: its view in numbers, its trail and its account; and what an edit costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from repertory.context.account import Account, rates_of
from repertory.context.binding import LOG_SHARE, compaction_cost, compaction_gain, signed_cover, signed_tokens
from repertory.context.decisions import Decision, apply, arithmetic_of
from repertory.context.edits import Editor
from repertory.context.plan import CoverRange, DropThinking, Edit, HoldBack, Plan
from repertory.context.policy import ContextPolicy
from repertory.context.view_index import Inputs, ViewIndex
from repertory.llm.estimate import Calibration, text_tokens
from repertory.llm.messages import Text
from repertory.llm.profiles import ModelProfile
from repertory.record.entries import Entry
from repertory.record.records import SummaryStored
from repertory.shortening.trail import SHARE, Trail, log_head

MIN_CLEARED = 1_000  # tokens; the smallest prefix that most models cache: clearing less is not worth a decision


class Fold(NamedTuple):
    """The effect of replacing what has left the window by trail.

    Attributes:
        upto: Position at which the fold would end, not included.
        cleared: Tokens that it would take out of view.
        cost: What that costs, in tokens at the input price.
        saves: What it saves at each call, in the same unit.
    """

    upto: int
    cleared: int
    cost: float
    saves: float


class Candidate(msgspec.Struct, frozen=True):
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
        self.editor = Editor(self._new_trail())
        self.account = Account(self.rates, head)
        self._view: ViewIndex | None = None

    def _new_trail(self) -> Trail:
        return Trail(self.policy.window, self.policy.rules, keep_user_input=self.policy.keep_user_input)

    def follow(self, snapshot: Sequence[Entry], plan: Plan) -> ViewIndex:
        """Return the view of a plan, brought up to date. If others changed the plan, only the changes are recounted."""
        view = before = self._view
        if view is not None and view.plan is plan and view.position <= len(snapshot):
            view.grow(snapshot)
        else:
            view = ViewIndex(plan, self.policy, snapshot, reuse=before)
            if before is None or view.plan.start < before.plan.start or view.position < before.position:
                self.editor, before = Editor(self._new_trail()), None  # nothing to continue
            if before is not None and view.plan.epoch == before.plan.epoch:
                self._view = view  # only pins changed
                self._recount(view)
            else:
                self.account = Account(self.rates, self.head)
                self.switch_to(view)
                self.account.bank -= self._priced_in_tokens(self.charged)
        self.editor.trail.known_upto = view.last_turn
        return view

    def _recount(self, view: ViewIndex) -> None:
        """Recount everything since the plan was made, as it is shown now."""
        self.account.adopt(view, recount=True)
        self.account.bank -= self._priced_in_tokens(self.charged)

    def switch_to(self, view: ViewIndex) -> None:
        """Switch to the view of another plan."""
        self.editor.trail.follow(view.plan.covers, view.plan.start, view.snapshot)
        self._view = view
        self.account.adopt(view)

    def add_summaries(self, view: ViewIndex, summaries: Mapping[int, str]) -> None:
        """Take in a model's summaries of single results, by position."""
        if self.editor.trail.add_summaries(summaries, view.snapshot):
            self._recount(view)

    def count_requests(self, view: ViewIndex) -> None:
        """Count the requests that were made since the last count; only thrifty rhythm needs it."""
        if self.thrifty:
            self.account.count_requests(view, partial(self._unneeded_tokens, view))

    def is_bound(self, view: ViewIndex) -> bool:
        """Whether an edit of the past would invalidate reasoning in view."""
        return self.profile.target == "binding" and view.first_thinking >= 0

    def edge(self, view: ViewIndex, iteration: int) -> int:
        """Return where a fold before an iteration's request would end, not included. It extends over talk that follows
        directly, since that stays verbatim."""
        return view.skip_talk(view.end_at_turn(iteration - self.policy.window))

    def write(self, view: ViewIndex, iteration: int) -> int:
        """Write the trail of what has left the window before an iteration's request, usually one or two new turns.

        It runs before anything else that reads on, so that the trail does not depend on how often planning ran before.

        Returns:
            Where the window begins.
        """
        edge = max(view.plan.start, view.end_at_turn(iteration - self.policy.window))
        if self.policy.summaries:
            self.editor.trail.write(view.snapshot, edge)
        return edge

    def read_ahead(self, now: Inputs) -> None:
        """Read what a request shows, and write the trail of what will have left the window before the next one."""
        self.editor.trail.known_upto = now.view.position
        self.write(now.view, now.iteration + 1)

    def _unneeded_tokens(self, view: ViewIndex, answer: Entry) -> int:
        """Count the unneeded tokens in the request that an entry answers."""
        if self.profile.target == "binding":
            return compaction_gain(view, answer.position, self.log_tokens(view, answer.position))
        cleared, added = self.editor.fold_sizes(view, self.edge(view, answer.iteration))
        return max(0, cleared - added) if cleared >= MIN_CLEARED else 0

    # --- the log beside a provider's summary --------------------------------------------------------------

    def log_tokens(self, view: ViewIndex, upto: int) -> int:
        """Estimate the tokens of the log of everything before a position."""
        signed = sum(map(signed_tokens, view.plan.covers[:1]))  # a provider's summary is always the first cover
        covers = view.covered - view.restated_tokens(view.plan.start) - signed
        edge = self.write(view, view.snapshot[upto].iteration)  # the window is not written yet
        window = max(0, view.tokens_before(upto) - view.tokens_before(edge))
        log = covers + self.editor.trail.tokens(edge) + round(SHARE * window)
        return min(log, round(LOG_SHARE * self.comfort))

    def _newest_log(self, view: ViewIndex, upto: int) -> list[str]:
        """Return the stretches of the log of everything before a position: as many of the newest as fit."""
        plan, snapshot, trail = view.plan, view.snapshot, self.editor.trail.scratch_copy(view.snapshot)
        trail.write(snapshot, upto)
        text = trail.text(plan.start, upto, talk=("assistant",))
        span = snapshot[plan.start].iteration, snapshot[upto - 1].iteration
        written = [block.text for cover in plan.covers for block in cover.content if isinstance(block, Text)]
        stretches = [*written, f"{log_head(*span, retrieval=self.policy.retrieval)}\n{text}" if text else ""]
        room, kept = LOG_SHARE * self.comfort, list[str]()
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
        view, tokens = self._view, self._priced_in_tokens(dollars)
        if not self.thrifty or view is None or not tokens:
            return True
        rewritten = written + view.restated_tokens(view.last_turn)
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

    def fold_effect(self, view: ViewIndex, iteration: int) -> Fold:
        """Calculate the effect of a fold before an iteration's request."""
        upto = self.edge(view, iteration)
        cleared, added = self.editor.fold_sizes(view, upto)
        cached = min(self.account.cached, self.head + view.tokens)  # what is new is written in any case
        rewritten = max(0, cached - self.head - view.tokens_before(upto)) + view.kept_tokens(upto)
        cost = (self.rates.write - self.rates.read) * (added + rewritten)
        return Fold(upto, cleared, cost, self.rates.read * (cleared - added))

    def decide(self, now: Inputs, candidate: Candidate) -> tuple[Decision, ViewIndex]:
        """Make a decision, with the arithmetic of what its edits really do, and the view after it."""
        view = now.view
        edits = tuple(candidate.edits)
        first = min(map(first_position, edits), default=view.position)
        if self.is_bound(view) and candidate.kind != "provider" and not isinstance(edits[0], HoldBack):
            # After an edit of the past, which holding back is not, the reasoning is bound to what is not shown.
            edits, first = (*edits, DropThinking(position=view.position)), min(first, view.first_thinking)
        unpriced = Decision(
            kind=candidate.kind, reason=candidate.reason, iteration=now.iteration, position=view.position, edits=edits
        )
        after = view.replanned(apply(view.plan, unpriced))
        plan = after.plan
        # Everything before the oldest result that is still shown in full is settled now.
        edge = plan.start if plan.start != view.plan.start else 0
        if not self.thrifty or candidate.kind in ("forced", "recovery", "comfort"):
            edge = max(plan.start, after.end_before(min((e.position for e in after.results), default=view.last_turn)))
        cached = self.account.cached if self.thrifty else self.head + view.tokens_before(view.last_turn)
        untouched = min(self._untouched_tokens(view, plan, first, cached), cached)
        before = self.head + view.tokens
        arithmetic = arithmetic_of(
            self.profile,
            now.calibration,
            before=before,
            after=self.head + after.tokens,
            untouched=untouched,
            new=before - cached,
            cold=now.cold,
        )
        decision = msgspec.structs.replace(unpriced, edge=edge, arithmetic=arithmetic)
        if self.thrifty:
            decision = self._with_account(decision, now, after, untouched)
        after.plan = apply(view.plan, decision)
        return decision, after

    def priced(self, decision: Decision, snapshot: Sequence[Entry], plan: Plan, calibration: Calibration) -> Decision:
        """Add what it costs to a decision that somebody asked for.

        Args:
            decision: A decision that expands or pins.
            snapshot: The ledger.
            plan: How it is shown without the decision.
            calibration: What was learned from the provider's counts.
        """
        view = ViewIndex(plan, self.policy, snapshot, reuse=self._view)
        after = view.replanned(apply(plan, decision))
        first = min(map(first_position, decision.edits), default=len(snapshot))
        arithmetic = arithmetic_of(
            self.profile,
            calibration,
            before=self.head + view.tokens,
            after=self.head + after.tokens,
            untouched=self.head + (view.tokens_before(first) if first >= plan.start else 0),
        )
        return msgspec.structs.replace(decision, arithmetic=arithmetic)

    def _untouched_tokens(self, view: ViewIndex, plan: Plan, first: int, cached: int) -> int:
        """Count the tokens before the first edit that a breakpoint preserves."""
        if first < view.plan.start:
            return self.head
        if plan.start != view.plan.start:
            return self.head + view.covered
        if self.thrifty and first >= view.last_turn:
            return self.head + view.tokens_before(first)
        if self.thrifty and view.plan.held and first >= view.plan.held:
            return cached
        edges = [edge for edge in view.plan.edges[-1:] if view.plan.start <= edge <= first]
        return self.head + (view.tokens_before(edges[0]) if edges else 0)

    def _with_account(self, decision: Decision, now: Inputs, after: ViewIndex, untouched: int) -> Decision:
        """Add to a decision what the run will have saved and owe once the request that shows it is paid."""
        account, before, plan = self.account, now.view, after.plan
        held = after.tokens - after.tokens_before(plan.held) if plan.held else 0
        view, kept = self.head + after.tokens, min(untouched, account.cached)
        bank = account.bank_after(view, kept, held=held, cold=now.cold)
        for edit in decision.edits:
            if isinstance(edit, CoverRange) and edit.strategy == "provider":
                bank -= compaction_cost(account, before.tokens_before(edit.last + 1), signed_tokens(edit))
        owed = 0.0
        if plan.start == before.plan.start:
            cleared, added = self.editor.fold_sizes(before, self.edge(before, now.iteration))
            owed = account.owed + self.rates.read * max(0, cleared - added)
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
        view = self.follow(snapshot, plan)
        fits = plan.start <= summary.last < len(snapshot)
        log = self._newest_log(view, summary.last + 1) if fits and self.policy.summaries else []
        cover = signed_cover(view, summary, log)
        if cover is None:
            return None
        self.count_requests(view)
        known = calibration or Calibration()
        now = Inputs(view, iteration, known, known.real_tokens(self.head + view.tokens), cold, ())
        decision, after = self.decide(now, Candidate("provider", "the provider's summary is ready", [cover]))
        if after.tokens >= view.tokens:
            return None
        if decision.counted:
            self.charged = 0.0
        return decision


def first_position(edit: Edit) -> int:
    """Return the position of the first entry that an edit changes."""
    return edit.first if isinstance(edit, CoverRange) else edit.position
