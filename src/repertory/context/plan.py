"""The plan: how each entry of a ledger is shown now, and the edits that changed it.

A plan is data. It never changes: ``apply`` makes a new one out of a decision, and replaying the journalled
decisions of a run makes the same plan again. What it does not mention is shown as it stands in the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias

import msgspec

from repertory._frozen import freeze_fields
from repertory.context.decisions import (
    CoverRange,
    CutCall,
    Decision,
    DropThinking,
    ExpandEntry,
    HoldBack,
    PinEntry,
    RemoveResult,
    StubResult,
    UnpinEntry,
    decode_decision,
)
from repertory.errors import ContextError
from repertory.llm.messages import Block, Json
from repertory.record.entries import Entry

Representation: TypeAlias = Literal["verbatim", "shaped", "stub", "covered", "removed", "expanded"]


class Stub(msgspec.Struct, frozen=True):
    """A short text stands for a result; its call stays."""

    text: str
    tokens: int


class ShortCalls(msgspec.Struct, frozen=True):
    """The calls of a turn are shown with shorter arguments.

    Attributes:
        inputs: The arguments by the call's id; calls that are not in it stand as they are.
    """

    inputs: dict[str, Json]
    tokens: int

    def __post_init__(self) -> None:
        freeze_fields(self, "inputs")


class Removed(msgspec.Struct, frozen=True):
    """A result and its call are gone; one line says so."""

    text: str
    tokens: int
    call_id: str


class Expanded(msgspec.Struct, frozen=True):
    """A result shows its original again.

    Attributes:
        content: What is shown; None for the entry as it stands in the ledger.
    """

    content: tuple[Block, ...] | None
    tokens: int


Shown: TypeAlias = Stub | ShortCalls | Removed | Expanded


class Cover(msgspec.Struct, frozen=True, kw_only=True):
    """A summary stands for the entries ``first`` to ``last``, both included.

    Attributes:
        kept: Positions within the range that stay in view verbatim, before the summary.
        tokens: Estimate of what the summary costs, without what is kept.
        replaced_tokens: Estimate of what the covered entries cost as they stand in the ledger.
        strategy: Who wrote it: ``digest`` or ``merged`` (the planner), ``extractive``, ``model``, ``provider``.
        restated_at: Where a provider's block stands first and nothing may come between it and what follows: the
            position of the user's entry behind which ``kept`` is shown again; -1 for any other summary.
    """

    first: int
    last: int
    content: tuple[Block, ...]
    tokens: int
    kept: tuple[int, ...] = ()
    summary_id: str = ""
    strategy: str = "extractive"
    replaced_tokens: int = 0
    restated_at: int = -1


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How each entry is shown. The empty plan shows the ledger as it is.

    Attributes:
        covers: Summaries, from position 0 on without gaps.
        shown: Single entries that are not shown as they stand; those that a later cover includes are dropped.
        pins: Positions that stay in view verbatim.
        removed_calls: Ids of the calls that went with their removed results.
        thinking_from: Reasoning of entries below this position is not shown.
        edges: The last two edges (see ``Decision.edge``), the newest last.
        epoch: How many decisions have rewritten the prefix.
        decided_at: Length of the ledger at the last of them; -1 before the first.
        held: Entries from this position on are not written to the cache by that decision's request; 0 for none.
        held_before: The same of the decision before it.
        counted_at: Length of the ledger at the last request that ``bank`` and ``owed`` count; -1 for none.
        cached_to: What that request left in the cache: the view of the entries below; -1 where an edit by others
            may have changed it.
        bank: See ``Arithmetic``.
        owed: See ``Arithmetic``.
    """

    covers: tuple[Cover, ...] = ()
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

    @property
    def start(self) -> int:
        """The first position that no summary covers."""
        return self.covers[-1].last + 1 if self.covers else 0

    def cover_of(self, position: int) -> Cover | None:
        """The summary that stands for a position, or would if the entry were not kept; None where none does."""
        return next((cover for cover in self.covers if cover.first <= position <= cover.last), None)

    def kept(self, cover: Cover) -> list[int]:
        """Positions under a cover that are nevertheless in view, in order."""
        if cover.restated_at >= 0:
            return sorted(cover.kept)  # said again once, in a message that must not change any more
        inside = {*cover.kept}
        inside.update(p for p in self.pins if cover.first <= p <= cover.last)
        inside.update(p for p in self.shown if cover.first <= p <= cover.last)
        return sorted(inside)

    def covers_shared(self, other: Plan) -> int:
        """How many of the first covers, with what is kept of what they cover, are shown as in another plan."""
        if self.pins != other.pins or self._below(self.start) != other._below(other.start):
            return 0
        return shared_covers(self.covers, other.covers)

    def _below(self, position: int) -> dict[int, Shown]:
        return {at: shown for at, shown in self.shown.items() if at < position}

    def representation(self, entry: Entry) -> Representation:
        """How one entry is shown."""
        match self.shown.get(entry.position):
            case Stub() | ShortCalls():
                return "stub"
            case Removed():
                return "removed"
            case Expanded():
                return "expanded"
            case None:
                pass
        cover = self.cover_of(entry.position)
        if cover is not None and entry.position not in cover.kept and entry.position not in self.pins:
            return "covered"
        return "shaped" if entry.original_length else "verbatim"


