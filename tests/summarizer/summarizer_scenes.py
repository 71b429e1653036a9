"""A summarizer at work, for several tests: a journal, a ledger, a listener."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import msgspec

from repertory.actors import Accepts, ActorRef, handler, open_system
from repertory.llm.messages import Text, ToolResult, ToolUse
from repertory.record import Draft, Ledger, MemoryJournal
from repertory.summarizer import (
    GetStatistics,
    Summarize,
    SummarizerActor,
    SummarizerStatistics,
    SummaryFailed,
    SummaryReady,
    SummaryTask,
    SummaryText,
)

GOOD = "GOAL: measure the tides.\nFACTS: lib/module_1.py line 1001"


class Listener:
    """Collects what the summarizer answers."""

    receives: Accepts[SummaryReady | SummaryFailed]

    def __init__(self, heard: list[SummaryReady | SummaryFailed], grew: list[anyio.Event]) -> None:
        self._heard = heard
        self._grew = grew

    @handler
    def ready(self, message: SummaryReady) -> None:
        """Take a summary."""
        self._take(message)

    @handler
    def failed(self, message: SummaryFailed) -> None:
        """Take a failure."""
        self._take(message)

    def _take(self, message: SummaryReady | SummaryFailed) -> None:
        self._heard.append(message)
        self._grew[0].set()
        self._grew[0] = anyio.Event()


class Scene:
    """Everything a test needs at hand."""

    def __init__(self, summarizer: ActorRef[Any], listener: ActorRef[Any], journal: MemoryJournal, system: Any) -> None:
        self.summarizer = summarizer
        self.listener = listener
        self.journal = journal
        self.system = system
        self.heard: list[SummaryReady | SummaryFailed] = []
        self.grew = [anyio.Event()]
        self.ledgers: dict[str, Ledger] = {}

    async def work(self, iterations: int, *, run_id: str = "run-1", size: int = 2_000) -> Ledger:
        """Let a run grow by so many iterations."""
        ledger = self.ledgers.get(run_id)
        if ledger is None:
            ledger = self.ledgers[run_id] = Ledger(self.journal, run_id)
            await ledger.append(Draft(role="user", kind="task", content=(Text(f"Measure the tides of {run_id}."),)))
        start = len(ledger.snapshot()) // 2
        for number in range(start + 1, start + iterations + 1):
            call_id = f"call_{run_id}_{number}"
            words = (f"def handler_{number}(): 'lib/module_{number}.py:{1000 + number}'\n" * 99)[:size]
            await ledger.append(
                Draft(
                    role="assistant",
                    kind="assistant",
                    content=(Text(f"step_{number}"), ToolUse(call_id, "read", {"path": f"p{number}"})),
                    iteration=number,
                ),
                Draft(
                    role="user",
                    kind="action-result",
                    content=(ToolResult(call_id, words),),
                    iteration=number,
                    tool="read",
                    tool_call_id=call_id,
                ),
            )
        return ledger

    def ask(self, ledger: Ledger, **fields: Any) -> Summarize:
        """Ask for a summary of all there is."""
        snapshot = ledger.snapshot()
        job = Summarize(
            **{
                "run_id": snapshot.run_id,
                "snapshot": snapshot,
                "first": 0,
                "upto": len(snapshot),
                "reply_to": self.listener,
                **fields,
            }
        )
        self.summarizer.tell(job)
        return job

    async def wait_heard(self, count: int) -> list[SummaryReady | SummaryFailed]:
        """Wait until the listener has heard so many answers."""
        with anyio.fail_after(500):
            while len(self.heard) < count:
                await self.grew[0].wait()
        return self.heard

    async def counts(self) -> SummarizerStatistics:
        """The summarizer's statistics."""
        answer: SummarizerStatistics = await self.summarizer.ask(GetStatistics())
        return answer


@asynccontextmanager
async def open_scene(strategy: Any = None, **options: Any) -> AsyncIterator[Scene]:
    """Start a summarizer with a listener."""
    heard: list[SummaryReady | SummaryFailed] = []
    grew = [anyio.Event()]
    journal = MemoryJournal()
    async with open_system("scene") as system:
        factory = partial(SummarizerActor, journal, strategy, clock=lambda: 7.0, **options)
        scene = Scene(
            system.spawn(factory, "summarizer"),
            system.spawn(partial(Listener, heard, grew), "listener"),
            journal,
            system,
        )
        scene.heard, scene.grew = heard, grew
        yield scene


class Gated:
    """A strategy that waits for its gate, and notes what it was given."""

    name = "gated"

    def __init__(self, text: str = GOOD) -> None:
        self.gate = anyio.Event()
        self.text = text
        self.tasks: list[SummaryTask] = []

    async def summarize(self, task: SummaryTask) -> SummaryText:
        """Note the task, and answer once the gate is open."""
        self.tasks.append(task)
        await self.gate.wait()
        return SummaryText(self.text, "some-model")


def text_in(message: SummaryReady | SummaryFailed) -> str:
    """What the summary says; "" for a failure."""
    return msgspec.json.encode(message).decode() if isinstance(message, SummaryReady) else ""
