"""The planner: examines the record before each model call and decides how to show it, with the arithmetic.

An edit of the past costs a rewrite of the cached prompt after it, and saves cache reads at every later call.

- **Fold**: iterations that have left the window become trail once reading them needlessly has cost as much as folding
  them (the ski rental rule), if the run's savings so far pay for it: so no run costs more than an unedited one.
- **Once**: until the run has saved enough, a bulky result is shown whole without being written to the cache, and by its
  telling lines from the next request on: that saves without a rewrite. A file stays whole in the window, since it
  may have been read to be edited, unless it is very large. Very large results are always shown once.
- A **cold** cache makes edits free; for a model without a cache they always are. A **price cliff**, the window, the
  budget and the policy's comfort force edits.
- In **strict** rhythm every policy is applied at every iteration, whatever that costs.
- If the model **binds** its reasoning to the past, nothing is edited for money. The outcome says when to ask the
  provider for a compaction instead (see ``binding``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType

import msgspec

from repertory.context.account import cliffs_of
from repertory.context.binding import Compaction, wanted_compaction
from repertory.context.course import LEAST_CLEARED, TRAIL_SHARE, Course, Fold, Moment, Wish
from repertory.context.decisions import Decision
from repertory.context.edits import best_summary, joined
from repertory.context.fitting import Fitting
from repertory.context.live import Live
from repertory.context.once import ShownOnce
from repertory.context.plan import EMPTY, Edit, Plan, StubResult
from repertory.context.policy import ContextPolicy
from repertory.errors import ContextOverflow
from repertory.llm.estimate import Calibration
from repertory.llm.profiles import ModelProfile
from repertory.record.entries import Entry
from repertory.record.records import SummaryStored

_NO_SUMMARIES: Mapping[int, str] = MappingProxyType({})


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the planner decides about the next request.

    Attributes:
        plan: How to show the record: the plan so far with the decisions applied.
        decisions: The decisions to journal before the request is sent; usually empty.
        estimate: Estimate of the prompt's tokens by characters, head included; the one to pass to
            ``Calibration.observe``.
        prompt_tokens: The same, calibrated.
        compaction: What to ask the provider to compact; None for nothing. It is repeated at every call until the
            summary arrives.
    """

    plan: Plan
    decisions: tuple[Decision, ...] = ()
    estimate: int = 0
    prompt_tokens: int = 0
    compaction: Compaction | None = None


