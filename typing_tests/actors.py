# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
"""What type checkers know of actors. Checked, never run.

Every expected error is marked; mypy and pyright both report a mark that has no error under it, so each mark is a
test that the wrong thing is refused.
"""

from __future__ import annotations

from typing import Any, assert_type

import msgspec

from repertory.actors import Accepts, ActorContext, ActorRef, ActorSystem, Request, SpawnOptions, handler, open_system


class ItemId(msgspec.Struct, frozen=True):
    value: str


class Store(Request[ItemId], frozen=True):
    text: str


class Load(Request[str | None], frozen=True):
    id: ItemId


class Forget(msgspec.Struct, frozen=True):
    id: ItemId


class Memory:
    receives: Accepts[Store | Load | Forget]

    @handler
    def store(self, message: Store) -> ItemId:
        return ItemId(message.text)

    @handler(expected=LookupError)
    async def load(self, message: Load, ctx: ActorContext) -> str | None:
        return ctx.ref.name

    @handler(Forget)
    def forget(self, message: Forget) -> None: ...


class Undeclared:
    @handler
    def store(self, message: Store) -> ItemId:
        return ItemId(message.text)


def make(text: str) -> Memory:
    return Memory()


async def answers_are_typed_by_their_requests(memory: ActorRef[Store | Load | Forget]) -> None:
    assert_type(await memory.ask(Store("x")), ItemId)
    assert_type(await memory.ask(Load(ItemId("1")), reply_timeout=1.5), str | None)


async def messages_are_checked_against_the_reference(memory: ActorRef[Load | Forget]) -> None:
    memory.tell(Forget(ItemId("1")))
    memory.tell(Load(ItemId("1")))
    await memory.send(Forget(ItemId("1")))
    memory.tell(Store("x"))  # type: ignore[arg-type]
    await memory.send("x")  # type: ignore[arg-type]
    await memory.ask(Store("x"))  # type: ignore[arg-type]
    await memory.ask(Forget(ItemId("1")))  # type: ignore[arg-type]


async def an_answer_has_one_type(memory: ActorRef[Store]) -> None:
    wrong: str = await memory.ask(Store("x"))  # type: ignore[arg-type]
    assert_type(wrong, str)


def wants_load(memory: ActorRef[Load]) -> None: ...


def wants_all(memory: ActorRef[Store | Load | Forget]) -> None: ...


def a_reference_to_more_serves_as_one_to_less(memory: ActorRef[Store | Load]) -> None:
    wants_load(memory)
    wants_all(memory)  # type: ignore[arg-type]


async def spawning_types_the_reference(system: ActorSystem, ctx: ActorContext) -> None:
    assert_type(system.spawn(Memory), ActorRef[Store | Load | Forget])
    assert_type(ctx.spawn(lambda: make("x"), "memory", restart="permanent"), ActorRef[Store | Load | Forget])
    assert_type(system.spawn(Undeclared), ActorRef[Any])
    annotated: ActorRef[Store] = system.spawn(Undeclared)
    assert_type(await annotated.ask(Store("x")), ItemId)
    assert_type(await system.spawn(Undeclared).ask(Store("x")), ItemId)


def options_are_checked(system: ActorSystem) -> None:
    options: SpawnOptions = {"capacity": 10, "overflow": "drop-old"}
    system.spawn(Memory, **options)
    system.spawn(Memory, restart="sometimes")  # type: ignore[call-overload]
    system.spawn(Memory, speed=3)  # type: ignore[call-overload]


async def background_tasks_check_their_arguments(ctx: ActorContext) -> None:
    async def work(name: str, count: int) -> None: ...

    ctx.start_soon(work, "a", 1)
    ctx.start_soon(work, "a", "b")  # type: ignore[arg-type]


async def handlers_keep_their_types(memory: Memory) -> None:
    assert_type(memory.store(Store("x")), ItemId)
    async with open_system() as system:
        assert_type(system, ActorSystem)
