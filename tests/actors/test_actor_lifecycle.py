"""Hooks, stopping, killing, pausing, background tasks, and the tree."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, cast

import anyio
import pytest
import trio
from actor_cast import Add, AddSlowly, Boom, Crash, Hold, Hooked, Note, Player, Sleep
from outcome import Outcome
from trio.testing import MockClock, wait_all_tasks_blocked

from patience import PATIENCE
from repertory.actors import ActorContext, ActorRef, StopReason, Supervision, handler, open_system
from repertory.errors import ActorFailed, ActorStopped, ConfigurationError


def test_the_hooks_come_in_order(run_async: Any) -> None:
    """Started before the first message, stopping after the last, stopped at the end."""

    async def main() -> None:
        diary: list[str] = []
        async with open_system() as system:
            ref = system.spawn(lambda: Hooked(diary))
            ref.tell(Note("1"))
            ref.stop()
            assert await ref.wait_stopped() == StopReason("stopped")
        assert diary == ["started", "1", "stopping", "stopped"]

    run_async(main)


def test_a_crash_restarts_with_fresh_state_and_the_old_mailbox(run_async: Any) -> None:
    """Each incarnation ends with exactly one of restarting and stopped."""

    async def main() -> None:
        diary: list[str] = []
        async with open_system() as system:
            ref = system.spawn(lambda: Hooked(diary))
            for message in (Note("1"), Crash(), Note("2")):
                ref.tell(message)
            assert await ref.ask(Add(5)) == 5
        assert diary == ["started", "1", "crash", "restarting after Boom", "started", "2", "stopping", "stopped"]

    run_async(main)


def test_leaving_the_block_stops_gracefully_last_started_first(run_async: Any) -> None:
    """What was accepted is handled."""

    async def main() -> None:
        diary: list[str] = []
        async with open_system() as system:
            for name in "abc":
                ref = system.spawn(lambda name=name: Hooked(diary, name), name)
                ref.tell(Note(f"{name} note"))
        ends = [line for line in diary if line.endswith("stopped")]
        assert ends == ["c stopped", "b stopped", "a stopped"]
        assert {f"{name} note" for name in "abc"} < set(diary)
        assert system.statistics().actors == 0

    run_async(main)


def test_an_error_in_the_block_kills_and_comes_out_as_it_is(run_async: Any) -> None:
    """Not wrapped in a group; actors are gone, messages in dead letters."""

    async def main() -> None:
        diary: list[str] = []
        with pytest.raises(Boom):
            async with open_system() as system:
                ref = system.spawn(lambda: Hooked(diary))
                await ref.ask(AddSlowly())
                ref.pause()
                ref.tell(Note("never"))
                raise Boom
        assert diary == ["started", "stopped"]
        assert system.dead_letters.counts == {"stopped": 1}
        with pytest.raises(ActorStopped, match="its parent is stopping"):
            system.spawn(Player)

    run_async(main)


def test_cancelling_the_block_kills_the_tree(run_async: Any) -> None:
    """Hooks still run, since they are shielded; the parent's after its child's."""

    async def main() -> None:
        diary: list[str] = []
        with anyio.CancelScope() as scope:
            async with open_system() as system:
                system.spawn(
                    lambda: Hooked(diary, "parent", lambda ctx: ctx.spawn(lambda: Hooked(diary, "child")) and None)
                )
                await anyio.wait_all_tasks_blocked()
                scope.cancel()
                await anyio.lowlevel.checkpoint()
        assert scope.cancelled_caught
        assert diary == ["parent started", "child started", "child stopped", "parent stopped"]

    run_async(main)


def test_a_parent_outlives_its_children(run_async: Any) -> None:
    """A graceful stop takes the children down in reverse order, before the parent's last hook."""

    async def main() -> None:
        diary: list[str] = []

        def setup(ctx: ActorContext) -> None:
            for name in ("one", "two"):
                ctx.spawn(lambda name=name: Hooked(diary, name), name)
            assert [ref.path for ref in ctx.children] == ["/parent/one", "/parent/two"]

        async with open_system() as system:
            ref = system.spawn(lambda: Hooked(diary, "parent", setup), "parent")
            await anyio.wait_all_tasks_blocked()
            assert system.statistics().actors == 3
            assert ref.statistics().children == 2
            diary.clear()
            ref.stop()
            await ref.wait_stopped()
        assert diary == [
            "parent stopping",
            "two stopping",
            "two stopped",
            "one stopping",
            "one stopped",
            "parent stopped",
        ]

    run_async(main)


