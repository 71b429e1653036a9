"""Reports on runs as JSON, read from their journal; docs/cli.md describes the fields.

A run is named by its id or an unambiguous beginning of it; each report raises ``RunNotFound`` if there is none.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from operator import add, attrgetter

import anyio.to_thread
import msgspec

from repertory._cutting import clip
from repertory.context import Decision, decode_decision, replay
from repertory.errors import ContentNotFound, RunNotFound
from repertory.llm.messages import Json, ToolUse, encode_block, text_of
from repertory.memory.documents import document_of, show_path
from repertory.record.contents import put_together
from repertory.record.entries import Entry
from repertory.record.journal import Journal
from repertory.record.memory_records import PayloadChange, PayloadChanged
from repertory.record.records import ContentStored, ModelCallRow, RunRow, RunStarted, ToolFinished
from repertory.record.requests import sent_body
from repertory.record.statistics import RunStatistics
from repertory.service.marks import Marks, places
from repertory.tools.pages import page_bounds

_LINE = 120  # characters of the line that describes an entry
_OF_RUN = ("run_id", "parent_id", "agent", "model", "task")
_OF_CALL = ("model", "iteration", "call", "at", "digest", "prompt_estimate")
_OF_ENTRY = ("position", "iteration", "kind", "role", "tool", "content_id", "tokens", "original_length")
_OF_CONTENT = ("content_id", "run_id", "source_type", "source", "url", "format", "length", "at", "expires_at")
_OF_DECISION = ("iteration", "kind", "reason", "sentence")
_OF_REPLY = ("usage", "cost", "duration", "stop_reason", "error")


def _fields(of: object, names: Iterable[str]) -> Json:
    return {name: getattr(of, name) for name in names}


# --- the record of a run ----------------------------------------------------------------------------------


async def read_record(journal: Journal, run: str, *, start: int = 0, stop: int | None = None) -> Json:
    """Read the entries of a run from ``start`` up to ``stop``, their contents in the format of the Messages API."""
    row = await journal.find_run(run)
    run_id = row.started.run_id
    found = await journal.read_entries(run_id, start=start, stop=stop)
    calls = [entry.tool_call_id for entry in found if entry.tool_call_id is not None]
    crashes = {ended.call_id: ended.error for ended in await journal.read_outcomes(run_id, calls) if ended.error}
    entries = []
    for entry in found:
        fields = _fields(entry, (name for name in entry.__struct_fields__ if name != "content"))
        fields["traceback"] = crashes.get(entry.tool_call_id or "", "")
        entries.append({**fields, "content": [encode_block(block) for block in entry.content]})
    said = {**_fields(row.started, ("run_id", "agent", "model", "task")), "state": row.state}
    return {**said, "length": await journal.count_entries(run_id), "entries": entries}


async def read_payload(journal: Journal, run: str, version: int | None = None) -> Json:
    """Read a version of a run's payload, None for the newest. Raises ``RunNotFound`` if there is none."""
    started, records = await _payload_records(journal, run)
    wanted = len(records) if version is None else version
    if wanted > len(records):
        raise RunNotFound(f"the payload of run {started.run_id} has no version {wanted}; it has 1 to {len(records)}")
    return {**_fields(started, ("run_id", "agent")), "version": wanted, "payload": document_of(records[:wanted])}


async def read_payload_history(journal: Journal, run: str) -> Json:
    """Read who changed what in the payload of a run, and which changes failed because others came first.

    Raises ``RunNotFound`` if it has none.
    """
    started, records = await _payload_records(journal, run)
    versions = []
    for record in records:
        conflicts = [
            {**_change(conflict.change), "version": conflict.version, "reason": conflict.reason}
            for conflict in record.conflicts
        ]
        fields = _fields(record, ("version", "author", "source", "call_id", "at"))
        versions.append({**fields, "changes": [_change(change) for change in record.changes], "conflicts": conflicts})
    return {**_fields(started, ("run_id", "agent")), "versions": versions}


async def _payload_records(journal: Journal, run: str) -> tuple[RunStarted, list[PayloadChanged]]:
    started = (await journal.find_run(run)).started
    records = await journal.read_payload(started.run_id)
    if not records:
        raise RunNotFound(f"run {started.run_id} has no payload; its agent {started.agent!r} names no type for one")
    return started, records


def _change(change: PayloadChange) -> Json:
    return {"path": show_path(change.path), "op": change.op, "value": change.value}


