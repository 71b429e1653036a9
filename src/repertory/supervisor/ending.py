"""Ending runs: first on record, together with the runs below them, and then for everybody who waits."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from typing import Any

from repertory._ids import root_of, unit_of
from repertory.actors import ActorRef, StopReason
from repertory.errors import JournalError, MailboxFull, RecordRefused
from repertory.loop.open_calls import close_calls
from repertory.memory.messages import ForgetTree
from repertory.record.records import FINAL_STATES, Record, RunState
from repertory.runs.end import RunEnd
from repertory.runs.live import LiveRun
from repertory.runs.log import log
from repertory.runs.shared import Shared
from repertory.summarizer.messages import ForgetRun
from repertory.supervisor.live_runs import LiveRuns
from repertory.supervisor.queue import Queue
from repertory.supervisor.recovery import end_orphan
from repertory.supervisor.retention import Retention


class Ends:
    """Ends the runs of this process, whatever happened to their actors."""

    def __init__(self, shared: Shared, runs: LiveRuns, queue: Queue, retention: Retention) -> None:
        self._shared = shared
        self._journal = shared.journal
        self._runs = runs
        self._queue = queue
        self._retention = retention

    async def end_run(self, live: LiveRun, end: RunEnd) -> None:
        """Record how a run ended, together with the runs below it that nobody runs any more; then wake waiters.

        The end is fixed once it is submitted, even if the run is killed meanwhile.
        """
        for_good: list[Record] = []
        if live.settles_tree(end):
            # Interrupted, as the supervisor closes or by the crash of their lead; or stopped together with the tree.
            below = [run for run in live.tree() if run is not live]
            left = [run for run in below if run.end is None or run.end.state == "stopped"]
            for run in left:
                if not (run.end is None or run.stop_asked or run.elsewhere):
                    for_good.append(run.state_record("stopped", cancelled=True))
                run.stop_asked = True
            if left or end.state == "failed":
                await self._close_calls(live)
        self.submit_end(live, end, also=for_good)
        await self._finish(live)

    def submit_end(self, live: LiveRun, end: RunEnd, *, also: Sequence[Record] = ()) -> None:
        """Submit the record of how a run ended; ``reap`` or ``end_run`` does the rest."""
        # The end of one that is only waiting for the disk is fixed already.
        below = reversed([run for run in live.tree() if run is not live])
        left = [run for run in below if run.end is None and run.state not in FINAL_STATES]
        records = [record for run in left for record in run.end_records(RunEnd("stopped"))]
        # If its beginning was refused, it is another machine's run, whose end this is not.
        self._journal.submit([*also, *records, *live.end_records(end)], after=live.begun)

    async def _finish(self, live: LiveRun) -> None:
        """Wait until a run's end is durable, then wake those who wait for it."""
        await self._journal.write(())
        if live.end is None or live.end.state != "done":  # a chat that goes on has use for what is summarized meanwhile
            with contextlib.suppress(MailboxFull):
                self._shared.summarizer.tell(ForgetRun(live.run_id))
        if live.parent is None:
            try:
                if live.resumed:
                    await self._end_orphans(live)
                await self._retention.clean(root=live.run_id)
            except RecordRefused as error:  # another machine has continued it since it ended, and does this at its end
                log(logging.INFO, "run.elsewhere", run=live.run_id, exc_info=error)
            self._runs.remove_tree(live)
        for run in reversed([*live.tree()]):
            if not run.ended.is_set() or run.state not in FINAL_STATES:
                run.close()
        if live.parent is None:
            self._shared.hub.forget_ended(self._runs.by_id)
            with contextlib.suppress(MailboxFull):  # then it keeps what it knows of the tree until it needs the room
                self._shared.memory.tell(ForgetTree(root_of(live.run_id)))

    async def reap(self, live: LiveRun, ref: ActorRef[Any] | None) -> None:
        """Make sure that a run whose actor is gone, or that had none yet, has ended for everybody who waits."""
        try:
            reason = None if ref is None else await ref.wait_stopped()
            if self._runs.actors.get(live.run_id) is ref:
                self._runs.actors.pop(live.run_id, None)
            await self._ensure_ended(live, reason)
        except BaseException:
            live.set_ended()  # the supervisor is cancelled or fails, and waiters may be outside its block
            raise
        finally:
            self._queue.release(live)

    async def _ensure_ended(self, live: LiveRun, reason: StopReason | None) -> None:
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
                # The supervisor closes or hands its runs over; the run can be continued from its record.
                claims = self._queue.claims
                if claims is None or live.parent is not None or self._runs.closing:
                    live.set_ended()
                else:
                    await claims.let_go(live)
                    self._runs.remove_tree(live)
            elif live.parent is not None and any(run.killed for run in live.parent.lineage()):
                pass  # it ends together with the killed run above it
            else:
                if live.started.parent_id is not None and (live.stop_asked or live.overdue):
                    await self._close_calls(live)  # for good: the run above it is told, and continues
                await self.end_run(live, RunEnd("stopped") if live.overdue is None else RunEnd.failed(live.overdue))
        except JournalError as error:
            for other in {*self._runs.by_id.values(), live}:  # none of them can be recorded any more
                if not other.ended.is_set():
                    other.lost = error
                    other.set_ended()
            raise

    async def _close_calls(self, live: LiveRun) -> None:
        """Give the open calls of a run and of those below it, which nobody will continue, a result."""
        await self._journal.write(())  # afterwards the ledgers show what the loops had submitted
        for run in reversed([*live.tree()]):
            if run.state not in ("done", "failed"):
                await close_calls(run.ledger, iteration=run.iteration, at=self._shared.clock())

    async def _end_orphans(self, root: LiveRun) -> None:
        """End recorded runs below a root that were not continued with it: its team has changed, each ended alone, or it
        came to none of them. Unless it has failed or was stopped, and may yet be resumed, they have ended for good.
        """
        here, answered = {run.run_id for run in root.tree()}, root.end is not None and root.end.state == "done"
        states: list[RunState] = ["running", "waiting", "paused", "stopped"]
        for row in await self._journal.read_runs(states=states, below=root.run_id):
            run_id = row.started.run_id
            alone = row.cancelled and run_id != root.run_id  # the root's calls are made when it is resumed
            if (alone or run_id not in here) and (self._shared.machines is None or unit_of(run_id) == root.run_id):
                await end_orphan(self._shared, row, cancelled=alone or answered)
