"""A run as its caller holds it, and as the process that runs it keeps it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import anyio
import msgspec

from repertory.agents.accounting import Meter, RunStatistics
from repertory.agents.agent import Agent
from repertory.agents.events import Event, StateChanged
from repertory.agents.hub import EventReader
from repertory.errors import RunError, RunFailed, RunStopped
from repertory.memory import Ledger, Memory
from repertory.memory.records import FINAL_STATES, RunStarted, RunState

if TYPE_CHECKING:
    from repertory.actors import ActorRef
    from repertory.agents.supervisor import Supervisor

Wish: TypeAlias = Literal["go", "pause", "stop", "close"]


class Said(msgspec.Struct, frozen=True):
    """Something said to a run from outside, durable under its id, and not yet in the ledger."""

    message_id: str
    text: str


class LiveRun:
    """What this process knows of one run. It outlives the actor's restarts; the journal outlives it."""

    def __init__(
        self, started: RunStarted, agent: Agent, ledger: Ledger, memory: Memory, *, parent: LiveRun | None = None
    ) -> None:
        self.started = started
        self.agent = agent
        self.ledger = ledger
        self.memory = memory
        self.parent = parent
        self.children: list[LiveRun] = []
        self.meter = Meter()
        self.state: RunState = "running"
        self.iteration = 0
        self.resumed = False
        self.killed = False
        self.ending = False
        self.result: str | None = None
        self.error: str | None = None
        self.cause: BaseException | None = None
        self.ref: ActorRef[Any] | None = None
        self.ended = anyio.Event()
        self.wish: Wish = "go"
        self._wished = anyio.Event()
        self._inbox: list[Said] = []

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self.started.run_id

    @property
    def root(self) -> LiveRun:
        """The run at the top of the tree."""
        return self if self.parent is None else self.parent.root

    def lineage(self) -> Iterator[LiveRun]:
        """This run and those above it."""
        run: LiveRun | None = self
        while run is not None:
            yield run
            run = run.parent

    def tree(self) -> Iterator[LiveRun]:
        """This run and all below it."""
        yield self
        for child in self.children:
            yield from child.tree()

    def tree_statistics(self) -> RunStatistics:
        """The figures of this run and of all below it, added up."""
        first, *rest = (run.meter.statistics for run in self.tree())
        return sum(rest, start=first)

    # --- what is asked of the loop; read at its boundaries ---

    def wish_for(self, wish: Wish) -> None:
        """Ask the loop to go on, pause, stop, or close with the supervisor. The last two are not taken back."""
        if self.wish not in ("stop", "close"):
            self.wish = wish
        wished, self._wished = self._wished, anyio.Event()
        wished.set()

    async def wait_for_wish(self) -> None:
        """Wait until something is asked of the loop."""
        await self._wished.wait()

    def say(self, said: Said) -> None:
        """Put a message where the loop looks at its next boundary."""
        self._inbox.append(said)

    def take_inbox(self) -> list[Said]:
        """What was said since the last boundary."""
        said, self._inbox = self._inbox, []
        return said

    def try_to_end(self) -> bool:
        """Take no more messages, unless one has come that the loop has not seen."""
        self.ending = not self._inbox
        return self.ending


class Run:
    """One agent working on one task. Made by ``Supervisor.spawn`` and ``Supervisor.resume``."""

    def __init__(self, supervisor: Supervisor, live: LiveRun) -> None:
        self._supervisor = supervisor
        self._live = live

    def __repr__(self) -> str:
        return f"<Run {self.id} of {self.agent.name}: {self.state}>"

    @property
    def id(self) -> str:
        """The run's id, as ``repertory ps`` lists it."""
        return self._live.run_id

    @property
    def agent(self) -> Agent:
        """The definition it runs."""
        return self._live.agent

    @property
    def task(self) -> str:
        """What it was asked to do."""
        return self._live.started.task

    @property
    def state(self) -> RunState:
        """``running``, ``waiting`` (for sub-agents), ``paused``, or how it ended: ``done``, ``failed``, ``stopped``."""
        return self._live.state

    @property
    def children(self) -> tuple[Run, ...]:
        """The runs that it delegated to, oldest first."""
        return tuple(Run(self._supervisor, child) for child in self._live.children)

    def statistics(self, *, tree: bool = False) -> RunStatistics:
        """What it cost so far; with ``tree``, together with the runs below it."""
        return self._live.tree_statistics() if tree else self._live.meter.statistics

    def events(self, *, tree: bool = False) -> EventReader:
        """Watch the run, from its beginning in this process to its end.

        Args:
            tree: Watch the runs below it as well.
        """
        run_id = self.id

        def is_the_end(event: Event) -> bool:
            return event.run_id == run_id and isinstance(event, StateChanged) and event.state in FINAL_STATES

        def is_ours(event: Event) -> bool:
            return event.run_id == run_id or (tree and self._supervisor.is_below(event.run_id, run_id))

        return self._supervisor.hub.reader(is_ours, until=is_the_end)

    async def wait_result(self) -> str:
        """Wait until the run has its answer, and return it.

        Raises:
            RunFailed: It ended with an error; ``__cause__`` holds it.
            RunStopped: It was stopped first, or the supervisor was closed.
        """
        live = self._live
        await live.ended.wait()
        if live.state == "done":
            return live.result or ""
        if live.state == "failed":
            raise RunFailed(f"run {self.id} of {self.agent.name} failed: {live.error}") from live.cause
        raise RunStopped(f"run {self.id} of {self.agent.name} was stopped after {live.iteration} iterations")

    async def send(self, text: str) -> None:
        """Say something to the run. Returns once it is durable; the model reads it at its next iteration.

        Raises:
            RunError: The run has ended.
        """
        if not text.strip():
            raise RunError("expected a message with some text, got an empty one")
        await self._supervisor.deliver(self._live, text)

    def stop(self) -> None:
        """End the run at its next boundary: after the model call or the tools that are under way."""
        self._supervisor.stop_run(self._live)

    def kill(self) -> None:
        """End the run now, cancelling what is under way. What is in the record stays."""
        self._supervisor.kill_run(self._live)

    def pause(self) -> None:
        """Hold the run at its next boundary until ``resume``."""
        self._supervisor.pause_run(self._live)

    def resume(self) -> None:
        """Let a paused run go on."""
        self._supervisor.unpause_run(self._live)