async def test_a_graceful_stop_cancels_at_its_deadline(autojump_clock: MockClock) -> None:
    """What was not handled by then goes to dead letters; the one in hand counts as interrupted."""
    diary: list[str] = []
    async with open_system() as system:
        ref = system.spawn(lambda: Hooked(diary))
        for message in (Sleep(3), Sleep(30), Note("never")):
            ref.tell(message)
        await wait_all_tasks_blocked()
        began = trio.current_time()
        ref.stop(drain_timeout=10)
        assert ref.statistics().state == "stopping"
        assert await ref.wait_stopped() == StopReason("stopped")
        assert trio.current_time() - began == pytest.approx(10)
        assert system.dead_letters.counts == {"interrupted": 1, "stopped": 1}
    assert diary == ["started", "slept 3", "stopped"]


async def test_a_stop_bounds_the_hook_for_a_death_that_comes_after_it(autojump_clock: MockClock) -> None:
    """An idle actor that watches another has something to wait for."""

    class Mourner(Player):
        def started(self, ctx: ActorContext) -> None:
            ctx.watch(peer)

        async def terminated(self, ctx: ActorContext, ref: ActorRef[Any], reason: StopReason) -> None:
            await trio.sleep_forever()

    async with open_system() as system:
        peer = system.spawn(Player, lazy=True)
        mourner = system.spawn(Mourner)
        await wait_all_tasks_blocked()
        began = trio.current_time()
        mourner.stop(drain_timeout=10)
        peer.kill()
        with trio.move_on_after(20):
            await mourner.wait_stopped()
        mourner.kill()
        assert trio.current_time() - began == pytest.approx(10)


async def test_only_an_earlier_end_changes_a_stop(autojump_clock: MockClock) -> None:
    """Asking again may hurry, never delay; and a kill ends the waiting."""
    async with open_system(drain_timeout=7) as system:
        for deadlines, expected in (((None,), 7), ((5, 50), 5), ((50, 5), 5)):
            ref = system.spawn(Player)
            ref.tell(Sleep(100))
            await wait_all_tasks_blocked()
            began = trio.current_time()
            for deadline in deadlines:
                ref.stop(drain_timeout=deadline)
            await ref.wait_stopped()
            assert trio.current_time() - began == pytest.approx(expected)
        ref = system.spawn(Player)
        ref.tell(Sleep(100))
        await wait_all_tasks_blocked()
        ref.stop()
        ref.kill()
        began = trio.current_time()
        assert await ref.wait_stopped() == StopReason("killed")
        assert trio.current_time() == began
        ref.stop()
        ref.kill()
        ref.pause()  # all of no effect


async def test_the_last_hook_is_shielded_and_bounded(autojump_clock: MockClock, caplog: Any) -> None:
    """A kill waits for it, but no longer than cleanup_timeout; the overrun is logged."""

    class Clinging(Player):
        async def stopped(self, ctx: ActorContext) -> None:
            self.diary.append("letting go")
            await trio.sleep(60)

    diary: list[str] = []
    async with open_system(cleanup_timeout=2) as system:
        ref = system.spawn(lambda: Clinging(diary))
        await wait_all_tasks_blocked()
        began = trio.current_time()
        ref.kill()
        await ref.wait_stopped()
        assert trio.current_time() - began == pytest.approx(2)
    assert diary == ["letting go"]
    assert [vars(record).get("event") for record in caplog.records] == ["actors.hook_timed_out"]


def test_a_hook_that_fails_at_the_end_is_logged(run_async: Any, caplog: Any) -> None:
    """Neither stopping nor stopped can stop the stop."""

    class Clumsy(Player):
        def stopping(self, ctx: ActorContext) -> None:
            raise Boom("stopping")

        def stopped(self, ctx: ActorContext) -> None:
            raise Boom("stopped")

    async def main() -> None:
        async with open_system() as system:
            system.spawn(Clumsy)
            await anyio.wait_all_tasks_blocked()

    run_async(main)
    assert [(vars(record).get("event"), vars(record)["hook"]) for record in caplog.records] == [
        ("actors.hook_failed", "stopping"),
        ("actors.hook_failed", "stopped"),
    ]


