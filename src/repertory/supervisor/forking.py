"""Forking runs at an iteration, and removing runs from the journal.

A fork copies everything of the original that either of the two could change: the ledger, the plan of how it is shown,
summaries, the payload, and the contents that the tree had stored by then. Memory is a snapshot, which costs nothing:
the fork sees what the original had written by then, and what either writes later is its own. What was spent counts only
for the original.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack, nullcontext
from functools import partial
from hashlib import blake2b
from operator import itemgetter
from typing import Any, Final

import msgspec

from repertory._choices import check_number, check_text
from repertory._ids import new_id as _new_id
from repertory._ids import unit_of
from repertory.agents.agent import Agent
from repertory.agents.loading import agent_of
from repertory.agents.tasks import check_run_id
from repertory.errors import ContextMissing, RecordRefused, RunError, RunExists, RunNotFound
from repertory.llm.messages import tool_uses
from repertory.memory.messages import ForgetTree
from repertory.record.entries import Entry
from repertory.record.journal import Journal
from repertory.record.memory_records import PayloadChanged, ScopeOpened
from repertory.record.records import (
    FINAL_STATES,
    ContentStored,
    DecisionMade,
    EntryAppended,
    Record,
    RunRow,
    RunStarted,
    RunStateChanged,
    SummaryStored,
)
from repertory.record.rows import encode_json
from repertory.record.statistics import RESULT_SUMMARIZED
from repertory.runs.events import RunForked, to_record
from repertory.runs.inbox import SAID, Said, said_records
from repertory.runs.live import LiveRun
from repertory.runs.payloads import instructions_of, payload_on_record
from repertory.summarizer.messages import ForgetRun
from repertory.supervisor.live_runs import check_root, read_whole_id
from repertory.supervisor.recovery import stopped_records
from repertory.supervisor.runtime import Runtime
from repertory.views.policies import results_of

_OWN: Final = ("assistant", "action-result", "sub-agent-result")  # the kinds of entries that belong to an iteration


class Fork(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a fork.

    Attributes:
        iteration: The last iteration to copy, 0 for the task alone; None for the last complete one.
        text: A message from the user to the fork; None for none.
        new_id: The fork's id; None generates one.
        rewound: Whether it replaces the original, which is ended if it has not ended.

    Raises:
        ConfigurationError: It can never be fulfilled.
    """

    iteration: int | None = None
    text: str | None = None
    new_id: str | None = None
    rewound: bool = False

    def __post_init__(self) -> None:
        check_number("fork: iteration", self.iteration, int, least=0, none=True)
        if self.text is not None:
            msgspec.structs.force_setattr(self, "text", check_text("a message", self.text))
        if self.new_id is not None:
            msgspec.structs.force_setattr(self, "new_id", check_run_id(self.new_id))

    def request(self, journal: Journal) -> str:
        """A key that distinguishes a repeated call from one for a different fork."""
        said = None if self.text is None else journal.redact(self.text)
        return f"fork-{blake2b(encode_json([said, self.rewound]).encode(), digest_size=12).hexdigest()}"


async def fork(runtime: Runtime, run_id: str, wanted: Fork, *, agent: Agent[Any] | None, context: Any) -> LiveRun:
    """Start a fork; see ``Supervisor.fork`` and ``Supervisor.rewind``. It is not durable yet."""
    check_text("a run_id", run_id)
    journal = runtime.shared.journal
    row = await journal.read_run(run_id)
    origin = row.started
    check_root(origin, "fork")  # before its agent is loaded: a sub-agent's run may not say where its agent is defined
    agent = agent_of(origin, agent)
    runtime.check(agent, results_of(origin))
    if origin.has_context and context is None:
        raise ContextMissing(f"run {origin.run_id} was given an application context: hand it in again, context=…")
    begin = partial(_begin, runtime, row, wanted, new=wanted.new_id or _new_id("run"), agent=agent, context=context)
    return await runtime.run_to_completion(begin)


async def _begin(runtime: Runtime, row: RunRow, wanted: Fork, *, new: str, agent: Agent[Any], context: Any) -> LiveRun:
    journal, origin = runtime.shared.journal, row.started.run_id
    past = row.started if wanted.iteration is None else await _past_of(journal, row.started, wanted.iteration)
    async with AsyncExitStack() as locks:
        # Lock in the same order everywhere. A rewound run must not be resumed before its end is written, nor one that
        # has ended be removed; the lock of one under way may be held by somebody who waits for its end.
        held = {new} | {run_id for run_id in (origin, past.run_id) if runtime.runs.find(run_id) is None}
        for run_id in sorted(held | {origin} if wanted.rewound else held):
            await locks.enter_async_context(runtime.runs.lock(run_id))
        there = await journal.run_or_none(new)
        if there is not None and (
            there.started.origin != origin
            or wanted.iteration not in (None, there.started.origin_iteration)
            or there.started.request != wanted.request(journal)
        ):
            raise RunExists(f"run {new} is there already, and is no such fork; give the new run another id")
        await runtime.queue.refresh()
        more = msgspec.structs.replace(row.started, run_id=new)
        # A rewind of a run that is under way or queued, here or for any machine, frees its place.
        waits = (await journal.read_run(origin)).state == "queued"
        frees = wanted.rewound and (waits or runtime.runs.find(origin) is not None)
        async with runtime.queue.entering(more) if there is None and not frees else nullcontext():
            if there is None:
                await _write(runtime, row, wanted, new=new, agent=agent)
            going = runtime.runs.find(new)
            if going is None:
                row, claimed = await journal.read_run(new), there is None  # who writes its beginning owns it
                going = await runtime.continue_run(row, agent, ended=FINAL_STATES, context=context, claimed=claimed)
    return going


