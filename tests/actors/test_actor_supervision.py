"""Who is restarted, when, how often, and what it costs the message that did it."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

import anyio
import msgspec
import pytest
import trio
from actor_cast import Add, AddSlowly, Boom, Crash, Hold, Hooked, Note, Player
from trio.testing import MockClock, wait_all_tasks_blocked

from repertory.actors import ActorContext, ActorRef, Restart, Strategy, Supervision, handler, open_system
from repertory.errors import ActorFailed, ActorStopped, ConfigurationError

Ending = Literal["crash", "leave", "stop", "kill"]


class Member(Hooked):
    """A member of a troupe; leaves when asked for a negative sum."""

    @handler(Add)
    def add(self, message: Add, ctx: ActorContext) -> int:
        """Add, or leave."""
        if message.n < 0:
            ctx.stop()
        return message.n


def end(ref: ActorRef[Any], ending: Ending) -> None:
    """Bring an actor down in one of the four ways."""
    match ending:
        case "crash":
            ref.tell(Crash())
        case "leave":
            ref.tell(Add(-1))
        case "stop":
            ref.stop()
        case "kill":
            ref.kill()


@pytest.mark.parametrize(
    ("restart", "ending", "comes_back", "kind"),
    [
        ("permanent", "crash", True, None),
        ("permanent", "leave", True, None),
        ("permanent", "stop", False, "stopped"),
        ("permanent", "kill", False, "killed"),
        ("transient", "crash", True, None),
        ("transient", "leave", False, "stopped"),
        ("transient", "stop", False, "stopped"),
        ("transient", "kill", False, "killed"),
        ("temporary", "crash", False, "failed"),
        ("temporary", "leave", False, "stopped"),
        ("temporary", "stop", False, "stopped"),
        ("temporary", "kill", False, "killed"),
    ],
)
def test_who_comes_back(run_async: Any, restart: Restart, ending: Ending, comes_back: bool, kind: str) -> None:
    """The restart type against the way an actor ends: only what it did itself can bring it back."""

    async def main() -> None:
        diary: list[str] = []
        async with open_system() as system:
            ref = system.spawn(lambda: Member(diary), restart=restart)
            await anyio.wait_all_tasks_blocked()
            end(ref, ending)
            await anyio.wait_all_tasks_blocked()
            assert ref.statistics().restarts == comes_back
            assert diary.count("started") == 1 + comes_back
            if comes_back:
                assert await ref.ask(Add(7)) == 7
            else:
                reason = await ref.wait_stopped()
                assert reason.kind == kind
                assert isinstance(reason.error, Boom) == (kind == "failed")

    run_async(main)


class Troupe:
    """Four supervised members: a, b, t (temporary), c, and their common diary."""

    def __init__(self, strategy: Strategy, **limits: Any) -> None:
        self.diary: list[str] = []
        self.refs: dict[str, ActorRef[Any]] = {}
        self.policy = Supervision(strategy=strategy, **limits)

    def setup(self, ctx: ActorContext) -> None:
        """Spawn the members."""
        for name in ("a", "b", "t", "c"):
            restart: Restart = "temporary" if name == "t" else "transient"
            self.refs[name] = ctx.spawn(lambda name=name: Member(self.diary, name), name, restart=restart)

    def lead(self) -> Hooked:
        """Make their parent."""
        return Hooked([], setup=self.setup)


@pytest.mark.parametrize(
    ("strategy", "crashing", "expected"),
    [
        ("one-for-one", "b", ["b restarting after Boom", "b started"]),
        ("one-for-one", "t", ["t stopped"]),
        (
            "one-for-all",
            "b",
            [
                "b restarting after Boom",
                "c restarting after Boom",
                "t stopped",
                "a restarting after Boom",
                "a started",
                "b started",
                "c started",
            ],
        ),
        ("one-for-all", "t", ["t stopped"]),
        (
            "rest-for-one",
            "b",
            ["b restarting after Boom", "c restarting after Boom", "t stopped", "b started", "c started"],
        ),
        ("rest-for-one", "c", ["c restarting after Boom", "c started"]),
    ],
)
def test_who_is_restarted_with_a_crashed_sibling(
    run_async: Any, strategy: Strategy, crashing: str, expected: list[str]
) -> None:
    """The crashed one ends first, the others last to first; they start first to last; the temporary stays down."""

    async def main() -> None:
        troupe = Troupe(strategy)
        async with open_system() as system:
            system.spawn(troupe.lead, supervision=troupe.policy)
            await anyio.wait_all_tasks_blocked()
            troupe.diary.clear()
            troupe.refs[crashing].tell(Crash())
            await anyio.wait_all_tasks_blocked()
            assert troupe.diary == ["crash", *expected]
            for name in set(troupe.refs) - {"t"}:
                assert await troupe.refs[name].ask(AddSlowly(3)) == 3

    run_async(main)


@pytest.mark.parametrize("strategy", ["one-for-all", "rest-for-one"])
def test_siblings_keep_their_mailboxes_over_a_group_restart(run_async: Any, strategy: Strategy) -> None:
    """Only what a sibling had in hand is interrupted."""

    async def main() -> None:
        troupe = Troupe(strategy)
        async with open_system() as system, anyio.create_task_group() as tasks:
            system.spawn(troupe.lead, supervision=troupe.policy)
            await anyio.wait_all_tasks_blocked()
            hold, interrupted = Hold(anyio.Event()), []

            async def ask() -> None:
                with pytest.raises(ActorFailed, match="was interrupted while handling Hold") as caught:
                    await troupe.refs["c"].ask(hold)
                interrupted.append(type(caught.value.__cause__))

            tasks.start_soon(ask)
            await hold.begun.wait()
            troupe.refs["c"].tell(Note("kept"))
            troupe.refs["a"].tell(Crash())
            await anyio.wait_all_tasks_blocked()
            assert interrupted == [Boom]
            assert "kept" in troupe.diary
            assert system.dead_letters.counts == {"failed": 1, "interrupted": 1}

    run_async(main)


def test_two_crashes_at_once_restart_the_group_once_or_twice_but_leave_it_whole(run_async: Any) -> None:
    """Simultaneous crashes in a group do not trip over each other."""

    async def main() -> None:
        troupe = Troupe("one-for-all", max_restarts=5)
        async with open_system() as system:
            system.spawn(troupe.lead, supervision=troupe.policy)
            await anyio.wait_all_tasks_blocked()
            for name in ("a", "c"):
                troupe.refs[name].tell(Crash())
            await anyio.wait_all_tasks_blocked()
            for name in ("a", "b", "c"):
                assert await troupe.refs[name].ask(AddSlowly(3)) == 3
                assert troupe.refs[name].statistics().restarts in (1, 2)

    run_async(main)


def test_a_lazy_sibling_is_left_alone(run_async: Any) -> None:
    """It has no state to lose."""

    async def main() -> None:
        diary: list[str] = []
        refs: list[ActorRef[Any]] = []

        def setup(ctx: ActorContext) -> None:
            refs.extend((ctx.spawn(lambda: Member(diary, "lazy"), lazy=True), ctx.spawn(lambda: Member(diary, "b"))))

        async with open_system() as system:
            system.spawn(lambda: Hooked([], setup=setup), supervision=Supervision(strategy="one-for-all"))
            await anyio.wait_all_tasks_blocked()
            refs[1].tell(Crash())
            await anyio.wait_all_tasks_blocked()
            assert diary == ["b started", "crash", "b restarting after Boom", "b started"]
            assert await refs[0].ask(AddSlowly()) == 1

    run_async(main)


def test_children_spawned_during_a_group_restart_are_no_trouble(run_async: Any) -> None:
    """Halted before their first step or after, they all end up running."""

    async def main() -> None:
        refs: list[ActorRef[Any]] = []

        async def spawn(ctx: ActorContext) -> None:
            refs[0].tell(Crash())
            for _ in range(20):
                refs.append(ctx.spawn(Player))
                await anyio.lowlevel.checkpoint()

        def setup(ctx: ActorContext) -> None:
            refs.append(ctx.spawn(Player))
            ctx.start_soon(spawn, ctx)

        async with open_system() as system:
            system.spawn(lambda: Hooked([], setup=setup), supervision=Supervision(strategy="one-for-all"))
            await anyio.wait_all_tasks_blocked()
            assert len(refs) == 21
            for ref in refs:
                assert await ref.ask(AddSlowly()) == 1

    run_async(main)


def test_a_sibling_crashing_before_it_ever_ran_is_no_trouble(run_async: Any) -> None:
    """A first child that cannot start takes the group through restarts, then its parent down."""

    class Stillborn(Player):
        def started(self, ctx: ActorContext) -> None:
            raise Boom("stillborn")

    async def main() -> None:
        diary: list[str] = []

        def setup(ctx: ActorContext) -> None:
            ctx.spawn(Stillborn, "first")
            ctx.spawn(lambda: Member(diary, "second"), "second")

        async with open_system() as system:
            lead = system.spawn(
                lambda: Hooked([], setup=setup), restart="temporary", supervision=Supervision(strategy="one-for-all")
            )
            reason = await lead.wait_stopped()
            assert isinstance(reason.error, ActorFailed)
            assert "/first needed more than 3 restarts in 5 s: Boom: stillborn" in str(reason.error)
            assert isinstance(reason.error.__cause__, Boom)

    run_async(main)


@pytest.mark.parametrize("strategy", ["one-for-one", "one-for-all", "rest-for-one"])
def test_too_many_restarts_escalate(run_async: Any, strategy: Strategy) -> None:
    """One more crash than allowed, and the parent crashes, is restarted, and makes new children."""

    async def main() -> None:
        troupe = Troupe(strategy, max_restarts=2, period=60)
        async with open_system() as system:
            lead = system.spawn(troupe.lead, supervision=troupe.policy)
            await anyio.wait_all_tasks_blocked()
            doomed = troupe.refs["a"]
            for _ in range(3):
                assert lead.statistics().crashes == 0
                doomed.tell(Crash())
                await anyio.wait_all_tasks_blocked()
            assert (await doomed.wait_stopped()).kind == "failed"
            assert lead.statistics().restarts == 1
            assert troupe.refs["a"] is not doomed
            assert await troupe.refs["a"].ask(AddSlowly(2)) == 2

    run_async(main)


def test_too_many_restarts_may_stop_the_child_alone(run_async: Any) -> None:
    """when_exceeded="stop": the others never notice."""

    async def main() -> None:
        async with open_system(supervision=Supervision(max_restarts=1, when_exceeded="stop")) as system:
            bad, good = system.spawn(Player), system.spawn(Player)
            for _ in range(2):
                bad.tell(Crash())
            bad.tell(Note("left over"))
            assert (await bad.wait_stopped()).kind == "failed"
            assert await good.ask(Add()) == 1
            assert system.dead_letters.counts == {"failed": 2, "stopped": 1}

    run_async(main)


def test_at_the_top_too_many_restarts_end_the_system(run_async: Any) -> None:
    """The block is cancelled and the error comes out of it, with its cause, and not in a group."""

    async def main() -> None:
        with pytest.raises(ActorFailed, match=r"/a needed more than 0 restarts in 5 s: Boom: boom") as caught:
            async with open_system(supervision=Supervision(max_restarts=0)) as system:
                system.spawn(Player, "a").tell(Crash())
                await anyio.sleep_forever()
        assert isinstance(caught.value.__cause__, Boom)

    run_async(main)


def test_what_the_block_makes_of_the_end_of_its_system_is_kept(run_async: Any) -> None:
    """The crash is what went wrong; the block's own error is its context."""

    async def main() -> None:
        with pytest.raises(ActorFailed) as caught:
            async with open_system(supervision=Supervision(max_restarts=0)) as system:
                system.spawn(Player, "a").tell(Crash())
                try:
                    await anyio.sleep_forever()
                finally:
                    raise ValueError("consequence")
        assert isinstance(caught.value.__context__, ValueError)

    run_async(main)