def test_an_attribute_named_like_a_hook_is_not_taken_for_one(run_async: Any) -> None:
    """Hooks are methods of the class."""

    class Plain(Player):
        def __init__(self) -> None:
            super().__init__()
            self.started = True
            self.stopped = lambda: None

    async def main() -> None:
        async with open_system() as system:
            assert await system.spawn(Plain).ask(Add()) == 1

    run_async(main)


def test_a_paused_actor_handles_nothing_but_obeys(run_async: Any) -> None:
    """Pause overtakes what waits in the mailbox, and an inline ask waits too; a stop ends the pause."""

    async def main() -> None:
        diary: list[str] = []
        async with open_system() as system:
            ref = system.spawn(lambda: Player(diary))
            await ref.ask(Add())
            await anyio.wait_all_tasks_blocked()
            for n in range(3):
                ref.tell(Note(str(n)))
            ref.pause()
            with anyio.move_on_after(0):
                await ref.ask(Add())
            await anyio.wait_all_tasks_blocked()
            assert diary == []
            assert ref.statistics().state == "paused"
            ref.resume()
            await anyio.wait_all_tasks_blocked()
            assert diary == ["0", "1", "2"]
            ref.pause()
            ref.tell(Note("last"))
            await anyio.wait_all_tasks_blocked()
            ref.stop()
            await ref.wait_stopped()
            assert diary[-1] == "last"

    run_async(main)


def test_a_pause_survives_a_restart(run_async: Any) -> None:
    """The new incarnation handled messages while it said that it was paused."""

    async def main() -> None:
        diary: list[str] = []
        crash = anyio.Event()

        async def background() -> None:
            await crash.wait()
            if len(diary) == 1:
                raise Boom

        async with open_system() as system:
            ref = system.spawn(lambda: Hooked(diary, setup=lambda ctx: ctx.start_soon(background)))
            await anyio.wait_all_tasks_blocked()
            ref.pause()
            ref.tell(Note("later"))
            crash.set()
            await anyio.wait_all_tasks_blocked()
            assert diary == ["started", "restarting after Boom", "started"]
            assert ref.statistics().state == "paused"
            ref.resume()
            await anyio.wait_all_tasks_blocked()
            assert diary[-1] == "later"

    run_async(main)


def test_pause_overtakes_within_a_burst(run_async: Any) -> None:
    """The control lane is looked at before each message."""

    class Pausing:
        def __init__(self, diary: list[str]) -> None:
            self.diary = diary

        @handler(Note)
        def note(self, message: Note, ctx: ActorContext) -> None:
            self.diary.append(message.text)
            if message.text == "pause":
                ctx.ref.pause()

    async def main() -> None:
        diary: list[str] = []
        async with open_system() as system:
            ref = system.spawn(lambda: Pausing(diary))
            for text in ("1", "pause", "2"):
                ref.tell(Note(text))
            await anyio.wait_all_tasks_blocked()
            assert diary == ["1", "pause"]

    run_async(main)


def test_a_kill_from_within_ends_before_the_next_message(run_async: Any) -> None:
    """Also on an event loop that delivers cancellation a pass late."""

    class Suicidal(Player):
        @handler(Add)
        def add(self, message: Add, ctx: ActorContext) -> int:
            ctx.ref.kill()
            return 0

    async def main() -> None:
        diary: list[str] = []
        async with open_system() as system:
            ref = system.spawn(lambda: Suicidal(diary))
            ref.tell(Add())
            ref.tell(Note("never"))
            assert (await ref.wait_stopped()).kind == "killed"
            assert diary == []
            assert system.dead_letters.counts == {"stopped": 1}

    run_async(main)


# --- background tasks -------------------------------------------------------------------------------------