async def _write(runtime: Runtime, row: RunRow, wanted: Fork, *, new: str, agent: Agent[Any]) -> None:
    """Write a fork's beginning; if it replaces the original, end that one first."""
    journal, origin = runtime.shared.journal, row.started.run_id
    row = await journal.read_run(origin)  # it may have continued or ended since the request
    records = await fork_records(journal, row, wanted, new_id=new, at=runtime.shared.clock())
    payload = [record for record in records if isinstance(record, PayloadChanged)]
    instructions_of(agent, payload_on_record(agent, payload, below=False))  # else a fork is left that cannot begin
    live = runtime.runs.find(origin)
    await _check_writable(runtime, origin)
    if wanted.rewound and live is not None:  # only now, so that a refused request leaves it as it is
        runtime.stop(live, now=True)
        await live.ended.wait()
        row = await journal.read_run(origin)
        records = await fork_records(journal, row, wanted, new_id=new, at=runtime.shared.clock())
    await _check_writable(runtime, origin)  # if it was removed meanwhile, the records read may be incomplete
    try:
        await journal.write(records)
    except RecordRefused as error:
        await _check_writable(runtime, origin)
        if runtime.claims is not None:
            await runtime.claims.explain_refused(new, error)
        raise


async def _check_writable(runtime: Runtime, origin: str) -> None:
    """Raise an error if the original was removed, or if another machine writes its record, where a fork is noted."""
    if await runtime.shared.journal.was_removed(origin):
        raise RunNotFound(f"run {origin} was removed while it was forked")
    claims = runtime.claims if runtime.runs.find(origin) is None else None
    if claims is not None and await claims.is_elsewhere(origin):
        raise RunError(
            f"run {origin} is under way on another machine, whose record of it nobody else may write; fork it "
            "once it has ended, or ask that machine"
        )


async def remove(runtime: Runtime, run_id: str) -> None:
    """Take a run out of the journal; see ``Supervisor.remove``."""
    row = await read_whole_id(runtime.shared.journal, run_id)
    check_root(row.started, "remove")
    begun = row.state not in (*FINAL_STATES, "queued")
    await runtime.run_to_completion(partial(_remove, runtime, run_id, begun=begun))


async def _remove(runtime: Runtime, run_id: str, *, begun: bool) -> None:
    if begun and runtime.placement is not None:  # if it was interrupted, no machine may be able to continue it
        await runtime.placement.end_waiting(run_id, cancelled=True)
    async with runtime.runs.lock(run_id):
        row = await runtime.shared.journal.run_or_none(run_id)
        if row is None:
            raise RunNotFound(f"run {run_id} was removed meanwhile")
        await runtime.runs.wait_ending(run_id)
        if runtime.runs.find(run_id) is not None:
            raise RunError(f"run {run_id} has not ended, it is {row.state}; stop it before you remove it")
        shared = runtime.shared
        for ended in await shared.summarizer.ask(ForgetRun(run_id)):  # what it writes would be there again
            await ended.wait()
        at = shared.clock()
        await shared.journal.remove_some(run_id, at=at)
        await shared.memory.ask(ForgetTree(run_id))  # from here on nothing is stored there
        await shared.journal.remove_run(run_id, at=at)


