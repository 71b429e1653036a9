"""No message is ever lost and no ask ever hangs: random scripts of crashes, cancels, stops, and the balance after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Literal

import anyio
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from repertory.actors import (
    ActorContext,
    ActorRef,
    ActorSystem,
    DeadLetter,
    Overflow,
    Request,
    Restart,
    Strategy,
    Supervision,
    handler,
    open_system,
)
from repertory.errors import ActorError, ActorFailed, ActorStopped, MailboxFull

Deed = Literal["work", "sleep", "crash", "crash after sleep", "expected", "background crash", "spawn", "leave", "ask"]
DEEDS: tuple[Deed, ...] = (
    "work",
    "sleep",
    "crash",
    "crash after sleep",
    "expected",
    "background crash",
    "spawn",
    "leave",
    "ask",
)


class Quick(Request[int], frozen=True):
    """Handled by a plain ``def``, perhaps inline."""

    id: int
    deed: Deed = "work"


class Slow(Request[int], frozen=True):
    """Handled by an ``async def``."""

    id: int
    deed: Deed = "work"


class Trouble(Exception):
    """What crashes raise."""


class Sorry(Exception):
    """What a handler may raise."""


class Ledger:
    """What became of each message, as seen by its sender, its receiver, and the dead letters."""

    def __init__(self) -> None:
        self.sent: set[int] = set()
        self.handled: Counter[int] = Counter()
        self.dead: Counter[int] = Counter()
        self.kept: set[int] = set()
        self.given_up: set[int] = set()
        self.answered: Counter[int] = Counter()
        self.asked: set[int] = set()

    def bury(self, letter: DeadLetter) -> None:
        """Observe a dead letter."""
        self.dead[letter.message.id] += 1

    def problems(self) -> Iterable[str]:
        """Everything that does not add up."""
        for n in sorted(self.sent):
            fates = self.handled[n] + self.dead[n] + (n in self.kept)
            if fates == 0 and n not in self.given_up:
                yield f"message {n} vanished"
            if self.handled[n] and self.dead[n]:
                yield f"message {n} was both handled and reported dead"
            if self.handled[n] > 1 or self.dead[n] > 1:
                yield f"message {n} was accounted for twice"
            if n in self.kept and (self.handled[n] or self.dead[n]):
                yield f"message {n} was refused to its sender and yet accepted"
        for n in sorted(self.asked):
            if self.answered[n] != 1:
                yield f"ask {n} ended {self.answered[n]} times"


class Worker:
    """Does all that can go wrong."""

    def __init__(self, world: World) -> None:
        self.world = world

    def started(self, ctx: ActorContext) -> None:
        """Keep the context."""
        self.ctx = ctx

    @handler(Quick, expected=Sorry)
    def quick(self, message: Quick) -> int:
        """Act without waiting."""
        self.act(message)
        self.world.ledger.handled[message.id] += 1
        return message.id

    @handler(Slow, expected=Sorry)
    async def slow(self, message: Slow) -> int:
        """Act, and perhaps wait."""
        if message.deed in ("sleep", "crash after sleep"):
            await self.world.nap(3)
        if message.deed == "ask":
            other = self.world.pick(message.id)
            with suppress(ActorError):
                await other.ask(Quick(self.world.new_id(kept=True)))
        self.act(message)
        self.world.ledger.handled[message.id] += 1
        return message.id

    def act(self, message: Quick | Slow) -> None:
        """Do what needs no waiting."""
        match message.deed:
            case "crash" | "crash after sleep":
                raise Trouble
            case "expected":
                # Asked, it is an answer; told, a dead letter.
                if message.id in self.world.ledger.asked:
                    self.world.ledger.handled[message.id] += 1
                raise Sorry
            case "background crash":
                self.ctx.start_soon(self.crash)
            case "spawn":
                child = self.ctx.spawn(partial(Worker, self.world), lazy=message.id % 2 == 0)
                child.tell(Quick(self.world.new_id()))
            case "leave":
                self.ctx.stop(drain_timeout=2)

    async def crash(self) -> None:
        """Crash from the side."""
        await self.world.nap(1)
        raise Trouble


class World:
    """One run: a few workers under one parent, a ledger, and a script."""

    def __init__(self, nap: Callable[[float], Any], strategy: Strategy, restart: Restart, overflow: Overflow) -> None:
        self.nap = nap
        self.ledger = Ledger()
        self.strategy: Strategy = strategy
        self.restart: Restart = restart
        self.overflow: Overflow = overflow
        self.refs: list[ActorRef[Any]] = []
        self.next_id = 0

    def new_id(self, *, kept: bool = False) -> int:
        """Number a message. One that a worker asks on the side is its own affair."""
        self.next_id += 1
        if not kept:
            self.ledger.sent.add(self.next_id)
        return self.next_id

    def pick(self, n: int) -> ActorRef[Any]:
        """One of the workers."""
        return self.refs[n % len(self.refs)]

    def lead(self) -> Any:
        """The parent of the workers."""
        world = self

        class Lead:
            def started(self, ctx: ActorContext) -> None:
                world.refs = [
                    ctx.spawn(
                        partial(Worker, world), f"w{n}", restart=world.restart, capacity=3, overflow=world.overflow
                    )
                    for n in range(3)
                ]

            @handler(object)
            def anything(self, message: object) -> None: ...

        return Lead()

    async def run(self, script: list[tuple[Any, ...]], observer: Callable[[DeadLetter], None] | None = None) -> None:
        """Play the script, leave the system, and wait until all asks have ended."""
        policy = Supervision(strategy=self.strategy, max_restarts=4, period=30)
        top = Supervision(max_restarts=2, period=30, when_exceeded="stop")
        async with anyio.create_task_group() as tasks:
            async with open_system(
                supervision=top, drain_timeout=4, on_dead_letter=observer or self.ledger.bury
            ) as system:
                system.spawn(self.lead, "lead", supervision=policy)
                while not self.refs:
                    await self.nap(1)
                for step in script:
                    await self.step(system, tasks, *step)
            assert system.statistics().actors == 0
            assert system.statistics().asks_with_deadline == 0
            for ref in self.refs:
                assert ref.statistics().mailbox_length == 0

    async def step(self, system: ActorSystem, tasks: Any, what: str, n: int, deed: Deed, seconds: int) -> None:
        """Play one step."""
        ref = self.pick(n)
        kind = Quick if n % 2 else Slow
        match what:
            case "tell":
                message = kind(self.new_id(), deed)
                try:
                    ref.tell(message)
                except MailboxFull:
                    self.ledger.kept.add(message.id)
            case "send":
                tasks.start_soon(self.send, ref, kind(self.new_id(), deed), seconds)
            case "ask":
                tasks.start_soon(self.ask, ref, kind(self.new_id(), deed), seconds or None)
            case "cancelled ask":
                tasks.start_soon(self.cancelled_ask, ref, kind(self.new_id(), deed), seconds)
            case "stop":
                ref.stop(drain_timeout=seconds)
            case "kill":
                ref.kill()
            case "pause":
                ref.pause()
            case "resume":
                ref.resume()
            case _:
                await self.nap(seconds)

    async def send(self, ref: ActorRef[Any], message: Any, seconds: int) -> None:
        """Send, and give up some time."""
        sent = False
        with anyio.move_on_after(seconds):
            try:
                await ref.send(message)
            except ActorStopped:
                pass
            else:
                sent = True
        if not sent:
            self.ledger.kept.add(message.id)

    async def ask(self, ref: ActorRef[Any], request: Any, timeout: int | None) -> None:
        """Ask, and note that it ended and how."""
        ledger = self.ledger
        ledger.asked.add(request.id)
        try:
            await ref.ask(request, reply_timeout=timeout)
        except (ActorFailed, Sorry):
            pass
        except ActorError:
            ledger.given_up.add(request.id)
        finally:
            ledger.answered[request.id] += 1

    async def cancelled_ask(self, ref: ActorRef[Any], request: Any, seconds: int) -> None:
        """Ask, and be cancelled some time."""
        with anyio.move_on_after(seconds) as scope:
            await self.ask(ref, request, None)
        if scope.cancelled_caught:
            self.ledger.given_up.add(request.id)


STEPS = st.tuples(
    st.sampled_from(
        ["tell", "tell", "tell", "send", "ask", "ask", "cancelled ask", "stop", "kill", "pause", "resume", "nap", "nap"]
    ),
    st.integers(0, 5),
    st.sampled_from(DEEDS),
    st.integers(0, 5),
)
SCRIPTS = st.lists(STEPS, min_size=10, max_size=60)
STRATEGIES = st.sampled_from(["one-for-one", "one-for-all", "rest-for-one"])
RESTARTS = st.sampled_from(["permanent", "transient", "temporary"])
OVERFLOWS = st.sampled_from(["fail", "drop-new", "drop-old", "wait"])


@given(script=SCRIPTS, strategy=STRATEGIES, restart=RESTARTS, overflow=OVERFLOWS)
def test_every_message_is_accounted_for_on_trio(script: Any, strategy: Any, restart: Any, overflow: Any) -> None:
    """Handled, dead-lettered, withdrawn or refused, and exactly once; every ask ends; in virtual time."""
    world = World(trio.sleep, strategy, restart, overflow)
    trio.run(world.run, script, clock=MockClock(autojump_threshold=0))
    assert list(world.ledger.problems()) == []


@given(script=SCRIPTS, strategy=STRATEGIES, restart=RESTARTS, overflow=OVERFLOWS)
def test_every_message_is_accounted_for_on_asyncio(script: Any, strategy: Any, restart: Any, overflow: Any) -> None:
    """The same in real time, a thousand times faster."""
    world = World(lambda seconds: anyio.sleep(seconds / 1000), strategy, restart, overflow)
    script = [(what, n, deed, seconds / 1000) for what, n, deed, seconds in script]
    anyio.run(world.run, script, backend="asyncio")
    assert list(world.ledger.problems()) == []


@pytest.mark.nightly
@settings(max_examples=20_000)
@given(script=SCRIPTS, strategy=STRATEGIES, restart=RESTARTS, overflow=OVERFLOWS)
def test_every_message_is_accounted_for_all_night(script: Any, strategy: Any, restart: Any, overflow: Any) -> None:
    """The same over many more scripts."""
    world = World(trio.sleep, strategy, restart, overflow)
    trio.run(world.run, script, clock=MockClock(autojump_threshold=0))
    assert list(world.ledger.problems()) == []


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ([("tell", 1, "crash", 0), ("nap", 0, "work", 1)], "message 1 vanished"),
        ([("tell", 1, "work", 0), ("kill", 1, "work", 0)], "message 1 vanished"),
    ],
)
def test_the_balance_notices_a_lost_message(script: Any, problem: str) -> None:
    """A runtime that swallows a dead letter does not pass."""
    world = World(trio.sleep, "one-for-one", "transient", "fail")
    trio.run(partial(world.run, script, lambda letter: None), clock=MockClock(autojump_threshold=0))
    assert list(world.ledger.problems()) == [problem]


def test_the_balance_notices_each_kind_of_error() -> None:
    """Vanished, twice, both, and an ask that never ended."""
    ledger = Ledger()
    ledger.sent = {1, 2, 3, 4, 5, 6}
    ledger.handled = Counter({2: 2, 3: 1, 4: 1, 6: 1})
    ledger.dead = Counter({3: 1})
    ledger.kept = {4}
    ledger.given_up = {5}
    ledger.asked = {6}
    assert list(ledger.problems()) == [
        "message 1 vanished",
        "message 2 was accounted for twice",
        "message 3 was both handled and reported dead",
        "message 4 was refused to its sender and yet accepted",
        "ask 6 ended 0 times",
    ]
