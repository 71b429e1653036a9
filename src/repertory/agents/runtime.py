"""What all runs of one process share, and how each of them begins and ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio.abc
import msgspec

from repertory._ids import new_id
from repertory.actors import ActorContext, ActorRef, ActorSystem, Supervision
from repertory.agents.accounting import Tallies
from repertory.agents.actor import AgentActor, ExpandShown, PauseRun, PinShown, ResumeRun, StopRun
from repertory.agents.agent import Agent
from repertory.agents.alerts import AlertThresholds, Watch
from repertory.agents.events import Alert, AnyEvent, RunSpawned, StateChanged, to_record
from repertory.agents.hub import EventHub
from repertory.agents.live import LiveRun, Said
from repertory.agents.log import log_crash, log_event
from repertory.context import replay
from repertory.errors import ActorStopped, LimitExceeded, RunError, RunNotFound
from repertory.llm import open_model
from repertory.llm.messages import Text
from repertory.llm.model import Model, Usage
from repertory.llm.profiles import ModelProfile, cost_of
from repertory.memory import Draft, Ledger, Memory
from repertory.memory.journal import Journal, RunRow
from repertory.memory.records import FINAL_STATES, EventLogged, RunStarted, RunState, RunStateChanged
from repertory.summarizer.results import RESULT_SUMMARIZED

_SAID = "UserSaid"
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
        model: Model | str | None,
        memory: ActorRef[Any],
        summarizer: ActorRef[Any],
        content_retention: float | None,
        alerts: AlertThresholds | None,
        clock: Callable[[], float],
        summary_profile: ModelProfile | None = None,
    ) -> None:
        self.journal = journal
        self.content_retention = content_retention
        self.summarizer = summarizer
        self.hub = EventHub()
        self.clock = clock
        self.tallies = Tallies(journal)
        self._system = system
        self._tasks = tasks
        self._memory = memory
        self._default_model = model
        self._alerts = alerts
        self._summary_profile = summary_profile
        self._models: dict[str | None, Model] = {}
        self._live: dict[str, LiveRun] = {}

    def summary_price(self, tokens: int, written: int) -> float:
        """US dollars for a summary of so many tokens in so many; 0.0 where nobody is known to charge for it."""
        profile = self._summary_profile
        return cost_of(profile, Usage(input_tokens=tokens, output_tokens=written)) if profile is not None else 0.0

    # --- how a run begins ---------------------------------------------------------------------------------

    async def begin(self, started: RunStarted, agent: Agent, *, parent: LiveRun | None = None) -> LiveRun:
        """Write a new run and its task in one transaction."""
        ledger = Ledger(self.journal, started.run_id, clock=self.clock)
        memory = await self._open_memory(started.run_id, agent, parent)
        tally = parent.tally if parent is not None else self.tallies.begin(started.run_id)
        live = LiveRun(started, agent, ledger, memory, tally, parent=parent)
        live.watch = self._new_watch()
        model = self.model_for(live).name
        live.started = started = msgspec.structs.replace(started, scope_id=memory.scope_id, model=model)
        task = Draft(role="user", kind="task", content=(Text(started.task),))
        await ledger.append(task, also=[started])
        self._register(live)
        self.publish(
            live,
            RunSpawned,
            task=started.task,
            model=started.model,
            parent_id=started.parent_id,
            depth=started.depth,
        )
        return live

    async def spawn_below(
        self, parent: LiveRun, agent: Agent, task: str, *, call_id: str, key: str, ctx: ActorContext
    ) -> LiveRun:
        """Start the run of a delegation, or find the one that the same call began before.

        Raises:
            LimitExceeded: The tree is deep or large enough.
        """
        run_id = f"{parent.run_id}.{key[:8]}"
        known = self.find(run_id)
        if known is not None:
            return known
        try:
            row = await self.journal.read_run(run_id)
        except RunNotFound:
            self._check_room(parent)
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
            live = await self.begin(started, agent, parent=parent)
        else:
            live = await self.reopen(row, agent, parent=parent)
            if row.state in FINAL_STATES:
                self.close(live, row.state, result=row.result, error=row.error)
                return live
        self.start(live, ctx)
        return live

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
        live.watch = self._new_watch()
        live.plan = replay(made.body for made in await self.journal.read_decisions(live.run_id))
        live.skip_added()
        live.iteration = row.iteration
        heard = {entry.message_id for entry in ledger.snapshot()}
        for _, record in await self.journal.read_events(live.run_id):
            if record.type == _SAID and record.body["message_id"] not in heard:
                live.say(Said(record.body["message_id"], record.body["text"]))
            elif record.type == RESULT_SUMMARIZED:
                live.gists[record.body["position"]] = record.body["text"]
        self._register(live)
        return live

    def _new_watch(self) -> Watch | None:
        return Watch(self._alerts) if self._alerts is not None else None

    def _register(self, live: LiveRun) -> None:
        self._live[live.run_id] = live
        if live.parent is not None:
            others = [child for child in live.parent.children if child.run_id != live.run_id]
            live.parent.children = [*others, live]

    def find(self, run_id: str) -> LiveRun | None:
        """A run that is under way in this process."""
        live = self._live.get(run_id)
        return live if live is not None and not live.ended.is_set() else None

    def start(self, live: LiveRun, ctx: ActorContext | None = None) -> None:
        """Start a run's actor: below the actor of the run that delegated to it, or at the top."""
        place = self._system if ctx is None else ctx
        live.ref = place.spawn(
            lambda: AgentActor(self, live), live.run_id, restart="transient", supervision=SUPERVISION
        )
        self._tasks.start_soon(self._reap, live, live.ref)

    async def _reap(self, live: LiveRun, ref: ActorRef[Any]) -> None:
        """See to it that a run whose actor is gone has ended for everybody who waits."""
        reason = await ref.wait_stopped()
        if live.ended.is_set():
            return
        if reason.kind == "failed":
            log_crash(live.run_id, reason.error)
            await self.end_run(live, "failed", error=reason.error)
        elif live.killed:
            await self.end_run(live, "stopped")
        else:
            live.ended.set()  # the supervisor closes; the record says how to go on

    # --- what a run's own parts need --------------------------------------------------------------------------

    def publish(self, live: LiveRun, event: type[AnyEvent], *, keep: bool = True, **fields: Any) -> None:
        """Let everybody know who watches, and keep it in the journal unless it is of passing interest."""
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
        record = RunStateChanged(run_id=live.run_id, state=state, at=self.clock(), iteration=live.iteration)
        await self.journal.write([record])
        live.state = state
        self.publish(live, StateChanged, state=state)

    async def end_run(
        self, live: LiveRun, state: RunState, *, result: str | None = None, error: BaseException | None = None
    ) -> None:
        """Record how a run ended, then tell those who wait for it."""
        live.ending = True
        words = None if error is None else f"{type(error).__name__}: {error}"
        await self.journal.write(
            [
                RunStateChanged(
                    run_id=live.run_id,
                    state=state,
                    at=self.clock(),
                    iteration=live.iteration,
                    result=result,
                    error=words,
                )
            ]
        )
        live.cause = error
        if live.parent is None:
            await self.journal.delete_expired_contents(self.clock())
            for run in live.tree():
                self._live.pop(run.run_id, None)
        self.close(live, state, result=result, error=words)

    def close(self, live: LiveRun, state: RunState, *, result: str | None = None, error: str | None = None) -> None:
        """Tell those who wait for a run that it has ended."""
        live.ending = True
        live.tell_added()
        live.state, live.result, live.error = state, result, error
        self.publish(live, StateChanged, state=state, result=result, error=error)
        live.ended.set()

    def model_for(self, live: LiveRun) -> Model:
        """The model that a run calls: its agent's, else its parent's, else the supervisor's."""
        for run in live.lineage():
            if run.agent.model is not None:
                return self._model(run.agent.model)
        return self._model(self._default_model)

    def _model(self, model: Model | str | None) -> Model:
        if model is not None and not isinstance(model, str):
            return model
        if model not in self._models:
            self._models[model] = open_model(model)
        return self._models[model]

    def check_limits(self, live: LiveRun) -> None:
        """Raise ``LimitExceeded`` if the run may not make another model call."""
        most = live.agent.limits.iterations
        if live.iteration >= most:
            raise LimitExceeded(
                f"no answer after {most} iterations, the limit of agent {live.agent.name} (limits.iterations)"
            )
        for run in live.lineage():
            bound = run.agent.limits.cost
            if bound is not None and (spent := run.tally.tree(run.run_id).cost_seen) >= bound:
                raise LimitExceeded(
                    f"run {run.run_id} and those below it have spent ${spent:.4f}; the limit of agent "
                    f"{run.agent.name} is ${bound:.4f} (limits.cost)"
                )

    def _check_room(self, parent: LiveRun) -> None:
        for levels, run in enumerate(parent.lineage(), start=1):
            limits = run.agent.limits
            if levels > limits.depth:
                raise LimitExceeded(
                    f"{run.agent.name} allows {limits.depth} levels of sub-agents below it (limits.depth)"
                )
            if sum(1 for _ in run.tree()) >= limits.runs:
                raise LimitExceeded(f"{run.agent.name} allows {limits.runs} runs in its tree (limits.runs)")

    # --- what a run's holder asks for -------------------------------------------------------------------------

    async def deliver(self, live: LiveRun, text: str) -> None:
        """Make a message to a run durable, and put it where the loop looks next."""
        said = Said(new_id("msg"), text)
        body = {"message_id": said.message_id, "text": text}
        if not live.ending:
            await self.journal.write(
                [EventLogged(run_id=live.run_id, type=_SAID, body=body, at=self.clock(), iteration=live.iteration)]
            )
        if live.ending:  # perhaps only since we began to write
            raise RunError(f"run {live.run_id} has ended ({live.state}) and did not read it; resume it to go on")
        live.say(said)

    async def edit_plan(self, live: LiveRun, message: ExpandShown | PinShown) -> None:
        """Ask a run to change what its model is shown.

        Raises:
            ContextError: There is no such entry, or nothing to expand.
            RunError: The run has ended.
        """
        if live.ref is None or live.ending:
            raise RunError(f"run {live.run_id} has ended ({live.state}); nothing more is shown to its model")
        try:
            await live.ref.ask(message)
        except ActorStopped as error:
            raise RunError(f"run {live.run_id} ended before it could change what its model is shown") from error

    def stop_run(self, live: LiveRun) -> None:
        """End a run and those below it at their next boundary."""
        for run in live.tree():
            if run.ref is not None:
                run.ref.tell(StopRun())

    def pause_run(self, live: LiveRun) -> None:
        """Hold a run and those below it at their next boundary."""
        for run in live.tree():
            if run.ref is not None:
                run.ref.tell(PauseRun())

    def unpause_run(self, live: LiveRun) -> None:
        """Let a paused run and those below it go on."""
        for run in live.tree():
            if run.ref is not None:
                run.ref.tell(ResumeRun())

    def wind_down(self) -> None:
        """Ask all runs at once to close at their next boundary; they would be stopped one after the other."""
        for live in self._live.values():
            live.wish_for("close")

    def kill_run(self, live: LiveRun) -> None:
        """Cancel a run and those below it."""
        for run in live.tree():
            run.killed = True
        if live.ref is not None:
            live.ref.kill()

    def is_below(self, run_id: str, ancestor: str) -> bool:
        """Whether a run is somewhere below another: a delegated run's id begins with its parent's."""
        return run_id.startswith(f"{ancestor}.")
