"""Which run a tool call belongs to that somebody decides, or gives a result, by its id alone."""

from __future__ import annotations

from repertory._choices import show
from repertory._ids import unit_of
from repertory.errors import RunError
from repertory.loop.open_calls import open_calls
from repertory.record.records import RunRow
from repertory.runs.live import LiveRun
from repertory.supervisor.runtime import Runtime


async def owner_of(runtime: Runtime, live: LiveRun, call_id: str) -> LiveRun:
    """The run that has a call: this one, or the only one below it that has it; rather one whose call still waits.

    The ids are the servers' own, and those of some servers differ only within a run.
    """
    live.check_here()
    runs = [run for run in live.tree() if run.waits.knows(call_id)]
    waiting = [run for run in runs if not run.ended.is_set() and call_id in {call.call_id for call in run.waits.list()}]
    runs = waiting or runs
    if not runs and live.resumed:
        runs = await _taken_up_with(runtime, live, call_id)
        live = live.newest
    if live in runs or not runs:
        return live
    if len(runs) > 1:
        names = ", ".join(run.run_id for run in runs)
        raise RunError(f"several runs have a call {show(call_id)}: {names}; say it to one, supervisor.run(run_id)")
    return runs[0]


async def _taken_up_with(runtime: Runtime, live: LiveRun, call_id: str) -> list[LiveRun]:
    """The runs below one that have an open call on record, once their leads have taken them up again.

    Raises:
        RunError: It has no loop yet that would do so.
    """
    journal, found = live.shared.journal, list[LiveRun]()
    for row in await journal.read_runs(states=["running", "waiting", "paused", "stopped"], below=live.run_id):
        entries = [] if row.cancelled else await journal.read_entries(row.started.run_id)
        if all(call.use.id != call_id for call in open_calls(entries, ())):
            continue
        while (run := runtime.runs.find(row.started.run_id)) is None and _may_take_up(runtime, live.newest, row):
            if live.newest.ref is None:
                advice = "the calls of those below it wait once it continues"
                raise RunError(f"run {live.run_id} is {live.newest.state}; {advice}")
            await live.newest.wait_for_change()
        found += [] if run is None else [run]
    return found


def _may_take_up(runtime: Runtime, live: LiveRun, row: RunRow) -> bool:
    """Whether an unfinished run on record below one may still be taken up by its lead."""
    lead = runtime.runs.find(row.started.parent_id or "")
    left_out = lead is not None and lead.agent.member(row.started.agent) is None
    return not (live.is_ending or left_out) and unit_of(row.started.run_id) == unit_of(live.run_id)
