"""The figures that the documents promise, on workloads built as they describe, in strict rhythm."""

from __future__ import annotations

import pytest

from context_histories import Story, measure, planned, profile
from repertory._json_text import canonical_json
from repertory.context import EMPTY, ContextPolicy, project
from repertory.llm.model import encode_request

STRICT = ContextPolicy(rhythm="strict")


def work(iterations: int, *, size: int, policy: ContextPolicy | None = STRICT) -> Story:
    """So many iterations, each of which brings a result of so many characters."""
    story = Story("Write a report on tides, with sources.")
    for number in range(1, iterations + 1):
        line = f"Source {number} says that the tide at mark {100 + number} rises.\n"
        story.turn((line * (1 + size // len(line)))[:size], policy=policy, text=f"Step {number}: read on.")
    return story


def sent(story: Story) -> list[int]:
    """Tokens of every prompt in strict rhythm."""
    return [outcome.estimate for _, outcome in planned(story, STRICT, profile())]


@pytest.mark.parametrize(
    ("iterations", "size", "plain_total", "most"), [(16, 3_650, 138_000, 69_000), (40, 1_600, 400_000, 180_000)]
)
def test_a_run_sends_at_most_half_of_what_an_unedited_one_sends(
    iterations: int, size: int, plain_total: int, most: int
) -> None:
    """16 iterations: 138k input tokens become 69k at most; 40 iterations: 400k become 180k at most."""
    whole = work(iterations, size=size, policy=None)
    plain = sum(500 + measure(whole.snapshot(position), EMPTY) for position in whole.requests()[:-1])
    assert plain == pytest.approx(plain_total, rel=0.1)
    assert sum(sent(work(iterations, size=size))[:-1]) <= most


@pytest.mark.parametrize(("iterations", "size"), [(20, 40_000), (50, 8_000)])
def test_every_prompt_stays_below_50_kilobytes(iterations: int, size: int) -> None:
    """20 content-heavy iterations, and 50 of the usual kind: no request is longer, and the unedited one is."""
    story = work(iterations, size=size)
    longest = max(
        len(canonical_json(encode_request(project(snapshot, outcome.plan, profile=profile()))))
        for snapshot, outcome in planned(story, STRICT, profile())
    )
    assert longest < 50_000
    assert (
        len(
            canonical_json(
                encode_request(project(work(iterations, size=size, policy=None).snapshot(), profile=profile()))
            )
        )
        > 300_000
    )
