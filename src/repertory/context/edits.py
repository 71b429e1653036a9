"""Edits of the past: what stands for a stretch or for one result from now on, and what makes a prompt fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate

import msgspec

from repertory._cutting import cut
from repertory.context.decisions import Decision, apply
from repertory.context.live import Live
from repertory.context.plan import TRAIL, CoverRange, DropThinking, Edit, Plan, RemoveResult, StubResult
from repertory.context.superseded import Superseded
from repertory.context.tokens import Calibration, shown_tokens, text_tokens
from repertory.errors import ContextOverflow
from repertory.llm.messages import Text, text_of
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
    whole_of,
    words_asked_for,
)
from repertory.shortening.trail import TALKERS, Trail, bounded_trail, log_head, log_of_calls, room_of

_LEAST_SAVED = 40  # tokens, about those of a stub's first line: a stub that saves less is not made
_FEW = 3  # results that a recovery keeps (FEATURES.md C9)
_CUT_CHARS = 1_000  # what remains of a result that nobody has read yet, when nothing else helps (C9)
_HEADROOM = 0.8  # of a limit, so that the next prompts fit too


class Editor:
    """Makes the edits of one run."""

    def __init__(self, trail: Trail) -> None:
        self.trail = trail
        self.superseded = Superseded()
        self._covers: tuple[CoverRange, ...] = ()
        self._condensable = 0  # tokens of these covers that may become shorter

    # --- stretches ----------------------------------------------------------------------------------------

    def foldable(self, live: Live, upto: int) -> tuple[int, int]:
        """Tokens that a fold would take out of view, and those of the trail that takes their place."""
        if upto <= live.plan.start or not live.policy.summaries:
            return 0, 0
        return live.before(upto) - live.covered - live.spoken_tokens(upto), self.trail.chars(upto) // 4 + 60

    def fold(self, live: Live, snapshot: Sequence[Entry], upto: int, *, users: bool = True) -> list[CoverRange]:
        """Let the trail stand for everything uncovered up to a position.

        What was said between user and agent stays word for word, in its place and its role: a cover begins with it, and
        a new one begins behind it.

        Args:
            live: The view.
            snapshot: The ledger.
            upto: A position at which no call is open.
            users: Whether what was said stays; else it goes into the trail too, but for the task.
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
            covered = snapshot[first : last + 1]
            log = self.trail.text(first + (snapshot[first].kind == "task"), last + 1, talk=() if users else TALKERS)
            span = covered[0].iteration, covered[-1].iteration
            head = log_head(*span, retrieval=live.policy.retrieval)
            text = f"{head}\n{log}" if log else ""
            edits.append(
                CoverRange(
                    first=first,
                    last=last,
                    content=(Text(text),) if text else (),
                    tokens=text_tokens(text) if text else 0,
                    was_tokens=live.before(last + 1) - live.before(first),
                    kept=tuple(entry.position for entry in covered if stays(entry, pins=False)),
                    strategy=TRAIL,
                    iterations=span,
                )
            )
            first = last + 1
        return edits

    def condense(self, live: Live, snapshot: Sequence[Entry], most: int) -> list[CoverRange]:
        """Leave of the older three quarters of the trail its calls, so that all of it has about so many tokens.

        The newest of them stay as far as there is room. What was said stays.
        """
        older = _older(live.plan)
        size = _tokens(older)
        room = max(0, most - _tokens(_trail(live.plan)) + size)
        edits: list[CoverRange] = []
        for group in _groups(older) if room < size else ():
            first, last, was = group[0].first, group[-1].last, _tokens(group)
            text = log_of_calls(
                [entry for entry in snapshot[first : last + 1] if entry.role == "assistant"],
                chars=4 * max(_LEAST_SAVED, room * was // size),
                retrieval=live.policy.retrieval,
            )
            edit = CoverRange(
                first=first,
                last=last,
                content=(Text(text),) if text else (),
                tokens=text_tokens(text) if text else 0,
                was_tokens=was,
                kept=group[0].kept,
                strategy=TRAIL,
                iterations=(snapshot[first].iteration, snapshot[last].iteration),
            )
            edits += [edit] if edit.tokens < was else []
        return edits

    def swap(self, live: Live, snapshot: Sequence[Entry], summary: SummaryStored) -> CoverRange:
        """Let a summary stand for its range."""
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
        """Let a stub stand for a result: what its policy asks for, else the lines that tell most."""
        asked = words_asked_for(entry, rules, self.trail.result_summary(entry))
        if asked:
            text = stub_of(entry, rules, why, asked)
        else:
            length = entry.original_length or len(tool_text(entry))
            room = rules.compact_length if why == "expired" else room_of(length, rules.importance)
            lines, of = self.trail.lines_of(entry, snapshot, room)
            text = lines_stub(entry, rules, why, lines, of)
        return _stubbed(entry, text, why)

    def shorten_old(self, live: Live, snapshot: Sequence[Entry], keep: int | None = None) -> list[StubResult]:
        """Shorten all results that the model has seen but the newest ``keep``; None for what the policy says."""
        seen = [entry for entry in live.results if entry.position < live.last_turn]
        old = seen[: max(0, len(seen) - (live.policy.keep_recent if keep is None else keep))]
        stubs = (self.shorten(live, snapshot, entry, "shortened", live.rules(entry.tool)) for entry in old)
        return worthwhile(stubs)

    def supersede(self, live: Live, snapshot: Sequence[Entry], first: int) -> list[StubResult]:
        """Shorten the results from a position on that a newer one holds in full: what they gave stands there."""
        edits: list[StubResult] = []
        for entry in live.results if live.policy.stubs else ():
            newer = self.superseded.newer.get(entry.position)
            whole = newer is not None and not isinstance(live.plan.shown.get(newer), StubResult | RemoveResult)
            if newer is not None and whole and first <= entry.position < live.last_turn:
                edits.append(_stubbed(entry, superseded_stub(entry, snapshot[newer]), "superseded"))
        return worthwhile(edits)

    def expire(
        self, live: Live, snapshot: Sequence[Entry], iteration: int, first: int
    ) -> list[StubResult | RemoveResult]:
        """Remove or shorten the results from a position on whose time is up."""
        edits: list[StubResult | RemoveResult] = []
        for entry, rules in live.expired(iteration):
            if entry.position < first:
                continue
            if rules.expiration_mode == "remove":
                text = removal_of(entry, rules)
                was = shown_tokens(entry, live.plan)
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
        """Every policy at once, as the documents say: what strict rhythm does before each request."""
        policy, edits = live.policy, list[Edit]()
        edge = live.end_at_turn(iteration - policy.window)
        summary = best_summary(live, summaries, edge) if policy.summaries else None
        start = live.plan.start
        if summary is not None:
            edits.append(self.swap(live, snapshot, summary))
            start = summary.last + 1
        elif policy.summaries and live.turns_before(edge) > 2 * (policy.summarize_every or live.policy.window):
            # No summary has come for two intervals: the program's own stands in, so that the window stays one.
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
                viewed.append(_stubbed(entry, text, "shortened"))
        return joined(edits, worthwhile(viewed))

    # --- making it fit ------------------------------------------------------------------------------------

    def make_fit(
        self,
        live: Live,
        snapshot: Sequence[Entry],
        *,
        head: int,
        calibration: Calibration,
        limit: int,
        bound: str,
        edge: int,
        summary: SummaryStored | None = None,
        due: Sequence[Edit] = (),
        gently: bool = False,
    ) -> list[Edit]:
        """Find the gentlest edits after which the prompt fits, with headroom where that can be had.

        Args:
            live: The view.
            snapshot: The ledger.
            head: Estimate of system text and tools.
            calibration: Makes tokens of estimates.
            limit: Tokens that the prompt may have.
            bound: What sets that limit, for the error.
            edge: Where the window begins.
            summary: What may take the place of the oldest trail before that is made shorter; None for nothing.
            due: Edits of single results that are made in any case.
            gently: Whether the window and what users said stay in any case: nothing is raised, and edits that would not
                clear a fifth of the limit are not made.

        Raises:
            ContextOverflow: Even at its smallest it does not fit.
        """
        least_cleared = limit * (1 - _HEADROOM)
        if gently and calibration.factor * self._most_cleared(live, limit, edge, summary, due) < least_cleared:
            return []
        # What is written of the trail here may not be used: it must not stand in the way of what is written later.
        behind = partial(Editor(self.trail.ahead(snapshot))._behind, live, snapshot)
        recent, few = self._before_newest(live, live.policy.keep_recent), self._before_newest(live, _FEW)
        steps: list[Callable[[], list[Edit]]] = [
            list,
            lambda: list(self.supersede(live, snapshot, live.plan.start)),
            lambda: behind(edge),
            lambda: [self.swap(live, snapshot, summary), *behind(edge)] if summary is not None else [],
            lambda: behind(edge, condense_to=limit // 4),
        ]
        if gently:
            steps.append(lambda: behind(edge, condense_to=limit // 4, over=limit // 10))
        else:
            steps += [
                lambda: behind(recent, condense_to=limit // 4),
                lambda: behind(few, condense_to=limit // 4),
                lambda: behind(few, condense_to=limit // 8, bounded=True),
                lambda: behind(live.last_turn, condense_to=limit // 8, bounded=True),
                lambda: behind(live.last_turn, condense_to=limit // 16, bounded=True, users=False),
                lambda: [
                    *behind(live.last_turn, condense_to=limit // 16, bounded=True, users=False),
                    *_cut_newest(live),
                ],
            ]
        fitting: list[Edit] | None = None
        whole = calibration.real_tokens(head + live.tokens)
        smallest, least, best = whole, live, list[Edit]()
        for step in steps:
            edits = joined(step(), due)
            if not edits:
                continue
            after = _after(live, snapshot, edits)
            size = calibration.real_tokens(head + after.tokens)
            if size < smallest:
                smallest, least, best = size, after, edits
            if size <= limit * _HEADROOM:
                return edits
            if size <= limit and fitting is None:
                fitting = edits
        if gently:
            # Each edit rewrites the prompt, so only one that gives room for a while is worth it.
            return best if whole - smallest >= least_cleared else []
        if fitting is None:
            raise ContextOverflow(
                f"the prompt has {smallest:,} tokens at its smallest, {limit:,} may be sent{bound and f' ({bound})'}; "
                f"it has {_parts(least, head, smallest)}; make the largest of these smaller, or raise the limit"
            )
        return fitting

    def _most_cleared(
        self, live: Live, limit: int, edge: int, summary: SummaryStored | None, due: Sequence[Edit]
    ) -> float:
        """Tokens that gentle edits might clear, at most. Nothing is written for it, so it may be asked every time."""
        old, _ = self.foldable(live, edge)
        most = max(0, old - self.trail.chars(edge) // 4)
        # What was expanded under a cover goes with the next one.
        most += sum(shown.tokens for at, shown in live.plan.shown.items() if at < live.plan.start)
        covers = live.plan.covers
        if covers is not self._covers:  # there may be thousands, and few requests change them
            self._covers = covers
            too_much = _tokens(_trail(live.plan)) - limit // 4
            self._condensable = min(too_much, _tokens(_older(live.plan))) if too_much > 0 else 0
        most += self._condensable
        if summary is not None:
            most += live.view_tokens(summary.first, summary.last + 1)
        foldable = edge if live.policy.summaries else 0
        stubs = [entry for entry in live.results if foldable <= entry.position < live.last_turn]
        for entry in stubs if live.policy.stubs else ():
            large = entry.position < edge or entry.tokens > limit // 10 or entry.position in self.superseded.newer
            most += entry.tokens if large else 0
        return most + sum(edit.was_tokens for edit in due if isinstance(edit, StubResult | RemoveResult))

    @staticmethod
    def _before_newest(live: Live, keep: int) -> int:
        """Where the newest results begin that the model has seen."""
        seen = [entry.position for entry in live.results if entry.position < live.last_turn]
        return min([*seen[-keep:], live.last_turn]) if keep else live.last_turn

    def _behind(
        self,
        live: Live,
        snapshot: Sequence[Entry],
        edge: int,
        *,
        condense_to: int | None = None,
        over: int | None = None,
        bounded: bool = False,
        users: bool = True,
    ) -> list[Edit]:
        """Fold everything in front of an edge; shorten the trail, and seen results of more than so many tokens, too.

        ``bounded`` shortens the new trail likewise, where nothing else is left that could be shorter.
        """
        edits: list[Edit] = []
        if condense_to is not None:
            edits += self.condense(live, snapshot, condense_to)
        upto = live.plan.start
        if live.policy.summaries:
            upto = max(upto, live.end_before(edge))
            self.trail.write(snapshot, upto)
            folds = self.fold(live, snapshot, upto, users=users)
            if condense_to is not None and bounded:
                most = max(_LEAST_SAVED, condense_to // max(1, len(folds)))
                folds = [_bounded(fold, live, snapshot, most) for fold in folds]
            edits += folds
        for entry in live.results if live.policy.stubs else ():
            seen = upto <= entry.position < live.last_turn
            if seen and (entry.position < edge or (over is not None and entry.tokens > over)):
                rules = live.rules(entry.tool)
                edits += worthwhile([self.shorten(live, snapshot, entry, "shortened", rules)])
        return edits


def _bounded(cover: CoverRange, live: Live, snapshot: Sequence[Entry], tokens: int) -> CoverRange:
    """A new stretch of trail in so many tokens, if it is longer."""
    if cover.tokens <= tokens:
        return cover
    covered = [entry for entry in snapshot[cover.first : cover.last + 1] if entry.position not in cover.kept]
    text = bounded_trail(covered, tokens=tokens, retrieval=live.policy.retrieval)
    return msgspec.structs.replace(cover, content=(Text(text),), tokens=text_tokens(text))


def best_summary(live: Live, summaries: Sequence[SummaryStored], upto: int) -> SummaryStored | None:
    """The summary that covers most, of those that fit: no gap, no split call, nothing recent, and smaller."""
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


def _trail(plan: Plan) -> list[CoverRange]:
    return [cover for cover in plan.covers if cover.strategy == TRAIL]


def _tokens(covers: Iterable[CoverRange]) -> int:
    return sum(cover.tokens for cover in covers)


def _older(plan: Plan) -> list[CoverRange]:
    """The older three quarters of the trail."""
    covers = _trail(plan)
    most = _tokens(covers) * 3 // 4
    sizes = accumulate(cover.tokens for cover in covers)
    return [cover for cover, so_far in zip(covers, sizes, strict=True) if so_far <= most]


def _groups(covers: Sequence[CoverRange]) -> list[list[CoverRange]]:
    """Neighbouring covers that may become one: only the first of them keeps something in view."""
    groups: list[list[CoverRange]] = []
    for cover in covers:
        if groups and not cover.kept and groups[-1][-1].last + 1 == cover.first:
            groups[-1].append(cover)
        else:
            groups.append([cover])
    return groups


def drop_thinking(live: Live) -> DropThinking:
    """Show no reasoning of what there is so far: an edit of the past leaves it bound to another history."""
    return DropThinking(position=live.position)


def joined(edits: Iterable[Edit], more: Iterable[Edit]) -> list[Edit]:
    """Edits, and those of single results among others that they leave possible: neither covered nor edited by them."""
    first = list(edits)
    taken = {edit.position for edit in first if isinstance(edit, StubResult | RemoveResult)}
    start = max((edit.last + 1 for edit in first if isinstance(edit, CoverRange)), default=0)
    left = (edit for edit in more if isinstance(edit, StubResult | RemoveResult))
    return first + [edit for edit in left if edit.position >= start and edit.position not in taken]


def worthwhile(edits: Iterable[StubResult]) -> list[StubResult]:
    """Those stubs that save more than a stub's first line."""
    return [edit for edit in edits if edit.was_tokens - edit.tokens >= _LEAST_SAVED]


def _stubbed(entry: Entry, text: str, why: Why) -> StubResult:
    tokens = text_tokens(text) + 15  # the block around it
    return StubResult(position=entry.position, text=text, tokens=tokens, was_tokens=entry.tokens, why=why)


def _after(live: Live, snapshot: Sequence[Entry], edits: list[Edit]) -> Live:
    decision = Decision(kind="", reason="", iteration=0, position=len(snapshot), edits=tuple(edits))
    return Live(apply(live.plan, decision), live.policy, snapshot, like=live)


def _parts(view: Live, head: int, tokens: int) -> str:
    """What a prompt of so many tokens consists of, for a person who has to make it smaller."""
    stays = view.restated(view.position)
    newest = view.tokens - view.before(view.last_turn)
    newest -= view.spoken_tokens(view.position) - view.spoken_tokens(view.last_turn)
    parts = {
        "of instructions and tools": head,
        "of the task, what was said and what is pinned": stays,
        "of the newest turn": newest,
        "of older turns and what stands for them": view.tokens - stays - newest,
    }
    share = tokens / max(1, head + view.tokens)
    return ", ".join(f"{round(part * share):,} {name}" for name, part in parts.items())


def _cut_newest(live: Live) -> list[Edit]:
    """Cut the results that came last, which no model has seen yet."""
    edits: list[Edit] = []
    for entry in live.results:
        found = cut(text_of(entry.content), _CUT_CHARS) if entry.position >= live.last_turn else None
        if found is not None:
            how = whole_of(entry, live.rules(entry.tool))
            edits.append(_stubbed(entry, f"{found.text}\n[shortened because the context is full{how}]", "cut"))
    return edits
