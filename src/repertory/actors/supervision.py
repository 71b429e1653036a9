"""What a supervisor does about a crash: strategies, limits, back-off."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

Restart: TypeAlias = Literal["permanent", "transient", "temporary"]
"""Whether an actor comes back: always unless stopped from outside, after a crash, or never."""

Strategy: TypeAlias = Literal["one-for-one", "one-for-all", "rest-for-one"]
"""Who is restarted with a crashed child: nobody, all its siblings, or those started after it."""


class Supervision(msgspec.Struct, frozen=True, kw_only=True):
    """How an actor treats its children. In the spirit of https://www.erlang.org/doc/system/sup_princ.html.

    Attributes:
        strategy: Who is restarted with a crashed child.
        max_restarts: More restarts than this within ``period`` are too many. Under one-for-one every child has its
            own count; under the group strategies the group has one. 0 means that the first crash is too many.
        period: The window, in seconds, and how long a child must live for its back-off to start anew.
        when_exceeded: ``"escalate"``: the supervisor itself crashes; ``"stop"``: the child stops for good.
        backoff_first: Seconds to wait before the first restart; 0 restarts at once.
        backoff_factor: Each further restart waits this much longer.
        backoff_max: The longest wait, in seconds.
    """

    strategy: Strategy = "one-for-one"
    max_restarts: int = 3
    period: float = 5.0
    when_exceeded: Literal["escalate", "stop"] = "escalate"
    backoff_first: float = 0.0
    backoff_factor: float = 2.0
    backoff_max: float = 30.0

    def delay(self, restart: int) -> float:
        """Seconds to wait before the n-th restart in a row, counted from 1."""
        if self.backoff_first <= 0:
            return 0.0
        # The exponent is capped so that a long-lived crash loop cannot overflow a float.
        return min(self.backoff_max, self.backoff_first * self.backoff_factor ** min(restart - 1, 64))
