"""The figures of a run, worked out again from its record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from repertory.agents import RunStatistics
from repertory.agents.accounting import Meter
from repertory.agents.alerts import summary_failed
from repertory.agents.events import Alert, AnyEvent, SummaryRefused, SummaryTaken, ToolEnded, from_record
from repertory.context import Calibration, CoverRange, decode_decision
from repertory.llm import profile_for
from repertory.memory import Entry, Journal, ModelCallRow, RunRow, SummaryStored


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


class Summaries(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the summaries that were asked for.

    Attributes:
        taken: Written, and offered to the planner.
        swapped_in: Put in the place of what they stand for.
        refused: Failed, or of no use.
        fallbacks: Extracted because the model that was asked first gave nothing usable.
    """

    taken: int = 0
    swapped_in: int = 0
    refused: int = 0
    fallbacks: int = 0


Table = TypeVar("Table", Purpose, ToolUsage, Summaries)


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
        statistics: As ``Run.statistics`` gives them; ``cost_plain`` is by the prices of the model's name.
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
    summaries: Summaries
    decisions: list[DecisionLine]
    average_context: int
    peak_context: int
    estimate_errors: list[float]
    alerts: list[str]


async def read_figures(journal: Journal, row: RunRow) -> RunFigures:
    """Read a run's record and add it up."""
    run_id = row.started.run_id
    calls = await journal.read_model_calls(run_id)
    entries = await journal.read_entries(run_id)
    logged = [from_record(record) for _, record in await journal.read_events(run_id)]
    events = [event for event in logged if event is not None]
    statistics, iterations, errors = _iterations(row.started.model, calls, entries)
    decisions, swapped_in = _decisions((made.body for made in await journal.read_decisions(run_id)), iterations)
    tools = _tools(events)
    kinds = Counter(map(type, events))
    prompts = [iteration.prompt_tokens for iteration in iterations]
    return RunFigures(
        run_id=run_id,
        parent_id=row.started.parent_id,
        agent=row.started.agent,
        model=row.started.model,
        task=row.started.task,
        state=row.state,
        statistics=msgspec.structs.replace(
            statistics,
            cost_seen=sum(call.replied.cost for call in calls if call.replied is not None),
            summaries=swapped_in,
            tool_calls=sum(tool.calls for tool in tools.values()),
            retrievals=sum(tool.retrievals for tool in tools.values()),
            retrievals_covered=sum(entry.covered for entry in entries),
            dedup_hits=sum(tool.deduplicated for tool in tools.values()),
            summaries_failed=sum(map(summary_failed, events)),
        ),
        iterations=iterations,
        purposes=_purposes(calls),
        tools=tools,
        summaries=Summaries(
            taken=kinds[SummaryTaken],
            swapped_in=swapped_in,
            refused=kinds[SummaryRefused],
            fallbacks=_fallbacks(calls, await journal.read_summaries(run_id)),
        ),
        decisions=decisions,
        average_context=round(sum(prompts) / len(prompts)) if prompts else 0,
        peak_context=max(prompts, default=0),
        estimate_errors=errors,
        alerts=[event.reason for event in events if isinstance(event, Alert)],
    )


def _iterations(
    model: str, calls: Iterable[ModelCallRow], entries: Sequence[Entry]
) -> tuple[RunStatistics, list[Iteration], list[float]]:
    """Count the loop's calls once more, as the run itself did."""
    profile, meter, calibration = profile_for(model), Meter(), Calibration()
    shown = list(_sums(entry.tokens for entry in entries))
    whole = list(_sums(max(entry.tokens, -(-entry.original_length // 4)) for entry in entries))
    head: int | None = None  # tokens of instructions and tools: what the first request had besides its entries
    found: list[Iteration] = []
    errors: list[float] = []
    for row in calls:
        called, replied = row.called, row.replied
        if called.purpose != "agent":
            continue
        if head is None:
            head = max(0, called.prompt_estimate - shown[called.position])
        if replied is None or replied.error is not None:
            continue
        usage, expected = replied.usage, calibration.real_tokens(called.prompt_estimate)
        if calibration.real and usage.prompt_tokens:
            errors.append(abs(expected - usage.prompt_tokens) / usage.prompt_tokens)
        meter.count_call(
            profile, usage, view_estimate=called.prompt_estimate, record_estimate=head + whole[called.position]
        )
        calibration = calibration.observe(estimate=called.prompt_estimate, real=usage.prompt_tokens)
        found.append(
            Iteration(
                iteration=called.iteration,
                expected_tokens=expected,
                prompt_tokens=usage.prompt_tokens,
                plain_tokens=meter.statistics.record_tokens,
                cache_read_tokens=usage.cache_read_tokens,
                cache_write_tokens=usage.cache_write_tokens + usage.cache_write_1h_tokens,
                output_tokens=usage.output_tokens,
                cost=replied.cost,
            )
        )
    return meter.statistics, found, errors


def _sums(counts: Iterable[int]) -> Iterable[int]:
    """0 and every sum of the first counts."""
    total = 0
    yield total
    for count in counts:
        total += count
        yield total


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


def _tools(events: Iterable[AnyEvent]) -> dict[str, ToolUsage]:
    found: dict[str, ToolUsage] = {}
    for event in events:
        if isinstance(event, ToolEnded):
            more = ToolUsage(
                calls=1,
                errors=int(event.status == "error"),
                retrievals=int(event.retrieval),
                deduplicated=int(event.deduplicated),
            )
            found[event.tool] = added(found.get(event.tool, ToolUsage()), more)
    return found


def _decisions(bodies: Iterable[Any], iterations: Sequence[Iteration]) -> tuple[list[DecisionLine], int]:
    lines: list[DecisionLine] = []
    swapped_in = 0
    for decision in map(decode_decision, bodies):
        a = decision.arithmetic
        swapped_in += sum(isinstance(edit, CoverRange) for edit in decision.edits)
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
    return lines, swapped_in


def _fallbacks(calls: Iterable[ModelCallRow], summaries: Iterable[SummaryStored]) -> int:
    asked = {row.called.position for row in calls if row.called.purpose == "summary"}
    return sum(summary.strategy == "extractive" and summary.last + 1 in asked for summary in summaries)


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
