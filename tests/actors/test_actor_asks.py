"""Deadlines, cancellation, cycles and failures of asks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import pytest
import trio
from actor_cast import Add, AddSlowly, Boom, Crash, Hold, Note, Player, Sleep
from trio.testing import MockClock, wait_all_tasks_blocked

from repertory.actors import ActorContext, ActorRef, Request, handler, open_system
from repertory.errors import ActorFailed, ActorStopped, AskCycle, AskTimeout


class Relay(Request[Any], frozen=True):
    """Asks another, perhaps through others still."""

    to: Callable[[], Awaitable[Any]]


class Agent:
    """Asks whom it is told to ask, and answers with what it got."""

    @handler
    async def relay(self, message: Relay) -> Any:
        """Ask on."""
        return await message.to()

    @handler
    def add(self, message: Add) -> int:
        """Ask nobody."""
        return message.n


async def test_an_ask_ends_at_its_deadline(autojump_clock: MockClock) -> None:
    """On a tick of the wheel, exactly at the deadline; the handler goes on to its end."""
    diary: list[str] = []
    async with open_system() as system:
        ref = system.spawn(lambda: Player(diary))
        started = trio.current_time()
        with pytest.raises(AskTimeout, match="did not answer Sleep in time: it had begun; it may have acted"):
            await ref.ask(Sleep(10), reply_timeout=2.5)
        assert trio.current_time() - started == pytest.approx(2.5)
        assert system.statistics().asks_timed_out == 1
        assert system.statistics().asks_with_deadline == 0
        assert await ref.ask(AddSlowly()) == 1
        assert trio.current_time() - started == pytest.approx(10)
    assert diary == ["slept 10"]


async def test_a_deadline_is_kept_to_the_resolution_and_never_early(autojump_clock: MockClock) -> None:
    """Between two ticks, the later one."""
    async with open_system(timer_resolution=0.5) as system:
        ref = system.spawn(Player)
        for timeout, expected in ((0.1, 0.5), (0.5, 0.5), (0.6, 1.0)):
            started = trio.current_time()
            with pytest.raises(AskTimeout):
                await ref.ask(Sleep(3.5), reply_timeout=timeout)
            assert trio.current_time() - started == pytest.approx(expected)
            await ref.ask(AddSlowly())
            await trio.sleep(4 - (trio.current_time() - started))


async def test_a_later_ask_with_an_earlier_deadline_is_not_late(autojump_clock: MockClock) -> None:
    """The wheel wakes up for the earliest."""
    async with open_system() as system, trio.open_nursery() as nursery:
        ended: list[tuple[str, float]] = []

        async def ask(name: str, timeout: float) -> None:
            with pytest.raises(AskTimeout):
                await system.spawn(Player, name).ask(Sleep(100), reply_timeout=timeout)
            ended.append((name, round(trio.current_time() - began, 6)))

        began = trio.current_time()
        nursery.start_soon(ask, "late", 20.0)
        await wait_all_tasks_blocked()
        nursery.start_soon(ask, "early", 10.0)
        nursery.start_soon(ask, "also", 10.0)
        await trio.sleep(30)
        assert sorted(ended) == [("also", 10), ("early", 10), ("late", 20)]
        assert [name for name, _ in ended][-1] == "late"
        assert system.statistics().actors == 3


async def test_a_nested_ask_inherits_the_smaller_deadline(autojump_clock: MockClock) -> None:
    """What is asked on behalf of an ask ends with it, whatever it asked for itself."""
    async with open_system() as system:
        outer, inner = system.spawn(Agent), system.spawn(Player)
        ends: list[float] = []

        async def ask_inner() -> None:
            try:
                await inner.ask(Sleep(1000), reply_timeout=500)
            finally:
                ends.append(trio.current_time() - began)

        began = trio.current_time()
        with pytest.raises(AskTimeout):
            await outer.ask(Relay(ask_inner), reply_timeout=4)
        await wait_all_tasks_blocked()
        assert ends == [pytest.approx(4)]


async def test_an_ask_after_its_inherited_deadline_is_not_sent(autojump_clock: MockClock) -> None:
    """Neither through the mailbox nor inline."""
    async with open_system() as system:
        outer, inner = system.spawn(Agent), system.spawn(Player)
        await inner.ask(Add())
        seen: list[str] = []

        async def ask_late() -> None:
            await trio.sleep(10)
            for request in (Add(), AddSlowly()):
                with pytest.raises(AskTimeout, match="it had not begun, and never will"):
                    await inner.ask(request)
                seen.append("refused")

        with pytest.raises(AskTimeout):
            await outer.ask(Relay(ask_late), reply_timeout=4)
        await outer.ask(Relay(trio.lowlevel.checkpoint))
        assert seen == ["refused", "refused"]
        assert inner.statistics().handled == 1


def test_a_cancelled_ask_that_has_not_begun_is_not_executed(run_async: Any) -> None:
    """It is withdrawn, and that is counted."""

    async def main() -> None:
        gate = anyio.Event()
        async with open_system() as system, anyio.create_task_group() as tasks:
            ref = system.spawn(Player)
            hold = Hold(gate)
            tasks.start_soon(ref.ask, hold)
            await hold.begun.wait()
            with anyio.move_on_after(0):
                await ref.ask(AddSlowly(100))
            gate.set()
            assert await ref.ask(AddSlowly()) == 1
            assert ref.statistics().withdrawn == 1
            assert system.dead_letters.total == 0

    run_async(main)


def test_a_cancelled_ask_that_has_begun_goes_on(run_async: Any) -> None:
    """Its late answer hurts nobody."""

    async def main() -> None:
        gate, diary = anyio.Event(), []
        async with open_system() as system, anyio.create_task_group() as tasks:
            ref = system.spawn(lambda: Player(diary))
            hold = Hold(gate)
            tasks.start_soon(ref.ask, hold)
            await hold.begun.wait()
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await anyio.wait_all_tasks_blocked()
                gate.set()
                await ref.ask(AddSlowly())
            assert diary == ["held"]

    run_async(main)


def test_a_crash_is_told_to_the_asker_with_its_cause(run_async: Any) -> None:
    """Through the mailbox and inline alike; the actor is restarted."""

    async def main() -> None:
        async with open_system() as system:
            ref = system.spawn(Player)
            for _ in range(2):
                with pytest.raises(ActorFailed, match=r"/player-1 crashed on Crash: Boom: boom") as caught:
                    await ref.ask(Crash())
                assert isinstance(caught.value.__cause__, Boom)
                await anyio.wait_all_tasks_blocked()
            assert ref.statistics().restarts == 2
            assert system.dead_letters.counts == {"failed": 2}
            assert await ref.ask(Add()) == 1

    run_async(main)


def test_after_an_inline_crash_nothing_more_runs_in_the_broken_actor(run_async: Any) -> None:
    """An ask in the very same pass waits for the restarted actor and sees fresh state."""

    async def main() -> None:
        async with open_system() as system:
            ref = system.spawn(Player)
            await ref.ask(Add(10))
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(ActorFailed):
                await ref.ask(Crash())
            assert await ref.ask(Add()) == 1

    run_async(main)


def test_an_inline_handler_may_stop_its_actor(run_async: Any) -> None:
    """The answer is given, and the actor wakes up to stop."""

    class Mayfly:
        @handler(Add)
        def add(self, message: Add, ctx: ActorContext) -> int:
            if message.n:
                ctx.stop()
            return message.n

    async def main() -> None:
        async with open_system() as system:
            ref = system.spawn(Mayfly)
            await ref.ask(Add(0))
            await anyio.wait_all_tasks_blocked()
            assert await ref.ask(Add(1)) == 1
            with pytest.raises(ActorStopped):
                await ref.ask(Add(0))
            assert (await ref.wait_stopped()).kind == "stopped"

    run_async(main)


def test_an_interrupt_from_the_keyboard_is_not_taken_for_a_crash(run_async: Any) -> None:
    """An inline handler's KeyboardInterrupt goes to the asker as it is; the actor stays as it was."""

    class Interrupted:
        @handler(Add)
        def add(self, message: Add) -> int:
            if message.n:
                raise KeyboardInterrupt
            return 0

    async def main() -> None:
        async with open_system() as system:
            ref = system.spawn(Interrupted)
            await ref.ask(Add(0))
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(KeyboardInterrupt):
                await ref.ask(Add(1))
            assert await ref.ask(Add(0)) == 0
            assert ref.statistics().crashes == 0

    run_async(main)


