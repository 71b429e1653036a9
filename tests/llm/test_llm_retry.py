"""When a call is made again, and after how long."""

from __future__ import annotations

import math
from email.utils import formatdate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory.errors import ConfigurationError
from repertory.llm import RetryPolicy
from repertory.llm.retry import asked_delay

NOW = 1_790_000_000.0


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": formatdate(NOW + 90, usegmt=True)}, 90.0),
        ({"retry-after": formatdate(NOW - 90, usegmt=True)}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "Fri, 31 Dec 99999 23:59:59 GMT"}, None),
        ({"retry-after": "Mon, 99 Foo 2026 99:99:99 GMT"}, None),
        ({"retry-after": "Mon, 01 Jan 2024 00:00:00 +99999999999999"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "x", "retry-after": "9"}, 9.0),
    ],
)
def test_the_wait_that_a_server_asks_for_is_understood(headers: dict[str, str], seconds: float | None) -> None:
    """Seconds, HTTP dates and milliseconds are read; nonsense is as good as nothing."""
    assert asked_delay(headers, now=NOW) == seconds


def test_delays_double_up_to_a_bound() -> None:
    """Exponential back-off, exactly, where chance takes nothing off."""
    policy = RetryPolicy(first_delay=0.5, longest_delay=3.0)
    assert [policy.delay(n, asked=None, chance=0.0) for n in range(2, 7)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert policy.delay(10_000, asked=None, chance=0.0) == 3.0


@pytest.mark.parametrize(
    "wrong", [{"attempts": 0}, {"first_delay": -1.0}, {"longest_delay": math.nan}, {"total_time": "9"}, {"jitter": 1.5}]
)
def test_a_policy_that_cannot_be_is_refused(wrong: Any) -> None:
    """When it is made, not when a call has failed."""
    with pytest.raises(ConfigurationError, match=f"RetryPolicy.{next(iter(wrong))} is .*; expected"):
        RetryPolicy(**wrong)


def test_a_server_that_asks_for_no_wait_gets_no_storm() -> None:
    """Zero, a negative number and a date in the past stand for the policy's own delay."""
    assert RetryPolicy(first_delay=0.5).delay(4, asked=0.0, chance=0.0) == 2.0


@given(st.integers(2, 50), st.floats(0, 1000, exclude_min=True), st.floats(0, 0.999), st.floats(0, 1))
def test_chance_shortens_own_delays_and_never_what_was_asked(
    n: int, asked: float, chance: float, jitter: float
) -> None:
    """A delay stays within its bounds whatever chance says; a server's request is never undercut."""
    policy = RetryPolicy(jitter=jitter)
    full = policy.delay(n, asked=None, chance=0.0)
    assert full * (1 - jitter) <= policy.delay(n, asked=None, chance=chance) <= full
    assert asked <= policy.delay(n, asked=asked, chance=chance) <= asked + full
