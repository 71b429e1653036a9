"""Messages and orders from other OS threads."""

from __future__ import annotations

import asyncio
import math
import threading
from collections import Counter
from collections.abc import Callable
from contextvars import Context
from typing import Any

import anyio
import pytest
from actor_cast import Add, AddSlowly, Note, Player

from repertory.actors import ActorRef, DeadLetter, handler, open_system
from repertory.actors.mailbox import MOST_UNDER_WAY
from repertory.errors import ActorStopped, ConfigurationError, MailboxFull


class Count(Note, frozen=True):
    """A numbered note from a thread."""

    n: int = 0


class Census:
    """Checks that each thread's notes arrive in order."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    @handler
    def count(self, message: Count) -> None:
        """Compare with what came before."""
        assert message.n == self.seen[message.text]
        self.seen[message.text] += 1


async def in_threads(count: int, function: Callable[[int], None]) -> None:
    """Run a function in so many threads at once, and wait for them."""
    threads = [threading.Thread(target=function, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await anyio.to_thread.run_sync(thread.join)


def test_any_thread_may_tell(run_async: Any) -> None:
    """Nothing is lost, and each thread's messages keep their order, while the loop tells as well."""

    async def main() -> None:
        census = Census()
        async with open_system() as system:
            ref = system.spawn(lambda: census)

            def tell(thread: int) -> None:
                for n in range(2000):
                    ref.tell(Count(str(thread), n))

            for n in range(2000):
                ref.tell(Count("loop", n))
            await in_threads(4, tell)
        assert census.seen == {"loop": 2000, **{str(thread): 2000 for thread in range(4)}}
        assert system.dead_letters.total == 0

    run_async(main)


def test_a_thread_wakes_an_idle_or_lazy_actor(run_async: Any) -> None:
    """Also when nothing else happens in the loop."""

    async def main() -> None:
        diary: list[str] = []
        async with open_system() as system:
            refs = [system.spawn(lambda: Player(diary)), system.spawn(lambda: Player(diary), lazy=True)]
            await anyio.wait_all_tasks_blocked()
            for ref in refs:
                await anyio.to_thread.run_sync(ref.tell, Note("from a thread"))
        assert diary == ["from a thread"] * 2

    run_async(main)


def test_a_bare_callback_of_asyncio_may_start_actors() -> None:
    """Such as a signal's, where anyio finds no event loop: an actor that never ran kept its system from closing."""

    async def main() -> None:
        diary: list[str] = []
        async with open_system() as system:
            lazy = system.spawn(lambda: Player(diary), lazy=True)

            def call_back() -> None:
                for ref in (lazy, system.spawn(lambda: Player(diary))):
                    ref.tell(Note("from a callback"))

            asyncio.get_running_loop().call_soon(call_back, context=Context())
            await anyio.wait_all_tasks_blocked()
            assert diary == ["from a callback"] * 2

    asyncio.run(main())


@pytest.mark.parametrize("overflow", ["fail", "wait"])
def test_a_thread_is_told_when_the_mailbox_is_full(run_async: Any, overflow: Any) -> None:
    """As far as it can see; and it is never unbounded."""

    async def main() -> None:
        async with open_system() as system:
            ref = system.spawn(Player, capacity=2, overflow=overflow)
            ref.pause()
            outcomes: list[str] = []

            def tell() -> None:
                for _ in range(4):
                    try:
                        ref.tell(Note(""))
                        outcomes.append("accepted")
                    except MailboxFull:
                        outcomes.append("full")

            await anyio.to_thread.run_sync(tell)
            assert outcomes[-2:] == ["full", "full"]
            await anyio.wait_all_tasks_blocked()
            assert ref.statistics().mailbox_length == 2

    run_async(main)


def in_a_thread_while_the_loop_stands_still(function: Callable[..., object], *args: object) -> None:
    """Run a function in a thread and block the loop until it is done: its calls are under way and cannot arrive."""
    thread = threading.Thread(target=function, args=args)
    thread.start()
    thread.join()


def test_what_no_longer_fits_on_arrival_is_a_dead_letter(run_async: Any) -> None:
    """The mailbox filled up while the message was under way, when nobody was left to raise to."""

    async def main() -> None:
        async with open_system() as system:
            ref = system.spawn(Player, capacity=1)
            ref.pause()
            await anyio.wait_all_tasks_blocked()
            in_a_thread_while_the_loop_stands_still(ref.tell, Note("from a thread"))
            ref.tell(Note("first"))
            await anyio.wait_all_tasks_blocked()
            assert [letter.message for letter in system.dead_letters.recent] == [Note("from a thread")]
            assert system.dead_letters.counts == {"dropped": 1}

    run_async(main)