def test_every_pending_ask_ends_when_the_actor_is_killed(run_async: Any) -> None:
    """Begun or not: ActorStopped, and each message is in dead letters once."""

    async def main() -> None:
        outcomes: list[str] = []
        async with open_system() as system, anyio.create_task_group() as tasks:
            ref = system.spawn(Player)

            async def ask(request: Request[Any]) -> None:
                try:
                    await ref.ask(request)
                except ActorStopped as error:
                    outcomes.append(str(error))

            hold = Hold(anyio.Event())
            tasks.start_soon(ask, hold)
            await hold.begun.wait()
            for n in range(3):
                tasks.start_soon(ask, AddSlowly(n))
            await anyio.wait_all_tasks_blocked()
            ref.kill()
            assert (await ref.wait_stopped()).kind == "killed"
            await anyio.wait_all_tasks_blocked()
            assert len(outcomes) == 4
            assert system.dead_letters.counts == {"interrupted": 1, "stopped": 3}

    run_async(main)


def test_every_pending_ask_ends_when_the_actor_fails_for_good(run_async: Any) -> None:
    """Those behind the crash get ActorStopped with the crash as its cause."""

    async def main() -> None:
        causes: list[object] = []
        async with open_system() as system, anyio.create_task_group() as tasks:
            ref = system.spawn(Player, restart="temporary")

            async def ask() -> None:
                with pytest.raises(ActorStopped, match="has failed for good") as caught:
                    await ref.ask(AddSlowly())
                causes.append(type(caught.value.__cause__))

            ref.pause()
            ref.tell(Crash())
            tasks.start_soon(ask)
            tasks.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            ref.resume()
            reason = await ref.wait_stopped()
            await anyio.wait_all_tasks_blocked()
            assert reason.kind == "failed"
            assert causes == [Boom, Boom]
            with pytest.raises(ActorStopped, match="has failed for good"):
                await ref.ask(Add())

    run_async(main)