async def test_restarts_wait_longer_and_longer(autojump_clock: MockClock) -> None:
    """1, 2, 4, then the maximum; after a quiet time from the start again."""
    policy = Supervision(
        max_restarts=100, backoff_first=1, backoff_factor=2, backoff_max=5, backoff_reset=50, period=1000
    )
    async with open_system(supervision=policy) as system:
        ref = system.spawn(Player)
        for quiet, expected in ((0, 1), (0, 2), (0, 4), (0, 5), (0, 5), (60, 1)):
            await trio.sleep(quiet)
            began = trio.current_time()
            ref.tell(Crash())
            await ref.ask(AddSlowly())
            assert trio.current_time() - began == pytest.approx(expected)


async def test_restarts_long_ago_do_not_count(autojump_clock: MockClock) -> None:
    """The limit is on a window."""
    async with open_system(supervision=Supervision(max_restarts=1, period=10)) as system:
        ref = system.spawn(Player)
        for _ in range(5):
            ref.tell(Crash())
            await ref.ask(AddSlowly())
            await trio.sleep(11)
        assert ref.statistics().restarts == 5


async def test_a_group_waits_together(autojump_clock: MockClock) -> None:
    """Back-off holds for all of the group."""
    troupe = Troupe("one-for-all", backoff_first=3)
    async with open_system() as system:
        system.spawn(troupe.lead, supervision=troupe.policy)
        await wait_all_tasks_blocked()
        began = trio.current_time()
        troupe.refs["b"].tell(Crash())
        await wait_all_tasks_blocked()
        assert troupe.refs["c"].statistics().state == "restarting"
        await troupe.refs["c"].ask(AddSlowly())
        assert trio.current_time() - began == pytest.approx(3)


