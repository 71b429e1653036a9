"""Makes a prompt fit: tries edits step by step, the gentlest first, until it does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

import msgspec

from repertory._cutting import cut
from repertory.context.course import Course, Moment
from repertory.context.decisions import Decision, apply
from repertory.context.edits import HEADROOM, LEAST_SAVED, OLDER, Editor, joined, stubbed, worthwhile
from repertory.context.live import Live
from repertory.context.plan import Edit, RemoveResult, StubResult
from repertory.errors import ContextOverflow
from repertory.llm.messages import text_of
from repertory.record.records import SummaryStored
from repertory.shortening.shaping import whole_of
from repertory.shortening.trail import Trail

_FEW = 3  # results that a recovery keeps (FEATURES.md C9)
_CUT_CHARS = 1_000  # what remains of a result that the model has not read yet, if nothing else helps (C9)


class _Tried(NamedTuple):
    """Some edits, the view after them, and the tokens of its prompt."""

    edits: list[Edit]
    view: Live
    size: int


_SIZE = attrgetter("size")


class Fitting:
    """Looks for the edits that make one prompt shorter."""

    def __init__(
        self, course: Course, now: Moment, limit: int, *, due: Sequence[Edit] = (), summary: SummaryStored | None = None
    ) -> None:
        """Prepare to look.

        Args:
            course: The run.
            now: The request.
            limit: Most tokens of its prompt.
            due: Edits of single results that are made in any case.
            summary: A summary that may replace the oldest trail before that is shortened; None for nothing.
        """
        self._course = course
        self._now = now
        self._limit = limit
        self._due = due
        self._summary = summary
        self._edge = now.live.end_at_turn(now.iteration - course.policy.window)

    def gently(self) -> list[Edit]:
        """Return edits that make the prompt fit, or nearly, and leave talk and the window, except large results, alone.

        Each edit rewrites the prompt, so edits are only worth it if they make room for a while: a fifth of the limit.
        """
        least_cleared = self._limit * (1 - HEADROOM)
        if self._now.calibration.factor * self._most_cleared() < least_cleared:
            return []
        best = _Tried([], self._now.live, self._now.size)
        for tried in self._try(self._gentle(Editor(self._ahead()), large=True)):
            if tried.size <= self._limit * HEADROOM:
                return tried.edits
            best = min(best, tried, key=_SIZE)
        return best.edits if self._now.size - best.size >= least_cleared else []

    def whatever_it_takes(self, bound: str) -> list[Edit]:
        """Return edits that make the prompt fit, with headroom if possible.

        Args:
            bound: What sets the limit, for the error.

        Raises:
            ContextOverflow: The prompt does not fit, even at its smallest.
        """
        editor, fitting = Editor(self._ahead()), list[Edit]()
        best = _Tried([], self._now.live, self._now.size)
        for tried in self._try(chain(self._gentle(editor), self._forceful(editor))):
            if tried.size <= self._limit * HEADROOM:
                return tried.edits
            best = min(best, tried, key=_SIZE)
            if tried.size <= self._limit:
                fitting = fitting or tried.edits
        if not fitting:
            parts = _parts(best.view, self._course.head, best.size)
            raise ContextOverflow(
                f"the prompt has {best.size:,} tokens at its smallest, {self._limit:,} may be sent"
                f"{bound and f' ({bound})'}; it has {parts}; make the largest of these smaller, or raise the limit"
            )
        return fitting

    def _gentle(self, editor: Editor, *, large: bool = False) -> Iterator[Sequence[Edit]]:
        live, snapshot, part = self._now.live, self._now.snapshot, self._limit // 4
        yield []
        yield self._course.editor.supersede(live, snapshot, live.plan.start)
        yield self._behind(editor, self._edge)
        if self._summary is not None:
            yield [editor.swap(live, snapshot, self._summary), *self._behind(editor, self._edge)]
        yield self._behind(editor, self._edge, trail=part)
        if large:
            yield self._behind(editor, self._edge, trail=part, large=True)

    def _forceful(self, editor: Editor) -> Iterator[Sequence[Edit]]:
        live, limit = self._now.live, self._limit
        few, last = self._before_newest(_FEW), live.last_turn
        yield self._behind(editor, self._before_newest(live.policy.keep_recent), trail=limit // 4)
        yield self._behind(editor, few, trail=limit // 4)
        yield self._behind(editor, few, trail=limit // 8, all_of_it=True)
        yield self._behind(editor, last, trail=limit // 8, all_of_it=True)
        least = self._behind(editor, last, trail=limit // 16, all_of_it=True, users=False)
        yield least
        yield [*least, *_cut_newest(live)]

    def _try(self, steps: Iterable[Sequence[Edit]]) -> Iterator[_Tried]:
        live, snapshot = self._now.live, self._now.snapshot
        for step in steps:
            if edits := joined(step, self._due):
                plain = Decision(kind="", reason="", iteration=0, position=len(snapshot), edits=tuple(edits))
                view = Live(apply(live.plan, plain), live.policy, snapshot, like=live)
                yield _Tried(edits, view, self._now.calibration.real_tokens(self._course.head + view.tokens))

    def _ahead(self) -> Trail:
        """Return a copy of the trail: what is tried here may not be used, and must not affect what is written later."""
        return self._course.editor.trail.ahead(self._now.snapshot)

    def _behind(
        self,
        editor: Editor,
        edge: int,
        *,
        trail: int = 0,
        all_of_it: bool = False,
        large: bool = False,
        users: bool = True,
    ) -> list[Edit]:
        """Fold everything before an edge, and shorten the results there that cannot be folded.

        Args:
            editor: The editor whose trail is written.
            edge: A position.
            trail: Tokens to which the older trail is shortened; 0 leaves it as it is.
            all_of_it: Whether the new trail is shortened to that as well, as a last resort.
            large: Whether to shorten seen results after the edge too, if they have more than a tenth of the limit.
            users: Whether talk stays; if not, it goes into the trail.
        """
        live, snapshot = self._now.live, self._now.snapshot
        edits: list[Edit] = [*editor.condense(live, snapshot, trail)] if trail else []
        upto = live.plan.start
        if live.policy.summaries:
            upto = max(upto, live.end_before(edge))
            editor.trail.write(snapshot, upto)
            folds = editor.fold(live, snapshot, upto, users=users)
            most = max(LEAST_SAVED, trail // max(1, len(folds)))
            for fold in folds:
                if all_of_it and fold.tokens > most:
                    calls = editor.calls_alone(live, snapshot, [fold], most)
                    edits.append(msgspec.structs.replace(calls, was_tokens=fold.was_tokens))
                else:
                    edits.append(fold)
        for entry in live.results if live.policy.stubs else ():
            seen = upto <= entry.position < live.last_turn
            if seen and (entry.position < edge or (large and self._is_large(entry.tokens))):
                rules = live.rules(entry.tool)
                edits += worthwhile([editor.shorten(live, snapshot, entry, "shortened", rules)])
        return edits

    def _is_large(self, tokens: int) -> bool:
        return tokens > self._limit // 10

    def _before_newest(self, keep: int) -> int:
        """Return the position of the first of the newest ``keep`` results that the model has seen."""
        live = self._now.live
        seen = [entry.position for entry in live.results if entry.position < live.last_turn]
        return min([*seen[-keep:], live.last_turn]) if keep else live.last_turn

    def _most_cleared(self) -> float:
        """Return the most tokens that gentle edits might clear. Cheap, since it writes no trail."""
        live, edge, editor = self._now.live, self._edge, self._course.editor
        old, _ = editor.foldable(live, edge)
        most: float = max(0, old - editor.trail.chars(edge) // 4)
        # An entry that was expanded under a cover leaves the view with the next cover.
        most += sum(shown.tokens for at, shown in live.plan.shown.items() if at < live.plan.start)
        covers = live.covered - live.restated(live.plan.start)
        most += max(0.0, min(covers - self._limit // 4, OLDER * covers))
        if self._summary is not None:
            most += live.view_tokens(self._summary.first, self._summary.last + 1)
        foldable = edge if live.policy.summaries else 0
        stubs = [entry for entry in live.results if foldable <= entry.position < live.last_turn]
        for entry in stubs if live.policy.stubs else ():
            short = entry.position < edge or self._is_large(entry.tokens) or entry.position in editor.superseded.newer
            most += entry.tokens if short else 0
        return most + sum(edit.was_tokens for edit in self._due if isinstance(edit, StubResult | RemoveResult))


def _parts(view: Live, head: int, tokens: int) -> str:
    """Say what a prompt consists of, for a person who has to make it smaller."""
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
    """Cut the newest results, which the model has not seen yet."""
    edits: list[Edit] = []
    for entry in live.results:
        found = cut(text_of(entry.content), _CUT_CHARS) if entry.position >= live.last_turn else None
        if found is not None:
            how = whole_of(entry, live.rules(entry.tool))
            edits.append(stubbed(entry, f"{found.text}\n[shortened because the context is full{how}]", "cut"))
    return edits
