"""The runtime's side of one actor: its state, and what others may do to it.

The cell lives as long as the actor's name does, over all incarnations; ``runner.py`` is its task. Everything here
is synchronous and runs in the scheduler's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from threading import get_ident
from typing import TYPE_CHECKING, Any, Literal

import anyio
import msgspec

from repertory.actors.backend import Nursery
from repertory.actors.calls import ENDED, WAITING, Call, current_cell, failed_error, stopped_error
from repertory.actors.context import ActorContext
from repertory.actors.deadletters import DeadLetter, DeadReason
from repertory.actors.dispatch import Blueprint, Entry, blueprint_of
from repertory.actors.lifecycle import StopReason
from repertory.actors.mailbox import Mailbox
from repertory.actors.options import Settings
from repertory.actors.refs import ActorRef
from repertory.actors.statistics import ActorState, ActorStatistics, ActorTree
from repertory.actors.supervision import RestartHistory
from repertory.errors import ActorStopped, ConfigurationError, UnhandledMessage

if TYPE_CHECKING:
    from repertory.actors.children import Children

logger = logging.getLogger("repertory.actors")

_NEVER = float("inf")


class Death(msgspec.Struct):
    """The control message to a watcher."""

    cell: Cell
    reason: StopReason


class Cell:
    """One actor as the runtime sees it."""

    # Most attributes are one flag each, since what happens to an actor can overlap: it may be told to stop while
    # its group is being restarted. The runner looks at all of them where it decides.
    __slots__ = (
        "actor",
        "asking",
        "blueprint",
        "by_itself",
        "call",
        "children",
        "closing",
        "context",
        "control",
        "crashes",
        "current",
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
        "mailbox",
        "name",
        "nursery",
        "parked",
        "paused",
        "pulse",
        "reason",
        "ref",
        "restarts",
        "settings",
        "state",
        "stop_deadline",
        "suspect",
        "suspect_crashes",
        "system",
        "table",
        "tasks",
        "watchers",
        "watching",
        "withdrawn",
    )

    def __init__(self, family: Children, factory: Callable[[], object], name: str, settings: Settings) -> None:
        # Who it is.
        self.family = family
        self.system = family.system
        self.factory = factory
        self.name = name
        self.settings = settings
        self.mailbox = Mailbox(self, settings.capacity, self.system.thread)
        self.ref: ActorRef[Any] = ActorRef(self)
        # This incarnation.
        self.actor: Any = None
        self.context: ActorContext | None = None
        self.blueprint: Blueprint | None = None
        self.table: dict[type, Entry] = {}
        self.nursery: Nursery | None = None
        self.children: Children | None = None
        self.tasks: set[anyio.CancelScope] | None = None
        self.watching: set[Cell] | None = None
        self.failure: BaseException | None = None
        # The message in hand.
        self.current: Any = None
        self.call: Call | None = None
        self.inline_deadline = _NEVER
        self.asking: set[Call] | None = None
        self.suspect: Any = None
        self.suspect_crashes = 0
        # What was asked of it.
        self.control: list[Death | Literal["pause", "resume"]] | None = None
        self.launched = False
        self.paused = False
        self.closing = False
        self.by_itself = False
        self.stop_deadline = _NEVER
        self.doomed = False
        self.halting = False
        self.halt_error: BaseException | None = None
        self.holding = False
        # Where it is.
        self.state: ActorState = "new"
        self.reason: StopReason | None = None
        self.parked: Any = None
        self.pulse: anyio.Event | None = None
        self.watchers: set[Cell] | None = None
        self.history: RestartHistory = _NO_HISTORY
        self.handled = self.inline_handled = self.withdrawn = self.dead_lettered = self.crashes = self.restarts = 0

    @property
    def path(self) -> str:
        """The place in the tree."""
        parent = self.family.parent
        return f"/{self.name}" if parent is None else f"{parent.path}/{self.name}"

    # --- waking and waiting ---------------------------------------------------------------------------

    def launch(self) -> None:
        """Start the actor's task."""
        from repertory.actors.runner import run  # it needs this module

        self.launched = True
        self.mailbox.idle = False
        self.state = "starting"
        if self.history is _NO_HISTORY:
            self.history = RestartHistory()
        self.family.nursery.start_soon(run, self, name=self.path)

    def wake(self) -> None:
        """Have the actor look at its mailbox."""
        self.mailbox.idle = False
        if self.launched:
            self.system.backend.unpark(self)
        else:
            self.launch()

    def signal(self, signal: Death | Literal["pause", "resume"]) -> None:
        """Put something into the control lane, which overtakes the mailbox."""
        if self.state == "stopped":
            return
        if self.control is None:
            self.control = []
        self.control.append(signal)
        self.wake()

    def in_thread(self, function: Callable[[], None]) -> None:
        """Call a function in the scheduler's thread: now if this is it, else soon."""
        if get_ident() == self.system.thread:
            function()
        else:
            with suppress(RuntimeError):  # the scheduler has ended, and the actor with it
                self.system.backend.post(function)

    def become(self, state: ActorState) -> None:
        """Change the state and wake those who wait for a change."""
        self.state = state
        self.notify()

    def notify(self) -> None:
        """Wake those who wait for a change."""
        if self.pulse is not None:
            self.pulse.set()
            self.pulse = None

    async def until(self, condition: Callable[[Cell], bool]) -> None:
        """Wait for a change that makes the condition true."""
        while not condition(self):
            if self.pulse is None:
                self.pulse = anyio.Event()
            await self.pulse.wait()

    async def until_gone(self) -> StopReason:
        """Wait until the actor has stopped for good."""
        await self.until(lambda cell: cell.reason is not None)
        assert self.reason is not None
        return self.reason

    # --- stopping, halting ----------------------------------------------------------------------------

    def stop(self, drain_timeout: float | None, *, by_itself: bool = False) -> None:
        """Stop gracefully within so many seconds."""
        timeout = self.system.drain_timeout if drain_timeout is None else drain_timeout
        self.stop_at(self.system.backend.now() + timeout, by_itself=by_itself)

    def stop_at(self, deadline: float, *, by_itself: bool = False) -> None:
        """Stop gracefully, at the latest at a time of the scheduler's clock."""
        if self.state == "stopped":
            return
        self.by_itself = by_itself and (self.by_itself or not self.closing)
        self.closing = True
        self.stop_deadline = min(self.stop_deadline, deadline)
        self.mailbox.close()
        self.mailbox.idle = False
        if not self.launched:
            self.finish(StopReason("stopped"))
            return
        if self.nursery is not None:
            self.state = "stopping"
            self.nursery.cancel_scope.deadline = self.stop_deadline
        self.system.backend.unpark(self)

    def kill(self) -> None:
        """Cancel everything now."""
        self.doomed = True
        self.mailbox.close()
        if not self.launched:
            self.finish(StopReason("killed"))
            return
        self._cancel()
        self.system.backend.unpark(self)

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
            self.system.backend.unpark(self)

    def _cancel(self) -> None:
        self.mailbox.idle = False  # an ask in this very pass must not run inline any more
        if self.nursery is not None:
            self.nursery.cancel_scope.cancel()

    def finish(self, reason: StopReason) -> None:
        """The end: account for every message, answer every ask, tell everyone."""
        if self.state == "stopped":
            return
        self.reason = reason
        self.state = "stopped"
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
            watcher.signal(Death(self, reason))
        self.actor = self.context = self.suspect = None
        self.family.leave(self)
        self.notify()

    # --- the incarnation ------------------------------------------------------------------------------

    def begin(self, nursery: Nursery) -> None:
        """Make the actor."""
        self.nursery = nursery
        nursery.cancel_scope.deadline = self.stop_deadline
        self.context = ActorContext(self)
        self.actor = self.factory()
        self.blueprint = blueprint_of(self.actor)
        self.table = self.blueprint.table

    def end(self) -> None:
        """The incarnation's tasks and children are gone; its hook for the farewell is still to come."""
        self.mailbox.idle = False
        self.nursery = None
        self.table = {}
        self.tasks = self.asking = None
        if self.children is not None:
            self.children.sweep()
            self.children = None
        for cell in self.watching or ():
            if cell.watchers is not None:
                cell.watchers.discard(self)
        self.watching = None

    def family_of_its_own(self, context: ActorContext) -> Children:
        """The children of this incarnation."""
        from repertory.actors.children import Children  # it needs this module

        nursery = self._alive(context)
        if self.children is None:
            self.children = Children(self.system, self, nursery, self.settings.supervision, self.fail)
        return self.children

    def _alive(self, context: ActorContext) -> Nursery:
        if self.nursery is None or self.context is not context:
            raise ActorStopped(f"this incarnation of {self.path} has ended")
        return self.nursery

    def start_task(self, context: ActorContext, function: Callable[..., Awaitable[object]], *args: Any) -> None:
        """Start a background task of this incarnation."""
        nursery = self._alive(context)
        scope = anyio.CancelScope()
        if self.tasks is None:
            self.tasks = set()
        self.tasks.add(scope)
        nursery.start_soon(self._run_task, scope, function, args, name=f"{self.path} task")

    async def _run_task(
        self, scope: anyio.CancelScope, function: Callable[..., Awaitable[object]], args: tuple[Any, ...]
    ) -> None:
        current_cell.set(None)  # the mailbox is served meanwhile, so what it asks blocks no chain
        tasks = self.tasks
        try:
            with scope:
                await function(*args)
        except Exception as error:  # noqa: BLE001 - the supervisor decides
            self.fail(error)
        finally:
            if tasks is not None:
                tasks.discard(scope)
            self.system.backend.unpark(self)  # a graceful stop waits for its tasks

    # --- watching -------------------------------------------------------------------------------------

    def watch(self, other: Cell) -> None:
        """Be told of the death of another."""
        if self.blueprint is None or "terminated" not in self.blueprint.hooks:
            raise ConfigurationError(f"{self.path} cannot watch {other.path}: it has no `terminated` hook")
        if self.watching is None:
            self.watching = set()
        if other in self.watching:
            return
        self.watching.add(other)
        if other.reason is not None:
            self.signal(Death(other, other.reason))
            return
        if other.watchers is None:
            other.watchers = set()
        other.watchers.add(self)

    def unwatch(self, other: Cell) -> None:
        """Undo ``watch``."""
        if self.watching is not None:
            self.watching.discard(other)
        if other.watchers is not None:
            other.watchers.discard(self)

    # --- the fate of messages -------------------------------------------------------------------------

    def bury(self, message: Any, reason: DeadReason, error: BaseException | None = None) -> None:
        """Send a message to dead letters."""
        self.dead_lettered += 1
        self.system.dead_letters.put(DeadLetter(message, self.path, reason, error))

    def stopped_error(self, message: Any) -> ActorStopped:
        """What the sender of a message gets that came too late."""
        return stopped_error(self.path, message, self.reason)

    def refuse(self, message: Any, call: Call | None, error: BaseException) -> None:
        """The handler raised an error it expects."""
        if call is not None:
            call.fail(error)
        else:
            self.bury(message, "refused", error)

    def unhandled(self, message: Any, call: Call | None) -> None:
        """There is no handler."""
        if call is not None:
            call.fail(UnhandledMessage(f"{self.path} has no handler for {type(message).__qualname__}"))
        else:
            self.bury(message, "unhandled")

    def crashed_on_current(self, error: BaseException) -> None:
        """The handler of the current message crashed: park it, or put it back for another attempt."""
        item = self._let_go()
        if item is not self.suspect:
            self.suspect = item
            self.suspect_crashes = 0
        self.suspect_crashes += 1
        if self.suspect_crashes < self.settings.attempts:
            self._put_back(item)
            return
        self.suspect = None
        self._park(item, "failed", error, failed_error, "crashed on")

    def interrupted(self) -> None:
        """The incarnation ends in the middle of a message that is not to blame."""
        if self.current is None:
            return
        item = self._let_go()
        cause = self.failure or self.halt_error
        if cause is None:
            self._park(item, "interrupted", None, None, "")
        elif self.settings.attempts > 1 and not self.doomed and not self.closing:
            self._put_back(item)
        else:
            self._park(item, "interrupted", cause, failed_error, "was restarted while handling")

    def _let_go(self) -> Any:
        item, self.current, self.call = self.current, None, None
        return item

    def _put_back(self, item: Any) -> None:
        if isinstance(item, Call) and item.state != ENDED:
            item.state = WAITING
        self.mailbox.queue.appendleft(item)

    def _park(
        self, item: Any, reason: DeadReason, cause: BaseException | None, make_error: Any, what: str
    ) -> None:
        message = item
        if isinstance(item, Call):
            message = item.message
            if cause is None:
                item.fail(self.stopped_error(message))
            else:
                item.fail(make_error(self.path, message, cause, what))
        self.bury(message, reason, cause)

    def run_inline(self, entry: Entry, message: Any, deadline: float) -> Any:
        """Handle a request in the asker's task. The handler cannot suspend, so nothing can come between."""
        box = self.mailbox
        box.idle = False
        self.inline_deadline = deadline
        try:
            if entry.wants_context:
                value = entry.function(self.actor, message, self.context)
            else:
                value = entry.function(self.actor, message)
        except entry.expected:
            self._inline_done()
            raise
        except Exception as error:
            self.bury(message, "failed", error)
            self.fail(error)
            raise failed_error(self.path, message, error, "crashed on") from error
        except BaseException:
            self._inline_done()
            raise
        self._inline_done()
        return value

    def _inline_done(self) -> None:
        box = self.mailbox
        self.inline_deadline = _NEVER
        self.handled += 1
        self.inline_handled += 1
        if box.queue or self.control or box.room < 0:
            self.wake()
        else:
            box.idle = True

    @property
    def current_deadline(self) -> float:
        """When the asker of the current message gives up."""
        return self.inline_deadline if self.call is None else self.call.deadline

    # --- being looked at ------------------------------------------------------------------------------

    def statistics(self) -> ActorStatistics:
        """The counts at this instant."""
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
            children=len(self.children.members) if self.children is not None else 0,
            tasks=len(self.tasks or ()),
        )

    def tree(self) -> ActorTree:
        """This actor and those below it."""
        members = self.children.members.values() if self.children is not None else ()
        return ActorTree(self.name, self.statistics(), tuple(child.tree() for child in members))


_NO_HISTORY = RestartHistory()
"""Shared by actors that were never launched: a lazy actor should cost a kilobyte, not two."""
