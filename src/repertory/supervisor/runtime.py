"""Starting and continuing runs in this process. Each run has an actor, below that of the run that delegated to it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Container, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import anyio.abc
import anyio.lowlevel

from repertory._choices import show
from repertory._ids import is_below, unit_of
from repertory.actors import ActorSystem, Supervision
from repertory.actors.scheduler import start_soon
from repertory.agents.agent import Agent
from repertory.errors import ContextMissing, RunElsewhere, RunError, RunExists
from repertory.llm.messages import Json
from repertory.loop.loop import AgentActor
from repertory.loop.permission import check_rules
from repertory.memory.messages import ForgetOthers
from repertory.record import Draft
from repertory.record.records import Record, RunRow, RunStarted, RunState
from repertory.runs.end import RunEnd
from repertory.runs.events import RunSpawned, StateChanged
from repertory.runs.inbox import Said, said_records
from repertory.runs.live import LiveRun
from repertory.runs.log import log
from repertory.runs.models import check_keys, check_prices
from repertory.runs.payloads import check_payloads, instructions_of
from repertory.runs.shared import Shared
from repertory.runs.telemetry import Trace
from repertory.shortening import ResultPolicy
from repertory.supervisor.beginning import make_run, reserve_room, spawned_fields
from repertory.supervisor.claims import Claims
from repertory.supervisor.ending import Ends
from repertory.supervisor.live_runs import LiveRuns
from repertory.supervisor.placement import Placement, check_placement
from repertory.supervisor.queue import Queue
from repertory.supervisor.recovery import read_back
from repertory.supervisor.retention import Retention
from repertory.tools.media import Media
from repertory.views.policies import check_policies

if TYPE_CHECKING:
    from repertory.machines.commands import Commands
    from repertory.machines.machine import Machines

T = TypeVar("T")

# A run whose actor keeps crashing is given up; its siblings continue.
SUPERVISION = Supervision(max_restarts=3, period=60.0, when_exceeded="stop", backoff_first=0.1, backoff_max=5.0)


class Runtime:
    """Starts and continues runs in this process."""

    def __init__(self, shared: Shared, system: ActorSystem, tasks: anyio.abc.TaskGroup, retention: Retention) -> None:
        self.shared = shared
        self.retention = retention
        self._journal = shared.journal
        self._system = system
        self._tasks = tasks
        self.runs = LiveRuns(shared.home)
        self.queue = Queue(
            self._journal,
            clock=shared.clock,
            begin=self._begin_queued,
            is_here=lambda run_id: self.runs.find(run_id) is not None,
        )
        self._ends = Ends(shared, self.runs, self.queue, retention)
        self.commands: Commands | None = None  # only in a shared journal
        self.placement: Placement | None = None  # the same

    @property
    def claims(self) -> Claims | None:
        """Which runs are this machine's, in a shared journal; otherwise None."""
        return self.queue.claims

    def wind_down(self) -> None:
        """Ask all runs at once to close at their next boundary; otherwise they would be stopped one after the other."""
        for live in self.runs.by_id.values():
            live.set_desired_state("close")

    async def drain(self, machines: Machines) -> None:
        """Take no more runs, and hand over those under way; see ``Supervisor.drain``."""
        await machines.drain()
        self.wind_down()

    def close(self) -> None:
        """Start nothing more. Runs that wait in the queue, or were paused there, stay so on record."""
        self.runs.closing = True
        for live in list(self.runs.by_id.values()):
            if live.ref is None and self._leave_queue(live):
                live.set_ended()
        if self.claims is not None:
            self.claims.close()
        if self.placement is not None:
            self.placement.close()

    # --- how a run begins ---------------------------------------------------------------------------------

    async def run_to_completion(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do work of several steps, which continues to its end even if the caller is cancelled.

        Raises:
            RunError: The supervisor is closed, or was cancelled first.
        """
        ended, outcome, errors = anyio.Event(), list[T](), list[Exception]()
        is_heard = True

        async def do() -> None:
            try:
                outcome.append(await work())
            except Exception as error:  # noqa: BLE001 - raised below, in the caller
                errors.append(error)
                if not is_heard:
                    log(logging.WARNING, "call.failed", exc_info=error)
            finally:
                ended.set()

        await anyio.lowlevel.checkpoint()
        with self.runs.beginning():
            self._tasks.start_soon(do)
            try:
                await ended.wait()
            except BaseException:
                is_heard = False
                raise
            if errors:
                raise errors[0]
        if not outcome:
            raise RunError("the supervisor was cancelled before this was done; the record says how far it came")
        return outcome[0]

    async def begin(
        self,
        started: RunStarted,
        agent: Agent[Any],
        *,
        parent: LiveRun | None = None,
        payload: Any = None,
        context: Any = None,
        attachments: Sequence[Media] = (),
    ) -> LiveRun:
        """Start a new run, or queue it. Its beginning, task and payload are submitted as one transaction.

        Raises:
            QueueFull: The run would have to wait, and its client has as many runs in the queue as it may.
            PayloadInvalid: The payload, or its defaults, do not fit what the agent declares.
            ConfigurationError: The agent's instructions show something that its payload does not have.
            ModelAuthenticationError: There is no key for one of its models.
        """
        async with AsyncExitStack() as entering:
            if parent is None:
                if self.placement is not None:
                    check_placement(agent, started)
                await check_keys(agent, self.shared.models)
                await self.queue.refresh()
                elsewhere = "" if self.claims is None else self.claims.why_elsewhere(started)
                await entering.enter_async_context(self.queue.entering(started, why=elsewhere))
            live, drafts, records = await make_run(
                self.shared,
                started,
                agent,
                parent=parent,
                payload=payload,
                context=context if parent is None else parent.context,
                attachments=attachments,
                trace=Trace(self.shared.telemetry.here()),
            )
            self._launch(live, *drafts, also=records)
        live.publish(RunSpawned, **spawned_fields(live.started))
        if live.state == "queued":
            live.publish(StateChanged, state="queued")
        return live

    async def ensure(
        self,
        started: RunStarted,
        agent: Agent[Any],
        *,
        ended: Container[RunState],
        parent: LiveRun | None = None,
        payload: Any = None,
        context: Any = None,
        attachments: Sequence[Media] = (),
    ) -> LiveRun:
        """The only run with this id: it is under way, continues, has ended, or begins now.

        Raises:
            RunExists: The run has another task, agent or request.
            RunError: The run is paused, other machines could take it from the queue, and there is no room for it here.
            PayloadInvalid, QueueFull: As ``begin``.
            ContextMissing: As ``continue_run``.
        """
        live = self.runs.find(started.run_id)
        row = await self._journal.run_or_none(started.run_id) if live is None else None
        _check_same(live.started if live is not None else row.started if row is not None else started, started)
        if live is not None:
            return live
        if row is not None:
            stays = parent is None and row.state == "paused"  # nobody resumed it
            why = self._why_waits(row.started) if stays and self.claims is not None else ""
            if why:  # any machine would take it from the queue, and begin it
                raise RunError(
                    f"run {row.started.run_id} is paused, and cannot be held here now: {why}; "
                    "supervisor.resume(run_id) lets it go on"
                )
            live = await self.continue_run(row, agent, ended=ended, parent=parent, context=context)
            if stays:
                self.pause(live)
            return live
        if parent is None and await self._journal.was_removed(started.run_id):
            raise RunExists(f"run {started.run_id} was there and has been removed; give the new run another id")
        return await self.begin(
            started, agent, parent=parent, payload=payload, context=context, attachments=attachments
        )

    async def continue_run(
        self,
        row: RunRow,
        agent: Agent[Any],
        *,
        ended: Container[RunState],
        parent: LiveRun | None = None,
        context: Any = None,
        said: tuple[str, Said] | None = None,
        claimed: bool = False,
        leads: Sequence[Agent[Any]] = (),
    ) -> LiveRun:
        """Continue a run of the journal, or queue it, or show how it ended if it is in one of the ``ended`` states.

        The message ``said`` and the continuation are one transaction. A run that is queued on record keeps its place.

        Raises:
            PayloadInvalid: Its payload does not fit the type that the agent declares now.
            ConfigurationError: The agent's instructions show something that its payload does not have.
            ContextMissing: The run would continue, and began with an application context.
            RunElsewhere: The run is under way on another machine.
        """
        if self.claims is not None and parent is None and row.state not in ended and not claimed:
            if not await self.claims.claim(row.started.run_id):
                raise RunElsewhere(
                    f"run {row.started.run_id} is under way on another machine: await supervisor.remote(run_id) gives "
                    "it; if that machine is dead, try again when its lease has run out"
                )
            try:
                row = await self._journal.read_run(row.started.run_id)  # it may have continued meanwhile
                return await self.continue_run(row, agent, ended=ended, context=context, said=said, claimed=True)
            finally:
                await self.claims.give_back(row)
        if row.state not in ended and parent is None and row.started.has_context and context is None:
            raise ContextMissing(
                f"run {row.started.run_id} was given an application context, which is never recorded: hand it in "
                "again as context=…, or on the command line as --context module:name"
            )
        if parent is not None:
            memory = parent.memory.ref
        else:
            memory = self.shared.memory if self.placement is None else self.placement.memory_of(row.started, agent)
        if self.claims is not None and parent is None:
            await self.shared.memory.ask(ForgetOthers())
        live = await read_back(row, agent, self.shared, self.retention, parent=parent, leads=leads, memory=memory)
        live.context = context if parent is None else parent.context
        live.trace.parent = self.shared.telemetry.here()
        if row.state in ended or (parent is not None and row.cancelled):
            live.end, live.ending, live.stop_asked = RunEnd.recorded(row), True, row.cancelled
            self.runs.attach(live)
            live.close()
            self.runs.make_newest(live)
            return live
        instructions_of(agent, live.payload)
        last = self.runs.actors.get(live.run_id)
        if last is not None:
            await last.wait_stopped()  # the run has ended, and its actor is stopping
        if parent is None:
            await self.queue.refresh()
        await anyio.lowlevel.checkpoint_if_cancelled()
        records: list[Record] = []
        if said is not None and live.inbox.is_new(*said):
            records += said_records(live.run_id, *said, at=self.shared.clock(), iteration=live.iteration)
            live.inbox.put(*said)
        if live.payload is not None:
            new = self._journal.redact(live.payload.fill_in(run_id=live.run_id, at=self.shared.clock()))
            live.adopt_payload(new)
            records += new
        self._launch(live, also=records, was=row.state)
        live.publish(StateChanged, state=live.state)
        return live

    def check(self, agent: Agent[Any], results: ResultPolicy | None) -> None:
        """Check that a run of an agent can begin or continue, with the result policy of its caller.

        Raises:
            ConfigurationError: Its policies are contradictory, or prices that a limit needs are unknown.
            PayloadInvalid: Its payload has no defaults.
        """
        check_policies(agent, results)
        check_rules(agent, self.shared.approvals)
        check_payloads(agent)
        check_prices(agent, self.shared.models)

    async def spawn_below(
        self, parent: LiveRun, agent: Agent[Any], task: str, *, run_id: str, call_id: str, options: Json
    ) -> LiveRun:
        """Start the run of a delegation, or find and continue the one that the same call began before.

        A sub-agent that was stopped together with the runs above it continues with them; one that was stopped alone
        does not.

        Args:
            run_id: The id, which follows from the call and begins with the parent's.
            options: The choices for this delegation: ``memory`` and ``share``, see ``Delegation``; and why an earlier
                attempt ``failed``.

        Raises:
            LimitExceeded: The tree may not become deeper or larger.
        """
        started = RunStarted(
            run_id=run_id,
            agent=agent.name,
            task=task,
            at=self.shared.clock(),
            agent_digest=agent.digest,
            parent_id=parent.run_id,
            parent_call_id=call_id,
            depth=parent.started.depth + 1,
            options=options,
        )
        started = self._journal.redact(started)
        if self.placement is not None and unit_of(run_id) == run_id:
            row = await self._journal.run_or_none(run_id)
            if row is None:
                return await self.placement.begin(parent, agent, started)
            _check_same(row.started, started)
            return await self.placement.find(parent, row, agent)
        reserved = reserve_room(parent, run_id)
        try:
            return await self.ensure(started, agent, ended=("done", "failed"), parent=parent)
        except BaseException:
            if reserved and run_id not in self.runs.by_id:
                parent.root.members.discard(run_id)
            raise

    async def find_below(self, parent: LiveRun, run_id: str) -> LiveRun | None:
        """A run that was delegated before: under way, continued, or ended; None if it can no longer be found."""
        if not is_below(run_id, parent.run_id):  # a sub-agent of the run that this one was forked from
            return None
        live = self.runs.find(run_id)
        row = await self._journal.run_or_none(run_id) if live is None else None
        agent = parent.agent.member(row.started.agent) if row is not None else None
        if row is None or agent is None:
            return live
        if self.placement is not None and unit_of(run_id) == run_id:
            return await self.placement.find(parent, row, agent)
        parent.root.members.add(run_id)
        return await self.continue_run(row, agent, ended=("done", "failed"), parent=parent)

    async def id_below(self, parent: LiveRun, agent: Agent[Any], key: str) -> str:
        """The id of the run of a delegation: the same whenever the call with this key is repeated.

        The id shows whether the run was placed when it began, so a repeated call looks for both ids.
        """
        beside, placed = f"{parent.run_id}.{key[:8]}", f"{parent.run_id}.@{key[:8]}"
        new, other = (placed, beside) if self.placement is not None and agent.placement else (beside, placed)
        return other if parent.resumed and await self._journal.run_or_none(other) is not None else new

    async def tell(self, live: LiveRun, message_id: str, said: Said) -> None:
        """Send a lead's message to a run of its sub-agents.

        Raises:
            RunError: Another message has this id; or the run is on another machine, and has ended.
            MachineSilent: The run is on another machine, which has not answered; it gets the message later.
        """
        if self.placement is not None and live.elsewhere:
            await self.placement.hear(live, message_id, said)
        else:
            live.deliver(message_id, said)

    # --- at once, or in the queue -------------------------------------------------------------------------

    def _launch(self, live: LiveRun, *drafts: Draft, also: Sequence[Record] = (), was: RunState | None = None) -> None:
        """Submit the records that begin a run, register it, and start its actor or put it into the queue.

        All of this is one step without an await: if the caller is cancelled, the run is both in the record and in this
        process, or in neither. The loop waits until the records are durable, and the caller may too.

        Args:
            also: Further records of the same transaction.
            was: Its state on record; None for a new run.
        """
        why = self._why_waits(live.started) if live.parent is None else ""
        if why:
            self.runs.check_open()  # nobody here would begin it, nor tell its waiters that nobody does
            shared = self.claims is not None
            queued = [] if was == "queued" and not shared else [live.state_record("queued", reason=why)]
            live.begun = live.ledger.submit(*drafts, also=[*also, *queued])
            live.state = "queued"
            if self.claims is not None:
                # Any machine may claim it, this one included, and then reads it back from its record.
                self.runs.make_newest(live)
                self.claims.hold(live)
                return
        else:
            self._start(live, *drafts, also=also if was is None else [*also, live.state_record("running")])
        self.retention.known[live.run_id] = live
        self.runs.add(live)
        if why:
            self.queue.put(live)

    def _why_waits(self, started: RunStarted) -> str:
        if self.claims is None:
            return self.queue.why_waits(started)
        if self.claims.is_adopting(started.run_id):
            return ""
        return self.claims.why_elsewhere(started) or self.queue.why_waits(started)

    def _begin_queued(self, live: LiveRun) -> None:
        """Start a run that waited."""
        self._start(live, also=[live.state_record("running")])
        live.publish(StateChanged, state="running")

    def _start(self, live: LiveRun, *drafts: Draft, also: Sequence[Record]) -> None:
        """Record that a run is running, and start its actor: below its parent's actor, or at the top."""
        place = self._system if live.parent is None or live.parent.actor is None else live.parent.actor
        make = partial(AgentActor, live, self, self._ends)
        ref = place.spawn(make, live.run_id, restart="transient", supervision=SUPERVISION)
        try:
            if self.claims is not None and live.parent is None:
                also = [*self.claims.record(live), *also]  # the records after it are this machine's
            live.begun = live.ledger.submit(*drafts, also=also)
        except BaseException:
            ref.kill()  # it has not run yet, and never will
            raise
        live.ref, live.state = ref, "running"
        if live.parent is not None:
            live.place = live.parent.line.join(live.wake)
            live.set_desired_state(live.parent.desired_state)
        else:
            self.queue.mark_started(live)
            live.tally.clock.run(on=True)
        self.runs.actors[live.run_id] = ref
        if live.agent.limits.seconds is not None:
            start_soon(self._tasks, live.kill_when_overdue)
        start_soon(self._tasks, self._ends.reap, live, ref)

    # --- what is asked of it ------------------------------------------------------------------------------

    # The loop of a run obeys. A run that waits in the queue, or was paused there, has none.

    def stop(self, live: LiveRun, *, now: bool) -> None:
        """End a run at its next boundary or, with ``now``, cancel what it has under way."""
        live.stop_asked = True
        if live.ref is None and not live.is_ending and self._leave_queue(live):
            self._ends.submit_end(live, RunEnd("stopped"))
            start_soon(self._tasks, self._ends.reap, live, None)
        if now:
            live.kill()
        else:
            live.set_desired_state("stop")

    def pause(self, live: LiveRun) -> None:
        """Pause a run at its next boundary; one that waits leaves the queue."""
        live.set_desired_state("pause")
        if self.queue.remove(live):
            live.enter("paused")

    def unpause(self, live: LiveRun) -> None:
        """Continue a run; one that was paused in the queue begins, or goes to the end of the queue."""
        live.set_desired_state("go")
        if live.ref is None and live.state == "paused" and not live.is_ending:
            self._launch(live, was="paused")
            live.publish(StateChanged, state=live.state)

    def _leave_queue(self, live: LiveRun) -> bool:
        return self.queue.remove(live) or live.state == "paused"


def _check_same(there: RunStarted, asked: RunStarted) -> None:
    """Raise ``RunExists`` if the existing run of an id is not the one asked for."""
    for what in ("agent", "task", "request"):
        has, wanted = getattr(there, what), getattr(asked, what)
        if has != wanted and (what != "request" or (has and wanted)):
            raise RunExists(
                f"run {asked.run_id} is there already, with another {what}: {show(has)}, not {show(wanted)}; "
                "give the new run another id"
            )
