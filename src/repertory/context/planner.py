"""The planner: looks at the record before each model call and says how it is to be shown, with the arithmetic.

Edits of the past cost a rewrite of the cached prompt behind them and save cache reads at every later call.

- **Fold**: what has left the window becomes trail once reading it in vain has cost what folding it costs (the rule for
  renting or buying skis), if what the run has saved so far pays for it, or a little ahead of that if it is soon earned
  back: so no run is dearer than an unedited one by more than that little (see ``Account.pays_for``).
- **Once**: while nothing has been saved yet, a bulky result is shown whole without being written to the cache, and by
  its telling lines from the next request on: that saves without a rewrite. A file stays whole in the window, since it
  may have been read to be edited, unless it is very large; what is very large is always shown once.
- A **cold** cache makes edits free, and a model without one makes them free always. A **price cliff**, the window, the
  budget and the policy's comfort force them.
- In **strict** rhythm every policy is applied at every iteration, whatever that costs.
- Where the model **binds** its reasoning to the past nothing is edited for money; the outcome says when to ask the
  provider for a compaction instead (see ``binding``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import MappingProxyType

import msgspec

from repertory.context.account import Account, cliffs_of, rates_of
from repertory.context.binding import Compaction, compactable, compaction_call, wanted_compaction
from repertory.context.decisions import Decision, apply, arithmetic_of
from repertory.context.edits import Editor, best_summary, drop_thinking, joined
from repertory.context.lines import looks_like_file
from repertory.context.live import Live
from repertory.context.plan import EMPTY, CoverRange, Edit, HoldBack, Plan, StubResult
from repertory.context.policy import ContextPolicy
from repertory.context.shaping import tool_text
from repertory.context.tokens import Calibration
from repertory.context.trail import Trail, room_of
from repertory.errors import ContextOverflow
from repertory.llm.profiles import ModelProfile
from repertory.record.entries import Entry
from repertory.record.records import SummaryStored

_NO_GISTS: Mapping[int, str] = MappingProxyType({})
_LEAST_CLEARED = 1_000  # tokens; the smallest prefix that most models cache: less is not worth a decision
_BULKY = 1_000  # tokens of a result that may be shown once; the same
_FILE = 2_500  # tokens of a file, about 250 lines: what is read to be edited stays whole in the window up to that
_LARGE_SHARE = 0.1  # of the comfort: a larger result is shown whole once, whatever it is
_TRAIL_SHARE = 0.5  # of the comfort: a longer trail is summarized, or made shorter where it must be


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the planner says about the next request.

    Attributes:
        plan: How the record is to be shown: the plan so far with the decisions applied.
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


class _Wish(msgspec.Struct, frozen=True):
    """A decision before its arithmetic."""

    kind: str
    reason: str
    edits: Sequence[Edit]


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
        comfort = policy.comfort_tokens if policy.comfort_tokens is not None else profile.comfort
        self._comfort = min(comfort or self._limit, self._limit)
        self._thrifty = policy.rhythm == "thrifty"
        self._cliffs = cliffs_of(profile)
        self._rates = rates_of(profile)
        self._cached = bool(profile.cache.breakpoints)
        self.charged = charged
        self._live: Live | None = None
        self._trail = Trail(policy)
        self._editor = Editor(self._trail)
        self._account = Account(self._rates, head_tokens)

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
        if self._trail.take_gists(gists, snapshot):
            self._count_again(live)
        calibration = calibration or Calibration()
        estimate = self._head + live.tokens
        limit = self._limit if shrink_to is None else min(shrink_to, self._limit)
        if self._thrifty:
            self._account.grow(snapshot, live.plan, live.before, partial(self._in_vain, snapshot))
        now = _Moment(live, snapshot, iteration, calibration, calibration.real_tokens(estimate), cold, summaries)
        decided = self._decide(now, limit, refused=shrink_to is not None)
        if decided is None:
            asked = self._wanted_compaction(now, limit)
            return Outcome(plan=plan, estimate=estimate, prompt_tokens=now.size, compaction=asked)
        decision, after = decided
        self._take(after, snapshot)
        self.charged = 0.0 if decision.counted else self.charged
        estimate = self._head + after.tokens
        prompt = calibration.real_tokens(estimate)
        return Outcome(plan=after.plan, decisions=(decision,), estimate=estimate, prompt_tokens=prompt)

    # --- what others do -----------------------------------------------------------------------------------

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
        if not self._thrifty:
            return decision
        self._account.grow(snapshot, live.plan, live.before, partial(self._in_vain, snapshot))
        edited = apply(plan, decision)
        if edited.epoch == plan.epoch:
            return decision  # nothing is shown otherwise
        after = Live(edited, self._policy, snapshot, like=live)
        first = min((_begins(edit) for edit in decision.edits), default=0)
        untouched = self._head + (live.before(first) if first > plan.start else 0)
        self.charged = 0.0
        return self._on_account(decision, live, after, iteration=iteration, untouched=untouched, cold=cold)

    def affords(self, dollars: float, *, written: int = 0) -> bool:
        """Whether what was saved so far pays for a summary of this price, and for swapping its tokens in.

        Always so where nothing is weighed: in strict rhythm, where prices are not known, before the first call.
        """
        live, tokens = self._live, self._priced_in_tokens(dollars)
        if not self._thrifty or live is None or not tokens:
            return True
        rewritten = written + live.restated(live.last_turn)
        return tokens + (self._rates.write - self._rates.read) * rewritten <= self._account.bank

    def charge(self, dollars: float) -> None:
        """Take from the savings what was paid for the run beside its own calls, such as for a summary."""
        self.charged += dollars
        self._account.bank -= self._priced_in_tokens(dollars)

    def _priced_in_tokens(self, dollars: float) -> float:
        """How many tokens of input a sum buys; 0 where input costs nothing."""
        price = self._profile.prices[0].input
        return dollars * 1e6 / price if price else 0.0

    # --- following the run --------------------------------------------------------------------------------

    def _follow(self, snapshot: Sequence[Entry], plan: Plan) -> Live:
        """The view of a plan, up to the record. Of a plan that others have changed only what they changed is new."""
        live, before = self._live, self._live
        if live is not None and live.plan is plan and live.position <= len(snapshot):
            if live.position < len(snapshot):
                live.grow(snapshot)
            return live
        live = Live(plan, self._policy, snapshot, like=before)
        goes_on = before is not None and live.plan.start >= before.plan.start and before.position <= live.position
        if before is not None and goes_on and live.plan.epoch == before.plan.epoch:
            self._live = live  # pins alone
            self._count_again(live)
            return live
        if not goes_on:
            self._trail = Trail(self._policy)
            self._editor = Editor(self._trail)
        self._account = Account(self._rates, self._head)
        self._take(live, snapshot)
        self._account.bank -= self._priced_in_tokens(self.charged)
        return live

    def _count_again(self, live: Live) -> None:
        """Count what came since the plan was made as one would that sees it as it is shown now."""
        self._account.take_up(live.plan, live.before, again=True)
        self._account.bank -= self._priced_in_tokens(self.charged)

    def _take(self, live: Live, snapshot: Sequence[Entry]) -> None:
        """Take over the view of another plan."""
        self._live = live
        self._trail.follow(live.plan.covers, live.plan.start, snapshot)
        self._account.take_up(live.plan, live.before)

    def _is_bound(self, live: Live) -> bool:
        return self._profile.target == "binding" and live.thinking

    def _edge(self, live: Live, iteration: int) -> int:
        """Where a fold before an iteration's request would end, not included: what was said there stays, so it goes
        along."""
        upto = live.cut_at_turn(iteration - self._policy.window)
        return live.past_talk(upto)

    def _write(self, live: Live, snapshot: Sequence[Entry], iteration: int) -> None:
        """Write the trail of what has left the window before an iteration's request: mostly the turn or two that are
        new. It comes before anything else that reads on, so that it does not matter how often was planned before.
        """
        if self._policy.summaries:
            self._trail.write(snapshot, max(live.plan.start, live.cut_at_turn(iteration - self._policy.window)))

    def _in_vain(self, snapshot: Sequence[Entry], answer: Entry) -> int:
        """Tokens that the request before an answer could have done without."""
        live = self._live
        assert live is not None
        if self._profile.target == "binding":
            return compactable(live, answer.position)
        self._write(live, snapshot, answer.iteration)
        old, size = self._editor.foldable(live, self._edge(live, answer.iteration))
        return max(0, old - size) if old >= _LEAST_CLEARED else 0

    # --- deciding -----------------------------------------------------------------------------------------

    def _decide(self, now: _Moment, limit: int, *, refused: bool) -> tuple[Decision, Live] | None:
        """The decision and the view that it leads to; None to leave things as they are."""
        live, fits = now.live, now.size <= limit
        if fits and self._thrifty and self._is_bound(live) and not now.cold:
            return None  # the server would refuse the reasoning behind the edit
        self._write(live, now.snapshot, now.iteration)
        due = self._due(now)
        if not fits:
            kind = "recovery" if refused else "forced"
            return self._fitted(now, limit, kind, f"the prompt must not exceed {limit:,} tokens", due)
        if not self._thrifty:
            edits = self._editor.strictly(live, now.snapshot, now.iteration, now.summaries)
            return self._decision(now, _Wish("strict", "every policy at every iteration", edits)) if edits else None
        doubt = now.calibration.doubt(self._head + live.tokens)
        cliff = max((at - doubt for at in self._cliffs if at - doubt < now.size), default=0)
        wish = self._wish(now, due, pressed=bool(cliff))
        decided = self._decision(now, wish) if wish is not None else None
        size = now.calibration.real_tokens(self._head + decided[1].tokens) if decided else now.size
        if cliff and size > cliff:
            with suppress(ContextOverflow):  # then it is not avoidable
                reason = "a longer prompt costs more for every token"
                return self._fitted(now, cliff, "forced", reason, due)
        if size > self._comfort:
            reason = "a longer view costs the model's attention"
            return self._fitted(now, self._comfort, "comfort", reason, due) or decided
        return decided

    def _due(self, now: _Moment) -> list[Edit]:
        """What is edited in any case: results whose time was up a window ago, and those that were shown once."""
        if not self._thrifty:
            return []
        return joined(self._overdue(now), self._shown_once(now) if self._account.since_counted == 0 else [])

    def _wish(self, now: _Moment, due: Sequence[Edit], *, pressed: bool) -> _Wish | None:
        """What thrifty rhythm wants to edit now."""
        fold = self._fold(now, pressed=pressed)
        if fold is not None:
            return _Wish(fold.kind, fold.reason, joined(fold.edits, due))
        stubs = [edit for edit in due if isinstance(edit, StubResult) and edit.why == "shown once"]
        if len(stubs) < len(due):
            return _Wish("expired", "the time of results is up", due)
        held = [] if now.cold else self._hold_back(now.live, now.snapshot, stubs, now.iteration)
        if not (due or held):
            return None
        return _Wish("once", "it is not written to the prompt cache in full", [*due, *held])

    def _fold(self, now: _Moment, *, pressed: bool) -> _Wish | None:
        live, account = now.live, self._account
        upto = self._edge(live, now.iteration)
        cost, saves = self._fold_price(live, upto)
        cost = 0.0 if now.cold else cost
        free = now.cold or not self._cached
        if saves <= 0 or (not pressed and self._editor.foldable(live, upto)[0] < _LEAST_CLEARED):
            edits = self._single(now) if free else []
            reason = "single results are shortened at no cost"
            return _Wish("cold" if self._cached else "free", reason, edits) if edits else None
        pays = account.owed + saves >= self._policy.patience * cost and account.pays_for(cost, saves)
        if not (pays or free or pressed):
            return None
        kind, reason = _reason(free=free, cached=self._cached, pays=pays)
        edits = self._summary(now, free=free, left=account.bank - cost)
        edits += self._editor.fold(live, now.snapshot, upto)
        # What is behind the fold is written anew with it, so nothing else need pay for these.
        edits += self._editor.expire(live, now.snapshot, now.iteration, upto)
        return _Wish(kind, reason, joined(edits, self._editor.supersede(live, now.snapshot, upto)))

    def _fold_price(self, live: Live, upto: int) -> tuple[float, float]:
        """What a fold costs, and what it saves at each call, in tokens at the input price."""
        old, size = self._editor.foldable(live, upto)
        cached = min(self._account.cached, self._head + live.tokens)  # what is new is written in any case
        behind = max(0, cached - self._head - live.before(upto))
        return (self._rates.write - self._rates.read) * (size + behind), self._rates.read * (old - size)

    def _summary(self, now: _Moment, *, free: bool, left: float) -> list[Edit]:
        """Along with a fold, a model's summary of trail that has outgrown its share, if what is left pays for that."""
        live = now.live
        summary = self._ready_summary(now)
        if summary is None or sum(cover.tokens for cover in live.plan.covers) <= _TRAIL_SHARE * self._comfort:
            return []
        rewritten = live.covered - live.view_tokens(summary.first, summary.last + 1) + summary.tokens
        if not free and (self._rates.write - self._rates.read) * rewritten > left:
            return []
        return [self._editor.swap(live, now.snapshot, summary)]

    def _ready_summary(self, now: _Moment) -> SummaryStored | None:
        """The summary that may take the place of trail; None where none fits."""
        if not (self._thrifty and self._policy.summaries):
            return None
        return best_summary(now.live, now.summaries, now.live.plan.start)

    def _single(self, now: _Moment) -> list[Edit]:
        """Edits of single results, where nothing is to be folded: of those that have expired, or of all old ones."""
        edits: list[Edit] = [*self._editor.expire(now.live, now.snapshot, now.iteration, 0)]
        if self._policy.summaries or not self._policy.stubs:
            return edits
        return joined(edits, self._editor.shorten_old(now.live, now.snapshot))

    def _overdue(self, now: _Moment) -> Sequence[Edit]:
        """Results that expired a window ago: an explicit expiration waits that long for a cheap moment, no longer."""
        late = now.iteration - self._policy.window
        return self._editor.expire(now.live, now.snapshot, late, 0) if self._policy.expires else []

    # --- shown once ---------------------------------------------------------------------------------------

    def _shown_once(self, now: _Moment) -> list[StubResult]:
        """The stubs of results that the last request showed without writing them to the cache."""
        plan = now.live.plan
        shown = now.snapshot[plan.held : min(plan.decided_at, now.live.last_turn)] if plan.held else ()
        return [stub for entry in shown if (stub := self._once(now.live, now.snapshot, entry)) is not None]

    def _hold_back(
        self, live: Live, snapshot: Sequence[Entry], stubs: Sequence[StubResult], iteration: int
    ) -> list[Edit]:
        """Keep what is new and bulky from being written to the cache."""
        if self._rates.write <= 1.0 or not (self._policy.show_once and self._policy.stubs):
            return []
        hold = live.last_turn + 1
        gain, held, poor = 0.0, 0, self._is_poor(live, iteration)
        for entry in snapshot[hold:]:
            stub = self._once(live, snapshot, entry) if poor or entry.tokens >= _LARGE_SHARE * self._comfort else None
            held += entry.tokens
            gain += self._gain(entry.tokens, stub.tokens) if stub else -entry.tokens
        saved = sum(edit.was_tokens - edit.tokens for edit in stubs)
        before = self._head + live.tokens - saved - held
        return [HoldBack(position=hold)] if gain > 0 and before >= self._profile.cache.minimum_tokens else []

    def _gain(self, whole: int, stub: int) -> float:
        """What showing a result once saves within a window, in tokens at the input price.

        It is paid as input instead of written, its stub is written behind it, and every call of the window reads less.
        """
        rates = self._rates
        return (rates.write - 1.0) * whole - rates.write * stub + rates.read * self._policy.window * (whole - stub)

    def _once(self, live: Live, snapshot: Sequence[Entry], entry: Entry) -> StubResult | None:
        """The stub of a result that is shown once; None for one that stays."""
        if (
            entry.tool_call_id is None
            or entry.tokens < _BULKY
            or entry.position in live.plan.shown
            or live.stays(entry)
        ):
            return None
        text = tool_text(entry)
        if room_of(len(text), live.rules(entry.tool).importance) > len(text) // 2:
            return None
        large = entry.tokens >= _LARGE_SHARE * self._comfort
        is_file = entry.tokens < _FILE and looks_like_file(text)
        if not large and is_file:
            return None
        stub = self._editor.shorten(live, snapshot, entry, "shown once", live.rules(entry.tool))
        return stub if stub.tokens < entry.tokens // 2 else None

    def _is_poor(self, live: Live, iteration: int) -> bool:
        """Whether the savings so far could not pay for a fold as it would be now."""
        cost, saves = self._fold_price(live, self._edge(live, iteration))
        return not self._account.pays_for(cost, saves)

    # --- the arithmetic -----------------------------------------------------------------------------------

    def _fitted(
        self, now: _Moment, limit: int, kind: str, reason: str, due: Sequence[Edit]
    ) -> tuple[Decision, Live] | None:
        live = now.live
        edits = self._editor.make_fit(
            live,
            now.snapshot,
            head=self._head,
            calibration=now.calibration,
            limit=limit,
            bound=self._bound if limit == self._limit else "the server refused a longer one",
            edge=live.cut_at_turn(now.iteration - self._policy.window),
            summary=self._ready_summary(now),
            due=due,
            gently=kind == "comfort",
        )
        return self._decision(now, _Wish(kind, reason, edits)) if edits else None

    def _decision(self, now: _Moment, wish: _Wish) -> tuple[Decision, Live]:
        """Write a decision, with the arithmetic of what the edits really do, and the view after it."""
        live, position = now.live, len(now.snapshot)
        edits = (*wish.edits, drop_thinking(live)) if self._is_bound(live) and wish.edits else tuple(wish.edits)
        plain = Decision(kind=wish.kind, reason=wish.reason, iteration=now.iteration, position=position, edits=edits)
        after = Live(apply(live.plan, plain), self._policy, now.snapshot, like=live)
        plan = after.plan
        first = min((_begins(edit) for edit in edits), default=position)
        # What is settled now: everything in front of the oldest result that is still shown in full.
        edge = plan.start if plan.start != live.plan.start else 0
        if not self._thrifty or wish.kind in ("forced", "recovery", "comfort"):
            edge = max(plan.start, after.cut_before(min((e.position for e in after.results), default=live.last_turn)))
        cached = self._account.cached if self._thrifty else self._head + live.before(live.last_turn)
        untouched = min(self._untouched(live, plan, first, cached), cached)
        before = self._head + live.tokens
        arithmetic = arithmetic_of(
            self._profile,
            now.calibration,
            before=before,
            after=self._head + after.tokens,
            untouched=untouched,
            new=before - cached,
            cold=now.cold,
            calls=now.iteration,
        )
        done = msgspec.structs.replace(plain, edge=edge, arithmetic=arithmetic)
        if self._thrifty:
            done = self._on_account(done, live, after, iteration=now.iteration, untouched=untouched, cold=now.cold)
        after.plan = apply(live.plan, done)
        return done, after

    def _untouched(self, live: Live, plan: Plan, first: int, cached: int) -> int:
        """Tokens in front of the first edit that a breakpoint keeps."""
        if first < live.plan.start:
            return self._head
        if plan.start != live.plan.start:
            return self._head + live.covered
        if self._thrifty and first >= live.last_turn:
            return self._head + live.before(first)
        if self._thrifty and live.plan.held and first >= live.plan.held:
            return cached
        edges = [edge for edge in live.plan.edges[-1:] if live.plan.start <= edge <= first]
        return self._head + (live.before(edges[0]) if edges else 0)

    def _on_account(
        self, decision: Decision, before: Live, after: Live, *, iteration: int, untouched: int, cold: bool
    ) -> Decision:
        """Write into a decision what the run will have saved and owe once the request that shows it is paid."""
        account, plan = self._account, after.plan
        held = after.tokens - after.before(plan.held) if plan.held else 0
        view, kept = self._head + after.tokens, min(untouched, account.cached)
        bank = account.bank_after(view, kept, held=held, cold=cold)
        for edit in decision.edits:
            if isinstance(edit, CoverRange) and edit.strategy == "provider":
                bank -= compaction_call(account, before.before(edit.last + 1), edit.tokens)
        owed = 0.0
        if plan.start == before.plan.start:
            old, size = self._editor.foldable(before, self._edge(before, iteration))
            owed = account.owed + self._rates.read * max(0, old - size)
        arithmetic = msgspec.structs.replace(decision.arithmetic, bank=bank, owed=owed)
        return msgspec.structs.replace(decision, counted=True, arithmetic=arithmetic)

    def _wanted_compaction(self, now: _Moment, limit: int) -> Compaction | None:
        """What the provider should compact, where only it may edit the past."""
        if not (self._thrifty and self._is_bound(now.live) and self._policy.summaries):
            return None
        return wanted_compaction(
            now.live,
            self._account,
            estimate=self._head + now.live.tokens,
            calibration=now.calibration,
            limit=min(limit, min(self._cliffs, default=limit)),
        )


class _Moment(msgspec.Struct, frozen=True):
    """What the next request is planned from; ``size`` is the prompt's as it stands, calibrated."""

    live: Live
    snapshot: Sequence[Entry]
    iteration: int
    calibration: Calibration
    size: int
    cold: bool
    summaries: Sequence[SummaryStored]


def _begins(edit: Edit) -> int:
    return edit.first if isinstance(edit, CoverRange) else edit.position


def _reason(*, free: bool, cached: bool, pays: bool) -> tuple[str, str]:
    if not cached:
        return "free", "nothing is read from a cache"
    if free:
        return "cold", "the prompt cache has expired anyway"
    if pays:
        return "pays", "what is old has cost as much, and what was saved so far pays for it"
    return "forced", "a longer prompt costs more for every token"


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