async def read_inspection(
    journal: Journal, run: str, iteration: int | None = None, *, call: int | None = None, newest: int = 0
) -> Json:
    """Read back one iteration of a run: what the model saw, with the record and the decisions behind it.

    Args:
        iteration: The iteration, of which the last call is read; None for the newest.
        call: The model call instead, of any iteration.
        newest: ``record`` has only so many of the newest entries, and older ones that the request shows; 0 for all.

    Raises:
        RunNotFound: There is no such run, or it made no such iteration or call.
    """
    started = (await journal.find_run(run)).started
    run_id = started.run_id
    calls = [each for each in await journal.read_model_calls(run_id, contents=False) if each.called.purpose == "agent"]
    if not calls:
        raise RunNotFound(f"run {run_id} has not called a model yet; repertory ledger {run_id} shows its record")
    inspected = _wanted_call(calls, run_id, iteration, call)
    called = inspected.called
    bodies = [made.body for made in await journal.read_decisions(run_id) if made.iteration <= called.iteration]
    recorded, shown = await journal.read_request_from(run_id, called.call)
    start = max(0, called.position - newest) if newest else 0
    entries = sorted((entry for entry in shown if entry.position < start), key=attrgetter("position"))
    entries += await journal.read_entries(run_id, start=start, stop=called.position)
    answered = (each.replied.plain_tokens for each in calls if each.replied and each.called.call <= called.call)
    # Until there is an answer, that of the one before; before the first, without the system prompt and the tools.
    plain = max(answered, default=0) or sum(entry.tokens for entry in entries)
    # Putting a long run together takes a moment, so it must not block the event loop.
    found = await anyio.to_thread.run_sync(_inspected, inspected, bodies, entries, sent_body(recorded))
    said = {**_fields(started, ("run_id", "agent")), "iterations": calls[-1].called.iteration}
    return {**said, "length": called.position, "record_tokens": plain, **found}


def _inspected(inspected: ModelCallRow, bodies: Sequence[Json], entries: Sequence[Entry], request: Json) -> Json:
    replied = inspected.replied
    decisions = [decode_decision(body) for body in bodies]
    marks = Marks(replay(bodies), decisions)
    return {
        **_fields(inspected.called, _OF_CALL),
        "request": request,
        "places": places(request["messages"], entries),
        "record": [{**_fields(entry, _OF_ENTRY), **marks.of(entry), "what": _line(entry)} for entry in entries],
        "decisions": [
            {
                **_fields(decision, _OF_DECISION),
                "arithmetic": msgspec.to_builtins(decision.arithmetic),
                "edits": len(decision.edits),
            }
            for decision in decisions
        ],
        **{name: msgspec.to_builtins(getattr(replied, name, None)) for name in _OF_REPLY},
        "prompt_tokens": None if replied is None else replied.usage.prompt_tokens,
    }


def _wanted_call(calls: Sequence[ModelCallRow], run_id: str, iteration: int | None, call: int | None) -> ModelCallRow:
    first, last = calls[0].called.iteration, calls[-1].called.iteration
    wanted = last if iteration is None else iteration
    for each in reversed(calls):
        if (each.called.iteration == wanted) if call is None else (each.called.call == call):
            return each
    if call is not None:
        raise RunNotFound(f"run {run_id} has no such call of its loop; GET /stats lists those that it made")
    raise RunNotFound(f"run {run_id} has no iteration {wanted}; it made {first} to {last}")


async def read_contents(journal: Journal, run_id: str, *, skip: int = 0, limit: int | None = None) -> list[Json]:
    """Read what a run and those below it have stored, and where each content is kept: the store, the ledger or nowhere.

    At most ``limit`` of them, None for all.
    """
    stored = {content.content_id for _, content in await journal.read_bodies(run_id)}
    contents: list[ContentStored] = []
    for row in await journal.read_runs(below=run_id):
        # If an id occurs more than once, the latest counts.
        contents += {each.content_id: each for each in await journal.read_contents(row.started.run_id)}.values()
    wanted = contents[skip : None if limit is None else skip + limit]
    missing: dict[str, list[str]] = {}
    for content in wanted:
        if content.content_id not in stored:
            missing.setdefault(content.run_id, []).append(content.content_id)
    holding = {owner: await journal.read_holding(owner, content_ids) for owner, content_ids in missing.items()}
    listed = []
    for content in wanted:
        kept = "store" if content.content_id in stored else "gone"
        if kept == "gone":
            entries = holding[content.run_id].get(content.content_id, [])
            kept = "ledger" if not content.length or put_together(content, entries) else "gone"
        listed.append({**_fields(content, _OF_CONTENT), "retention": content.retention, "kept": kept})
    return listed


async def read_content_page(journal: Journal, run_id: str, content_id: str, page: int) -> Json:
    """Read a page of what a run, or one below it, has stored.

    Raises ``ContentNotFound`` if there is no such content, it is gone, or has no such page.
    """
    found = await journal.read_content(content_id, root=run_id)
    if found is None:
        raise ContentNotFound(f"run {run_id} and those below it have stored no content {content_id[:100]!r}")
    if found.length and not found.body:
        raise ContentNotFound(
            f"content {content_id!r} ({found.length:,} characters) was cleaned up and is gone; the record of "
            f"{found.run_id} has what was shown of it"
        )
    bounds = page_bounds(found.body)
    if not 1 <= page <= len(bounds):
        raise ContentNotFound(f"content {content_id!r} has no page {page}; it has {len(bounds)}")
    start, end = bounds[page - 1]
    return {**_fields(found, _OF_CONTENT), "text": found.body[start:end], "page": page, "pages": len(bounds)}


