"""Makes the edits of the past: what replaces a stretch or a single result."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import accumulate
from operator import attrgetter

from repertory.context.plan import TRAIL, CoverRange, Edit, RemoveResult, StubResult
from repertory.context.superseded import Superseded
from repertory.context.view_index import ViewIndex
from repertory.llm.estimate import text_tokens
from repertory.llm.messages import Text
from repertory.record.entries import Entry
from repertory.record.records import SummaryStored
from repertory.shortening.rules import ResultRules
from repertory.shortening.shaping import (
    Why,
    lines_stub,
    removal_of,
    requested_text,
    stub_of,
    superseded_stub,
    tool_text,
    viewed_stub,
)
from repertory.shortening.trail import TALKERS, Trail, log_head, log_of_calls, room_of

HEADROOM = 0.8  # of a bound on the view: edits to keep a bound also make room for the next prompts
MIN_SAVED = 40  # tokens, about as many as a stub's first line has: a stub that saves less is not made
OLDER_SHARE = 0.75  # of the trail: the older part, which may be reduced to its calls; the newest quarter stays as it is


class Editor:
    """Makes the edits of one run."""

    def __init__(self, trail: Trail) -> None:
        self.trail = trail
        self.superseded = Superseded()

    # --- stretches ----------------------------------------------------------------------------------------

    def fold_sizes(self, view: ViewIndex, upto: int) -> tuple[int, int]:
        """Return the tokens that a fold would take out of view, and those of the trail that replaces them."""
        if upto <= view.plan.start or not view.policy.summaries:
            return 0, 0
        return view.tokens_before(upto) - view.covered - view.kept_tokens(upto), self.trail.tokens(upto) + 60

    def fold(self, view: ViewIndex, upto: int, *, keep_talk: bool = True, split: int = 0) -> list[CoverRange]:
        """Replace everything uncovered up to a position by trail.

        Talk between user and agent stays word for word, in its place and role: a cover ends before it, and the next one
        begins with it.

        Args:
            view: The view.
            upto: A position at which no call is open.
            keep_talk: Whether talk stays; if not, all of it but the task goes into the trail too.
            split: Where one cover ends and the next begins in any case.
        """
        edits: list[CoverRange] = []
        first, snapshot = view.plan.start, view.snapshot

        def is_kept(entry: Entry, *, pins: bool = True) -> bool:
            if keep_talk:
                return view.is_kept(entry, pins=pins)
            return entry.kind == "task" or view.is_pinned(entry, pins=pins)

        while first < upto:
            last = first
            while last + 1 not in (upto, split) and not (is_kept(snapshot[last + 1]) and not is_kept(snapshot[last])):
                last += 1
            log = self.trail.text(first + (snapshot[first].kind == "task"), last + 1, talk=() if keep_talk else TALKERS)
            head = log_head(snapshot[first].iteration, snapshot[last].iteration, retrieval=view.policy.retrieval)
            was = view.tokens_before(last + 1) - view.tokens_before(first)
            kept = (entry.position for entry in snapshot[first : last + 1] if is_kept(entry, pins=False))
            edits.append(
                _trail_cover(snapshot, first, last, f"{head}\n{log}" if log else "", kept=kept, was_tokens=was)
            )
            first = last + 1
        return edits

    def condense(self, view: ViewIndex, upto: int, max_tokens: int, *, everything: bool) -> list[CoverRange]:
        """Fold, and reduce the older part of all trail to its calls, or ``everything``, talk included, so that it has
        about ``max_tokens``.

        The newest calls stay as far as there is room. Talk stays in its place, as long as there is room for a line
        between all of it; otherwise it is put before the calls.
        """
        share = 1.0 if everything else OLDER_SHARE
        old = [cover for cover in view.plan.covers if cover.strategy == TRAIL]
        sums = [0, *accumulate(cover.tokens for cover in old)]
        most = share * (sums[-1] + self.trail.tokens(upto))
        at = bisect_right(view.ends, most - sums[-1], key=self.trail.tokens)
        split = view.ends[at - 1] if at else 0
        folds = self.fold(view, upto, keep_talk=not everything, split=split)
        older = [*old[: bisect_right(sums, most) - 1], *(fold for fold in folds if fold.last < split)]
        size = _total_tokens(older)
        room = max(0, max_tokens - sums[-1] - _total_tokens(folds) + size)
        groups = _adjacent_groups(older) if room < size else []
        if len(groups) * MIN_SAVED > room:
            groups = _adjacent_groups(older, merge_kept=True)
        reduced = [self._reduce_to_calls(view, group, room * _total_tokens(group) // size) for group in groups]
        edits = [edit for edit, group in zip(reduced, groups, strict=True) if edit.tokens < _total_tokens(group)]
        edits += [fold for fold in folds if not any(edit.first <= fold.first <= edit.last for edit in edits)]
        return sorted(edits, key=attrgetter("first"))

    def _reduce_to_calls(self, view: ViewIndex, covers: Sequence[CoverRange], tokens: int) -> CoverRange:
        """Reduce neighbouring covers to their calls, in at most about ``tokens`` tokens, after all that they keep."""
        first, last = covers[0].first, covers[-1].last
        kept = [position for cover in covers for position in cover.kept]
        text = log_of_calls(
            _EntryRange(view.snapshot, first, last, excluded=frozenset(kept)),
            tokens=max(MIN_SAVED, tokens),
            retrieval=view.policy.retrieval,
        )
        was = sum(cover.tokens if cover.last < view.plan.start else cover.was_tokens for cover in covers)
        return _trail_cover(view.snapshot, first, last, text, kept=kept, was_tokens=was)

    def swap(self, view: ViewIndex, summary: SummaryStored) -> CoverRange:
        """Replace a summary's range by the summary."""
        upto, snapshot = summary.last + 1, view.snapshot
        replaced = [cover for cover in view.plan.covers if summary.first <= cover.first and cover.last <= summary.last]
        end = max([cover.last + 1 for cover in replaced], default=view.plan.start)
        fresh = snapshot[max(end, summary.first) : upto]
        kept = [position for cover in replaced for position in cover.kept]
        kept += [entry.position for entry in fresh if view.is_kept(entry, pins=False)]
        uncovered = max(0, view.tokens_before(upto) - view.covered) if upto > view.plan.start else 0
        return CoverRange(
            first=summary.first,
            last=summary.last,
            content=summary.content,
            tokens=summary.tokens,
            was_tokens=uncovered + sum(cover.tokens for cover in replaced),
            kept=tuple(sorted(kept)),
            summary_id=summary.summary_id,
            strategy=summary.strategy,
            iterations=(snapshot[summary.first].iteration, snapshot[summary.last].iteration),
        )

    # --- single results -----------------------------------------------------------------------------------

    def shorten(self, view: ViewIndex, entry: Entry, why: Why, rules: ResultRules) -> StubResult:
        """Replace a result by a stub: what its policy asks for, or else the most telling lines."""
        requested = requested_text(entry, rules, self.trail.result_summary(entry))
        if requested:
            text = stub_of(entry, rules, why, requested)
        else:
            length = entry.original_length or len(tool_text(entry))
            room = rules.compact_length if why == "expired" else room_of(length, rules.importance)
            lines, share = self.trail.lines_of(entry, view.snapshot, room)
            text = lines_stub(entry, rules, why, lines, share)
        return stub_edit(entry, text, why)

    def shorten_old(self, view: ViewIndex) -> list[StubResult]:
        """Shorten all results that the model has seen, except the newest ``keep_recent``."""
        seen = [entry for entry in view.results if entry.position < view.last_turn]
        old = seen[: max(0, len(seen) - view.policy.keep_recent)]
        return worthwhile(self.shorten(view, entry, "shortened", view.rules(entry.tool)) for entry in old)

    def supersede(self, view: ViewIndex, first: int) -> list[StubResult]:
        """Shorten the results from a position on whose content a newer result in view holds in full."""
        edits: list[StubResult] = []
        for entry in view.results if view.policy.stubs else ():
            newer = self.superseded.newer.get(entry.position)
            whole = newer is not None and not isinstance(view.plan.shown.get(newer), StubResult | RemoveResult)
            if newer is not None and whole and first <= entry.position < view.last_turn:
                edits.append(stub_edit(entry, superseded_stub(entry, view.snapshot[newer]), "superseded"))
        return worthwhile(edits)

    def expire(self, view: ViewIndex, iteration: int, first: int) -> list[StubResult | RemoveResult]:
        """Remove or shorten the results from a position on that have expired."""
        edits: list[StubResult | RemoveResult] = []
        for entry, rules in view.expired(iteration):
            if entry.position < first:
                continue
            if rules.expiration_mode == "remove":
                at, call_id, text = entry.position, entry.tool_call_id or "", removal_of(entry, rules)
                tokens, was = text_tokens(text), view.plan.tokens_of(entry)
                edits.append(RemoveResult(position=at, call_id=call_id, text=text, tokens=tokens, was_tokens=was))
            elif view.policy.stubs:
                edits.extend(worthwhile([self.shorten(view, entry, "expired", rules)]))
        return edits

    def strict_edits(self, view: ViewIndex, iteration: int, summaries: Sequence[SummaryStored]) -> list[Edit]:
        """Apply every policy, as strict rhythm does before each request."""
        policy, edits = view.policy, list[Edit]()
        edge = view.end_at_turn(iteration - policy.window)
        summary = best_summary(view, summaries, edge) if policy.summaries else None
        start = view.plan.start
        if summary is not None:
            edits.append(self.swap(view, summary))
            start = summary.last + 1
        elif policy.summaries and view.turns_before(edge) > 2 * (policy.summarize_every or policy.window):
            # No summary has come for two intervals, so trail is used instead to keep the view bounded.
            edits += self.fold(view, edge)
            start = edge
        edits = merge_edits(edits, self.expire(view, iteration, start))
        edits = merge_edits(edits, self.supersede(view, start))
        viewed: list[StubResult] = []
        recent = {entry.position for entry in view.results[-policy.keep_recent :]} if policy.keep_recent else set[int]()
        for entry in view.results if policy.stubs else ():
            rules = view.rules(entry.tool)
            old = iteration - entry.iteration > policy.window * rules.importance or entry.position not in recent
            if old and start <= entry.position < view.last_turn:
                requested = requested_text(entry, rules, self.trail.result_summary(entry))
                text = stub_of(entry, rules, "shortened", requested) if requested else viewed_stub(entry, rules)
                viewed.append(stub_edit(entry, text, "shortened"))
        return merge_edits(edits, worthwhile(viewed))


