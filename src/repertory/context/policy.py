"""The policy of an agent's view: what an application asks for. Nothing here decides anything; the planner does."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

import msgspec

from repertory._choices import show
from repertory._frozen import EMPTY_DICT, freeze_fields
from repertory.errors import ConfigurationError
from repertory.shortening.rules import ResultPolicy, ResultRules, Size, check_types, merge_policies, rules_of
from repertory.shortening.trail import WINDOW

Rhythm: TypeAlias = Literal["thrifty", "strict"]

_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=100_000)]  # more iterations than a run can have

# Strict rhythm has the numbers of the documents that asked for it, in bytes, newest results and tokens.
_PRESETS = {"small": (30_000, 4), "medium": (50_000, 6), "large": (80_000, 10)}
_STRICT_SUMMARY = 500


class ContextPolicy(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
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
        check_types(self)
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
        return rules_of(self.tools.get(tool or ""), self.results, cap_chars, self.expiration, self.retrieval)

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