def test_asking_oneself_raises_at_once(run_async: Any) -> None:
    """The shortest cycle."""

    async def main() -> None:
        async with open_system() as system:
            agent = system.spawn(Agent, "a")
            with pytest.raises(ActorFailed) as caught:
                await agent.ask(Relay(lambda: agent.ask(Add())))
            assert isinstance(caught.value.__cause__, AskCycle)
            assert "would wait for itself: /a → /a" in str(caught.value.__cause__)

    run_async(main)


def test_an_ask_up_its_own_chain_raises_at_once(run_async: Any) -> None:
    """a asks b asks c asks a: the last one gets the whole path."""

    async def main() -> None:
        async with open_system() as system:
            a, b, c = (system.spawn(Agent, name, restart="temporary") for name in "abc")
            errors: list[str] = []

            async def ask_a() -> None:
                try:
                    await a.ask(Relay(anyio.lowlevel.checkpoint))
                except AskCycle as error:
                    errors.append(str(error))

            await a.ask(Relay(lambda: b.ask(Relay(lambda: c.ask(Relay(ask_a))))))
            assert len(errors) == 1
            assert "/c → /a → /b → /c" in errors[0]

    run_async(main)


def test_two_actors_that_ask_each_other_do_not_hang(run_async: Any) -> None:
    """No chain connects the two asks, yet each would wait for the other: one of them is refused."""

    async def main() -> None:
        async with open_system() as system, anyio.create_task_group() as tasks:
            a, b = system.spawn(Agent, "a"), system.spawn(Agent, "b")
            both = anyio.Event()
            outcomes: list[str] = []

            async def cross(other: ActorRef[Any]) -> str:
                await both.wait()
                try:
                    return str(await other.ask(Relay(anyio.lowlevel.checkpoint)))
                except AskCycle:
                    return "refused"

            async def ask(ref: ActorRef[Any], other: ActorRef[Any]) -> None:
                outcomes.append(await ref.ask(Relay(lambda: cross(other))))

            tasks.start_soon(ask, a, b)
            tasks.start_soon(ask, b, a)
            await anyio.wait_all_tasks_blocked()
            both.set()
            await anyio.wait_all_tasks_blocked()
            assert sorted(outcomes) == ["None", "refused"]

    run_async(main)


def test_a_background_task_may_ask_its_own_actor(run_async: Any) -> None:
    """The mailbox is served meanwhile, so it is no cycle."""

    class Owner:
        def __init__(self, answers: list[int]) -> None:
            self.answers = answers

        def started(self, ctx: ActorContext) -> None:
            ctx.start_soon(self.work, ctx.ref)

        async def work(self, ref: ActorRef[Any]) -> None:
            self.answers.append(await ref.ask(AddSlowly(3)))

        @handler(AddSlowly)
        async def add(self, message: AddSlowly) -> int:
            await anyio.lowlevel.checkpoint()
            return message.n

    async def main() -> None:
        answers: list[int] = []
        async with open_system() as system:
            ref = system.spawn(lambda: Owner(answers))
            await anyio.wait_all_tasks_blocked()
            assert answers == [3]
            assert ref.statistics().tasks == 0

    run_async(main)


