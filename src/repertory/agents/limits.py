"""How far a run may go before it is ended."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from repertory.errors import ConfigurationError


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on one run and on the runs below it. A run that reaches one ends with ``LimitExceeded``.

    They count what is on record, in whichever process it happened, and are reserved before anything begins.

    Attributes:
        iterations: Iterations of one run, each of which is a model call that was answered.
        depth: How many levels of sub-agents may stand below the root; 0 forbids delegation.
        runs: How many runs the whole tree may hold, the root included; also those that have ended.
        cost: US dollars that the whole tree may spend, by its models' prices, the summarizer's calls included; None
            for no bound. The call with which the bound is reached is still paid; where calls side by side could go
            further beyond it, they are made one after the other. A call that a crash cut off counts with the most that
            it can have cost.
        parallel_tools: How many tool calls of one message run at once.

    Raises:
        ConfigurationError: A value is no number, or out of its bounds.
    """

    iterations: int = 50
    depth: int = 3
    runs: int = 20
    cost: float | None = None
    parallel_tools: int = 8

    def __post_init__(self) -> None:
        for name, least in (("iterations", 1), ("depth", 0), ("runs", 1), ("parallel_tools", 1)):
            check_number(f"limits.{name}", getattr(self, name), int, least=least)
        check_number("limits.cost", self.cost, int | float, least=0, none=True)
        if self.cost == 0:
            raise ConfigurationError("limits.cost must be above 0, or None for no bound, got 0")


def check_number(name: str, value: Any, kind: Any, *, least: int, most: float = math.inf, none: bool = False) -> None:
    """Raise ``ConfigurationError`` for what is no such number from ``least`` to ``most``, nor a permitted None."""
    number = isinstance(value, kind) and not isinstance(value, bool) and math.isfinite(value)
    if not (none if value is None else number and least <= value <= most):
        words = "a whole number" if kind is int else "a number"
        bounds = f"of at least {least}" if most == math.inf else f"from {least} to {most}"
        raise ConfigurationError(f"{name} must be {words} {bounds}{' or None' * none}, got {value!r}")
