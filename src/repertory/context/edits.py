"""Makes the edits of the past: what replaces a stretch or a single result."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import accumulate

from repertory.context.live import Live
from repertory.context.plan import TRAIL, CoverRange, Edit, Plan, RemoveResult, StubResult
from repertory.context.superseded import Superseded
from repertory.llm.estimate import text_tokens
from repertory.llm.messages import Text
from repertory.record.entries import Entry
from repertory.record.records import SummaryStored
from repertory.shortening.rules import ResultRules
from repertory.shortening.shaping import (
    Why,
    lines_stub,
    removal_of,
    stub_of,
    superseded_stub,
    tool_text,
    viewed_stub,
    words_asked_for,
)
from repertory.shortening.trail import TALKERS, Trail, log_head, log_of_calls, room_of

HEADROOM = 0.8  # of a bound on the view: edits to keep a bound also make room for the next prompts
LEAST_SAVED = 40  # tokens, about as many as a stub's first line has: a stub that saves less is not made
OLDER = 0.75  # of the trail: the older part, which may be reduced to its calls; the newest quarter stays as it is


class Editor:
    """Makes the edits of one run."""

    def __init__(self, trail: Trail) -> None:
        self.trail = trail
        self.superseded = Superseded()

    # --- stretches ----------------------------------------------------------------------------------------

    def foldable(self, live: Live, upto: int) -> tuple[int, int]:
        """Return the tokens that a fold would take out of view, and those of the trail that replaces them."""
        if upto <= live.plan.start or not live.policy.summaries:
            return 0, 0
        return live.before(upto) - live.covered - live.spoken_tokens(upto), self.trail.chars(upto) // 4 + 60

    def fold(self, live: Live, snapshot: Sequence[Entry], upto: int, *, users: bool = True) -> list[CoverRange]:
        """Replace everything uncovered up to a position by trail.

        Talk between user and agent stays word for word, in its place and role: a cover ends before it, and the next one
        begins with it.

        Args:
            live: The view.
            snapshot: The ledger.
            upto: A position at which no call is open.
            users: Whether talk stays; if not, all of it but the task goes into the trail too.
        """
        edits: list[CoverRange] = []
        first = live.plan.start

        def stays(entry: Entry, *, pins: bool = True) -> bool:
            if users:
                return live.stays(entry, pins=pins)
            return entry.kind == "task" or live.is_pinned(entry, pins=pins)

        while first < upto:
            last = first
            while last + 1 < upto and not (stays(snapshot[last + 1]) and not stays(snapshot[last])):
                last += 1
            log = self.trail.text(first + (snapshot[first].kind == "task"), last + 1, talk=() if users else TALKERS)
            head = log_head(snapshot[first].iteration, snapshot[last].iteration, retrieval=live.policy.retrieval)
            was = live.before(last + 1) - live.before(first)
            kept = (entry.position for entry in snapshot[first : last + 1] if stays(entry, pins=False))
            edits.append(_trail_over(snapshot, first, last, f"{head}\n{log}" if log else "", kept=kept, was_tokens=was))
            first = last + 1
        return edits

    def condense(self, live: Live, snapshot: Sequence[Entry], most: int) -> list[CoverRange]:
        """Reduce the older three quarters of the trail to its calls, so that the whole trail has about ``most`` tokens.

        The newest calls stay as far as there is room. Talk stays in its place, as long as there is room for a line
        between all of it; otherwise it is put before the calls.
        """
        older = _older(live.plan)
        size = _tokens(older)
        room = max(0, most - _tokens(_trail(live.plan)) + size)
        groups = _groups(older) if room < size else []
        if len(groups) * LEAST_SAVED > room:
            groups = _groups(older, across=True)
        edits = (self.calls_alone(live, snapshot, group, room * _tokens(group) // size) for group in groups)
        return [edit for edit in edits if edit.tokens < edit.was_tokens]

    def calls_alone(
        self, live: Live, snapshot: Sequence[Entry], covers: Sequence[CoverRange], tokens: int
    ) -> CoverRange:
        """Reduce neighbouring covers to their calls, in at most about ``tokens`` tokens, after all that they keep."""
        first, last = covers[0].first, covers[-1].last
        kept = [position for cover in covers for position in cover.kept]
        text = log_of_calls(
            _Turns(snapshot, first, last, without=frozenset(kept)),
            chars=4 * max(LEAST_SAVED, tokens),
            retrieval=live.policy.retrieval,
        )
        return _trail_over(snapshot, first, last, text, kept=kept, was_tokens=_tokens(covers))

    def swap(self, live: Live, snapshot: Sequence[Entry], summary: SummaryStored) -> CoverRange:
        """Replace a summary's range by the summary."""
        upto = summary.last + 1
        replaced = [cover for cover in live.plan.covers if summary.first <= cover.first and cover.last <= summary.last]
        end = max([cover.last + 1 for cover in replaced], default=live.plan.start)
        fresh = snapshot[max(end, summary.first) : upto]
        kept = [position for cover in replaced for position in cover.kept]
        kept += [entry.position for entry in fresh if live.stays(entry, pins=False)]
        uncovered = max(0, live.before(upto) - live.covered) if upto > live.plan.start else 0
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

    def shorten(self, live: Live, snapshot: Sequence[Entry], entry: Entry, why: Why, rules: ResultRules) -> StubResult:
        """Replace a result by a stub: what its policy asks for, or else the most telling lines."""
        asked = words_asked_for(entry, rules, self.trail.result_summary(entry))
        if asked:
            text = stub_of(entry, rules, why, asked)
        else:
            length = entry.original_length or len(tool_text(entry))
            room = rules.compact_length if why == "expired" else room_of(length, rules.importance)
            lines, of = self.trail.lines_of(entry, snapshot, room)
            text = lines_stub(entry, rules, why, lines, of)
        return stubbed(entry, text, why)

    def shorten_old(self, live: Live, snapshot: Sequence[Entry]) -> list[StubResult]:
        """Shorten all results that the model has seen, except the newest ``keep_recent``."""
        seen = [entry for entry in live.results if entry.position < live.last_turn]
        old = seen[: max(0, len(seen) - live.policy.keep_recent)]
        return worthwhile(self.shorten(live, snapshot, entry, "shortened", live.rules(entry.tool)) for entry in old)

    def supersede(self, live: Live, snapshot: Sequence[Entry], first: int) -> list[StubResult]:
        """Shorten the results from a position on whose content a newer result in view holds in full."""
        edits: list[StubResult] = []
        for entry in live.results if live.policy.stubs else ():
            newer = self.superseded.newer.get(entry.position)
            whole = newer is not None and not isinstance(live.plan.shown.get(newer), StubResult | RemoveResult)
            if newer is not None and whole and first <= entry.position < live.last_turn:
                edits.append(stubbed(entry, superseded_stub(entry, snapshot[newer]), "superseded"))
        return worthwhile(edits)

    def expire(
        self, live: Live, snapshot: Sequence[Entry], iteration: int, first: int
    ) -> list[StubResult | RemoveResult]:
        """Remove or shorten the results from a position on that have expired."""
        edits: list[StubResult | RemoveResult] = []
        for entry, rules in live.expired(iteration):
            if entry.position < first:
                continue
            if rules.expiration_mode == "remove":
                text = removal_of(entry, rules)
                was = live.plan.tokens_of(entry)
                call_id, tokens = entry.tool_call_id or "", text_tokens(text)
                edits.append(
                    RemoveResult(position=entry.position, call_id=call_id, text=text, tokens=tokens, was_tokens=was)
                )
            elif live.policy.stubs:
                edits.extend(worthwhile([self.shorten(live, snapshot, entry, "expired", rules)]))
        return edits

    def strictly(
        self, live: Live, snapshot: Sequence[Entry], iteration: int, summaries: Sequence[SummaryStored]
    ) -> list[Edit]:
        """Apply every policy, as strict rhythm does before each request."""
        policy, edits = live.policy, list[Edit]()
        edge = live.end_at_turn(iteration - policy.window)
        summary = best_summary(live, summaries, edge) if policy.summaries else None
        start = live.plan.start
        if summary is not None:
            edits.append(self.swap(live, snapshot, summary))
            start = summary.last + 1
        elif policy.summaries and live.turns_before(edge) > 2 * (policy.summarize_every or live.policy.window):
            # No summary has come for two intervals, so trail is used instead to keep the view bounded.
            edits += self.fold(live, snapshot, edge)
            start = edge
        edits = joined(edits, self.expire(live, snapshot, iteration, start))
        edits = joined(edits, self.supersede(live, snapshot, start))
        viewed: list[StubResult] = []
        recent = {entry.position for entry in live.results[-policy.keep_recent :]} if policy.keep_recent else set[int]()
        for entry in live.results if policy.stubs else ():
            rules = live.rules(entry.tool)
            old = iteration - entry.iteration > policy.window * rules.importance or entry.position not in recent
            if old and start <= entry.position < live.last_turn:
                asked = words_asked_for(entry, rules, self.trail.result_summary(entry))
                text = stub_of(entry, rules, "shortened", asked) if asked else viewed_stub(entry, rules)
                viewed.append(stubbed(entry, text, "shortened"))
        return joined(edits, worthwhile(viewed))