@pytest.mark.parametrize("overflow", ["drop-old", "drop-new", "wait"])
@pytest.mark.parametrize("stopped", [False, True])
def test_what_is_under_way_is_bounded(run_async: Any, overflow: Any, stopped: bool) -> None:
    """Also on its way to dead letters: a thread that floods a loop that stands still is told."""

    async def main() -> None:
        async with open_system() as system:
            ref = system.spawn(Player, overflow=overflow)
            if stopped:
                ref.kill()
                await ref.wait_stopped()
            told: list[int] = []

            def flood() -> None:
                for n in range(MOST_UNDER_WAY + 1):
                    try:
                        ref.tell(Note(""))
                    except MailboxFull:
                        told.append(n)

            in_a_thread_while_the_loop_stands_still(flood)
            assert told == [MOST_UNDER_WAY]

    run_async(main)


def test_a_thread_that_is_as_fast_as_the_loop_does_not_hold_it_up(run_async: Any) -> None:
    """Each of its messages that arrives is followed by another."""

    async def main() -> None:
        more = 1_000

        def tell_again(_: DeadLetter) -> None:
            nonlocal more
            if more:
                more -= 1
                in_a_thread_while_the_loop_stands_still(ref.tell, Note("again"))

        async with open_system(on_dead_letter=tell_again) as system:
            ref = system.spawn(Player, overflow="drop-old")
            ref.kill()
            await ref.wait_stopped()
            in_a_thread_while_the_loop_stands_still(ref.tell, Note("first"))
            while system.dead_letters.total < 3:
                await anyio.lowlevel.checkpoint()
            assert more > 900
            more = 0

    run_async(main)


@pytest.mark.parametrize("leave", [False, True])
def test_what_a_thread_told_before_a_stop_is_handled(run_async: Any, leave: bool) -> None:
    """Whoever knows that the thread has told, and then stops the actor or leaves the block, can rely on it."""

    async def main() -> None:
        diary: list[str] = []
        async with open_system() as system:
            ref = system.spawn(lambda: Player(diary))
            in_a_thread_while_the_loop_stands_still(ref.tell, Note("in time"))
            if not leave:
                ref.stop()
        assert diary == ["in time"]

    run_async(main)


def test_messages_under_way_when_the_system_ends_are_dead_letters(run_async: Any) -> None:
    """None is left in between."""

    async def main() -> None:
        async with open_system() as system:
            ref = system.spawn(Player)
            ref.kill()
            await ref.wait_stopped()
            in_a_thread_while_the_loop_stands_still(ref.tell, Note("late"))
        assert system.dead_letters.counts == {"stopped": 1}

    run_async(main)


def test_any_thread_may_stop_kill_pause_and_resume(run_async: Any) -> None:
    """After what the same thread told before."""

    async def main() -> None:
        diary: list[str] = []
        async with open_system() as system:
            ref, other = system.spawn(lambda: Player(diary)), system.spawn(Player)

            def order() -> None:
                ref.pause()
                ref.tell(Note("told before the stop"))
                ref.resume()
                ref.stop()
                other.kill()

            await anyio.to_thread.run_sync(order)
            assert (await ref.wait_stopped()).kind == "stopped"
            assert (await other.wait_stopped()).kind == "killed"
        assert diary == ["told before the stop"]

    run_async(main)


@pytest.mark.parametrize("seconds", ["5", math.nan])
def test_a_stop_within_no_time_is_refused(run_async: Any, seconds: Any) -> None:
    """To whoever asks for it: half of a stop was done before, and from a thread it ended the system."""

    async def main() -> None:
        async with open_system() as system:
            ref = system.spawn(Player)
            with pytest.raises(ConfigurationError, match="drain_timeout must be a number"):
                await anyio.to_thread.run_sync(lambda: ref.stop(drain_timeout=seconds))
            with pytest.raises(ConfigurationError, match="reply_timeout must be a number"):
                await ref.ask(Add(), reply_timeout=seconds)
            assert await ref.ask(Add()) == 1

    run_async(main)


def test_after_the_loop_has_ended_a_tell_raises_and_a_stop_is_idle(run_async: Any) -> None:
    """There is nobody left to count a dead letter."""

    async def main() -> ActorRef[Any]:
        async with open_system() as system:
            return system.spawn(Player)

    ref = run_async(main)
    errors: list[str] = []

    def use() -> None:
        ref.stop()
        try:
            ref.tell(Note("much too late"))
        except ActorStopped as error:
            errors.append(str(error))

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert errors == ["/player-1 has stopped: its event loop has ended"]


def test_a_thread_asks_through_the_loop(run_async: Any) -> None:
    """From a worker thread with anyio; asking directly is refused with that advice."""

    async def main() -> None:
        async with open_system() as system:
            ref = system.spawn(Player)

            def work() -> int:
                with pytest.raises(RuntimeError, match="lives in another thread"):
                    ref.ask(Add()).send(None)
                with pytest.raises(RuntimeError, match="lives in another thread"):
                    ref.send(Add()).send(None)
                return anyio.from_thread.run(ref.ask, AddSlowly(4))

            assert await anyio.to_thread.run_sync(work) == 4

    run_async(main)
