"""What a run cost, against a plain loop."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import repertory as rp
from repertory.llm import profile_for
from repertory.llm.messages import Text
from repertory.llm.model import ModelRequest, ModelResponse, Usage
from repertory.llm.profiles import ModelProfile, cost_of
from repertory.record import RunStatistics
from repertory.record.records import ModelReplied
from repertory.runs.accounting import plain_call, plain_usage
from repertory.testing import FunctionModel

CACHED = profile_for("claude-sonnet-4-5")
UNCACHED = profile_for("offline")


def test_a_plain_loop_reads_its_last_prompt_from_the_cache_and_writes_the_rest() -> None:
    """It appends and never edits, so its whole last prompt is a cached prefix."""
    assert plain_usage(CACHED, prompt=5000, previous_prompt=0, output=10) == Usage(
        cache_write_tokens=5000, output_tokens=10
    )
    assert plain_usage(CACHED, prompt=8000, previous_prompt=5000, output=10) == Usage(
        cache_read_tokens=5000, cache_write_tokens=3000, output_tokens=10
    )


def test_where_nothing_is_cached_a_plain_loop_pays_for_all_of_it() -> None:
    """Below the smallest cacheable prefix, and for models without a cache."""
    assert plain_usage(CACHED, prompt=500, previous_prompt=400, output=1) == Usage(input_tokens=500, output_tokens=1)
    assert plain_usage(CACHED, prompt=2000, previous_prompt=400, output=1).cache_read_tokens == 0
    assert plain_usage(UNCACHED, prompt=9000, previous_prompt=8000, output=1) == Usage(
        input_tokens=9000, output_tokens=1
    )


def answered(usage: Usage, *, view: int, record: int, previous: int, model: ModelProfile = CACHED) -> ModelReplied:
    """The record of one call, with the plain loop's beside it."""
    plain, cost = plain_call(usage, model, view_estimate=view, record_estimate=record, previous=previous)
    return ModelReplied(
        run_id="run-1", call=1, at=1.0, usage=usage, cost=cost_of(model, usage), plain_tokens=plain, plain_cost=cost
    )


@given(st.lists(st.tuples(st.integers(1, 200_000), st.integers(0, 5_000)), min_size=1, max_size=30))
def test_a_run_that_shows_everything_costs_what_a_plain_loop_costs(calls: list[tuple[int, int]]) -> None:
    """The comparison is fair: where the view is the record, both columns are the same."""
    figures = RunStatistics()
    prompts = sorted(prompt for prompt, _ in calls)
    previous = 0
    for prompt, (_, output) in zip(prompts, calls, strict=True):
        usage = plain_usage(CACHED, prompt=prompt, previous_prompt=previous, output=output)
        figures = figures.count(answered(usage, view=prompt, record=prompt, previous=figures.record_tokens))
        previous = prompt
    assert figures.tokens_seen == figures.tokens_plain == sum(prompts)
    assert figures.cost_seen == pytest.approx(figures.cost_plain)
    assert figures.iterations == len(calls)


def test_an_estimate_that_is_off_is_off_in_both_columns() -> None:
    """The provider's count corrects the plain loop's estimate by the same factor."""
    reply = answered(Usage(input_tokens=1500), view=1000, record=4000, previous=0, model=UNCACHED)
    assert reply.plain_tokens == 6000


def test_figures_of_a_tree_add_up() -> None:
    """Every figure is a sum, but for the largest prompt."""
    one = RunStatistics(iterations=2, tokens_seen=10, cost_seen=0.5, summaries=1, largest_prompt=9)
    total = one + RunStatistics(iterations=3, tokens_seen=20, cost_seen=0.25, largest_prompt=7)
    assert (total.iterations, total.tokens_seen, total.cost_seen, total.summaries, total.runs) == (5, 30, 0.75, 1, 2)
    assert total.largest_prompt == 9
    assert cost_of(UNCACHED, Usage()) == 0


@pytest.mark.parametrize("tokens", [-1, 1.5, "12", True, None])
async def test_a_model_that_bills_no_number_of_tokens_ends_its_run(tokens: object) -> None:
    """A model of the application's own as well: limits on money are counted by what it says."""

    def bill(_: ModelRequest) -> ModelResponse:
        return ModelResponse(content=(Text("Done."),), stop_reason="end_turn", usage=Usage(tokens))  # type: ignore[arg-type]

    async with rp.open_supervisor(model=FunctionModel(bill)) as supervisor:
        run = await supervisor.spawn(rp.Agent("clerk"), "Go.")
        with pytest.raises(rp.errors.RunFailed, match=r"usage.input_tokens must be a whole number of at least 0, got "):
            await run.wait_result()
