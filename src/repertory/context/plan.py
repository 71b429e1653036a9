"""The plan: how each entry of a ledger is shown now, and the edits that changed it.

A plan is data. It never changes: ``apply`` makes a new one out of a decision, and replaying the journalled
decisions of a run makes the same plan again. What it does not mention is shown as it stands in the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import msgspec

from repertory.errors import ContextError, JournalUnreadable
from repertory.llm.messages import Block, Json, decode_block, encode_block
from repertory.memory.entries import Entry

Representation: TypeAlias = Literal["verbatim", "shaped", "stub", "covered", "removed", "expanded"]


class Stub(msgspec.Struct, frozen=True):
    """A short text stands for a result; its call stays."""

    text: str
    tokens: int


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


Shown: TypeAlias = Stub | Removed | Expanded


class Cover(msgspec.Struct, frozen=True, kw_only=True):
    """A summary stands for the entries ``first`` to ``last``, both included.

    Attributes:
        kept: Positions within the range that stay in view verbatim, before the summary.
        tokens: Estimate of what the summary costs, without what is kept.
        replaced_tokens: Estimate of what the covered entries cost as they stand in the ledger.
        strategy: Who wrote it: ``extractive``, ``model``, ``provider``.
    """

    first: int
    last: int
    content: tuple[Block, ...]
    tokens: int
    kept: tuple[int, ...] = ()
    summary_id: str = ""
    strategy: str = "extractive"
    replaced_tokens: int = 0


# --- edits ------------------------------------------------------------------------------------------------


class StubResult(msgspec.Struct, frozen=True, kw_only=True):
    """Show a stub instead of a result."""

    position: int
    text: str
    tokens: int
    was_tokens: int


class RemoveResult(msgspec.Struct, frozen=True, kw_only=True):
    """Take a result and its call out of view; ``text`` is the line that remains."""

    position: int
    call_id: str
    text: str
    tokens: int
    was_tokens: int


class CoverRange(msgspec.Struct, frozen=True, kw_only=True):
    """Let a summary stand for a range: all from the start, or what follows the last cover. See ``Cover``."""

    first: int
    last: int
    content: tuple[Block, ...]
    tokens: int
    was_tokens: int
    kept: tuple[int, ...] = ()
    summary_id: str = ""
    strategy: str = "extractive"
    replaced_tokens: int = 0


class ExpandEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Show an entry again: as it stands in the ledger (``content`` is None), or other content such as the
    whole or a part out of the content store."""

    position: int
    tokens: int
    was_tokens: int
    content: tuple[Block, ...] | None = None


class PinEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Keep an entry in view verbatim, whatever happens around it."""

    position: int


class UnpinEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Let an entry be treated like any other again."""

    position: int


class DropThinking(msgspec.Struct, frozen=True, kw_only=True):
    """Show no reasoning of the entries below a position: on a binding model an edit of the past invalidates it."""

    position: int


Edit: TypeAlias = StubResult | RemoveResult | CoverRange | ExpandEntry | PinEntry | UnpinEntry | DropThinking

_EDITS: dict[str, type[Any]] = {
    "stub": StubResult,
    "remove": RemoveResult,
    "cover": CoverRange,
    "expand": ExpandEntry,
    "pin": PinEntry,
    "unpin": UnpinEntry,
    "drop-thinking": DropThinking,
}
_NAMES = {edit: name for name, edit in _EDITS.items()}