@pytest.mark.parametrize("strategy", ["one-for-one", "one-for-all"])
@pytest.mark.parametrize(("ending", "kind"), [("stop", "stopped"), ("kill", "killed")])
async def test_an_actor_may_be_ended_while_it_waits_for_its_restart(
    autojump_clock: MockClock, strategy: Strategy, ending: Ending, kind: str
) -> None:
    """At once; its mailbox goes to dead letters; its group is not held up by it."""
    troupe = Troupe(strategy, backoff_first=100, backoff_max=100)
    async with open_system() as system:
        system.spawn(troupe.lead, supervision=troupe.policy)
        await wait_all_tasks_blocked()
        troupe.refs["a"].tell(Crash())
        troupe.refs["a"].tell(Note("left"))
        await wait_all_tasks_blocked()
        began = trio.current_time()
        end(troupe.refs["a"], ending)
        assert (await troupe.refs["a"].wait_stopped()).kind == kind
        assert trio.current_time() == began
        assert system.dead_letters.counts == {"failed": 1, "stopped": 1}
        assert await troupe.refs["c"].ask(AddSlowly()) == 1


async def test_a_system_can_stop_in_the_middle_of_a_group_restart(autojump_clock: MockClock) -> None:
    """Nobody waits for the back-off."""
    troupe = Troupe("rest-for-one", backoff_first=100, backoff_max=100)
    async with open_system() as system:
        system.spawn(troupe.lead, supervision=troupe.policy)
        await wait_all_tasks_blocked()
        troupe.refs["a"].tell(Crash())
        await wait_all_tasks_blocked()
        began = trio.current_time()
    assert trio.current_time() - began < 6
    assert system.statistics().actors == 0


