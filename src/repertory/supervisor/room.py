"""How many more runs and levels a tree of runs may have."""

from __future__ import annotations

from typing import Any

from repertory._counting import counted
from repertory._ids import is_below
from repertory.agents.agent import Agent
from repertory.errors import LimitExceeded
from repertory.runs.live import LiveRun


def reserve_room(parent: LiveRun, run_id: str) -> bool:
    """Count a run before it begins, so that concurrent starts are all counted; returns whether it is newly counted.

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
            depth = counted(limits.depth, "level")
            raise LimitExceeded(f"{run.agent.name} allows {depth} of sub-agents below it (limits.depth)")
        if _runs_left(run) <= 0:
            raise LimitExceeded(f"{run.agent.name} allows {counted(limits.runs, 'run')} in its tree (limits.runs)")
    members.add(run_id)
    return True


def promise_room(parent: LiveRun, run_id: str, agent: Agent[Any]) -> dict[str, int]:
    """Reserve room for the sub-agents of a counted run on another machine; returns its limits.

    The room is half of what is left, so that some is left for others; none for an agent without a team.
    """
    runs = (min(map(_runs_left, parent.lineage())) + 1) // 2 if agent.team else 0
    parent.root.promised[run_id] = min(runs, agent.limits.runs - 1)
    depth = min(run.agent.limits.depth - levels for levels, run in enumerate(parent.lineage(), start=1))
    return {"runs": 1 + parent.root.promised[run_id], "depth": min(depth, agent.limits.depth)}


def _runs_left(run: LiveRun) -> int:
    """How many more runs there may be below it."""
    root = run.root
    promised = sum(more for member, more in root.promised.items() if is_below(member, run.run_id))
    return run.agent.limits.runs - 1 - promised - sum(is_below(member, run.run_id) for member in root.members)
