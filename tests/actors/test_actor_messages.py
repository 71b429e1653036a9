"""Telling, sending, asking: what arrives, in what order, and what happens when there is no room."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from actor_cast import Add, AddSlowly, Boom, Crash, Decline, Declined, Hold, Note, Player, Stranger
from anyio.lowlevel import checkpoint

from repertory.actors import ActorContext, ActorRef, ActorSystem, Overflow, handler, open_system
from repertory.errors import ActorStopped, MailboxFull, UnhandledMessage


def test_told_messages_arrive_in_the_order_they_were_told(run_async: Any) -> None:
    """One sender's messages keep their order."""

    async def main() -> None:
        diary: list[str] = []
        async with open_system() as system:
            ref = system.spawn(lambda: Player(diary))
            for n in range(1000):
                ref.tell(Note(str(n)))
        assert diary == [str(n) for n in range(1000)]

    run_async(main)


def test_an_ask_is_answered_by_a_plain_and_by_an_async_handler(run_async: Any) -> None:
    """Both kinds of handlers answer, on one state."""

    async def main() -> None:
        async with open_system() as system:
            ref = system.spawn(Player)
            assert await ref.ask(Add(2)) == 2
            assert await ref.ask(AddSlowly(3)) == 5
            assert await ref.ask(Add(4)) == 9

    run_async(main)


def test_a_plain_handler_of_an_idle_actor_runs_in_the_asker(run_async: Any) -> None:
    """Idle and empty: inline. The first ask finds the actor not yet started and goes through the mailbox."""

    async def main() -> None:
        async with open_system() as system:
            ref = system.spawn(Player)
            await ref.ask(Add())
            await anyio.wait_all_tasks_blocked()
            for _ in range(5):
                await ref.ask(Add())
            assert ref.statistics().inline == 5
            assert ref.statistics().handled == 6

    run_async(main)


def test_an_ask_does_not_overtake_what_was_told_before(run_async: Any) -> None:
    """With messages waiting, even a plain handler waits its turn."""

    async def main() -> None:
        async with open_system() as system:
            ref = system.spawn(Player)
            await ref.ask(Add(0))
            for _ in range(10):
                ref.tell(Add())
            assert await ref.ask(Add()) == 11

    run_async(main)


def test_an_endless_row_of_inline_asks_lets_others_run(run_async: Any) -> None:
    """Every 256th inline ask is a checkpoint."""

    async def main() -> None:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                await checkpoint()
                turns += 1

        async with open_system() as system, anyio.create_task_group() as tasks:
            ref = system.spawn(Player)
            await ref.ask(Add())
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(other)
            for _ in range(256 * 10):
                await ref.ask(Add())
            assert turns >= 5  # ten checkpoints, and trio shuffles who runs first
            tasks.cancel_scope.cancel()

    run_async(main)


def test_a_busy_actor_lets_others_run(run_async: Any) -> None:
    """An actor with thousands of messages waiting yields every few hundred, also over those nobody handles."""

    async def main() -> None:
        async with open_system() as system:
            ref: ActorRef[Any] = system.spawn(Player)
            for _ in range(1000):
                ref.tell(Note(""))
            for _ in range(1000):
                ref.tell(Stranger())
            turns = 0
            while ref.statistics().mailbox_length:
                await checkpoint()
                turns += 1
            assert turns >= 2000 // 256

    run_async(main)


def test_what_a_handler_tells_itself_is_handled_later(run_async: Any) -> None:
    """Also when the handler runs inline, where the actor must wake up for it afterwards."""

    class Narcissus:
        def __init__(self) -> None:
            self.seen: list[str] = []

        @handler(Add)
        def add(self, message: Add, ctx: ActorContext) -> int:
            ctx.ref.tell(Note("later"))
            return message.n

        @handler(Note)
        def note(self, message: Note) -> None:
            self.seen.append(message.text)

    async def main() -> None:
        made = Narcissus()
        async with open_system() as system:
            ref = system.spawn(lambda: made)
            await ref.ask(Add())
            await anyio.wait_all_tasks_blocked()
            assert await ref.ask(Add(7)) == 7
            assert ref.statistics().inline == 1
        assert made.seen == ["later", "later"]

    run_async(main)


def test_an_expected_error_is_an_answer(run_async: Any) -> None:
    """The asker gets the very error, inline or not; the actor goes on."""

    async def main() -> None:
        async with open_system() as system:
            ref = system.spawn(Player)
            for _ in range(2):
                with pytest.raises(Declined, match="no"):
                    await ref.ask(Decline())
                await anyio.wait_all_tasks_blocked()
            ref.tell(Decline())
            await ref.ask(AddSlowly())
            assert ref.statistics().crashes == 0
            assert ref.statistics().handled == 4
            assert system.dead_letters.counts == {"refused": 1}
            assert isinstance(system.dead_letters.recent[0].error, Declined)

    run_async(main)