def test_an_ask_given_up_blocks_nobody(run_async: Any) -> None:
    """Once a has given up on b, b may ask a."""

    async def main() -> None:
        async with open_system() as system:
            a, b = system.spawn(Agent, "a"), system.spawn(Agent, "b")
            begun, gate = anyio.Event(), anyio.Event()
            answers: list[object] = []

            async def b_works() -> None:
                begun.set()
                await gate.wait()
                answers.append(await a.ask(Add()))

            async def a_tries() -> None:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(b.ask, Relay(b_works))
                    await begun.wait()
                    tasks.cancel_scope.cancel()

            await a.ask(Relay(a_tries))
            gate.set()
            await anyio.wait_all_tasks_blocked()
            assert answers == [1]

    run_async(main)


def test_asking_one_who_waits_for_another_is_no_cycle(run_async: Any) -> None:
    """It takes as long as the other takes, and that is all."""

    async def main() -> None:
        async with open_system() as system, anyio.create_task_group() as tasks:
            a, b, c = (system.spawn(Agent, name) for name in "abc")
            gate = anyio.Event()
            answers: list[object] = []

            async def ask() -> None:
                answers.append(await c.ask(Relay(lambda: a.ask(Relay(anyio.lowlevel.checkpoint)))))

            tasks.start_soon(a.ask, Relay(lambda: b.ask(Relay(gate.wait))))
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            gate.set()
            await anyio.wait_all_tasks_blocked()
            assert answers == [None]

    run_async(main)


def test_several_asks_at_once_from_one_handler(run_async: Any) -> None:
    """A handler may fan out; two ways to the same actor are no cycle."""

    async def main() -> None:
        async with open_system() as system:
            lead, left, right, store = (system.spawn(Agent, name) for name in ("lead", "left", "right", "store"))
            answers: list[object] = []

            async def fan_out() -> None:
                async with anyio.create_task_group() as tasks:
                    for helper in (left, right):
                        tasks.start_soon(helper.ask, Relay(lambda: store.ask(Relay(anyio.lowlevel.checkpoint))))

            answers.append(await lead.ask(Relay(fan_out)))
            assert answers == [None]
            assert store.statistics().handled == 2

    run_async(main)


async def test_an_ask_that_waits_for_room_ends_at_its_deadline(autojump_clock: MockClock) -> None:
    """The deadline counts from the call, not from the place in the mailbox."""
    async with open_system() as system:
        ref = system.spawn(Player, capacity=1, overflow="wait")
        ref.pause()
        ref.tell(Note(""))
        started = trio.current_time()
        with pytest.raises(AskTimeout, match="not begun"):
            await ref.ask(Add(), reply_timeout=2)
        assert trio.current_time() - started == pytest.approx(2)
        ref.resume()
        assert await ref.ask(AddSlowly()) == 1


@pytest.mark.parametrize("given_up", ["timed out", "cancelled"])
def test_an_ask_that_was_given_up_waits_for_room_no_more(run_async: Any, given_up: str) -> None:
    """Otherwise the asks of a watchdog would pile up before an actor that hangs."""

    async def main() -> None:
        async with open_system(timer_resolution=0.001) as system:
            ref = system.spawn(Player, capacity=1, overflow="wait")
            ref.pause()
            ref.tell(Note(""))
            for _ in range(3):
                if given_up == "cancelled":
                    with anyio.move_on_after(0.001):
                        await ref.ask(Add())
                else:
                    with pytest.raises(AskTimeout):
                        await ref.ask(Add(), reply_timeout=0.001)
            now = ref.statistics()
            assert (now.senders_waiting, now.withdrawn, now.mailbox_length) == (0, 3, 1)
            ref.resume()

    run_async(main)


def test_a_cycle_is_looked_for_at_each_actor_once(run_async: Any) -> None:
    """Where two actors ask two others each, who ask two others, there are more ways than can be followed."""

    async def ask_both(pair: list[ActorRef[Any]]) -> None:
        async with anyio.create_task_group() as group:
            for ref in pair:
                group.start_soon(ref.ask, Relay(anyio.sleep_forever))

    async def main() -> None:
        with anyio.CancelScope() as scope:
            async with open_system() as system:
                to: Callable[[], Awaitable[Any]] = anyio.sleep_forever
                for _ in range(40):
                    pair = [system.spawn(Agent) for _ in range(2)]
                    for ref in pair:
                        ref.tell(Relay(to))
                    await anyio.wait_all_tasks_blocked()
                    to = partial(ask_both, pair)
                scope.cancel()
                await anyio.sleep_forever()

    run_async(main)
