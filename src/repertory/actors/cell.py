"""The runtime's side of one actor: its state, and what others may do to it.

The cell lives as long as the actor's name does, over all incarnations (``life.py``); ``runner.py`` is its task.
Everything here is synchronous, or waits, and runs in the scheduler's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import get_ident
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import anyio
import msgspec

from repertory.actors.calls import ENDED, NOTHING, Call, stopped_error
from repertory.actors.deadletters import DeadLetter, DeadReason
from repertory.actors.dispatch import Entry
from repertory.actors.lifecycle import StopReason
from repertory.actors.mailbox import Mailbox
from repertory.actors.options import Settings
from repertory.actors.refs import ActorRef
from repertory.actors.statistics import ActorState, ActorStatistics, ActorTree
from repertory.actors.supervision import RestartHistory
from repertory.errors import ActorStopped

if TYPE_CHECKING:
    from repertory.actors.children import Children
    from repertory.actors.context import ActorContext
    from repertory.actors.life import Life

_NEVER = float("inf")


class Death(msgspec.Struct):
    """The control message to a watcher."""

    cell: Cell
    reason: StopReason


Signal: TypeAlias = Death | Literal["pause", "resume"]


class Cell:
    """One actor as the runtime sees it.

    There is a flag for each thing that may be asked of an actor, since these overlap: it may be told to stop while
    its group is being restarted. The runner looks at all of them where it decides.
    """

    __slots__ = (
        "actor",
        "asking",
        "by_itself",
        "call",
        "closing",
        "context",
        "control",
        "crashes",
        "current",
        "cut",
        "dead_lettered",
        "doomed",
        "factory",
        "failure",
        "family",
        "halt_error",
        "halting",
        "handled",
        "history",
        "holding",
        "inline_deadline",
        "inline_handled",
        "launched",
        "life",
        "mailbox",
        "name",
        "parked",
        "paused",
        "pulse",
        "reason",
        "ref",
        "restarts",
        "runtime",
        "settings",
        "state",
        "stop_deadline",
        "suspect",
        "suspect_crashes",
        "table",
        "watchers",
        "withdrawn",
    )

    def __init__(self, family: Children, factory: Callable[[], object], name: str, settings: Settings) -> None:
        self.family = family
        self.runtime = family.runtime
        self.factory = factory
        self.name = name
        self.settings = settings
        self.mailbox = Mailbox(self, settings.capacity, self.runtime.thread)
        self.ref: ActorRef[Any] = ActorRef(self)

        # This incarnation, and shortcuts into it for the hot paths: empty when there is none.
        self.life: Life | None = None
        self.actor: Any = None
        self.context: ActorContext | None = None
        self.table: dict[type, Entry] = _NO_TABLE
        self.failure: BaseException | None = None

        # The message in hand, and what its handler waits for.
        self.current: Any = NOTHING
        self.call: Call | None = None
        self.inline_deadline = _NEVER
        self.asking: set[Call] | None = None
        self.suspect: Any = None
        self.suspect_crashes = 0

        # What was asked of it: to stop, to die, to restart with its group.
        self.control: list[Signal] | None = None
        self.launched = False
        self.paused = False
        self.closing = False
        self.by_itself = False
        self.stop_deadline = _NEVER
        self.doomed = False
        self.cut = False
        self.halting = False
        self.halt_error: BaseException | None = None
        self.holding = False

        # Where it is, and who wants to know.
        self.state: ActorState = "new"
        self.reason: StopReason | None = None
        self.parked: Any = None
        self.pulse: anyio.Event | None = None
        self.watchers: set[Cell] | None = None
        self.history: RestartHistory | None = None
        self.handled = self.inline_handled = self.withdrawn = self.dead_lettered = self.crashes = self.restarts = 0

    @property
    def path(self) -> str:
        """The place in the tree."""
        parent = self.family.parent
        return f"/{self.name}" if parent is None else f"{parent.path}/{self.name}"

    # --- waking and waiting ---------------------------------------------------------------------------

    def launch(self) -> None:
        """Start the actor's task."""
        self.launched = True
        self.mailbox.idle = False
        self.state = "starting"
        self.family.nursery.start_soon(self.runtime.run_cell, self, name=self.path)

    def wake(self) -> None:
        """Have the actor look at its control lane and its mailbox."""
        self.mailbox.idle = False
        if self.launched:
            self.runtime.backend.unpark(self)
        else:
            self.launch()

    def signal(self, signal: Signal) -> None:
        """Put something into the control lane, which overtakes the mailbox."""
        if self.state == "stopped":
            return
        if self.control is None:
            self.control = []
        self.control.append(signal)
        self.wake()

    def signal_death(self, other: Cell, reason: StopReason) -> None:
        """Tell of the death of a watched actor."""
        self.signal(Death(other, reason))

    def in_thread(self, function: Callable[[], None]) -> None:
        """Call a function in the scheduler's thread: now if this is it, else soon."""
        if get_ident() == self.runtime.thread:
            self.runtime.run_errands()  # what a thread told before the caller heard of it comes first
            function()
        else:
            with suppress(RuntimeError):  # the scheduler has ended, and the actor with it
                self.runtime.hand_over(function)

    def become(self, state: ActorState) -> None:
        """Change the state and wake those who wait for a change."""
        self.state = state
        if self.pulse is not None:
            self.pulse.set()
            self.pulse = None

    async def until(self, condition: Callable[[Cell], bool]) -> None:
        """Wait for a change of state that makes the condition true."""
        while not condition(self):
            if self.pulse is None:
                self.pulse = anyio.Event()
            await self.pulse.wait()

    async def until_gone(self) -> StopReason:
        """Wait until the actor has stopped for good."""
        while self.reason is None:
            await self.until(lambda cell: cell.reason is not None)
        return self.reason

    # --- ending ---------------------------------------------------------------------------------------

    def stop(self, drain_timeout: float | None, *, by_itself: bool = False) -> None:
        """Stop gracefully within so many seconds."""
        timeout = self.runtime.drain_timeout if drain_timeout is None else drain_timeout
        self.stop_at(self.runtime.backend.now() + timeout, by_itself=by_itself)

    def stop_at(self, deadline: float, *, by_itself: bool = False) -> None:
        """Stop gracefully, at the latest at a time of the scheduler's clock."""
        if self.state == "stopped":
            return
        # Told to stop from outside, even a permanent actor stays down.
        self.by_itself = by_itself and (self.by_itself or not self.closing)
        self.closing = True
        self.stop_deadline = min(self.stop_deadline, deadline)
        was_idle = self.mailbox.idle
        self.mailbox.close()
        self.mailbox.idle = False
        if not self.launched:
            self.finish(StopReason("stopped"))
            return
        if self.life is not None and self.life.nursery is not None:
            # A timer costs as much as the rest of the stop, and an idle actor with nothing to wait for needs none.
            if not was_idle or self.life.has_company() or self.life.has_hook("stopping"):
                self.life.nursery.cancel_scope.deadline = self.stop_deadline
            if self.state == "running":
                self.state = "stopping"
        self.runtime.backend.unpark(self)

    def kill(self) -> None:
        """Cancel everything now."""
        self.doomed = self.closing = True
        self.mailbox.close()
        if not self.launched:
            self.finish(StopReason("killed"))
            return
        self._cancel()
        self.runtime.backend.unpark(self)

    def fail(self, error: BaseException) -> None:
        """Crash from the side: a background task, an inline handler, or a child beyond repair."""
        self.failure = self.failure or error
        self._cancel()

    def halt(self, error: BaseException | None) -> None:
        """End this incarnation for the sake of the group, and hold still."""
        if self.launched:
            self.halting = True
            self.halt_error = error
            self._cancel()

    def release(self) -> None:
        """Go on after the restart of the group."""
        if self.holding:
            self.holding = self.halting = False
            self.halt_error = None
            self.state = "starting"
            self.runtime.backend.unpark(self)

    def _cancel(self) -> None:
        self.mailbox.idle = False  # an ask in this very pass must not run inline any more
        self.cut = True
        if self.life is not None and self.life.nursery is not None:
            self.life.nursery.cancel_scope.cancel()

    def finish(self, reason: StopReason) -> None:
        """The end: account for every message, answer every ask, tell everyone."""
        if self.state == "stopped":
            return
        self.reason = reason
        self.mailbox.idle = False
        self.mailbox.close()
        for item in self.mailbox.queue:
            if not isinstance(item, Call):
                self.bury(item, "stopped")
            elif item.state == ENDED:
                self.withdrawn += 1
            else:
                item.fail(self.stopped_error(item.message))
                self.bury(item.message, "stopped")
        self.mailbox.queue.clear()
        watchers, self.watchers = self.watchers, None
        for watcher in watchers or ():
            watcher.signal_death(self, reason)
        self.life = self.suspect = None
        self.holding = False
        self.family.leave(self)
        self.become("stopped")

    # --- accounting -----------------------------------------------------------------------------------

    def bury(self, message: Any, reason: DeadReason, error: BaseException | None = None) -> None:
        """Send a message to dead letters."""
        self.dead_lettered += 1
        self.runtime.dead_letters.put(DeadLetter(message, self.path, reason, error))

    def stopped_error(self, message: Any) -> ActorStopped:
        """What the sender of a message gets that came too late."""
        return stopped_error(self.path, message, self.reason)

    def statistics(self) -> ActorStatistics:
        """The counts at this instant."""
        life = self.life
        return ActorStatistics(
            path=self.path,
            state="paused" if self.paused and self.state == "running" else self.state,
            mailbox_length=len(self.mailbox.queue),
            mailbox_capacity=self.mailbox.capacity,
            senders_waiting=len(self.mailbox.senders or ()),
            handled=self.handled,
            inline=self.inline_handled,
            withdrawn=self.withdrawn,
            dead_lettered=self.dead_lettered,
            crashes=self.crashes,
            restarts=self.restarts,
            children=len(life.children.members) if life is not None and life.children is not None else 0,
            tasks=len(life.tasks) if life is not None and life.tasks is not None else 0,
        )

    def tree(self) -> ActorTree:
        """This actor and those below it."""
        life = self.life
        members = life.children.members.values() if life is not None and life.children is not None else ()
        return ActorTree(self.name, self.statistics(), tuple(child.tree() for child in members))


_NO_TABLE: dict[type, Entry] = {}
"""Shared by actors without an incarnation; never written to."""
