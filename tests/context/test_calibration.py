"""Token estimates learn what a prompt really has, also where something in it cannot be seen."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from repertory.llm.estimate import Calibration


@given(
    hidden=st.integers(0, 50_000),
    rate=st.floats(0.5, 2.5),
    growth=st.lists(st.integers(600, 8_000), min_size=3, max_size=30),
)
def test_what_no_estimate_sees_does_not_spoil_the_rate_of_growth(hidden: int, rate: float, growth: list[int]) -> None:
    """A recording without its instructions: from the second growth on the estimate is right to the rounding."""
    calibration, estimate = Calibration(), 1_000
    for number, more in enumerate(growth):
        real = hidden + round(rate * estimate)
        if number > 1:
            assert abs(calibration.real_tokens(estimate) - real) <= 3 + 0.01 * more
        calibration = calibration.observe(estimate=estimate, real=real)
        estimate += more


def test_the_whole_prompt_gives_the_rate_until_it_has_grown() -> None:
    """A few tokens of growth are mostly rounding; an edit that shrinks the prompt is no growth at all."""
    first = Calibration().observe(estimate=1_000, real=1_200)
    assert first.observe(estimate=1_010, real=1_250).factor == 1_250 / 1_010
    grown = first.observe(estimate=2_000, real=3_200)
    assert grown.factor == 2.0
    assert grown.observe(estimate=1_500, real=1_800).factor == 2.0


def test_a_first_prompt_that_holds_more_than_is_seen_says_little_of_the_rate() -> None:
    """Twenty times the estimate is no tokenizer's doing: what comes next is expected at a rate that may be one's."""
    first = Calibration().observe(estimate=1_000, real=20_000)
    assert abs(first.real_tokens(5_000) - 24_000) <= 1_000
    assert Calibration().observe(estimate=20_000, real=1_000).factor == 0.8


def test_the_doubt_follows_what_has_changed_since_the_last_count() -> None:
    """A prompt that was just counted is beyond doubt; one that never was is doubted as a whole."""
    assert Calibration().doubt(1_000) == 300
    counted = Calibration().observe(estimate=1_000, real=1_000)
    assert counted.doubt(1_000) == 0
    assert counted.doubt(2_000) == counted.doubt(0) == 150
