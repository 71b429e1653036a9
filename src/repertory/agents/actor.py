"""The actor that runs one run: its loop is a child task, so its mailbox always answers."""

from __future__ import annotations

from functools import partial
from typing import Protocol

import anyio

from repertory.actors import Accepts, ActorContext, handler
from repertory.agents.agent import Agent
from repertory.agents.calls import Caller
from repertory.agents.live import LiveRun, RunEnd
from repertory.agents.loop import Loop
from repertory.errors import JournalError
from repertory.summarizer import ResultNotSummarized, ResultSummarized, SummaryFailed, SummaryReady


class Host(Protocol):
    """What an actor needs of the runtime."""

    async def spawn_below(
        self, parent: LiveRun, ctx: ActorContext, agent: Agent, task: str, *, call_id: str, key: str
    ) -> LiveRun:
        """Start the run of a delegation, or find the one that the same call began before."""
        ...

    async def end_run(self, live: LiveRun, end: RunEnd) -> None:
        """Record how a run ended, and tell who waits."""
        ...

    async def lose(self, live: LiveRun, error: JournalError) -> None:
        """End a run that the journal failed."""
        ...


class AgentActor:
    """Runs the loop of one run, and hears what the summarizer has for it meanwhile.

    A crash of the loop is a crash of the actor: its supervisor starts a fresh one, whose loop goes on from the
    last durable iteration.
    """

    receives: Accepts[ResultSummarized | ResultNotSummarized | SummaryReady | SummaryFailed]

    def __init__(self, host: Host, live: LiveRun) -> None:
        self._host = host
        self._live = live
        self._finished = anyio.Event()
        self._loop: Loop | None = None

    def started(self, ctx: ActorContext) -> None:
        """Begin, or go on from the record."""
        self._live.ref = ctx.ref
        caller = Caller(self._live, partial(self._host.spawn_below, self._live, ctx))
        self._loop = Loop(self._live, caller, ctx.ref)
        ctx.start_soon(self._run, self._loop, ctx)

    async def _run(self, loop: Loop, ctx: ActorContext) -> None:
        try:
            end = await loop.run()
            if end is not None:
                await self._host.end_run(self._live, end)
        except JournalError as error:
            await self._host.lose(self._live, error)
        self._finished.set()
        ctx.stop()

    async def stopping(self, ctx: ActorContext) -> None:
        """Let the loop come to its next boundary; the drain time bounds the wait."""
        self._live.wish_for("close")
        await self._finished.wait()

    @handler
    def heard(self, message: ResultSummarized | ResultNotSummarized | SummaryReady | SummaryFailed) -> None:
        """Hand it to the view, which keeps it until it is wanted."""
        assert self._loop is not None
        self._loop.view.heard(message)
