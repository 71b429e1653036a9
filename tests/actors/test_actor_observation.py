"""What can be seen from outside: statistics, the tree, dead letters; and the wheel that times asks."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
import trio
from actor_cast import Add, AddSlowly, Crash, Note, Player, Stranger
from trio.testing import MockClock

from repertory.actors import ActorRef, DeadLetter, open_system
from repertory.actors.scheduler import TimingWheel, current_scheduler


def test_statistics_add_up(run_async: Any) -> None:
    """Frozen, per actor and per system."""

    async def main() -> None:
        async with open_system() as system:
            ref: ActorRef[Any] = system.spawn(Player, "p", capacity=7)
            await ref.ask(AddSlowly())
            await anyio.wait_all_tasks_blocked()
            await ref.ask(Add())
            ref.tell(Crash())
            await ref.ask(AddSlowly())
            ref.tell(Stranger())
            ref.pause()
            ref.tell(Note("waiting"))
            await anyio.wait_all_tasks_blocked()
            seen = ref.statistics()
            assert (seen.path, seen.state, seen.mailbox_capacity) == ("/p", "paused", 7)
            assert (seen.handled, seen.inline, seen.crashes, seen.restarts) == (3, 1, 1, 1)
            assert seen.mailbox_length == 2
            with pytest.raises(AttributeError):
                seen.handled = 0  # type: ignore[misc]
            whole = system.statistics()
            assert (whole.actors, whole.spawned, whole.crashes, whole.restarts) == (1, 1, 1, 1)
            assert whole.dead_letters == {"failed": 1}
            assert system.dead_letters.total == 1

    run_async(main)


def test_dead_letters_are_shown_to_the_observer(run_async: Any, caplog: Any) -> None:
    """Each one; an observer that fails is logged and hurts nobody; the latest are kept."""
    seen: list[DeadLetter] = []

    def observer(letter: DeadLetter) -> None:
        seen.append(letter)
        raise ValueError("observer")

    async def main() -> None:
        async with open_system(on_dead_letter=observer) as system:
            ref: ActorRef[Any] = system.spawn(Player)
            for _ in range(300):
                ref.tell(Stranger())
            assert await ref.ask(AddSlowly()) == 1
            assert system.dead_letters.total == 300
            assert len(system.dead_letters.recent) == 256

    run_async(main)
    assert len(seen) == 300
    assert seen[0] == DeadLetter(Stranger(), "/player-1", "unhandled")
    assert {vars(record).get("event") for record in caplog.records} == {"actors.dead_letter.observer_failed"}


def test_an_observer_may_tell_an_actor_that_is_gone(run_async: Any, caplog: Any) -> None:
    """It was shown what became of its own message, told that one too, and so on to the depth of the stack."""
    seen: list[DeadLetter] = []

    async def main() -> None:
        def observer(letter: DeadLetter) -> None:
            seen.append(letter)
            diary.tell(Note("a dead letter"))

        async with open_system(on_dead_letter=observer) as system:
            diary = system.spawn(Player)
            diary.stop()
            await diary.wait_stopped()
            diary.tell(Add())
            diary.tell(Add())
            assert system.dead_letters.counts == {"stopped": 4}

    run_async(main)
    assert [letter.message for letter in seen] == [Add(), Add()]
    assert caplog.records == []


class Alarm:
    """A timer that notes when it rang."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.rang: float | None = None

    def expire(self) -> None:
        """Ring."""
        self.rang = trio.current_time()


async def test_the_wheel_rings_on_the_tick_after_the_deadline(autojump_clock: MockClock) -> None:
    """Never early, at most one tick late; what is discarded never rings; answered asks leave nothing behind."""
    wheel = TimingWheel(current_scheduler(), 0.5)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wheel.run)
        await trio.sleep(0.25)
        alarms = [Alarm(deadline) for deadline in (9.9, 1.0, 1.1, 3.3, 1.2)]
        gone = Alarm(2.0)
        for alarm in (*alarms, gone):
            wheel.add(alarm)
        assert len(wheel) == 6
        wheel.discard(gone)
        wheel.discard(Alarm(77))
        assert len(wheel) == 5
        await trio.sleep(20)
        assert [alarm.rang for alarm in alarms] == [10.0, 1.0, 1.5, 3.5, 1.5]
        assert gone.rang is None
        assert len(wheel) == 0
        nursery.cancel_scope.cancel()
