"""The plan: how each entry of a ledger is shown now, and the edits that change it.

A plan is immutable data: ``Plan.edited`` makes a new one, and replaying the journalled edits of a run gives the same
plan again. Entries that a plan does not mention are shown as they are in the ledger.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal, TypeAlias

import msgspec

from repertory.errors import ContextError
from repertory.llm.messages import Block, equal_items
from repertory.record.entries import Entry

Representation: TypeAlias = Literal["verbatim", "shaped", "stub", "covered", "removed", "expanded"]

TRAIL = "trail"
"""The strategy of covers that the program wrote, without a model."""


class StubResult(msgspec.Struct, frozen=True, kw_only=True):
    """Show a short text instead of a result; its call stays. ``why`` is one of ``shaping.Why``."""

    position: int
    text: str
    tokens: int
    was_tokens: int
    why: str = ""


class RemoveResult(msgspec.Struct, frozen=True, kw_only=True):
    """Remove a result and its call from view; ``text`` is the line that remains."""

    position: int
    call_id: str
    text: str
    tokens: int
    was_tokens: int


class ExpandEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Show an entry again: as it is in the ledger (``content`` is None), or with other content, such as all or part
    of what the content store has."""

    position: int
    tokens: int
    was_tokens: int
    content: tuple[Block, ...] | None = None


class CoverRange(msgspec.Struct, frozen=True, kw_only=True):
    """Show a text instead of the entries ``first`` to ``last``, both included. It replaces existing covers, or entries
    that follow them.

    Attributes:
        content: The text; empty if the whole range is kept.
        tokens: Estimated tokens of the text, without what is kept.
        was_tokens: Tokens that the range had before.
        kept: Positions within the range that stay in view verbatim, before the text.
        iterations: The first and the last iteration of the range.
        strategy: Who wrote the text: ``trail`` (the program), ``extractive``, ``model``, ``provider``.
        restated_at: For a provider's block, which comes first and must be followed directly by the next turn: position
            of the user's entry after which ``kept`` is shown again. -1 for any other cover.
    """

    first: int
    last: int
    content: tuple[Block, ...]
    tokens: int
    was_tokens: int
    kept: tuple[int, ...] = ()
    iterations: tuple[int, int] = (0, 0)
    summary_id: str = ""
    strategy: str = TRAIL
    restated_at: int = -1


class HoldBack(msgspec.Struct, frozen=True, kw_only=True):
    """Write nothing from a position on to the prompt cache with this request: the next one will show it differently."""

    position: int


class PinEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Keep an entry in view verbatim, whatever happens around it.

    Attributes:
        until: The last iteration of the pin; whoever pinned the entry removes the pin then. 0 means for good.
    """

    position: int
    until: int = 0


class UnpinEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Remove the pin of an entry, so that it is treated like any other."""

    position: int


class DropThinking(msgspec.Struct, frozen=True, kw_only=True):
    """Hide the reasoning of the entries below a position: on a binding model an edit of the past invalidates it."""

    position: int


