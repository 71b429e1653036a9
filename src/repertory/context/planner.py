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
- If the model **binds** its reasoning to the past, an edit costs the reasoning in view. Only large results that were
  shown once are worth that. Otherwise the outcome says when to ask the provider for a compaction (see ``binding``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType

import msgspec

from repertory.context.account import cliffs_of
from repertory.context.binding import Compaction, wanted_compaction
from repertory.context.course import MIN_CLEARED, Candidate, Course, Fold
from repertory.context.decisions import Decision
from repertory.context.edits import best_summary, merge_edits
from repertory.context.fitting import Fitting
from repertory.context.plan import EMPTY, Edit, Plan, StubResult
from repertory.context.policy import ContextPolicy
from repertory.context.shown_once import ShownOnce
from repertory.context.view_index import Inputs, ViewIndex
from repertory.errors import ContextOverflow
from repertory.llm.estimate import Calibration
from repertory.llm.profiles import ModelProfile
from repertory.record.entries import Entry
from repertory.record.records import SummaryStored

_TRAIL_SHARE = 0.5  # of the comfort: a longer trail is summarized, or shortened if necessary
_ONCE = "a bulky result is shown whole only once"
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
        self._limit, self._limit_reason = min((most, words) for most, words in bounds if most is not None)
        comfort = policy.comfort_tokens if policy.comfort_tokens is not None else profile.comfort
        comfort = min(comfort or self._limit, self._limit)
        course = self._course = Course(policy, profile, head=head_tokens, charged=charged, comfort=comfort)
        self.swap_in, self.priced = course.swap_in, course.priced
        self.affords, self.charge = course.affords, course.charge
        self._cliffs = cliffs_of(profile)
        self._has_cache = bool(profile.cache.breakpoints)
        self._shown_once = ShownOnce(course)
        self._last_inputs: Inputs | None = None  # the last planned request, with the view that it shows

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
        view = course.follow(snapshot, plan)
        course.editor.superseded.follow(snapshot, view.plan.start)
        course.add_summaries(view, result_summaries)
        calibration = calibration or Calibration()
        estimate = course.head + view.tokens
        limit = self._limit if shrink_to is None else min(shrink_to, self._limit)
        course.write(view, iteration)
        course.count_requests(view)
        now = Inputs(view, iteration, calibration, calibration.real_tokens(estimate), cold, summaries)
        decided = self._decide(now, limit, refused=shrink_to is not None)
        self._last_inputs = now if decided is None else msgspec.structs.replace(now, view=decided[1])
        if decided is None:
            compaction = self._wanted_compaction(now, limit)
            return Outcome(plan=plan, estimate=estimate, prompt_tokens=now.size, compaction=compaction)
        decision, after = decided
        course.switch_to(after)
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
        if self._last_inputs is not None:
            self._course.read_ahead(self._last_inputs)
            self._shown_once.read_ahead(self._last_inputs)

    def _decide(self, now: Inputs, limit: int, *, refused: bool) -> tuple[Decision, ViewIndex] | None:
        """Return a decision and the view that results from it; None to change nothing."""
        course, view, fits = self._course, now.view, now.size <= limit
        fold, stubs = course.fold_effect(view, now.iteration), self._shown_once.due(now)
        if fits and course.thrifty and course.is_bound(view) and not (now.cold or stubs):
            # The server would refuse the reasoning behind an edit; stubs of what was shown once are worth losing it.
            return self._decision(now, Candidate("once", _ONCE, ()), fold)
        due = self._due_edits(now, stubs)
        if not fits:
            reason = f"the prompt must not exceed {limit:,} tokens"
            forced = Candidate("recovery" if refused else "forced", reason, due)
            return self._forced_decision(now, limit, forced, fold)
        if not course.thrifty:
            edits = course.editor.strict_edits(view, now.iteration, now.summaries)
            return course.decide(now, Candidate("strict", "every policy at every iteration", edits)) if edits else None
        doubt = now.calibration.doubt(course.head + view.tokens)
        cliff = max((at - doubt for at in self._cliffs if at - doubt < now.size), default=0)
        decided = self._decision(now, self._candidate(now, due, fold, over_cliff=bool(cliff)), fold)
        size = now.calibration.real_tokens(course.head + decided[1].tokens) if decided else now.size
        if cliff and size > cliff:
            with suppress(ContextOverflow):  # then it cannot be avoided
                forced = Candidate("forced", "a longer prompt costs more for every token", due)
                return self._forced_decision(now, cliff, forced, fold)
        if size > course.comfort:
            fitting = Fitting(course, now, course.comfort, due=due, summary=self._ready_summary(now))
            if edits := fitting.fit_gently(size):
                reason = "a longer view costs the model's attention"
                return self._decision(now, Candidate("comfort", reason, edits), fold)
        return decided

    def _due_edits(self, now: Inputs, stubs: Sequence[StubResult]) -> list[Edit]:
        """Return the edits to make in any case: of results that expired a window ago, and of those shown once.

        An explicit expiration then waits no longer for a cheap moment.
        """
        if not self._course.thrifty:
            return []
        late = now.iteration - self._course.policy.window
        return merge_edits(self._course.editor.expire(now.view, late, 0), stubs)

    def _candidate(self, now: Inputs, due: Sequence[Edit], fold: Fold, *, over_cliff: bool) -> Candidate:
        """Return what thrifty rhythm wants to edit now, which may be nothing."""
        found = self._fold_candidate(now, fold, over_cliff=over_cliff)
        if found is not None:
            return Candidate(found.kind, found.reason, merge_edits(found.edits, due))
        if due and not all(isinstance(edit, StubResult) and edit.why == "shown once" for edit in due):
            return Candidate("expired", "results have expired", due)
        return Candidate("once", _ONCE, due)

    def _decision(self, now: Inputs, candidate: Candidate, fold: Fold) -> tuple[Decision, ViewIndex] | None:
        """Decide on some edits, and on what their request shows once; None for nothing."""
        edits = [*candidate.edits, *self._shown_once.hold_back(now, candidate.edits, fold)]
        return self._course.decide(now, Candidate(candidate.kind, candidate.reason, edits)) if edits else None

    def _fold_candidate(self, now: Inputs, fold: Fold, *, over_cliff: bool) -> Candidate | None:
        course, view = self._course, now.view
        account, upto = course.account, fold.upto
        cost = 0.0 if now.cold else fold.cost
        costless = now.cold or not self._has_cache
        if fold.saves <= 0 or (not over_cliff and fold.cleared < MIN_CLEARED):
            edits = self._single_result_edits(now) if costless else []
            reason = "single results are shortened at no cost"
            return Candidate("cold" if self._has_cache else "uncached", reason, edits) if edits else None
        pays = account.owed + fold.saves >= cost and account.pays_for(cost)
        if not (pays or costless or over_cliff):
            return None
        kind, reason = "forced", "a longer prompt costs more for every token"
        if not self._has_cache:
            kind, reason = "uncached", "the model has no prompt cache"
        elif costless:
            kind, reason = "cold", "the prompt cache has expired anyway"
        elif pays:
            kind, reason = "pays", "reading the past has cost as much as this edit, and earlier savings pay for it"
        edits = self._summary_edits(now, costless=costless, remaining_bank=account.bank - cost)
        edits += course.editor.fold(view, upto)
        # A fold rewrites everything after it anyway, so edits there cost nothing extra.
        edits += course.editor.expire(view, now.iteration, upto)
        return Candidate(kind, reason, merge_edits(edits, course.editor.supersede(view, upto)))

    def _summary_edits(self, now: Inputs, *, costless: bool, remaining_bank: float) -> list[Edit]:
        """With a fold, swap in a model's summary for trail that has outgrown its share, if what is left pays for it."""
        view = now.view
        summary = self._ready_summary(now)
        if summary is None or sum(cover.tokens for cover in view.plan.covers) <= _TRAIL_SHARE * self._course.comfort:
            return []
        rewritten = view.covered - view.view_tokens(summary.first, summary.last + 1) + summary.tokens
        if not costless and (self._course.rates.write - self._course.rates.read) * rewritten > remaining_bank:
            return []
        return [self._course.editor.swap(view, summary)]

    def _ready_summary(self, now: Inputs) -> SummaryStored | None:
        """Return the summary that may replace trail; None if none fits."""
        if not (self._course.thrifty and self._course.policy.summaries):
            return None
        return best_summary(now.view, now.summaries, now.view.plan.start)

    def _single_result_edits(self, now: Inputs) -> list[Edit]:
        """Edit single results if there is nothing to fold: those that have expired, or all old ones."""
        edits: list[Edit] = [*self._course.editor.expire(now.view, now.iteration, 0)]
        if self._course.policy.summaries or not self._course.policy.stubs:
            return edits
        return merge_edits(edits, self._course.editor.shorten_old(now.view))

    def _forced_decision(
        self, now: Inputs, limit: int, candidate: Candidate, fold: Fold
    ) -> tuple[Decision, ViewIndex] | None:
        fitting = Fitting(self._course, now, limit, due=candidate.edits, summary=self._ready_summary(now))
        edits = fitting.fit(self._limit_reason if limit == self._limit else "the server refused a longer one")
        return self._decision(now, Candidate(candidate.kind, candidate.reason, edits), fold) if edits else None

    def _wanted_compaction(self, now: Inputs, limit: int) -> Compaction | None:
        """Return what the provider should compact, if only the provider may edit the past."""
        if not (self._course.thrifty and self._course.is_bound(now.view) and self._course.policy.summaries):
            return None
        log = self._course.log_tokens(now.view, now.view.last_turn)
        limit = min([limit, *self._cliffs])
        return wanted_compaction(now, self._course.account, log=log, limit=limit, comfort=self._course.comfort)
