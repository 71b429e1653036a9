"""What ``repertory stats`` shows of a run: its figures, and what they are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from repertory.agents.events import Alert, from_record
from repertory.context import decode_decision
from repertory.record import Journal, ModelCallRow, RunRow, RunStatistics, ToolFinished


class Iteration(msgspec.Struct, frozen=True, kw_only=True):
    """One iteration's model call.

    Attributes:
        expected_tokens: What the prompt was expected to have.
        prompt_tokens: What was billed.
        plain_tokens: What a plain loop's prompt would have had.
        cost: US dollars.
    """

    iteration: int
    expected_tokens: int
    prompt_tokens: int
    plain_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    output_tokens: int
    cost: float


class Purpose(msgspec.Struct, frozen=True, kw_only=True):
    """All model calls for one purpose: ``agent`` or ``summary``."""

    calls: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0


class ToolUsage(msgspec.Struct, frozen=True, kw_only=True):
    """All calls of one tool."""

    calls: int = 0
    errors: int = 0
    retrievals: int = 0
    deduplicated: int = 0


Table = TypeVar("Table", Purpose, ToolUsage)


class DecisionLine(msgspec.Struct, frozen=True, kw_only=True):
    """One change of the view.

    Attributes:
        tokens_before: Estimate of the prompt without it; 0 where it was not worked out.
        tokens_after: The same with it.
        cost_now: US dollars that it cost once.
        saved: US dollars that it has saved since, by its own arithmetic: what it saves a call, for each call after it,
            less what it cost. Negative until it has paid for itself.
    """

    iteration: int
    kind: str
    reason: str
    tokens_before: int
    tokens_after: int
    tokens_saved: int
    cost_now: float
    saving_per_call: float
    saved: float


class RunFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that ``repertory stats`` says of one run.

    Attributes:
        statistics: As every other reader gives them.
        average_context: Prompt tokens per iteration.
        peak_context: The largest prompt.
        estimate_errors: |expected - billed| / billed of every prompt after the first, in order.
        alerts: The reasons, in order.
    """

    run_id: str
    parent_id: str | None
    agent: str
    model: str
    task: str
    state: str
    statistics: RunStatistics
    iterations: list[Iteration]
    purposes: dict[str, Purpose]
    tools: dict[str, ToolUsage]
    decisions: list[DecisionLine]
    average_context: int
    peak_context: int
    estimate_errors: list[float]
    alerts: list[str]


async def read_figures(journal: Journal, row: RunRow) -> RunFigures:
    """Read a run's record: its figures, and what they are made of."""
    run_id = row.started.run_id
    statistics = (await journal.read_statistics(run_id))[run_id]
    calls = await journal.read_model_calls(run_id)
    events = [from_record(record) for _, record in await journal.read_events(run_id)]
    iterations = _iterations(calls)
    return RunFigures(
        run_id=run_id,
        parent_id=row.started.parent_id,
        agent=row.started.agent,
        model=row.started.model,
        task=row.started.task,
        state=row.state,
        statistics=statistics,
        iterations=iterations,
        purposes=_purposes(calls),
        tools=_tools(await journal.read_outcomes(run_id)),
        decisions=_decisions((made.body for made in await journal.read_decisions(run_id)), iterations),
        average_context=round(statistics.tokens_seen / statistics.iterations) if iterations else 0,
        peak_context=statistics.largest_prompt,
        estimate_errors=[
            abs(iteration.expected_tokens - iteration.prompt_tokens) / iteration.prompt_tokens
            for iteration in iterations[1:]  # the first is estimated before anything was billed
            if iteration.prompt_tokens
        ],
        alerts=[event.reason for event in events if isinstance(event, Alert)],
    )


def _iterations(calls: Iterable[ModelCallRow]) -> list[Iteration]:
    return [
        Iteration(
            iteration=row.called.iteration,
            expected_tokens=row.called.expected_tokens,
            prompt_tokens=row.replied.usage.prompt_tokens,
            plain_tokens=row.replied.plain_tokens,
            cache_read_tokens=row.replied.usage.cache_read_tokens,
            cache_write_tokens=row.replied.usage.cache_write_tokens + row.replied.usage.cache_write_1h_tokens,
            output_tokens=row.replied.usage.output_tokens,
            cost=row.replied.cost,
        )
        for row in calls
        if row.called.purpose == "agent" and row.replied is not None and row.replied.error is None
    ]


def _purposes(calls: Iterable[ModelCallRow]) -> dict[str, Purpose]:
    found: dict[str, Purpose] = {}
    for row in calls:
        now, replied = found.get(row.called.purpose, Purpose()), row.replied
        more = Purpose(calls=1)
        if replied is not None:
            more = Purpose(
                calls=1,
                failed=int(replied.error is not None),
                prompt_tokens=replied.usage.prompt_tokens,
                output_tokens=replied.usage.output_tokens,
                cost=replied.cost,
            )
        found[row.called.purpose] = added(now, more)
    return found


def _tools(outcomes: Iterable[ToolFinished]) -> dict[str, ToolUsage]:
    found: dict[str, ToolUsage] = {}
    for outcome in outcomes:
        more = ToolUsage(
            calls=1,
            errors=int(outcome.status == "error"),
            retrievals=int(outcome.retrieval),
            deduplicated=int(outcome.deduplicated_from is not None),
        )
        found[outcome.tool] = added(found.get(outcome.tool, ToolUsage()), more)
    return found


def _decisions(bodies: Iterable[Any], iterations: Sequence[Iteration]) -> list[DecisionLine]:
    lines: list[DecisionLine] = []
    for decision in map(decode_decision, bodies):
        a = decision.arithmetic
        since = sum(iteration.iteration >= decision.iteration for iteration in iterations)
        lines.append(
            DecisionLine(
                iteration=decision.iteration,
                kind=decision.kind,
                reason=decision.reason,
                tokens_before=a.prompt_before,
                tokens_after=a.prompt_after,
                tokens_saved=a.cleared_tokens,
                cost_now=a.cost_now,
                saving_per_call=a.saving_per_call,
                saved=a.saving_per_call * (since - 1) - a.cost_now if since else 0.0,
            )
        )
    return lines


def added(one: Table, other: Table) -> Table:
    """Field by field."""
    mine, theirs = msgspec.structs.asdict(one), msgspec.structs.asdict(other)
    return type(one)(**{name: mine[name] + theirs[name] for name in mine})


def together(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Several tables of one kind as one: lines of the same name are added."""
    found: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            found[name] = added(found[name], value) if name in found else value
    return found


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least this share of the values does not exceed; None where there is none."""
    if not values:
        return None
    ranked = sorted(values)
    return ranked[max(0, -(-round(share * 1000) * len(ranked) // 1000) - 1)]
