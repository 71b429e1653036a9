"""Decisions: edits of the plan with their reason and arithmetic; how they are made, applied and journalled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from repertory.context.plan import (
    EMPTY,
    CoverRange,
    DropThinking,
    Edit,
    ExpandEntry,
    HoldBack,
    PinEntry,
    Plan,
    RemoveResult,
    StubResult,
    UnpinEntry,
)
from repertory.errors import ContextError, JournalUnreadable
from repertory.llm.estimate import Calibration, text_tokens
from repertory.llm.messages import Block, Json, Text, decode_block, encode_block, text_of
from repertory.llm.profiles import ModelProfile, Prices, prices_at
from repertory.record.entries import Entry

_EDITS: dict[str, type[Any]] = {
    "stub": StubResult,
    "remove": RemoveResult,
    "cover": CoverRange,
    "hold-back": HoldBack,
    "expand": ExpandEntry,
    "pin": PinEntry,
    "unpin": UnpinEntry,
    "drop-thinking": DropThinking,
}
_NAMES = {edit: name for name, edit in _EDITS.items()}


class Arithmetic(msgspec.Struct, frozen=True, kw_only=True):
    """Why a decision pays, in tokens and US dollars.

    Attributes:
        cleared_tokens: Tokens that leave the prompt, less those that replace them.
        cost_now: US dollars that the next call costs more than without the edit; negative if it is cheaper at once.
        saving_per_call: US dollars that every call after that costs less.
        prompt_before: Estimate of the prompt without the edit.
        prompt_after: Estimate of the prompt with the edit.
        bank: By how much the run is cheaper so far than if nothing had been edited, this request included; in
            tokens at the input price, estimated.
        owed: What calls have spent since the last edit of the past on reading what could have been cleared; in
            tokens at the input price.
    """

    cleared_tokens: int = 0
    cost_now: float = 0.0
    saving_per_call: float = 0.0
    prompt_before: int = 0
    prompt_after: int = 0
    bank: float = 0.0
    owed: float = 0.0


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Edits of the plan, with their reason and arithmetic.

    Attributes:
        kind: ``pays``, ``cold``, ``uncached`` (no prompt cache), ``once`` (shown in full only once), ``expired``,
            ``comfort``, ``forced``, ``recovery`` (after a refusal), ``strict``, ``provider`` (its signed summary),
            ``unreadable`` (images that the server cannot read), ``drop-block`` (see ``docs/binding.md``), ``expand`` or
            ``pin``.
        iteration: The first iteration whose request shows the edits.
        position: Length of the ledger when the decision was made.
        edge: The next epoch is not expected to edit entries before this position, so a cache breakpoint is set there.
            0 leaves the edge where it was.
        counted: Whether the arithmetic's ``bank`` and ``owed`` are those of the run up to this request. If not, the
            plan keeps its own.
    """

    kind: str
    reason: str
    iteration: int
    position: int
    edits: tuple[Edit, ...]
    edge: int = 0
    counted: bool = False
    arithmetic: Arithmetic = Arithmetic()

    @property
    def sentence(self) -> str:
        """The decision for a person to read."""
        a = self.arithmetic
        words = f"{self.reason}: clears {_format_tokens(a.cleared_tokens)}"
        if a.cost_now or a.saving_per_call:
            now = f"costs ${a.cost_now:.4f} now" if a.cost_now > 0 else f"saves ${-a.cost_now:.4f} at once"
            words += f", {now}, saves ${a.saving_per_call:.4f} a call"
        return words


def _format_tokens(count: int) -> str:
    return f"{count / 1000:.1f}k tokens" if abs(count) >= 1000 else f"{count} tokens"


def apply(plan: Plan, decision: Decision) -> Plan:
    """Apply a decision to a plan and return the new plan.

    Raises:
        ContextError: An edit does not fit the plan.
    """
    after = plan.edited(decision.edits)
    only_pins = all(isinstance(edit, PinEntry | UnpinEntry) for edit in decision.edits)
    covered_pins = any(edit.position < plan.start for edit in decision.edits if isinstance(edit, PinEntry | UnpinEntry))
    if only_pins and not covered_pins and after.shown == plan.shown:
        return msgspec.structs.replace(plan, pins=after.pins)
    return msgspec.structs.replace(
        after,
        edges=(*plan.edges, decision.edge)[-2:] if decision.edge else plan.edges,
        epoch=plan.epoch + 1,
        decided_at=decision.position,
        held_before=plan.held,
        counted_at=decision.position if decision.counted else plan.counted_at,
        cached_to=(after.held or decision.position) if decision.counted else -1,
        bank=decision.arithmetic.bank if decision.counted else plan.bank,
        owed=decision.arithmetic.owed if decision.counted else plan.owed,
    )


def replay(bodies: Iterable[Json]) -> Plan:
    """Rebuild the plan of a run from its journalled decisions, in order."""
    plan = EMPTY
    for body in bodies:
        plan = apply(plan, decode_decision(body))
    return plan


# --- what an edit costs -----------------------------------------------------------------------------------


