"""Which edits a moment allows, and what they say: stubs, removals, and summaries of what is old."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from repertory.context.decisions import CoverRange, DropThinking, Edit, RemoveResult, StubResult
from repertory.context.extractive import digest, names_used
from repertory.context.live import Live
from repertory.context.plan import Removed, Stub
from repertory.context.policy import ResultRules
from repertory.context.stubs import removal_of, stub_of, superseded_stub
from repertory.context.tokens import shown_tokens, text_tokens
from repertory.llm.estimate import estimate_tokens
from repertory.llm.messages import Text, text_of
from repertory.record.entries import Entry
from repertory.record.records import SummaryStored

_STUB_HEAD = 45  # tokens of a stub's first line and of the block around it
_LEAST_SAVED = 40  # tokens; a stub that saves less is not made
_STRICT_STUB = 120  # characters that strict rhythm leaves of a result outside its window
_LEAST_FOLDED = 300  # tokens; a digest of less would hardly be shorter
_HEAD_TOKENS = 30  # of the line that says of a summary what it is
_WITH_HEAD = ("extractive", "provider")  # strategies whose summaries say themselves what they are
_MOST_COVERS = 8  # then the program's own digests are merged


class CanEdit:
    """What may be edited now.

    Attributes:
        live: The view.
        keep_from: Everything from this position on stays as it is.
        old: Results that may be compacted, oldest first, with their rules.
        gone: Results that are to be removed.
        summary: The summary to swap in; None where none fits.
        fold: Where the program's own digest is to end, not included; 0 where none is due.
        covered_to: Where what is old ends that the summary or the digest stands for.
    """

    def __init__(
        self,
        live: Live,
        iteration: int,
        summaries: Sequence[SummaryStored],
        *,
        keep_recent: int | None = None,
        fold: bool = False,
    ) -> None:
        """Look at a view.

        Args:
            live: The view.
            iteration: The iteration whose request is planned.
            summaries: Those that may be swapped in.
            keep_recent: How many of the newest results to keep; None for what the policy says.
            fold: Whether to make a digest of everything old, however little it is.
        """
        self.live = live
        self._iteration = iteration
        policy = live.policy
        self._strict = policy.rhythm == "strict" and keep_recent is None
        self._keep = policy.keep_recent if keep_recent is None else keep_recent
        if self._strict:
            self.keep_from = live.cut_at_turn(iteration - policy.window)
        else:
            seen = [
                e.position for e in live.results if e.position < live.last_turn and e.position not in live.superseded
            ]
            recent = seen[-self._keep :] if self._keep else []
            self.keep_from = live.cut_before(min([*recent, live.last_turn]))
        self.summary = best_summary(live, summaries, self.keep_from) if policy.summaries else None
        self.fold = 0
        if self.summary is None and self.keep_from > live.plan.start:
            patience = 2 * policy.summarize_every or 30
            replaced = live.before(self.keep_from) - live.covered - live.spoken_tokens(self.keep_from)
            worth = replaced > _LEAST_FOLDED
            if worth and (fold or (policy.summaries and live.turns_before(self.keep_from) > patience)):
                self.fold = self.keep_from
        self.covered_to = self.summary.last + 1 if self.summary else self.fold
        expired = {entry.position: rules for entry, rules in live.expired(iteration)}
        self.gone = [
            entry
            for entry, rules in live.expired(iteration)
            if entry.position >= self.covered_to and rules.expiration_mode == "remove"
        ]
        self.old = self._compactable(expired) if policy.stubs else []

    def _compactable(self, expired: dict[int, ResultRules]) -> list[tuple[Entry, ResultRules]]:
        live = self.live
        gone = {entry.position for entry in self.gone}
        found: list[tuple[Entry, ResultRules]] = []
        count = len(live.results)
        for at, entry in enumerate(live.results):
            if entry.position < self.covered_to or entry.position in gone or entry.position > live.last_turn:
                continue
            rules = expired.get(entry.position) or live.rules(entry.tool)
            if entry.position not in expired and entry.position not in live.superseded:
                if self._strict:
                    if self._iteration - entry.iteration <= live.policy.window * rules.importance:
                        continue
                    rules = msgspec.structs.replace(rules, compact_length=min(_STRICT_STUB, rules.compact_length))
                elif count - 1 - at < self._keep * rules.importance:
                    continue
            if entry.tokens - _stub_tokens(rules) >= _LEAST_SAVED:
                found.append((entry, rules))
        return found


def best_summary(live: Live, summaries: Sequence[SummaryStored], upto: int) -> SummaryStored | None:
    """The summary that covers most, of those that fit: no gap, no split call, nothing recent, and smaller."""
    starts = {0, *(cover.last + 1 for cover in live.plan.covers)}
    fitting = [
        summary
        for summary in summaries
        if summary.first in starts
        and live.plan.start <= summary.last < upto
        and live.cut_before(summary.last + 1) == summary.last + 1
        and summary.tokens + _HEAD_TOKENS < live.before(summary.last + 1) - (live.covered if summary.first else 0)
    ]
    return max(fitting, key=lambda summary: (summary.last, -summary.first), default=None)


def compose(able: CanEdit, snapshot: Sequence[Entry], *, users: bool = True) -> list[Edit]:
    """Make the edits.

    Args:
        able: What may be edited.
        snapshot: The ledger.
        users: Whether what users said stays verbatim under a digest.
    """
    live = able.live
    edits: list[Edit] = []
    start = live.plan.start
    used: set[str] = names_used(snapshot[start:]) if able.old or able.fold else set()
    if able.summary is not None:
        edits.append(swap(live, snapshot, able.summary, users=users))
    elif able.fold:
        edits.append(_fold(live, snapshot, able.fold, used, users=users))
    edits += [_removal(live, entry) for entry in able.gone]
    newer = {stub.position: stub for stub in supersede(live, snapshot, able.covered_to)} if able.old else {}
    stubs = (newer.get(entry.position) or _stub(live, entry, rules, used) for entry, rules in able.old)
    edits += [stub for stub in stubs if stub.tokens < stub.was_tokens]
    return edits


def supersede(live: Live, snapshot: Sequence[Entry], first: int) -> list[StubResult]:
    """Shorten the results from a position on whose call was made again since: what they gave is no longer so."""
    edits: list[StubResult] = []
    for entry in live.results if live.policy.stubs else ():
        newer = live.superseded.get(entry.position)
        whole = newer is not None and not isinstance(live.plan.shown.get(newer), Stub | Removed)
        if newer is not None and whole and first <= entry.position < live.last_turn:
            edits.append(_stubbed(entry, superseded_stub(entry, snapshot[newer])))
    return [edit for edit in edits if edit.was_tokens - edit.tokens >= _LEAST_SAVED]


def _removal(live: Live, entry: Entry) -> RemoveResult:
    text = removal_of(entry, live.rules(entry.tool))
    was, call_id = shown_tokens(entry, live.plan), entry.tool_call_id or ""
    return RemoveResult(position=entry.position, call_id=call_id, text=text, tokens=text_tokens(text), was_tokens=was)


def _stub(live: Live, entry: Entry, rules: ResultRules, used: set[str]) -> StubResult:
    return _stubbed(entry, stub_of(entry, rules, used=used, summary=live.gist(entry)))


def _stubbed(entry: Entry, text: str) -> StubResult:
    return StubResult(position=entry.position, text=text, tokens=text_tokens(text) + 15, was_tokens=entry.tokens)


def expiries(live: Live, snapshot: Sequence[Entry], iteration: int, first: int) -> list[Edit]:
    """Remove or shorten the results from a position on whose time is up."""
    expired = [
        (entry, rules)
        for entry, rules in live.expired(iteration)
        if entry.position >= first and (live.policy.stubs or rules.expiration_mode == "remove")
    ]
    if not expired:
        return []
    used = names_used(snapshot[live.plan.start :])
    edits = [
        _removal(live, entry) if rules.expiration_mode == "remove" else _stub(live, entry, rules, used)
        for entry, rules in expired
    ]
    return [edit for edit in edits if edit.tokens < edit.was_tokens]


def drop_thinking(live: Live) -> DropThinking:
    """Show no reasoning of what there is so far: an edit of the past leaves it bound to another history."""
    return DropThinking(position=live.position)


def swap(live: Live, snapshot: Sequence[Entry], summary: SummaryStored, *, users: bool) -> CoverRange:
    """Let a summary stand for its range, under a line that says what it is: it stands among what the user says."""
    content = summary.content
    if summary.strategy not in _WITH_HEAD:
        until = snapshot[summary.last].iteration
        span = f"iterations {max(1, snapshot[summary.first].iteration)}–{until}" if until else "the beginning"
        content = (Text(f"[summary of {span}, written from the record; not the user's words]"), *content)
    return _cover(
        live,
        snapshot,
        first=summary.first,
        upto=summary.last + 1,
        content=content,
        tokens=summary.tokens + estimate_tokens(content) - estimate_tokens(summary.content),
        summary_id=summary.summary_id,
        strategy=summary.strategy,
        users=users,
    )


def _fold(live: Live, snapshot: Sequence[Entry], upto: int, used: set[str], *, users: bool) -> CoverRange:
    """Cover what is old with a digest: beside the summaries so far, or merged with them when they are many."""
    plan, policy = live.plan, live.policy
    texts = [text_of(cover.content) for cover in plan.covers]
    many = len(texts) >= _MOST_COVERS or sum(cover.tokens for cover in plan.covers) > 4 * policy.summary_tokens
    merge = many and all(texts)  # a provider's signed block has no text to merge
    first = 0 if merge else plan.start
    replaced = live.before(upto) - live.covered
    kept = _kept(live, snapshot, first, upto, users=users)
    text = digest(
        snapshot[plan.start : upto],
        tokens=policy.summary_tokens * 2 if merge else min(policy.summary_tokens, replaced // 2),
        previous="\n".join(texts) if merge else "",
        kept=kept,
        used=used,
        retrieval=policy.retrieval,
    )
    return _cover(
        live,
        snapshot,
        first=first,
        upto=upto,
        content=(Text(text),),
        tokens=text_tokens(text),
        summary_id="",
        strategy="extractive",
        users=users,
    )


def _cover(
    live: Live,
    snapshot: Sequence[Entry],
    *,
    first: int,
    upto: int,
    content: tuple[object, ...],
    tokens: int,
    summary_id: str,
    strategy: str,
    users: bool,
) -> CoverRange:
    plan = live.plan
    replaced = [cover for cover in plan.covers if cover.first >= first]
    return CoverRange(
        first=first,
        last=upto - 1,
        content=content,  # type: ignore[arg-type]
        tokens=tokens,
        was_tokens=live.before(upto) - live.covered + sum(cover.tokens for cover in replaced),
        kept=_kept(live, snapshot, first, upto, users=users),
        summary_id=summary_id,
        strategy=strategy,
        replaced_tokens=sum(cover.replaced_tokens for cover in replaced)
        + sum(entry.tokens for entry in snapshot[plan.start : upto]),
    )


def _kept(live: Live, snapshot: Sequence[Entry], first: int, upto: int, *, users: bool) -> tuple[int, ...]:
    """What stays verbatim under a summary. Pins do too, by themselves, and so they end when they are taken off."""
    before = [position for cover in live.plan.covers if cover.first >= first for position in cover.kept]
    found: list[int] = []
    for position in [*before, *(p for p in live.spoken if p < upto)]:
        entry = snapshot[position]
        said = entry.kind == "user-input" and users and live.policy.keep_user_input
        if entry.kind == "task" or said or live.rules(entry.tool).pin:
            found.append(position)
    return tuple(sorted(found))


def _stub_tokens(rules: ResultRules) -> int:
    return _STUB_HEAD + rules.compact_length // 4
