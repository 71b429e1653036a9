"""The supervisor: where runs are started, found, resumed and ended."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from os import PathLike
from typing import cast

import anyio
import msgspec

from repertory._ids import new_id
from repertory.actors import open_system
from repertory.agents.agent import Agent, check_listener, check_model, load_agent
from repertory.agents.alerts import AlertThresholds
from repertory.agents.hub import EventReader
from repertory.agents.log import log_dead_letter
from repertory.agents.policies import check_policies, results_of
from repertory.agents.runs import Run
from repertory.agents.runtime import SUPERVISION, Runtime
from repertory.context import MessageEvent, ResultPolicy
from repertory.errors import ConfigurationError, RunError
from repertory.llm.messages import Json
from repertory.llm.model import Model
from repertory.memory import MemoryActor, open_journal
from repertory.memory.journal import Durability, Journal, RunRow
from repertory.memory.records import RunStarted, RunState
from repertory.summarizer import Strategy, SummarizerActor
from repertory.summarizer.strategies import check_strategy


class Supervisor:
    """Runs agents in this process. Made by ``open_supervisor``."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._resuming = anyio.Lock()  # two loops on one record would stop the journal

    @property
    def journal(self) -> Journal:
        """The durable record of all runs, to read."""
        return self._runtime.journal

    async def spawn(
        self,
        agent: Agent,
        task: str,
        *,
        agent_ref: str = "",
        options: Json | None = None,
        results: ResultPolicy | None = None,
        run_id: str | None = None,
        on_lifecycle: Callable[[MessageEvent], object] | None = None,
    ) -> Run:
        """Start a run. Returns once it is durable: from then on a crash does not lose it.

        Args:
            agent: What runs.
            task: What it is asked to do; the model sees it verbatim in every request.
            agent_ref: ``module:name`` under which another process finds the agent again, so that ``resume`` and
                ``repertory resume`` need nobody to hand it in; "" where only this code knows it.
            options: Kept with the run and handed to a function that ``agent_ref`` names.
            results: Overrides, for this run, of how tool results are treated; stronger than what the agent and
                its tools say.
            run_id: The id to give it; None makes one.
            on_lifecycle: Called with what becomes of each message of this run, besides the agent's own listener;
                see ``Agent``. It is not kept: a run that another process resumes has only its agent's.

        Raises:
            ConfigurationError: The task is empty, the agent's model cannot be used, or policies contradict themselves:
                they name a tool or a compactor that there is none of, or an expiration without a mode.
        """
        check_listener(on_lifecycle)
        check_policies(agent, results)
        if not task.strip():
            raise ConfigurationError("expected a task with some text, got an empty one")
        started = RunStarted(
            run_id=run_id or new_id("run"),
            agent=agent.name,
            task=task,
            at=self._runtime.clock(),
            agent_digest=agent.digest,
            agent_ref=agent_ref,
            options=options or {},
            results=msgspec.to_builtins(results) if results is not None else {},
        )
        live = await self._runtime.begin(started, agent)
        if on_lifecycle is not None:
            live.listeners.append(on_lifecycle)
        self._runtime.start(live)
        return Run(self._runtime, live)

    async def resume(self, run_id: str, *, agent: Agent | None = None) -> Run:
        """Go on with a run that another process began, or that failed or was stopped.

        What it had delegated goes on with it. A tool call that was under way when the process died runs again
        only if its effect allows that; see ``docs/durability.md``.

        Args:
            run_id: The run, or an unambiguous beginning of its id. A sub-agent's run is resumed through its root.
            agent: The definition to go on with; None imports the one that was named when it was spawned.

        Returns:
            The run. One that is done already stays so and gives its result at once.

        Raises:
            RunNotFound: There is no such run.
            RunError: It is under way in this process, or a sub-agent's.
            ConfigurationError: No agent was handed in and none was named, or its policies contradict themselves.
        """
        runtime = self._runtime
        async with self._resuming:
            return await self._resume(runtime, run_id, agent)

    async def _resume(self, runtime: Runtime, run_id: str, agent: Agent | None) -> Run:
        row = await runtime.journal.read_run(run_id)
        started = row.started
        if started.parent_id is not None:
            raise RunError(f"run {started.run_id} belongs to {started.parent_id}; resume that one")
        if runtime.find(started.run_id) is not None:
            raise RunError(f"run {started.run_id} is under way already")
        if agent is None:
            if not started.agent_ref:
                raise ConfigurationError(
                    f"run {started.run_id} does not say where its agent {started.agent!r} is defined; hand it in: "
                    "supervisor.resume(run_id, agent=…), or on the command line --agent module:name"
                )
            agent = load_agent(started.agent_ref, **started.options)
        if row.state != "done":
            check_policies(agent, results_of(started))
        live = await runtime.reopen(row, agent)
        if row.state == "done":
            runtime.close(live, "done", result=row.result)
        else:
            await runtime.change_state(live, "running")
            runtime.start(live)
        return Run(runtime, live)

    async def runs(self, *, states: Sequence[RunState] | None = None) -> list[RunRow]:
        """Every run in the journal, oldest first; None means in any state."""
        return await self._runtime.journal.read_runs(states=states)

    def events(self) -> EventReader:
        """Watch all runs of this process, from the oldest event still in memory."""
        return self._runtime.hub.reader()


