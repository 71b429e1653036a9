"""Runs as they are shown: what the journal says of them, and which process runs them, which it does not say."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import msgspec

from repertory._choices import show
from repertory._ids import root_of
from repertory.errors import ConfigurationError
from repertory.llm.messages import Json
from repertory.record.journal import Journal
from repertory.record.memory_records import ScopeMode
from repertory.record.records import FINAL_STATES, RunRow, RunState
from repertory.record.run_lists import InState, RootFilter
from repertory.record.statistics import RunStatistics
from repertory.service.requests import STATES, RunsQuery
from repertory.service.views import Overview, RunDetail, RunFigures, RunList, RunNode, RunView, run_view

IsLive: TypeAlias = Callable[[str], bool]
"""Whether a process runs the tree of a root, by the root's id."""
MachineOf: TypeAlias = Callable[[str], str]
"""The name of the machine that runs a run, by its id; "" if there is none."""

_SETTLED: Final[tuple[RunState, ...]] = (*FINAL_STATES, "queued", "paused")  # shown as recorded, whoever runs the tree
_GOING: Final[tuple[RunState, ...]] = ("running", "waiting")
UNSETTLED: Final[tuple[RunState, ...]] = (*_GOING, "queued", "paused")
_INTERRUPTED: Final = "interrupted"
_DAY = 86400.0  # seconds for which a failure asks for somebody; the page's state.js has the same
_MOST = 300  # characters of a task, a result or an error in a line of the overview; the run's own view has all
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
_NOTHING: Final = RunStatistics()


