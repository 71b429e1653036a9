"""``open_supervisor``, which opens what runs need and closes it in reverse order; and ``run`` and ``run_sync``."""

from __future__ import annotations

import inspect
import logging
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

import anyio

from repertory._choices import check_choice, check_labels, check_number, check_seconds, check_type, show
from repertory._error_texts import leaves_of
from repertory._postgres_address import Place
from repertory.actors import open_system
from repertory.agents.agent import Agent, ResultT, check_model
from repertory.errors import ConfigurationError, JournalError, JournalLocked, RunError
from repertory.llm.model import Model
from repertory.memory import MemoryActor, MemoryQuota
from repertory.record import open_journal
from repertory.record.journal import Durability, Journal
from repertory.runs.accounting import Tallies
from repertory.runs.alerts import AlertThresholds
from repertory.runs.event_hub import EventHub
from repertory.runs.events import ApprovalRequested, ResultAwaited
from repertory.runs.log import log, redacted_log
from repertory.runs.models import open_models
from repertory.runs.shared import Shared
from repertory.runs.telemetry import NoTelemetry, Telemetry
from repertory.runs.tool_sets import ToolSets
from repertory.summarizer import SummarizerActor
from repertory.supervisor.claims import Claims
from repertory.supervisor.placement import Placement
from repertory.supervisor.quotas import Quotas, check_bounds
from repertory.supervisor.relay import serve_commands
from repertory.supervisor.retention import Retention
from repertory.supervisor.runtime import SUPERVISION, Runtime
from repertory.supervisor.supervisor import Supervisor
from repertory.tools import Approvals
from repertory.tools.media import Media

if TYPE_CHECKING:
    from repertory.machines import Machines

T = TypeVar("T")
Backend: TypeAlias = Literal["trio", "asyncio"]


_ALERTS = AlertThresholds()
_OWNED: Final[set[Journal]] = set()  # the journals that supervisors of this process use, apart from shared ones


