"""What a run saw and cost, and what that is made of, as JSON; docs/cli.md says what the fields are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from operator import add

import msgspec

from repertory.context import Decision, decode_decision
from repertory.llm.messages import Json
from repertory.record.journal import Journal, ModelCallRow, RunRow
from repertory.record.records import ToolFinished
from repertory.record.statistics import RunStatistics


async def read_figures(journal: Journal, row: RunRow) -> Json:
    """Read a run's record: its figures, and what they are made of."""
    run_id = row.started.run_id
    statistics = (await journal.read_statistics(run_id))[run_id]
    calls = await journal.read_model_calls(run_id)
    iterations = list(_iterations(calls))
    decided = [decode_decision(made.body) for made in await journal.read_decisions(run_id)]
    return {
        **{name: getattr(row.started, name) for name in ("run_id", "parent_id", "agent", "model", "task")},
        "state": row.state,
        "statistics": msgspec.to_builtins(statistics),
        "iterations": iterations,
        "purposes": _summed((call.called.purpose, _spent(call)) for call in calls),
        "tools": _summed((outcome.tool, _used(outcome)) for outcome in await journal.read_outcomes(run_id)),
        "decisions": [_decision(decision, iterations) for decision in decided],
        **_context(statistics),
        "alerts": [kept.body["reason"] for _, kept in await journal.read_events(run_id) if kept.type == "Alert"],
        "estimate": _estimate([iterations]),
    }


def total_of(runs: Sequence[Json]) -> Json:
    """The sums over runs, with the shares that follow from them."""
    figures = reduce(add, (RunStatistics(**run["statistics"]) for run in runs))
    calls = max(1, figures.tool_calls)
    return {
        **msgspec.to_builtins(figures),
        **_context(figures),
        "retrieval_share": figures.retrievals / calls,
        "dedup_rate": figures.dedup_hits / calls,
        "purposes": _summed(line for run in runs for line in run["purposes"].items()),
        "tools": _summed(line for run in runs for line in run["tools"].items()),
        "saved_by_decisions": sum(decision["saved"] for run in runs for decision in run["decisions"]),
        "alerts": sum(len(run["alerts"]) for run in runs),
        "estimate": _estimate([run["iterations"] for run in runs]),
    }


def _context(figures: RunStatistics) -> Json:
    average = round(figures.tokens_seen / figures.iterations) if figures.iterations else 0
    return {"average_context": average, "peak_context": figures.largest_prompt}


def _iterations(calls: Iterable[ModelCallRow]) -> Iterator[Json]:
    """The prompt of each iteration: as it was expected, as it was billed, and as a plain loop's would have been."""
    for call in calls:
        replied = call.replied
        if call.called.purpose == "agent" and replied is not None and replied.error is None:
            usage = replied.usage
            yield {
                "iteration": call.called.iteration,
                "expected_tokens": call.called.expected_tokens,
                "prompt_tokens": usage.prompt_tokens,
                "plain_tokens": replied.plain_tokens,
                "cache_read_tokens": usage.cache_read_tokens,
                "cache_write_tokens": usage.cache_write_tokens + usage.cache_write_1h_tokens,
                "output_tokens": usage.output_tokens,
                "cost": replied.cost,
            }


def _estimate(runs: Iterable[Sequence[Json]]) -> Json:
    """How far prompts were from what was expected. A run's first is left out: nothing had been billed before it."""
    billed = [step for iterations in runs for step in iterations[1:] if step["prompt_tokens"]]
    errors = [abs(step["expected_tokens"] - step["prompt_tokens"]) / step["prompt_tokens"] for step in billed]
    return {"prompts": len(errors), "p50": percentile(errors, 0.5), "p95": percentile(errors, 0.95)}


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least this share of the values does not exceed; None where there is none."""
    if not values:
        return None
    return sorted(values)[max(0, -(-round(share * 1000) * len(values) // 1000) - 1)]


def _spent(call: ModelCallRow) -> Json:
    replied = call.replied
    return {
        "calls": 1,
        "failed": int(replied is not None and replied.error is not None),
        "prompt_tokens": 0 if replied is None else replied.usage.prompt_tokens,
        "output_tokens": 0 if replied is None else replied.usage.output_tokens,
        "cost": 0.0 if replied is None else replied.cost,
    }


def _used(outcome: ToolFinished) -> Json:
    return {
        "calls": 1,
        "errors": int(outcome.status == "error"),
        "retrievals": int(outcome.retrieval),
        "deduplicated": int(outcome.deduplicated_from is not None),
    }


def _summed(lines: Iterable[tuple[str, Json]]) -> dict[str, Json]:
    """Lines of the same name are added."""
    found: dict[str, Json] = {}
    for name, line in lines:
        before = found.get(name, {})
        found[name] = {key: before.get(key, 0) + value for key, value in line.items()}
    return found


def _decision(decision: Decision, iterations: Sequence[Json]) -> Json:
    """A change of the view. Token counts before and after it are 0 where they were not worked out.

    It has ``saved``, by its own arithmetic, what it saves a call, for each call after it, less what it cost: negative
    until it has paid for itself.
    """
    a = decision.arithmetic
    since = sum(step["iteration"] >= decision.iteration for step in iterations)
    return {
        "iteration": decision.iteration,
        "kind": decision.kind,
        "reason": decision.reason,
        "tokens_before": a.prompt_before,
        "tokens_after": a.prompt_after,
        "tokens_saved": a.cleared_tokens,
        "cost_now": a.cost_now,
        "saving_per_call": a.saving_per_call,
        "saved": a.saving_per_call * (since - 1) - a.cost_now if since else 0.0,
    }
