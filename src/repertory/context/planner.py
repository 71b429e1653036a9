"""The planner: looks at the record before each model call and says how it is to be shown, with the arithmetic.

Edits of the past cost a rewrite of the cached prompt behind them and save cache reads at every later call. In
thrifty rhythm results stay whole until what they have cost in reads reaches the price of an edit (the economic
order quantity, without knowing the future); then everything that may go, goes at once, and a cache breakpoint
stays at the edge. An edit is paid from what earlier edits saved, or pays back within a fraction of the calls made
so far, so that a run is not dearer than if nothing had been edited. A cold cache makes edits free. A prompt that
would not fit forces them. In strict rhythm every policy is applied at every iteration.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from repertory.context.decisions import Arithmetic, Decision, Edit
from repertory.context.edits import CanEdit, compose, drop_thinking
from repertory.context.fitting import make_fit
from repertory.context.live import Live
from repertory.context.plan import EMPTY, Plan, apply
from repertory.context.policy import ContextPolicy
from repertory.context.pricing import Price, Prospect, price_of, read_price
from repertory.context.tokens import Calibration
from repertory.llm.profiles import ModelProfile, prices_at
from repertory.memory.entries import Entry
from repertory.memory.records import SummaryStored

_LEAST_CLEARED = 400  # tokens; less is not worth a decision
_SOON = 0.25  # of the calls made so far: within them an edit ahead of the savings must pay back
_LEAST_SHARE = 0.04  # of the prompt


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the planner says about the next request.

    Attributes:
        plan: How the record is to be shown.
        decisions: What changed, to be journalled before the request is sent; mostly empty.
        estimate: The prompt's tokens by characters, head included; what ``Calibration.observe`` wants back.
        prompt_tokens: The same, calibrated.
    """

    plan: Plan
    decisions: tuple[Decision, ...] = ()
    estimate: int = 0
    prompt_tokens: int = 0