async def fork_records(journal: Journal, row: RunRow, wanted: Fork, *, new_id: str, at: float) -> list[Record]:
    """The records of a fork of a root, ``row``; written in one batch, they make a run that can be resumed.

    Raises:
        RunError: There is no such iteration, or it is not complete yet.
        RunNotFound: The run whose record has the iteration was removed meanwhile.
        RunExists: A run with this id was removed.
    """
    if await journal.was_removed(new_id):
        raise RunExists(f"run {new_id} was there and has been removed; give the new run another id")
    origin = row.started
    check_root(origin, "fork")
    numbered = await journal.read_records(EntryAppended, origin.run_id)
    entries = [record.entry for _, record in numbered]
    last = _last_whole(entries)
    upto = last if wanted.iteration is None else wanted.iteration
    if not 0 <= upto <= last:
        raise RunError(f"run {origin.run_id} has no whole iteration {upto}; it has 0 (its task) to {last}")
    past = await _past_of(journal, origin, upto)
    if past.run_id != origin.run_id:
        numbered = await journal.read_records(EntryAppended, past.run_id)
    stop = _stop([record.entry for _, record in numbered], upto)
    ends = [number for number, record in numbered if record.entry.position >= stop]
    # The number before which records are copied. It is known before they are read, as the run may be at work.
    end = min([*ends, await journal.end_of_iteration(past.run_id, upto)])
    started = msgspec.structs.replace(
        origin,
        run_id=new_id,
        at=at,
        scope_id=f"scope-{new_id}",
        request=wanted.request(journal),
        origin=origin.run_id,
        origin_iteration=upto,
    )
    records: list[Record] = [
        started,
        RunStateChanged(run_id=new_id, state="running", at=at, iteration=upto),
    ]
    if past.scope_id:
        position = await journal.item_position_at(end, past.scope_id)
        records.append(
            ScopeOpened(
                scope_id=started.scope_id,
                owner=new_id,
                mode="snapshot",
                at=at,
                parent_id=past.scope_id,
                position=position,
            )
        )
    copied: list[tuple[int, Record]] = [*numbered[:stop]]
    made = await journal.read_records(DecisionMade, past.run_id)
    copied += [each for each in made if _is_of_its_past(each[1], upto)]
    for kind in (SummaryStored, PayloadChanged):
        copied += await journal.read_records(kind, past.run_id)
    copied += await journal.read_events(past.run_id, types=[RESULT_SUMMARIZED])
    heard = {record.entry.message_id for _, record in numbered[:stop]}
    said_before = await journal.read_events(past.run_id, types=[SAID])
    copied += [each for each in said_before if each[1].body["message_id"] in heard]
    copied += await _contents(journal, past.run_id, end)
    if await journal.was_removed(past.run_id):  # what was read may be incomplete
        raise RunNotFound(f"run {past.run_id} was removed while it was forked")
    # In their order, by which a fork of the fork finds what belongs to which iteration.
    copied = sorted([each for each in copied if each[0] < end], key=itemgetter(0))
    records += [msgspec.structs.replace(record, run_id=new_id) for _, record in copied]
    if wanted.text is not None:
        said = Said(journal.redact(wanted.text))
        records += said_records(new_id, _new_id("msg"), said, at=at, iteration=upto)
    forked = RunForked(
        run_id=origin.run_id, agent=origin.agent, iteration=upto, at=at, fork=new_id, rewound=wanted.rewound
    )
    records.append(to_record(forked))
    if wanted.rewound and row.state not in FINAL_STATES:
        for each in await journal.read_runs(below=origin.run_id):
            placed = unit_of(each.started.run_id) != origin.run_id  # its machine writes its end
            if not placed and each.state not in FINAL_STATES:
                records += stopped_records(each, at=at, cancelled=each.started.parent_id is None)
    return records


async def _past_of(journal: Journal, started: RunStarted, upto: int) -> RunStarted:
    """The run in whose record an iteration of a fork happened: the original's, if that was not removed.

    What a fork saw of memory before it began is in no record but that one.
    """
    while started.origin and upto < started.origin_iteration:
        before = await journal.run_or_none(started.origin)
        if before is None:
            break
        started = before.started
    return started


def _is_of_its_past(made: DecisionMade, upto: int) -> bool:
    """Whether a decision was made by then; the next request has its own, but for what a caller has asked of it."""
    return made.iteration <= upto + (made.kind in ("expand", "pin"))


def _last_whole(entries: Sequence[Entry]) -> int:
    """The last iteration whose calls all have a result; 0 if there is none."""
    answered = {entry.tool_call_id for entry in entries if entry.tool_call_id}
    turns = [entry for entry in entries if entry.role == "assistant"]
    while turns and not all(use.id in answered for use in tool_uses(turns[-1].content)):
        turns.pop()
    return turns[-1].iteration if turns else 0


def _stop(entries: Sequence[Entry], upto: int) -> int:
    """The position after the last entry of an iteration; messages after it do not belong to it."""
    own = [entry.position for entry in entries if entry.iteration <= upto and entry.kind in _OWN]
    if own:
        return own[-1] + 1
    first = [entry.position for entry in entries if entry.iteration or entry.kind == "user-input"]
    return min(first, default=len(entries))


async def _contents(journal: Journal, origin: str, end: int) -> list[tuple[int, Record]]:
    """The contents that a tree had stored by then, with their numbers; a copy is read under the same citation."""
    copies: dict[str, tuple[int, Record]] = {}
    for number, content in await journal.read_records(ContentStored, origin, below=True):
        if number < end and content.source_type != "said":  # the entry of a message has what came with it
            if content.run_id != origin and not content.body and content.length:  # the body is in a sub-agent's ledger
                content = await journal.read_content(content.content_id, root=content.run_id) or content  # noqa: PLW2901
            copies[content.content_id] = number, content
    return [*copies.values()]
