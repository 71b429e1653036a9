"""What a supervisor does about a crash: strategies, limits, back-off. The doing is in ``children.py``."""

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
            own count, since its failures are taken to be its own; under the group strategies the group has one.
            0 means that the first crash is too many.
        period: The window of that count, in seconds.
        when_exceeded: ``"escalate"``: the supervisor itself crashes; ``"stop"``: the child stops for good.
        backoff_first: Seconds to wait before the first restart; 0 restarts at once.
        backoff_factor: Each further restart waits this much longer.
        backoff_max: The longest wait, in seconds.
        backoff_reset: A child (or group) that did not crash for so many seconds starts again with
            ``backoff_first``.
    """

    strategy: Strategy = "one-for-one"
    max_restarts: int = 3
    period: float = 5.0
    when_exceeded: Literal["escalate", "stop"] = "escalate"
    backoff_first: float = 0.0
    backoff_factor: float = 2.0
    backoff_max: float = 30.0
    backoff_reset: float = 60.0

    def delay(self, restart: int) -> float:
        """Seconds to wait before the n-th restart in a row, counted from 1."""
        if self.backoff_first <= 0:
            return 0.0
        # The exponent is capped so that a long-lived crash loop cannot overflow a float.
        return min(self.backoff_max, self.backoff_first * self.backoff_factor ** min(restart - 1, 64))


class Comeback(msgspec.Struct, frozen=True):
    """The decision to restart.

    Attributes:
        error: What made it necessary.
        delay: Seconds to wait.
        grouped: Hold still until the restart of the group.
    """

    error: BaseException | None
    delay: float = 0.0
    grouped: bool = False


class RestartHistory:
    """The restarts of one child, or of one group."""

    __slots__ = ("_in_a_row", "_times")

    def __init__(self) -> None:
        self._times: list[float] = []
        self._in_a_row = 0

    def allow(self, policy: Supervision, now: float) -> float | None:
        """Note one more restart.

        Returns:
            Seconds to wait before it, or None if it is one too many.
        """
        if self._times and now - self._times[-1] > policy.backoff_reset:
            self._in_a_row = 0
        self._times = [time for time in self._times if now - time < policy.period]
        self._times.append(now)
        self._in_a_row += 1
        return None if len(self._times) > policy.max_restarts else policy.delay(self._in_a_row)
