"""The supervisor: opens the journal and the actors; starts, finds, resumes and ends runs."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from os import PathLike
from typing import Any

import anyio
import anyio.abc
import msgspec

from repertory._ids import new_id
from repertory.actors import ActorContext, ActorRef, ActorSystem, Supervision, open_system
from repertory.agents.actor import AgentActor, PauseRun, ResumeRun, StopRun
from repertory.agents.agent import Agent, load_agent
from repertory.agents.events import Event, RunSpawned, StateChanged
from repertory.agents.hub import EventHub, EventReader
from repertory.agents.run import LiveRun, Run, Said
from repertory.errors import ConfigurationError, LimitExceeded, RunError, RunNotFound
from repertory.llm import open_model
from repertory.llm.messages import Json, Text
from repertory.llm.model import Model
from repertory.memory import Draft, Ledger, Memory, MemoryActor, open_journal
from repertory.memory.journal import Durability, Journal, RunRow
from repertory.memory.records import FINAL_STATES, EventLogged, RunStarted, RunState, RunStateChanged
from repertory.summarizer import Strategy, SummarizerActor

_SAID = "UserSaid"
# A run's actor that keeps crashing is given up; its neighbours go on.
_SUPERVISION = Supervision(max_restarts=3, period=60.0, when_exceeded="stop", backoff_first=0.1, backoff_max=5.0)


class Supervisor:
    """Runs agents in this process. Made by ``open_supervisor``."""

    def __init__(
        self,
        *,
        journal: Journal,
        system: ActorSystem,
        tasks: anyio.abc.TaskGroup,
        model: Model | str | None,
        memory: ActorRef[Any],
        summarizer: ActorRef[Any],
        clock: Callable[[], float],
    ) -> None:
        self.journal = journal
        self.summarizer = summarizer
        self.hub = EventHub()
        self.clock = clock
        self._system = system
        self._tasks = tasks
        self._memory = memory
        self._default_model = model
        self._models: dict[str | None, Model] = {}
        self._live: dict[str, LiveRun] = {}

    # --- starting and finding runs ------------------------------------------------------------------------

    async def spawn(
        self, agent: Agent, task: str, *, agent_ref: str = "", options: Json | None = None, run_id: str | None = None
    ) -> Run:
        """Start a run. Returns once it is durable: from then on a crash does not lose it.

        Args:
            agent: What runs.
            task: What it is asked to do; the model sees it verbatim in every request.
            agent_ref: ``module:name`` under which another process finds the agent again, so that ``resume`` and
                ``repertory resume`` need nobody to hand it in; "" where only this code knows it.
            options: Kept with the run and handed to a function that ``agent_ref`` names.
            run_id: The id to give it; None makes one.

        Raises:
            ConfigurationError: The task is empty, or the agent's model cannot be used.
        """
        if not task.strip():
            raise ConfigurationError("expected a task with some text, got an empty one")
        started = RunStarted(
            run_id=run_id or new_id("run"),
            agent=agent.name,
            task=task,
            at=self.clock(),
            agent_digest=agent.digest,
            agent_ref=agent_ref,
            options=options or {},
        )
        live = await self._begin(started, agent, parent=None)
        self._start(live, self._system.spawn)
        return Run(self, live)

    async def spawn_below(
        self, parent: LiveRun, agent: Agent, task: str, *, call_id: str, key: str, ctx: ActorContext
    ) -> LiveRun:
        """Start the run of a delegation, or find the one that the same call began before.

        Raises:
            LimitExceeded: The tree is deep or large enough.
        """
        run_id = f"{parent.run_id}.{key[:8]}"
        known = self._live.get(run_id)
        if known is not None and not known.ended.is_set():
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
            live = await self._begin(started, agent, parent=parent)
        else:
            live = await self._reopen(row, agent, parent=parent)
            if row.state in FINAL_STATES:
                self._close(live, row.state, result=row.result, error=row.error)
                return live
        self._start(live, ctx.spawn)
        return live

    async def resume(self, run_id: str, *, agent: Agent | None = None) -> Run:
        """Go on with a run that another process began, or that failed or was stopped.

        What it had delegated goes on with it. A tool call that was under way when the process died runs again
        only if its effect allows that; see ``docs/semantics.md``.

        Args:
            run_id: The run, or an unambiguous beginning of its id. A sub-agent's run is resumed through its root.
            agent: The definition to go on with; None imports the one that was named when it was spawned.

        Returns:
            The run. One that is done already stays so and gives its result at once.

        Raises:
            RunNotFound: There is no such run.
            RunError: It is under way in this process, or a sub-agent's.
            ConfigurationError: No agent was handed in and none was named.
        """
        row = await self.journal.read_run(run_id)
        started = row.started
        if started.parent_id is not None:
            raise RunError(f"run {started.run_id} belongs to {started.parent_id}; resume that one")
        known = self._live.get(started.run_id)
        if known is not None and not known.ended.is_set():
            raise RunError(f"run {started.run_id} is under way already")
        if agent is None:
            if not started.agent_ref:
                raise ConfigurationError(
                    f"run {started.run_id} does not say where its agent {started.agent!r} is defined; hand it in: "
                    "supervisor.resume(run_id, agent=…), or on the command line --agent module:name"
                )
            agent = load_agent(started.agent_ref, **started.options)
        live = await self._reopen(row, agent, parent=None)
        if row.state == "done":
            self._close(live, "done", result=row.result)
        else:
            await self.change_state(live, "running")
            self._start(live, self._system.spawn)
        return Run(self, live)

    async def runs(self, *, states: Sequence[RunState] | None = None) -> list[RunRow]:
        """Every run in the journal, oldest first; None means in any state."""
        return await self.journal.read_runs(states=states)

    def events(self) -> EventReader:
        """Watch all runs of this process, from the oldest event still in memory."""
        return self.hub.reader()

    # --- how a run begins -----------------------------------------------------------------------------------

    async def _begin(self, started: RunStarted, agent: Agent, *, parent: LiveRun | None) -> LiveRun:
        """Write a new run and its task in one transaction."""
        ledger = Ledger(self.journal, started.run_id, clock=self.clock)
        memory = await self._open_memory(started.run_id, agent, parent)
        live = LiveRun(started, agent, ledger, memory, parent=parent)
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

    async def _open_memory(self, run_id: str, agent: Agent, parent: LiveRun | None) -> Memory:
        scope_id = f"scope-{run_id}"
        if parent is None:
            return await Memory.open(self._memory, run_id, scope_id=scope_id)
        return await parent.memory.fork(run_id, mode=agent.memory, scope_id=scope_id)

    async def _reopen(self, row: RunRow, agent: Agent, *, parent: LiveRun | None) -> LiveRun:
        """Read a run back from the journal, with what was said to it and not yet read."""
        ledger = await Ledger.open(self.journal, row.started.run_id, clock=self.clock)
        live = LiveRun(row.started, agent, ledger, Memory(self._memory, row.started.scope_id), parent=parent)
        live.resumed = True
        live.iteration = row.iteration
        heard = {entry.metadata.get("message_id") for entry in ledger.snapshot()}
        for _, event in await self.journal.read_events(live.run_id):
            if event.type == _SAID and event.body["message_id"] not in heard:
                live.say(Said(event.body["message_id"], event.body["text"]))
        self._register(live)
        return live

    def _register(self, live: LiveRun) -> None:
        self._live[live.run_id] = live
        if live.parent is not None:
            others = [child for child in live.parent.children if child.run_id != live.run_id]
            live.parent.children = [*others, live]

    def _start(self, live: LiveRun, spawn: Callable[..., ActorRef[Any]]) -> None:
        live.ref = spawn(lambda: AgentActor(self, live), live.run_id, restart="transient", supervision=_SUPERVISION)
        self._tasks.start_soon(self._reap, live, live.ref)

    async def _reap(self, live: LiveRun, ref: ActorRef[Any]) -> None:
        """See to it that a run whose actor is gone has ended for everybody who waits."""
        reason = await ref.wait_stopped()
        if live.ended.is_set():
            return
        if reason.kind == "failed":
            await self.end_run(live, "failed", error=reason.error)
        elif live.killed:
            await self.end_run(live, "stopped")
        else:
            live.ended.set()  # the supervisor closes; the record says how to go on

    # --- what a run's own parts need --------------------------------------------------------------------------

    def publish(self, live: LiveRun, event: type[Event], **fields: Any) -> None:
        """Let everybody know, and keep it in the journal."""
        made = event(run_id=live.run_id, agent=live.agent.name, iteration=live.iteration, at=self.clock(), **fields)
        self.hub.publish(made)
        body = {
            name: value
            for name, value in msgspec.to_builtins(made).items()
            if name not in ("event", "run_id", "agent", "iteration", "at")
        }
        record = EventLogged(run_id=live.run_id, type=event.__name__, body=body, at=made.at, iteration=live.iteration)
        self.journal.submit([record])

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
        self._close(live, state, result=result, error=words)

    def _close(self, live: LiveRun, state: RunState, *, result: str | None = None, error: str | None = None) -> None:
        live.ending = True
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
            if bound is not None and (spent := run.tree_statistics().cost_seen) >= bound:
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

    def kill_run(self, live: LiveRun) -> None:
        """Cancel a run and those below it."""
        for run in live.tree():
            run.killed = True
        if live.ref is not None:
            live.ref.kill()

    def is_below(self, run_id: str, ancestor: str) -> bool:
        """Whether a run is somewhere below another."""
        run = self._live.get(run_id)
        return run is not None and any(above.run_id == ancestor for above in run.lineage())


@asynccontextmanager
async def open_supervisor(
    path: str | PathLike[str] | None = None,
    *,
    model: Model | str | None = None,
    durability: Durability = "power",
    journal: Journal | None = None,
    summaries: Strategy | None = None,
    drain_timeout: float = 5.0,
    clock: Callable[[], float] = time.time,
) -> AsyncIterator[Supervisor]:
    """Open a place for runs.

    Leaving the block brings runs that are still going to their next boundary, waits for that at most
    ``drain_timeout`` seconds, and cancels what is left. Their record stays, so they can be resumed.

    Args:
        path: The journal's file, made if it is not there; None keeps the record in memory only.
        model: For agents that name none; None takes what the environment offers, see ``open_model``.
        durability: What an acknowledged write survives; see ``open_journal``.
        journal: An open journal to use instead of ``path``; it stays open.
        summaries: Who writes summaries, such as a ``ModelStrategy``; None extracts them without a model.
        drain_timeout: Seconds.
        clock: Gives the time in seconds since 1970.

    Raises:
        JournalError: The file cannot be opened: it is locked, too new or not a journal.
        ConfigurationError: The model's name makes no sense.
    """
    errors: list[BaseException] = []
    try:
        async with AsyncExitStack() as stack:
            if journal is None:
                journal = await stack.enter_async_context(open_journal(path, durability=durability))
            tasks = await stack.enter_async_context(anyio.create_task_group())
            system = await stack.enter_async_context(
                open_system("repertory", supervision=_SUPERVISION, drain_timeout=drain_timeout)
            )
            memory = partial(MemoryActor, journal, clock=clock)

            summarizer = partial(SummarizerActor, journal, summaries, clock=clock)
            supervisor = Supervisor(
                journal=journal,
                system=system,
                tasks=tasks,
                model=model,
                memory=system.spawn(memory, "memory", restart="permanent"),
                summarizer=system.spawn(summarizer, "summarizer", restart="permanent"),
                clock=clock,
            )
            try:
                yield supervisor
            except BaseException as error:
                errors.append(error)
                raise
            finally:
                supervisor.hub.close()
    except BaseExceptionGroup as group:
        # The groups are those of our own task groups: an error of the caller's own comes out as itself.
        if errors and _leaves(group) == errors:
            raise errors[0] from errors[0].__cause__
        raise


def _leaves(error: BaseException) -> list[BaseException]:
    """The errors in a tree of groups that are no groups themselves."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for part in error.exceptions for leaf in _leaves(part)]
    return [error]
