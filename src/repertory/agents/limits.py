"""How far a run may go before it is ended."""

from __future__ import annotations

import msgspec

from repertory.errors import ConfigurationError


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on one run and on the runs below it. A run that reaches one ends with ``LimitExceeded``.

    Attributes:
        iterations: Model calls of one run.
        depth: How many levels of sub-agents may stand below the root; 0 forbids delegation.
        runs: How many runs the whole tree may hold, the root included.
        cost: US dollars that the whole tree may spend, by its models' prices; None for no bound. A call that is
            under way when the bound is reached is still paid.
        parallel_tools: How many tool calls of one message run at once.
    """

    iterations: int = 50
    depth: int = 3
    runs: int = 20
    cost: float | None = None
    parallel_tools: int = 8

    def __post_init__(self) -> None:
        for name, least in (("iterations", 1), ("depth", 0), ("runs", 1), ("parallel_tools", 1)):
            value = getattr(self, name)
            if value < least:
                raise ConfigurationError(f"limits.{name} must be at least {least}, got {value!r}")
        if self.cost is not None and self.cost <= 0:
            raise ConfigurationError(f"limits.cost must be above 0 or None, got {self.cost!r}")
