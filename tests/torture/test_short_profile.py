"""The short profile of ``repertory torture``, as part of every run of the tests."""

from __future__ import annotations

import msgspec

from repertory.torture import ScenarioReport, run_torture
from repertory.torture.scenarios import SCENARIOS


def test_the_short_profile_finds_nothing_and_catches_every_control() -> None:
    """Power cuts, kills, storms and mutated answers: a minute of each change's life. The same seed each time."""
    report = run_torture(SCENARIOS, seed=7)
    found = [failure for scenario in report.scenarios for failure in scenario.failures]
    assert found == []
    assert report.clean, msgspec.json.encode(report).decode()
    assert [each.name for each in report.scenarios if each.left_out] in ([], ["power-cuts"])


def test_the_full_profile_is_as_large_as_promised() -> None:
    """At least 200 scenarios of power cuts with 20,000 images, 2,000 kills, 10,000 mutated answers."""
    cases = {scenario.name: scenario.cases["full"] for scenario in SCENARIOS}
    assert cases["power-cuts"] >= 300  # about three in four have a fault, and seventy distinct images each
    assert cases["kills"] >= 200  # about a dozen each
    assert cases["answers"] * 48 >= 10_000
    assert all(scenario.controls for scenario in SCENARIOS)


def test_a_scenario_that_is_not_clean_is_seen() -> None:
    """Negative control: a failure, or a control that was not caught."""
    assert ScenarioReport(name="x", controls={"y": 1}).clean
    assert not ScenarioReport(name="x", failed=1).clean
    assert not ScenarioReport(name="x", controls={"y": 0}).clean
