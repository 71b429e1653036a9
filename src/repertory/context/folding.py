"""Folds: the old part of the view becomes a digest."""

from __future__ import annotations

from collections.abc import Sequence

from repertory.context.ageing import Ageing
from repertory.context.decisions import CoverRange
from repertory.context.extractive import digest_head
from repertory.context.live import Live, is_spoken
from repertory.context.tokens import text_tokens
from repertory.llm.messages import Text
from repertory.record.entries import Entry


def fold_edits(ageing: Ageing, live: Live, snapshot: Sequence[Entry], first: int, upto: int) -> list[CoverRange]:
    """Cover entries with their lines. What users said stands between them, word for word."""
    edits: list[CoverRange] = []

    def spoken(entry: Entry) -> bool:
        return is_spoken(entry, live.policy)

    while first < upto:
        last = first
        while last + 1 < upto and not (spoken(snapshot[last + 1]) and not spoken(snapshot[last])):
            last += 1
        # What a model wrote of a result may come after its line was made.
        made = zip(snapshot[first : last + 1], ageing.lines(first, last + 1), strict=True)
        lines = [said for entry, line in made if (said := _gist_line(live, entry) or line)]
        span = snapshot[first].iteration, snapshot[last].iteration
        content = digest_content(lines, *span, retrieval=live.policy.retrieval)
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


def _gist_line(live: Live, entry: Entry) -> str:
    gist = " ".join(live.gist(entry).split())
    return f"> {gist}" if gist and entry.position not in live.plan.pins and not live.rules(entry.tool).pin else ""


def digest_content(lines: Sequence[str], first: int, last: int, *, retrieval: bool) -> tuple[Text, ...]:
    """A digest of some lines under its head, which names the iterations; nothing where there is no line."""
    if not lines:
        return ()
    span = f"iterations {max(1, first)}–{last}" if last else "the beginning"
    return (Text("\n".join([digest_head(span, retrieval=retrieval), *lines])),)
