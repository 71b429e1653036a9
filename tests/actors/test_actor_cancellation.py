"""Errors that come with a cancellation.

An actor's code may raise some while it is cancelled, which trio puts into one group with the cancellation. And an
asyncio task or future that it waits for may be cancelled, which raises the same as its own cancellation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NoReturn, cast

import anyio
import pytest
from actor_cast import Add, Boom, Note, Player

from repertory.actors import ActorContext, ActorRef, ActorSystem, Supervision, handler, open_system
from repertory.errors import ActorFailed, ActorStopped


async def clean_up_badly() -> None:
    """Wait in a task group of which a task raises ``Boom`` when it is cancelled."""

    async def fail() -> NoReturn:
        try:
            await anyio.sleep_forever()
        finally:
            raise Boom("while cleaning up")

    async with anyio.create_task_group() as group:
        group.start_soon(fail)
        await anyio.sleep_forever()


class InHandler:
    """Its handler fails when it is cancelled."""

    @handler
    async def begin(self, _: Note) -> None:
        """Wait."""
        await clean_up_badly()


class InTask(Player):
    """Its background task fails when it is cancelled."""

    def started(self, ctx: ActorContext) -> None:
        """Begin the task."""
        ctx.start_soon(clean_up_badly)


class InLastHook(Player):
    """Its last hook fails when its time is over."""

    async def stopped(self, _: ActorContext) -> None:
        """Wait for longer than it may."""
        await clean_up_badly()


Ending = Callable[[ActorRef[Any]], Awaitable[None]]


async def _kill(ref: ActorRef[Any]) -> None:
    ref.kill()
    await ref.wait_stopped()


async def _stop(ref: ActorRef[Any]) -> None:
    ref.stop(drain_timeout=0)
    await ref.wait_stopped()


async def _begin(system: ActorSystem, kind: type) -> ActorRef[Any]:
    ref = system.spawn(kind)
    ref.tell(Note("begin"))
    await anyio.wait_all_tasks_blocked()
    return ref


@pytest.mark.parametrize("end", [_kill, _stop])
@pytest.mark.parametrize("kind", [InHandler, InTask, InLastHook])
def test_an_error_during_a_cancellation_ends_one_actor_alone(run_async: Any, kind: type, end: Ending) -> None:
    """The others go on, and the block of the system is left without an error."""

    async def main() -> None:
        async with open_system(cleanup_timeout=0) as system:
            other = system.spawn(Player)
            await end(await _begin(system, kind))
            assert await other.ask(Add(2)) == 2

    run_async(main)


@pytest.mark.parametrize("kind", [InHandler, InTask, InLastHook])
def test_an_error_during_a_cancellation_is_logged(run_async: Any, caplog: Any, kind: type) -> None:
    """It is the actor's own crash, or the failure of its last hook."""

    async def main() -> None:
        async with open_system(cleanup_timeout=0) as system:
            await _kill(await _begin(system, kind))

    run_async(main)
    assert "while cleaning up" in caplog.text


@pytest.mark.parametrize("kind", [InHandler, InTask, InLastHook])
def test_what_ends_the_block_is_not_hidden_by_an_error_during_the_cancellation(run_async: Any, kind: type) -> None:
    """An error of the block comes out as it is, and a scope around it catches its cancellation."""

    async def main() -> None:
        with pytest.raises(KeyError):
            async with open_system(cleanup_timeout=0) as system:
                await _begin(system, kind)
                raise KeyError
        with anyio.CancelScope() as scope:
            async with open_system(cleanup_timeout=0) as system:
                await _begin(system, kind)
                scope.cancel()
                await anyio.sleep_forever()
        assert scope.cancelled_caught

    run_async(main)


def test_the_failure_of_an_actor_is_not_hidden_by_the_end_of_the_block(run_async: Any) -> None:
    """A block that fails while it is cancelled for an actor's failure raises that failure, with its own as context."""

    class Failing:
        @handler
        def fail(self, _: Note) -> None:
            raise Boom("first")

    async def main() -> None:
        with pytest.raises(ActorFailed, match="first") as caught:
            async with open_system(supervision=Supervision(max_restarts=0)) as system:
                system.spawn(Failing).tell(Note(""))
                await clean_up_badly()
        assert isinstance(caught.value.__context__, BaseExceptionGroup)

    run_async(main)


def test_a_lazy_actor_does_not_outlive_a_cancelled_block(run_async: Any) -> None:
    """It has no task to cancel, and is ended all the same."""

    async def main() -> None:
        with anyio.CancelScope() as scope:
            async with open_system() as system:
                ref = system.spawn(Player, lazy=True)
                scope.cancel()
                await anyio.sleep_forever()
        assert (await ref.wait_stopped()).kind == "killed"

    run_async(main)


