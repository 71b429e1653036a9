"""Decides when to call a server again; no other module does."""

from __future__ import annotations

import email.utils
import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated

import msgspec

from repertory._choices import Checked, NotNegative, Positive


class RetryPolicy(Checked, frozen=True, kw_only=True):
    """How often, and after what delays, a call is retried that failed with an error that may be temporary.

    Attributes:
        attempts: Total calls, including the first; 1 means no retry.
        first_delay: Seconds before the second call, if the server names no delay. Doubles with every further call.
        longest_delay: Longest such delay, in seconds.
        total_time: Seconds since the first call after which no other is begun. If the server asks for a longer wait
            than is left, the call fails at once.
        jitter: Largest share of a delay, from 0 to 1, taken off at random so that callers do not retry in step.

    Raises:
        ConfigurationError: A value is of the wrong type, or out of range.
    """

    attempts: Positive = 5
    first_delay: NotNegative = 0.5
    longest_delay: NotNegative = 30.0
    total_time: NotNegative = 300.0
    jitter: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.25

    def delay(self, attempt: int, *, asked: float | None, chance: float) -> float:
        """Seconds to wait before an attempt (the second is 2); ``chance`` is a random number from 0 up to 1."""
        own = min(self.first_delay * 2.0 ** min(attempt - 2, 60), self.longest_delay)  # 60, so that it cannot overflow
        if asked:  # one that asks for no wait gets no storm; else jitter adds, as it asked us not to come back earlier
            return asked + own * self.jitter * chance
        return own * (1 - self.jitter * chance)


def asked_delay(headers: Mapping[str, str], *, now: float) -> float | None:
    """The seconds from now that a response's headers ask to wait; None if they ask for nothing, or nothing readable."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        with suppress(ValueError):
            seconds = float(headers.get(name, "")) * unit
            if math.isfinite(seconds):
                return max(0.0, seconds)
    with suppress(ValueError, OverflowError, TypeError, IndexError):  # a month 13, or an impossible year
        return max(0.0, email.utils.parsedate_to_datetime(headers.get("retry-after", "")).timestamp() - now)
    return None
