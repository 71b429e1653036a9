"""``Supervisor``: the public object with which runs are started, found, resumed and ended."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import msgspec

from repertory._choices import check_choice, check_fields, check_labels, check_number, check_text, check_type, show
from repertory._counting import counted
from repertory._ids import new_id, root_of, unit_of
from repertory.agents.agent import Agent, AnyResultT, ResultT, check_agent, check_listener
from repertory.agents.loading import agent_of
from repertory.agents.tasks import check_run_id, read_task
from repertory.context import MessageEvent
from repertory.errors import ConfigurationError, ContentNotFound, RecordRefused, RunError, RunNotFound
from repertory.llm.messages import Json
from repertory.record.journal import Journal
from repertory.record.records import FINAL_STATES, RunRow, RunStarted, RunState
from repertory.runs.event_hub import EventReader
from repertory.runs.live import LiveRun
from repertory.runs.waiting_calls import WaitingCall
from repertory.shortening import ResultPolicy
from repertory.supervisor.forking import Fork, fork, remove
from repertory.supervisor.live_runs import check_root
from repertory.supervisor.queue import QueuedRun
from repertory.supervisor.quotas import Quotas, check_bounds, check_client
from repertory.supervisor.relay import RemoteRun
from repertory.supervisor.run_handle import Run
from repertory.supervisor.runtime import Runtime
from repertory.tools.media import Media, check_attachments
from repertory.views.policies import results_of

if TYPE_CHECKING:
    from repertory.machines import Machine, Machines


class Supervisor:
    """Runs agents in this process. Made by ``open_supervisor``."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def __repr__(self) -> str:
        return f"<Supervisor: {counted(len(self._runtime.runs.under_way()), 'run')} under way>"

    @property
    def machine(self) -> str:
        """Its name among the machines that share its journal; "" if the journal is not shared."""
        return "" if self._machines is None else self._machines.name

    @property
    def _machines(self) -> Machines | None:
        return self._runtime.shared.machines

    @property
    def journal(self) -> Journal:
        """The durable record of all runs, for reading."""
        return self._runtime.shared.journal

    async def spawn(
        self,
        agent: Agent[ResultT],
        task: object,
        *,
        agent_ref: str = "",
        options: Json | None = None,
        results: ResultPolicy | None = None,
        attachments: Sequence[Media] = (),
        payload: Any = None,
        context: Any = None,
        run_id: str | None = None,
        request: str = "",
        priority: int = 0,
        client: str = "",
        labels: Sequence[str] = (),
        on_lifecycle: Callable[[MessageEvent], object] | None = None,
    ) -> Run[ResultT]:
        """Start a run, or queue it if there is no room. Once this returns, the run is durable: a crash cannot lose it.

        With a ``run_id`` the call is safe to repeat: concurrently, later, or after a restart. There is only one run
        with this id, and every call returns it. A run that a crash interrupted is continued, one that is paused stays
        so, and one that has ended stays as it is; what is recorded with the run, and what is attached to its task,
        comes from the first call. A cancelled call has either started the run (``run`` finds it) or done nothing; see
        ``docs/semantics.md``.

        Args:
            agent: The agent to run.
            task: What it is asked to do; the model sees it verbatim in every request. A text or, if the agent has
                ``input``, a value of that type, its JSON representation, or JSON text.
            agent_ref: The reference with which ``load_agent`` finds the agent in another process, so that ``resume``
                and ``repertory resume`` do not need the agent itself; "" if only this code knows it.
            options: Recorded with the run, and passed to the function if ``agent_ref`` names one.
            results: How tool results are treated in this run; overrides what the agent and its tools say.
            attachments: Images and documents that are shown with the task, each made by ``media_block``.
            payload: The initial payload, a value of the agent's ``payload`` type or its JSON representation; None uses
                the defaults of that type.
            context: Any object of the application. Tools of this agent and of its sub-agents find it in
                ``ToolContext.context``. It is neither recorded nor shown to a model; ``resume`` takes it again.
            run_id: The id of the run: a letter or digit, then letters, digits, ``_`` and ``-``, at most 100 characters.
                File names and the ids of runs below are made from it. None generates one.
            request: With a ``run_id``, distinguishes a repeated call from a different request under the same id, such
                as a digest of all that a client asked for; "" compares only the task and the agent's name.
            priority: The run's urgency in the queue, from -100 to 100. Higher begins first; five minutes of waiting
                count as much as one level.
            client: Who asks for the run, for ``Quotas.clients``; "" for nobody in particular.
            labels: Labels that a machine must offer to run it, in addition to the agent's ``placement``, if several
                machines share a journal.
            on_lifecycle: Called for what happens to each message of this run, in addition to the agent's own listener;
                see ``Agent``. It is not recorded: a run that is resumed keeps it only if this process still holds the
                ``Run``.

        Raises:
            ConfigurationError: The task is empty or does not fit the agent's ``input``; the agent's model cannot be
                used; a policy names a tool or a compactor that does not exist, or an expiration without a mode; an
                attachment could not be shown; or the id is malformed.
            PayloadInvalid: The payload does not fit its type, or the agent declares none.
            RunExists: There is a run with this id and another task, agent or ``request``.
            ContextMissing: The existing run with this id would continue, and was started with a context.
            QueueFull: The run would have to wait, and its client has as many runs in the queue as it may.
            RunElsewhere: The run with this id is under way on another machine.
            RunError: The supervisor is closed. Or the run with this id is paused on record and, where several machines
                share a journal, there is no room to hold it here.
            ModelAuthenticationError: The run is new, and there is no key for its model or for one of its team.
        """
        check_agent(agent)
        check_listener(on_lifecycle)
        runtime = self._runtime
        runtime.check(agent, results)
        check_number("priority", priority, int, least=-100, most=100)
        check_client(client)
        check_labels("labels", labels)
        asked, attached = read_task(agent, task), check_attachments(attachments, to="a task")
        started = RunStarted(
            run_id=new_id("run") if run_id is None else check_run_id(run_id),
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
        with runtime.runs.beginning():
            async with runtime.runs.lock(started.run_id):
                if run_id is None:
                    live = await runtime.begin(started, agent, attachments=attached, payload=payload, context=context)
                else:
                    new: dict[str, Any] = {"attachments": attached, "payload": payload, "context": context}
                    live = await runtime.ensure(started, agent, ended=FINAL_STATES, **new)
                if on_lifecycle is not None:
                    live.listeners.add(on_lifecycle)
        return await self._durable(live)

    def run(self, run_id: str) -> Run[Any]:
        """A run that is under way in this process, including a sub-agent's, by its full id.

        Raises:
            RunNotFound: There is none, or it has just ended. Use ``resume`` for a run that is only in the journal, and
                ``spawn`` with the same ``run_id`` for one that may have ended.
        """
        check_text("a run_id", run_id)
        live = self._runtime.runs.find(run_id)
        if live is None:
            raise RunNotFound(
                f"no run {show(run_id)} is under way in this process; supervisor.resume(run_id) takes one up"
            )
        return Run(live, self._runtime)

    async def remote(self, run_id: str) -> RemoteRun | None:
        """A run that another machine owns, or that waits for a machine, if several supervisors share the journal.

        Args:
            run_id: The run's id.

        Returns:
            The run; None if it belongs to this process, has ended, or is not being run by anyone. The last is true of
            a paused run whose machine has ended: ``resume`` continues it here.

        Raises:
            RunNotFound: There is no such run.
        """
        check_text("a run_id", run_id)
        runtime, commands = self._runtime, self._runtime.commands
        await self.journal.read_run(run_id)
        if commands is None or runtime.runs.find(run_id) is not None:
            return None
        owner = await commands.machines.owner_of(unit_of(run_id))
        if owner is None or owner == commands.machines.machine_id:
            return None
        return RemoteRun(run_id, self.journal, commands)

    async def elsewhere(self) -> dict[str, str]:
        """The ids of root runs that are active outside this process, and the names of the machines that own them.

        The name is "" for a run that waits for any machine. Empty if the journal is not shared.
        """
        return {} if self._machines is None else await self._machines.owned_elsewhere()

    async def resume(
        self, run_id: str, *, agent: Agent[AnyResultT] | None = None, context: Any = None
    ) -> Run[AnyResultT]:
        """Continue a run that another process began, or that failed or was stopped; one that is ending is waited for.

        A run that is under way in this process is returned as it stands. Otherwise its sub-agents continue too,
        including those that were stopped together with it. A tool call that was under way when the process died runs
        again only if its effect allows that; see ``docs/durability.md``.

        Args:
            run_id: The run's id. A sub-agent's run is resumed through its root.
            agent: The definition to continue with; None imports the ``agent_ref`` given to ``spawn``. If the definition
                differs from the one that the run began with, ``RunResumed.agent_changed`` says so.
            context: As for ``spawn``; required if the run was given one.

        Returns:
            The run. One that is done stays done and returns its result at once.

        Raises:
            RunNotFound: There is no such run.
            RunElsewhere: The run is under way on another machine.
            RunError: It is under way with another definition, or is a sub-agent's; or the supervisor is closed.
            ConfigurationError: No agent was given and the record names none, or its policies are contradictory.
            ContextMissing: The run would continue, was spawned with a context, and is given none now.
            PayloadInvalid: Its payload does not fit the type that the agent declares now.
            QueueFull: As ``spawn``, for a run that failed or was stopped; any other still has its place in the queue.
        """
        check_text("a run_id", run_id)
        if agent is not None:
            check_agent(agent)
        async with AsyncExitStack() as entering:
            entering.enter_context(self._runtime.runs.beginning())
            await self._runtime.runs.wait_ending(run_id)
            row = await self.journal.read_run(run_id)
            # In a shared journal it has its place in the queue of all machines.
            if row.state in ("failed", "stopped") and row.started.parent_id is None and self._machines is None:
                await self._runtime.queue.refresh()
                await entering.enter_async_context(self._runtime.queue.entering(row.started))
            async with self._runtime.runs.lock(run_id):
                live = await self._resume(await self.journal.read_run(run_id), agent, context)
        return await self._durable(live)

    async def _resume(self, row: RunRow, agent: Agent[Any] | None, context: Any) -> LiveRun:
        runtime, started = self._runtime, row.started
        check_root(started, "resume")
        if (live := runtime.runs.find(started.run_id)) is not None:
            if agent is not None and agent.digest != live.agent.digest:
                raise RunError(
                    f"run {started.run_id} is under way with another definition; wait for its end, or stop it"
                )
            return live
        agent = agent_of(started, agent)
        if row.state != "done":
            runtime.check(agent, results_of(started))
        return await runtime.continue_run(row, agent, ended=("done",), context=context)

    async def retry(
        self, run_id: str, *, agent: Agent[AnyResultT] | None = None, context: Any = None
    ) -> Run[AnyResultT]:
        """Continue a run that failed or was stopped from where it ended: ``resume``, but only for such runs.

        Its limits keep counting, so a run that reached a limit fails with it again unless ``agent`` has a higher one.

        Raises:
            RunError: The run has not ended, is done, or is a sub-agent's.
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
        agent: Agent[AnyResultT] | None = None,
        context: Any = None,
    ) -> Run[AnyResultT]:
        """Start a new run that copies another one up to an iteration and continues from there. The other is unchanged.

        The two share nothing that either could change: the record, the payload and the tree's stored contents are
        copied, and memory is a snapshot as of that iteration. (An iteration that the run was itself forked with has the
        memory of when that was, if its own original was removed.) What the original spent is not counted again: the new
        run's figures begin at zero, and so do its limits on money, tokens, time and tool calls; iterations keep
        counting. Sub-agents are not copied, only their reports. A cancelled call still completes, or has not begun.

        Args:
            run_id: The id of the original run; a root, in any state.
            iteration: The last iteration to copy, 0 for the task alone; None for the last complete one.
            text: A message to the new run; None sends none. Then the model is asked again, unless the last iteration to
                copy is its answer.
            new_id: The id of the new run, which makes the call safe to repeat, as in ``spawn``. None generates one.
            agent: As for ``resume``.
            context: As for ``spawn``.

        Raises:
            RunNotFound: There is no such run.
            RunError: The run is a sub-agent's, has no such complete iteration, or is run by another machine.
            RunExists: There is a run with the new id that is not this fork.
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
        agent: Agent[AnyResultT] | None = None,
        context: Any = None,
    ) -> Run[AnyResultT]:
        """End a run, and continue in a new run from one of its earlier iterations. Nothing is deleted.

        This is a fork that also ends the original. What the original has under way is cancelled; its record keeps what
        came after the iteration, and names the run that took its place (``RunForked``) in one transaction with the new
        run. A crash before that leaves the original stopped, if it was under way, and no new run. What the original
        used of its limits does not count in the new run; otherwise as ``fork``.
        """
        wanted = Fork(iteration=iteration, text=text, new_id=new_id, rewound=True)
        return await self._durable(await fork(self._runtime, run_id, wanted, agent=agent, context=context))

    async def remove(self, run_id: str) -> None:
        """Delete a run that has ended or was interrupted, and all runs below it, from the journal for good.

        Other trees keep their copies, such as contents that were shared with them, and a fork keeps the memory that it
        sees. The removal is durable when the call returns. If the process is killed midway, the run is gone from every
        list and the next process deletes the rest. A cancelled call still completes, or has not begun.

        Args:
            run_id: The run's full id, as this cannot be undone. The id cannot be used again.

        Raises:
            RunNotFound: There is no such run.
            RunError: The run is under way or waits for a machine, or is below another run.
        """
        check_text("a run_id", run_id)
        await remove(self._runtime, run_id)

    async def runs(self, *, states: Sequence[RunState] | None = None) -> list[RunRow]:
        """All runs in the journal that are in one of the states, oldest first; None means any state.

        Raises:
            ConfigurationError: ``states`` is not a list of states.
        """
        if states is not None:
            check_type("states", states, list | tuple, "a list of states, or None for all")
            for state in states:
                check_choice("states", state, RunState)
        return await self.journal.read_runs(states=states)

    async def queue(self) -> list[QueuedRun]:
        """The runs that wait for room, in the order in which they will begin, each with what it waits for."""
        return await self._runtime.queue.list()

    def change_bounds(self, *, max_runs: int | None, quotas: Quotas | None) -> None:
        """Change ``max_runs`` and ``quotas``; see ``open_supervisor``. Runs that are under way continue.

        Raises:
            ConfigurationError: ``max_runs`` is not a whole number above 0, or ``quotas`` is not a ``Quotas``.
        """
        check_bounds(max_runs, quotas)
        self._runtime.shared.home.check()
        self._runtime.queue.bound(max_runs, quotas or Quotas())

    async def share_content(self, content_id: str, run_id: str) -> None:
        """Let another run, and all of its tree, read a stored content under the same citation.

        That tree gets its own copy, which stays when the original is cleaned up.

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
        """Delete everything that the content store holds of a run that has ended, and of the runs below it.

        That includes pinned contents and contents that are held nowhere else. The ledger stays as it is, and contents
        that it holds whole can still be read by their citations.

        Args:
            run_id: The run's full id, as this cannot be undone.

        Returns:
            How many contents were emptied.

        Raises:
            RunNotFound: There is no such run.
            RunError: The run has not ended, or is below another run.
        """
        check_text("a run_id", run_id)
        async with self._runtime.runs.lock(run_id):  # nobody resumes it meanwhile
            return await self._runtime.retention.clean_run(run_id)

    async def machines(self) -> list[Machine]:
        """The supervisors that share the journal, including this one, and those that were lost in the last day.

        Empty if the journal is not shared: a file, or in memory.
        """
        return [] if self._machines is None else await self._machines.known()

    @property
    def lease(self) -> float:
        """Seconds of silence after which other machines may take over this one's runs; 0 without a shared journal."""
        return 0.0 if self._machines is None else self._machines.lease.seconds

    async def hold_duties(self, names: Collection[str]) -> frozenset[str]:
        """Hold those of some duties that no other live machine holds, and give up all others.

        A duty is a job that only one machine at a time does for all that share a journal. Another machine can take it
        once this one is lost (nothing that this one writes is kept from then on), drains, or gives it up. Call this
        again from time to time to take over duties that others leave.

        Returns:
            The duties that this machine holds now; all of them if the journal is not shared.

        Raises:
            LeaseLost: Another machine has taken this one over.
        """
        return frozenset(names) if self._machines is None else await self._machines.hold_duties(names)

    async def drain(self) -> None:
        """Take no more runs, and hand over those under way at their next boundary, for other machines to continue.

        Runs that are started here from now on wait for another machine. The ``Run`` objects of this process show how
        their runs end elsewhere.

        Raises:
            ConfigurationError: The journal is not shared, so no other machine could continue the runs.
        """
        if self._machines is None:
            raise ConfigurationError("only a supervisor that shares its journal with others, on PostgreSQL, can drain")
        self._runtime.shared.home.check()
        await self._runtime.drain(self._machines)

    def going(self) -> int:
        """How many trees of runs are under way in this process, without those that wait in the queue."""
        roots = (live for live in self._runtime.runs.under_way() if live.parent is None and not live.elsewhere)
        return sum(live.state != "queued" for live in roots)

    def waiting(self) -> list[WaitingCall]:
        """The tool calls, in all runs of this process, that wait for an approval or for their result, oldest first."""
        calls = [call for live in self._runtime.runs.under_way() for call in live.waits.list()]
        return sorted(calls, key=lambda call: call.since)

    def events(self) -> EventReader:
        """Watch all runs of this process, from the oldest event still in memory."""
        self._runtime.shared.home.check()
        return self._runtime.shared.hub.reader()

    async def _durable(self, live: LiveRun) -> Run[Any]:
        claims = self._runtime.claims
        try:
            if live.begun is not None:
                await live.begun.wait()
        except RecordRefused as error:
            if claims is not None and not live.resumed:
                if live.elsewhere:
                    claims.drop(live)
                await claims.explain_refused(live.run_id, error)
            raise
        return Run(live, self._runtime)
