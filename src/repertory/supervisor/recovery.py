"""Reading a run back from its record, to continue it; and ending runs that nobody continues."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

from repertory.agents.agent import Agent
from repertory.context import replay
from repertory.errors import JournalUnreadable
from repertory.loop.open_calls import close_calls
from repertory.memory import Memory
from repertory.memory.messages import AsksMemory
from repertory.record import Ledger
from repertory.record.records import FINAL_STATES, Record, RunRow, RunStateChanged
from repertory.record.statistics import RESULT_SUMMARIZED
from repertory.runs.events import IterationStarted, StateChanged, to_record
from repertory.runs.inbox import SAID, Said
from repertory.runs.live import LiveRun
from repertory.runs.log import log
from repertory.runs.payloads import payload_on_record
from repertory.runs.shared import Shared
from repertory.runs.telemetry import TRACED
from repertory.runs.waiting_calls import WAITING_EVENTS
from repertory.supervisor.retention import Retention

_NEEDED: Final = (SAID, TRACED, RESULT_SUMMARIZED, *sorted(WAITING_EVENTS))  # of the many events of a long run


async def read_back(
    row: RunRow,
    agent: Agent[Any],
    shared: Shared,
    retention: Retention,
    *,
    parent: LiveRun | None,
    leads: Sequence[Agent[Any]] = (),
    memory: AsksMemory | None = None,
) -> LiveRun:
    """Read a run back from the journal, including messages that it has not read yet."""
    journal, started = shared.journal, row.started
    ledger = await Ledger.open(journal, started.run_id, clock=shared.clock)
    live = LiveRun(
        shared=shared,
        started=started,
        agent=agent,
        ledger=ledger,
        memory=Memory(memory or shared.memory, started.scope_id, started.run_id),
        tally=parent.tally if parent is not None else await shared.tallies.open(started.run_id),
        parent=parent,
        leads=leads,
        resumed=True,
        iteration=row.iteration,
        agent_changed=started.agent_digest != agent.digest,
        plan=replay(made.body for made in await journal.read_decisions(started.run_id)),
    )
    async with retention.payloads:
        records = await journal.read_payload(live.run_id)
        live.payload = payload_on_record(agent, records, below=started.parent_id is not None)
        retention.known[live.run_id] = live
    if live.agent_changed:
        was, now = started.agent_digest, agent.digest
        log(logging.WARNING, "agent.changed", run=live.run_id, agent=agent.name, was=was, now=now)
    live.members.update(live.tally.by_run)
    heard = {entry.message_id for entry in ledger.snapshot()}
    answered = {entry.tool_call_id for entry in ledger.snapshot()}
    for _, record in await journal.read_events(live.run_id, types=[IterationStarted.__name__], limit=1):
        live.spending.since = record.elapsed
    for _, record in await journal.read_events(live.run_id, types=_NEEDED):
        if record.type == SAID:
            message_id = record.body["message_id"]
            said = Said(record.body["text"], record.body["sender"], record.body.get("attached", ""))
            live.inbox.put(message_id, said, read=message_id in heard)
        elif record.type == TRACED:
            live.trace.earlier = record.body
        elif record.type in WAITING_EVENTS:
            live.waits.read_back(record, agent=live.agent.name, answered=answered)
        elif record.type == RESULT_SUMMARIZED:
            live.result_summaries[record.body["position"]] = record.body["text"]
    return live


async def end_orphan(shared: Shared, row: RunRow, *, cancelled: bool) -> None:
    """End a recorded run that nobody runs any more; ``cancelled`` as in ``RunStateChanged``, and then for good."""
    run_id, now = row.started.run_id, shared.clock()
    try:
        if cancelled:
            ledger = await Ledger.open(shared.journal, run_id, clock=shared.clock)
            await close_calls(ledger, iteration=row.iteration, at=now)
    except JournalUnreadable as error:  # damaged long ago; that must not keep the run above it from ending
        log(logging.ERROR, "run.unreadable", run=run_id, exc_info=error)
    if row.state not in FINAL_STATES:
        await shared.journal.write(stopped_records(row, at=now, cancelled=cancelled))


def stopped_records(row: RunRow, *, at: float, cancelled: bool) -> list[Record]:
    """The records that end a run on record which nobody runs; ``cancelled`` as in ``RunStateChanged``."""
    run_id, iteration = row.started.run_id, row.iteration
    event = StateChanged(run_id=run_id, agent=row.started.agent, iteration=iteration, at=at, state="stopped")
    changed = RunStateChanged(run_id=run_id, state="stopped", at=at, iteration=iteration, cancelled=cancelled)
    return [changed, to_record(event)]
