"""Rules for tool results, merged from the layers at which an application can set them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from repertory._choices import check_struct
from repertory.errors import ConfigurationError

ExpirationMode: TypeAlias = Literal["none", "remove", "compact"]
CompactMode: TypeAlias = Literal["stub", "first_chars", "summary"]

# The bounds catch typing errors: they are ten times the largest window there is.
Size: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=10_000_000)]
_Short: TypeAlias = Annotated[int, msgspec.Meta(ge=20, le=10_000_000)]


def _set_fields(layer: ResultPolicy) -> dict[str, Any]:
    fields = ((name, getattr(layer, name)) for name in layer.__struct_fields__)
    return {name: value for name, value in fields if value is not None}


class ResultRules(msgspec.Struct, frozen=True, kw_only=True):
    """How the results of one tool are treated: a ``ResultPolicy`` in which every field has a value, and its defaults.

    Attributes:
        retrieval: Whether what replaces a result names the tool that shows the whole; see ``ContextPolicy.retrieval``.
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
    """What one layer sets for a tool's results. A field that is None takes its value from the next weaker layer.

    The layers, strongest first: the run, the agent's policy for the tool, the tool's own policy, the agent's policy for
    all tools, the defaults, which ``docs/context.md`` lists.

    Attributes:
        cap_chars: Longest result, in characters, that is shown whole on arrival; of a longer one head and tail are
            shown. 0 sets no cap. The default, 192,000, is about 48,000 tokens.
        cite_over: Results of more characters than this go whole to the content store on arrival; 0 stores none.
        cite_on_arrival: Show only the excerpt of a cited result, from the first request on.
        excerpt_chars: Length of a citation's excerpt.
        expiration_turns: Requests that show a result before it expires. 0 is the same as 1: every result is shown once.
        expiration_mode: What happens to an expired result: nothing, it is removed, or it is compacted.
        compact_mode: What replaces a compacted result: a stub with what is likely to be needed again, its first
            characters, or a summary that the summarizer's model writes as soon as the result arrives. If there is no
            summary (no model, a failure, not ready yet), the stub is shown.
        compact_length: Approximate length of a compacted result in characters.
        compact_prompt: Instructions for that summary; "" uses the built-in ones. The answer must be JSON with
            ``summary`` and, optionally, ``facts``.
        compactor: Name of the plug-in that compacts this tool's results; "" selects one by the content.
        pin: Keep the results in view verbatim for the whole run.
        importance: Weight of these results relative to others; 1 is normal. In strict rhythm it multiplies ``window``
            for them: below 1 they become stubs sooner, above 1 later. That does not keep a summary from replacing
            them; ``pin`` does. In thrifty rhythm it multiplies the share of their lines that the trail keeps.
        retention: Seconds for which the content store keeps the whole of a result that was cut on arrival, counted from
            the end of the tree of runs. Then it is lost, unless the ledger holds it or it is pinned. The default keeps
            it.
        remember: Whether each result also becomes an item of memory, in one transaction with the call's outcome. Not
            remembered are results of failed calls and results that came from memory or from the record itself.

    Raises:
        ConfigurationError: A value is invalid; the message names the field.
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
        check_struct(self)
        if self.cite_on_arrival and self.cite_over == 0:
            raise ConfigurationError(
                "ResultPolicy.cite_on_arrival is True and cite_over is 0: what is not cited has no excerpt to show"
            )
        if self.pin and self.expiration_mode == "remove":
            raise ConfigurationError(
                "ResultPolicy.pin is True and expiration_mode is 'remove': results stay, or they go; choose one"
            )


def merge_policies(*layers: ResultPolicy | None) -> ResultPolicy:
    """Merge policies, strongest first: each field has its value from the first layer that sets it.

    If layers contradict each other, ``pin`` overrides ``expiration_mode="remove"``, and ``cite_over=0`` overrides
    ``cite_on_arrival``.
    """
    values: dict[str, Any] = {}
    for layer in reversed(layers):
        if layer is not None:
            values.update(_set_fields(layer))
    if values.get("pin") and values.get("expiration_mode") == "remove":
        values["expiration_mode"] = "none"
    if values.get("cite_over") == 0 and values.get("cite_on_arrival"):
        values["cite_on_arrival"] = False
    return ResultPolicy(**values)


def expiring_together(rules: Sequence[ResultRules]) -> list[ResultRules]:
    """Return the rules of one turn's results, with one expiration for all of them.

    It takes the smallest ``expiration_turns``, ``remove`` before ``compact``, and the smallest ``compact_length``.
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


@lru_cache(1_000)  # called several times an iteration
def rules_of(
    named: ResultPolicy | None, all_tools: ResultPolicy, cap_chars: int, expiration: bool, retrieval: bool
) -> ResultRules:
    """Return the rules for one tool's results.

    Args:
        named: The policy for that tool.
        all_tools: The policy for all tools.
        cap_chars: The cap if neither policy sets one; 0 uses the built-in one.
        expiration: Whether results expire at all.
        retrieval: See ``ResultRules.retrieval``.
    """
    values = _set_fields(merge_policies(named, all_tools))
    if cap_chars:
        values.setdefault("cap_chars", cap_chars)
    if not expiration:
        values["expiration_mode"] = "none"
    return ResultRules(**values, retrieval=retrieval)
