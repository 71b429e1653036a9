"""Makes a prompt fit: tries edits step by step, the gentlest first, until it does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain, groupby
from operator import attrgetter
from typing import NamedTuple

from repertory._cutting import cut
from repertory.context.course import Course
from repertory.context.decisions import Decision, apply
from repertory.context.edits import HEADROOM, OLDER_SHARE, Editor, merge_edits, stub_edit, worthwhile
from repertory.context.plan import Edit, ExpandEntry, RemoveResult, StubResult
from repertory.context.view_index import Inputs, ViewIndex
from repertory.errors import ContextOverflow
from repertory.llm.messages import text_of
from repertory.record.records import SummaryStored
from repertory.shortening.shaping import is_said_with_media, media_in, retrieval_note, without_media

_RECOVERY_RESULTS = 3  # results that a recovery keeps (FEATURES.md C9)
_CUT_CHARS = 1_000  # what remains of a result that the model has not read yet, if nothing else helps (C9)


class _Attempt(NamedTuple):
    """Some edits, the view after them, and the tokens of its prompt."""

    edits: list[Edit]
    view: ViewIndex
    size: int


class Fitting:
    """Looks for the edits that make one prompt shorter."""

    def __init__(
        self, course: Course, now: Inputs, limit: int, *, due: Sequence[Edit], summary: SummaryStored | None
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
        turns = groupby(now.view.results, key=attrgetter("iteration"))
        self._large_turns = {turn for turn, found in turns if sum(each.tokens for each in found) > limit // 10}
        self._due = due
        self._summary = summary
        self._edge = now.view.end_at_turn(now.iteration - course.policy.window)

    def fit_gently(self, size: int) -> list[Edit]:
        """Return edits that make a prompt of ``size`` tokens fit, or shorter by a fifth of the limit: less is not worth
        writing it anew. They leave talk and the window, except large results, alone.
        """
        least_cleared = self._limit * (1 - HEADROOM)
        if self._now.calibration.factor * self._max_cleared() < least_cleared + self._now.size - size:
            return []
        best, _ = self._search(self._gentle_steps(large=True))
        enough = best.size <= self._limit * HEADROOM or size - best.size >= least_cleared
        return best.edits if enough else []

    def fit(self, bound: str) -> list[Edit]:
        """Return edits that make the prompt fit, with headroom if possible.

        Args:
            bound: What sets the limit, for the error.

        Raises:
            ContextOverflow: The prompt does not fit, even at its smallest.
        """
        best, fitting = self._search(chain(self._gentle_steps(), self._forced_steps()))
        if fitting is None:
            parts = _describe_parts(best.view, self._course.head, best.size)
            raise ContextOverflow(
                f"the prompt has {best.size:,} tokens at its smallest, {self._limit:,} may be sent"
                f"{bound and f' ({bound})'}; it has {parts}; make the largest of these smaller, or raise the limit"
            )
        return fitting.edits

    def _search(self, steps: Iterable[Sequence[Edit]]) -> tuple[_Attempt, _Attempt | None]:
        """Try steps until the prompt fits with headroom.

        Returns:
            The attempt with the smallest prompt, and the first one that fits, or fits with headroom.
        """
        best, fitting, now = _Attempt([], self._now.view, self._now.size), None, self._now
        for step in steps:
            if not (edits := merge_edits(step, self._due)):
                continue
            decision = Decision(kind="", reason="", iteration=0, position=now.view.position, edits=tuple(edits))
            after = now.view.replanned(apply(now.view.plan, decision))
            attempt = _Attempt(edits, after, now.calibration.real_tokens(self._course.head + after.tokens))
            if attempt.size <= self._limit * HEADROOM:
                return attempt, attempt
            best = min(best, attempt, key=attrgetter("size"))
            if fitting is None and attempt.size <= self._limit:
                fitting = attempt
        return best, fitting

    def _gentle_steps(self, *, large: bool = False) -> Iterator[Sequence[Edit]]:
        view, part = self._now.view, self._limit // 4
        yield []
        yield self._course.editor.supersede(view, view.plan.start)
        yield self._shorten_before(self._edge)
        if self._summary is not None:
            yield [self._editor.swap(view, self._summary), *self._shorten_before(self._edge)]
        yield self._shorten_before(self._edge, trail=part)
        if large:
            yield self._shorten_before(self._edge, trail=part, large=True)

    def _forced_steps(self) -> Iterator[Sequence[Edit]]:
        view, limit = self._now.view, self._limit
        few, last = self._first_of_newest(_RECOVERY_RESULTS), view.last_turn
        shorten, recent = self._shorten_before, self._first_of_newest(view.policy.keep_recent)
        for edge, part in ((recent, 4), (few, 4), (few, 8), (last, 8)):
            yield self._leave_out_media(shorten(edge, trail=limit // part), last)
        smallest = shorten(last, trail=limit // 16, all_trail=True)
        yield self._leave_out_media(smallest, last)
        yield self._leave_out_media([*smallest, *_cut_newest(view)], view.position)

    @cached_property
    def _editor(self) -> Editor:
        """Write to a copy of the trail: what is tried may not be used, and must not affect what is written later."""
        return Editor(self._course.editor.trail.scratch_copy(self._now.view.snapshot))

    def _shorten_before(
        self,
        edge: int,
        *,
        trail: int = 0,
        all_trail: bool = False,
        large: bool = False,
    ) -> list[Edit]:
        """Fold everything before an edge, and shorten the results there that cannot be folded.

        Args:
            edge: A position.
            trail: Tokens to which the trail is shortened; 0 leaves it as it is.
            all_trail: Whether talk goes into the trail, and its newest quarter is shortened like the older part.
            large: Whether to shorten the results of large turns after the edge too, if they were seen.
        """
        view, editor = self._now.view, self._editor
        upto = max(view.plan.start, view.end_before(edge)) if view.policy.summaries else view.plan.start
        editor.trail.write(view.snapshot, upto)
        folds = editor.condense(view, upto, trail, everything=all_trail) if trail else editor.fold(view, upto)
        edits: list[Edit] = [*folds]
        for entry in view.results if view.policy.stubs else ():
            seen = upto <= entry.position < view.last_turn
            if seen and (entry.position < edge or (large and entry.iteration in self._large_turns)):
                rules = view.rules(entry.tool)
                edits += worthwhile([editor.shorten(view, entry, "shortened", rules)])
        return edits

    def _leave_out_media(self, edits: list[Edit], upto: int) -> list[Edit]:
        """Add that what was said before a position stays without its images and documents; the task only in need."""
        view, plan = self._now.view, self._now.view.plan.edited(edits)
        said = filter(is_said_with_media, view.snapshot[:upto])
        seen = [each for each in said if plan.representation(each) == "verbatim"]
        out = [each for each in seen if each.kind != "task" or upto == view.position]
        return [*edits, *(stub_edit(each, without_media(each, view.rules(each.tool)), "cut") for each in out)]

    def _first_of_newest(self, keep: int) -> int:
        """Return the position of the first of the newest ``keep`` results that the model has seen."""
        view = self._now.view
        seen = [entry.position for entry in view.results if entry.position < view.last_turn]
        return min([*seen[-keep:], view.last_turn]) if keep else view.last_turn

    def _max_cleared(self) -> float:
        """Return the most tokens that gentle edits might clear. Cheap, since it writes no trail."""
        view, edge, editor = self._now.view, self._edge, self._course.editor
        old, _ = editor.fold_sizes(view, edge)
        cleared: float = max(0, old - editor.trail.tokens(edge))
        # An entry that was expanded under a cover leaves the view with the next cover.
        shown = view.plan.shown
        cleared += sum(shown[at].tokens for at in shown if at < view.plan.start and isinstance(shown[at], ExpandEntry))
        trail = view.covered - view.restated_tokens(view.plan.start) + editor.trail.tokens(edge)
        cleared += max(0.0, min(trail - self._limit // 4, OLDER_SHARE * trail))
        if self._summary is not None:
            cleared += view.view_tokens(self._summary.first, self._summary.last + 1)
        foldable = edge if view.policy.summaries else 0
        stubs = [entry for entry in view.results if foldable <= entry.position < view.last_turn]
        for entry in stubs if view.policy.stubs else ():
            short = entry.position < edge or entry.iteration in self._large_turns
            cleared += entry.tokens if short or entry.position in editor.superseded.newer else 0
        return cleared + sum(edit.was_tokens for edit in self._due if isinstance(edit, StubResult | RemoveResult))


def _describe_parts(view: ViewIndex, head: int, tokens: int) -> str:
    """Say what a prompt consists of, for a person who has to make it smaller."""
    stays = view.restated_tokens(view.position)
    newest = view.tokens - view.tokens_before(view.last_turn)
    newest -= view.kept_tokens(view.position) - view.kept_tokens(view.last_turn)
    parts = {
        "of instructions and tools": head,
        "of the task, what was said and what is pinned": stays,
        "of the newest turn": newest,
        "of older turns and what stands for them": view.tokens - stays - newest,
    }
    share = tokens / max(1, head + view.tokens)
    return ", ".join(f"{round(part * share):,} {name}" for name, part in parts.items())


def _cut_newest(view: ViewIndex) -> list[Edit]:
    """Cut the newest results, which the model has not seen yet, and leave out their images and documents."""
    edits: list[Edit] = []
    for entry in [each for each in view.results if each.position >= view.last_turn]:
        text, media = text_of(entry.content), media_in(entry)
        short = cut(text, _CUT_CHARS)
        if short is not None or media:
            again = "; ask for less at once"  # the same retrieval would be cut again
            note = f", without {media}" if media else ""
            note += again if entry.retrieved is not None else retrieval_note(entry, view.rules(entry.tool))
            shown = text if short is None else short.text
            edits.append(stub_edit(entry, f"{shown}\n[shortened because the context is full{note}]".lstrip(), "cut"))
    return edits
