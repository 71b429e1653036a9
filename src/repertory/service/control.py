"""Operations on the runs of one supervisor, by name and id, as callers outside of the process need them."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import anyio
import msgspec

from repertory._cancelling import cancel_after
from repertory._ids import new_id as _new_id
from repertory._ids import root_of, unit_of
from repertory._json_text import canonical_json
from repertory._repeated_event import RepeatedEvent
from repertory._version import __version__
from repertory.agents.loading import agent_of
from repertory.errors import (
    ConfigurationError,
    JournalError,
    MachineSilent,
    RepertoryError,
    RunError,
    RunNotFound,
    ScopeNotFound,
)
from repertory.llm.messages import encode_block
from repertory.loop.outside import was_answered
from repertory.record.records import FINAL_STATES, RunRow
from repertory.record.run_lists import RootFilter
from repertory.runs.events import StateChanged
from repertory.runs.log import log
from repertory.runs.streaming import StreamReader
from repertory.service.deliveries import Deliveries
from repertory.service.duties import Duties
from repertory.service.feed import Feed
from repertory.service.health import Monitor
from repertory.service.offers import Offers
from repertory.service.run_reader import UNSETTLED, RunReader
from repertory.service.schedules import Schedule, Scheduler
from repertory.service.views import RunDetail, RunEnded, ServiceView
from repertory.supervisor import Run, Supervisor
from repertory.supervisor.relay import RemoteRun, carry_out
from repertory.tools.media import Media

_POLL: Final = 1.0  # seconds between two looks at what other machines do


class Control:
    """Starts, finds and steers runs.

    Args:
        supervisor: Runs them.
        offers: The agents that may be started; callers use the agent's own name. None for none.
        context: The object that tools of its runs find in ``ToolContext.context``; None for none.
    """

    def __init__(self, supervisor: Supervisor, offers: Offers | None = None, *, context: Any = None) -> None:
        self.supervisor = supervisor
        self.journal = supervisor.journal
        self.feed = Feed(supervisor.journal)
        self.runs = RunReader(supervisor.journal, self.is_live, self.machine_of)
        self.monitor = Monitor(supervisor.journal)
        self.duties = Duties(supervisor)
        self.deliveries = Deliveries(supervisor.journal, self.duties)
        self.offers = offers or Offers()
        self._context = context
        self.scheduler = Scheduler(self.journal, self._start_scheduled, clock=time.time, duties=self.duties)
        self.on_reload: Callable[[], Sequence[str]] | None = None
        self.has_resumed = True  # False while the runs that an earlier process left are being resumed
        self._started_at = time.time()
        self._starting_ids: set[str] = set()
        self._remote_runs: dict[str, str] = {}  # runs of other machines, at the last look
        self._run_started = RepeatedEvent()  # set when a run begins or continues
        self._resuming = anyio.Lock()  # two at once would be two loops on one record

    async def run(self) -> None:
        """Do the background work, until ``close``."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.monitor.run)
            tasks.start_soon(self._forward_events)
            if self.journal.is_shared:
                tasks.start_soon(self._poll_machines)
            tasks.start_soon(self.scheduler.run)
            tasks.start_soon(self.deliveries.run)
            await self.feed.run()
            tasks.cancel_scope.cancel()

    async def _forward_events(self) -> None:
        """Let the feed and the webhooks look into the journal when something happens here."""
        async for event in self.supervisor.events():
            self.feed.notify()
            if isinstance(event, StateChanged):
                self.deliveries.notify()

    async def _poll_machines(self) -> None:
        """Look at other machines: which runs they own, what they have written, and which duties they leave."""
        while True:
            try:
                self._remote_runs = await self.supervisor.elsewhere()
                await self.duties.look()
            except JournalError as error:  # the server is away; /healthz says so
                log(logging.WARNING, "machines.not.seen", exc_info=error)
            self.feed.notify()
            self.deliveries.notify()
            self._run_started.set()
            await anyio.sleep(_POLL)

    def close(self) -> None:
        """End ``run``, and each follower once it has received what there is."""
        self.feed.close()

    # --- reading ------------------------------------------------------------------------------------------

    async def describe(self) -> ServiceView:
        """Describe the service."""
        return ServiceView(
            version=__version__,
            database=str(self.journal.place),
            pid=os.getpid(),
            started_at=self._started_at,
            seq=await self.journal.last_event(),
            resuming=self.journal.is_shared or not self.has_resumed,
            going=self.supervisor.going(),
        )

    def reload(self) -> list[str]:
        """Read the company file again; returns lines about changes that need a restart.

        Raises:
            ConfigurationError: The file is wrong, and nothing was changed; or there is no file.
        """
        if self.on_reload is None:
            raise ConfigurationError(
                "this service has no company file to read again; it was not started by repertory up"
            )
        return list(self.on_reload())

    async def read_run(self, run_id: str) -> RunDetail:
        """One run, by its id or an unambiguous beginning of it. Raises ``RunNotFound``."""
        detail = await self.runs.read_run(run_id)
        if detail.run.state != "queued":
            return detail
        place = next((each for each in await self.supervisor.queue() if each.run_id == detail.run.id), None)
        return msgspec.structs.replace(detail, queue=place)

    async def wait_ended(
        self, run_id: str, seconds: float, *, gone: Callable[[], Awaitable[object]] | None = None
    ) -> RunEnded:
        """Wait at most ``seconds`` until a run has ended; returns its state then. Raises ``RunNotFound``.

        An interrupted run is waited for only while this service may still resume it by itself. ``gone`` returns once
        the client has disconnected, which ends the wait, too; None if that cannot be known.
        """
        run_id = await self.find_id(run_id)
        with anyio.move_on_after(seconds):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(cancel_after, self.feed.ending.wait, tasks.cancel_scope)
                if gone is not None:
                    tasks.start_soon(cancel_after, gone, tasks.cancel_scope)
                with suppress(RepertoryError):  # the read below raises them again, outside of a group
                    await self._wait_ended(run_id)
                tasks.cancel_scope.cancel()
        row, view = await self.runs.read_row(run_id)
        return RunEnded(id=run_id, state=view.state, result=row.result, error=row.error, updated_at=row.updated_at)

    async def _wait_ended(self, run_id: str) -> None:
        """Wait until a run has ended, or no process runs it."""
        while True:
            seen = self._run_started.count  # before looking, so that nothing is missed
            run = self.find(run_id)
            if run is not None:  # also one that has ended on record: then it may be tried again or removed
                if await run.wait_ended() not in FINAL_STATES:
                    return  # the supervisor is closing
                continue
            if (await self.journal.read_run(run_id)).state in FINAL_STATES:
                return
            if self.has_resumed and not self.is_live(root_of(run_id)):
                self._remote_runs = await self.supervisor.elsewhere()
                if not self.is_live(root_of(run_id)):
                    return
            with anyio.move_on_after(_POLL):
                await self._run_started.wait(seen)

    async def newest(self) -> str:
        """The id of the root run that was started last. Raises ``RunNotFound``."""
        roots, _ = await self.journal.read_roots(RootFilter(), 1)
        if not roots:
            raise RunNotFound("no run is on record yet; start one")
        return roots[-1]

    async def unfinished(self) -> list[RunRow]:
        """The root runs that have not ended according to the journal but that no process runs."""
        rows = await self.journal.read_runs(states=UNSETTLED)
        self._remote_runs = await self.supervisor.elsewhere()
        rows.sort(key=lambda row: row.state == "queued")  # last, since they had not begun
        return [row for row in rows if row.started.parent_id is None and not self.is_live(row.started.run_id)]

    async def find_id(self, run_id: str) -> str:
        """The whole id for an unambiguous beginning of it, as ``Journal.find_run``. Raises ``RunNotFound``."""
        return (await self.journal.find_run(run_id)).started.run_id

    async def scope_of(self, run_id: str) -> str:
        """The memory scope of a run, by an unambiguous beginning of its id.

        Raises:
            RunNotFound: There is no such run.
            ScopeNotFound: It has no memory.
        """
        started = (await self.journal.find_run(run_id)).started
        if not started.scope_id:
            raise ScopeNotFound(f"run {started.run_id} has no memory scope")
        return started.scope_id

    # --- changing -----------------------------------------------------------------------------------------

    async def start(
        self,
        agent: str,
        task: str,
        *,
        attachments: Sequence[Media] = (),
        root: str | None = None,
        payload: Any = None,
        run_id: str | None = None,
        key: str = "",
        priority: int | None = None,
        client: str = "",
    ) -> str:
        """Start a run; returns its id once it is durable.

        Args:
            agent: The agent's name, as ``offers`` lists it.
            task: What the run is asked to do.
            attachments: Images and documents that are shown with it.
            root: A folder inside the one that the agent reads, which confines the run; None for the whole of it.
            payload: The first value of its payload; None for the defaults.
            run_id: The run's id: only one run is started with it, however often this is called, also by the next
                process. None generates one.
            key: An idempotency key from which the id is derived; "" for none.
            priority: Its priority in the queue, see ``Supervisor.spawn``; None for the agent's own.
            client: The client that asks for the run, for quotas.

        Raises:
            ConfigurationError: There is no such agent, the folder is not allowed, or the task is empty.
            PayloadInvalid: The payload does not fit the agent's type.
            RunExists: A different run was started under this id or key.
            QueueFull: The run would have to wait, and its client's queue is full.
        """
        if key:
            run_id = f"run-{_digest(key)}"
        asked = [agent, task, root, payload, *map(encode_block, attachments)]
        request = "" if run_id is None else _digest(self.journal.redact(asked))
        offer = self.offers.find(agent, root)
        run_id = run_id or _new_id("run")
        with self._starting(run_id):
            await self.supervisor.spawn(
                offer.agent,
                task,
                attachments=attachments,
                agent_ref=offer.reference,
                options=offer.options,
                payload=payload,
                context=self._context,
                run_id=run_id,
                request=request,
                priority=offer.priority if priority is None else priority,
                client=client,
                labels=offer.labels,
            )
        return run_id

    async def _start_scheduled(self, schedule: Schedule, due: float) -> None:
        await self.start(
            schedule.agent,
            schedule.task_at(due),
            run_id=schedule.run_id(due),
            priority=schedule.priority,
            client=f"schedule:{schedule.name}",
        )

    async def send(
        self, run_id: str, text: str, *, attachments: Sequence[Media] = (), message_id: str | None = None
    ) -> None:
        """Send a message to a run; it is durable afterwards.

        A run that is done, failed, stopped or interrupted continues with it.

        Args:
            run_id: The run, or the beginning of its id.
            text: The message.
            attachments: Images and documents that are shown with it.
            message_id: Makes it safe to repeat, also in the next process; None generates one.

        Raises:
            RunError: No process runs it, and it belongs to another run.
            ConfigurationError: The journal does not say where its agent is defined, or it is no longer there.
        """
        run_id = await self.find_id(run_id)
        run = await self._under_way(run_id) or await self._continue(run_id)
        try:
            await run.send(text, attachments=attachments, message_id=message_id)
        except RunError as error:
            if not await _ended_elsewhere(run, error):
                raise
            run = await self._under_way(run_id) or await self._continue(run_id)
            await run.send(text, attachments=attachments, message_id=message_id)
        self.feed.notify()

    def stream(self, run_id: str) -> StreamReader | None:
        """What a run is saying, from the beginning of its turn; None if it is not under way in this process."""
        run = self.find(run_id)
        return None if run is None else run.stream(from_start=True)

    async def tell(self, run_id: str, verb: str, **body: Any) -> None:
        """Call a method of a run, such as ``stop``, also if another machine owns it.

        Answers to waiting calls are safe to repeat, also after the run has ended.

        Raises:
            RunError: The run is not under way, or the method raises it.
        """
        run_id = await self.find_id(run_id)
        run = await self._under_way(run_id)
        if run is None:
            if await was_answered(self.journal, run_id, verb, **body):
                return
            state = (await self.journal.read_run(run_id)).state
            if state == "done":
                raise RunError(f"run {run_id} is done, and not under way any more")
            raise RunError(f"run {run_id} is {state} and not under way in this process; resume it first")
        try:
            await carry_out(run, verb, body)
            if verb == "pause":
                await self.journal.write(())  # on record before it is acknowledged
                self.deliveries.notify()
        except RunError:  # it may have ended since it was found, at another machine before its turn came
            if not await was_answered(self.journal, run_id, verb, **body):
                raise
        self.feed.notify()

    async def resume(self, run_id: str) -> None:
        """Continue a run that is paused, was begun by an earlier process, failed or was stopped.

        One that is ending is waited for, and then continues.

        Raises:
            RunError: It is done, or belongs to another run.
            ConfigurationError: The journal does not say where its agent is defined, or it is no longer there.
        """
        run_id = await self.find_id(run_id)
        ending = self.find(run_id)
        if ending is not None and ending.is_ending:
            await ending.wait_ended()
        async with self._resuming:
            run = await self._under_way(run_id)
            if run is not None:
                try:
                    await carry_out(run, "resume", {})
                    await self.journal.write(())
                    self.deliveries.notify()
                    return
                except RunError as error:
                    if not await _ended_elsewhere(run, error):
                        raise
            row = await self.journal.read_run(run_id)
            if row.state == "done":
                raise RunError(f"run {run_id} is done; start another")
            with self._starting(run_id):
                await self.supervisor.resume(run_id, context=self._context)

    async def fork(
        self,
        run_id: str,
        iteration: int | None,
        *,
        text: str | None = None,
        new_id: str | None = None,
        rewind: bool = False,
    ) -> tuple[str, bool]:
        """Fork a run, or replace it if ``rewind`` is set. Raises the errors of ``Supervisor.fork``.

        Returns:
            The new run's id, once it is durable; and whether it is new: False if the same request was made before.
        """
        run_id, new = await self.find_id(run_id), new_id or _new_id("run")
        is_new = new_id is None or await self.journal.run_or_none(new_id) is None
        again: dict[str, Any] = {"text": text, "new_id": new, "context": self._context}
        with self._starting(new):
            if rewind and iteration is not None:
                await self.supervisor.rewind(run_id, iteration, **again)
            else:
                await self.supervisor.fork(run_id, iteration=iteration, **again)
        return new, is_new

    async def remove(self, run_id: str) -> None:
        """Remove a run from the journal, by its full id, and tell its followers.

        Raises the errors of ``Supervisor.remove``.
        """
        await self.supervisor.remove(run_id)
        self.feed.tell_removed(run_id)

    # --- runs of this process -----------------------------------------------------------------------------

    async def _under_way(self, run_id: str) -> Run[Any] | RemoteRun | None:
        """A run that is under way in this process or on another machine."""
        return self.find(run_id) or await self.supervisor.remote(run_id)

    async def _continue(self, run_id: str) -> Run[Any]:
        """Load a run that no process runs; one that was interrupted continues."""
        async with self._resuming:
            row = await self.journal.read_run(run_id)
            if (run := self.find(run_id)) is not None:  # another task was faster
                return run
            started = row.started
            if started.parent_id is not None:
                raise RunError(f"run {run_id} is not under way, and belongs to {started.parent_id}; say it to that one")
            if row.state == "paused":
                raise RunError(f"run {run_id} was paused and is not under way in this process; resume it first")
            agent = agent_of(started, None)
            with self._starting(run_id):
                return await self.supervisor.spawn(agent, started.task, context=self._context, run_id=run_id)

    @contextmanager
    def _starting(self, run_id: str) -> Generator[None]:
        """Treat a run as live while it is being started; then wake those who wait for it."""
        self._starting_ids.add(run_id)
        try:
            yield
        finally:
            self._starting_ids.discard(run_id)
            self._run_started.set()

    def find(self, run_id: str) -> Run[Any] | None:
        """A run that is under way in this process."""
        try:
            return self.supervisor.run(run_id)
        except RunNotFound:
            return None

    def is_live(self, root_id: str) -> bool:
        """Whether this process or another machine runs the tree of a root, or is about to."""
        return root_id in self._starting_ids or root_id in self._remote_runs or self.find(root_id) is not None

    def machine_of(self, run_id: str) -> str:
        """The name of the machine that runs a run; "" if none does, or there is only one process."""
        here = self.supervisor.machine if self.find(run_id) is not None else ""
        return here or self._remote_runs.get(unit_of(run_id), "")


async def _ended_elsewhere(run: Run[Any] | RemoteRun, error: RunError) -> bool:
    """Whether another machine refused something because the run had ended there before its turn came."""
    if isinstance(run, Run) or isinstance(error, MachineSilent):
        return False
    return await run.state() in FINAL_STATES


def _digest(value: object) -> str:
    return hashlib.blake2b(canonical_json(value), digest_size=12).hexdigest()