class Planner:
    """Plans one run, call after call; the same answers as ``plan_next`` at a cost that follows what is new."""

    def __init__(
        self, *, policy: ContextPolicy, profile: ModelProfile, head_tokens: int = 0, max_tokens: int = 8192
    ) -> None:
        """Prepare for a run.

        Args:
            policy: What the application asks for.
            profile: The model's.
            head_tokens: Estimate of system text and tools.
            max_tokens: What is left free of the window for the answer.
        """
        self._policy = policy
        self._profile = profile
        self._head = head_tokens
        room = profile.context_window - min(max_tokens, profile.context_window // 2)
        self._limit = min(room, policy.budget_tokens or room)
        self._live: Live | None = None

    def next(
        self,
        snapshot: Sequence[Entry],
        plan: Plan = EMPTY,
        *,
        iteration: int,
        calibration: Calibration | None = None,
        cold: bool = False,
        summaries: Sequence[SummaryStored] = (),
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
            shrink_to: Tokens that the prompt must not exceed because the server refused a longer one; None for
                what the window and the budget leave.

        Raises:
            ContextOverflow: It does not fit, even at its smallest.
        """
        live = self._live
        if live is None or live.plan is not plan or live.position > len(snapshot):
            live = self._live = Live(plan, self._policy, snapshot, like=live)
        elif live.position < len(snapshot):
            live.grow(snapshot)
        calibration = calibration or Calibration()
        estimate = self._head + live.tokens
        state = _State(
            live=live,
            snapshot=snapshot,
            iteration=iteration,
            calibration=calibration,
            estimate=estimate,
            head=self._head,
            cold=cold,
            profile=self._profile,
        )
        limit = self._limit if shrink_to is None else min(shrink_to, self._limit)
        decided = self._decide(state, summaries, limit, refused=shrink_to is not None)
        if decided is None:
            return Outcome(plan=plan, estimate=estimate, prompt_tokens=calibration.real_tokens(estimate))
        decision, live = decided
        plan = live.plan = apply(plan, decision)
        self._live = live
        estimate = self._head + live.tokens
        return Outcome(
            plan=plan, decisions=(decision,), estimate=estimate, prompt_tokens=calibration.real_tokens(estimate)
        )

    def _decide(
        self, state: _State, summaries: Sequence[SummaryStored], limit: int, *, refused: bool
    ) -> tuple[Decision, Live] | None:
        """The decision and the view that it leads to; None to leave things as they are."""
        live = state.live
        if state.calibration.real_tokens(state.estimate) > limit:
            edits = make_fit(
                live, state.snapshot, summaries, head=self._head, calibration=state.calibration, limit=limit
            )
            return state.decision(
                "recovery" if refused else "forced",
                f"the prompt must not exceed {limit:,} tokens",
                self._legal(live, edits),
            )
        bound = self._profile.target == "binding" and live.thinking
        strict = self._policy.rhythm == "strict"
        if bound and not strict and not state.cold:
            return None  # the server would refuse the reasoning behind the edit
        able = CanEdit(live, state.iteration, summaries)
        if strict:
            strictly = self._legal(live, compose(able, state.snapshot))
            return state.decision("strict", "every policy at every iteration", strictly) if strictly else None
        guess = self._guess(state, able)
        if guess is None:
            return None
        kind, reason = guess
        decided = state.decision(kind, reason, self._legal(live, compose(able, state.snapshot)))
        return decided if decided[0].arithmetic.cleared_tokens > 0 else None

    def _guess(self, state: _State, able: CanEdit) -> tuple[str, str] | None:
        """Whether editing now pays, by estimates alone: the edits themselves are only made if it does."""
        cleared = able.cleared_estimate()
        if cleared < max(_LEAST_CLEARED, int(_LEAST_SHARE * state.estimate)):
            return None
        price = state.price(able.first_position, state.estimate - cleared)
        if state.cold:
            return "cold", "the prompt cache has expired anyway"
        if price.cost_now <= 0:
            return ("free" if not self._profile.cache.breakpoints else "pays"), "it is cheaper at once"
        if price.saving_per_call <= 0:
            return None
        spent = able.tokens_read_in_vain() * read_price(self._profile, state.estimate) * state.calibration.factor
        if spent < self._policy.patience * price.cost_now:
            return None
        if price.cost_now <= state.bank():
            return "pays", "it is paid from what earlier edits saved"
        ahead = price.cost_now - state.bank()
        soon = price.cost_now <= _SOON * state.iteration * price.saving_per_call
        if soon and ahead <= self._policy.venture * state.spent():
            return "pays", f"it pays back within {price.cost_now / price.saving_per_call:.0f} calls"
        return None

    def _legal(self, live: Live, edits: Sequence[Edit]) -> tuple[Edit, ...]:
        if self._profile.target == "binding" and live.thinking and edits:
            return (*edits, drop_thinking(live))
        return tuple(edits)


class _State(msgspec.Struct, frozen=True, kw_only=True):
    """One moment of planning, and the arithmetic that follows from it."""

    live: Live
    snapshot: Sequence[Entry]
    iteration: int
    calibration: Calibration
    estimate: int
    head: int
    cold: bool
    profile: ModelProfile

    def bank(self) -> float:
        """US dollars that the plan has saved so far against an unedited record."""
        plan = self.live.plan
        calls = max(0, self.iteration - plan.decided_in - 1)
        saved = plan.saved_tokens * self.calibration.factor
        return plan.bank + calls * saved * read_price(self.profile, self.estimate)

    def spent(self) -> float:
        """US dollars that the prompts have cost so far, about: written once, read at every call as they grew."""
        prompt = self.calibration.real_tokens(self.estimate)
        written = prompt * prices_at(self.profile, prompt).cache_write / 1_000_000
        return written + prompt * self.iteration / 2 * read_price(self.profile, prompt)

    def price(self, first: int, after: int) -> Price:
        """Price an edit that begins at a position and leaves a prompt of ``after`` estimated tokens."""
        live, real = self.live, self.calibration.real_tokens
        edges = [edge for edge in live.plan.edges[-1:] if live.plan.start <= edge <= first]
        untouched = self.head + (live.before(edges[0]) if edges else 0)
        return price_of(
            self.profile,
            Prospect(
                before=real(self.estimate),
                after=real(after),
                new=round((live.tokens - live.before(live.last_turn)) * self.calibration.factor),
                untouched=round(untouched * self.calibration.factor),
                cold=self.cold,
            ),
        )

    def decision(self, kind: str, reason: str, edits: tuple[Edit, ...]) -> tuple[Decision, Live]:
        """Write the decision, with the arithmetic of what the edits really do, and the view after it."""
        live = self.live
        position = len(self.snapshot)
        plain = Decision(kind=kind, reason=reason, iteration=self.iteration, position=position, edits=edits)
        plan = apply(live.plan, plain)
        after = Live(plan, live.policy, self.snapshot, like=live)
        first = min((_begins(edit) for edit in edits), default=position)
        price = self.price(first, self.head + after.tokens)
        # What is settled now: everything in front of the oldest result that is still shown in full.
        edge = after.cut_before(min((entry.position for entry in after.results), default=live.last_turn))
        done = msgspec.structs.replace(
            plain,
            edge=max(edge, plan.start),
            arithmetic=Arithmetic(
                cleared_tokens=live.tokens - after.tokens,
                rewritten_tokens=price.rewritten,
                cost_now=price.cost_now,
                saving_per_call=price.saving_per_call,
                expected_calls=float(self.iteration),
                prompt_before=self.calibration.real_tokens(self.estimate),
                prompt_after=self.calibration.real_tokens(self.head + after.tokens),
                bank=self.bank() - price.cost_now,
            ),
        )
        return done, after


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
        shrink_to=shrink_to,
    )