def _trail_cover(
    snapshot: Sequence[Entry], first: int, last: int, text: str, *, kept: Iterable[int], was_tokens: int
) -> CoverRange:
    """Make a cover written by the program; it has no text if all of the range is kept."""
    return CoverRange(
        first=first,
        last=last,
        content=(Text(text),) if text else (),
        tokens=text_tokens(text) if text else 0,
        was_tokens=was_tokens,
        kept=tuple(kept),
        iterations=(snapshot[first].iteration, snapshot[last].iteration),
    )


def best_summary(view: ViewIndex, summaries: Sequence[SummaryStored], upto: int) -> SummaryStored | None:
    """Return the summary that covers most, of those that leave no gap, split no call, cover nothing recent and are
    smaller than what they replace."""
    if not summaries:
        return None
    starts = {0, *(cover.last + 1 for cover in view.plan.covers)}
    ends = {cover.last for cover in view.plan.covers}
    fitting = [
        summary
        for summary in summaries
        if summary.strategy != "provider"
        and summary.first in starts
        and summary.last < upto
        and (summary.last in ends or view.plan.start <= summary.last == view.end_before(summary.last + 1) - 1)
        and summary.tokens < view.view_tokens(summary.first, summary.last + 1)
    ]
    return max(fitting, key=lambda summary: (summary.last, -summary.first), default=None)