def test_the_crash_of_a_background_task_is_the_actors(run_async: Any) -> None:
    """The message in hand is interrupted, its asker told; what waits is handled by the next incarnation."""

    async def main() -> None:
        gate, diary = anyio.Event(), []

        async def work() -> None:
            await gate.wait()
            raise Boom("background")

        def setup(ctx: ActorContext) -> None:
            if not gate.is_set():
                ctx.start_soon(work)

        outcomes: list[str] = []

        async with open_system() as system, anyio.create_task_group() as tasks:
            ref = system.spawn(lambda: Hooked(diary, setup=setup), "a")
            hold = Hold(anyio.Event())

            async def ask() -> None:
                try:
                    await ref.ask(hold)
                except ActorFailed as error:
                    outcomes.append(str(error))

            tasks.start_soon(ask)
            await hold.begun.wait()
            assert ref.statistics().tasks == 1
            ref.tell(Note("kept"))
            gate.set()
            await ref.ask(AddSlowly())
            assert outcomes == ["/a was interrupted while handling Hold: Boom: background"]
            assert system.dead_letters.counts == {"interrupted": 1}
        assert diary == ["started", "restarting after Boom", "started", "kept", "stopping", "stopped"]

    run_async(main)


def test_background_tasks_end_before_children_at_a_stop(run_async: Any) -> None:
    """A task may use the children to its end, and its clean-up counts."""

    async def main() -> None:
        diary: list[str] = []

        async def work(child: ActorRef[Any]) -> None:
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    diary.append(f"child answers {await child.ask(AddSlowly())}")

        def setup(ctx: ActorContext) -> None:
            ctx.start_soon(work, ctx.spawn(lambda: Hooked(diary, "child")))

        async with open_system() as system:
            system.spawn(lambda: Hooked(diary, "parent", setup))
            await anyio.wait_all_tasks_blocked()
            diary.clear()
        assert diary == ["parent stopping", "child answers 1", "child stopping", "child stopped", "parent stopped"]

    run_async(main)


def test_a_context_is_of_no_use_after_its_incarnation(run_async: Any) -> None:
    """It must not reach into the next one."""

    async def main() -> None:
        contexts: list[ActorContext] = []
        async with open_system() as system:
            ref = system.spawn(lambda: Hooked([], setup=contexts.append), "a")
            other = system.spawn(Player)
            ref.tell(Crash())
            await ref.ask(AddSlowly())
            old, new = contexts
            for use in (lambda: old.spawn(Player), lambda: old.start_soon(anyio.sleep, 0), lambda: old.watch(other)):
                with pytest.raises(ActorStopped, match="this incarnation of /a has ended"):
                    use()
            assert old.children == ()
            assert new.spawn(Player, "b").path == "/a/b"
            assert (new.ref.name, new.ref.path) == ("a", "/a")
            assert new.parent is None
            assert new.ref is ref

    run_async(main)


def test_a_child_knows_its_parent(run_async: Any) -> None:
    """By reference."""

    async def main() -> None:
        contexts: list[ActorContext] = []
        async with open_system() as system:
            ref = system.spawn(
                lambda: Hooked([], setup=lambda ctx: ctx.spawn(lambda: Hooked([], setup=contexts.append)) and None)
            )
            await anyio.wait_all_tasks_blocked()
            assert contexts[0].parent is ref
            assert "ActorRef /lambda-1" in repr(ref)
            assert ref.name == "lambda-1"

    run_async(main)


# --- watching ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "kind"),
    [
        (lambda ref: ref.stop(), "stopped"),
        (lambda ref: ref.kill(), "killed"),
        (lambda ref: ref.tell(Crash()), "failed"),
    ],
)
def test_a_watcher_hears_of_a_death(run_async: Any, end: Any, kind: str) -> None:
    """With its reason; overtaking the mailbox; once, however often it was watched."""

    async def main() -> None:
        diary: list[str] = []

        def setup(ctx: ActorContext) -> None:
            ctx.watch(watched)
            ctx.watch(watched)

        async with open_system() as system:
            watched = system.spawn(Player, "w", restart="temporary")
            watcher = system.spawn(lambda: Hooked(diary, setup=setup))
            await anyio.wait_all_tasks_blocked()
            watcher.pause()
            await anyio.wait_all_tasks_blocked()
            watcher.tell(Note("later"))
            end(watched)
            await watched.wait_stopped()
            watcher.resume()
            await anyio.wait_all_tasks_blocked()
        assert diary == ["started", f"saw w {kind}", "later", "stopping", "stopped"]

    run_async(main)


