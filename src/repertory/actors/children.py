"""The children of one actor, or of the system: spawning, supervising, stopping them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import anyio

from repertory.actors.backend import Nursery
from repertory.actors.cell import Cell
from repertory.actors.dispatch import blueprint
from repertory.actors.lifecycle import StopReason
from repertory.actors.options import SpawnOptions, settings_of
from repertory.actors.refs import ActorRef
from repertory.actors.supervision import Comeback, RestartHistory, Supervision
from repertory.errors import ActorFailed, ActorStopped, ConfigurationError

if TYPE_CHECKING:
    from repertory.actors.runtime import Runtime


class Children:
    """Living actors with one parent, in the order they were started, and the policy they live under.

    Attributes:
        parent: Their parent; None at the top of the tree.
        members: The children by name. A child that stops leaves.
        nursery: Where their tasks live. It belongs to the parent's incarnation, so a parent outlives its children.
    """

    def __init__(
        self,
        runtime: Runtime,
        parent: Cell | None,
        nursery: Nursery,
        policy: Supervision | None,
        escalate: Callable[[BaseException], None],
    ) -> None:
        self.runtime = runtime
        self.parent = parent
        self.members: dict[str, Cell] = {}
        self.nursery = nursery
        self.closed = False
        self._policy = policy or Supervision()
        self._escalate = escalate
        self._history = RestartHistory()
        self._group_lock = anyio.Lock()
        self._spawned = 0

    def spawn(self, factory: Callable[[], object], name: str | None, options: SpawnOptions) -> ActorRef[Any]:
        """Start a child; see ``ActorContext.spawn``."""
        settings = settings_of(options)
        if isinstance(factory, type):
            blueprint(factory)  # a class that cannot be an actor is the spawner's mistake, not a crash of the actor
        self._spawned += 1
        if name is None:
            name = f"{getattr(factory, '__name__', 'actor').strip('<>').lower()}-{self._spawned}"
        if not name or "/" in name:
            raise ConfigurationError(f"an actor cannot be named {name!r}: a name is not empty and has no slash")
        if name in self.members:
            raise ConfigurationError(f"{self.members[name].path} exists already; names of living siblings differ")
        if self.closed:
            raise ActorStopped(f"cannot spawn {name!r}: its parent is stopping")
        cell = Cell(self, factory, name, settings)
        self.members[name] = cell
        self.runtime.actors += 1
        self.runtime.spawned += 1
        if not settings.lazy:
            cell.launch()
        return cell.ref

    def leave(self, cell: Cell) -> None:
        """A child is gone for good."""
        del self.members[cell.name]
        self.runtime.actors -= 1

    async def stop_all(self, deadline: float | None = None) -> None:
        """Stop the children one by one, the last started first, and spawn no more.

        Args:
            deadline: For all of them; None gives each the drain time of the system.
        """
        self.closed = True
        while self.members:
            cell = next(reversed(self.members.values()))
            if deadline is None:
                cell.stop(None)
            else:
                cell.stop_at(deadline)
            await cell.until_gone()

    def sweep(self) -> None:
        """The nursery is gone: end those lazy children that never had a task to be cancelled."""
        self.closed = True
        for cell in list(self.members.values()):
            cell.finish(StopReason("killed"))

    def decide(self, cell: Cell, error: BaseException) -> StopReason | Comeback:
        """Decide about a child that crashed, or about a permanent one that stopped itself."""
        policy = self._policy
        if cell.settings.restart == "temporary":
            return StopReason("failed", error)
        alone = policy.strategy == "one-for-one"
        if alone and cell.history is None:
            cell.history = RestartHistory()
        history = cell.history if alone and cell.history is not None else self._history
        delay = history.allow(policy, self.runtime.backend.now())
        if delay is not None:
            return Comeback(error, delay, grouped=not alone)
        if policy.when_exceeded == "escalate":
            limit = f"{policy.max_restarts} restarts in {policy.period:g} s"
            failure = ActorFailed(f"{cell.path} needed more than {limit}: {type(error).__name__}: {error}")
            failure.__cause__ = error
            self._escalate(failure)
        return StopReason("failed", error)

    def restart_group(self, failed: Cell, comeback: Comeback) -> None:
        """Restart a crashed child, which holds still, together with its group."""
        self.nursery.start_soon(self._restart_group, failed, comeback, name=f"{failed.path} restart group")

    async def _restart_group(self, failed: Cell, comeback: Comeback) -> None:
        """Halt the group last to first, wait, and start it first to last, one after the other."""
        async with self._group_lock:
            if not failed.holding:
                return  # it was restarted together with another that crashed at the same time, or is gone
            group = list(self.members.values())
            if self._policy.strategy == "rest-for-one":
                group = group[group.index(failed) :]
            for cell in reversed(group):
                if cell is failed:
                    continue
                if cell.settings.restart == "temporary":
                    cell.kill()
                else:
                    cell.halt(comeback.error)
                await cell.until(lambda cell: cell.holding or cell.state == "stopped" or not cell.launched)
            await anyio.sleep(comeback.delay)
            for cell in group:
                cell.release()
                await cell.until(lambda cell: cell.state != "starting")
