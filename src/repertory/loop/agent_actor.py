"""The actor of one run: below that of the run which delegated to it; the run's loop is a child task of it."""

from __future__ import annotations

from typing import Protocol

import anyio

from repertory.actors import Accepts, ActorContext, handler
from repertory.errors import JournalError, ToolSetUnavailable
from repertory.loop.loop import Loop
from repertory.loop.teams import SubRuns, Team
from repertory.loop.tool_calls import Caller
from repertory.runs.live import LiveRun, RunEnd
from repertory.summarizer import ResultNotSummarized, ResultSummarized, SummaryFailed, SummaryReady


class _Runs(SubRuns, Protocol):
    """How runs begin and end."""

    async def end_run(self, live: LiveRun, end: RunEnd) -> None: ...


class AgentActor:
    """Runs the loop of one run, and hears what the summarizer has for it meanwhile.

    A crash of the loop is a crash of the actor: its supervisor starts a fresh one, whose loop goes on from the
    last durable iteration.
    """

    receives: Accepts[ResultSummarized | ResultNotSummarized | SummaryReady | SummaryFailed]

    def __init__(self, runs: _Runs, live: LiveRun) -> None:
        self._runs = runs
        self._live = live
        self._finished = anyio.Event()
        self._loop: Loop | None = None

    def started(self, ctx: ActorContext) -> None:
        """Begin, or go on from the record."""
        self._live.ref, self._live.actor = ctx.ref, ctx
        self._live.opened(None)
        self._team = Team(self._live, self._runs, ctx)
        ctx.start_soon(self._run, ctx)

    async def _run(self, ctx: ActorContext) -> None:
        try:
            end = await self._play(ctx)
            if end is not None:
                await self._team.end(answered=end.state == "done")
                await self._runs.end_run(self._live, end)
        except JournalError as error:
            try:
                await self._runs.end_run(self._live, RunEnd.failed(error))
            except JournalError:  # not even that can be recorded: the supervisor ends
                self._live.lost = error
        self._finished.set()
        ctx.stop()

    async def _play(self, ctx: ActorContext) -> RunEnd | None:
        """Run the loop with everything open that it needs; what cannot be opened ends the run."""
        live = self._live
        with live.shared.telemetry.run(live) as ended:
            try:
                async with live.shared.tool_sets.open(live.agent) as live.opened_tools:
                    self._loop = Loop(live, Caller(live, self._team.tools()), self._team, ctx.ref)
                    end = await self._loop.run()
            except ToolSetUnavailable as error:
                end = RunEnd.failed(error)
            ended(end.error if end is not None else None)
        return end

    async def stopping(self, ctx: ActorContext) -> None:
        """Let the loop come to its next boundary; the drain time bounds the wait."""
        self._live.wish_for("close")
        await self._finished.wait()

    @handler
    def heard(self, message: ResultSummarized | ResultNotSummarized | SummaryReady | SummaryFailed) -> None:
        """Hand it to the view, which keeps it until it is wanted."""
        if self._loop is not None:  # else an earlier incarnation asked; the record has it
            self._loop.view.heard(message)