class Arithmetic(msgspec.Struct, frozen=True, kw_only=True):
    """Why a decision pays, in tokens and US dollars.

    Attributes:
        cleared_tokens: What leaves the prompt, net of what takes its place.
        rewritten_tokens: What must be written to the prompt cache again because it stands behind the edit.
        cost_now: What the next call costs more than without the edit; negative where it is cheaper at once.
        saving_per_call: What every call after that costs less.
        expected_calls: How many calls are counted on.
        prompt_before: Estimate of the prompt without the edit.
        prompt_after: Estimate of the prompt with it.
        bank: What the plan has saved against an unedited record after paying for this edit, estimated.
    """

    cleared_tokens: int = 0
    rewritten_tokens: int = 0
    cost_now: float = 0.0
    saving_per_call: float = 0.0
    expected_calls: float = 0.0
    prompt_before: int = 0
    prompt_after: int = 0
    bank: float = 0.0


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Edits of the plan, with the reason and the arithmetic.

    Attributes:
        kind: ``pays``, ``cold``, ``forced``, ``free`` (no prompt cache), ``strict``, ``recovery``, ``expand``
            or ``pin``.
        iteration: The iteration whose request shows it first.
        position: Length of the ledger when it was made.
        edge: Entries before this position will not be edited by the next epoch, as far as is known; a cache
            breakpoint stands there.
    """

    kind: str
    reason: str
    iteration: int
    position: int
    edits: tuple[Edit, ...]
    edge: int = 0
    arithmetic: Arithmetic = Arithmetic()

    @property
    def sentence(self) -> str:
        """The decision for a person to read."""
        a = self.arithmetic
        words = f"{self.reason}: clears {_tokens(a.cleared_tokens)}"
        if a.cost_now or a.saving_per_call:
            now = f"costs ${a.cost_now:.4f} now" if a.cost_now > 0 else f"saves ${-a.cost_now:.4f} at once"
            words += f", {now}, saves ${a.saving_per_call:.4f} a call over {a.expected_calls:.0f} expected calls"
        return words


def _tokens(count: int) -> str:
    return f"{count / 1000:.1f}k tokens" if abs(count) >= 1000 else f"{count} tokens"


# --- the plan ---------------------------------------------------------------------------------------------


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
        decided_in: The iteration of the last of them.
        saved_tokens: What an unedited prompt would hold more than this plan's, estimated at that decision.
        bank: US dollars saved until then, estimated.
    """

    covers: tuple[Cover, ...] = ()
    shown: Mapping[int, Shown] = msgspec.field(default_factory=lambda: MappingProxyType({}))
    pins: frozenset[int] = frozenset()
    removed_calls: frozenset[str] = frozenset()
    thinking_from: int = 0
    edges: tuple[int, ...] = ()
    epoch: int = 0
    decided_at: int = -1
    decided_in: int = 0
    saved_tokens: int = 0
    bank: float = 0.0

    @property
    def start(self) -> int:
        """The first position that no summary covers."""
        return self.covers[-1].last + 1 if self.covers else 0

    def cover_of(self, position: int) -> Cover | None:
        """The summary that stands for a position, or would if the entry were not kept; None where none does."""
        return next((cover for cover in self.covers if cover.first <= position <= cover.last), None)

    def kept(self, cover: Cover) -> list[int]:
        """Positions under a cover that are nevertheless in view, in order."""
        inside = {*cover.kept}
        inside.update(p for p in self.pins if cover.first <= p <= cover.last)
        inside.update(p for p in self.shown if cover.first <= p <= cover.last)
        return sorted(inside)

    def representation(self, entry: Entry) -> Representation:
        """How one entry is shown."""
        match self.shown.get(entry.position):
            case Stub():
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
                covers = _cover(covers, edit)
                start = edit.last + 1
                for position in [p for p in shown if p <= edit.last]:
                    gone = shown.pop(position)
                    if isinstance(gone, Removed):
                        removed.discard(gone.call_id)
            case StubResult():
                _in_view(edit, start, pins)
                shown[edit.position] = Stub(edit.text, edit.tokens)
            case RemoveResult():
                _in_view(edit, start, pins)
                shown[edit.position] = Removed(edit.text, edit.tokens, edit.call_id)
                removed.add(edit.call_id)
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
        edges=(*plan.edges, decision.edge)[-2:],
        epoch=plan.epoch + 1,
        decided_at=decision.position,
        decided_in=decision.iteration,
        saved_tokens=plan.saved_tokens + decision.arithmetic.cleared_tokens,
        bank=decision.arithmetic.bank,
    )


def _in_view(edit: StubResult | RemoveResult, start: int, pins: set[int]) -> None:
    if edit.position < start or edit.position in pins:
        why = "is covered by a summary" if edit.position < start else "is pinned"
        raise ContextError(f"cannot apply {type(edit).__name__} to entry {edit.position}, which {why}")


def _cover(covers: tuple[Cover, ...], edit: CoverRange) -> tuple[Cover, ...]:
    before = tuple(cover for cover in covers if cover.last < edit.first)
    follows = before[-1].last + 1 if before else 0
    if edit.first != follows or edit.last < max(edit.first, covers[-1].last if covers else 0):
        raise ContextError(
            f"a summary of entries {edit.first}–{edit.last} does not fit covers that end at "
            f"{[cover.last for cover in covers]}; it must begin where one ends and go at least as far as the last"
        )
    fields = {name: getattr(edit, name) for name in Cover.__struct_fields__}
    return (*before, Cover(**fields))


def replay(bodies: Iterable[Json]) -> Plan:
    """Make the plan of a run again from its journalled decisions, in order."""
    plan = EMPTY
    for body in bodies:
        plan = apply(plan, decode_decision(body))
    return plan


# --- the journal's form -----------------------------------------------------------------------------------


def encode_decision(decision: Decision) -> Json:
    """Write a decision as the body of a ``DecisionMade`` record."""
    return {
        "kind": decision.kind,
        "reason": decision.reason,
        "iteration": decision.iteration,
        "position": decision.position,
        "edge": decision.edge,
        "arithmetic": msgspec.to_builtins(decision.arithmetic),
        "edits": [_encode_edit(edit) for edit in decision.edits],
    }


def decode_decision(body: Json) -> Decision:
    """Read the body of a ``DecisionMade`` record.

    Raises:
        JournalUnreadable: It is not a decision that this version knows.
    """
    try:
        return Decision(
            kind=body["kind"],
            reason=body["reason"],
            iteration=body["iteration"],
            position=body["position"],
            edge=body["edge"],
            arithmetic=msgspec.convert(body["arithmetic"], type=Arithmetic),
            edits=tuple(_decode_edit(edit) for edit in body["edits"]),
        )
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise JournalUnreadable(f"a journalled decision cannot be read: {error!r}") from error


def _encode_edit(edit: Edit) -> Json:
    out: Json = {"edit": _NAMES[type(edit)]}
    for name in edit.__struct_fields__:
        value = getattr(edit, name)
        if name == "content":
            value = None if value is None else [encode_block(block) for block in value]
        out[name] = list(value) if isinstance(value, tuple) else value
    return out


def _decode_edit(raw: Json) -> Edit:
    fields = dict(raw)
    kind = _EDITS[fields.pop("edit")]
    content = fields.pop("content", None)
    plain: Any = kind
    if "content" in kind.__struct_fields__:
        fields["content"] = None if content is None else tuple(decode_block(block) for block in content)
    if "kept" in fields:
        fields["kept"] = tuple(fields["kept"])
    edit: Edit = plain(**fields)
    return edit