def test_watching_the_dead_is_answered(run_async: Any) -> None:
    """A watch placed too late still tells."""

    async def main() -> None:
        diary: list[str] = []
        contexts: list[ActorContext] = []
        async with open_system() as system:
            dead = system.spawn(Player, "dead")
            dead.kill()
            await dead.wait_stopped()
            system.spawn(lambda: Hooked(diary, setup=contexts.append))
            await anyio.wait_all_tasks_blocked()
            contexts[0].watch(dead)
            await anyio.wait_all_tasks_blocked()
        assert diary == ["started", "saw dead killed", "stopping", "stopped"]

    run_async(main)


def test_watches_end_with_the_incarnation(run_async: Any) -> None:
    """The fresh copy watches anew if it wants to."""

    async def main() -> None:
        diary: list[str] = []

        def setup(ctx: ActorContext) -> None:
            if diary == ["started"]:
                ctx.watch(watched)

        async with open_system() as system:
            watched = system.spawn(Player)
            watcher = system.spawn(lambda: Hooked(diary, setup=setup))
            watcher.tell(Crash())
            await watcher.ask(AddSlowly())
            watched.kill()
            await watched.wait_stopped()
            await anyio.wait_all_tasks_blocked()
        assert not [line for line in diary if line.startswith("saw")]

    run_async(main)


def test_all_watchers_hear(run_async: Any) -> None:
    """A death has many witnesses."""

    async def main() -> None:
        diary: list[str] = []
        async with open_system() as system:
            watched = system.spawn(Player, "w")
            for name in "abc":
                system.spawn(lambda name=name: Hooked(diary, name, lambda ctx: ctx.watch(watched)))
            await anyio.wait_all_tasks_blocked()
            watched.kill()
            await watched.wait_stopped()
            await anyio.wait_all_tasks_blocked()
            assert {f"{name} saw w killed" for name in "abc"} < set(diary)

    run_async(main)


def test_a_death_not_yet_told_dies_with_its_watcher(run_async: Any) -> None:
    """It is for the incarnation that asked for it."""

    async def main() -> None:
        diary: list[str] = []
        async with open_system() as system:
            watched = system.spawn(Player)
            watcher = system.spawn(lambda: Hooked(diary, setup=lambda ctx: ctx.watch(watched)))
            await anyio.wait_all_tasks_blocked()
            hold = Hold(anyio.Event())
            watcher.tell(hold)
            await hold.begun.wait()
            watched.kill()
            await watched.wait_stopped()
            watcher.kill()
            await watcher.wait_stopped()
        assert diary == ["started", "stopped"]

    run_async(main)


def test_watching_without_a_hook_is_refused(run_async: Any) -> None:
    """Nobody would hear of it."""

    class Deaf(Player):
        def started(self, ctx: ActorContext) -> None:
            ctx.watch(ctx.ref)

    async def main() -> None:
        async with open_system() as system:
            ref = system.spawn(Deaf, "deaf", restart="temporary")
            reason = await ref.wait_stopped()
            assert isinstance(reason.error, ConfigurationError)
            assert "has no `terminated` hook" in str(reason.error)

    run_async(main)


# --- spawning ---------------------------------------------------------------------------------------------


def test_a_lazy_actor_is_made_on_its_first_message(run_async: Any) -> None:
    """Told, asked, or signalled; stopped or killed before, it was never made."""

    async def main() -> None:
        made: list[str] = []

        def factory() -> Player:
            made.append("one")
            return Player()

        async with open_system() as system:
            told, stopped, killed, left = (system.spawn(factory, lazy=True) for _ in range(4))
            await anyio.wait_all_tasks_blocked()
            assert told.statistics().state == "new"
            for _ in range(2):
                stopped.stop()
                killed.kill()
            assert (await stopped.wait_stopped()).kind == "stopped"
            assert (await killed.wait_stopped()).kind == "killed"
            assert made == []
            assert await told.ask(Add()) == 1
            assert made == ["one"]
        assert made == ["one"]
        assert (await left.wait_stopped()).kind == "stopped"

    run_async(main)


def test_a_lazy_actor_does_not_outlive_a_killed_tree(run_async: Any) -> None:
    """It has no task to cancel, and is ended all the same."""

    async def main() -> None:
        children: list[ActorRef[Any]] = []

        def setup(ctx: ActorContext) -> None:
            children.append(ctx.spawn(Player, lazy=True))

        async with open_system() as system:
            ref = system.spawn(lambda: Hooked([], setup=setup))
            await anyio.wait_all_tasks_blocked()
            ref.kill()
            await ref.wait_stopped()
            assert (await children[0].wait_stopped()).kind == "killed"

    run_async(main)


