"""Alerts: figures of a run that say that something is wrong with its context, and from where on they do."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import msgspec

from repertory.agents.events import AnyEvent, ModelAnswered, SummaryRefused, SummaryTaken, ToolEnded
from repertory.errors import ConfigurationError


class AlertThresholds(msgspec.Struct, frozen=True, kw_only=True):
    """From where on a figure is worth an ``Alert``; None never is.

    Attributes:
        tokens: Prompt tokens of the last ``window`` iterations together.
        window: Iterations.
        retrieval_share: Share of the tool calls that look something up again, with ``context_retrieve`` or
            ``retrieve_content``, from 0 to 1.
        least_tool_calls: With fewer tool calls their share says nothing yet.
        summary_failures: Share of the summaries that were refused, or that the strategy asked failed to write, from 0
            to 1. One that an extractive summary took the place of has failed; a request that a newer one replaced has
            not, and does not count at all.

    Raises:
        ConfigurationError: A value is no number, or out of its bounds.
    """

    tokens: int | None = 80_000
    window: int = 16
    retrieval_share: float | None = 0.10
    least_tool_calls: int = 10
    summary_failures: float | None = 0.01

    def __post_init__(self) -> None:
        _check("tokens", self.tokens, int, least=0, none=True)
        _check("window", self.window, int, least=1)
        _check("least_tool_calls", self.least_tool_calls, int, least=1)
        for name in ("retrieval_share", "summary_failures"):
            _check(name, getattr(self, name), int | float, least=0, most=1, none=True)


def _check(name: str, value: Any, kind: Any, *, least: int, most: float = math.inf, none: bool = False) -> None:
    number = isinstance(value, kind) and not isinstance(value, bool)
    if not (none if value is None else number and least <= value <= most):
        words = "a whole number" if kind is int else "a number"
        bounds = f"of at least {least}" if most == math.inf else f"from {least} to {most}"
        raise ConfigurationError(f"alerts.{name} must be {words} {bounds}{' or None' * none}, got {value!r}")


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a run that are watched.

    Attributes:
        tokens: Prompt tokens of the last iterations.
        summaries: Those that were written as they should be.
        summaries_failed: Those that were refused or failed; see ``summary_failed``.
    """

    tokens: int = 0
    tool_calls: int = 0
    retrievals: int = 0
    summaries: int = 0
    summaries_failed: int = 0


class Crossing(msgspec.Struct, frozen=True):
    """One figure beyond its threshold."""

    metric: str
    value: float
    threshold: float
    reason: str


def crossings(figures: Watched, thresholds: AlertThresholds) -> list[Crossing]:
    """Say which figures are beyond their thresholds. A pure function."""
    found: list[Crossing] = []
    most = thresholds.tokens
    if most is not None and figures.tokens > most:
        reason = f"{figures.tokens:,} prompt tokens in the last {thresholds.window} iterations, more than {most:,}"
        found.append(Crossing("tokens", figures.tokens, most, reason))
    share = thresholds.retrieval_share
    if share is not None and figures.tool_calls >= thresholds.least_tool_calls:
        value = figures.retrievals / figures.tool_calls
        if value > share:
            reason = f"{value:.1%} of {figures.tool_calls} tool calls look something up again, more than {share:.1%}"
            found.append(Crossing("retrieval_share", value, share, reason))
    failures = thresholds.summary_failures
    asked = figures.summaries + figures.summaries_failed
    if failures is not None and asked:
        value = figures.summaries_failed / asked
        if value > failures:
            reason = f"{value:.1%} of {asked} summaries failed or were refused, more than {failures:.1%}"
            found.append(Crossing("summary_failures", value, failures, reason))
    return found


def summary_failed(event: AnyEvent) -> bool:
    """Whether an event says that a summary was not written as it should be."""
    return isinstance(event, SummaryRefused) or (isinstance(event, SummaryTaken) and bool(event.failure))


class Watch:
    """Watches one run through its events, and says of each crossing once."""

    def __init__(self, thresholds: AlertThresholds) -> None:
        self._thresholds = thresholds
        self._prompts: deque[int] = deque(maxlen=thresholds.window)
        self._counts = Watched()
        self._beyond: set[str] = set()

    def saw(self, event: AnyEvent) -> None:
        """Count an event, as it is published or as the journal has it."""
        now = self._counts
        if isinstance(event, ModelAnswered):
            self._prompts.append(event.usage.prompt_tokens)
        elif isinstance(event, ToolEnded):
            retrievals = now.retrievals + event.retrieval
            self._counts = msgspec.structs.replace(now, tool_calls=now.tool_calls + 1, retrievals=retrievals)
        elif summary_failed(event):
            self._counts = msgspec.structs.replace(now, summaries_failed=now.summaries_failed + 1)
        elif isinstance(event, SummaryTaken):
            self._counts = msgspec.structs.replace(now, summaries=now.summaries + 1)

    def check(self) -> list[Crossing]:
        """The figures that have gone beyond their threshold since the last check; back below, they may again."""
        figures = msgspec.structs.replace(self._counts, tokens=sum(self._prompts))
        found = crossings(figures, self._thresholds)
        fresh = [crossing for crossing in found if crossing.metric not in self._beyond]
        self._beyond = {crossing.metric for crossing in found}
        return fresh