class RunReader:
    """Reads runs from a journal, which does not say who runs them: that is asked for."""

    def __init__(self, journal: Journal, is_live: IsLive, machine_of: MachineOf = lambda _: "") -> None:
        self._journal = journal
        self._is_live = is_live
        self._machine_of = machine_of

    async def list_runs(self, query: RunsQuery) -> RunList:
        """The newest trees of runs that match, oldest first; with figures it takes one more query, however many."""
        seq = await self._journal.last_event()  # before the list, so that nothing is missed
        which = await self._on_record(query)
        shown, count = await self._journal.read_roots(which, query.limit)
        edge = (shown[-1] if which.oldest else shown[0]) if len(shown) < count and shown else None
        if edge is not None and query.unfinished == "yes" and not (which.in_state or which.oldest):
            shown = [*await self._unfinished(msgspec.structs.replace(which, before=edge), query.limit), *shown]
        views = [view for _, view in await self._with_views(await self._journal.read_trees(shown))]
        if query.figures == "yes":
            figures = await self._figures(views)
            views = [_with_figures(view, figures.get(view.id, _NOTHING)) for view in views]
        return RunList(runs=views, seq=seq, more=count - len(shown), next=edge)

    async def _unfinished(self, which: RootFilter, limit: int) -> list[str]:
        """The newest of these roots that have not ended: a schedule soon starts more trees than are shown."""
        unfinished = msgspec.structs.replace(which, in_state=[InState(states=UNSETTLED)])
        return (await self._journal.read_roots(unfinished, limit))[0]

    async def _on_record(self, query: RunsQuery) -> RootFilter:
        """The part of a query that the journal can answer, which does not know who runs what."""
        wanted = query.state.split(",") if query.state else STATES
        for state in wanted:
            if state not in STATES:
                raise ConfigurationError(f"state is {show(state)}; expected one or more of {','.join(STATES)}")

        def those(states: Sequence[RunState]) -> list[RunState]:
            return [state for state in states if state in wanted]

        in_state: Sequence[InState] = ()
        if query.machine:  # it runs none that has ended or was interrupted
            in_state = [InState(states=those(UNSETTLED), among=await self._live(query.machine))]
        elif query.state:
            interrupted = _GOING if _INTERRUPTED in wanted else ()
            live = await self._live() if interrupted or those(_GOING) else []
            either = (InState(states=those(_GOING), among=live), InState(states=interrupted, without=live))
            in_state = [each for each in (InState(states=those(_SETTLED)), *either) if each.states]
        return RootFilter(
            in_state=in_state,
            agent=query.agent,
            client=query.client,
            part=query.part,
            text=query.text,
            since=query.since,
            until=query.until or math.inf,
            before=query.before,
            after=query.after,
            oldest=query.sort == "oldest" or bool(query.after),
        )

    async def _live(self, machine: str = "") -> list[str]:
        """The roots that a process runs; only this machine's if one is named."""
        there, _ = await self._journal.read_roots(RootFilter(in_state=[InState(states=UNSETTLED)]), sys.maxsize)
        return [run_id for run_id in there if self._is_live(run_id) and machine in ("", self._machine_of(run_id))]

    async def read_overview(
        self, limit: int, *, since: float, read_only: bool, machines: Sequence[msgspec.Struct] = ()
    ) -> Overview:
        """The newest trees of runs and older ones that have not ended or that failed within a day, with their figures;
        and what was done and spent since a time, 0 for last midnight.
        """
        seq, now = await self._journal.last_event(), time.time()
        since = since or time.mktime((*time.localtime(now)[:3], 0, 0, 0, 0, 0, -1))
        shown, count = await self._journal.read_roots(RootFilter(), limit)
        if shown and len(shown) < count:
            older = await self._unfinished(RootFilter(before=shown[0]), limit)
            failed = await self._journal.read_roots_since(now - _DAY, "failed")
            shown = list({*older, *failed[-limit:], *shown})
        found = await self._with_views(await self._journal.read_trees(shown))
        figures = await self._figures([view for _, view in found])
        trees = {view.id: figures.get(view.id, _NOTHING) for _, view in found}
        for _, view in reversed(found):  # children come after their parents
            if view.parent_id in trees:
                trees[view.parent_id] += trees[view.id]
        done = await self._journal.read_roots_since(since, "done")
        calls, tokens, cost = await self._journal.read_spent(since)
        lines = []
        for row, view in found:
            line: Json = msgspec.to_builtins(_with_end(view, trees[view.id]))
            line["task"], line["error"] = view.task[:_MOST], view.error and view.error[:_MOST]
            line["result"] = row.result and row.result[:_MOST]
            for name, of in (("figures", figures.get(view.id, _NOTHING)), ("tree", trees[view.id])):
                line[name] = {field: getattr(of, field) for field in _SHOWN}
            lines.append(line)
        return Overview(
            seq=seq,
            at=now,
            read_only=read_only,
            today={"since": since, "done": len(done), "calls": calls, "tokens": tokens, "cost": cost},
            runs=lines,
            machines=[msgspec.to_builtins(machine) for machine in machines],
            more=count - len(shown),
        )

    async def read_run(self, run_id: str) -> RunDetail:
        """One run, by its id or an unambiguous beginning of it. Raises ``RunNotFound``."""
        run_id = (await self._journal.find_run(run_id)).started.run_id
        found = await self._with_views(await self._journal.read_runs(below=run_id))
        figures = await self._journal.read_statistics(run_id)
        modes: dict[str, ScopeMode] = {scope.scope_id: scope.mode for scope in await self._journal.read_scopes(run_id)}
        nodes: dict[str, RunNode] = {}
        for row, view in found:
            memory = modes.get(row.started.scope_id)
            node = RunNode(run=view, statistics=figures.get(view.id, _NOTHING), memory=memory, children=[])
            if row.started.parent_id in nodes:
                nodes[row.started.parent_id].children.append(node)
            nodes[view.id] = node
        row, _ = found[0]
        tree = sum((node.statistics for node in nodes.values()), start=RunStatistics(runs=0))
        return RunDetail(
            run=_with_end(nodes[run_id].run, tree),
            result=row.result,
            statistics=nodes[run_id].statistics,
            tree_statistics=tree,
            tree=nodes[run_id],
            payload_version=await self._journal.payload_version(run_id),
            agent_ref=row.started.agent_ref,
            options=dict(row.started.options),
        )

    async def read_row(self, run_id: str) -> tuple[RunRow, RunView]:
        """The record of one run, and its view in lists. Raises ``RunNotFound``."""
        (found,) = await self._with_views([await self._journal.read_run(run_id)])
        return found

    async def _with_views(self, rows: Sequence[RunRow]) -> list[tuple[RunRow, RunView]]:
        """Each row with its view in lists.

        The records of trees that seem to be interrupted are read again: they may have ended during the first read.
        """
        found = [(row, self._view(row)) for row in rows]
        left = {root_of(view.id) for _, view in found if view.state == _INTERRUPTED}
        if not left:
            return found
        again = {row.started.run_id: row for row in await self._journal.read_trees(sorted(left))}
        return [(row, self._view(row)) for row in (again.get(view.id, row) for row, view in found)]

    def _view(self, row: RunRow) -> RunView:
        run_id = row.started.run_id
        return run_view(row, live=self._is_live(root_of(run_id)), machine=self._machine_of(run_id))

    async def _figures(self, views: Sequence[RunView]) -> dict[str, RunStatistics]:
        return await self._journal.read_statistics(of=[view.id for view in views])


def _with_end(view: RunView, tree: RunStatistics) -> RunView:
    """A killed run could not say when it ended; the last answer of a model in its tree does."""
    if view.state != _INTERRUPTED:
        return view
    return msgspec.structs.replace(view, updated_at=max(view.updated_at, tree.replied_at))


def _with_figures(view: RunView, figures: RunStatistics) -> RunView:
    own = RunFigures(
        iterations=figures.iterations,
        tool_calls=figures.tool_calls,
        tokens_seen=figures.tokens_seen,
        output_tokens=figures.output_tokens,
        cost=figures.cost_seen,
    )
    return msgspec.structs.replace(view, figures=own, updated_at=max(view.updated_at, figures.replied_at))
