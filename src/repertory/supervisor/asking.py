"""Reaching runs from outside: with a message, or with what is said of one of their tool calls."""

from __future__ import annotations

from collections.abc import Sequence

import anyio.lowlevel

from repertory._choices import show
from repertory._ids import unit_of
from repertory.errors import RunError
from repertory.llm.messages import Block
from repertory.loop.open_calls import open_calls
from repertory.record.records import RunRow
from repertory.runs.attachments import attach
from repertory.runs.inbox import Said
from repertory.runs.live import LiveRun
from repertory.supervisor.runtime import Runtime
from repertory.views.policies import results_of


async def say(
    runtime: Runtime,
    live: LiveRun,
    message_id: str,
    text: str,
    attachments: Sequence[Block] = (),
    *,
    again: bool = False,
) -> None:
    """Send a message to a run; it is durable afterwards. The message, and the continuation of a run that has ended, are
    one transaction.

    Args:
        message_id: Makes the call safe to repeat: a message that the run has already read does not continue it.
        attachments: What is shown with it; of one that a value to redact was in, the line that says so.
        again: Continue the run even for a message that it has read, if it has failed or was stopped.

    Raises:
        RunError: Another message has this id; or the run has ended, and is below another run or its supervisor is
            closed.
        ConfigurationError, ContextMissing, PayloadInvalid: As ``Runtime.check`` and ``Runtime.continue_run``.
    """
    journal = live.shared.journal
    said = Said(journal.redact(text))  # as it will be read back, to recognize a repeated message
    if attachments:
        stored = await attach(journal, live.run_id, "said", message_id, attachments, at=live.shared.clock())
        said = Said(said.text, attached=stored.content_id, stored=stored)
    await anyio.lowlevel.checkpoint()
    await _say(runtime, live, message_id, said, again=again)
    await journal.write(())


async def _say(runtime: Runtime, live: LiveRun, message_id: str, said: Said, *, again: bool) -> None:
    live = live.newest
    live.check_here()
    if not runtime.runs.closing:
        live.shared.home.check()
    if not live.is_ending:
        live.deliver(message_id, said)
        return
    async with runtime.runs.lock(live.run_id):
        if live.newest.is_ending:
            await live.newest.ended.wait()
        live = live.newest
        if live.lost is not None:
            raise live.lost
        if not live.is_ending:  # somebody else has continued it
            live.deliver(message_id, said)
            return
        known = not live.inbox.is_new(message_id, said) and not live.inbox.is_unread(message_id)
        if known and (not again or live.state == "done"):
            return
        if runtime.runs.closing or live.end is None or live.parent is not None:
            raise RunError(_why_unheard(live))
        row = await live.shared.journal.read_run(live.run_id)
        runtime.check(live.agent, results_of(row.started))
        with runtime.runs.beginning():
            going = await runtime.continue_run(row, live.agent, ended=(), context=live.context, said=(message_id, said))
        if going.begun is not None:
            await going.begun.wait()


def _why_unheard(live: LiveRun) -> str:
    """Why a run reads no more messages, and what to do instead."""
    advice = "as it stands below another run; say it to that one"
    if live.end is None or live.parent is None:
        advice = "its supervisor is closed; resume it in another one, and send it there"
    return f"run {live.run_id} has ended ({live.how_ended}) and did not read the message: {advice}"


# --- tool calls --------------------------------------------------------------------------------------------


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
        while (run := runtime.runs.find(row.started.run_id)) is None and may_take_up(runtime, live.newest, row):
            if live.newest.ref is None:
                advice = "the calls of those below it wait once it continues"
                raise RunError(f"run {live.run_id} is {live.newest.state}; {advice}")
            await live.newest.wait_for_change()
        found += [] if run is None else [run]
    return found


def may_take_up(runtime: Runtime, live: LiveRun, row: RunRow) -> bool:
    """Whether a run on record below one that is here may still be taken up by its lead."""
    if row.cancelled or row.state in ("done", "failed"):
        return False
    lead = runtime.runs.find(row.started.parent_id or "")
    left_out = lead is not None and lead.agent.member(row.started.agent) is None
    return not (live.is_ending or left_out) and unit_of(row.started.run_id) == unit_of(live.run_id)