@asynccontextmanager
async def open_supervisor(
    path: Place | None = None,
    *,
    model: Model | str | None = None,
    durability: Durability = "power",
    journal: Journal | None = None,
    summaries: Model | str | Sequence[Model | str] | None = None,
    alerts: AlertThresholds | None = _ALERTS,
    content_retention: float | None = 3600.0,
    telemetry: Telemetry | None = None,
    drain_timeout: float = 5.0,
    redact: Sequence[str] = (),
    approvals: Approvals | None = None,
    max_runs: int | None = None,
    quotas: Quotas | None = None,
    memory_quota: MemoryQuota | None = None,
    plain_loops: bool | None = None,
    labels: Sequence[str] | None = None,
    lease: float | None = None,
    name: str | None = None,
    clock: Callable[[], float] = time.time,
) -> AsyncGenerator[Supervisor]:
    """Open a supervisor, in which runs are started and resumed.

    When the block is left, runs that are still under way stop at their next boundary; what has not stopped after
    ``drain_timeout`` seconds is cancelled. Their record stays, so they can be resumed. Queued runs stay in the queue on
    record, and keep their place when they are resumed.

    Args:
        path: The journal's file, created if it does not exist; None keeps the record in memory only.
        model: The model of agents that name none; None uses what the environment offers, see ``open_model``. A model
            given by name is opened here and closed with the block; a model object stays open.
        durability: What an acknowledged write survives; see ``open_journal``.
        journal: An open journal to use instead of ``path``; it stays open.
        summaries: The model that writes summaries, or several to try in this order; () for none. None uses the small
            model of the same provider if an agent's model is behind the Messages API, and otherwise none.
        alerts: The thresholds beyond which a run's figures cause an ``Alert`` event; None for no alerts.
        content_retention: For how many seconds after a tree of runs has ended the content store keeps copies of what
            the ledgers also hold; None keeps them for good. Contents that only the store has are kept, unless a
            ``ResultPolicy`` or whoever stored them set a time. See ``docs/memory.md``.
        telemetry: Produces traces and metrics, such as ``repertory.otel.OpenTelemetry()``; None for none.
        drain_timeout: Seconds to wait for runs when the block is left; infinity waits until all have stopped.
        redact: Environment variables whose current values are neither recorded nor shown to a model: each becomes
            ``[redacted: NAME]``. Not allowed with ``journal``; ``open_journal`` has the same option.
        approvals: Which tool calls wait until a person allows them, or are never made; None for no rules. Agents and
            tools can have rules too; the strictest applies.
        max_runs: How many runs may be under way at once in this process, each counted together with all runs below it;
            more wait in the queue. None for no bound.
        quotas: How much agents and clients may use, in all processes that share the journal; a run that would exceed
            this waits. None for none.
        memory_quota: How much one scope of memory may hold; None for the defaults of ``MemoryQuota``.
        plain_loops: Whether all agents run as plain loops, which show their models everything, whatever their
            ``context`` says; the view of a run that is resumed this way is no longer edited. None uses the environment
            variable ``REPERTORY_PLAIN_LOOPS`` (1 or 0).
        labels: What this machine offers, if several share a journal on PostgreSQL. It takes runs from their queue, and
            from machines that died or drain, if a run asks for no other labels and its agent can be found here. () for
            runs that ask for none; None to run only what is started or resumed here.
        lease: Seconds without a sign of life after which other machines may take over this process's runs; None for 30.
        name: This machine's name, for people; None uses its host name and process id.
        clock: Returns the time in seconds since 1970.

    Raises:
        LeaseLost: Another machine has taken over this one's runs, if several share the journal.
        JournalError: The file cannot be opened: it is locked, too new or not a journal; or another supervisor uses
            ``journal``. Or the journal failed later: then the block is cancelled, and leaving it raises this error
            itself.
        ConfigurationError: The model, ``summaries``, ``alerts`` or another option has a wrong type or value; a value to
            redact is shorter than 8 characters; or ``REPERTORY_PLAIN_LOOPS`` is neither 1 nor 0.
    """
    if journal is not None and (redact or path is not None):
        what = "redact" if redact else "path"
        raise ConfigurationError(f"open_supervisor: {what} must be given to open_journal, which opened the journal")
    check_type("open_supervisor: journal", journal, Journal | None, "an open Journal, or None")
    check_model(model, "open_supervisor: model")
    if summaries is not None and (isinstance(summaries, str) or not isinstance(summaries, Sequence)):
        summaries = (summaries,)
    for each in summaries or ():
        check_type("open_supervisor: summaries", each, str | Model, "a Model, the name of one, or several")
    if labels is not None:
        check_labels("open_supervisor: labels", labels)
    check_type("open_supervisor: name", name, str | None, "a text, or None for the host's name and the process id")
    words = "AlertThresholds, or None for no alerts"
    check_type("open_supervisor: alerts", alerts, AlertThresholds | None, words)
    check_type("open_supervisor: approvals", approvals, Approvals | None, "Approvals(…), or None for no rules")
    check_type("open_supervisor: memory_quota", memory_quota, MemoryQuota | None, "MemoryQuota(…), or None")
    check_type("open_supervisor: plain_loops", plain_loops, bool | None, "True, False or None")
    if plain_loops is None:
        plain_loops = _plain_loops_wanted()
    check_number("open_supervisor: content_retention", content_retention, int | float, least=0, none=True)
    check_seconds("open_supervisor: drain_timeout", drain_timeout)
    check_bounds(max_runs, quotas)  # before there is a task group, which would wrap the error in an exception group
    words = "a Telemetry such as OpenTelemetry(), or None for none"
    check_type("open_supervisor: telemetry", telemetry, Telemetry | None, words)
    if not callable(clock):
        raise ConfigurationError(f"open_supervisor: clock must be a function such as time.time, got {show(clock)}")
    errors: list[BaseException] = []
    try:
        async with AsyncExitStack() as stack:
            if journal is None:
                journal = await stack.enter_async_context(open_journal(path, durability=durability, redact=redact))
            stack.enter_context(_owning(journal))
            stack.enter_context(redacted_log(journal.redact))
            machines = await _join_machines(stack, journal, name=name, labels=labels, lease=lease)
            models = await stack.enter_async_context(open_models(model, summaries))
            tallies = await stack.enter_async_context(_open_tallies(journal))
            hub = EventHub()
            stack.callback(hub.close)  # once no run is left
            tasks = await stack.enter_async_context(anyio.create_task_group())
            tool_sets = ToolSets(tasks)
            stack.callback(tool_sets.close)  # once no run is left
            system = await stack.enter_async_context(
                open_system(
                    "repertory", supervision=SUPERVISION, drain_timeout=drain_timeout, on_dead_letter=_log_dead_letter
                )
            )
            memory = partial(MemoryActor, journal, quota=memory_quota, clock=clock)
            summarizer = partial(SummarizerActor, journal, clock=clock)
            shared = Shared(
                journal=journal,
                models=models,
                memory=system.spawn(memory, "memory", restart="permanent"),
                summarizer=system.spawn(summarizer, "summarizer", restart="permanent"),
                tallies=tallies,
                hub=hub,
                tool_sets=tool_sets,
                telemetry=telemetry or NoTelemetry(),
                clock=clock,
                alerts=alerts,
                approvals=approvals,
                machines=machines,
                plain_loops=plain_loops,
            )
            retention = Retention(journal, seconds=content_retention, clock=clock)
            runtime = Runtime(shared, system, tasks, retention)
            for left in await journal.read_removals():
                await journal.remove_run(left, at=clock())
            await retention.clean()

            def keep_doing(work: Callable[..., Coroutine[Any, Any, None]], *args: object) -> None:
                scope = anyio.CancelScope()
                stack.callback(scope.cancel)
                tasks.start_soon(partial(work, *args), scope)

            supervisor = Supervisor(runtime)
            keep_doing(retention.clean_for_ever)
            keep_doing(runtime.queue.serve)
            if machines is not None:
                from repertory.machines.commands import Commands  # as nothing of it is needed with one process

                runtime.queue.claims = Claims(
                    machines, journal, runtime.runs, runtime, labels=labels, wake=runtime.queue.wake
                )
                runtime.commands = Commands(machines)
                runtime.placement = Placement(runtime.runs, shared, runtime.commands)
                keep_doing(runtime.queue.claims.serve)
                keep_doing(runtime.placement.serve)
                keep_doing(serve_commands, runtime, runtime.commands)
            supervisor.change_bounds(max_runs=max_runs, quotas=quotas)
            try:
                yield supervisor
                runtime.wind_down()
            except BaseException as error:
                errors.append(error)
                raise
            finally:
                runtime.close()
    except BaseExceptionGroup as group:
        # These are the groups of our own task groups; the caller's own error, or group, is raised without them.
        leaves = leaves_of(group)
        journal_failed = all(isinstance(leaf, JournalError) for leaf in leaves)
        if errors and (leaves == errors or (not journal_failed and leaves == leaves_of(errors[0]))):
            raise errors[0] from errors[0].__cause__
        if all(isinstance(leaf, KeyboardInterrupt | SystemExit) for leaf in leaves):  # wherever it struck
            raise leaves[0] from None
        # All runs fail with their journal, one after the other, and cancel the caller: report that failure once.
        if not journal_failed:
            raise
        of_it = (JournalError, anyio.get_cancelled_exc_class())
        if all(isinstance(leaf, of_it) for error in errors for leaf in leaves_of(error)):
            raise leaves[0] from leaves[0].__cause__
        raise BaseExceptionGroup("the journal failed, and so did the caller", [leaves[0], errors[0]]) from None