def test_a_group_restart_may_be_cut_short_by_the_end_of_its_parent(run_async: Any) -> None:
    """The parent is killed while its children hold still; none is left, and nothing is in the way."""

    async def main() -> None:
        troupe = Troupe("rest-for-one", backoff_first=100, backoff_max=100)
        async with open_system() as system:
            lead = system.spawn(troupe.lead, supervision=troupe.policy)
            await anyio.wait_all_tasks_blocked()
            for name in ("a", "b"):
                troupe.refs[name].tell(Crash())
            await anyio.wait_all_tasks_blocked()
            lead.kill()
            await lead.wait_stopped()
            assert (await troupe.refs["a"].wait_stopped()).kind == "killed"
            assert system.statistics().actors == 0

    run_async(main)


# --- the message that did it ------------------------------------------------------------------------------


@pytest.mark.parametrize("attempts", [1, 2, 3])
def test_a_poison_message_is_parked_after_its_attempts(run_async: Any, attempts: int) -> None:
    """With the error; what waits behind it is handled in order."""

    async def main() -> None:
        diary: list[str] = []
        async with open_system() as system:
            ref = system.spawn(lambda: Player(diary), attempts=attempts)
            for message in (Note("1"), Crash(), Note("2")):
                ref.tell(message)
            await ref.ask(AddSlowly())
            assert diary == ["1", *["crash"] * attempts, "2"]
            assert ref.statistics().crashes == attempts
            letter = system.dead_letters.recent[0]
            assert (letter.message, letter.reason, type(letter.error)) == (Crash(), "failed", Boom)
            assert system.dead_letters.total == 1

    run_async(main)


