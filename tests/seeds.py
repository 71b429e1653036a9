"""Seeds for tests that draw what they do."""

from __future__ import annotations

import random
from typing import Any

import pytest


def seeds(few: int, *, at_night: int) -> list[Any]:
    """The same few seeds each time, and at night so many new ones; for ``parametrize``."""
    new = random.SystemRandom().sample(range(few, 10**6), at_night)
    return [*range(few), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in new)]