def test_a_message_nobody_handles_is_reported(run_async: Any) -> None:
    """An ask raises, a tell goes to dead letters, the actor goes on."""

    async def main() -> None:
        async with open_system() as system:
            ref: ActorRef[Any] = system.spawn(Player)
            with pytest.raises(UnhandledMessage, match=r"/player-1 has no handler for Stranger"):
                await ref.ask(Stranger())
            ref.tell(Stranger())
            assert await ref.ask(AddSlowly()) == 1
            assert system.dead_letters.counts == {"unhandled": 1}
            assert system.dead_letters.recent[0].recipient == "/player-1"

    run_async(main)


# --- room -------------------------------------------------------------------------------------------------


class Stage:
    """A paused actor with a mailbox of two, both places taken."""

    def __init__(self, system: ActorSystem, overflow: Overflow) -> None:
        self.system = system
        self.diary: list[str] = []
        self.ref = system.spawn(lambda: Player(self.diary), capacity=2, overflow=overflow)
        self.ref.pause()
        self.ref.tell(Note("1"))
        self.ref.tell(Note("2"))


@pytest.mark.parametrize("overflow", ["fail", "wait"])
def test_a_tell_to_a_full_mailbox_raises(run_async: Any, overflow: Overflow) -> None:
    """The message stays with the caller: nothing enqueued, no dead letter."""

    async def main() -> None:
        async with open_system() as system:
            stage = Stage(system, overflow)
            with pytest.raises(MailboxFull, match=r"/<lambda|/lambda-1 is full \(2\); Note was not accepted"):
                stage.ref.tell(Note("3"))
            stage.ref.resume()
        assert stage.diary == ["1", "2"]
        assert system.dead_letters.total == 0

    run_async(main)


def test_drop_new_drops_the_new(run_async: Any) -> None:
    """The message told goes to dead letters; an ask raises, since its asker must know."""

    async def main() -> None:
        async with open_system() as system:
            stage = Stage(system, "drop-new")
            stage.ref.tell(Note("3"))
            with pytest.raises(MailboxFull):
                await stage.ref.ask(Add())
            stage.ref.resume()
        assert stage.diary == ["1", "2"]
        assert [letter.message for letter in system.dead_letters.recent] == [Note("3")]
        assert system.dead_letters.counts == {"dropped": 1}

    run_async(main)


def test_drop_old_drops_the_oldest(run_async: Any) -> None:
    """The oldest goes to dead letters; if it was an ask, its asker gets MailboxFull; an ask drops as a tell does."""

    async def main() -> None:
        async with open_system() as system, anyio.create_task_group() as tasks:
            stage = Stage(system, "drop-old")
            stage.ref.tell(Note("3"))
            outcomes: list[object] = []

            async def ask() -> None:
                try:
                    outcomes.append(await stage.ref.ask(Add()))
                except MailboxFull as error:
                    outcomes.append(type(error))

            tasks.start_soon(ask)  # drops 2
            await anyio.wait_all_tasks_blocked()
            stage.ref.tell(Note("4"))  # drops 3
            stage.ref.tell(Note("5"))  # drops the ask
            await anyio.wait_all_tasks_blocked()
            assert outcomes == [MailboxFull]
            stage.ref.resume()
        assert stage.diary == ["4", "5"]
        dropped = [letter.message for letter in system.dead_letters.recent]
        assert dropped == [Note("1"), Note("2"), Note("3"), Add()]

    run_async(main)


def test_drop_old_over_an_ask_already_given_up_reports_nothing(run_async: Any) -> None:
    """Its asker knows."""

    async def main() -> None:
        async with open_system() as system:
            ref = system.spawn(Player, capacity=1, overflow="drop-old")
            ref.pause()
            with anyio.move_on_after(0):
                await ref.ask(AddSlowly())
            ref.tell(Note(""))
            assert ref.statistics().withdrawn == 1
            assert system.dead_letters.total == 0

    run_async(main)


def test_send_waits_for_room_and_waiters_are_served_in_order(run_async: Any) -> None:
    """First come, first served, asks and sends in one line."""

    async def main() -> None:
        async with open_system() as system, anyio.create_task_group() as tasks:
            stage = Stage(system, "wait")
            totals: list[int] = []

            async def ask() -> None:
                totals.append(await stage.ref.ask(Add(5)))

            tasks.start_soon(stage.ref.send, Note("3"))
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(stage.ref.send, Note("4"))
            await anyio.wait_all_tasks_blocked()
            assert stage.ref.statistics().senders_waiting == 3
            stage.ref.resume()
            await anyio.wait_all_tasks_blocked()
            assert stage.diary == ["1", "2", "3", "4"]
            assert totals == [5]
            await stage.ref.send(Note("5"))  # there is room: at once
            await stage.ref.ask(AddSlowly())
            assert stage.diary[-1] == "5"

    run_async(main)


