"""Alerts: figures of a run which show that something is wrong with its context, and their thresholds."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from repertory._choices import check_number
from repertory._counting import counted
from repertory.record import RunStatistics

_WRITTEN: Final = {"cost": "${:,.4f}", "seconds": "{:,.0f} s"}
"""How an amount of a limit is written, with its unit; any other is a number of what the limit is called."""


class AlertThresholds(msgspec.Struct, frozen=True, kw_only=True):
    """The thresholds beyond which a figure causes an ``Alert``; None turns that alert off.

    Attributes:
        tokens: Sum of the prompt tokens of the last ``window`` iterations.
        window: How many iterations ``tokens`` covers.
        retrieval_share: Share of tool calls that look something up again, with ``context_retrieve`` or
            ``retrieve_content``, from 0 to 1.
        least_tool_calls: How many tool calls a run must have made before ``retrieval_share`` applies.
        billed_share: Least share of the newest prompt's estimated tokens that the server should bill, from 0 to 1;
            below it the server cuts prompts, or its bill is wrong. The estimate counts four bytes as a token, and
            hardly any text has sixteen bytes to a token.
        least_estimate: How many tokens a prompt must be estimated at before ``billed_share`` applies.
        limit_share: Share of a limit on money, tokens, seconds or tool calls that is used, from 0 to 1; the alert comes
            from the run whose limit it is.
        summary_failures: Share of the summaries that were refused or failed, from 0 to 1. A summary has failed if the
            extractive strategy had to write it in place of the requested one. A request that a newer one replaced does
            not count at all.

    Raises:
        ConfigurationError: A value is not a number, or is out of range.
    """

    tokens: int | None = 80_000
    window: int = 16
    retrieval_share: float | None = 0.10
    least_tool_calls: int = 10
    summary_failures: float | None = 0.01
    billed_share: float | None = 0.25
    limit_share: float | None = 0.8
    least_estimate: int = 4_000

    def __post_init__(self) -> None:
        check_number("alerts.tokens", self.tokens, int, least=0, none=True)
        for name in ("window", "least_tool_calls", "least_estimate"):
            check_number(f"alerts.{name}", getattr(self, name), int, least=1)
        for name in ("retrieval_share", "summary_failures", "billed_share", "limit_share"):
            check_number(f"alerts.{name}", getattr(self, name), int | float, least=0, most=1, none=True)


class Crossing(msgspec.Struct, frozen=True):
    """One figure beyond its threshold."""

    metric: str
    value: float
    threshold: float
    reason: str


def crossings(
    figures: RunStatistics,
    thresholds: AlertThresholds,
    *,
    tokens: int,
    billed: int = 0,
    estimate: int = 0,
    used: Mapping[str, tuple[float, float]] = MappingProxyType({}),
) -> list[Crossing]:
    """Find the figures that are beyond their thresholds. A pure function.

    Args:
        tokens: Prompt tokens of the last iterations.
        billed: Tokens of the newest prompt, as billed by the server.
        estimate: Tokens of the newest prompt, as estimated from its length.
        used: How much of each limit is used, and the limit.
    """
    found: list[Crossing] = []
    most = thresholds.tokens
    if most is not None and tokens > most:
        reason = f"{tokens:,} prompt tokens in the last {counted(thresholds.window, 'iteration')}, more than {most:,}"
        found.append(Crossing("tokens", tokens, most, reason))
    share, calls = thresholds.retrieval_share, figures.tool_calls
    if share is not None and calls >= thresholds.least_tool_calls and (value := figures.retrievals / calls) > share:
        reason = f"{value:.1%} of {calls} tool calls look something up again, more than {share:.1%}"
        found.append(Crossing("retrieval_share", value, share, reason))
    failures, asked = thresholds.summary_failures, figures.summaries_written + figures.summaries_refused
    if failures is not None and asked and (value := figures.summaries_failed / asked) > failures:
        reason = f"summaries that failed or were refused: {value:.1%} of {asked}, more than {failures:.1%}"
        found.append(Crossing("summary_failures", value, failures, reason))
    least = thresholds.billed_share
    if least is not None and estimate >= thresholds.least_estimate and (value := billed / estimate) < least:
        reason = (
            f"the server billed {billed:,} tokens for a prompt of about {estimate:,}, less than {least:.0%}: it cuts "
            "or edits prompts, or its bill is wrong"
        )
        found.append(Crossing("billed_share", value, least, reason))
    near = thresholds.limit_share
    for name, (now, bound) in used.items():
        if near is not None and now >= near * bound:
            words = _WRITTEN.get(name, "{:,.10g}")
            reason = f"{words.format(now)} of {words.format(bound)} are used, {now / bound:.0%} (limits.{name})"
            found.append(Crossing(f"limits.{name}", now / bound, near, reason))
    return found


class Watch:
    """Watches the figures of one run, and reports each crossing once."""

    def __init__(self, thresholds: AlertThresholds) -> None:
        self._thresholds = thresholds
        self._prompts: deque[int] = deque(maxlen=thresholds.window)
        self._estimate = 0  # of the newest prompt
        self._beyond: set[str] = set()

    def saw_prompt(self, tokens: int, *, estimate: int = 0) -> None:
        """Count the prompt of one more iteration, with its billed and its estimated tokens."""
        self._prompts.append(tokens)
        self._estimate = estimate

    def check(
        self, figures: RunStatistics, used: Mapping[str, tuple[float, float]] = MappingProxyType({})
    ) -> list[Crossing]:
        """The figures that have crossed their threshold since the last check; one that went back may cross again."""
        prompts = self._prompts
        billed = prompts[-1] if prompts else 0
        found = crossings(
            figures, self._thresholds, tokens=sum(prompts), billed=billed, estimate=self._estimate, used=used
        )
        fresh = [crossing for crossing in found if crossing.metric not in self._beyond]
        self._beyond = {crossing.metric for crossing in found}
        return fresh
