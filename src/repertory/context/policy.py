"""The context policy of an agent: what the application asks for. The decisions themselves are made by the planner."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

import msgspec

from repertory._choices import check_struct, show
from repertory._frozen import EMPTY_DICT, freeze_fields
from repertory.errors import ConfigurationError
from repertory.shortening.rules import ResultPolicy, ResultRules, Size, merge_policies, rules_of
from repertory.shortening.trail import WINDOW

Rhythm: TypeAlias = Literal["thrifty", "strict"]

_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=100_000)]  # more iterations than a run can have

# Bytes and newest results of each preset, and tokens of a summary in strict rhythm, as the requirements state them.
_PRESETS = {"small": (30_000, 4), "medium": (50_000, 6), "large": (80_000, 10)}
_STRICT_SUMMARY = 500


class ContextPolicy(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """How the view of an agent is kept small. With ``context=None`` the agent runs as a plain loop instead.

    Attributes:
        rhythm: ``thrifty`` edits the past only when the edit pays for itself; ``strict`` applies every
            policy at every iteration, whatever that costs.
        window: Newest iterations that stay as they arrived.
        keep_recent: Newest tool results that the first attempts to make a prompt fit leave alone.
        strict_chars: Characters of a result that strict rhythm shows on arrival; 0 shows it whole.
        stubs: Whether stubs may replace old tool results.
        summaries: Whether trail or a summary may replace old iterations. If not, single results are
            shortened, in thrifty rhythm only if that costs nothing.
        summarize_every: Iterations between two requests to the summarizer; 0 never asks it.
        summary_tokens: Bound on one summary. None derives it from the length of the stretch; in strict rhythm it means
            500.
        budget_tokens: Bound on the whole prompt; None uses what the model's window leaves.
        keep_user_input: Whether messages of users and leads stay verbatim when a summary replaces what surrounds them.
        expiration: Whether results expire at all, whatever their policies say.
        retrieval: Whether stubs, trail and summaries name the tool that shows the original. They never do for an agent
            without ``context_tools()``.
        deduplicate: Whether a repeated call of a pure tool is answered from its earlier result; see ``repeatable``.
        known_calls: How many calls are remembered for ``deduplicate``. The least recently used is forgotten first; 0
            remembers none.
        show_once: Whether thrifty rhythm may show a bulky result whole only once. It always does so with the results of
            very large turns, and with others until the run has saved enough to pay for edits of the past.
        comfort_tokens: Bound on the view, for the sake of the model's attention. A longer view is shortened, except for
            what was said; in the window only turns whose results have more than a tenth of the bound are. None uses the
            bound in the model's profile, 0 sets no bound.
        results: Policy for the results of all tools of this agent.
        tools: Policies by tool name; they override ``results`` and the tool's own policy.
    """

    rhythm: Rhythm = "thrifty"
    window: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = WINDOW
    keep_recent: _Count = 6
    strict_chars: Size = 500
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
    comfort_tokens: Size | None = None
    results: ResultPolicy = ResultPolicy()
    tools: dict[str, ResultPolicy] = EMPTY_DICT

    def __post_init__(self) -> None:
        check_struct(self)
        freeze_fields(self, "tools")
        if (self.summary_tokens or 0) > (self.budget_tokens or math.inf):
            raise ConfigurationError(
                f"ContextPolicy.summary_tokens is {self.summary_tokens:,}; expected at most budget_tokens, which is "
                f"{self.budget_tokens:,}"
            )

    def rules(self, tool: str | None) -> ResultRules:
        """Return the rules for one tool's results, with all layers merged."""
        cap_chars = self.strict_chars if self.rhythm == "strict" else 0
        return rules_of(self.tools.get(tool or ""), self.results, cap_chars, self.expiration, self.retrieval)

    @property
    def summary_bound(self) -> int | None:
        """``summary_tokens``, or the default of this rhythm; None derives the bound from the length of the stretch."""
        return self.summary_tokens or (_STRICT_SUMMARY if self.rhythm == "strict" else None)

    @property
    def expires(self) -> bool:
        """Whether any result may expire."""
        layers = (self.results, *self.tools.values())
        return self.expiration and any(layer.expiration_mode not in (None, "none") for layer in layers)

    @classmethod
    def preset(cls, name: str) -> ContextPolicy:
        """Return a named policy in strict rhythm: ``small``, ``medium`` or ``large``.

        Their budgets are 30,000, 50,000 and 80,000 bytes, at four bytes a token; they keep the newest 4, 6 and 10
        results.

        Raises:
            ConfigurationError: There is no preset of that name.
        """
        if name not in _PRESETS:
            raise ConfigurationError(f"there is no context preset {show(name)}; expected one of {', '.join(_PRESETS)}")
        size, keep = _PRESETS[name]
        return cls(rhythm="strict", budget_tokens=size // 4, keep_recent=keep)

    def result_policy(self, tool: str | None) -> ResultPolicy:
        """Return the policy for one tool's results: its entry in ``tools``, with gaps filled from ``results``."""
        return merge_policies(self.tools.get(tool or ""), self.results)

    def with_layers(
        self, *, tools: Mapping[str, ResultPolicy] | None = None, run: ResultPolicy | None = None
    ) -> ContextPolicy:
        """Put the tools' own defaults below this policy and a run's overrides on top of it.

        Args:
            tools: Each tool's policy for its own results, by tool name.
            run: The caller's policy for one run; it overrides everything.

        Returns:
            The merged policy, for ``rules`` to read.
        """
        own = dict(tools or {})
        merged = {name: merge_policies(run, self.tools.get(name), own.get(name)) for name in {*own, *self.tools}}
        return msgspec.structs.replace(self, results=merge_policies(run, self.results), tools=merged)
