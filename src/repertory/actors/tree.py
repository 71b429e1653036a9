"""The tree of actors: the state of each actor, what others may do to it, and how parents supervise children.

A node lasts over all incarnations of its actor; ``actor_task.py`` is its task.
Everything here is synchronous, or waits, and runs in the scheduler's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import anyio

from repertory._cancelling import crash_of
from repertory._choices import show
from repertory._repeated_event import RepeatedEvent
from repertory.actors.handlers import Blueprint, HandlerMethod, blueprint_of
from repertory.actors.mailbox import NEVER, Mailbox
from repertory.actors.observation import ActorState, StopReason
from repertory.actors.runtime import Runtime
from repertory.actors.scheduler import Nursery, start_soon
from repertory.actors.supervision import RestartHistory, RestartPlan, SpawnOptions, Supervision, settings_of
from repertory.errors import ActorFailed, ActorStopped, ConfigurationError

Signal: TypeAlias = "Literal['pause', 'resume'] | ActorNode"
"""What overtakes the messages in a mailbox; an actor that was watched means that it is gone."""


@dataclass(slots=True, eq=False, repr=False)
class ActorNode:
    """One actor as the runtime sees it.

    There is a flag for each thing that may be asked of an actor, since requests overlap: it may be told to stop while
    its group is being restarted. The task checks all of them when it decides.
    """

    siblings: Children
    factory: Callable[[], object]
    name: str
    mailbox: Mailbox = field(init=False)
    ref: Any = None  # its only ActorRef, which is made above this module
    state: ActorState = "new"
    state_changed: RepeatedEvent = field(default_factory=RepeatedEvent)
    control: deque[Signal] | None = None  # overtakes the messages
    watchers: set[ActorNode] | None = None  # signalled when it has stopped for good
    history: RestartHistory | None = None  # its own, if each child has one
    crashes: int = 0
    restarts: int = 0

    # Of one incarnation, and empty when there is none.
    actor: Any = None  # the object with the handlers, from the factory to its last hook
    context: Any = None  # what its hooks and handlers are given: an ActorContext
    blueprint: Blueprint | None = None  # what its class can do
    nursery: Nursery | None = None  # where its children and background tasks live
    children: Children | None = None
    tasks: set[anyio.CancelScope] | None = None  # the scopes of its background tasks
    watching: set[ActorNode] | None = None  # the actors that it watches

    # What is asked of it.
    paused: bool = False
    closing: bool = False  # told to stop, gracefully or not
    stopped_itself: bool = False  # so it is restarted if it is permanent
    stop_deadline: float = NEVER  # when a graceful stop is over
    killed: bool = False  # is never restarted
    cancelled: bool = False  # the incarnation is to end now
    failure: BaseException | None = None  # the crash that ends it
    halted: RestartPlan | None = None  # it ends because its group is restarted, with a sibling that crashed
    awaits_group: bool = False  # it waits until the group is restarted

    # --- waking and waiting ---------------------------------------------------------------------------

    def launch(self) -> None:
        """Start the actor's task."""
        box = self.mailbox
        box.launch = None
        box.idle = False
        self.state = "starting"
        start_soon(self.siblings.nursery, self.siblings.run, self, name=box.path)

    def signal(self, signal: Signal) -> None:
        """Send a signal, which overtakes the mailbox."""
        if self.state == "stopped":
            return
        self.control = self.control or deque()
        self.control.append(signal)
        self.mailbox.wake()

    def change_state(self, state: ActorState) -> None:
        """Change the state and wake those who wait for a change."""
        self.state = state
        self.state_changed.set()

    async def wait_stopped(self) -> StopReason:
        """Wait until the actor has stopped for good."""
        while (reason := self.mailbox.reason) is None:
            await self.state_changed.wait()
        return reason

    # --- handling in the asker's task -----------------------------------------------------------------

    def handle_inline(self, found: HandlerMethod, request: Any) -> Any:
        """Handle a request in the asker's task. The handler cannot suspend, so nothing else can run in between."""
        box = self.mailbox
        box.idle = False
        try:
            if found.wants_context:
                return found.function(self.actor, request, self.context)
            return found.function(self.actor, request)
        except found.expected:
            raise
        except BaseException as raised:  # noqa: BLE001 - the supervisor decides
            error = crash_of(raised)
            box.send_to_dead_letters(request, "failed", error)
            self.fail(error)
            raise box.failed_error(request, error, "crashed on") from error
        finally:
            if self.failure is None:
                box.handled += 1
                box.handled_inline += 1
                if box.queue or self.control or self.closing:
                    box.wake()
                else:
                    box.idle = True

    # --- ending ---------------------------------------------------------------------------------------

    def stop(self, drain_timeout: float | None, *, by_itself: bool = False) -> None:
        """Stop gracefully within ``drain_timeout`` seconds; None for the system's drain time."""
        if self.state == "stopped":
            return
        box = self.mailbox
        timeout = box.runtime.drain_timeout if drain_timeout is None else drain_timeout
        # Told to stop from outside, even a permanent actor stays down.
        self.stopped_itself = by_itself and (self.stopped_itself or not self.closing)
        self.closing = True
        self.stop_deadline = min(self.stop_deadline, box.runtime.scheduler.now() + timeout)
        was_idle = box.idle
        box.close()
        if self.state == "new":
            self.finish(StopReason("stopped"))
            return
        if self.nursery is not None:
            # A timer costs as much as the rest of the stop; an idle actor with nothing to wait for needs none.
            if not was_idle or self.watching or self.has_children_or_tasks() or self.has_hook("stopping"):
                self.nursery.cancel_scope.deadline = self.stop_deadline
            if self.state == "running":
                self.state = "stopping"
        box.runtime.scheduler.unpark(box)

    def kill(self) -> None:
        """Cancel everything now."""
        box = self.mailbox
        self.killed = self.closing = True
        box.close()
        if self.state == "new":
            self.finish(StopReason("killed"))
            return
        self._cancel()
        box.runtime.scheduler.unpark(box)

    def fail(self, error: BaseException) -> None:
        """Crash because of a background task, an inline handler, or a child that was restarted too often."""
        self.failure = self.failure or error
        self._cancel()

    def halt(self, plan: RestartPlan) -> None:
        """End this incarnation for a restart of the group, and wait for that."""
        if self.state != "new":
            self.halted = plan
            self._cancel()

    def release(self) -> None:
        """End the wait for the group: this actor's turn to restart has come."""
        if self.awaits_group:
            self.awaits_group, self.halted = False, None
            self.state = "starting"
            self.mailbox.runtime.scheduler.unpark(self.mailbox)

    def _cancel(self) -> None:
        self.mailbox.idle = False  # an ask in this same scheduler pass must no longer run inline
        self.cancelled = True
        if self.nursery is not None:
            self.nursery.cancel_scope.cancel()

    def has_children_or_tasks(self) -> bool:
        """Whether there are, or may be, other tasks in the nursery."""
        return self.children is not None or bool(self.tasks)

    def has_hook(self, name: str) -> bool:
        """Whether the actor has been made and has this hook."""
        return self.blueprint is not None and name in self.blueprint.hooks

    def close_nursery(self) -> None:
        """End what runs in the nursery, and start nothing there any more: it closes a pass before its block is left.

        A lazy child would otherwise be started by a message in that pass: trio refuses, and asyncio would detach it.
        """
        self.mailbox.idle = False
        if self.children is not None:
            self.children.kill_all()
        if self.nursery is not None and self.has_children_or_tasks():
            self.nursery.cancel_scope.cancel()
        self.nursery = None

    def end_incarnation(self) -> None:
        """Clean up after an incarnation: its tasks and children are gone; its last hook is still to be called."""
        box = self.mailbox
        box.handlers = None
        box.asking = None
        self.children = None
        for node in self.watching or ():
            if node.watchers is not None:
                node.watchers.discard(self)
        self.watching = None

    def finish(self, reason: StopReason) -> None:
        """End the actor for good: deal with every message, answer every ask, signal all watchers."""
        self.mailbox.end(reason)
        watchers, self.watchers = self.watchers, None
        for watcher in watchers or ():
            watcher.signal(self)
        self.awaits_group = False
        del self.siblings.members[self.name]
        self.siblings.runtime.actors -= 1
        self.change_state("stopped")

    # --- being watched --------------------------------------------------------------------------------

    def add_watcher(self, watcher: ActorNode) -> None:
        """Signal a watcher when this actor has stopped for good, or at once if it has."""
        if self.mailbox.reason is not None:
            watcher.signal(self)
            return
        self.watchers = self.watchers or set()
        self.watchers.add(watcher)


