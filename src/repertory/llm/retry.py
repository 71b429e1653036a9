"""When to call a server again: the one place that decides it."""

from __future__ import annotations

import email.utils
import math
from collections.abc import Mapping
from contextlib import suppress

import msgspec

from repertory._choices import check_struct


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How often, and how patiently, a call that failed in passing is made again.

    Attributes:
        attempts: Calls in all, the first included; 1 means never again.
        first_delay: Seconds before the second call, where the server does not say. Doubles with every further one.
        longest_delay: Bound on one such delay, in seconds.
        total_time: Seconds since the first call after which none is begun any more. A server that asks for a longer
            wait than what is left is taken for unavailable at once.
        jitter: Share of a delay that chance may take off, from 0 to 1, so that many callers do not come back in step.

    Raises:
        ConfigurationError: A value is of another type.
    """

    attempts: int = 5
    first_delay: float = 0.5
    longest_delay: float = 30.0
    total_time: float = 300.0
    jitter: float = 0.25

    def __post_init__(self) -> None:
        check_struct(self)

    def delay(self, attempt: int, *, asked: float | None, chance: float) -> float:
        """Seconds to wait before an attempt (the second is 2); ``chance`` is a random number from 0 up to 1."""
        # The exponent is capped only so that a very long series cannot overflow.
        own = min(self.first_delay * 2.0 ** min(attempt - 2, 60), self.longest_delay)
        if asked is not None:
            # Spread out upwards: coming back early is what the server asked us not to do.
            return asked + own * self.jitter * chance
        return own * (1 - self.jitter * chance)


def asked_delay(headers: Mapping[str, str], *, now: float) -> float | None:
    """The seconds that a response's headers ask to wait, from now; None where they ask for nothing that can be read."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        with suppress(ValueError):
            seconds = float(headers.get(name, "")) * unit
            if math.isfinite(seconds):
                return max(0.0, seconds)
    try:
        date = email.utils.parsedate_tz(headers.get("retry-after", ""))
        return None if date is None else max(0.0, email.utils.mktime_tz(date) - now)
    except (ValueError, OverflowError, TypeError, IndexError):
        return None  # a month of 13, or a year that no calendar has
