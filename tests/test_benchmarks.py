"""The programs behind the figures in the documentation still find what they measure."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = sorted((Path(__file__).parent.parent / "benchmarks").glob("*.py"))


def named(path: Path) -> str:
    """A benchmark's name, as the id of a test."""
    return path.stem


@pytest.mark.parametrize("benchmark", BENCHMARKS, ids=named)
def test_a_benchmark_imports_only_what_there_is(benchmark: Path) -> None:
    """Nobody finds out by ``make bench``, hours later, that a name has moved."""
    assert callable(runpy.run_path(str(benchmark))["main"])


def test_every_mechanism_that_the_ablation_takes_away_is_there() -> None:
    """A mechanism that was renamed would be left in place, and earn nothing."""
    ablation: dict[str, Any] = runpy.run_path(str(next(path for path in BENCHMARKS if path.stem == "ablation")))
    run = ablation["wide_run"](iterations=4, characters=8_000, seed=1)
    for variant in ablation["VARIANTS"]:
        played = ablation["play"](run, model="r=0.05", variant=variant)
        assert played.cost > 0
        assert played.plain > 0
