"""How a new run begins: what room there is for it, and what is made of it before anything is on record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio.lowlevel
import msgspec

from repertory._counting import counted
from repertory._ids import is_below
from repertory.agents.agent import Agent
from repertory.errors import LimitExceeded
from repertory.loop.sharing import first_drafts
from repertory.memory import Memory
from repertory.record import Draft, Ledger, Record
from repertory.record.records import RunStarted
from repertory.runs.live import LiveRun
from repertory.runs.payloads import instructions_of, new_payload
from repertory.runs.shared import Shared
from repertory.tools.media import Media


async def make_run(
    shared: Shared,
    started: RunStarted,
    agent: Agent[Any],
    *,
    parent: LiveRun | None,
    payload: Any = None,
    attachments: Sequence[Media] = (),
    **more: Any,
) -> tuple[LiveRun, list[Draft], list[Record]]:
    """Make a new run, beside its lead or, of one for another machine, what stands in for it in its lead's process.

    ``more`` are further fields of ``LiveRun``.

    Returns:
        The run, its first entries, and the records of its beginning, for one transaction with these.

    Raises:
        PayloadInvalid: The payload, or its defaults, do not fit what the agent declares.
        ConfigurationError: The agent's instructions show something that its payload does not have.
    """
    run_id, scope_id = started.run_id, f"scope-{started.run_id}"
    lead = None if parent is None else parent.payload
    state, first = new_payload(agent, payload, started=started, lead=lead, redact=shared.journal.redact)
    instructions_of(agent, state)
    if parent is None:
        memory = await Memory.open(shared.memory, run_id, scope_id=scope_id)
    else:
        memory = await parent.memory.fork(run_id, mode=started.options.get("memory", agent.memory), scope_id=scope_id)
    live = LiveRun(
        shared=shared,
        started=started,
        agent=agent,
        ledger=Ledger(shared.journal, run_id, clock=shared.clock),
        memory=memory,
        tally=shared.tallies.begin(run_id) if parent is None else parent.tally,
        parent=parent,
        payload=state,
        **more,
    )
    live.started = msgspec.structs.replace(started, scope_id=memory.scope_id, model=live.model.name)
    drafts = await first_drafts(live, attachments)
    await anyio.lowlevel.checkpoint_if_cancelled()
    return live, drafts, [live.started, *first]


def spawned_fields(started: RunStarted) -> dict[str, Any]:
    """What ``RunSpawned`` tells of the beginning of a run."""
    return {name: getattr(started, name) for name in ("task", "model", "parent_id", "depth")}


# --- room in the tree -------------------------------------------------------------------------------------


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