class Planner:
    """Plans one run, call after call. Its work is in proportion to what is new since the last call.

    Its answers follow from the record and the plan alone: a newly made planner gives the same answers.
    """

    def __init__(
        self,
        *,
        policy: ContextPolicy,
        profile: ModelProfile,
        head_tokens: int = 0,
        max_tokens: int = 8192,
        accepted_tokens: int | None = None,
        charged: float = 0.0,
    ) -> None:
        """Prepare for a run.

        Args:
            policy: What the application asks for.
            profile: The model's profile.
            head_tokens: Estimate of system text and tools.
            max_tokens: Tokens of the window to leave free for the answer.
            accepted_tokens: The longest prompt that the server is known to accept; None relies on the profile.
            charged: US dollars paid for the run, apart from its own calls, that no decision has counted yet.
        """
        room = profile.context_window - min(max_tokens, profile.context_window // 2)
        bounds = [
            (room, f"the window of {profile.name} less {profile.context_window - room:,} for the answer"),
            (policy.budget_tokens, "the policy's budget_tokens"),
            (accepted_tokens, "the server refused longer ones"),
        ]
        self._limit, self._bound = min((most, words) for most, words in bounds if most is not None)
        comfort = policy.comfort_tokens if policy.comfort_tokens is not None else profile.comfort
        comfort = min(comfort or self._limit, self._limit)
        course = self._course = Course(policy, profile, head=head_tokens, charged=charged, comfort=comfort)
        self.swap_in, self.priced = course.swap_in, course.priced
        self.affords, self.charge = course.affords, course.charge
        self._cliffs = cliffs_of(profile)
        self._cached = bool(profile.cache.breakpoints)
        self._once = ShownOnce(course)
        self._shown: Moment | None = None  # the last planned request, with the view that it shows

    @property
    def charged(self) -> float:
        """US dollars paid for the run, apart from its own calls, that no decision has counted yet."""
        return self._course.charged

    def next(
        self,
        snapshot: Sequence[Entry],
        plan: Plan = EMPTY,
        *,
        iteration: int,
        calibration: Calibration | None = None,
        cold: bool = False,
        summaries: Sequence[SummaryStored] = (),
        result_summaries: Mapping[int, str] = _NO_SUMMARIES,
        shrink_to: int | None = None,
    ) -> Outcome:
        """Decide how to show the record in the next request.

        Args:
            snapshot: The ledger.
            plan: How it was shown so far.
            iteration: The iteration of the request, from 1.
            calibration: What was learned from the provider's counts; None before the first call.
            cold: Whether the prompt cache has expired.
            summaries: Summaries that may be swapped in.
            result_summaries: A model's summaries of single results, by position; shown if a policy asks for them.
            shrink_to: Most tokens of the prompt, because the server refused a longer one; None for what the window
                and the budget leave.

        Raises:
            ContextOverflow: The prompt does not fit, even at its smallest.
        """
        course = self._course
        live = course.follow(snapshot, plan)
        course.editor.superseded.follow(snapshot, live.plan.start)
        course.take_summaries(live, result_summaries, snapshot)
        calibration = calibration or Calibration()
        estimate = course.head + live.tokens
        limit = self._limit if shrink_to is None else min(shrink_to, self._limit)
        course.write(live, snapshot, iteration)
        course.count(live, snapshot)
        now = Moment(live, snapshot, iteration, calibration, calibration.real_tokens(estimate), cold, summaries)
        decided = self._decide(now, limit, refused=shrink_to is not None)
        self._shown = now if decided is None else msgspec.structs.replace(now, live=decided[1])
        if decided is None:
            asked = self._wanted_compaction(now, limit)
            return Outcome(plan=plan, estimate=estimate, prompt_tokens=now.size, compaction=asked)
        decision, after = decided
        course.take(after, snapshot)
        if decision.counted:
            course.charged = 0.0
        estimate = course.head + after.tokens
        prompt = calibration.real_tokens(estimate)
        return Outcome(plan=after.plan, decisions=(decision,), estimate=estimate, prompt_tokens=prompt)

    def read_ahead(self) -> None:
        """Do some of the work of planning the next request in advance, as far as it follows from the last one.

        This only changes when the work is done: reading a long result takes milliseconds, and nobody waits for them
        while the model answers.
        """
        if self._shown is not None:
            self._course.read_ahead(self._shown)
            self._once.read_ahead(self._shown)

    def _decide(self, now: Moment, limit: int, *, refused: bool) -> tuple[Decision, Live] | None:
        """Return a decision and the view that results from it; None to change nothing."""
        course, live, fits = self._course, now.live, now.size <= limit
        if fits and course.thrifty and course.is_bound(live) and not now.cold:
            return None  # the server would refuse the reasoning behind the edit
        due = self._due(now)
        if not fits:
            kind = "recovery" if refused else "forced"
            return self._fitted(now, limit, kind, f"the prompt must not exceed {limit:,} tokens", due)
        if not course.thrifty:
            edits = course.editor.strictly(live, now.snapshot, now.iteration, now.summaries)
            return course.decided(now, Wish("strict", "every policy at every iteration", edits)) if edits else None
        doubt = now.calibration.doubt(course.head + live.tokens)
        cliff = max((at - doubt for at in self._cliffs if at - doubt < now.size), default=0)
        wish = self._wish(now, due, pressed=bool(cliff))
        decided = course.decided(now, wish) if wish is not None else None
        size = now.calibration.real_tokens(course.head + decided[1].tokens) if decided else now.size
        if cliff and size > cliff:
            with suppress(ContextOverflow):  # then it cannot be avoided
                reason = "a longer prompt costs more for every token"
                return self._fitted(now, cliff, "forced", reason, due)
        if size > self._course.comfort:
            edits = Fitting(course, now, self._course.comfort, due=due, summary=self._ready_summary(now)).gently()
            if edits:
                return course.decided(now, Wish("comfort", "a longer view costs the model's attention", edits))
        return decided

    def _due(self, now: Moment) -> list[Edit]:
        """Return the edits to make in any case: of results that expired a window ago, and of those shown once."""
        if not self._course.thrifty:
            return []
        return joined(self._overdue(now), self._once.due(now))

    def _wish(self, now: Moment, due: Sequence[Edit], *, pressed: bool) -> Wish | None:
        """Return what thrifty rhythm wants to edit now."""
        fold = self._course.fold_before(now.live, now.iteration)
        wish = self._wish_to_fold(now, fold, pressed=pressed)
        if wish is not None:
            return Wish(wish.kind, wish.reason, joined(wish.edits, due))
        stubs = [edit for edit in due if isinstance(edit, StubResult) and edit.why == "shown once"]
        if len(stubs) < len(due):
            return Wish("expired", "the time of results is up", due)
        held = self._once.hold_back(now, stubs, fold)
        if not (due or held):
            return None
        return Wish("once", "it is not written to the prompt cache in full", [*due, *held])

    def _wish_to_fold(self, now: Moment, fold: Fold, *, pressed: bool) -> Wish | None:
        course, live = self._course, now.live
        account, upto = course.account, fold.upto
        cost = 0.0 if now.cold else fold.cost
        costless = now.cold or not self._cached
        if fold.saves <= 0 or (not pressed and fold.old < LEAST_CLEARED):
            edits = self._single(now) if costless else []
            reason = "single results are shortened at no cost"
            return Wish("cold" if self._cached else "uncached", reason, edits) if edits else None
        pays = account.owed + fold.saves >= cost and account.pays_for(cost)
        if not (pays or costless or pressed):
            return None
        kind, reason = _reason(costless=costless, cached=self._cached, pays=pays)
        edits = self._summary(now, costless=costless, left=account.bank - cost)
        edits += course.editor.fold(live, now.snapshot, upto)
        # A fold rewrites everything after it anyway, so edits there cost nothing extra.
        edits += course.editor.expire(live, now.snapshot, now.iteration, upto)
        return Wish(kind, reason, joined(edits, course.editor.supersede(live, now.snapshot, upto)))

    def _summary(self, now: Moment, *, costless: bool, left: float) -> list[Edit]:
        """With a fold, swap in a model's summary for trail that has outgrown its share, if what is left pays for it."""
        live = now.live
        summary = self._ready_summary(now)
        if summary is None or sum(cover.tokens for cover in live.plan.covers) <= TRAIL_SHARE * self._course.comfort:
            return []
        rewritten = live.covered - live.view_tokens(summary.first, summary.last + 1) + summary.tokens
        if not costless and (self._course.rates.write - self._course.rates.read) * rewritten > left:
            return []
        return [self._course.editor.swap(live, now.snapshot, summary)]

    def _ready_summary(self, now: Moment) -> SummaryStored | None:
        """Return the summary that may replace trail; None if none fits."""
        if not (self._course.thrifty and self._course.policy.summaries):
            return None
        return best_summary(now.live, now.summaries, now.live.plan.start)

    def _single(self, now: Moment) -> list[Edit]:
        """Edit single results if there is nothing to fold: those that have expired, or all old ones."""
        edits: list[Edit] = [*self._course.editor.expire(now.live, now.snapshot, now.iteration, 0)]
        if self._course.policy.summaries or not self._course.policy.stubs:
            return edits
        return joined(edits, self._course.editor.shorten_old(now.live, now.snapshot))

    def _overdue(self, now: Moment) -> Sequence[Edit]:
        """Edit results that expired a window ago: an explicit expiration waits no longer for a cheap moment."""
        late = now.iteration - self._course.policy.window
        return self._course.editor.expire(now.live, now.snapshot, late, 0)

    def _fitted(
        self, now: Moment, limit: int, kind: str, reason: str, due: Sequence[Edit]
    ) -> tuple[Decision, Live] | None:
        fitting = Fitting(self._course, now, limit, due=due, summary=self._ready_summary(now))
        edits = fitting.whatever_it_takes(self._bound if limit == self._limit else "the server refused a longer one")
        return self._course.decided(now, Wish(kind, reason, edits)) if edits else None

    def _wanted_compaction(self, now: Moment, limit: int) -> Compaction | None:
        """Return what the provider should compact, if only the provider may edit the past."""
        if not (self._course.thrifty and self._course.is_bound(now.live) and self._course.policy.summaries):
            return None
        return wanted_compaction(
            now.live,
            self._course.account,
            log=self._course.log_tokens(now.live, now.snapshot, now.live.last_turn),
            size=now.size,
            factor=now.calibration.factor,
            limit=min(limit, min(self._cliffs, default=limit)),
            comfort=self._course.comfort,
        )


def _reason(*, costless: bool, cached: bool, pays: bool) -> tuple[str, str]:
    if not cached:
        return "uncached", "nothing is read from a cache"
    if costless:
        return "cold", "the prompt cache has expired anyway"
    if pays:
        return "pays", "what is old has cost as much, and what was saved so far pays for it"
    return "forced", "a longer prompt costs more for every token"