def test_a_cancelled_send_was_not_sent(run_async: Any) -> None:
    """Its place in the line is given up, also by an ask that waits for room."""

    async def main() -> None:
        async with open_system() as system, anyio.create_task_group() as tasks:
            stage = Stage(system, "wait")
            async with anyio.create_task_group() as given_up:
                given_up.start_soon(stage.ref.send, Note("never"))
                given_up.start_soon(stage.ref.ask, Add())
                await anyio.wait_all_tasks_blocked()
                given_up.cancel_scope.cancel()
            tasks.start_soon(stage.ref.send, Note("3"))
            await anyio.wait_all_tasks_blocked()
            stage.ref.resume()
            await anyio.wait_all_tasks_blocked()
            assert stage.diary == ["1", "2", "3"]
            assert stage.ref.statistics().withdrawn == 1

    run_async(main)


def test_a_send_cancelled_just_when_there_is_room_was_not_sent(run_async: Any) -> None:
    """Cancelled and admitted in the same pass of the scheduler, the cancellation wins: the message stays outside."""

    async def main() -> None:
        async with open_system() as system:
            stage = Stage(system, "wait")
            async with anyio.create_task_group() as given_up:
                given_up.start_soon(stage.ref.send, Note("never"))
                given_up.start_soon(stage.ref.ask, Add(100))
                await anyio.wait_all_tasks_blocked()
                given_up.cancel_scope.cancel()
                stage.ref.resume()
            assert await stage.ref.ask(AddSlowly()) == 1
            assert stage.diary == ["1", "2"]

    run_async(main)


def test_those_who_wait_for_room_hear_of_the_stop(run_async: Any) -> None:
    """Their messages were not accepted: ActorStopped, and no dead letter; what was accepted is handled."""

    async def main() -> None:
        stopped: list[str] = []
        given_up = anyio.CancelScope()
        async with open_system() as system, anyio.create_task_group() as tasks:
            stage = Stage(system, "wait")

            async def send() -> None:
                with pytest.raises(ActorStopped):
                    await stage.ref.send(Note("late"))
                stopped.append("send")

            async def ask() -> None:
                with pytest.raises(ActorStopped):
                    await stage.ref.ask(Add())
                stopped.append("ask")

            async def give_up() -> None:
                with given_up:
                    await stage.ref.ask(Add())

            tasks.start_soon(send)
            tasks.start_soon(ask)
            tasks.start_soon(give_up)
            await anyio.wait_all_tasks_blocked()
            given_up.cancel()
            await anyio.wait_all_tasks_blocked()
            stage.ref.stop()
            await stage.ref.wait_stopped()
        assert sorted(stopped) == ["ask", "send"]
        assert stage.diary == ["1", "2"]
        assert system.dead_letters.total == 0

    run_async(main)


def test_what_is_sent_to_a_stopped_actor_does_not_vanish(run_async: Any) -> None:
    """A tell goes to dead letters; send and ask raise."""

    async def main() -> None:
        async with open_system() as system:
            ref = system.spawn(Player)
            ref.stop()
            await ref.wait_stopped()
            ref.tell(Note("late"))
            with pytest.raises(ActorStopped, match="has stopped; Note was not answered"):
                await ref.send(Note("late"))
            with pytest.raises(ActorStopped):
                await ref.ask(Add())
            assert system.dead_letters.counts == {"stopped": 1}
            assert ref.statistics().dead_lettered == 1

    run_async(main)


def test_a_crash_leaves_the_rest_in_the_mailbox(run_async: Any) -> None:
    """The restarted actor handles what waits; only the message that crashed it is gone."""

    async def main() -> None:
        diary: list[str] = []
        async with open_system() as system:
            ref = system.spawn(lambda: Player(diary))
            for message in (Note("1"), Crash(), Note("2"), Note("3")):
                ref.tell(message)
            await ref.ask(AddSlowly())
            assert diary == ["1", "crash", "2", "3"]
            letter = system.dead_letters.recent[0]
            assert (letter.message, letter.reason) == (Crash(), "failed")
            assert isinstance(letter.error, Boom)

    run_async(main)


def test_none_can_be_a_message(run_async: Any) -> None:
    """A fallback handler takes anything; interrupting it loses nothing."""

    class Anything:
        @handler
        async def any(self, message: object) -> None:
            await anyio.sleep_forever()

    async def main() -> None:
        async with open_system() as system:
            ref = system.spawn(Anything)
            ref.tell(None)
            await anyio.wait_all_tasks_blocked()
            ref.kill()
            await ref.wait_stopped()
            assert [(letter.message, letter.reason) for letter in system.dead_letters.recent] == [(None, "interrupted")]

    run_async(main)


def test_a_held_actor_is_not_idle(run_async: Any) -> None:
    """While a handler waits, a plain handler does not run inline: one message at a time."""

    async def main() -> None:
        gate = anyio.Event()
        async with open_system() as system, anyio.create_task_group() as tasks:
            ref = system.spawn(Player)
            hold = Hold(gate)
            tasks.start_soon(ref.ask, hold)
            await hold.begun.wait()
            with anyio.move_on_after(0) as scope:
                await ref.ask(Add())
            assert scope.cancelled_caught
            gate.set()

    run_async(main)
