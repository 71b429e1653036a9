"""The short profile of ``repertory torture``, as part of every run of the tests."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest

from repertory.torture import ScenarioReport, run_torture
from repertory.torture.scenarios import SCENARIOS


def test_the_short_profile_finds_nothing_and_catches_every_control() -> None:
    """Power cuts and kills: a part of each change's life. The same seed each time."""
    report = run_torture(SCENARIOS, seed=7)
    found = [failure for scenario in report.scenarios for failure in scenario.failures]
    assert found == []
    assert report.clean, msgspec.json.encode(report).decode()
    assert [each.name for each in report.scenarios if each.left_out] in ([], ["power-cuts"])


@pytest.mark.nightly
def test_the_full_profile_finds_nothing_and_is_as_large_as_promised() -> None:
    """Half an hour with another seed each time, and as much of everything as the documentation says."""
    seed = random.SystemRandom().randrange(10**6)
    report = run_torture(SCENARIOS, profile="full", seed=seed)
    assert report.clean, (seed, msgspec.json.encode(report).decode())
    counts = Counter[str]()
    for scenario in report.scenarios:
        assert scenario.controls
        counts.update(scenario.counts)
    assert counts["images"] >= 20_000
    assert counts["fault scenarios"] >= 200
    assert counts["SIGKILLs"] >= 2_000


def test_a_scenario_that_is_not_clean_is_seen() -> None:
    """Negative control: a failure, or a control that was not caught."""
    assert ScenarioReport(name="x", controls={"y": 1}).clean
    assert not ScenarioReport(name="x", failed=1).clean
    assert not ScenarioReport(name="x", controls={"y": 0}).clean
