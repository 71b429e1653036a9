"""Actor systems: ``open_system`` and ``ActorSystem``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from repertory._choices import check_number, check_seconds, check_type
from repertory.actors.actor_task import run_actor
from repertory.actors.context import Spawner
from repertory.actors.observation import DeadLetter, DeadLetters, SystemStatistics
from repertory.actors.runtime import Runtime
from repertory.actors.scheduler import TimingWheel, current_scheduler
from repertory.actors.supervision import Supervision
from repertory.actors.tree import Children


class ActorSystem(Spawner):
    """A tree of actors. Made by ``open_system``; all actors are gone when its block is left."""

    def __init__(self, runtime: Runtime, top: Children) -> None:
        self._runtime = runtime
        self._top = top

    def _open_children(self) -> Children:
        return self._top

    @property
    def dead_letters(self) -> DeadLetters:
        """The messages that were not handled."""
        return self._runtime.dead_letters

    def statistics(self) -> SystemStatistics:
        """The system's counts at this instant."""
        runtime = self._runtime
        return SystemStatistics(
            actors=runtime.actors,
            spawned=runtime.spawned,
            crashes=runtime.crashes,
            restarts=runtime.restarts,
            asks_timed_out=runtime.asks_timed_out,
            asks_with_deadline=len(runtime.wheel),
            dead_letters=runtime.dead_letters.counts,
        )

    async def wait_stopped(self) -> None:
        """Wait until all actors have stopped."""
        while self._top.members:
            await next(iter(self._top.members.values())).wait_stopped()


@asynccontextmanager
async def open_system(
    name: str = "system",
    *,
    supervision: Supervision | None = None,
    drain_timeout: float = 5.0,
    cleanup_timeout: float = 5.0,
    timer_resolution: float = 0.05,
    on_dead_letter: Callable[[DeadLetter], None] | None = None,
) -> AsyncGenerator[ActorSystem]:
    """Open a system of actors.

    Leaving the block stops all actors gracefully, one after the other, the last started first. An error in the
    block, or its cancellation, kills them. Either way none is left afterwards.

    Args:
        name: Used in the names of its tasks.
        supervision: How actors at the top are supervised; None for the defaults of ``Supervision``.
        drain_timeout: Seconds that an actor at the top has to handle its accepted messages and to stop its children,
            if it is stopped without a timeout of its own. Infinity sets no limit.
        cleanup_timeout: Seconds for each ``stopped`` and ``restarting`` hook, which are shielded from cancellation.
            Infinity sets no limit.
        timer_resolution: Precision of the deadlines of asks, in seconds, at least 0.001: they are never early, and at
            most this late.
        on_dead_letter: Called with each dead letter, in the scheduler's thread; must not block. A dead letter
            that a message of its own leads to is counted and kept, but not shown to it.

    Yields:
        The system.

    Raises:
        ConfigurationError: ``supervision`` is none, or a number of seconds is none or out of range.
        ActorFailed: An actor at the top failed more often than ``supervision`` allows; ``__cause__`` has its error.
    """
    check_type("supervision", supervision, Supervision | None, "Supervision(…), or None for its defaults")
    check_seconds("drain_timeout", drain_timeout)
    check_seconds("cleanup_timeout", cleanup_timeout)
    check_number("timer_resolution", timer_resolution, int | float, least=0.001)
    scheduler = current_scheduler()
    wheel = TimingWheel(scheduler, timer_resolution)
    runtime = Runtime(scheduler, wheel, drain_timeout, cleanup_timeout, DeadLetters(on_dead_letter))
    failure: BaseException | None = None
    try:
        async with runtime.scheduler.open_nursery() as nursery:
            top = Children(runtime, None, nursery, run_actor, supervision or Supervision())
            nursery.start_soon(runtime.serve_foreign_calls, name=f"{name} courier")
            nursery.start_soon(runtime.wheel.run, name=f"{name} timing wheel")
            try:
                yield ActorSystem(runtime, top)
                runtime.run_foreign_calls()
                await top.stop_all()
            except Exception as error:  # noqa: BLE001 - raised again below, without the nursery's group around it
                failure = error
            finally:
                top.kill_all()
                nursery.cancel_scope.cancel()
    except Exception as error:  # noqa: BLE001 - trio groups what the block raised while it was cancelled with Cancelled
        failure = error
    runtime.run_foreign_calls()
    if runtime.failure is not None:
        runtime.failure.__context__ = failure  # how the block reacted to the end of its actors
        raise runtime.failure
    if failure is not None:
        raise failure