def arithmetic_of(
    profile: ModelProfile,
    calibration: Calibration,
    *,
    before: int,
    after: int,
    untouched: int,
    new: int = 0,
    cold: bool = False,
) -> Arithmetic:
    """Calculate what an edit costs at the next call and saves at every call after it.

    A prefix is read from the cache at a fraction of the input price, and written to it at a premium. An edit changes
    the prefix of everything after it, so that is written once more; from then on every call reads less.

    Args:
        profile: The model's profile.
        calibration: Converts estimates to tokens.
        before: Estimate of the next prompt without the edit.
        after: Estimate of the next prompt with the edit.
        untouched: Part of it that precedes the edit and can still be read from the cache.
        new: Part of the prompt that no earlier request held; it must be written to the cache in any case.
        cold: Whether the cache has expired, so that nothing can be read from it.
    """
    prompt, edited = calibration.real_tokens(before), calibration.real_tokens(after)
    old, changed = _input_prices(profile, prompt), _input_prices(profile, edited)
    cached = 0 if cold else max(0, prompt - round(new * calibration.factor))
    untouched = 0 if cold else min(round(untouched * calibration.factor), cached, edited)
    cost_without = cached * old.cache_read + (prompt - cached) * old.cache_write
    cost_with = untouched * changed.cache_read + (edited - untouched) * changed.cache_write
    return Arithmetic(
        cleared_tokens=before - after,
        cost_now=(cost_with - cost_without) / 1e6,
        saving_per_call=(prompt * old.cache_read - edited * changed.cache_read) / 1e6,
        prompt_before=prompt,
        prompt_after=edited,
    )


def _input_prices(profile: ModelProfile, prompt_tokens: int) -> Prices:
    prices = prices_at(profile, prompt_tokens)
    if profile.cache.breakpoints:
        return prices
    return msgspec.structs.replace(prices, cache_read=prices.input, cache_write=prices.input)


# --- what a caller asks for -------------------------------------------------------------------------------


def expansion(
    snapshot: Sequence[Entry],
    plan: Plan,
    position: int,
    *,
    whole: str | None = None,
    items: tuple[int, int] | None = None,
) -> ExpandEntry:
    """Return the edit that shows a shortened, removed or covered entry again, whole or some of its lines.

    Args:
        snapshot: The ledger.
        plan: How it is shown.
        position: The entry.
        whole: The whole text from the content store; None shows the entry as it is in the ledger.
        items: The first and last line to show, counted from 1; None for all.

    Raises:
        ContextError: There is no such entry, it is in view already, or it has no such lines.
    """
    entry = entry_at(snapshot, position)
    shown_as = plan.representation(entry)
    if shown_as in ("verbatim", "expanded") or (shown_as == "shaped" and whole is None):
        raise ContextError(f"entry {position} is in view already; there is nothing to expand")
    content: tuple[Block, ...] | None = None
    if whole is not None or items is not None:
        text = text_of(entry.content) if whole is None else whole
        content = (Text(text if items is None else _line_range(text, items, position)),)
    was = 0 if shown_as == "covered" else plan.tokens_of(entry)
    tokens = entry.tokens if content is None else text_tokens(text_of(content))
    return ExpandEntry(position=position, tokens=tokens, was_tokens=was, content=content)


def entry_at(snapshot: Sequence[Entry], position: int) -> Entry:
    """Return the entry at a position; raise ``ContextError`` if there is none."""
    if not 0 <= position < len(snapshot):
        raise ContextError(f"there is no entry {position}; entries in the record: {len(snapshot)}, from 0")
    return snapshot[position]


def _line_range(text: str, items: tuple[int, int], position: int) -> str:
    lines, (first, last) = text.splitlines(keepends=True), items
    if not 1 <= first <= last or first > len(lines):
        raise ContextError(f"entry {position} has lines 1–{len(lines)}; lines {first}–{last} cannot be shown")
    shown = "".join(lines[first - 1 : last])
    return f"[lines {first}–{min(last, len(lines))} of {len(lines)}]\n{shown}"


# --- the journal's form -----------------------------------------------------------------------------------


def encode_decision(decision: Decision) -> Json:
    """Write a decision as the body of a ``DecisionMade`` record."""
    body = {name: getattr(decision, name) for name in decision.__struct_fields__}
    body["arithmetic"] = msgspec.to_builtins(decision.arithmetic)
    body["edits"] = [_encode_edit(edit) for edit in decision.edits]
    return body


def decode_decision(body: Json) -> Decision:
    """Read the body of a ``DecisionMade`` record.

    Raises:
        JournalUnreadable: The body is not a decision that this version knows.
    """
    try:
        fields = {name: body[name] for name in Decision.__struct_fields__}
        fields["arithmetic"] = msgspec.convert(body["arithmetic"], type=Arithmetic)
        fields["edits"] = tuple(_decode_edit(edit) for edit in body["edits"])
        return Decision(**fields)
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
    for name, value in fields.items():
        if name == "content" and value is not None:
            value = tuple(decode_block(block) for block in value)  # noqa: PLW2901
        fields[name] = tuple(value) if isinstance(value, list) else value
    edit: Edit = kind(**fields)
    return edit
