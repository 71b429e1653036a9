"""The overview: a line for each run with its figures, and what was spent since midnight. The page begins with it."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from repertory._ids import root_of
from repertory.llm.messages import Json
from repertory.record.journal import Journal
from repertory.record.run_lists import RootFilter
from repertory.record.statistics import RunStatistics
from repertory.service.views import IsLive, MachineOf, RunView, read_figures, run_view

_MOST = 300  # characters of a task, a result or an error that a line may have; the run itself has the whole
_SHOWN = (
    "runs",
    "iterations",
    "tool_calls",
    "tokens_seen",
    "output_tokens",
    "cost_seen",
    "view_tokens",
    "record_tokens",
)


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """What a page begins with.

    Attributes:
        seq: The number of the newest event when it was made: ``/events?after=seq`` goes on from here.
        at: When that was, in seconds since 1970.
        read_only: Whether the service refuses whatever changes something.
        today: Model calls that were answered since ``since``, and what they took, of all runs: ``since``, ``calls``,
            ``tokens`` (prompts and answers, as billed) and ``cost`` in US dollars.
        runs: The newest trees of runs, oldest first, each with the fields of ``RunView``, its ``result``, and fields of
            ``RunStatistics``, the same as ``repertory stats`` gives: ``figures`` (its own) and ``tree`` (with those
            below it).
        more: How many older trees are left out.
        machines: The supervisors that share the journal, as ``repertory machines --json`` lists them; [] where it is
            one process's alone.
    """

    seq: int
    at: float
    read_only: bool
    today: Json
    runs: list[Json]
    more: int
    machines: list[Json] = msgspec.field(default_factory=list[Json])


async def read_overview(
    journal: Journal,
    is_live: IsLive,
    machine_of: MachineOf,
    limit: int,
    *,
    since: float,
    read_only: bool,
    machines: Sequence[msgspec.Struct] = (),
) -> Overview:
    """Read the newest trees of runs with their figures, and what was spent since a time; 0 for last midnight."""
    seq = await journal.last_event()  # before the list, so that nothing falls in between
    now = time.time()
    shown, count = await journal.read_roots(RootFilter(), limit)
    rows = await journal.read_trees(shown)
    figures = await read_figures(journal, rows)
    trees = {row.started.run_id: figures.get(row.started.run_id, RunStatistics()) for row in rows}
    for row in reversed(rows):  # children come after their parents
        if (parent := row.started.parent_id) in trees:
            trees[parent] += trees[row.started.run_id]
    return Overview(
        seq=seq,
        at=now,
        read_only=read_only,
        today=await _read_spent(journal, since or _midnight(now)),
        runs=[
            _line(
                run_view(row, live=is_live(root), machine=machine_of(row.started.run_id)),
                row.result,
                figures.get(row.started.run_id),
                trees[row.started.run_id],
            )
            for row, root in ((row, root_of(row.started.run_id)) for row in rows)
        ],
        machines=[msgspec.to_builtins(machine) for machine in machines],
        more=count - len(shown),
    )


def _line(view: RunView, result: str | None, own: RunStatistics | None, tree: RunStatistics) -> Json:
    line: Json = msgspec.to_builtins(view)
    line["task"], line["error"] = view.task[:_MOST], view.error and view.error[:_MOST]
    line["result"] = result and result[:_MOST]
    line["figures"] = {name: getattr(own or RunStatistics(), name) for name in _SHOWN}
    line["tree"] = {name: getattr(tree, name) for name in _SHOWN}
    return line


def _midnight(now: float) -> float:
    """When the day began on this machine."""
    day = time.localtime(now)
    return time.mktime((day.tm_year, day.tm_mon, day.tm_mday, 0, 0, 0, 0, 0, -1))


async def _read_spent(journal: Journal, since: float) -> Json:
    calls, tokens, cost = await journal.read_spent(since)
    return {"since": since, "calls": calls, "tokens": tokens, "cost": cost}