Shown: TypeAlias = StubResult | RemoveResult | ExpandEntry
Edit: TypeAlias = Shown | CoverRange | HoldBack | PinEntry | UnpinEntry | DropThinking
_SHOWN_AS: dict[type[Shown], Representation] = {StubResult: "stub", RemoveResult: "removed", ExpandEntry: "expanded"}


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How each entry is shown. The empty plan shows the ledger as it is.

    Attributes:
        covers: The texts that replace ranges of entries, from position 0 on without gaps.
        start: The first position that no cover includes.
        shown: Edits of single entries, by position; those that a later cover includes are dropped.
        pins: Positions that stay in view verbatim.
        removed_calls: Ids of the calls that were removed with their results.
        thinking_from: Reasoning of entries below this position is not shown.
        edges: The last two edges (see ``Decision.edge``), the newest last.
        epoch: How many decisions have rewritten the prefix.
        decided_at: Length of the ledger at the last of these decisions; -1 before the first.
        held: That decision's request does not write entries from this position on to the cache; 0 for none.
        held_before: The same for the decision before it.
        counted_at: Length of the ledger at the last request that ``bank`` and ``owed`` count; -1 for none.
        cached_to: That request left the view of the entries below this position in the cache; -1 if a later decision
            without ``counted`` may have changed it.
        bank: See ``Arithmetic``.
        owed: See ``Arithmetic``.
    """

    covers: tuple[CoverRange, ...] = ()
    start: int = 0
    shown: Mapping[int, Shown] = msgspec.field(default_factory=lambda: MappingProxyType({}))
    pins: frozenset[int] = frozenset()
    removed_calls: frozenset[str] = frozenset()
    thinking_from: int = 0
    edges: tuple[int, ...] = ()
    epoch: int = 0
    decided_at: int = -1
    held: int = 0
    held_before: int = 0
    counted_at: int = -1
    cached_to: int = -1
    bank: float = 0.0
    owed: float = 0.0

    def cover_of(self, position: int) -> CoverRange | None:
        """Return the cover whose range includes a position, even if it keeps that entry; None if there is none."""
        return next((cover for cover in self.covers if cover.first <= position <= cover.last), None)

    def kept(self, cover: CoverRange) -> list[int]:
        """Return the positions in a cover's range that are in view nevertheless, in order."""
        if cover.restated_at >= 0:
            return sorted(cover.kept)  # restated once, in a message that must not change afterwards
        positions = {*cover.kept}
        positions.update(p for p in self.pins if cover.first <= p <= cover.last)
        positions.update(p for p in self.shown if cover.first <= p <= cover.last)
        return sorted(positions)

    def count_shared_covers(self, other: Plan) -> int:
        """Count the first covers that another plan shows in the same way, kept entries included."""
        if self.pins != other.pins or self._shown_before(self.start) != other._shown_before(other.start):
            return 0
        return equal_items(self.covers, other.covers)

    def _shown_before(self, position: int) -> dict[int, Shown]:
        return {at: shown for at, shown in self.shown.items() if at < position}

    def tokens_of(self, entry: Entry) -> int:
        """Estimate the tokens of one entry as it is shown."""
        shown = self.shown.get(entry.position)
        return entry.tokens if shown is None else shown.tokens

    def representation(self, entry: Entry) -> Representation:
        """How one entry is shown."""
        if (shown := self.shown.get(entry.position)) is not None:
            return _SHOWN_AS[type(shown)]
        cover = self.cover_of(entry.position)
        if cover is not None and entry.position not in cover.kept and entry.position not in self.pins:
            return "covered"
        return "shaped" if entry.original_length else "verbatim"

    def edited(self, edits: Sequence[Edit]) -> Plan:
        """Apply some edits and return the new plan; ``apply`` adds the other fields of their decision.

        Raises:
            ContextError: An edit does not fit, such as a cover that leaves a gap.
        """
        shown, pins, removed = dict(self.shown), set(self.pins), set(self.removed_calls)
        covers = _insert_covers(self.covers, [edit for edit in edits if isinstance(edit, CoverRange)])
        start = covers[-1].last + 1 if covers else 0
        thinking_from, held = self.thinking_from, 0
        kept = {position for cover in covers for position in cover.kept}
        for position in [p for p in shown if p < start] if start > self.start else ():
            asked = position in pins and isinstance(shown[position], ExpandEntry)
            if not asked and position not in kept:  # what was said stays, without images
                _forget(shown, removed, position)
        for edit in edits:
            match edit:
                case PinEntry():
                    pins.add(edit.position)
                    _forget(shown, removed, edit.position)
                case UnpinEntry():
                    pins.discard(edit.position)
                case StubResult() | RemoveResult():
                    is_covered = edit.position < start and edit.position not in kept
                    if is_covered or edit.position in pins:
                        why = "is covered" if is_covered else "is pinned"
                        raise ContextError(f"cannot apply {type(edit).__name__} to entry {edit.position}, which {why}")
                    shown[edit.position] = edit
                    if isinstance(edit, RemoveResult):
                        removed.add(edit.call_id)
                case ExpandEntry():
                    _forget(shown, removed, edit.position)
                    shown[edit.position] = edit
                case HoldBack():
                    held = edit.position
                case DropThinking():
                    thinking_from = max(thinking_from, edit.position)
                case CoverRange():
                    pass  # applied above
        return msgspec.structs.replace(
            self,
            covers=covers,
            start=start,
            shown=MappingProxyType(shown),
            pins=frozenset(pins),
            removed_calls=frozenset(removed),
            thinking_from=thinking_from,
            held=held,
        )


EMPTY = Plan()


def _forget(shown: dict[int, Shown], removed: set[str], position: int) -> None:
    forgotten = shown.pop(position, None)
    if isinstance(forgotten, RemoveResult):
        removed.discard(forgotten.call_id)


def _insert_covers(covers: tuple[CoverRange, ...], edits: Sequence[CoverRange]) -> tuple[CoverRange, ...]:
    """Put new covers in the place of those that they include, or after the last."""
    if not edits:
        return covers
    at = bisect_left(covers, edits[0].first, key=lambda cover: cover.last)
    out = list(covers[:at])
    for edit in edits:
        while at < len(covers) and covers[at].last < edit.first:
            out.append(covers[at])
            at += 1
        expected_first = out[-1].last + 1 if out else 0
        while at < len(covers) and covers[at].last <= edit.last:
            at += 1
        splits_cover = at < len(covers) and covers[at].first <= edit.last
        if edit.first != expected_first or edit.last < edit.first or splits_cover:
            raise ContextError(
                f"a cover of entries {edit.first}–{edit.last} does not fit covers that end at "
                f"{[cover.last for cover in covers]}; it must begin behind one and end with one or behind the last"
            )
        out.append(edit)
    return (*out, *covers[at:])
