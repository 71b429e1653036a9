"""Folds: the old part of the view becomes a digest, and digests that have grown long become a shorter one."""

from __future__ import annotations

from collections.abc import Sequence

from repertory.context.ageing import OWN, Ageing, lines_of
from repertory.context.decisions import CoverRange
from repertory.context.live import Live, is_spoken
from repertory.context.plan import Cover
from repertory.context.tokens import text_tokens
from repertory.context.vocabulary import Vocabulary
from repertory.llm.messages import Text
from repertory.memory.entries import Entry

MERGED_SHARE = 0.5
_MERGED_FROM = 18_000  # tokens of digests that are merged


def fold_edits(ageing: Ageing, live: Live, snapshot: Sequence[Entry], first: int, upto: int) -> list[CoverRange]:
    """Cover entries with their lines. What users said stands between them, word for word."""
    edits: list[CoverRange] = []

    def spoken(entry: Entry) -> bool:
        return is_spoken(entry, live.policy)

    while first < upto:
        last = first
        while last + 1 < upto and not (spoken(snapshot[last + 1]) and not spoken(snapshot[last])):
            last += 1
        lines = [line for line in ageing.lines(first, last + 1) if line]
        content = _content(lines, snapshot[first].iteration, snapshot[last].iteration)
        edits.append(
            CoverRange(
                first=first,
                last=last,
                content=content,
                tokens=sum(text_tokens(block.text) for block in content),
                was_tokens=live.before(last + 1) - live.before(first),
                kept=tuple(e.position for e in snapshot[first : last + 1] if spoken(e) or live.rules(e.tool).pin),
                strategy="digest",
                replaced_tokens=sum(entry.tokens for entry in snapshot[first : last + 1]),
            )
        )
        first = last + 1
    return edits


def mergeable(live: Live) -> list[Cover]:
    """The digests at the end of the covers, where they are long enough to be merged."""
    found: list[Cover] = []
    for cover in reversed(live.plan.covers):
        if cover.strategy not in OWN:
            break
        found.append(cover)
    return found[::-1] if sum(cover.tokens for cover in found) >= _MERGED_FROM else []


def merge_edits(
    covers: Sequence[Cover], snapshot: Sequence[Entry], vocabulary: Vocabulary, as_of: int
) -> list[CoverRange]:
    """Make digests shorter: the newest lines stay, of older ones the names that the agent has used."""
    groups: list[list[Cover]] = []
    for cover in covers:
        if cover.kept or not groups:
            groups.append([])
        groups[-1].append(cover)
    lines = [(at, line) for at, group in enumerate(groups) for cover in group for line in lines_of(cover)]
    kept: list[list[str]] = [[] for _ in groups]
    for at, line in _shortened(lines, int(sum(cover.tokens for cover in covers) * MERGED_SHARE) * 4, vocabulary, as_of):
        kept[at].append(line)
    edits: list[CoverRange] = []
    for group, short in zip(groups, kept, strict=True):
        first, last = group[0].first, group[-1].last
        content = _content(short[::-1], snapshot[first].iteration, snapshot[last].iteration)
        edits.append(
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
    return edits


def _shortened(
    lines: Sequence[tuple[int, str]], room: int, vocabulary: Vocabulary, as_of: int
) -> list[tuple[int, str]]:
    """What fits of the lines, the newest first."""
    out: list[tuple[int, str]] = []
    whole = room // 2  # for lines that stay as they are
    for at, line in reversed(lines):
        if len(line) < whole:
            whole -= len(line) + 1
        else:
            whole = 0
            line = " ".join(vocabulary.used_in(line, as_of))  # noqa: PLW2901
        if line and len(line) < room:
            out.append((at, line))
            room -= len(line) + 1
    return out


def _content(lines: Sequence[str], first: int, last: int) -> tuple[Text, ...]:
    if not lines:
        return ()
    span = f"iterations {max(1, first)}–{last}" if last else "the beginning"
    return (Text("\n".join([f"[digest of {span}; context_retrieve shows the originals]", *lines])),)


def owed_to_merge(covers: Sequence[Cover], iteration: int, read: float, ends: Sequence[Entry]) -> float:
    """What calls have spent on reading digests that a merge would have shortened."""
    share = read * (1.0 - MERGED_SHARE)
    return sum(share * cover.tokens * max(0, iteration - ends[cover.last].iteration) for cover in covers)
