"""Policies: what an application asks for. Nothing here decides anything; the planner does."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin

import msgspec

from repertory._choices import choices, misfit, show
from repertory._frozen import freeze_fields
from repertory.errors import ConfigurationError

Rhythm: TypeAlias = Literal["thrifty", "strict"]
ExpirationMode: TypeAlias = Literal["none", "remove", "compact"]
CompactMode: TypeAlias = Literal["stub", "first_chars", "summary"]

# Bounds tell a slip of the pen from a wish: ten times the largest window there is, more iterations than a run can have.
_Size: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=10_000_000)]
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=100_000)]
_Short: TypeAlias = Annotated[int, msgspec.Meta(ge=20, le=10_000_000)]

# Strict rhythm has the numbers of the documents that asked for it, in bytes, newest results and tokens.
_PRESETS = {"small": (30_000, 4), "medium": (50_000, 6), "large": (80_000, 10)}
_STRICT_SUMMARY = 500


def _said(layer: ResultPolicy) -> dict[str, Any]:
    every = ((name, getattr(layer, name)) for name in layer.__struct_fields__)
    return {name: value for name, value in every if value is not None}


_declared = lru_cache(msgspec.structs.fields)


def _check_types(struct: msgspec.Struct) -> None:
    # Structs do not check what Python code puts into them, and a wrong type would surface far from here.
    for field in _declared(type(struct)):
        value = getattr(struct, field.name)
        try:
            msgspec.convert(msgspec.to_builtins(value), type=field.type)
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


class ResultPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What one layer says about a tool's results. None leaves the matter to the layer below.

    The layers, the strongest first: the run, the agent's entry for the tool, the tool's own default, what the agent
    says of all tools, the built-in ``ResultRules``. The fields are those of ``ResultRules``, without what holds for an
    agent as a whole.

    Raises:
        ConfigurationError: A value makes no sense; the message names the field.
    """

    cap_chars: _Size | None = None
    cite_over: _Size | None = None
    cite_on_arrival: bool | None = None
    excerpt_chars: _Short | None = None
    expiration_turns: _Size | None = None
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
        _check_types(self)
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
def _rules_of(
    named: ResultPolicy | None, of_all: ResultPolicy, cap_chars: int, expiration: bool, retrieval: bool
) -> ResultRules:
    said = _said(merge_policies(named, of_all))
    if cap_chars:
        said.setdefault("cap_chars", cap_chars)
    if not expiration:
        said["expiration_mode"] = "none"
    return ResultRules(**said, retrieval=retrieval)


class ContextPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How the view of an agent is kept small. ``context=None`` on an agent means a plain loop instead.

    Attributes:
        rhythm: ``thrifty`` edits the past when the arithmetic says that it pays; ``strict`` applies every
            policy at every iteration, whatever that costs.
        window: Newest iterations that stay as they arrived.
        keep_recent: Newest tool results that are spared at first when the prompt must be made to fit.
        strict_chars: Characters that strict rhythm shows of a result on arrival; 0 shows it whole.
        stubs: Whether old tool results may become stubs.
        summaries: Whether trail or a summary may stand for what is old. Without them single results are
            shortened, in thrifty rhythm only where that costs nothing.
        summarize_every: Iterations between two requests to the summarizer; 0 never asks it.
        summary_tokens: Bound on one summary; None for as many as its stretch deserves, and for 500 in strict rhythm.
        budget_tokens: Bound on the whole prompt; None takes what the model's window leaves.
        keep_user_input: What users and leads say stays verbatim when a summary stands for what surrounds it.
        expiration: Whether results expire at all, whatever their policies say.
        retrieval: Whether the texts that stand for something name the tool that shows it whole. For an agent without
            ``context_tools()`` they never do.
        deduplicate: Whether a call of a pure tool that was made before is answered from its result; see ``repeatable``.
        known_calls: How many calls are known for that, the longest unused forgotten first; 0 for none.
        show_once: Whether thrifty rhythm may show a bulky result whole only once: a very large one always, others for
            as long as the run has not saved enough to pay for edits of the past.
        comfort_tokens: Bound on the view for the model's attention: what is longer is made shorter, though nothing that
            stands in the window and nothing that was said; None for what the model's profile says, 0 for no bound.
        results: For the results of all tools of this agent.
        tools: By the tool's name; beats ``results`` and the tool's own policy.
    """

    rhythm: Rhythm = "thrifty"
    window: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 5
    keep_recent: _Count = 6
    strict_chars: _Size = 500
    stubs: bool = True
    summaries: bool = True
    summarize_every: _Count = 10
    summary_tokens: Annotated[int, msgspec.Meta(ge=50, le=100_000)] | None = None
    budget_tokens: Annotated[int, msgspec.Meta(ge=500, le=10_000_000)] | None = None
    keep_user_input: bool = True
    expiration: bool = True
    retrieval: bool = True
    deduplicate: bool = True
    known_calls: _Count = 1_000
    show_once: bool = True
    comfort_tokens: _Size | None = None
    results: ResultPolicy = ResultPolicy()
    tools: dict[str, ResultPolicy] = msgspec.field(default_factory=dict[str, ResultPolicy])

    def __post_init__(self) -> None:
        _check_types(self)
        given: list[tuple[str, object]] = [("results", self.results)]
        given += ((f"tools[{tool!r}]", said) for tool, said in self.tools.items())
        for name, said in given:
            if not isinstance(said, ResultPolicy):  # the check of types takes a dictionary for one, as in JSON
                raise ConfigurationError(f"ContextPolicy.{name} is {show(said)}; expected a ResultPolicy")
        freeze_fields(self, "tools")
        if (self.summary_tokens or 0) > (self.budget_tokens or math.inf):
            raise ConfigurationError(
                f"ContextPolicy.summary_tokens is {self.summary_tokens:,}; expected at most budget_tokens, which is "
                f"{self.budget_tokens:,}"
            )

    def rules(self, tool: str | None) -> ResultRules:
        """What holds for one tool's results, all layers merged."""
        cap_chars = self.strict_chars if self.rhythm == "strict" else 0
        return _rules_of(self.tools.get(tool or ""), self.results, cap_chars, self.expiration, self.retrieval)

    @property
    def summary_bound(self) -> int | None:
        """``summary_tokens`` as it holds in this rhythm; None for as many as a stretch deserves."""
        return self.summary_tokens or (_STRICT_SUMMARY if self.rhythm == "strict" else None)

    @property
    def expires(self) -> bool:
        """Whether any result may expire."""
        layers = (self.results, *self.tools.values())
        return self.expiration and any(layer.expiration_mode not in (None, "none") for layer in layers)

    @classmethod
    def preset(cls, name: str) -> ContextPolicy:
        """One of the budgets that go by a name: ``small``, ``medium`` or ``large``, in strict rhythm.

        They are 30,000, 50,000 and 80,000 bytes, at four a token, and keep the newest 4, 6 and 10 results.

        Raises:
            ConfigurationError: There is no such name.
        """
        if name not in _PRESETS:
            raise ConfigurationError(f"there is no context preset {show(name)}; expected one of {', '.join(_PRESETS)}")
        size, keep = _PRESETS[name]
        return cls(rhythm="strict", budget_tokens=size // 4, keep_recent=keep)

    def said_of(self, tool: str | None) -> ResultPolicy:
        """What is said of one tool's results: by its name first, then for all tools."""
        return merge_policies(self.tools.get(tool or ""), self.results)

    def with_layers(
        self, *, tools: Mapping[str, ResultPolicy] | None = None, run: ResultPolicy | None = None
    ) -> ContextPolicy:
        """Put the tools' own defaults below this policy and a run's overrides on top of it.

        Args:
            tools: What each tool says about its own results.
            run: What the caller says for one run; it beats everything.

        Returns:
            The policy that ``rules`` reads from then on.
        """
        below = dict(tools or {})
        merged = {name: merge_policies(run, self.tools.get(name), below.get(name)) for name in {*below, *self.tools}}
        return msgspec.structs.replace(self, results=merge_policies(run, self.results), tools=merged)