EMPTY = Plan()


def shared_covers(covers: tuple[Cover, ...], others: tuple[Cover, ...]) -> int:
    """How many of the first covers are the same objects."""
    count = min(len(covers), len(others))
    if covers[:count] == others[:count]:  # most often; identical objects are not looked into
        return count
    return next((at for at in range(count) if covers[at] is not others[at]), count)


def apply(plan: Plan, decision: Decision) -> Plan:
    """Make the plan that a decision asks for.

    Raises:
        ContextError: An edit does not fit the plan, such as a cover that leaves a gap.
    """
    shown = dict(plan.shown)
    covers, pins, removed = plan.covers, set(plan.pins), set(plan.removed_calls)
    start = plan.start
    thinking_from = plan.thinking_from
    rewrites = False
    held = 0
    ranges = [edit for edit in decision.edits if isinstance(edit, CoverRange)]
    if ranges:
        covers = _cover(covers, ranges)
        start = covers[-1].last + 1
        for position in [p for p in shown if p < start]:
            if position in pins and isinstance(shown[position], Expanded):
                continue  # it stays in view, as it was asked for
            gone = shown.pop(position)
            if isinstance(gone, Removed):
                removed.discard(gone.call_id)
    for edit in decision.edits:
        match edit:
            case PinEntry():
                pins.add(edit.position)
                before = shown.pop(edit.position, None)
                if isinstance(before, Removed):
                    removed.discard(before.call_id)
                rewrites = rewrites or before is not None or edit.position < start
                continue
            case UnpinEntry():
                pins.discard(edit.position)
                rewrites = rewrites or edit.position < start
                continue
            case CoverRange():
                pass  # done
            case StubResult():
                _in_view(edit, start, pins)
                shown[edit.position] = Stub(edit.text, edit.tokens)
            case RemoveResult():
                _in_view(edit, start, pins)
                shown[edit.position] = Removed(edit.text, edit.tokens, edit.call_id)
                removed.add(edit.call_id)
            case CutCall():
                _in_view(edit, start, pins)
                shown[edit.position] = ShortCalls(edit.inputs, edit.tokens)
            case HoldBack():
                held = edit.position
            case DropThinking():
                thinking_from = max(thinking_from, edit.position)
            case ExpandEntry():
                before = shown.get(edit.position)
                if isinstance(before, Removed):
                    removed.discard(before.call_id)
                shown[edit.position] = Expanded(edit.content, edit.tokens)
        rewrites = True
    if not rewrites:
        return msgspec.structs.replace(plan, pins=frozenset(pins))
    return Plan(
        covers=covers,
        shown=MappingProxyType(shown),
        pins=frozenset(pins),
        removed_calls=frozenset(removed),
        thinking_from=thinking_from,
        edges=(*plan.edges, decision.edge)[-2:] if decision.edge else plan.edges,
        epoch=plan.epoch + 1,
        decided_at=decision.position,
        held=held,
        held_before=plan.held,
        counted_at=decision.position if decision.counted else plan.counted_at,
        cached_to=(held or decision.position) if decision.counted else -1,
        bank=decision.arithmetic.bank if decision.counted else plan.bank,
        owed=decision.arithmetic.owed if decision.counted else plan.owed,
    )


def _in_view(edit: StubResult | RemoveResult | CutCall, start: int, pins: set[int]) -> None:
    if edit.position < start or edit.position in pins:
        why = "is covered by a summary" if edit.position < start else "is pinned"
        raise ContextError(f"cannot apply {type(edit).__name__} to entry {edit.position}, which {why}")


def _cover(covers: tuple[Cover, ...], edits: list[CoverRange]) -> tuple[Cover, ...]:
    """Put new covers in the place of those that they include, or behind the last."""
    added = not covers or edits[0].first > covers[-1].last  # most often
    out, at = (list(covers), len(covers)) if added else (list[Cover](), 0)
    for edit in edits:
        while at < len(covers) and covers[at].last < edit.first:
            out.append(covers[at])
            at += 1
        follows = out[-1].last + 1 if out else 0
        while at < len(covers) and covers[at].last <= edit.last:
            at += 1
        cuts = at < len(covers) and covers[at].first <= edit.last
        if edit.first != follows or edit.last < edit.first or cuts:
            raise _misfit(edit, covers)
        out.append(Cover(**{name: getattr(edit, name) for name in Cover.__struct_fields__}))
    return (*out, *covers[at:])


def _misfit(edit: CoverRange, covers: tuple[Cover, ...]) -> ContextError:
    return ContextError(
        f"a summary of entries {edit.first}–{edit.last} does not fit covers that end at "
        f"{[cover.last for cover in covers]}; it must begin behind one and end with one or behind the last"
    )


def replay(bodies: Iterable[Json]) -> Plan:
    """Make the plan of a run again from its journalled decisions, in order."""
    plan = EMPTY
    for body in bodies:
        plan = apply(plan, decode_decision(body))
    return plan