@contextmanager
def _owning(journal: Journal) -> Generator[None]:
    """Be the only supervisor of a journal: two loops would ruin the record of a run, and make its calls twice."""
    if journal in _OWNED:
        raise JournalLocked("another supervisor in this process uses this journal: spawn there, or close it first")
    if not journal.is_shared:
        _OWNED.add(journal)
    try:
        yield
    finally:
        _OWNED.discard(journal)


@asynccontextmanager
async def _open_tallies(journal: Journal) -> AsyncGenerator[Tallies]:
    """Tallies that count until no run is left, including what runs still do while they are waited for."""
    tallies = Tallies(journal)
    try:
        yield tallies
        await journal.write(())
    finally:
        tallies.close()


async def _join_machines(
    stack: AsyncExitStack, journal: Journal, *, name: str | None, labels: Sequence[str] | None, lease: float | None
) -> Machines | None:
    """Register as a machine if the journal is shared; None if it is not."""
    if not journal.is_shared:
        if labels or lease is not None or name is not None:
            raise ConfigurationError("open_supervisor: labels, lease and name are for a journal on PostgreSQL")
        return None
    from repertory.machines.machine import LEASE, open_machines  # here, as nothing of it is needed with one process

    lease = LEASE if lease is None else lease
    return await stack.enter_async_context(open_machines(journal, name=name, labels=labels or (), lease=lease))


