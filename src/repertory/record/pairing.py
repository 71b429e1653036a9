"""Put beginnings and ends together: runs with their states, calls with their outcomes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter

from repertory.errors import RunNotFound
from repertory.record.journal import ModelCallRow, RunRow, ToolCallRow
from repertory.record.records import (
    ContentStored,
    ModelCalled,
    ModelReplied,
    RunStarted,
    RunStateChanged,
    ToolFinished,
    ToolIntended,
)


def run_row(started: RunStarted, changed: RunStateChanged | None, *, called: int) -> RunRow:
    """A run, its latest change of state, and the iteration that its loop called a model in last."""
    if changed is None:
        return RunRow(started=started, state="running", updated_at=started.at, iteration=called)
    return RunRow(
        started=started,
        state=changed.state,
        updated_at=changed.at,
        iteration=max(changed.iteration, called),
        result=changed.result,
        error=changed.error,
    )


def choose_run(wanted: str, rows: Sequence[RunRow]) -> RunRow:
    """The run with this id, or the only one whose id begins with it.

    Raises:
        RunNotFound: There is none, or more than one.
    """
    for row in rows:
        if row.started.run_id == wanted:
            return row
    found = [row for row in rows if wanted and row.started.run_id.startswith(wanted)]
    if not found:
        raise RunNotFound(f"no run has the id {wanted!r}")
    if len(found) > 1:
        names = ", ".join(row.started.run_id for row in found[:3])
        raise RunNotFound(f"{wanted!r} fits {len(found)} runs ({names}, …); give more of the id")
    return found[0]


def is_expired(content: ContentStored, ended_at: float | None, now: float) -> bool:
    """Whether a content may be cleaned up. ``ended_at`` is when its run ended, None while it has not."""
    if content.expires_at is not None and content.expires_at <= now:
        return True
    return content.retention is not None and ended_at is not None and ended_at + content.retention <= now


def pair_tool_calls(
    intents: Iterable[tuple[int, ToolIntended]], outcomes: Iterable[tuple[int, ToolFinished]]
) -> list[ToolCallRow]:
    """One row for each intent. A call that was intended again after a crash has a row for each attempt."""
    rows: list[ToolCallRow] = []
    latest: dict[str, int] = {}  # call id -> index of its latest attempt
    merged: list[tuple[int, ToolIntended | ToolFinished]] = [*intents, *outcomes]
    for _, record in sorted(merged, key=itemgetter(0)):
        if isinstance(record, ToolIntended):
            latest[record.call_id] = len(rows)
            rows.append(ToolCallRow(intended=record))
        elif record.call_id in latest:
            index = latest[record.call_id]
            rows[index] = ToolCallRow(intended=rows[index].intended, finished=record)
    return rows


def pair_model_calls(
    calls: Iterable[tuple[int, ModelCalled]], replies: Iterable[tuple[int, ModelReplied]]
) -> list[ModelCallRow]:
    """One row for each model call, with its reply if one came."""
    rows: list[ModelCallRow] = []
    latest: dict[int, int] = {}
    merged: list[tuple[int, ModelCalled | ModelReplied]] = [*calls, *replies]
    for _, record in sorted(merged, key=itemgetter(0)):
        if isinstance(record, ModelCalled):
            latest[record.call] = len(rows)
            rows.append(ModelCallRow(called=record))
        elif record.call in latest:
            index = latest[record.call]
            rows[index] = ModelCallRow(called=rows[index].called, replied=record)
    return rows