class _EntryRange:
    """Iterates over the entries of a range that are not kept, from either end; a long range is not copied."""

    def __init__(self, snapshot: Sequence[Entry], first: int, last: int, *, excluded: Container[int]) -> None:
        self._snapshot = snapshot
        self._range = range(first, last + 1)
        self._excluded = excluded

    def __iter__(self) -> Iterator[Entry]:
        return self._entries_at(self._range)

    def __reversed__(self) -> Iterator[Entry]:
        return self._entries_at(reversed(self._range))

    def _entries_at(self, positions: Iterable[int]) -> Iterator[Entry]:
        return (self._snapshot[position] for position in positions if position not in self._excluded)


def _total_tokens(covers: Iterable[CoverRange]) -> int:
    return sum(cover.tokens for cover in covers)


def _adjacent_groups(covers: Sequence[CoverRange], *, merge_kept: bool = False) -> list[list[CoverRange]]:
    """Group neighbouring covers that may become one. Unless ``merge_kept``, only the first of a group keeps entries."""
    groups: list[list[CoverRange]] = []
    for cover in covers:
        if groups and (merge_kept or not cover.kept) and groups[-1][-1].last + 1 == cover.first:
            groups[-1].append(cover)
        else:
            groups.append([cover])
    return groups


def merge_edits(edits: Iterable[Edit], more: Iterable[Edit]) -> list[Edit]:
    """Return ``edits``, and those edits of single results among ``more`` that they neither cover nor edit."""
    first, more = list(edits), list(more)
    if not more:
        return first
    edited = {edit.position for edit in first if isinstance(edit, StubResult | RemoveResult)}
    start = max((edit.last + 1 for edit in first if isinstance(edit, CoverRange)), default=0)
    single_edits = (edit for edit in more if isinstance(edit, StubResult | RemoveResult))
    return first + [edit for edit in single_edits if edit.position >= start and edit.position not in edited]


def worthwhile(edits: Iterable[StubResult]) -> list[StubResult]:
    """Return the stubs that save at least as much as a stub's first line."""
    return [edit for edit in edits if edit.was_tokens - edit.tokens >= MIN_SAVED]


def stub_edit(entry: Entry, text: str, why: Why) -> StubResult:
    """Replace a result, or what somebody said, by a text."""
    tokens = text_tokens(text) + 15  # the block around it
    return StubResult(position=entry.position, text=text, tokens=tokens, was_tokens=entry.tokens, why=why)
