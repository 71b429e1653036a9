"""Thrifty rhythm: edit the past when it has cost enough and the savings so far can pay for it.

Old iterations wait until what they have cost in cache reads reaches the price of folding them (the rule for renting
or buying skis); then all of them become a digest at once. A fold is paid from what the run is cheaper so far than an
unedited one, so that it is not dearer wherever it ends; a settled run may borrow a little. While there is nothing to
pay from, see ``Once``.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from repertory.context.account import MARGIN, Account, cliffs_of, rates_of
from repertory.context.ageing import Ageing
from repertory.context.compaction import compactable, compaction_call
from repertory.context.decisions import CoverRange, Decision, Edit, RemoveResult, StubResult
from repertory.context.edits import CanEdit, best_summary, compose, expiries, supersede, swap
from repertory.context.folding import fold_edits
from repertory.context.live import Live
from repertory.context.merging import Merge, merge_of
from repertory.context.once import Once
from repertory.context.plan import Cover, Plan
from repertory.context.policy import ContextPolicy
from repertory.llm.profiles import ModelProfile
from repertory.record.entries import Entry
from repertory.record.records import SummaryStored

_LEAST_CLEARED = 1_000  # tokens; less is not worth a fold
_LEAST_SHARE = 0.04  # of the prompt, where folding costs nothing
_SETTLED = 40  # requests; before, a fold must be paid from what was saved
_SOON_BACK = 0.05  # of the requests so far: within them a fold ahead of the savings must pay back
_RISK = 0.04  # of what the run would have cost unedited: so far ahead of the savings it may go
_MERGED_LATE = 2_000  # tokens of newer digests before a merge that costs nothing, so that it can be prepared


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """What the next request is planned from.

    Attributes:
        snapshot: The record.
        iteration: The iteration whose request it is.
        cold: Whether the prompt cache has expired.
        pressed: Whether the prompt, as it is, has a length at which every token costs more.
        summaries: Those that may be swapped in.
    """

    snapshot: Sequence[Entry]
    iteration: int
    cold: bool
    pressed: bool
    summaries: Sequence[SummaryStored]


class Thrift:
    """The thrifty side of a planner. Follows one run and one plan."""

    def __init__(self, live: Live, *, profile: ModelProfile, head: int) -> None:
        """Begin with a plan; ``grow`` brings everything up to its record."""
        self._profile = profile
        self._policy: ContextPolicy = live.policy
        self.ageing = Ageing(live)
        self.account = Account(rates_of(profile), head)
        self._once = Once(self.ageing, self.account, minimum_tokens=profile.cache.minimum_tokens)
        self.cliffs = cliffs_of(profile)
        self._head = head
        self._live = live
        self._merge: Merge | None = None
        self._merge_of: tuple[Cover, ...] = ()
        self.account.take_up(live.plan, live.before)

    def follow(self, live: Live) -> None:
        """Take over the view of a plan that this object decided."""
        self._live = live
        merge = self._merge
        if merge is not None and merge.is_in(live.plan):
            self.ageing.follow(live, standing=merge.standing, upto=merge.covers[-1].last + 1)
        else:
            self.ageing.follow(live)
        self.account.take_up(live.plan, live.before)

    def adopt(self, live: Live, *, same_view: bool) -> None:
        """Take over the view of a plan that others changed; what was read of the record stays.

        Args:
            live: The view.
            same_view: Whether it shows what the last one did, so that the account goes on; else it is made up from the
                plan's figures.
        """
        self._live = live
        self.ageing.follow(live)
        if not same_view:
            self.account = Account(self.account.rates, self._head)
            self._once = Once(self.ageing, self.account, minimum_tokens=self._profile.cache.minimum_tokens)
            self.account.take_up(live.plan, live.before)

    def grow(self, snapshot: Sequence[Entry], iteration: int) -> None:
        """Take in what is new of the record."""
        live = self._live
        idle = self.ageing.work(snapshot, self.edge(iteration))
        self._prepare_merge(snapshot, 3 if idle else 1)
        self.account.grow(snapshot, live.plan, live.before, self._in_vain)

    def _prepare_merge(self, snapshot: Sequence[Entry], pieces: int) -> None:
        """Make some pieces of the merge that will come."""
        plan = self._live.plan
        if self._merge_of is not plan.covers:
            self._merge_of = plan.covers
            self._merge = merge_of(plan, snapshot, self.ageing, like=self._merge)
        if self._merge is not None:
            for _ in range(pieces):
                if not self._merge.step():
                    break

    def edge(self, iteration: int) -> int:
        """Where a fold before an iteration's request would end, not included."""
        return self._live.cut_at_turn(iteration - self._policy.window)

    def owes(self, iteration: int) -> float:
        """What an iteration's request spends on reading what a fold would clear."""
        if self._profile.target == "binding":
            return self.account.rates.read * compactable(self._live, self._live.last_turn)
        return self.account.rates.read * self._unfolded(iteration)

    def _in_vain(self, answer: Entry) -> int:
        """Tokens that the request before an answer could have done without."""
        if self._profile.target == "binding":
            return compactable(self._live, answer.position)
        return self._unfolded(answer.iteration)

    def _unfolded(self, iteration: int) -> int:
        old, size = self._foldable(self.edge(iteration))
        return max(0, old - size) if old >= _LEAST_CLEARED else 0

    def _foldable(self, upto: int) -> tuple[int, int]:
        """Tokens that a fold would take out of view, and those of its digest."""
        live = self._live
        if upto <= live.plan.start or not self._policy.summaries:
            return 0, 0
        return live.before(upto) - live.covered - live.spoken_tokens(upto), self.ageing.chars(upto) // 4 + 24

    def affords(self, tokens: float) -> bool:
        """Whether the savings pay for a summary that costs so much, and for swapping it in."""
        live, rates = self._live, self.account.rates
        rewritten = self._policy.summary_tokens + live.restated(live.last_turn)
        return not tokens or MARGIN * (tokens + (rates.write - rates.read) * rewritten) <= self.account.bank

    def counted(
        self, decision: Decision, after: Live, plan: Plan, *, iteration: int, untouched: int, cold: bool
    ) -> Decision:
        """Write into a decision what the run will have saved and owe once the request that shows it is paid."""
        account, before = self.account, self._live
        held = after.tokens - after.before(plan.held) if plan.held else 0
        view, kept = self._head + after.tokens, min(untouched, account.cached)
        bank = account.bank_after(view, kept, held=held, cold=cold)
        for edit in decision.edits:
            if isinstance(edit, CoverRange) and edit.strategy == "provider":
                bank -= compaction_call(account, before.before(edit.last + 1), edit.tokens)
        folded = plan.start != before.plan.start
        owed = 0.0 if folded else account.owed + self.owes(iteration)
        arithmetic = msgspec.structs.replace(decision.arithmetic, bank=bank, owed=owed)
        return msgspec.structs.replace(decision, counted=True, arithmetic=arithmetic)

    # --- deciding -----------------------------------------------------------------------------------------

    def decide(self, now: Moment) -> tuple[str, str, list[Edit]] | None:
        """The kind of a decision, its reason and its edits; None to leave things as they are."""
        live, snapshot = self._live, now.snapshot
        stubs = [] if self.account.since_counted else self._once.stubs(live, snapshot)
        fold = self._fold(now)
        if fold is not None:
            kind, reason, edits = fold
            taken = {edit.position for edit in edits if isinstance(edit, StubResult | RemoveResult)}
            start = max((edit.last + 1 for edit in edits if isinstance(edit, CoverRange)), default=0)
            left = (stub for stub in stubs if stub.position >= start and stub.position not in taken)
            return kind, reason, [*edits, *left]
        first = [] if now.cold else self._once.shorten(live, snapshot, stubs)
        edits = [*stubs, *first]
        return ("once", "it is not written to the prompt cache in full", edits) if edits else None

    def _fold(self, now: Moment) -> tuple[str, str, list[Edit]] | None:
        live, account, rates = self._live, self.account, self.account.rates
        cached = bool(self._profile.cache.breakpoints)
        upto = self.edge(now.iteration)
        old, size = self._foldable(upto)
        saves = rates.read * (old - size)
        fresh = self._head + live.tokens - account.cached
        cost = (rates.write - rates.read) * (size + max(0, live.tokens - live.before(upto) - fresh))
        cost = 0.0 if now.cold else max(0.0, cost)
        free = now.cold or not cached
        if saves <= 0 or (not now.pressed and old < max(_LEAST_CLEARED, _LEAST_SHARE * live.tokens * free)):
            edits = self._single(now) if free else []
            return ("cold" if cached else "free", "single results are shortened at no cost", edits) if edits else None
        paid = cost * MARGIN <= max(0.0, account.bank) or self._may_borrow(cost, saves)
        pays = paid and account.owed + saves >= self._policy.patience * cost
        if not (pays or free or now.pressed):
            return None
        kind, reason = _reason(free=free, cached=cached, pays=pays)
        edits = self._covers(now, upto, cost)
        edits += expiries(live, now.snapshot, now.iteration, upto)
        taken = {edit.position for edit in edits if isinstance(edit, StubResult | RemoveResult)}
        # What is behind the fold is written anew with it, so nothing else need pay for these.
        edits += (stub for stub in supersede(live, now.snapshot, upto) if stub.position not in taken)
        return kind, reason, edits

    def _may_borrow(self, cost: float, saves: float) -> bool:
        """Whether a fold may be paid ahead of any savings: little of what the run has cost, and soon earned back."""
        account = self.account
        settled = account.requests >= _SETTLED and cost <= _SOON_BACK * account.requests * saves
        return self._policy.borrow and settled and account.bank - cost >= -_RISK * account.spent

    def _merge_share(self, iteration: int) -> float:
        """How much of a merge's price calls have spent on reading what it would clear; 1.0 where it pays."""
        merge, rates = self._merge, self.account.rates
        assert merge is not None
        if rates.write <= rates.read:
            return merge.newer / _MERGED_LATE
        price = (rates.write - rates.read) * (self._live.covered - merge.saves)
        return merge.owed(iteration, rates.read) / max(1.0, self._policy.patience * price)

    def _single(self, now: Moment) -> list[Edit]:
        """Edits of single results, where nothing is to be covered: of those that have expired, or of all old ones."""
        if self._policy.summaries:
            return expiries(self._live, now.snapshot, now.iteration, 0)
        return compose(CanEdit(self._live, now.iteration, ()), now.snapshot)

    def _covers(self, now: Moment, upto: int, cost: float) -> list[Edit]:
        """The fold, with what may go along with it: a summary in its place, or a merge of the digests before it."""
        live, account, rates = self._live, self.account, self.account.rates
        first = live.plan.start
        rewrite = 0.0 if now.cold else rates.write - rates.read
        # Digests keep more names than an extract of the same length; where every token is paid anew at every call,
        # the shorter one stands all the same.
        dearer = ("provider",) if rates.write <= rates.read else ("extractive", "provider")
        written = [summary for summary in now.summaries if summary.strategy not in dearer]
        summary = best_summary(live, written, upto) if self._policy.summaries and written else None
        if summary is not None:
            more = rewrite * (summary.tokens + live.restated(upto))
            if (cost + more) * MARGIN <= max(0.0, account.bank) or now.cold:
                rest = summary.last + 1
                return [
                    swap(live, now.snapshot, summary, users=True),
                    *fold_edits(self.ageing, live, now.snapshot, rest, upto),
                ]
        merge = self._merge
        if merge is not None and (now.cold or self._merge_share(now.iteration) >= 1.0):
            price = rewrite * (live.covered - merge.saves)
            if now.cold or (cost + price) * MARGIN <= max(0.0, account.bank):
                return [*merge.edits(now.snapshot), *fold_edits(self.ageing, live, now.snapshot, first, upto)]
        return list(fold_edits(self.ageing, live, now.snapshot, first, upto))


def _reason(*, free: bool, cached: bool, pays: bool) -> tuple[str, str]:
    if not cached:
        return "free", "nothing is read from a cache"
    if free:
        return "cold", "the prompt cache has expired anyway"
    if pays:
        return "pays", "what is old has cost as much, and what was saved so far pays for it"
    return "forced", "a longer prompt costs more for every token"