_ALERTS = AlertThresholds()


@asynccontextmanager
async def open_supervisor(
    path: str | PathLike[str] | None = None,
    *,
    model: Model | str | None = None,
    durability: Durability = "power",
    journal: Journal | None = None,
    summaries: Strategy | None = None,
    content_retention: float | None = 3600.0,
    alerts: AlertThresholds | None = _ALERTS,
    drain_timeout: float = 5.0,
    clock: Callable[[], float] = time.time,
) -> AsyncGenerator[Supervisor]:
    """Open a place for runs.

    Leaving the block brings runs that are still going to their next boundary, waits for that at most
    ``drain_timeout`` seconds, and cancels what is left. Their record stays, so they can be resumed.

    Args:
        path: The journal's file, made if it is not there; None keeps the record in memory only.
        model: For agents that name none; None takes what the environment offers, see ``open_model``.
        durability: What an acknowledged write survives; see ``open_journal``.
        journal: An open journal to use instead of ``path``; it stays open.
        summaries: Who writes summaries, such as a ``ModelStrategy``; None extracts them without a model.
        content_retention: Seconds that the content store keeps, after the end of a run, what the ledger holds as
            well; None keeps it for good. What only the content store has is always kept.
        alerts: From where on a run's figures are worth an ``Alert`` event; None for no alerts.
        drain_timeout: Seconds.
        clock: Gives the time in seconds since 1970.

    Raises:
        JournalError: The file cannot be opened: it is locked, too new or not a journal.
        ConfigurationError: The model's name makes no sense, or it is none; ``summaries`` writes none, or ``alerts``
            are no ``AlertThresholds``.
    """
    check_model(model, "open_supervisor: model")
    if summaries is not None:
        check_strategy(summaries, "open_supervisor: summaries")
    _check_alerts(alerts)
    errors: list[BaseException] = []
    try:
        async with AsyncExitStack() as stack:
            if journal is None:
                journal = await stack.enter_async_context(open_journal(path, durability=durability))
            tasks = await stack.enter_async_context(anyio.create_task_group())
            system = await stack.enter_async_context(
                open_system(
                    "repertory", supervision=SUPERVISION, drain_timeout=drain_timeout, on_dead_letter=log_dead_letter
                )
            )
            memory = partial(MemoryActor, journal, clock=clock)

            summarizer = partial(SummarizerActor, journal, summaries, clock=clock)
            runtime = Runtime(
                journal=journal,
                system=system,
                tasks=tasks,
                model=model,
                memory=system.spawn(memory, "memory", restart="permanent"),
                summarizer=system.spawn(summarizer, "summarizer", restart="permanent"),
                content_retention=content_retention,
                alerts=alerts,
                clock=clock,
                summary_profile=getattr(summaries, "profile", None),
            )
            await journal.delete_expired_contents(clock())
            try:
                yield Supervisor(runtime)
                runtime.wind_down()
            except BaseException as error:
                errors.append(error)
                raise
            finally:
                runtime.hub.close()
                runtime.tallies.close()
    except BaseExceptionGroup as group:
        # The groups are those of our own task groups: an error of the caller's own comes out as itself.
        if errors and _leaves(group) == errors:
            raise errors[0] from errors[0].__cause__
        raise


def _check_alerts(alerts: object) -> None:
    if alerts is not None and not isinstance(alerts, AlertThresholds):
        raise ConfigurationError(
            f"open_supervisor: alerts must be AlertThresholds, or None for no alerts, got {alerts!r}"
        )


def _leaves(error: BaseException) -> list[BaseException]:
    """The errors in a tree of groups that are no groups themselves."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    parts = cast("BaseExceptionGroup[BaseException]", error).exceptions
    return [leaf for part in parts for leaf in _leaves(part)]
