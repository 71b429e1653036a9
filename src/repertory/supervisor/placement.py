"""Placed runs: sub-agents that may work on another machine than their lead.

Such a run has its own owner, like a root: a machine that offers its labels claims it, or takes it over if its owner
dies. In the lead's process a stand-in takes its place, and this module keeps the stand-in's state up to date. Its share
of the limits above it is reserved when it begins, and settled when it has ended.

Used only if several supervisors share a journal; see ``repertory.machines``.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal

import anyio
import msgspec

from repertory._ids import is_below, unit_of
from repertory.agents.agent import Agent
from repertory.errors import ConfigurationError, JournalError, JournalUnreadable, PayloadInvalid, RepertoryError
from repertory.memory import Memory
from repertory.memory.messages import AsksMemory, ForgetOthers
from repertory.record import Ledger, Record
from repertory.record.records import FINAL_STATES, Placed, RunRow, RunStarted
from repertory.runs.end import RunEnd
from repertory.runs.events import AnyEvent, RunClaimed, RunSpawned, StateChanged, to_record
from repertory.runs.inbox import Said
from repertory.runs.live import DesiredState, LiveRun
from repertory.runs.log import log
from repertory.runs.payloads import payload_on_record
from repertory.runs.shared import Shared
from repertory.supervisor.beginning import make_run, promise_room, reserve_room, spawned_fields
from repertory.supervisor.live_runs import LiveRuns
from repertory.supervisor.recovery import end_orphan
from repertory.supervisor.relayed_memory import RelayedMemory

if TYPE_CHECKING:
    from repertory.machines.commands import Commands
    from repertory.machines.ownership import Claim

_POLL: Final = 1.0  # seconds between two checks of what leads want of their runs, and of the state of these


def check_placement(agent: Agent[Any], started: RunStarted) -> None:
    """Check that the placed members of a team can be found on another machine.

    Raises:
        ConfigurationError: Only this process knows the agent, or it has an application context, which cannot leave it.
    """
    placed = [member.name for member in agent.walk() if member.placement and member is not agent]
    if not placed:
        return
    where = f"agent {agent.name}: {', '.join(placed)} may work on another machine (placement)"
    if not started.agent_ref:
        raise ConfigurationError(f"{where}, which finds it by agent_ref=; say spawn(…, agent_ref='module:name')")
    if started.has_context:
        raise ConfigurationError(f"{where}, and an application context (context=) cannot go there")


class Placement:
    """The placed runs of this process's leads, and placed runs that work here for leads elsewhere."""

    def __init__(self, runs: LiveRuns, shared: Shared, commands: Commands) -> None:
        self._runs = runs
        self._shared = shared
        self._journal = shared.journal
        self._machines = commands.machines
        self._commands = commands
        self._stand_ins: dict[str, LiveRun] = {}
        # What was last asked of the owner with this fence; None for the end of the run. A new owner begins with "go".
        self._asked: dict[str, tuple[int, DesiredState | None]] = {}
        self._asking: set[str] = set()

    # --- how a run begins, or continues -------------------------------------------------------------------

    async def begin(self, parent: LiveRun, agent: Agent[Any], started: RunStarted) -> LiveRun:
        """Record a new run for whichever machine offers its labels; returns its stand-in.

        Raises:
            LimitExceeded: The tree has no room for it.
            PayloadInvalid, ConfigurationError: As for a sub-agent beside its lead.
        """
        root, run_id = parent.root.started, started.run_id
        check_placement(parent.root.agent, root)  # its team may have changed since it began
        with _room(parent, run_id):
            limits = {**parent.spending.promise(run_id, agent), **promise_room(parent, run_id, agent)}
            top = root.placed or Placed(path=(), options=root.options)
            names = [run.agent.name for run in parent.lineage()][-2::-1]  # those below the root, from the top down
            started = msgspec.structs.replace(
                started,
                agent_ref=root.agent_ref,
                priority=root.priority,
                client=root.client,
                labels=tuple(agent.placement),
                placed=Placed(path=(*top.path, *names, agent.name), options=top.options, limits=limits),
            )
            live, drafts, records = await make_run(
                self._shared, started, agent, parent=parent, state="queued", elsewhere=True
            )
            # All in one transaction: once it is on the disk, another machine may own the run.
            spawned = live.event(RunSpawned, **spawned_fields(live.started))
            events: list[AnyEvent] = [spawned, live.event(StateChanged, state="queued")]
            queued = live.state_record("queued", reason=f"it waits for a machine with {', '.join(started.labels)}")
            live.begun = live.ledger.submit(*drafts, also=[*records, queued, *map(to_record, events)])
            self._asked[run_id] = 1, "go"
            self._wait_for(live)
        for event in events:
            live.show(event)
        await live.begun.wait()
        return live

    async def find(self, parent: LiveRun, row: RunRow, agent: Agent[Any]) -> LiveRun:
        """The stand-in of a run that began earlier; a run that was stopped with its lead continues.

        Raises:
            PayloadInvalid: Its payload does not fit the type that the agent declares now.
        """
        started = row.started
        known = self._stand_ins.get(started.run_id)
        if known is not None and known.parent is parent and not known.ended.is_set():
            return known
        parent.root.members.add(started.run_id)
        live = LiveRun(
            shared=self._shared,
            started=started,
            agent=agent,
            ledger=Ledger(self._journal, started.run_id, clock=self._shared.clock),
            memory=Memory(self._shared.memory, started.scope_id, started.run_id),
            tally=parent.tally,
            parent=parent,
            state="queued",
            elsewhere=True,
        )
        if row.state in ("done", "failed") or row.cancelled:
            await self._end(live, row)
            return live
        limits = {} if started.placed is None else started.placed.limits
        live.tally.promise(live.run_id, limits)
        below = sum(is_below(member, live.run_id) for member in parent.root.members)
        parent.root.promised[live.run_id] = max(limits.get("runs", 1) - 1 - below, 0)
        self._asked.pop(live.run_id, None)  # an earlier machine of its lead may have asked something
        self._wait_for(live)
        if row.state == "stopped":
            await self._requeue(live)
        return live

    def _wait_for(self, live: LiveRun) -> None:
        self._stand_ins[live.run_id] = live
        if self._runs.closing:
            self.close()

    def close(self) -> None:
        """End the wait for all runs, as this process closes; they are found again where their leads continue."""
        for live in self._stand_ins.values():
            live.set_ended()
        self._stand_ins.clear()

    async def _requeue(self, live: LiveRun) -> None:
        """Let a stopped run wait for a machine again, unless a machine already has it."""
        async with self._runs.lock(live.run_id):  # nobody takes it up here that finds it to be ours
            if (claim := await self._machines.claim_to_resume(live.run_id)) is not None:
                changed = live.event(StateChanged, state="queued")
                await self._journal.write(
                    [self._claimed(live.started, claim), live.state_record("queued"), to_record(changed)]
                )

    def memory_of(self, started: RunStarted, agent: Agent[Any]) -> AsksMemory:
        """Where a run that was placed here sends its memory requests."""
        mode = started.options.get("memory", agent.memory)
        if started.parent_id is None or not mode.startswith("shared"):
            return self._shared.memory
        return RelayedMemory(started.parent_id, self._commands, self._journal)

    async def hear(self, live: LiveRun, message_id: str, said: Said) -> None:
        """Send a message from the lead to a run.

        Raises:
            MachineSilent: No machine took the message within ten seconds; one will later.
            RunError: The run has ended.
        """
        body = self._journal.redact({"message_id": message_id, "text": said.text, "sender": said.sender})
        await self._commands.ask(live.run_id, "hear", body, command_id=f"{live.run_id}/{message_id}")

    # --- in the background --------------------------------------------------------------------------------

    async def serve(self, scope: anyio.CancelScope) -> None:
        """Follow and control the placed runs of leads here, and end runs here whose lead has ended, until cancelled."""
        with scope:
            async with anyio.create_task_group() as tasks:
                while True:
                    news = self._machines.news("end")
                    try:
                        await self._follow(tasks)
                        await self._end_runs_without_lead()
                    except JournalError as error:
                        self._machines.lease.check()
                        log(logging.WARNING, "placed.not.seen", exc_info=error)
                    with anyio.move_on_after(_POLL):
                        await news.wait()

    async def _follow(self, tasks: anyio.abc.TaskGroup) -> None:
        for live in list(self._stand_ins.values()):
            parent = live.parent
            if parent is None or parent.desired_state == "close" or parent.ended.is_set():
                self._drop(live)
                live.set_ended()
        if not self._stand_ins:
            return
        standing = await self._machines.standing(list(self._stand_ins))
        for run_id, stands in standing.items():
            if run_id not in self._stand_ins:
                continue
            live = self._stand_ins[run_id]
            live.in_line, desired = stands.waits, _desired_state_of(live)
            if stands.ended:
                row = await self._journal.run_or_none(run_id)
                if row is not None and row.state in FINAL_STATES:
                    await self._handle_end(live, row)
                elif row is not None:  # it was moved here from another journal
                    await self._requeue(live)
            elif stands.waits:
                if desired in (None, "stop"):
                    await self.end_waiting(run_id, cancelled=live.stop_asked)
                elif desired == "go" and stands.paused:
                    await self._requeue(live)
                elif (digest := _digest_of(live)) != stands.agent_digest:
                    # Its lead continues with another definition, and so does the run.
                    await self._machines.redefine(run_id, digest, live.agent.placement)
            elif run_id not in self._asking and desired != self._last_asked(run_id, stands.fence):
                self._asking.add(run_id)
                tasks.start_soon(self._steer, live, desired, stands.fence)

    def _last_asked(self, run_id: str, fence: int) -> DesiredState | Literal["?"] | None:
        """What the owner of a run was last asked for."""
        if run_id not in self._asked:
            return "?"
        asked, desired = self._asked[run_id]
        return desired if asked == fence else "go"

    async def _steer(self, live: LiveRun, desired: DesiredState | None, fence: int) -> None:
        """Send the state that a lead wants to the machine that has the run."""
        try:
            await self._commands.ask(live.run_id, "steer", {"wish": desired, "alone": live.stop_asked})
            if self._stand_ins.get(live.run_id) is live:
                self._asked[live.run_id] = fence, desired
        except RepertoryError as error:  # the run has ended, or its machine is away: the next check shows which
            log(logging.INFO, "placed.not.steered", run=live.run_id, wish=desired, exc_info=error)
        finally:
            self._asking.discard(live.run_id)

    async def _handle_end(self, live: LiveRun, row: RunRow) -> None:
        parent = live.parent
        if row.state == "stopped" and not row.cancelled and parent is not None and _desired_state_of(live) == "go":
            await self._requeue(live)  # together with its lead, which has continued meanwhile
            return
        try:
            await self._end(live, row)
        except (PayloadInvalid, JournalUnreadable) as error:  # the others continue
            log(logging.ERROR, "placed.unreadable", run=live.run_id, exc_info=error)
            live.ended_elsewhere(RunEnd.failed(error))
        self._drop(live)

    def _drop(self, live: LiveRun) -> None:
        """Stop following a run, unless its lead has continued meanwhile and there is a new stand-in."""
        if self._stand_ins.get(live.run_id) is live:
            del self._stand_ins[live.run_id]
            self._asked.pop(live.run_id, None)

    async def _end(self, live: LiveRun, row: RunRow) -> None:
        """Bring a run's payload, figures and end to its stand-in, which tells the lead."""
        # What it wrote to memory has positions that another machine assigned.
        await self._shared.memory.ask(ForgetOthers())
        records = await self._journal.read_payload(live.run_id)
        live.payload = payload_on_record(live.agent, records, below=True)
        await live.tally.settle_promise(live.run_id, self._journal)
        live.root.promised.pop(live.run_id, None)
        live.root.members.update(run_id for run_id in live.tally.by_run if is_below(run_id, live.run_id))
        live.iteration, live.in_line = row.iteration, False
        live.ended_elsewhere(RunEnd.recorded(row))

    async def end_waiting(self, run_id: str, *, cancelled: bool) -> None:
        """End a run that no machine has, so that none starts it."""
        async with self._runs.lock(run_id):  # nobody takes it up here that finds it to be ours
            claim, _ = await self._machines.claim([run_id])
            if claim is not None:
                rows = await self._journal.read_runs(below=run_id)
                if not rows or rows[0].state in FINAL_STATES:
                    await self._machines.forget(run_id)
                    return
                self._journal.submit([self._claimed(rows[0].started, claim)])
                own = [row for row in rows[1:] if unit_of(row.started.run_id) == run_id]  # its sub-agents beside it
                for row in reversed([row for row in own if row.state not in FINAL_STATES]):
                    await end_orphan(self._shared, row, cancelled=cancelled)
                await end_orphan(self._shared, rows[0], cancelled=cancelled)

    def _claimed(self, started: RunStarted, claim: Claim) -> Record:
        """The record that this machine owns a run while it records the run's state, without running it."""
        machines, now = self._machines, self._shared.clock()
        return to_record(
            RunClaimed(
                run_id=started.run_id,
                agent=started.agent,
                iteration=0,
                at=now,
                elapsed=0.0,
                machine=machines.machine_id,
                name=machines.name,
                fence=claim.fence,
                why=claim.why,
            )
        )

    async def _end_runs_without_lead(self) -> None:
        """End runs whose lead has ended, as nobody is left to report to. They continue if the lead does."""
        for run_id, waits, lead in await self._machines.left_alone():
            live, alone = self._runs.find(run_id), lead == "done"
            if waits:
                await self.end_waiting(run_id, cancelled=alone)
            elif live is not None and not live.killed:
                live.kill(alone=alone)


@contextmanager
def _room(parent: LiveRun, run_id: str) -> Generator[None]:
    """Count a run before it begins, and undo that if it does not begin. Raises ``LimitExceeded``."""
    root, tally = parent.root, parent.tally
    is_new = reserve_room(parent, run_id)
    try:
        yield
    except BaseException:
        if is_new:
            root.members.discard(run_id)
        root.promised.pop(run_id, None)
        tally.break_promise(run_id)
        raise


def _desired_state_of(live: LiveRun) -> DesiredState | None:
    """What is wanted of a stand-in's run; None for its end."""
    if live.killed:
        return None
    return "go" if live.parent is None else live.parent.desired_state


def _digest_of(live: LiveRun) -> str:
    """The digest of the definition that its lead names; the run's own differs if all agents run as plain loops."""
    named = None if live.parent is None else live.parent.agent.member(live.agent.name)
    return (named or live.agent).digest
