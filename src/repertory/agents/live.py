"""What this process knows of a run while it lives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, TypeAlias

import anyio
import msgspec

from repertory.actors import ActorRef
from repertory.agents.accounting import Tally
from repertory.agents.agent import Agent
from repertory.agents.alerts import Watch
from repertory.agents.log import log_listener_error
from repertory.agents.spending import Spending
from repertory.context import EMPTY, MessageEvent, added, notify
from repertory.errors import JournalError
from repertory.memory import Memory
from repertory.record import Ledger, RunStatistics
from repertory.record.journal import Ticket
from repertory.record.records import RunStarted, RunState

SAID = "UserSaid"  # the type of the records that keep what is said
Wish: TypeAlias = Literal["go", "pause", "stop", "close"]


class Said(msgspec.Struct, frozen=True):
    """Something said to a run from outside, durable under its id, and not yet in the ledger."""

    message_id: str
    text: str


class RunEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended; ``cause`` is the error itself, where it happened in this process."""

    state: RunState
    result: str | None = None
    error: str | None = None
    cause: BaseException | None = None


class LiveRun:
    """What this process knows of one run. It outlives the actor's restarts; the journal outlives it.

    Attributes:
        parent: The run that delegated to it; None for a root.
        members: For a root: the ids of all runs of its tree, those that are about to begin included.
        spending: What the tree may still spend; that of its root.
        begun: What is on its way to the disk when the run's actor starts; the loop waits for it.
        end: How it ended, once that is on its way to the disk.
        lost: The failure of the journal that kept its end from being recorded.
        said: What was said to it from outside, by message id.
        first_event: The number of its first event in this process.
        last_event: The number of the event after its last one; None while it goes on.
        stop_asked: Whether somebody has asked to stop this very run, rather than one above it.
        agent_changed: Whether it goes on with another definition than the one it was begun with.
    """

    def __init__(
        self,
        started: RunStarted,
        agent: Agent,
        ledger: Ledger,
        memory: Memory,
        tally: Tally,
        *,
        parent: LiveRun | None = None,
    ) -> None:
        self.started = started
        self.agent = agent
        self.ledger = ledger
        self.memory = memory
        self.parent = parent
        self.children: list[LiveRun] = []
        self.tally = tally
        self.listener_errors = 0
        self.watch: Watch | None = None  # None where nobody wants alerts
        self.plan = EMPTY
        self.listeners: list[Callable[[MessageEvent], object]] = []
        if agent.on_lifecycle is not None:
            self.listeners.append(agent.on_lifecycle)
        self.gists: dict[int, str] = {}  # a model's summaries of single results, by position
        self._told = 0  # entries whose listeners were told of them
        self.state: RunState = "running"
        self.waiting = 0  # delegations that have not reported yet
        self.iteration = 0
        self.resumed = False
        self.killed = False
        self.ending = False
        self.stop_asked = False
        self.agent_changed = False
        self.members: set[str] = {started.run_id}
        self.spending: Spending = parent.spending if parent is not None else Spending()
        self.begun: Ticket | None = None
        self.end: RunEnd | None = None
        self.lost: JournalError | None = None
        self.said: dict[str, str] = {}
        self.first_event = 0
        self.last_event: int | None = None
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

    @property
    def statistics(self) -> RunStatistics:
        """The figures of this run, as far as they are durable."""
        return self.tally.of(self.run_id)

    # --- what listeners hear ---

    def tell(self, events: Iterable[MessageEvent]) -> None:
        """Tell the listeners what became of messages; what they raise is logged and counted, and nothing more."""
        if not self.listeners:
            return
        named = [msgspec.structs.replace(event, run_id=self.run_id) for event in events]
        for listener in self.listeners:
            for event, error in notify(listener, named):
                self.listener_errors += 1
                log_listener_error(self.run_id, event.kind, error)

    def tell_added(self) -> None:
        """Tell the listeners of the entries that have come since."""
        snapshot = self.ledger.snapshot()
        told, self._told = self._told, len(snapshot)
        self.tell(added(snapshot[told:]))

    def skip_added(self) -> None:
        """Take all entries so far as told: an earlier process did."""
        self._told = len(self.ledger.snapshot())

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
        self.said[said.message_id] = said.text
        self._inbox.append(said)

    def take_inbox(self) -> list[Said]:
        """What was said since the last boundary."""
        said, self._inbox = self._inbox, []
        return said

    def try_to_end(self) -> bool:
        """Take no more messages, unless one has come that the loop has not seen."""
        self.ending = not self._inbox
        return self.ending
