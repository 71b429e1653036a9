"""Messages and actors that several tests share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import msgspec

from repertory.actors import Accepts, ActorContext, ActorRef, Request, StopReason, handler


class Add(Request[int], frozen=True):
    """Handled by a plain ``def``."""

    n: int = 1


class AddSlowly(Request[int], frozen=True):
    """Handled by an ``async def`` that lets others run."""

    n: int = 1


class Hold(Request[str], frozen=True):
    """Keeps the actor busy until the gate opens."""

    gate: anyio.Event
    begun: anyio.Event = msgspec.field(default_factory=anyio.Event)


class Sleep(Request[float], frozen=True):
    """Keeps the actor busy for so many seconds."""

    seconds: float


class Crash(Request[None], frozen=True):
    """Crashes the actor."""

    text: str = "boom"


class Decline(Request[None], frozen=True):
    """Gets an error the handler declares as expected."""


class Note(msgspec.Struct, frozen=True):
    """Written into the diary."""

    text: str


class Stranger(Request[None], frozen=True):
    """Nobody handles this."""


class Boom(Exception):
    """What crashes raise."""


class Declined(Exception):
    """What the handler of Decline may raise."""


class Player:
    """An actor that writes down all that happens to it, over all its incarnations."""

    receives: Accepts[Add | AddSlowly | Hold | Sleep | Crash | Decline | Note]

    def __init__(self, diary: list[Any] | None = None) -> None:
        self.diary = diary if diary is not None else []
        self.total = 0

    @handler
    def add(self, message: Add) -> int:
        """Add at once."""
        self.total += message.n
        return self.total

    @handler
    async def add_slowly(self, message: AddSlowly) -> int:
        """Add after others ran."""
        await anyio.lowlevel.checkpoint()
        self.total += message.n
        return self.total

    @handler
    async def hold(self, message: Hold) -> str:
        """Wait for the gate."""
        message.begun.set()
        await message.gate.wait()
        self.diary.append("held")
        return "held"

    @handler
    async def sleep(self, message: Sleep) -> float:
        """Sleep."""
        await anyio.sleep(message.seconds)
        self.diary.append(f"slept {message.seconds:g}")
        return message.seconds

    @handler
    def crash(self, message: Crash) -> None:
        """Crash."""
        self.diary.append("crash")
        raise Boom(message.text)

    @handler(expected=Declined)
    def decline(self, message: Decline) -> None:
        """Refuse."""
        raise Declined("no")

    @handler
    def note(self, message: Note) -> None:
        """Write down."""
        self.diary.append(message.text)


class Hooked(Player):
    """A player that also writes down its lifecycle."""

    def __init__(self, diary: list[Any], name: str = "", setup: Callable[[ActorContext], None] | None = None) -> None:
        super().__init__(diary)
        self.prefix = f"{name} " if name else ""
        self.setup = setup

    async def started(self, ctx: ActorContext) -> None:
        """Write down, and run what the test wants."""
        self.diary.append(f"{self.prefix}started")
        if self.setup is not None:
            self.setup(ctx)

    def stopping(self, ctx: ActorContext) -> None:
        """Write down."""
        self.diary.append(f"{self.prefix}stopping")

    async def stopped(self, ctx: ActorContext) -> None:
        """Write down, after a checkpoint: the hook is shielded."""
        await anyio.lowlevel.checkpoint()
        self.diary.append(f"{self.prefix}stopped")

    def restarting(self, ctx: ActorContext, error: BaseException) -> None:
        """Write down."""
        self.diary.append(f"{self.prefix}restarting after {type(error).__name__}")

    def terminated(self, ctx: ActorContext, ref: ActorRef[Any], reason: StopReason) -> None:
        """Write down."""
        self.diary.append(f"{self.prefix}saw {ref.name} {reason.kind}")
