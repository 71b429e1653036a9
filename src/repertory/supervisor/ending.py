"""How runs end: on record first, with those below them, and then for everybody who waits."""

from __future__ import annotations

import contextlib
import logging
from typing import Any

from repertory._ids import root_of, unit_of
from repertory.actors import ActorRef, StopReason
from repertory.errors import JournalError, MailboxFull
from repertory.loop.open_calls import close_calls
from repertory.memory.messages import ForgetTree
from repertory.record.records import FINAL_STATES, Record, RunState
from repertory.runs.live import LiveRun, RunEnd
from repertory.runs.log import log
from repertory.runs.shared import Shared
from repertory.supervisor.live_runs import LiveRuns
from repertory.supervisor.queue import Queue
from repertory.supervisor.recovery import end_left
from repertory.supervisor.retention import Retention


class Ends:
    """Ends the runs of this process, whatever became of their actors."""

    def __init__(self, shared: Shared, runs: LiveRuns, queue: Queue, retention: Retention) -> None:
        self._shared = shared
        self._journal = shared.journal
        self._runs = runs
        self._queue = queue
        self._retention = retention

    async def end_run(self, live: LiveRun, end: RunEnd) -> None:
        """Record how a run ended, and with it the runs below it that nobody runs any more; then tell who waits.

        From its first step on the end stands, also for somebody who kills the run meanwhile.
        """
        self.submit_end(live, end)
        await self._finish(live)

    def submit_end(self, live: LiveRun, end: RunEnd) -> None:
        """Have on its way to the disk how a run ended; ``reap`` or ``end_run`` sees to the rest."""
        left = [run for run in live.tree() if run is not live and run.state not in FINAL_STATES]
        records: list[Record] = []
        for run in (*left, live):
            run.ending, run.end = True, end if run is live else RunEnd("stopped")
            cancelled = run.end.state == "stopped" and run.stop_asked
            records.append(
                run.state_record(run.end.state, result=run.end.result, error=run.end.error, cancelled=cancelled)
            )
        self._journal.submit(records)

    async def _finish(self, live: LiveRun) -> None:
        """Wait until a run's end is durable, then tell those who wait for it."""
        await self._journal.write(())
        if live.parent is None:
            if live.resumed:
                await self._end_strangers(live)
            await self._retention.clean(root=live.run_id)
            self._runs.remove_tree(live)
        for run in reversed([*live.tree()]):
            if not run.ended.is_set() or run.state not in FINAL_STATES:
                run.close()
        if live.parent is None:
            self._shared.hub.forget_ended(self._runs.by_id)
            with contextlib.suppress(MailboxFull):  # then it holds what it knows of the tree until others need the room
                self._shared.memory.tell(ForgetTree(root_of(live.run_id)))

    async def reap(self, live: LiveRun, ref: ActorRef[Any] | None) -> None:
        """See to it that a run whose actor is gone, or that had none yet, has ended for everybody who waits."""
        try:
            reason = None if ref is None else await ref.wait_stopped()
            if self._runs.actors.get(live.run_id) is ref:
                self._runs.actors.pop(live.run_id, None)
            await self._see_ended(live, reason)
        except BaseException:
            live.set_ended()  # the supervisor is cancelled, or fails: who waits may stand outside of its block
            raise
        finally:
            self._queue.left(live)

    async def _see_ended(self, live: LiveRun, reason: StopReason | None) -> None:
        if live.ended.is_set():
            return
        try:
            if live.lost is not None:
                raise live.lost
            if live.end is not None:
                await self._finish(live)  # it was killed while it waited for its end to be durable
            elif reason is not None and reason.kind == "failed":
                log(logging.ERROR, "run.crashed", run=live.run_id, exc_info=reason.error)
                await self.end_run(live, RunEnd.failed(reason.error))
            elif not any(run.killed for run in live.lineage()):
                # The supervisor closes, or hands its runs over; the record says how to go on.
                claims = self._queue.shared
                if claims is None or live.parent is not None or self._runs.closing:
                    live.set_ended()
                else:
                    await claims.let_go(live)
                    self._runs.remove_tree(live)
            elif live.parent is None:
                await self.end_run(live, live.end_of_killed())
            elif not any(run.killed for run in live.parent.lineage()):
                await self._end_branch(live)
            # else it ends together with the run above it that was killed
        except JournalError as error:
            for other in {*self._runs.by_id.values(), live}:  # none of them can be recorded any more
                if not other.ended.is_set():
                    other.lost = error
                    other.set_ended()
            raise

    async def _end_branch(self, live: LiveRun) -> None:
        """End a run that was killed, and those below it, for good: the run above it has its report, and goes on.

        Nobody will bring their open calls to an end, so that is done here.
        """
        await self._journal.write(())  # what the loops had sent on its way shows in the ledgers after this
        for run in reversed([*live.tree()]):
            if run.state not in FINAL_STATES:
                await close_calls(self._journal, run.ledger, iteration=run.iteration, at=self._shared.clock())
        await self.end_run(live, live.end_of_killed())

    async def _end_strangers(self, root: LiveRun) -> None:
        """End the runs of the record below a root that it did not take up again, as its team is another now."""
        here = {run.run_id for run in root.tree()}
        states: list[RunState] = ["running", "waiting", "paused", "stopped"]
        for row in await self._journal.read_runs(states=states, below=root.run_id):
            run_id = row.started.run_id
            if run_id not in here and (self._shared.machines is None or unit_of(run_id) == root.run_id):
                await end_left(self._shared, row)