def _line(entry: Entry) -> str:
    calls = (call_text(block.name, block.input) for block in entry.content if isinstance(block, ToolUse))
    words = f"{entry.tool or entry.kind}: {text_of(entry.content)} {'; '.join(calls)}"
    return clip(words, _LINE)


def call_text(tool: str, arguments: Json) -> str:
    """A tool call as a person reads it: ``search_files text="lock", folder="asyncio"``."""
    return f"{tool} {', '.join(f'{name}={json.dumps(value, ensure_ascii=False)}' for name, value in arguments.items())}"


# --- what a run saw and cost ------------------------------------------------------------------------------


async def read_stats(journal: Journal, run: str, *, tree: bool) -> Json:
    """Read what a run saw and cost; with ``tree`` also each run below it, and the sums."""
    row = await journal.find_run(run)
    rows = await journal.read_runs(below=row.started.run_id) if tree else [row]
    runs = [await read_figures(journal, each) for each in rows]
    return {"tree": tree, "total": total_of(runs), "runs": runs}


async def read_figures(journal: Journal, row: RunRow) -> Json:
    """Read a run's figures, and what they are made of."""
    run_id = row.started.run_id
    statistics = (await journal.read_statistics(run_id))[run_id]
    calls = await journal.read_model_calls(run_id, contents=False)
    bodies = [made.body for made in await journal.read_decisions(run_id)]
    outcomes = await journal.read_outcomes(run_id)
    found = await anyio.to_thread.run_sync(_figures, calls, bodies, outcomes)  # as an inspection
    return {
        **_fields(row.started, _OF_RUN),
        "state": row.state,
        "statistics": msgspec.to_builtins(statistics),
        **found,
        **_context(statistics),
        "alerts": [alert.body["reason"] for _, alert in await journal.read_events(run_id, types=["Alert"])],
    }


def _figures(calls: Sequence[ModelCallRow], bodies: Sequence[Json], outcomes: Sequence[ToolFinished]) -> Json:
    iterations = list(_iterations(calls))
    numbers = sorted(step["iteration"] for step in iterations)
    return {
        "iterations": iterations,
        "purposes": _summed((call.called.purpose, _spent(call)) for call in calls),
        "tools": _summed((outcome.tool, _used(outcome)) for outcome in outcomes),
        "decisions": [_decision(decode_decision(body), numbers) for body in bodies],
        "estimate": _estimate([iterations]),
    }


def total_of(runs: Sequence[Json]) -> Json:
    """The sums over runs, with the ratios derived from them."""
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
    """The prompt of each iteration: as estimated, as billed, and as it would have been in a plain loop."""
    for call in calls:
        replied = call.replied
        if call.called.purpose == "agent" and replied is not None and replied.error is None:
            usage = replied.usage
            yield {
                "iteration": call.called.iteration,
                "call": call.called.call,
                "expected_tokens": call.called.expected_tokens,
                "prompt_tokens": usage.prompt_tokens,
                "plain_tokens": replied.plain_tokens,
                "cache_read_tokens": usage.cache_read_tokens,
                "cache_write_tokens": usage.cache_write_tokens + usage.cache_write_1h_tokens,
                "output_tokens": usage.output_tokens,
                "cost": replied.cost,
            }


def _estimate(runs: Iterable[Sequence[Json]]) -> Json:
    """How far prompts were from their estimates. A run's first is left out: nothing had been billed before it."""
    billed = [step for iterations in runs for step in iterations[1:] if step["prompt_tokens"]]
    errors = [abs(step["expected_tokens"] - step["prompt_tokens"]) / step["prompt_tokens"] for step in billed]
    return {"prompts": len(errors), "p50": percentile(errors, 0.5), "p95": percentile(errors, 0.95)}


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least this share of the values does not exceed; None if there are no values."""
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
    """Add up the lines of each name."""
    found: dict[str, Counter[str]] = {}
    for name, line in lines:
        found.setdefault(name, Counter()).update(line)
    return {name: dict(sums) for name, sums in found.items()}


def _decision(decision: Decision, iterations: Sequence[int]) -> Json:
    """A change of the view. Token counts before and after it are 0 if they were not computed.

    ``saved`` is its estimated saving for each call after it, minus its cost: negative until it has paid off.
    ``iterations`` has the numbers of those that got an answer, in order.
    """
    a = decision.arithmetic
    since = len(iterations) - bisect_left(iterations, decision.iteration)
    return {
        **_fields(decision, ("iteration", "kind", "reason")),
        "tokens_before": a.prompt_before,
        "tokens_after": a.prompt_after,
        "tokens_saved": a.cleared_tokens,
        "cost_now": a.cost_now,
        "saving_per_call": a.saving_per_call,
        "saved": a.saving_per_call * (since - 1) - a.cost_now if since else 0.0,
    }
