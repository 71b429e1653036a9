"""What a planner decides follows from the record and the plan, whoever planned before: also after a restart."""

from __future__ import annotations

import pytest

from context_histories import plan_afresh
from random_runs import drawn, lived


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_a_planner_that_comes_afresh_decides_the_same(first: int) -> None:
    """At every request, though callers pin and expand, summaries come late and the server refuses prompts; and whether
    or not it was read ahead."""
    for seed in range(first, first + 10):
        run = drawn(seed)
        for step in lived(run):
            fresh = plan_afresh(
                step.snapshot,
                step.before,
                policy=run.policy,
                profile=run.model,
                head_tokens=700,
                max_tokens=1024,
                **step.asked,
            )
            assert fresh == step.outcome, f"seed {seed}, {len(step.snapshot)} entries"


def test_the_runs_lead_to_decisions_of_every_kind() -> None:
    """What is compared is all that a planner does."""
    kinds = {decision.kind for seed in range(60) for step in lived(drawn(seed)) for decision in step.outcome.decisions}
    assert kinds >= {"pays", "uncached", "cold", "once", "expired", "comfort", "forced", "recovery", "strict"}
