"""The planner: looks at the record before each model call and says how it is to be shown, with the arithmetic.

Edits of the past cost a rewrite of the cached prompt behind them and save cache reads at every later call. Thrifty
rhythm edits when that pays (see ``Thrift``); a cold cache makes edits free; a prompt that would not fit forces
them. In strict rhythm every policy is applied at every iteration. Where the model binds its reasoning to the past,
nothing is edited for money; the outcome says when to ask the provider for a compaction instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType

import msgspec

from repertory.context.compaction import Compaction, wanted_compaction
from repertory.context.decisions import Arithmetic, Decision, Edit
from repertory.context.edits import CanEdit, compose, drop_thinking
from repertory.context.fitting import make_fit
from repertory.context.live import Live
from repertory.context.plan import EMPTY, Plan, apply
from repertory.context.policy import ContextPolicy
from repertory.context.pricing import Prospect, price_of
from repertory.context.thrift import Moment, Thrift
from repertory.context.tokens import Calibration
from repertory.errors import ContextOverflow
from repertory.llm.profiles import ModelProfile
from repertory.record.entries import Entry
from repertory.record.records import SummaryStored

_NO_GISTS: Mapping[int, str] = MappingProxyType({})
_BELOW = 0.98  # of a length above which every token costs more


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the planner says about the next request.

    Attributes:
        plan: How the record is to be shown.
        decisions: What changed, to be journalled before the request is sent; mostly empty.
        estimate: The prompt's tokens by characters, head included; what ``Calibration.observe`` wants back.
        prompt_tokens: The same, calibrated.
        compaction: What to ask the provider to compact; None for nothing. It is said again at every call until a
            summary is there.
    """

    plan: Plan
    decisions: tuple[Decision, ...] = ()
    estimate: int = 0
    prompt_tokens: int = 0
    compaction: Compaction | None = None