def test_nothing_begins_in_an_incarnation_that_has_ended(run_async: Any) -> None:
    """Its task group takes no more before its block is left: ``tell`` raised on trio, and asyncio detached the task."""

    class Parent(Player):
        def started(self, ctx: ActorContext) -> None:
            self.diary.append((ctx, ctx.spawn(Player, lazy=True)))

        @handler
        async def crash(self, message: Crash) -> None:  # type: ignore[override]
            await anyio.lowlevel.checkpoint()
            raise Boom

    async def main() -> None:
        diary: list[Any] = []
        async with open_system(supervision=Supervision(max_restarts=100)) as system:
            parent = system.spawn(lambda: Parent(diary))
            for passes in [*range(6)] * 5:
                await anyio.wait_all_tasks_blocked()
                context, child = diary[-1]
                parent.tell(Crash())
                for _ in range(passes):
                    await anyio.lowlevel.checkpoint()
                with suppress(ActorStopped):
                    context.start_soon(anyio.sleep_forever)
                child.tell(Note("late"))
                while diary[-1][0] is context:
                    await anyio.lowlevel.checkpoint()
                assert child.statistics().state == "stopped"
                assert (parent.statistics().tasks, system.statistics().actors) == (0, 2)

    run_async(main)


def test_names_of_living_siblings_differ(run_async: Any) -> None:
    """A name is free again when its actor has stopped."""

    async def main() -> None:
        async with open_system() as system:
            ref = system.spawn(Player, "a")
            with pytest.raises(ConfigurationError, match="/a exists already"):
                system.spawn(Player, "a")
            for name in cast("list[str]", ["", "a/b", 5, b"a"]):
                with pytest.raises(ConfigurationError, match="cannot be named"):
                    system.spawn(Player, name)
            ref.kill()
            await ref.wait_stopped()
            assert system.spawn(Player, "a").path == "/a"
            system.spawn(Player, "player-1")
            assert system.spawn(Player).path == "/player-2"  # a generated name is never taken

    run_async(main)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"capacity": 0}, r"Expected `int` >= 1 - at `\$.capacity`"),
        ({"attempts": 0}, r"Expected `int` >= 1 - at `\$.attempts`"),
        ({"restart": "sometimes"}, r"Invalid enum value 'sometimes' - at `\$.restart`"),
        ({"speed": 3}, "unknown field `speed`"),
    ],
)
def test_impossible_options_are_refused(run_async: Any, options: Any, message: str) -> None:
    """With the name of the option."""

    async def main() -> None:
        async with open_system() as system:
            with pytest.raises(ConfigurationError, match=message):
                system.spawn(Player, **options)

    run_async(main)


@pytest.mark.parametrize("factory", [None, 5, Player()])
def test_only_what_makes_an_actor_is_spawned(run_async: Any, factory: Any) -> None:
    """Its call failed at every restart, until the system failed."""

    async def main() -> None:
        async with open_system() as system:
            with pytest.raises(ConfigurationError, match="expected a class of actors, or a function that makes one"):
                system.spawn(factory)

    run_async(main)


def test_wait_stopped_of_a_system_waits_for_all(run_async: Any) -> None:
    """Until the last actor has stopped."""

    async def main() -> None:
        async with open_system() as system:
            refs = [system.spawn(Player) for _ in range(3)]
            for ref in refs:
                ref.stop()
            await system.wait_stopped()
            assert system.statistics().actors == 0
            assert system.statistics().spawned == 3

    run_async(main)


def test_a_system_runs_where_trio_is_the_guest_of_asyncio() -> None:
    """Both loops run in the thread then: its tasks are trio's, and were put to sleep with asyncio's futures."""

    async def main() -> None:
        with trio.fail_after(2 * PATIENCE):
            async with open_system() as system:
                ref = system.spawn(Player)
                assert await ref.ask(Add(1), reply_timeout=PATIENCE) == 1
                assert await ref.ask(AddSlowly(2), reply_timeout=PATIENCE) == 3

    async def host() -> None:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Outcome[None]] = loop.create_future()
        trio.lowlevel.start_guest_run(
            main, run_sync_soon_threadsafe=loop.call_soon_threadsafe, done_callback=ended.set_result
        )
        (await ended).unwrap()

    asyncio.run(host())