@dataclass(slots=True, eq=False, repr=False)
class Children:
    """The living children of one parent, in the order in which they were started, and their supervision policy."""

    runtime: Runtime
    parent: ActorNode | None  # None at the top of the tree
    nursery: Nursery  # of their tasks; it is the parent's incarnation's, so a parent outlives its children
    run: Callable[[ActorNode], Coroutine[Any, Any, None]]  # an actor's task; passed in, as its module is above this one
    policy: Supervision
    members: dict[str, ActorNode] = field(default_factory=dict[str, ActorNode])  # by name; a child that stops leaves
    closed: bool = False
    _history: RestartHistory = field(default_factory=RestartHistory)
    _group_lock: anyio.Lock = field(default_factory=anyio.Lock)
    _spawned: int = 0

    def spawn(self, factory: Callable[[], object], name: str | None, options: SpawnOptions) -> ActorNode:
        """Start a child; see ``ActorContext.spawn``."""
        settings = settings_of(options)
        if not callable(factory):
            raise ConfigurationError(f"expected a class of actors, or a function that makes one, got {show(factory)}")
        if isinstance(factory, type):
            blueprint_of(factory)  # a class that cannot be an actor is the caller's mistake, not a crash of the actor
        if name is None:
            kind = getattr(factory, "__name__", "actor").strip("<>").lower()
            while name is None or name in self.members:  # somebody may have chosen such a name
                self._spawned += 1
                name = f"{kind}-{self._spawned}"
        if not isinstance(name, str) or not name or "/" in name:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"an actor cannot be named {show(name)}: a name is text, not empty, with no slash")
        path = f"{'' if self.parent is None else self.parent.mailbox.path}/{name}"
        if name in self.members:
            raise ConfigurationError(f"{path} exists already; names of living siblings differ")
        if self.closed:
            raise ActorStopped(f"cannot spawn {name!r}: its parent is stopping")
        node = self.members[name] = ActorNode(self, factory, name)
        node.mailbox = Mailbox(path, self.runtime, settings, node.launch, self.runtime.thread, settings.capacity)
        self.runtime.actors += 1
        self.runtime.spawned += 1
        if not settings.lazy:
            node.launch()
        return node

    async def stop_all(self, deadline: float | None = None) -> None:
        """Stop the children one by one, the last started first, and spawn no more.

        The deadline is for all of them; None gives each the drain time of the system.
        """
        self.closed = True
        while self.members:
            node = next(reversed(self.members.values()))
            node.stop(None if deadline is None else deadline - self.runtime.scheduler.now())
            await node.wait_stopped()

    def kill_all(self) -> None:
        """Kill the children that are left, and spawn no more."""
        self.closed = True
        for node in list(self.members.values()):
            node.kill()

    def decide(self, node: ActorNode, error: BaseException) -> StopReason | RestartPlan:
        """Decide about a child that crashed, or about a permanent one that stopped itself."""
        policy = self.policy
        if node.mailbox.settings.restart == "temporary":
            return StopReason("failed", error)
        history, alone = self._history, policy.strategy == "one-for-one"
        if alone:
            history = node.history = node.history or RestartHistory()
        delay = history.allow(policy, self.runtime.scheduler.now())
        if delay is not None:
            return RestartPlan(error, delay, grouped=not alone)
        if policy.when_exceeded == "escalate":
            limit = f"{policy.max_restarts} restarts in {policy.period:g} s"
            failure = ActorFailed(f"{node.mailbox.path} needed more than {limit}: {type(error).__name__}: {error}")
            failure.__cause__ = error
            if self.parent is not None:
                self.parent.fail(failure)
            else:  # it ends the system
                self.runtime.failure = self.runtime.failure or failure
                self.nursery.cancel_scope.cancel()
        return StopReason("failed", error)

    async def restart(self, failed: ActorNode, plan: RestartPlan) -> None:
        """Halt the group of a crashed child from last to first, wait, and start it from first to last, one by one."""
        async with self._group_lock:
            if not failed.awaits_group:
                return  # it was restarted together with another that crashed at the same time, or has stopped
            group = list(self.members.values())
            if self.policy.strategy == "rest-for-one":
                group = group[group.index(failed) :]
            for node in reversed(group):
                if node is failed:
                    continue
                if node.mailbox.settings.restart == "temporary":
                    node.kill()
                else:
                    node.halt(plan)
                while not (node.awaits_group or node.state in ("stopped", "new")):
                    await node.state_changed.wait()
            await anyio.sleep(plan.delay)
            for node in group:
                node.release()
                while node.state == "starting":
                    await node.state_changed.wait()