def test_the_attempts_of_one_message_do_not_count_for_another(run_async: Any) -> None:
    """Two different poison messages have their attempts each."""

    async def main() -> None:
        diary: list[str] = []
        async with open_system(supervision=Supervision(max_restarts=10)) as system:
            ref = system.spawn(lambda: Player(diary), attempts=2)
            ref.tell(Crash("one"))
            ref.tell(Crash("two"))
            await ref.ask(AddSlowly())
            assert diary == ["crash"] * 4

    run_async(main)


def test_an_ask_retried_with_success_is_answered(run_async: Any) -> None:
    """The asker never learns of the crash in between."""

    class Flaky:
        def __init__(self, crashes: list[int]) -> None:
            self.crashes = crashes

        @handler(Add)
        def add(self, message: Add) -> int:
            if self.crashes:
                self.crashes.pop()
                raise Boom
            return message.n

    async def main() -> None:
        crashes: list[int] = []
        async with open_system(supervision=Supervision(max_restarts=4)) as system:
            ref = system.spawn(lambda: Flaky(crashes), attempts=3)
            for _ in range(2):
                crashes += [1, 2]
                assert await ref.ask(Add(5)) == 5
                await anyio.wait_all_tasks_blocked()
            assert ref.statistics().inline == 0
            assert system.dead_letters.total == 0

    run_async(main)


def test_an_interrupted_message_is_retried_only_with_attempts(run_async: Any) -> None:
    """At most once by default; at least once when asked for."""

    async def main(attempts: int) -> list[str]:
        diary: list[str] = []
        async with open_system() as system, anyio.create_task_group() as tasks:
            gate = anyio.Event()
            contexts: list[ActorContext] = []
            ref = system.spawn(lambda: Hooked(diary, setup=contexts.append), attempts=attempts)
            hold = Hold(gate)
            tasks.start_soon(_swallow, lambda: ref.ask(hold))
            await hold.begun.wait()

            async def crash() -> None:
                raise Boom

            contexts[0].start_soon(crash)
            await anyio.wait_all_tasks_blocked()
            gate.set()
        return diary

    assert "held" not in run_async(main, 1)
    assert "held" in run_async(main, 2)


async def test_a_retried_ask_that_was_given_up_is_not_retried(autojump_clock: MockClock) -> None:
    """It is withdrawn like any other that has not begun."""
    diary: list[str] = []
    async with open_system(supervision=Supervision(backoff_first=10)) as system:
        ref = system.spawn(lambda: Player(diary), attempts=5)
        with anyio.move_on_after(1):
            await ref.ask(Crash())
        await ref.ask(AddSlowly())
        assert diary == ["crash"]
        assert ref.statistics().withdrawn == 1


async def _swallow(function: Callable[[], Any]) -> None:
    with suppress(ActorFailed, ActorStopped):
        await function()


def test_a_factory_that_fails_is_a_crash(run_async: Any) -> None:
    """It is retried, then given up; no hook is called on what was never made."""

    async def main() -> None:
        tries: list[int] = []

        def factory() -> Player:
            tries.append(1)
            raise Boom("no actor today")

        async with open_system(supervision=Supervision(max_restarts=2, when_exceeded="stop")) as system:
            ref = system.spawn(factory)
            with pytest.raises(ActorStopped, match="has failed for good"):
                await ref.ask(Add())
            assert len(tries) == 3

    run_async(main)