def _trail_over(
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


def best_summary(live: Live, summaries: Sequence[SummaryStored], upto: int) -> SummaryStored | None:
    """Return the summary that covers most, of those that leave no gap, split no call, cover nothing recent and are
    smaller than what they replace."""
    if not summaries:
        return None
    starts = {0, *(cover.last + 1 for cover in live.plan.covers)}
    ends = {cover.last for cover in live.plan.covers}
    fitting = [
        summary
        for summary in summaries
        if summary.strategy != "provider"
        and summary.first in starts
        and summary.last < upto
        and (summary.last in ends or live.plan.start <= summary.last == live.end_before(summary.last + 1) - 1)
        and summary.tokens < live.view_tokens(summary.first, summary.last + 1)
    ]
    return max(fitting, key=lambda summary: (summary.last, -summary.first), default=None)


class _Turns:
    """Iterates over the entries of a range that are not kept, from either end; a long range is not copied."""

    def __init__(self, snapshot: Sequence[Entry], first: int, last: int, *, without: Container[int]) -> None:
        self._snapshot = snapshot
        self._range = range(first, last + 1)
        self._without = without

    def __iter__(self) -> Iterator[Entry]:
        return self._at(self._range)

    def __reversed__(self) -> Iterator[Entry]:
        return self._at(reversed(self._range))

    def _at(self, positions: Iterable[int]) -> Iterator[Entry]:
        return (self._snapshot[position] for position in positions if position not in self._without)


def _trail(plan: Plan) -> list[CoverRange]:
    return [cover for cover in plan.covers if cover.strategy == TRAIL]


def _tokens(covers: Iterable[CoverRange]) -> int:
    return sum(cover.tokens for cover in covers)


def _older(plan: Plan) -> list[CoverRange]:
    """Return the older part of the trail."""
    covers = _trail(plan)
    most = OLDER * _tokens(covers)
    sizes = accumulate(cover.tokens for cover in covers)
    return [cover for cover, so_far in zip(covers, sizes, strict=True) if so_far <= most]


def _groups(covers: Sequence[CoverRange], *, across: bool = False) -> list[list[CoverRange]]:
    """Group neighbouring covers that may become one. Only the first of a group may keep entries, unless ``across``."""
    groups: list[list[CoverRange]] = []
    for cover in covers:
        if groups and (across or not cover.kept) and groups[-1][-1].last + 1 == cover.first:
            groups[-1].append(cover)
        else:
            groups.append([cover])
    return groups


def joined(edits: Iterable[Edit], more: Iterable[Edit]) -> list[Edit]:
    """Return ``edits``, and those edits of single results among ``more`` that they neither cover nor edit."""
    first, more = list(edits), list(more)
    if not more:
        return first
    taken = {edit.position for edit in first if isinstance(edit, StubResult | RemoveResult)}
    start = max((edit.last + 1 for edit in first if isinstance(edit, CoverRange)), default=0)
    left = (edit for edit in more if isinstance(edit, StubResult | RemoveResult))
    return first + [edit for edit in left if edit.position >= start and edit.position not in taken]


def worthwhile(edits: Iterable[StubResult]) -> list[StubResult]:
    """Return the stubs that save at least as much as a stub's first line."""
    return [edit for edit in edits if edit.was_tokens - edit.tokens >= LEAST_SAVED]


def stubbed(entry: Entry, text: str, why: Why) -> StubResult:
    """Replace a result by a text."""
    tokens = text_tokens(text) + 15  # the block around it
    return StubResult(position=entry.position, text=text, tokens=tokens, was_tokens=entry.tokens, why=why)
