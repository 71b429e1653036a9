"""What ``repertory stats`` says of a run: its figures, and what they are made of. docs/cli.md names the fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import add

import msgspec

from repertory.context import Decision, decode_decision
from repertory.llm.messages import Json
from repertory.record import Journal, ModelCallRow, RunRow, RunStatistics
from repertory.record.records import ToolFinished


async def read_figures(journal: Journal, row: RunRow) -> Json:
    """Read a run's record: its figures, and what they are made of."""
    run_id = row.started.run_id
    statistics = (await journal.read_statistics(run_id))[run_id]
    calls = await journal.read_model_calls(run_id)
    iterations = _iterations(calls)
    decided = [decode_decision(made.body) for made in await journal.read_decisions(run_id)]
    return {
        "run_id": run_id,
        "parent_id": row.started.parent_id,
        "agent": row.started.agent,
        "model": row.started.model,
        "task": row.started.task,
        "state": row.state,
        "statistics": msgspec.to_builtins(statistics),
        "iterations": iterations,
        "purposes": _purposes(calls),
        "tools": _tools(await journal.read_outcomes(run_id)),
        "decisions": [_decision(decision, iterations) for decision in decided],
        **_shares(statistics),
        "alerts": [kept.body["reason"] for _, kept in await journal.read_events(run_id) if kept.type == "Alert"],
        "estimate": _estimate(_errors(iterations)),
    }


def total_of(runs: Sequence[Json]) -> Json:
    """The sums over runs, with the shares that follow from them."""
    figures = reduce(add, (RunStatistics(**run["statistics"]) for run in runs))
    calls = max(1, figures.tool_calls)
    return {
        **msgspec.to_builtins(figures),
        **_shares(figures),
        "retrieval_share": figures.retrievals / calls,
        "dedup_rate": figures.dedup_hits / calls,
        "purposes": _together(run["purposes"] for run in runs),
        "tools": _together(run["tools"] for run in runs),
        "saved_by_decisions": sum(line["saved"] for run in runs for line in run["decisions"]),
        "alerts": sum(len(run["alerts"]) for run in runs),
        "estimate": _estimate([error for run in runs for error in _errors(run["iterations"])]),
    }


def _shares(figures: RunStatistics) -> Json:
    average = round(figures.tokens_seen / figures.iterations) if figures.iterations else 0
    return {"average_context": average, "peak_context": figures.largest_prompt}


def _iterations(calls: Iterable[ModelCallRow]) -> list[Json]:
    """The prompt of each iteration: as it was expected, as it was billed, and as a plain loop's would have been."""
    return [
        {
            "iteration": row.called.iteration,
            "expected_tokens": row.called.expected_tokens,
            "prompt_tokens": row.replied.usage.prompt_tokens,
            "plain_tokens": row.replied.plain_tokens,
            "cache_read_tokens": row.replied.usage.cache_read_tokens,
            "cache_write_tokens": row.replied.usage.cache_write_tokens + row.replied.usage.cache_write_1h_tokens,
            "output_tokens": row.replied.usage.output_tokens,
            "cost": row.replied.cost,
        }
        for row in calls
        if row.called.purpose == "agent" and row.replied is not None and row.replied.error is None
    ]


def _errors(iterations: Sequence[Json]) -> list[float]:
    """How far each prompt was from what was expected; the first is left out, nothing had been billed before it."""
    billed = [step for step in iterations[1:] if step["prompt_tokens"]]
    return [abs(step["expected_tokens"] - step["prompt_tokens"]) / step["prompt_tokens"] for step in billed]


def _estimate(errors: Sequence[float]) -> Json:
    return {"prompts": len(errors), "p50": percentile(errors, 0.5), "p95": percentile(errors, 0.95)}


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least this share of the values does not exceed; None where there is none."""
    if not values:
        return None
    ranked = sorted(values)
    return ranked[max(0, -(-round(share * 1000) * len(ranked) // 1000) - 1)]


def _purposes(calls: Iterable[ModelCallRow]) -> dict[str, Json]:
    """All model calls for each purpose: ``agent`` or ``summary``."""
    found: dict[str, Json] = {}
    for row in calls:
        replied = row.replied
        line = {"calls": 1, "failed": 0, "prompt_tokens": 0, "output_tokens": 0, "cost": 0.0}
        if replied is not None:
            usage = replied.usage
            line |= {"failed": int(replied.error is not None), "cost": replied.cost}
            line |= {"prompt_tokens": usage.prompt_tokens, "output_tokens": usage.output_tokens}
        _add(found, row.called.purpose, line)
    return found


def _tools(outcomes: Iterable[ToolFinished]) -> dict[str, Json]:
    """All calls of each tool."""
    found: dict[str, Json] = {}
    for outcome in outcomes:
        line = {
            "calls": 1,
            "errors": int(outcome.status == "error"),
            "retrievals": int(outcome.retrieval),
            "deduplicated": int(outcome.deduplicated_from is not None),
        }
        _add(found, outcome.tool, line)
    return found


def _together(tables: Iterable[Mapping[str, Json]]) -> dict[str, Json]:
    """Several tables of one kind as one: lines of the same name are added."""
    found: dict[str, Json] = {}
    for table in tables:
        for name, line in table.items():
            _add(found, name, line)
    return found


def _add(table: dict[str, Json], name: str, line: Json) -> None:
    before = table.setdefault(name, dict.fromkeys(line, 0))
    table[name] = {key: before[key] + value for key, value in line.items()}


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
