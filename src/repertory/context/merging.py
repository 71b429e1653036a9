"""Merges: digests that have grown long become a shorter one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from repertory.context.ageing import OWN, Ageing, lines_of
from repertory.context.decisions import CoverRange
from repertory.context.folding import digest_content
from repertory.context.plan import Cover, Plan
from repertory.context.tokens import text_tokens
from repertory.context.vocabulary import Standing
from repertory.record.entries import Entry

_SHARE = 0.5  # of the digests' tokens that is left
_LEAST = 18_000  # tokens of digests that are merged
_PIECE = 2_000  # characters shortened at a time


class Merge:
    """The merge of the digests at the end of the covers: the newest lines stay, of older ones the names that the agent
    has used, in one digest behind what users said meanwhile.

    What it says follows from the digests and the record alone, so it can be made ahead, piece by piece.

    Attributes:
        covers: The digests.
        newer: Tokens of digests behind them, which stay as they are.
        saves: Tokens that it takes out of view.
        standing: The names that stand in covers up to its end afterwards, once ``edits`` has been asked for.
    """

    def __init__(self, before: Sequence[Cover], covers: Sequence[Cover], snapshot: Sequence[Entry], ageing: Ageing):
        """Plan to merge digests that stand behind other covers."""
        tokens = sum(cover.tokens for cover in covers)
        self.covers = covers
        self.newer = 0
        self.saves = (1.0 - _SHARE) * tokens
        self.standing = Standing()
        self._room = int(tokens * _SHARE) * 4
        self._ends = sum(cover.tokens * snapshot[cover.last].iteration for cover in covers)
        self._tokens = tokens
        self._vocabulary = ageing.vocabulary
        self._retrieval = ageing.retrieval
        self._as_of = ageing.known_by(snapshot[covers[-1].last])
        self._groups: list[list[Cover]] = []
        for cover in covers:
            if cover.kept or not self._groups:
                self._groups.append([])
            self._groups[-1].append(cover)
        self._kept: list[list[str]] = [[] for _ in self._groups]
        self._whole_from = 0  # the first group of which only whole lines stay
        self._pieces = self._shorten(before)
        self._edits: list[CoverRange] | None = None

    def owed(self, iteration: int, read: float) -> float:
        """What calls have spent on reading what it takes out of view."""
        return read * (1.0 - _SHARE) * (iteration * self._tokens - self._ends)

    def step(self) -> bool:
        """Make a piece of it; whether there was any left."""
        return next(self._pieces, self) is not self

    def edits(self, snapshot: Sequence[Entry]) -> list[CoverRange]:
        """Put merged digests in the place of those that there are; what users said still stands between them."""
        if self._edits is not None:
            return self._edits
        while self.step():
            pass
        self._edits = []
        old = self._whole_from
        older = [cover for group in self._groups[:old] for cover in group]
        lines_of_older = [line for lines in self._kept[:old][::-1] for line in lines]
        groups = [*([older] if older else []), *self._groups[old:]]
        kept = [*([lines_of_older] if older else []), *self._kept[old:]]
        for group, lines in zip(groups, kept, strict=True):
            first, last = group[0].first, group[-1].last
            span = snapshot[first].iteration, snapshot[last].iteration
            content = digest_content(lines[::-1], *span, retrieval=self._retrieval)
            self._edits.append(
                CoverRange(
                    first=first,
                    last=last,
                    content=content,
                    tokens=sum(text_tokens(block.text) for block in content),
                    was_tokens=sum(cover.tokens for cover in group),
                    kept=tuple(position for cover in group for position in cover.kept),
                    strategy="merged",
                    replaced_tokens=sum(cover.replaced_tokens for cover in group),
                )
            )
        return self._edits

    def is_in(self, plan: Plan) -> bool:
        """Whether a plan shows it."""
        if not self._edits:
            return False
        newest = self._edits[-1]  # all of them are taken together or not at all
        return any(cover.last == newest.last and cover.content is newest.content for cover in plan.covers)

    def _shorten(self, before: Sequence[Cover]) -> Iterator[None]:
        """Keep what fits of the lines, the newest first."""
        for cover in before:
            self.standing.put(*lines_of(cover))
        room, whole, read = self._room, self._room // 2, 0  # half of the room is for lines that stay as they are
        for at in reversed(range(len(self._groups))):
            kept = self._kept[at]
            for cover in reversed(self._groups[at]):
                for line in reversed(lines_of(cover)):
                    read += len(line)
                    if len(line) < whole:
                        whole -= len(line) + 1
                    else:
                        whole = 0
                        self._whole_from = max(self._whole_from, at + 1)
                        line = " ".join(self._vocabulary.used_in(line, self._as_of))  # noqa: PLW2901
                    if line and len(line) < room:
                        kept.append(line)
                        self.standing.put(line)
                        room -= len(line) + 1
                    if read > _PIECE:
                        read = 0
                        yield


def merge_of(plan: Plan, snapshot: Sequence[Entry], ageing: Ageing, *, like: Merge | None = None) -> Merge | None:
    """The merge that a plan's digests are long enough for; None where they are not.

    Digests that come later are left to the next merge, so that there is time to prepare this one.

    Args:
        plan: The plan.
        snapshot: The record.
        ageing: Of the run.
        like: The merge of an earlier plan, which goes on if it is still the same.
    """
    own = len(plan.covers)
    while own and plan.covers[own - 1].strategy in OWN:
        own -= 1
    total, upto = 0, own
    for cover in plan.covers[own:]:
        if total >= _LEAST:
            break
        total += cover.tokens
        upto += 1
    if total < _LEAST:
        return None
    covers = plan.covers[own:upto]
    same = like is not None and len(like.covers) == len(covers) and like.covers[-1] is covers[-1]
    merge = like if like is not None and same else Merge(plan.covers[:own], covers, snapshot, ageing)
    merge.newer = sum(cover.tokens for cover in plan.covers[upto:])
    return merge