def test_a_crash_while_stopping_is_final(run_async: Any) -> None:
    """There is no restart for the sake of an orderly end; the rest goes to dead letters."""

    async def main() -> None:
        async with open_system() as system:
            ref = system.spawn(Player)
            ref.tell(Crash())
            ref.tell(Note("rest"))
            ref.stop()
            assert (await ref.wait_stopped()).kind == "failed"
            assert system.dead_letters.counts == {"failed": 1, "stopped": 1}

    run_async(main)


def test_a_crash_in_the_terminated_hook_is_a_crash(run_async: Any) -> None:
    """No message is to blame."""

    class Fragile(Player):
        def started(self, ctx: ActorContext) -> None:
            ctx.watch(watched)

        def terminated(self, ctx: ActorContext, ref: ActorRef[Any], reason: object) -> None:
            raise Boom

    async def main() -> None:
        nonlocal watched
        async with open_system() as system:
            watched = system.spawn(Player)
            ref = system.spawn(Fragile, restart="temporary")
            await anyio.wait_all_tasks_blocked()
            watched.kill()
            assert (await ref.wait_stopped()).kind == "failed"
            assert system.dead_letters.total == 0

    watched: Any = None
    run_async(main)


def test_a_permanent_actor_that_leaves_too_often_is_too_much(run_async: Any) -> None:
    """Leaving counts as crashing does."""

    class Restless(Player):
        def started(self, ctx: ActorContext) -> None:
            ctx.stop()

    async def main() -> None:
        async with open_system(supervision=Supervision(when_exceeded="stop")) as system:
            ref = system.spawn(Restless, restart="permanent")
            reason = await ref.wait_stopped()
            assert (reason.kind, type(reason.error)) == ("failed", ActorStopped)
            assert ref.statistics().restarts == 3

    run_async(main)


@pytest.mark.parametrize(
    "wrong",
    [{"max_restarts": -1}, {"backoff_factor": 0.5}]
    + [
        {name: value}
        for name in ("period", "backoff_first", "backoff_max", "backoff_reset")
        for value in (-1.0, math.nan)
    ],
)
def test_a_policy_of_impossible_numbers_is_refused(wrong: Any) -> None:
    """Otherwise the wait before a restart would fail, and with it the parent."""
    with pytest.raises(ConfigurationError, match=f"Supervision.{next(iter(wrong))} is .*; expected .* >= "):
        Supervision(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [{"timer_resolution": 0}, {"drain_timeout": -1}, {"cleanup_timeout": math.nan}, {"supervision": "one-for-all"}],
)
def test_a_system_of_impossible_options_is_refused(run_async: Any, wrong: Any) -> None:
    """The error names the option, and comes out as it is."""

    async def main() -> None:
        with pytest.raises(ConfigurationError, match=f"{next(iter(wrong))} must be "):
            async with open_system(**wrong):
                pass

    run_async(main)


def test_a_long_loop_of_crashes_waits_no_longer_than_allowed() -> None:
    """Also where the factor to the power of the crashes is more than a number can be."""
    policy = Supervision(backoff_first=1, backoff_factor=1e9, backoff_max=7)
    assert [policy.delay(restart) for restart in (1, 2, 60, 10_000)] == [1, 7, 7, 7]
    assert msgspec.structs.replace(policy, backoff_first=0).delay(60) == 0


def test_times_may_be_infinite(run_async: Any) -> None:
    """A count of restarts that never begins again, and an actor that has for ever to stop."""
    policy = Supervision(period=math.inf, backoff_max=math.inf, backoff_reset=math.inf)
    diary: list[str] = []

    async def main() -> None:
        async with open_system(supervision=policy, drain_timeout=math.inf, cleanup_timeout=math.inf) as system:
            ref = system.spawn(lambda: Member(diary))
            ref.tell(Crash())
            assert await ref.ask(Add(1)) == 1
        assert (await ref.wait_stopped()).kind == "stopped"

    run_async(main)
    assert diary.count("started") == 2