def _plain_loops_wanted() -> bool:
    said = os.environ.get("REPERTORY_PLAIN_LOOPS", "")
    if said not in ("", "0", "1"):
        raise ConfigurationError(f"REPERTORY_PLAIN_LOOPS must be 1 or 0, got {said!r:.100}")
    return said == "1"


def _log_dead_letter(letter: object) -> None:
    log(logging.DEBUG, "actor.dead.letter", letter=repr(letter)[:500])


def run(main: Callable[..., Awaitable[T]], *args: Any, backend: Backend | None = None, uvloop: bool = False) -> T:
    """Run an async function to its end, as ``anyio.run`` does.

    Args:
        main: The function.
        args: Its arguments.
        backend: The event loop; None uses the environment variable ``REPERTORY_BACKEND``, or trio if that is not set.
        uvloop: Use uvloop; it needs ``backend="asyncio"`` and the extra ``repertory[uvloop]``.

    Raises:
        ConfigurationError: There is no such event loop; one already runs in this thread; or ``main`` is a coroutine,
            not a function.
        KeyboardInterrupt: Ctrl-C was pressed; trio's groups around it are taken off.
    """
    if inspect.iscoroutine(main):
        main.close()
        raise ConfigurationError("repertory.run takes the function itself: run(main), not run(main())")
    if _is_in_a_loop():
        raise ConfigurationError(
            "an event loop runs in this thread already, as it does in a notebook, so repertory.run and run_sync cannot "
            "start one; await instead: async with open_supervisor(…) as supervisor, then await supervisor.spawn(…)"
        )
    named = backend or os.environ.get("REPERTORY_BACKEND") or "trio"
    check_choice("backend, or REPERTORY_BACKEND", named, Backend)
    options = {"use_uvloop": True} if uvloop else {}
    try:
        return anyio.run(main, *args, backend=named, backend_options=options)
    except BaseExceptionGroup as group:
        pressed, others = group.split(KeyboardInterrupt)
        if pressed is None:
            raise
        raise KeyboardInterrupt from others


def _is_in_a_loop() -> bool:
    try:
        anyio.get_current_task()
    except RuntimeError:
        return False
    return True


def run_sync(
    agent: Agent[ResultT],
    task: object,
    *,
    path: Place | None = None,
    backend: Backend | None = None,
    attachments: Sequence[Media] = (),
    payload: Any = None,
    context: Any = None,
    **options: Any,
) -> ResultT:
    """Run one agent on one task and return its result.

    Args:
        agent: The agent to run.
        task: What it is asked to do, as for ``Supervisor.spawn``.
        path: The journal's file; None keeps the record in memory only.
        backend: As for ``run``.
        attachments: As for ``Supervisor.spawn``.
        payload: As for ``Supervisor.spawn``.
        context: As for ``Supervisor.spawn``.
        options: Passed to ``open_supervisor``.

    Raises:
        RunFailed: The run ended with an error, which is the ``__cause__``.
        RunError: A call waits for an approval or for its result without a time limit, and nobody could give it here.
    """

    async def main() -> ResultT:
        async with open_supervisor(path, **options) as supervisor:
            given: dict[str, Any] = {"attachments": attachments, "payload": payload, "context": context}
            started = await supervisor.spawn(agent, task, **given)
            async for event in started.events(tree=True):
                if isinstance(event, ApprovalRequested | ResultAwaited) and event.expires_at is None:
                    _check_can_come(event, supervisor.journal)
            return await started.wait_result()

    return run(main, backend=backend)


def _check_can_come(event: ApprovalRequested | ResultAwaited, journal: Journal) -> None:
    """Refuse to wait for ever. Where several machines share a journal, somebody at another one may decide."""
    if journal.is_shared:
        return
    asked = isinstance(event, ApprovalRequested)
    what, how = ("an approval", "run.approve") if asked else ("a result", "run.give_result")
    raise RunError(
        f"{event.tool} of {event.agent} waits for {what}, and in run_sync nobody can give it: spawn the run, or resume "
        f"it, in an open_supervisor block, and call {how}"
    )
