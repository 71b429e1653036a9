"""A lead and a worker that only works where there is a GPU; every process finds them by their names."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

import repertory as rp
from repertory.llm.messages import text_of
from repertory.llm.model import ModelRequest
from repertory.memory import MemoryMode
from repertory.testing import FunctionModel, call
from repertory.tools import ToolContext, tool

Answer = Callable[[ModelRequest], object]
LONG = rp.Limits(iterations=10_000)  # some work until they are told otherwise, which takes as long as a machine needs


class Shares(msgspec.Struct):
    """What a lead and its worker work on."""

    topic: str = "numbers"
    found: list[int] = msgspec.field(default_factory=list[int])


def words(request: ModelRequest) -> str:
    """All that a model is shown."""
    return "\n".join(text_of(block) for message in request.messages for block in message.content)


def last(request: ModelRequest) -> str:
    """The last that it is shown."""
    return text_of(request.messages[-1].content[-1])


def delegate_once(request: ModelRequest) -> object:
    """Delegate, then say what the worker has said."""
    if len(request.messages) == 1:
        return call("delegate", agent="worker", task="Compute.")
    return f"It is {last(request)}"


class Script:
    """What the models answer; a test puts in its own."""

    lead: Answer
    worker: Answer
    helper: Answer
    placement: list[str]
    helper_placement: list[str]
    instructions: str
    context: rp.ContextPolicy | None

    @classmethod
    def reset(cls) -> None:
        """A lead that hands its task on and reports what came."""
        cls.lead = staticmethod(delegate_once)
        cls.worker = staticmethod(lambda _: "42")
        cls.helper = staticmethod(lambda _: "helped")
        cls.placement, cls.helper_placement, cls.instructions, cls.context = ["gpu"], list[str](), "", None


async def _lead(request: ModelRequest) -> object:
    answer = Script.lead(request)
    return await answer if isinstance(answer, Awaitable) else answer


async def _worker(request: ModelRequest) -> object:
    answer = Script.worker(request)
    return await answer if isinstance(answer, Awaitable) else answer


async def _helper(request: ModelRequest) -> object:
    answer = Script.helper(request)
    return await answer if isinstance(answer, Awaitable) else answer


@tool(effect="idempotent")
async def note(item: str, text: str, context: ToolContext) -> str:
    """Write something down."""
    assert context.memory is not None
    await context.memory.store(text, item_id=item, tags=["note"])
    return "noted"


@tool(effect="pure")
async def notes(context: ToolContext) -> str:
    """Read what is written down."""
    assert context.memory is not None
    found = [await context.memory.retrieve(info.item_id) for info in await context.memory.query()]
    return ", ".join(sorted(f"{item.item_id}={item.text}" for item in found)) or "nothing"


@tool(effect="idempotent")
async def drop(item: str, context: ToolContext) -> str:
    """Take something out that was written down."""
    assert context.memory is not None
    await context.memory.delete(item)
    return "dropped"


@tool(effect="transactional")
def find(number: int, context: ToolContext) -> str:
    """Find a number."""
    context.payload.append("found", number)
    return "found"


@tool(effect="unsafe")
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


Script.reset()


def make(memory: MemoryMode = "shared", limits: Any = None, approvals: Any = None) -> rp.Agent:
    """A lead and its worker."""
    helper = rp.Agent(
        "helper",
        model=FunctionModel(_helper, name="helper"),
        tools=[note, notes, drop],
        placement=Script.helper_placement,
        context=None,
        limits=LONG,
    )
    worker = rp.Agent(
        "worker",
        model=FunctionModel(_worker, name="worker"),
        tools=[note, notes, drop, find, pay],
        team=[helper],
        placement=Script.placement,
        instructions=Script.instructions,
        memory=memory,
        context=Script.context,
        limits=LONG,
        payload_scope=rp.PayloadScope(read=["topic", "found"], write=["found"]),
    )
    return rp.Agent(
        "lead",
        team=[worker],
        tools=[note, notes],
        model=FunctionModel(_lead, name="lead"),
        delegation=rp.Delegation(background=True),
        context=None,
        payload=Shares,
        limits=rp.Limits(**(limits or {})),
        approvals=rp.Approvals(ask=["pay"]) if approvals else None,
    )


REF = "placed_team:make"


def alone() -> rp.Agent:
    """The worker, as a root."""
    return make().team[0]
