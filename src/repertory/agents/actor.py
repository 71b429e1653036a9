"""The actor that runs one run: its loop is a child task, so its mailbox always answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import msgspec

from repertory.actors import Accepts, ActorContext, Request, handler
from repertory.agents.events import SummaryRefused, SummaryTaken
from repertory.agents.live import LiveRun
from repertory.agents.loop import Loop
from repertory.context import text_tokens
from repertory.errors import ContextError, JournalError
from repertory.summarizer import ResultNotSummarized, ResultSummarized, SummaryFailed, SummaryReady

if TYPE_CHECKING:
    from repertory.agents.runtime import Runtime


class StopRun(msgspec.Struct, frozen=True):
    """End the run at its next boundary."""


class PauseRun(msgspec.Struct, frozen=True):
    """Hold the run at its next boundary."""


class ResumeRun(msgspec.Struct, frozen=True):
    """Let a paused run go on."""


class ExpandShown(Request[None], frozen=True):
    """Show an entry again; see ``Run.expand``."""

    position: int
    items: tuple[int, int] | None = None
    reason: str = ""


class PinShown(Request[None], frozen=True):
    """Keep an entry in view, or no longer; see ``Run.pin``."""

    position: int
    on: bool = True


class AgentActor:
    """Runs the loop of one run, and hears what concerns it meanwhile.

    A crash of the loop is a crash of the actor: its supervisor starts a fresh one, whose loop goes on from the
    last durable iteration.
    """

    receives: Accepts[
        StopRun
        | PauseRun
        | ResumeRun
        | ExpandShown
        | PinShown
        | ResultSummarized
        | ResultNotSummarized
        | SummaryReady
        | SummaryFailed
    ]

    def __init__(self, runtime: Runtime, live: LiveRun) -> None:
        self._runtime = runtime
        self._live = live
        self._loop: Loop | None = None
        self._finished = anyio.Event()

    def started(self, ctx: ActorContext) -> None:
        """Begin, or go on from the record."""
        self._live.ref = ctx.ref
        self._loop = Loop(self._runtime, self._live, ctx)
        ctx.start_soon(self._run, ctx)

    async def _run(self, ctx: ActorContext) -> None:
        assert self._loop is not None
        try:
            await self._loop.run()
        except JournalError as error:
            await self._runtime.lose(self._live, error)
        self._finished.set()
        ctx.stop()

    async def stopping(self, ctx: ActorContext) -> None:
        """Let the loop come to its next boundary; the drain time bounds the wait."""
        for run in self._live.tree():
            run.wish_for("close")
        await self._finished.wait()

    @handler
    def stop_run(self, message: StopRun) -> None:
        """See ``Run.stop``."""
        self._live.wish_for("stop")

    @handler
    def pause_run(self, message: PauseRun) -> None:
        """See ``Run.pause``."""
        self._live.wish_for("pause")

    @handler
    def resume_run(self, message: ResumeRun) -> None:
        """See ``Run.resume``."""
        self._live.wish_for("go")

    @handler(expected=ContextError)
    async def expand_shown(self, message: ExpandShown) -> None:
        """See ``Run.expand``."""
        assert self._loop is not None
        await self._loop.expand(message.position, message.items, message.reason)

    @handler(expected=ContextError)
    async def pin_shown(self, message: PinShown) -> None:
        """See ``Run.pin`` and ``Run.unpin``."""
        assert self._loop is not None
        await self._loop.pin(message.position, on=message.on)

    @handler
    def result_summarized(self, message: ResultSummarized) -> None:
        """Keep a result's summary until the result is compacted."""
        assert self._loop is not None
        self._live.gists[message.position] = message.text
        self._loop.charge(message.cost)
        entry = self._live.ledger.snapshot()[message.position]
        self._runtime.publish(
            self._live,
            SummaryTaken,
            first=message.position,
            last=message.position,
            strategy="result",
            tokens=text_tokens(message.text),
            replaced_tokens=max(entry.tokens, entry.original_length // 4),
        )

    @handler
    def result_not_summarized(self, message: ResultNotSummarized) -> None:
        """Say so; a stub is shown."""
        assert self._loop is not None
        self._loop.charge(message.cost)
        self._runtime.publish(self._live, SummaryRefused, reason=message.reason)

    @handler
    def summary_ready(self, message: SummaryReady) -> None:
        """Keep a summary until the planner wants it."""
        assert self._loop is not None
        self._loop.summary_ready(message)

    @handler
    def summary_failed(self, message: SummaryFailed) -> None:
        """Say so, and go on without."""
        assert self._loop is not None
        self._loop.summary_failed(message)
