"""Rules for results: what an application says of the results of a tool, layer over layer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin

import msgspec

from repertory._choices import choices, misfit, show
from repertory.errors import ConfigurationError

ExpirationMode: TypeAlias = Literal["none", "remove", "compact"]
CompactMode: TypeAlias = Literal["stub", "first_chars", "summary"]

# Bounds tell a slip of the pen from a wish: ten times the largest window there is.
Size: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=10_000_000)]
_Short: TypeAlias = Annotated[int, msgspec.Meta(ge=20, le=10_000_000)]


def _said(layer: ResultPolicy) -> dict[str, Any]:
    every = ((name, getattr(layer, name)) for name in layer.__struct_fields__)
    return {name: value for name, value in every if value is not None}


_declared = lru_cache(msgspec.structs.fields)


def check_types(struct: msgspec.Struct) -> None:
    """Refuse a policy with a field of another type.

    Structs do not check what Python code puts into them, and a wrong type would surface far from here.
    """
    for field in _declared(type(struct)):
        value = getattr(struct, field.name)
        try:
            msgspec.convert(value, type=field.type)
        except (msgspec.ValidationError, TypeError, ValueError) as error:
            where = f"{type(struct).__name__}.{field.name}"
            literal = next((each for each in (field.type, *get_args(field.type)) if get_origin(each) is Literal), None)
            said = misfit(error, value)
            why = f"; expected {choices(literal)}" if literal else f": {said[:1].lower()}{said[1:]}"
            raise ConfigurationError(f"{where} is {show(value)}{why}") from None


class ResultRules(msgspec.Struct, frozen=True, kw_only=True):
    """How the results of one tool are treated: a ``ResultPolicy`` with nothing left unsaid.

    Attributes:
        cap_chars: A result is shown whole on arrival up to this many characters, head and tail beyond; 0 for no cap. By
            itself 192,000, about 48,000 tokens.
        cite_over: Results of more characters than this go whole to the content store on arrival; 0 for none.
        cite_on_arrival: Show a cited result as its excerpt only, from the first call on.
        excerpt_chars: Length of a citation's excerpt.
        expiration_turns: Requests that show a result before it expires; 0 is the same as 1, every result is shown once.
        expiration_mode: What becomes of an expired result.
        compact_mode: What stands for a compacted result: a stub with what is likely to be needed again, its first
            characters, or a summary that the summarizer's model writes as soon as the result is there. Where it
            has none (no model, a failure, not ready yet), the stub is shown.
        compact_length: Characters that remain of a compacted result, about.
        compact_prompt: Instructions for that summary; "" for the built-in ones. The answer must be JSON with
            ``summary`` and, if wanted, ``facts``.
        compactor: Name of the plug-in that compacts this tool's results; "" detects it from the content.
        pin: Keep the results in view verbatim for the whole run.
        importance: Weight of these results against others, 1 for the usual. In strict rhythm it multiplies ``window``
            for them: below 1 they become stubs sooner, above 1 later (a summary does not wait for them; ``pin``
            does that). In thrifty rhythm it multiplies the share of their lines that the trail keeps.
        retention: Seconds after the end of a tree of runs for which the content store keeps the whole of a result that
            was cut on arrival. Then it is gone, where the ledger does not hold it and it is not pinned; None keeps it.
        remember: Whether each result becomes an item of memory as well, in one transaction with the call's outcome; not
            those of calls that failed, nor what came from memory or from the record itself.
        retrieval: Whether what stands for a result names the tool that shows the whole; ``ContextPolicy.retrieval``.
    """

    cap_chars: int = 192_000
    cite_over: int = 1_000
    cite_on_arrival: bool = False
    excerpt_chars: int = 500
    expiration_turns: int = 0
    expiration_mode: ExpirationMode = "none"
    compact_mode: CompactMode = "stub"
    compact_length: int = 400
    compact_prompt: str = ""
    compactor: str = ""
    pin: bool = False
    importance: float = 1.0
    retention: float | None = None
    remember: bool = False
    retrieval: bool = True


class ResultPolicy(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """What one layer says about a tool's results. None leaves the matter to the layer below.

    The layers, the strongest first: the run, the agent's entry for the tool, the tool's own default, what the agent
    says of all tools, the built-in ``ResultRules``. The fields are those of ``ResultRules``, without what holds for an
    agent as a whole.

    Raises:
        ConfigurationError: A value makes no sense; the message names the field.
    """

    cap_chars: Size | None = None
    cite_over: Size | None = None
    cite_on_arrival: bool | None = None
    excerpt_chars: _Short | None = None
    expiration_turns: Size | None = None
    expiration_mode: ExpirationMode | None = None
    compact_mode: CompactMode | None = None
    compact_length: _Short | None = None
    compact_prompt: str | None = None
    compactor: str | None = None
    pin: bool | None = None
    importance: Annotated[float, msgspec.Meta(ge=0, le=100)] | None = None
    retention: Annotated[float, msgspec.Meta(ge=0)] | None = None
    remember: bool | None = None

    def __post_init__(self) -> None:
        check_types(self)
        if self.cite_on_arrival and self.cite_over == 0:
            raise ConfigurationError(
                "ResultPolicy.cite_on_arrival is True and cite_over is 0: what is not cited has no excerpt to show"
            )
        if self.pin and self.expiration_mode == "remove":
            raise ConfigurationError(
                "ResultPolicy.pin is True and expiration_mode is 'remove': results stay, or they go; choose one"
            )


def merge_policies(*layers: ResultPolicy | None) -> ResultPolicy:
    """Lay policies over one another, the strongest first: each field is what the first layer that says it says.

    Where layers contradict each other, a pin holds against an expiration, and what is not cited shows no excerpt.
    """
    said: dict[str, Any] = {}
    for layer in reversed(layers):
        if layer is not None:
            said.update(_said(layer))
    if said.get("pin") and said.get("expiration_mode") == "remove":
        said["expiration_mode"] = "none"
    if said.get("cite_over") == 0 and said.get("cite_on_arrival"):
        said["cite_on_arrival"] = False
    return ResultPolicy(**said)


def expiring_together(rules: Sequence[ResultRules]) -> list[ResultRules]:
    """The rules of one turn's results, each with the expiration that holds for all of them together.

    It is the earliest, the most thorough and the shortest of theirs.
    """
    expiring = [each for each in rules if each.expiration_mode != "none"]
    if not expiring:
        return list(rules)
    together: dict[str, Any] = {
        "expiration_turns": min(each.expiration_turns for each in expiring),
        "expiration_mode": "remove" if any(each.expiration_mode == "remove" for each in expiring) else "compact",
        "compact_length": min(each.compact_length for each in expiring),
    }
    return [msgspec.structs.replace(each, **together) for each in rules]


@lru_cache(1_000)  # they are asked for several times an iteration
def rules_of(
    named: ResultPolicy | None, of_all: ResultPolicy, cap_chars: int, expiration: bool, retrieval: bool
) -> ResultRules:
    """What holds for one tool's results.

    Args:
        named: What is said of that tool.
        of_all: What is said of all tools.
        cap_chars: The cap where neither says one; 0 for the built-in one.
        expiration: Whether results expire at all.
        retrieval: See ``ResultRules.retrieval``.
    """
    said = _said(merge_policies(named, of_all))
    if cap_chars:
        said.setdefault("cap_chars", cap_chars)
    if not expiration:
        said["expiration_mode"] = "none"
    return ResultRules(**said, retrieval=retrieval)