class Ancestor:
    """Spawns a child, which spawns a child, and so on; the last one says so."""

    def __init__(self, last: anyio.Event) -> None:
        self.last = last

    @handler
    def begin(self, generations: int, ctx: ActorContext) -> None:
        """Go on below."""
        if generations:
            ctx.spawn(partial(Ancestor, self.last)).tell(generations - 1)
        else:
            self.last.set()


def test_a_deep_tree_is_killed(run_async: Any) -> None:
    """Each level handed its cancellation up in one more group, and at such a depth trio itself failed."""

    async def main() -> None:
        last = anyio.Event()
        async with open_system() as system:
            ref = system.spawn(partial(Ancestor, last))
            ref.tell(350)
            await last.wait()
            ref.kill()
            await ref.wait_stopped()
            assert system.statistics().actors == 0

    run_async(main)


async def wait_for_what_is_cancelled() -> None:
    """Wait for a future that somebody has given up."""
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


class WaitsInHandler:
    """Its handler waits for what is cancelled."""

    @handler(Add)
    async def add(self, _: Add) -> int:
        """Wait."""
        await wait_for_what_is_cancelled()
        return 0


class LooksInPlainHandler:
    """Its handler, which may run in the asker's task, looks at what is cancelled."""

    @handler
    def add(self, _: Add) -> int:
        """Look."""
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        return cast("int", future.result())


class WaitsInTask(Player):
    """Its background task waits for what is cancelled."""

    @handler(Add)
    async def add(self, _: Add, ctx: ActorContext) -> int:  # type: ignore[override]
        """Begin the task, and wait for its end."""
        ctx.start_soon(wait_for_what_is_cancelled)
        await anyio.sleep_forever()
        return 0


class WaitsInHook(Player):
    """Its hook waits for what is cancelled."""

    async def started(self, _: ActorContext) -> None:
        """Wait."""
        await wait_for_what_is_cancelled()


async def crash_of_one(kind: type) -> BaseException:
    """The error by which an actor crashes once, while another one in its system goes on."""
    supervision = Supervision(max_restarts=0, when_exceeded="stop")
    async with open_system(supervision=supervision) as system:
        ref = system.spawn(kind)
        await anyio.wait_all_tasks_blocked()  # a plain handler now runs in this task
        with pytest.raises((ActorFailed, ActorStopped)):
            await ref.ask(Add())
        reason = await ref.wait_stopped()
        assert system.statistics().crashes == 1
        assert await system.spawn(Player).ask(Add(2)) == 2
        assert reason.error is not None
        return reason.error


@pytest.mark.parametrize("kind", [WaitsInHandler, LooksInPlainHandler, WaitsInTask, WaitsInHook])
def test_what_is_cancelled_elsewhere_is_a_crash(kind: type) -> None:
    """It was taken for the end of the actor, and of the block of the system with all its actors."""

    async def main() -> None:
        error = await crash_of_one(kind)
        assert isinstance(error, RuntimeError)
        assert isinstance(error.__cause__, asyncio.CancelledError)

    anyio.run(main, backend="asyncio")


class Panic(BaseException):
    """What an extension in Rust raises."""


class PanicsInHandler(Player):
    """Its handler panics."""

    @handler(Add)
    async def add(self, _: Add) -> int:  # type: ignore[override]
        """Panic."""
        raise Panic("no such column")


class PanicsInPlainHandler(Player):
    """Its handler, which may run in the asker's task, panics."""

    @handler(Add)
    def add(self, _: Add) -> int:  # type: ignore[override]
        """Panic."""
        raise Panic("no such column")


class PanicsInTask(Player):
    """Its background task panics."""

    @handler(Add)
    async def add(self, _: Add, ctx: ActorContext) -> int:  # type: ignore[override]
        """Begin the task, and wait for its end."""

        async def panic() -> None:
            raise Panic("no such column")

        ctx.start_soon(panic)
        await anyio.sleep_forever()
        return 0


class PanicsInHook(Player):
    """Its hook panics."""

    async def started(self, _: ActorContext) -> None:
        """Panic."""
        raise Panic("no such column")


@pytest.mark.parametrize("kind", [PanicsInHandler, PanicsInPlainHandler, PanicsInTask, PanicsInHook])
def test_a_panic_is_a_crash(kind: type, run_async: Any) -> None:
    """It is no ``Exception``, and ended the block of the system with all its actors."""

    async def main() -> None:
        error = await crash_of_one(kind)
        assert str(error) == "it raised Panic: no such column"
        assert isinstance(error.__cause__, Panic)

    run_async(main)


def test_a_last_hook_may_wait_for_what_is_cancelled() -> None:
    """That is logged like any of its failures."""

    class WaitsInLastHook(Player):
        async def stopped(self, _: ActorContext) -> None:
            await wait_for_what_is_cancelled()

    async def main() -> None:
        async with open_system() as system:
            ref = system.spawn(WaitsInLastHook)
            await ref.ask(Add())
            ref.kill()
            assert (await ref.wait_stopped()).kind == "killed"
            assert await system.spawn(Player).ask(Add(2)) == 2

    anyio.run(main, backend="asyncio")
