"""Edits of the plan, and decisions: edits with their reason and arithmetic, as they are journalled."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from repertory._frozen import freeze_fields
from repertory.errors import JournalUnreadable
from repertory.llm.messages import Block, Json, decode_block, encode_block


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
    """Let a summary stand for a range: for some of the covers there are, or what follows them. See ``Cover``."""

    first: int
    last: int
    content: tuple[Block, ...]
    tokens: int
    was_tokens: int
    kept: tuple[int, ...] = ()
    summary_id: str = ""
    strategy: str = "extractive"
    replaced_tokens: int = 0
    restated_at: int = -1


class CutCall(msgspec.Struct, frozen=True, kw_only=True):
    """Show calls of one turn with shorter arguments: ``inputs`` has them by the call's id. They stay JSON objects."""

    position: int
    inputs: dict[str, Json]
    tokens: int
    was_tokens: int

    def __post_init__(self) -> None:
        freeze_fields(self, "inputs")


class HoldBack(msgspec.Struct, frozen=True, kw_only=True):
    """Write nothing from a position on to the prompt cache with this request: the next will show it otherwise."""

    position: int


class ExpandEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Show an entry again: as it stands in the ledger (``content`` is None), or other content such as the
    whole or a part out of the content store."""

    position: int
    tokens: int
    was_tokens: int
    content: tuple[Block, ...] | None = None


class PinEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Keep an entry in view verbatim, whatever happens around it.

    Attributes:
        until: The last iteration for which it is meant; whoever pinned it takes the pin off then. 0 for good.
    """

    position: int
    until: int = 0


class UnpinEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Let an entry be treated like any other again."""

    position: int


class DropThinking(msgspec.Struct, frozen=True, kw_only=True):
    """Show no reasoning of the entries below a position: on a binding model an edit of the past invalidates it."""

    position: int


Edit: TypeAlias = (
    StubResult | RemoveResult | CoverRange | CutCall | HoldBack | ExpandEntry | PinEntry | UnpinEntry | DropThinking
)

_EDITS: dict[str, type[Any]] = {
    "stub": StubResult,
    "remove": RemoveResult,
    "cover": CoverRange,
    "cut-call": CutCall,
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
        cleared_tokens: What leaves the prompt, net of what takes its place.
        rewritten_tokens: What must be written to the prompt cache again because it stands behind the edit.
        cost_now: What the next call costs more than without the edit; negative where it is cheaper at once.
        saving_per_call: What every call after that costs less.
        expected_calls: How many calls are counted on.
        prompt_before: Estimate of the prompt without the edit.
        prompt_after: Estimate of the prompt with it.
        bank: By how much the run is cheaper so far than if nothing had been edited, this request included; in
            tokens at the input price, estimated.
        owed: What calls have spent since the last edit of the past on reading what could have been cleared; in
            tokens at the input price.
    """

    cleared_tokens: int = 0
    rewritten_tokens: int = 0
    cost_now: float = 0.0
    saving_per_call: float = 0.0
    expected_calls: float = 0.0
    prompt_before: int = 0
    prompt_after: int = 0
    bank: float = 0.0
    owed: float = 0.0


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Edits of the plan, with the reason and the arithmetic.

    Attributes:
        kind: ``pays``, ``cold``, ``forced``, ``free`` (no prompt cache), ``once`` (shown in full only once),
            ``strict``, ``recovery``, ``provider`` (its signed summary), ``drop-block`` (see ``docs/binding.md``),
            ``expand`` or ``pin``.
        iteration: The iteration whose request shows it first.
        position: Length of the ledger when it was made.
        edge: Entries before this position will not be edited by the next epoch, as far as is known; a cache
            breakpoint stands there. 0 leaves it where it was.
        counted: Whether the arithmetic's ``bank`` and ``owed`` are those of the run up to this request; else they
            stay as they were.
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
        words = f"{self.reason}: clears {_tokens(a.cleared_tokens)}"
        if a.cost_now or a.saving_per_call:
            now = f"costs ${a.cost_now:.4f} now" if a.cost_now > 0 else f"saves ${-a.cost_now:.4f} at once"
            words += f", {now}, saves ${a.saving_per_call:.4f} a call over {a.expected_calls:.0f} expected calls"
        return words


def _tokens(count: int) -> str:
    return f"{count / 1000:.1f}k tokens" if abs(count) >= 1000 else f"{count} tokens"


# --- the journal's form -----------------------------------------------------------------------------------


def encode_decision(decision: Decision) -> Json:
    """Write a decision as the body of a ``DecisionMade`` record."""
    return {
        "kind": decision.kind,
        "reason": decision.reason,
        "iteration": decision.iteration,
        "position": decision.position,
        "edge": decision.edge,
        "counted": decision.counted,
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
            counted=body["counted"],
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
