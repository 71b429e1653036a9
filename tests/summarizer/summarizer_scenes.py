"""A summarizer at work, for several tests: a journal, a ledger, a listener."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeAlias

import anyio
import msgspec

from repertory.actors import Accepts, ActorRef, handler, open_system
from repertory.llm.messages import Text, ToolResult, ToolUse, text_of
from repertory.llm.model import Model, ModelRequest
from repertory.record import Draft, Ledger, MemoryJournal
from repertory.summarizer import (
    ResultNotSummarized,
    ResultSummarized,
    Summarize,
    SummarizerActor,
    SummaryFailed,
    SummaryReady,
)
from repertory.testing import FunctionModel

Heard: TypeAlias = SummaryReady | SummaryFailed | ResultSummarized | ResultNotSummarized

GOOD = "GOAL: measure the tides.\nFACTS: lib/module_1.py line 1001"


class Listener:
    """Collects what the summarizer answers."""

    receives: Accepts[SummaryReady | SummaryFailed | ResultSummarized | ResultNotSummarized]

    def __init__(self, heard: list[Heard], grew: list[anyio.Event]) -> None:
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

    @handler
    def summarized(self, message: ResultSummarized) -> None:
        """Take a result's summary."""
        self._take(message)

    @handler
    def not_summarized(self, message: ResultNotSummarized) -> None:
        """Take a failure."""
        self._take(message)

    def _take(self, message: Heard) -> None:
        self._heard.append(message)
        self._grew[0].set()
        self._grew[0] = anyio.Event()


class Scene:
    """Everything a test needs at hand."""

    def __init__(self, summarizer: ActorRef[Any], listener: ActorRef[Any], journal: MemoryJournal, system: Any) -> None:
        self.models: tuple[Model, ...] = ()
        self.summarizer = summarizer
        self.listener = listener
        self.journal = journal
        self.system = system
        self.heard: list[Heard] = []
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
                "models": self.models,
                "tokens": 500,
                "reply_to": self.listener,
                **fields,
            }
        )
        self.summarizer.tell(job)
        return job

    async def wait_heard(self, count: int) -> list[Heard]:
        """Wait until the listener has heard so many answers."""
        with anyio.fail_after(500):
            while len(self.heard) < count:
                await self.grew[0].wait()
        return self.heard


@asynccontextmanager
async def open_scene(*models: Model, journal: MemoryJournal | None = None, **options: Any) -> AsyncIterator[Scene]:
    """Start a summarizer with a listener; the models write, if there are any."""
    heard: list[Heard] = []
    grew = [anyio.Event()]
    journal = journal or MemoryJournal()
    async with open_system("scene") as system:
        factory = partial(SummarizerActor, journal, clock=lambda: 7.0, **options)
        scene = Scene(
            system.spawn(factory, "summarizer"),
            system.spawn(partial(Listener, heard, grew), "listener"),
            journal,
            system,
        )
        scene.heard, scene.grew, scene.models = heard, grew, models
        yield scene


class Gated(FunctionModel):
    """A model that waits for its gate; ``given`` are the texts that it was given."""

    def __init__(self, text: str = GOOD) -> None:
        self.gate = anyio.Event()
        self.text = text
        super().__init__(self._answer)

    async def _answer(self, request: ModelRequest) -> str:
        await self.gate.wait()
        return self.text

    @property
    def given(self) -> list[str]:
        """What it was asked to condense, by call."""
        return [text_of(request.messages[0].content) for request in self.requests]


def text_in(message: Heard) -> str:
    """What the summary says; "" for a failure."""
    return msgspec.json.encode(message).decode() if isinstance(message, SummaryReady) else ""
