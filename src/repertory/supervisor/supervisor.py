"""The supervisor as its callers hold it: where runs are started, found, resumed and ended."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, overload

import msgspec

from repertory._choices import check_choice, check_fields, check_labels, check_number, check_text, check_type, show
from repertory._ids import new_id, root_of, unit_of
from repertory.agents.agent import Agent, ResultT, check_agent, check_listener
from repertory.agents.loading import agent_of
from repertory.agents.tasks import check_run_id, read_task
from repertory.context import MessageEvent
from repertory.errors import (
    ConfigurationError,
    ContentNotFound,
    RunError,
    RunNotFound,
)
from repertory.llm.messages import Json
from repertory.loop.permission import check_rules
from repertory.record.journal import Journal
from repertory.record.records import FINAL_STATES, RunRow, RunStarted, RunState
from repertory.runs.event_hub import EventReader
from repertory.runs.live import LiveRun
from repertory.runs.models import check_prices
from repertory.runs.payloads import check_payloads
from repertory.runs.waiting_calls import WaitingCall
from repertory.shortening import ResultPolicy
from repertory.supervisor.forking import Fork, fork, remove
from repertory.supervisor.queue import QueuedRun
from repertory.supervisor.quotas import Quotas, check_bounds, check_client
from repertory.supervisor.relay import RemoteRun
from repertory.supervisor.run_handle import Run
from repertory.supervisor.runtime import Runtime
from repertory.views.policies import check_policies

if TYPE_CHECKING:
    from repertory.machines import Machine, Machines


class Supervisor:
    """Runs agents in this process. Made by ``open_supervisor``."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    @property
    def machine(self) -> str:
        """Its name among the machines that share its journal; "" where it has the journal alone."""
        return "" if self._machines is None else self._machines.name

    @property
    def _machines(self) -> Machines | None:
        return self._runtime.shared.machines

    @property
    def journal(self) -> Journal:
        """The durable record of all runs, to read."""
        return self._runtime.shared.journal

    async def spawn(
        self,
        agent: Agent[ResultT],
        task: object,
        *,
        agent_ref: str = "",
        options: Json | None = None,
        results: ResultPolicy | None = None,
        payload: Any = None,
        context: Any = None,
        run_id: str | None = None,
        request: str = "",
        priority: int = 0,
        client: str = "",
        labels: Sequence[str] = (),
        on_lifecycle: Callable[[MessageEvent], object] | None = None,
    ) -> Run[ResultT]:
        """Start a run, or queue it where there is no room. Returns once it is durable: a crash does not lose it then.

        With a ``run_id`` it is safe to repeat, in this process or after a restart, also side by side: there is one
        run of this id, and every call gives it. One that a crash interrupted goes on, one that has ended stays as it
        is; what else is said of it counts the first time. A cancelled call has left a run that goes on (``run`` finds
        it), or nothing; see ``docs/semantics.md``.

        Args:
            agent: What runs.
            task: What it is asked to do; the model sees it verbatim in every request. A text, or where the agent has
                ``input``, a value of that type (also as what JSON has of it, or as JSON text).
            agent_ref: What ``load_agent`` finds the agent by in another process, so that ``resume`` and ``repertory
                resume`` need nobody to hand it in; "" where only this code knows it.
            options: Kept with the run and handed to a function that ``agent_ref`` names.
            results: Overrides, for this run, of how tool results are treated; stronger than what the agent and
                its tools say.
            payload: The first value of its payload, of the type that the agent names, or what JSON has for one; None
                for the defaults of that type.
            context: Anything of the application's, which its tools and those of its sub-agents find in
                ``ToolContext.context``. It is neither recorded nor shown to a model; ``resume`` takes it again.
            run_id: The id to give it: a letter or digit, then letters, digits, ``_`` and ``-``, at most 100 in all,
                as it names files and the runs below it. None makes one.
            request: With a ``run_id``, what tells a repeated call from another one under the same id, such as a digest
                of all that a client asked for; "" compares the task and the agent's name alone.
            priority: How urgent it is where runs wait, from -100 to 100: higher begins first, and five minutes of
                waiting weigh as much as one level.
            client: Who asks for it, for ``Quotas.clients``; "" for nobody in particular.
            labels: What a machine must offer to run it, where several share a journal, besides the agent's
                ``placement``.
            on_lifecycle: Called with what becomes of each message of this run, besides the agent's own listener;
                see ``Agent``. It is not kept: a run that another process resumes has only its agent's.

        Raises:
            ConfigurationError: The task is empty or does not fit the agent's ``input``, the agent's model cannot be
                used, or policies contradict themselves: they name a tool or a compactor that there is none of, or an
                expiration without a mode; or the id is malformed.
            PayloadInvalid: The payload does not fit its type, or the agent names none.
            RunExists: There is a run with this id and another task, agent or ``request``.
            ContextMissing: The run with this id goes on, and was begun with a context.
            QueueFull: It would have to wait, and its client has as many runs in the queue as it may.
            RunError: The supervisor is closed.
            ModelAuthenticationError: It is new, and there is no key for its model, or for one of its team.
        """
        self._runtime.runs.check_open()
        check_agent(agent)
        check_listener(on_lifecycle)
        check_policies(agent, results)
        check_rules(agent, self._runtime.shared.approvals)
        check_payloads(agent)
        check_number("priority", priority, int, least=-100, most=100)
        check_client(client)
        check_labels("labels", labels)
        asked = read_task(agent, task)
        check_prices(agent, self._runtime.shared.models)
        if run_id is not None:
            check_run_id(run_id)
        runtime = self._runtime
        started = RunStarted(
            run_id=run_id or new_id("run"),
            agent=agent.name,
            task=asked,
            at=runtime.shared.clock(),
            agent_digest=agent.digest,
            agent_ref=agent_ref,
            options={} if options is None else options,
            results=msgspec.to_builtins(results) if results is not None else {},
            has_context=context is not None,
            request=request,
            priority=priority,
            client=client,
            labels=tuple(dict.fromkeys((*labels, *agent.placement))),
        )
        check_fields("spawn", started)
        started = self.journal.redact(started)  # as it will be read back, to tell whether it is the same run
        async with runtime.runs.alone_with(started.run_id):
            if run_id is None:
                live = await runtime.begin(started, agent, payload=payload, context=context)
            else:
                live = await runtime.ensure(started, agent, ended=FINAL_STATES, payload=payload, context=context)
            if on_lifecycle is not None and on_lifecycle not in live.listeners:
                live.listeners.append(on_lifecycle)
        return await self._durable(live)

    def run(self, run_id: str) -> Run[Any]:
        """A run that is under way in this process, a sub-agent's too, by its whole id.

        Raises:
            RunNotFound: There is none; ``resume`` takes up one that is in the journal only.
        """
        check_text("a run_id", run_id)
        live = self._runtime.runs.find(run_id)
        if live is None:
            raise RunNotFound(
                f"no run {show(run_id)} is under way in this process; supervisor.resume(run_id) takes one up"
            )
        return Run(live, self._runtime)

    async def remote(self, run_id: str) -> RemoteRun | None:
        """A run that another machine owns, or that waits for one, where several supervisors share the journal.

        Args:
            run_id: The run, or an unambiguous beginning of its id.

        Returns:
            The run; None for one of this process, or that has ended, or that nobody runs.

        Raises:
            RunNotFound: There is no such run.
        """
        check_text("a run_id", run_id)
        runtime, commands = self._runtime, self._runtime.commands
        run_id = (await self.journal.read_run(run_id)).started.run_id
        if commands is None or runtime.runs.find(run_id) is not None:
            return None
        owner = await commands.machines.owner_of(unit_of(run_id))
        if owner is None or owner == commands.machines.machine_id:
            return None
        return RemoteRun(run_id, self.journal, commands)

    async def elsewhere(self) -> dict[str, str]:
        """The roots that go on but not in this process, by id, and the names of the machines that own them.

        "" stands for one that waits for any machine. Empty where the journal is this process's alone.
        """
        return {} if self._machines is None else await self._machines.owned_elsewhere()

    @overload
    async def resume(self, run_id: str, *, agent: Agent[ResultT], context: Any = None) -> Run[ResultT]: ...

    @overload
    async def resume(self, run_id: str, *, agent: None = None, context: Any = None) -> Run[Any]: ...

    async def resume(self, run_id: str, *, agent: Agent[Any] | None = None, context: Any = None) -> Run[Any]:
        """Go on with a run that another process began, or that failed or was stopped.

        What it had delegated goes on with it, also what was stopped together with it. A tool call that was under way
        when the process died runs again only if its effect allows that; see ``docs/durability.md``.

        Args:
            run_id: The run, or an unambiguous beginning of its id. A sub-agent's run is resumed through its root.
            agent: The definition to go on with; None imports the one that was named when it was spawned. Where it is
                another than the run was begun with, ``RunResumed.agent_changed`` says so.
            context: As for ``spawn``; a run that was given one needs one to go on.

        Returns:
            The run. One that is done already stays so and gives its result at once.

        Raises:
            RunNotFound: There is no such run.
            RunError: It is under way in this process, or a sub-agent's; or the supervisor is closed.
            ConfigurationError: No agent was handed in and none was named, or its policies contradict themselves.
            ContextMissing: It goes on, was given a context when it was spawned, and is given none now.
            PayloadInvalid: Its payload does not fit the type that the agent names now.
            QueueFull: As ``spawn``; of a run that failed or was stopped, as any other has its place.
        """
        self._runtime.runs.check_open()
        check_text("a run_id", run_id)
        if agent is not None:
            check_agent(agent)
        row = await self.journal.read_run(run_id)
        run_id = row.started.run_id
        async with AsyncExitStack() as entering:
            # Where several share the journal, it has its place in the queue of all machines.
            if row.state in ("failed", "stopped") and row.started.parent_id is None and self._machines is None:
                await self._runtime.queue.look()
                await entering.enter_async_context(self._runtime.queue.entering(row.started))
            async with self._runtime.runs.alone_with(run_id):
                live = await self._resume(await self.journal.read_run(run_id), agent, context)
        return await self._durable(live)

    async def _resume(self, row: RunRow, agent: Agent[Any] | None, context: Any) -> LiveRun:
        runtime, started = self._runtime, row.started
        if started.parent_id is not None:
            raise RunError(f"run {started.run_id} belongs to {started.parent_id}; resume that one")
        if runtime.runs.find(started.run_id) is not None:
            raise RunError(f"run {started.run_id} is under way already; supervisor.run(run_id) gives it")
        agent = agent_of(started, agent)
        if row.state != "done":
            runtime.check(agent, started)
        return await runtime.take_up(row, agent, ended=("done",), context=context)

    async def retry(self, run_id: str, *, agent: Agent[Any] | None = None, context: Any = None) -> Run[Any]:
        """Go on with a run that failed or was stopped, from where it ended: ``resume`` for nothing else.

        Its limits count on, so one that reached a limit fails with it again unless ``agent`` has another.

        Raises:
            RunError: It has not ended, is done, or is a sub-agent's.
            QueueFull: As ``spawn``.
            RunNotFound, ConfigurationError, ContextMissing, PayloadInvalid: As ``resume``.
        """
        check_text("a run_id", run_id)
        row = await self.journal.read_run(run_id)
        if row.state not in ("failed", "stopped"):
            what = "is done; fork it, or say something to it" if row.state == "done" else "has not ended"
            raise RunError(f"run {row.started.run_id} {what}; only what failed or was stopped can be tried again")
        return await self.resume(row.started.run_id, agent=agent, context=context)

    async def fork(
        self,
        run_id: str,
        *,
        iteration: int | None = None,
        text: str | None = None,
        new_id: str | None = None,
        agent: Agent[Any] | None = None,
        context: Any = None,
    ) -> Run[Any]:
        """Start a run that begins as another did up to an iteration, and goes on by itself. The other is not touched.

        The two share nothing that either could change: the record, the payload and the stored contents of the tree are
        copied, memory is a snapshot as of then. What the other spent is not counted again: the figures of the new run
        begin at zero, and so do its limits on money, tokens, time and tool calls; iterations count on. Sub-agents of
        the other do not come along, only what they reported. A cancelled call goes on to its end, or has not begun.

        Args:
            run_id: The other, or an unambiguous beginning of its id; a root, in any state.
            iteration: The last iteration that is the same, 0 for the task alone; None for the last that is whole.
            text: What to say to the new run; None for nothing, so that the model is asked again as it was.
            new_id: The id of the new run, which makes the call safe to repeat, as in ``spawn``. None makes one.
            agent: As for ``resume``.
            context: As for ``spawn``.

        Raises:
            RunNotFound: There is no such run.
            RunError: It is a sub-agent's, or it has no such iteration that is whole, or another machine runs it.
            RunExists: There is a run with the new id, and it is no such fork.
            QueueFull: As ``spawn``.
            ConfigurationError, ContextMissing, PayloadInvalid: As ``resume``.
        """
        wanted = Fork(iteration=iteration, text=text, new_id=new_id)
        return await self._durable(await fork(self._runtime, run_id, wanted, agent=agent, context=context))

    async def rewind(
        self,
        run_id: str,
        iteration: int,
        *,
        text: str | None = None,
        new_id: str | None = None,
        agent: Agent[Any] | None = None,
        context: Any = None,
    ) -> Run[Any]:
        """End a run, and go on from an earlier iteration of it in its place. Nothing is deleted.

        That is a fork whose origin ends, in one transaction: what is under way of it is cancelled, and its record
        keeps what came after the iteration, and says which run took its place (``RunForked``). Its limits do not count
        on in the new run; else as ``fork``.
        """
        wanted = Fork(iteration=iteration, text=text, new_id=new_id, rewound=True)
        return await self._durable(await fork(self._runtime, run_id, wanted, agent=agent, context=context))

    async def remove(self, run_id: str) -> None:
        """Take a run that has ended, and all below it, out of the journal, for good.

        What other trees have copies of stays theirs, such as contents that were shared with them, and so does the
        memory that a fork sees. It is durable when the call returns. A kill in between leaves the run gone from every
        list; the next process takes the rest. A cancelled call goes on to its end, or has not begun.

        Args:
            run_id: The run, by its whole id, as this cannot be taken back. The id cannot be used again.

        Raises:
            RunNotFound: There is no such run.
            RunError: It has not ended, or it stands below another run.
        """
        check_text("a run_id", run_id)
        await remove(self._runtime, run_id)

    async def runs(self, *, states: Sequence[RunState] | None = None) -> list[RunRow]:
        """Every run in the journal, oldest first; None means in any state.

        Raises:
            ConfigurationError: ``states`` is no list of states.
        """
        if states is not None:
            check_type("states", states, list | tuple, "a list of states, or None for all")
            for state in states:
                check_choice("states", state, RunState)
        return await self.journal.read_runs(states=states)

    async def queue(self) -> list[QueuedRun]:
        """The runs that wait for room, in the order in which they begin, each with what it waits for."""
        return await self._runtime.queue.list()

    def change_bounds(self, *, max_runs: int | None, quotas: Quotas | None) -> None:
        """Let more or fewer runs be under way from now on; as for ``open_supervisor``. What is under way goes on.

        Raises:
            ConfigurationError: ``max_runs`` is no whole number above 0, or ``quotas`` are none.
        """
        check_bounds(max_runs, quotas)
        self._runtime.queue.bound(max_runs, quotas or Quotas())

    async def share_content(self, content_id: str, run_id: str) -> None:
        """Let a run of another tree, and all of its tree, read a stored content, under the same citation.

        It gets a copy of its own, which stays when the one that it was made of is cleaned up.

        Raises:
            ContentNotFound: There is no such content, or it was cleaned up.
            RunNotFound: There is no such run.
        """
        check_text("a content_id", content_id)
        check_text("a run_id", run_id)
        stored = await self.journal.read_content(content_id)
        if stored is None:
            raise ContentNotFound(f"there is no content {show(content_id)}; Journal.read_contents lists those of a run")
        if stored.length and not stored.body:
            raise ContentNotFound(f"content {content_id!r} ({stored.length:,} characters) was cleaned up and is gone")
        reader = root_of((await self.journal.read_run(run_id)).started.run_id)
        if reader != root_of(stored.run_id):
            await self.journal.write([msgspec.structs.replace(stored, run_id=reader)])

    async def clean(self, run_id: str) -> int:
        """Let go of everything that the content store holds of a run that has ended, and of those below it.

        That is also what is held nowhere else, and what is pinned. Its ledger stays as it is, and what that holds whole
        can be read by its citation still.

        Args:
            run_id: The run, by its whole id, as this cannot be taken back.

        Returns:
            How many contents were emptied.

        Raises:
            RunNotFound: There is no such run.
            RunError: It has not ended, or it stands below another run.
        """
        check_text("a run_id", run_id)
        if await self._runtime.runs.read_run(run_id) is None:
            raise RunNotFound(f"no run has exactly the id {show(run_id)}; what is removed is named in full")
        async with self._runtime.runs.alone_with(run_id):  # nobody resumes it meanwhile
            return len(await self._runtime.retention.clean_run(run_id))

    async def machines(self) -> list[Machine]:
        """The supervisors that share the journal, this one too, and those that were lost in the last day.

        Empty where the journal is this process's alone: a file, or in memory.
        """
        return [] if self._machines is None else await self._machines.known()

    @property
    def lease(self) -> float:
        """Seconds after which other machines may take over what this one has; 0 where it has its journal alone."""
        return 0.0 if self._machines is None else self._machines.lease.seconds

    async def hold_duties(self, names: Collection[str]) -> frozenset[str]:
        """Hold some duties as far as no other machine that lives does, and none but these.

        A duty is whatever one machine at a time is to do for all that share a journal. It is another's once this one
        was lost, and then nothing more that this one writes is kept; or once this one drains, or holds it no longer.
        Ask again now and then, to take over what others leave.

        Returns:
            Those of them that this machine holds now; all, where the journal is this process's alone.

        Raises:
            LeaseLost: Another machine has taken this one over.
        """
        if self._machines is None:
            return frozenset(names)
        from repertory.machines.duties import hold_duties  # here, as nothing of it is needed with one process

        return await hold_duties(self._machines, names)

    async def drain(self) -> None:
        """Take no more runs, and hand over those under way at their next boundary; others go on with them.

        What is started here from now on waits for another machine. The ``Run`` objects of this process show how their
        runs end elsewhere.

        Raises:
            ConfigurationError: The journal is this process's alone, so that nobody could go on.
        """
        if self._machines is None:
            raise ConfigurationError("only a supervisor that shares its journal with others, on PostgreSQL, can drain")
        await self._runtime.drain(self._machines)

    def going(self) -> int:
        """How many trees of runs are under way in this process; those that wait in a queue are not."""
        roots = (live for live in self._runtime.runs.under_way() if live.parent is None and not live.elsewhere)
        return sum(live.state != "queued" for live in roots)

    def waiting(self) -> list[WaitingCall]:
        """The tool calls of all runs of this process that wait for an approval or for their result, oldest first."""
        calls = [call for live in self._runtime.runs.under_way() for call in live.waits.list()]
        return sorted(calls, key=lambda call: call.since)

    def events(self) -> EventReader:
        """Watch all runs of this process, from the oldest event still in memory."""
        return self._runtime.shared.hub.reader()

    async def _durable(self, live: LiveRun) -> Run[Any]:
        if live.begun is not None:
            await live.begun.wait()
        return Run(live, self._runtime)