class Planner:
    """Plans one run, call after call; the same answers as ``plan_next`` at a cost that follows what is new."""

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
            profile: The model's.
            head_tokens: Estimate of system text and tools.
            max_tokens: What is left free of the window for the answer.
            accepted_tokens: The longest prompt that the server was found to take; None for what the profile says.
            charged: US dollars paid for the run beside its own calls that no decision has counted yet.
        """
        self._policy = policy
        self._profile = profile
        self._head = head_tokens
        room = profile.context_window - min(max_tokens, profile.context_window // 2)
        bounds = [
            (room, f"the window of {profile.name} less {profile.context_window - room:,} for the answer"),
            (policy.budget_tokens, "the policy's budget_tokens"),
            (accepted_tokens, "the server refused longer ones"),
        ]
        self._limit, self._bound = min((most, words) for most, words in bounds if most is not None)
        self.charged = charged
        self._live: Live | None = None
        self._thrift: Thrift | None = None

    def next(
        self,
        snapshot: Sequence[Entry],
        plan: Plan = EMPTY,
        *,
        iteration: int,
        calibration: Calibration | None = None,
        cold: bool = False,
        summaries: Sequence[SummaryStored] = (),
        gists: Mapping[int, str] = _NO_GISTS,
        shrink_to: int | None = None,
    ) -> Outcome:
        """Say how the record is to be shown in the next request.

        Args:
            snapshot: The ledger.
            plan: How it was shown so far.
            iteration: The iteration whose request this is, from 1.
            calibration: What the provider's counts taught; None before the first call.
            cold: Whether the prompt cache has expired.
            summaries: Those that may be swapped in.
            gists: What a model wrote of single results, by position; it is shown where a policy asks for it.
            shrink_to: Tokens that the prompt must not exceed because the server refused a longer one; None for
                what the window and the budget leave.

        Raises:
            ContextOverflow: It does not fit, even at its smallest.
        """
        live = self._follow(snapshot, plan)
        live.gists = gists
        thrift = self._thrift
        if thrift is not None:
            thrift.grow(snapshot, iteration)
        calibration = calibration or Calibration()
        estimate = self._head + live.tokens
        limit = self._limit if shrink_to is None else min(shrink_to, self._limit)
        state = _State(
            live=live,
            thrift=thrift,
            snapshot=snapshot,
            iteration=iteration,
            calibration=calibration,
            estimate=estimate,
            head=self._head,
            cold=cold,
            profile=self._profile,
        )
        decided = self._decide(state, summaries, limit, refused=shrink_to is not None)
        decisions: tuple[Decision, ...] = ()
        if decided is not None:
            decision, live = decided
            plan = live.plan = apply(plan, decision)
            self._live, decisions = live, (decision,)
            if thrift is not None:
                thrift.follow(live)
                self.charged = 0.0  # the decision counts it
            estimate = self._head + live.tokens
        return Outcome(
            plan=plan,
            decisions=decisions,
            estimate=estimate,
            prompt_tokens=calibration.real_tokens(estimate),
            compaction=None if decisions else self._compaction(state, limit),
        )

    def _compaction(self, state: _State, limit: int) -> Compaction | None:
        """What the provider should compact, where only it may edit the past."""
        live, thrift = state.live, self._thrift
        if thrift is None or not self._is_bound(live) or not self._policy.summaries:
            return None
        cliff = min(thrift.cliffs, default=limit)
        return wanted_compaction(
            live,
            thrift.account,
            estimate=state.estimate,
            calibration=state.calibration,
            limit=min(limit, cliff),
        )

    def _is_bound(self, live: Live) -> bool:
        return self._profile.target == "binding" and live.thinking

    def counted(
        self, decision: Decision, snapshot: Sequence[Entry], plan: Plan, *, iteration: int, cold: bool = False
    ) -> Decision:
        """Put a decision that others took on the run's account; without this the savings so far are forgotten.

        Args:
            decision: Such as a provider's summary swapped in, or an entry expanded.
            snapshot: The ledger.
            plan: How it was shown so far.
            iteration: The iteration whose request shows it first.
            cold: Whether the prompt cache has expired.
        """
        live = self._follow(snapshot, plan)
        if self._thrift is None:
            return decision
        self._thrift.grow(snapshot, iteration)
        edited = apply(plan, decision)
        if edited.epoch == plan.epoch:
            return decision  # nothing is shown otherwise
        after = Live(edited, self._policy, snapshot, like=live)
        first = min((_begins(edit) for edit in decision.edits), default=0)
        untouched = self._head + (live.before(first) if first > plan.start else 0)
        self.charged = 0.0
        return self._thrift.counted(decision, after, edited, iteration=iteration, untouched=untouched, cold=cold)

    def affords(self, dollars: float) -> bool:
        """Whether what was saved so far pays for a summary of this price, and for swapping it in.

        Always so where nothing is weighed: in strict rhythm, where prices are not known, before the first call.
        """
        return self._thrift is None or self._thrift.affords(self._priced_in_tokens(dollars))

    def charge(self, dollars: float) -> None:
        """Take from the savings what was paid for the run beside its own calls, such as for a summary."""
        self.charged += dollars
        if self._thrift is not None:
            self._thrift.account.bank -= self._priced_in_tokens(dollars)

    def _priced_in_tokens(self, dollars: float) -> float:
        """How many tokens of input a sum buys; 0 where input costs nothing."""
        price = self._profile.prices[0].input
        return dollars * 1e6 / price if price else 0.0

    def _follow(self, snapshot: Sequence[Entry], plan: Plan) -> Live:
        """The view of a plan, up to the record. Of a plan that others have changed only what they changed is new."""
        live, before = self._live, self._live
        if live is None or live.plan is not plan or live.position > len(snapshot):
            live = self._live = Live(plan, self._policy, snapshot, like=before)
            if self._policy.rhythm == "thrifty":
                self._take_over(live, before)
        elif live.position < len(snapshot):
            live.grow(snapshot)
        return live

    def _take_over(self, live: Live, before: Live | None) -> None:
        """Give a view that others made what is known of the run: all that was read of it, and the account."""
        goes_on = before is not None and live.plan.start >= before.plan.start and before.position <= live.position
        if before is None or self._thrift is None or not goes_on:
            self._thrift = Thrift(live, profile=self._profile, head=self._head)
        else:
            same_view = live.plan.epoch == before.plan.epoch  # pins alone
            self._thrift.adopt(live, same_view=same_view)
            if same_view:
                return
        self._thrift.account.bank -= self._priced_in_tokens(self.charged)

    def _decide(
        self, state: _State, summaries: Sequence[SummaryStored], limit: int, *, refused: bool
    ) -> tuple[Decision, Live] | None:
        """The decision and the view that it leads to; None to leave things as they are."""
        live, size = state.live, state.calibration.real_tokens(state.estimate)
        thrift = self._thrift
        if size <= limit and thrift is None:
            strictly = self._legal(live, compose(CanEdit(live, state.iteration, summaries), state.snapshot))
            return state.decision("strict", "every policy at every iteration", strictly) if strictly else None
        if size <= limit and thrift is not None:
            if self._is_bound(live) and not state.cold:
                return None  # the server would refuse the reasoning behind the edit
            cliff = max((at for at in thrift.cliffs if at * _BELOW < size), default=0)
            now = Moment(
                snapshot=state.snapshot,
                iteration=state.iteration,
                cold=state.cold,
                pressed=bool(cliff),
                summaries=summaries,
            )
            found = thrift.decide(now)
            decided = None if found is None else state.decision(found[0], found[1], self._legal(live, found[2]))
            after = state.calibration.real_tokens(self._head + decided[1].tokens) if decided else size
            if not cliff or after <= cliff * _BELOW:
                return decided
            with suppress(ContextOverflow):  # then it is not avoidable
                return self._fitted(state, summaries, int(cliff * _BELOW), "forced", "more costs more for every token")
            return decided
        kind = "recovery" if refused else "forced"
        return self._fitted(state, summaries, limit, kind, f"the prompt must not exceed {limit:,} tokens")

    def _fitted(
        self, state: _State, summaries: Sequence[SummaryStored], limit: int, kind: str, reason: str
    ) -> tuple[Decision, Live]:
        live = state.live
        edits = make_fit(
            live,
            state.snapshot,
            summaries,
            head=self._head,
            calibration=state.calibration,
            limit=limit,
            bound=self._bound if limit == self._limit else "the server refused a longer one",
        )
        return state.decision(kind, reason, self._legal(live, edits))

    def _legal(self, live: Live, edits: Sequence[Edit]) -> tuple[Edit, ...]:
        if self._is_bound(live) and edits:
            return (*edits, drop_thinking(live))
        return tuple(edits)


class _State(msgspec.Struct, frozen=True, kw_only=True):
    """One moment of planning, and the arithmetic that follows from it."""

    live: Live
    thrift: Thrift | None
    snapshot: Sequence[Entry]
    iteration: int
    calibration: Calibration
    estimate: int
    head: int
    cold: bool
    profile: ModelProfile

    def decision(self, kind: str, reason: str, edits: tuple[Edit, ...]) -> tuple[Decision, Live]:
        """Write the decision, with the arithmetic of what the edits really do, and the view after it."""
        live, position = self.live, len(self.snapshot)
        plain = Decision(kind=kind, reason=reason, iteration=self.iteration, position=position, edits=edits)
        plan = apply(live.plan, plain)
        after = Live(plan, live.policy, self.snapshot, like=live)
        first = min((_begins(edit) for edit in edits), default=position)
        folded = plan.start != live.plan.start
        # What is settled now: everything in front of the oldest result that is still shown in full.
        edge = plan.start if folded else 0
        if self.thrift is None or kind in ("forced", "recovery"):
            edge = max(plan.start, after.cut_before(min((e.position for e in after.results), default=live.last_turn)))
        untouched = min(self._untouched(plan, after, first), self._cached())
        real = self.calibration.real_tokens
        price = price_of(
            self.profile,
            Prospect(
                before=real(self.estimate),
                after=real(self.head + after.tokens),
                new=round((self.estimate - self._cached()) * self.calibration.factor),
                untouched=round(untouched * self.calibration.factor),
                cold=self.cold,
            ),
        )
        arithmetic = Arithmetic(
            cleared_tokens=live.tokens - after.tokens,
            rewritten_tokens=price.rewritten,
            cost_now=price.cost_now,
            saving_per_call=price.saving_per_call,
            expected_calls=float(self.iteration),
            prompt_before=real(self.estimate),
            prompt_after=real(self.head + after.tokens),
        )
        done = msgspec.structs.replace(plain, edge=edge, arithmetic=arithmetic)
        if self.thrift is not None:
            done = self.thrift.counted(done, after, plan, iteration=self.iteration, untouched=untouched, cold=self.cold)
        return done, after

    def _cached(self) -> int:
        """Tokens of the prompt, as it was shown, that the last request left in the cache."""
        if self.thrift is not None:
            return self.thrift.account.cached
        return self.head + self.live.before(self.live.last_turn)

    def _untouched(self, plan: Plan, after: Live, first: int) -> int:
        """Tokens in front of the first edit that a breakpoint keeps."""
        live = self.live
        if plan.start != live.plan.start:
            return self.head + (live.covered if first >= live.plan.start else 0)
        if self.thrift is not None and first >= live.last_turn:
            return self.head + live.before(first)
        if self.thrift is not None and live.plan.held and first >= live.plan.held:
            return self._cached()
        edges = [edge for edge in live.plan.edges[-1:] if live.plan.start <= edge <= first]
        return self.head + (live.before(edges[0]) if edges else 0)


def _begins(edit: Edit) -> int:
    return int(getattr(edit, "position", getattr(edit, "first", 0)))


def plan_next(
    snapshot: Sequence[Entry],
    plan: Plan = EMPTY,
    *,
    policy: ContextPolicy,
    profile: ModelProfile,
    iteration: int,
    head_tokens: int = 0,
    max_tokens: int = 8192,
    calibration: Calibration | None = None,
    cold: bool = False,
    summaries: Sequence[SummaryStored] = (),
    gists: Mapping[int, str] = _NO_GISTS,
    shrink_to: int | None = None,
) -> Outcome:
    """Say how the record is to be shown in the next request. A pure function; see ``Planner.next``."""
    planner = Planner(policy=policy, profile=profile, head_tokens=head_tokens, max_tokens=max_tokens)
    return planner.next(
        snapshot,
        plan,
        iteration=iteration,
        calibration=calibration,
        cold=cold,
        summaries=summaries,
        gists=gists,
        shrink_to=shrink_to,
    )
