"""The room that a tree of runs has for more: how many runs, and how many levels."""

from __future__ import annotations

from repertory._ids import is_below
from repertory.errors import LimitExceeded
from repertory.runs.live import LiveRun


def reserve_room(parent: LiveRun, run_id: str) -> bool:
    """Count a run before it begins, so that two that begin at once are two; whether it was not counted before.

    Raises:
        LimitExceeded: There is no room for it.
    """
    members = parent.root.members
    if run_id in members:
        return False
    parent.spending.check()
    for levels, run in enumerate(parent.lineage(), start=1):
        limits = run.agent.limits
        if levels > limits.depth:
            raise LimitExceeded(f"{run.agent.name} allows {limits.depth} levels of sub-agents below it (limits.depth)")
        if 1 + sum(is_below(member, run.run_id) for member in members) >= limits.runs:
            raise LimitExceeded(f"{run.agent.name} allows {limits.runs} runs in its tree (limits.runs)")
    members.add(run_id)
    return True
