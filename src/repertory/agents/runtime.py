"""What all runs of one process share, and how each of them begins and ends."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio.abc
import anyio.lowlevel
import msgspec

from repertory.actors import ActorContext, ActorRef, ActorSystem, Supervision
from repertory.agents.accounting import Tallies
from repertory.agents.actor import AgentActor
from repertory.agents.agent import Agent
from repertory.agents.alerts import AlertThresholds, Watch
from repertory.agents.events import Alert, AnyEvent, RunSpawned, StateChanged, SummaryRefused, to_record
from repertory.agents.hub import EventHub
from repertory.agents.live import SAID, LiveRun, RunEnd, Said
from repertory.agents.log import log_agent_changed, log_crash, log_event, log_unreadable
from repertory.agents.models import OpenModels
from repertory.agents.recovery import close_calls
from repertory.agents.spending import check_prices, cut_off
from repertory.context import replay
from repertory.errors import (
    JournalError,
    JournalUnreadable,
    LimitExceeded,
    MailboxFull,
    RunNotFound,
)
from repertory.llm.messages import Text
from repertory.llm.model import Model, Usage
from repertory.llm.profiles import ModelProfile, cost_of
from repertory.memory import Memory
from repertory.record import Draft, Ledger
from repertory.record.journal import Journal, RunRow
from repertory.record.records import FINAL_STATES, Record, RunStarted, RunState, RunStateChanged
from repertory.summarizer import Summarize, SummarizeResult
from repertory.summarizer.results import RESULT_SUMMARIZED

# A run's actor that keeps crashing is given up; its neighbours go on.
SUPERVISION = Supervision(max_restarts=3, period=60.0, when_exceeded="stop", backoff_first=0.1, backoff_max=5.0)


class Runtime:
    """The runs that live in this process, and what they share: journal, memory, summarizer, models, events."""

    def __init__(
        self,
        *,
        journal: Journal,
        system: ActorSystem,
        tasks: anyio.abc.TaskGroup,
        models: OpenModels,
        memory: ActorRef[Any],
        summarizer: ActorRef[Any],
        alerts: AlertThresholds | None,
        clock: Callable[[], float],
        summary_profile: ModelProfile | None = None,
    ) -> None:
        self.journal = journal
        self.summarizer = summarizer
        self.hub = EventHub()
        self.clock = clock
        self.tallies = Tallies(journal)
        self._system = system
        self._tasks = tasks
        self._memory = memory
        self._models = models
        self._alerts = alerts
        self._summary_profile = summary_profile
        self._live: dict[str, LiveRun] = {}
        self._actors: dict[str, ActorRef[Any]] = {}
        self._beginning: dict[str, anyio.Event] = {}

    def summary_price(self, tokens: int, written: int) -> float:
        """US dollars for a summary of so many tokens in so many; 0.0 where nobody is known to charge for it."""
        profile = self._summary_profile
        return cost_of(profile, Usage(input_tokens=tokens, output_tokens=written)) if profile is not None else 0.0

    # --- how a run begins ---------------------------------------------------------------------------------

    @asynccontextmanager
    async def alone_with(self, run_id: str) -> AsyncGenerator[None]:
        """Let only one task at a time look whether a run is there, and begin it: two loops would ruin its record."""
        while (other := self._beginning.get(run_id)) is not None:
            await other.wait()
        done = self._beginning[run_id] = anyio.Event()
        try:
            yield
        finally:
            del self._beginning[run_id]
            done.set()

    async def begin(
        self, started: RunStarted, agent: Agent, *, parent: LiveRun | None = None, ctx: ActorContext | None = None
    ) -> LiveRun:
        """Start a new run; its beginning and its task are one transaction, and on their way to the disk."""
        ledger = Ledger(self.journal, started.run_id, clock=self.clock)
        memory = await self._open_memory(started.run_id, agent, parent)
        tally = parent.tally if parent is not None else self.tallies.begin(started.run_id)
        live = LiveRun(started, agent, ledger, memory, tally, parent=parent)
        live.watch = self._new_watch()
        model = self.model_for(live).name
        live.started = started = msgspec.structs.replace(started, scope_id=memory.scope_id, model=model)
        task = Draft(role="user", kind="task", content=(Text(started.task),))
        await anyio.lowlevel.checkpoint_if_cancelled()
        self._launch(live, ctx, task, also=[started])
        self.publish(
            live,
            RunSpawned,
            task=started.task,
            model=started.model,
            parent_id=started.parent_id,
            depth=started.depth,
        )
        return live

    async def go_on(self, live: LiveRun, *, ctx: ActorContext | None = None) -> None:
        """Start a run that was read back from the journal, from where its record stands."""
        last = self._actors.get(live.run_id)
        if last is not None:
            await last.wait_stopped()  # it has ended, and its actor is on its way out
        await anyio.lowlevel.checkpoint_if_cancelled()
        self._launch(live, ctx, also=[self._state_record(live, "running")])
        self.publish(live, StateChanged, state="running")

    def _launch(self, live: LiveRun, ctx: ActorContext | None, *drafts: Draft, also: Sequence[Record] = ()) -> None:
        """Write what begins a run, make it known, and start its actor: below its parent's actor, or at the top.

        All in one step without a wait: a caller who is cancelled leaves a run that is in the record and in this
        process, or in neither. The loop waits until the record is durable, and so may the caller.
        """
        place = self._system if ctx is None else ctx
        ref = place.spawn(lambda: AgentActor(self, live), live.run_id, restart="transient", supervision=SUPERVISION)
        try:
            live.begun = live.ledger.submit(*drafts, also=also)
        except BaseException:
            ref.kill()  # it has not run yet, and never will
            raise
        live.ref = ref
        live.first_event = self.hub.count
        self._register(live)
        self._actors[live.run_id] = ref
        if live.parent is not None and live.parent.wish == "pause":
            live.wish_for("pause")
        if any(run.stop_asked for run in live.lineage()):
            live.wish_for("stop")
        self._tasks.start_soon(self._reap, live, ref)

    async def spawn_below(
        self, parent: LiveRun, agent: Agent, task: str, *, call_id: str, key: str, ctx: ActorContext
    ) -> LiveRun:
        """Start the run of a delegation, or find the one that the same call began before, and let it go on.

        A delegation is only made again where its call has no result yet. So a sub-agent that was stopped was
        stopped together with the runs above it, which go on now; one that was stopped alone has been reported.

        Raises:
            LimitExceeded: The tree is deep or large enough.
        """
        run_id = f"{parent.run_id}.{key[:8]}"
        known = self.find(run_id)
        if known is not None:
            return known
        reserved = self._reserve_room(parent, run_id)
        try:
            row = await self.read_run(run_id)
            if row is None:
                started = RunStarted(
                    run_id=run_id,
                    agent=agent.name,
                    task=task,
                    at=self.clock(),
                    agent_digest=agent.digest,
                    parent_id=parent.run_id,
                    parent_call_id=call_id,
                    depth=parent.started.depth + 1,
                )
                return await self.begin(started, agent, parent=parent, ctx=ctx)
        except BaseException:
            if reserved and run_id not in self._live:
                parent.root.members.discard(run_id)
            raise
        live = await self.reopen(row, agent, parent=parent)
        if row.state in ("done", "failed"):
            self.show_end(live, row)
        else:
            await self.go_on(live, ctx=ctx)
        return live

    async def read_run(self, run_id: str) -> RunRow | None:
        """The run of exactly this id, in the journal; None where there is none."""
        try:
            row = await self.journal.read_run(run_id)
        except RunNotFound:
            return None
        return row if row.started.run_id == run_id else None

    async def _open_memory(self, run_id: str, agent: Agent, parent: LiveRun | None) -> Memory:
        scope_id = f"scope-{run_id}"
        if parent is None:
            return await Memory.open(self._memory, run_id, scope_id=scope_id)
        return await parent.memory.fork(run_id, mode=agent.memory, scope_id=scope_id)

    async def reopen(self, row: RunRow, agent: Agent, *, parent: LiveRun | None = None) -> LiveRun:
        """Read a run back from the journal, with what was said to it and not yet read."""
        ledger = await Ledger.open(self.journal, row.started.run_id, clock=self.clock)
        memory = Memory(self._memory, row.started.scope_id)
        tally = parent.tally if parent is not None else await self.tallies.open(row.started.run_id)
        live = LiveRun(row.started, agent, ledger, memory, tally, parent=parent)
        live.resumed = True
        live.agent_changed = row.started.agent_digest != agent.digest
        if live.agent_changed:
            log_agent_changed(live.run_id, agent.name, was=row.started.agent_digest, now=agent.digest)
        live.watch = self._new_watch()
        live.plan = replay(made.body for made in await self.journal.read_decisions(live.run_id))
        live.skip_added()
        live.iteration = row.iteration
        live.members.update(tally.by_run)
        if parent is None and any(member.limits.cost is not None for member in agent.walk()):
            calls = {run_id: await self.journal.read_model_calls(run_id) for run_id in live.members}
            live.spending.count_cut_off({run_id: cut_off(rows) for run_id, rows in calls.items()})
        heard = {entry.message_id for entry in ledger.snapshot()}
        for _, record in await self.journal.read_events(live.run_id):
            if record.type == SAID:
                said = Said(record.body["message_id"], record.body["text"])
                if said.message_id in heard:
                    live.said[said.message_id] = said.text
                else:
                    live.say(said)
            elif record.type == RESULT_SUMMARIZED:
                live.gists[record.body["position"]] = record.body["text"]
        return live

    def _new_watch(self) -> Watch | None:
        return Watch(self._alerts) if self._alerts is not None else None

    def _register(self, live: LiveRun) -> None:
        self._live[live.run_id] = live
        self._attach(live)

    def _attach(self, live: LiveRun) -> None:
        """Put a run in the place below its parent."""
        if live.parent is not None:
            others = [child for child in live.parent.children if child.run_id != live.run_id]
            live.parent.children = [*others, live]

    def find(self, run_id: str) -> LiveRun | None:
        """A run that is under way in this process."""
        live = self._live.get(run_id)
        return live if live is not None and not live.ended.is_set() else None

    # --- how a run ends -----------------------------------------------------------------------------------

    async def _reap(self, live: LiveRun, ref: ActorRef[Any]) -> None:
        """See to it that a run whose actor is gone has ended for everybody who waits."""
        reason = await ref.wait_stopped()
        if self._actors.get(live.run_id) is ref:
            del self._actors[live.run_id]
        if live.ended.is_set():
            return
        try:
            if live.lost is not None:
                raise live.lost
            if live.end is not None:
                await self._finish(live)  # it was killed while it waited for its end to be durable
            elif reason.kind == "failed":
                log_crash(live.run_id, reason.error)
                await self.end_run(live, "failed", error=reason.error)
            elif not any(run.killed for run in live.lineage()):
                live.ended.set()  # the supervisor closes; the record says how to go on
            elif live.parent is None:
                await self.end_run(live, "stopped")
            elif not any(run.killed for run in live.parent.lineage()):
                await self._end_branch(live)
            # else it ends together with the run above it that was killed
        except JournalError as error:
            for other in {*self._live.values(), live}:  # none of them can be recorded any more
                if not other.ended.is_set():
                    other.lost = error
                    other.ended.set()
            raise

    async def end_run(
        self, live: LiveRun, state: RunState, *, result: str | None = None, error: BaseException | None = None
    ) -> None:
        """Record how a run ended, and with it the runs below it that nobody runs any more; then tell who waits.

        From its first step on the end stands, also for somebody who kills the run meanwhile.
        """
        words = None if error is None else f"{type(error).__name__}: {error}"
        left = self._left_below(live)
        live.end = RunEnd(state=state, result=result, error=words, cause=error)
        for run in left:
            run.end = RunEnd(state="stopped")
        for run in (live, *left):
            run.ending = True
        self.journal.submit([self._end_record(run) for run in (*left, live)])
        await self._finish(live)

    async def _finish(self, live: LiveRun) -> None:
        """Wait until a run's end is durable, then tell those who wait for it."""
        await self.journal.write(())
        if live.parent is None:
            if live.resumed:
                await self._end_strangers(live)
            await self.journal.delete_expired_contents(self.clock())
            for run in live.tree():
                self._live.pop(run.run_id, None)
        for run in reversed([*live.tree()]):
            if not run.ended.is_set() or run.state not in FINAL_STATES:
                self._close(run)
        if live.parent is None:
            self.hub.forget_ended(self._live)

    async def _end_branch(self, live: LiveRun) -> None:
        """End a run that was killed, and those below it, for good: the run above it has its report, and goes on.

        Nobody will bring their open calls to an end, so that is done here.
        """
        await self.journal.write(())  # what the loops had sent on its way shows in the ledgers after this
        for run in reversed([*live.tree()]):
            if run.state not in FINAL_STATES:
                await close_calls(self.journal, run.ledger, iteration=run.iteration, at=self.clock())
        await self.end_run(live, "stopped")

    async def _end_strangers(self, root: LiveRun) -> None:
        """End the runs of the record below a root that it did not take up again, as its team is another now."""
        here = {run.run_id for run in root.tree()}
        states: list[RunState] = ["running", "waiting", "paused", "stopped"]
        for row in await self.journal.read_runs(states=states):
            run_id = row.started.run_id
            if run_id in here or not self.is_below(run_id, root.run_id):
                continue
            try:
                ledger = await Ledger.open(self.journal, run_id, clock=self.clock)
                await close_calls(self.journal, ledger, iteration=row.iteration, at=self.clock())
            except JournalUnreadable as error:  # damaged long ago; the run above it has its end all the same
                log_unreadable(run_id, error)
            if row.state not in FINAL_STATES:
                changed = RunStateChanged(run_id=run_id, state="stopped", at=self.clock(), iteration=row.iteration)
                await self.journal.write([changed])

    def _left_below(self, live: LiveRun) -> list[LiveRun]:
        return [run for run in live.tree() if run is not live and run.state not in FINAL_STATES]

    def _end_record(self, live: LiveRun) -> RunStateChanged:
        assert live.end is not None
        return self._state_record(live, live.end.state, result=live.end.result, error=live.end.error)

    def _state_record(self, live: LiveRun, state: RunState, **fields: Any) -> RunStateChanged:
        return RunStateChanged(run_id=live.run_id, state=state, at=self.clock(), iteration=live.iteration, **fields)

    def _close(self, live: LiveRun) -> None:
        """Tell those who wait for a run that it has ended."""
        assert live.end is not None
        live.tell_added()
        live.state = live.end.state
        self.publish(live, StateChanged, state=live.state, result=live.end.result, error=live.end.error)
        live.last_event = self.hub.count
        live.ended.set()

    def show_end(self, live: LiveRun, row: RunRow) -> None:
        """Take up a run that ended in an earlier process, or earlier in this one, to give its result again."""
        live.end = RunEnd(state=row.state, result=row.result, error=row.error)
        live.state = row.state
        live.ending = True
        live.first_event = self.hub.count
        self._attach(live)
        end = {"state": row.state, "result": row.result, "error": row.error}
        self.publish(live, StateChanged, keep=False, **end)
        live.last_event = self.hub.count
        live.ended.set()

    async def lose(self, live: LiveRun, error: JournalError) -> None:
        """End a run that the journal failed; where not even that can be recorded, the supervisor ends."""
        try:
            await self.end_run(live, "failed", error=error)
        except JournalError:
            live.lost = error

    # --- what a run's own parts need --------------------------------------------------------------------------

    def publish(self, live: LiveRun, event: type[AnyEvent], *, keep: bool = True, **fields: Any) -> None:
        """Let everybody know who watches, and keep it in the journal unless it is of passing interest."""
        fields = self.journal.redact(fields)
        made = event(run_id=live.run_id, agent=live.agent.name, iteration=live.iteration, at=self.clock(), **fields)
        self.hub.publish(made)
        log_event(event.__name__, run=live.run_id, agent=live.agent.name, iteration=live.iteration, **fields)
        if keep:
            self.journal.submit([to_record(made)])

    def check_alerts(self, live: LiveRun) -> None:
        """Say which figures of a run have gone beyond their threshold; see ``AlertThresholds``."""
        for crossing in live.watch.check(live.statistics) if live.watch is not None else ():
            self.publish(live, Alert, **msgspec.structs.asdict(crossing))

    async def change_state(self, live: LiveRun, state: RunState) -> None:
        """Put a run into a state that is not its last."""
        await self.journal.write([self._state_record(live, state)])
        live.state = state
        self.publish(live, StateChanged, state=state)

    def ask_summarizer(self, live: LiveRun, job: Summarize | SummarizeResult) -> bool:
        """Send the summarizer a request and go on.

        Returns:
            Whether it was taken; a summarizer with too much to do takes no more, and the run goes on without.
        """
        try:
            self.summarizer.tell(job)
        except MailboxFull:
            self.publish(live, SummaryRefused, reason="the summarizer has more requests waiting than it can hold")
            return False
        return True

    def model_for(self, live: LiveRun) -> Model:
        """The model that a run calls: its agent's, else its parent's, else the supervisor's."""
        for run in live.lineage():
            if run.agent.model is not None:
                return self._models.get(run.agent.model)
        return self._models.get(None)

    def check_limits(self, live: LiveRun) -> None:
        """Raise ``LimitExceeded`` if the run may not make another iteration."""
        most = live.agent.limits.iterations
        if live.iteration >= most:
            raise LimitExceeded(
                f"no answer after {most} iterations, the limit of agent {live.agent.name} (limits.iterations)"
            )

    def check_prices(self, agent: Agent) -> None:
        """Raise ``ConfigurationError`` where a limit on money could not be kept."""
        check_prices(agent, self._models, self._summary_profile)

    def _reserve_room(self, parent: LiveRun, run_id: str) -> bool:
        """Count a run before it begins, so that two that begin at once are two; whether it was not counted before.

        Raises:
            LimitExceeded: There is no room for it.
        """
        members = parent.root.members
        if run_id in members:
            return False
        for levels, run in enumerate(parent.lineage(), start=1):
            limits = run.agent.limits
            if levels > limits.depth:
                raise LimitExceeded(
                    f"{run.agent.name} allows {limits.depth} levels of sub-agents below it (limits.depth)"
                )
            if 1 + sum(self.is_below(member, run.run_id) for member in members) >= limits.runs:
                raise LimitExceeded(f"{run.agent.name} allows {limits.runs} runs in its tree (limits.runs)")
        members.add(run_id)
        return True

    def wind_down(self) -> None:
        """Ask all runs at once to close at their next boundary; they would be stopped one after the other."""
        for live in self._live.values():
            live.wish_for("close")

    def is_below(self, run_id: str, ancestor: str) -> bool:
        """Whether a run is somewhere below another: a delegated run's id begins with its parent's."""
        return run_id.startswith(f"{ancestor}.")
