"""The frame of torture: every case is played once, and nothing that goes wrong is taken for a success."""

from __future__ import annotations

from pathlib import Path

import pytest
import torture_cases

from repertory.errors import ConfigurationError
from repertory.torture import Scenario, choose, run_torture
from repertory.torture.frame import Play, seed_of


def scenario(play: Play, name: str = "made up", **controls: Play) -> Scenario:
    """A scenario of three cases."""
    return Scenario(name=name, play=play, cases={"short": 3, "full": 9}, controls=controls)


def test_every_case_is_played_with_a_seed_of_its_own() -> None:
    """Sums come out, and the same seed draws the same cases, whatever the number of workers."""
    reports = [run_torture([scenario(torture_cases.count_seeds)], seed=5, workers=workers) for workers in (1, 3)]
    drawn = sum(seed_of(5, "made up", "", number) for number in range(3))
    for report in reports:
        assert report.clean
        assert report.scenarios[0].counts == {"cases": 3, "seeds": drawn}
        assert report.scenarios[0].cases == report.scenarios[0].planned == 3
    (alone,) = run_torture([scenario(torture_cases.count_seeds)], seed=5, case=2).scenarios
    assert alone.counts == {"cases": 1, "seeds": seed_of(5, "made up", "", 2)}


def test_a_failure_names_its_case_and_keeps_its_evidence(tmp_path: Path) -> None:
    """So that it can be looked at again."""
    (found,) = run_torture([scenario(torture_cases.fail_when_odd)], profile="full", seed=8, keep=tmp_path).scenarios
    odd = [number for number in range(9) if seed_of(8, "made up", "", number) % 2]
    assert sorted(failure.case for failure in found.failures) == odd
    assert found.failed == len(odd) > 0
    assert not found.clean
    kept = {failure.case: Path(failure.evidence) / "evidence" for failure in found.failures}
    assert all(int(path.read_text()) == seed_of(8, "made up", "", number) for number, path in kept.items())


@pytest.mark.parametrize(("play", "words"), [("crash", "KeyError at torture_cases.py"), ("die", "ended with -9")])
def test_a_case_that_crashes_or_dies_is_a_failure(play: str, words: str) -> None:
    """And the cases behind it are played all the same."""
    (found,) = run_torture([scenario(getattr(torture_cases, play))], workers=2).scenarios
    assert found.cases == found.failed == 3
    assert all(words in failure.what for failure in found.failures)


def test_a_control_that_does_not_fail_is_a_failure() -> None:
    """A check that cannot fail proves nothing."""
    good = run_torture([scenario(torture_cases.count_seeds, caught=torture_cases.fail)])
    assert good.clean
    assert good.scenarios[0].controls == {"caught": 2}
    blind = run_torture([scenario(torture_cases.count_seeds, caught=torture_cases.count_seeds)])
    assert not blind.clean
    assert blind.scenarios[0].failed == 0


def test_what_this_machine_lacks_is_left_out_and_said() -> None:
    """It is no failure, and no success in silence either."""
    lacking = Scenario(name="x", play=torture_cases.fail, cases={"short": 1, "full": 1}, missing=lambda: "needs a moon")
    report = run_torture([lacking])
    assert report.clean
    assert report.scenarios[0].left_out == "needs a moon"
    assert report.scenarios[0].cases == 0


def test_scenarios_are_chosen_by_name() -> None:
    """An unknown one is refused with the names that there are."""
    both = [scenario(torture_cases.fail, "a"), scenario(torture_cases.fail, "b")]
    assert choose(both, []) == both
    assert choose(both, ["b"]) == both[1:]
    with pytest.raises(ConfigurationError, match="there is no scenario 'c'; choose from a, b"):
        choose(both, ["c"])


@pytest.mark.parametrize(("workers", "words"), [(0, "at least one worker, got 0"), (10**9, "MB in /dev/shm or in /")])
def test_what_cannot_be_played_here_is_refused(workers: int, words: str) -> None:
    """A file system that the cases fill would look like a journal that loses something."""
    with pytest.raises(ConfigurationError, match=words):
        run_torture([scenario(torture_cases.fail)], workers=workers)
