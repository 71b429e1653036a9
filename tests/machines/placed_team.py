"""A lead and a worker that only works where there is a GPU; every process finds them by their names."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import repertory as rp
from repertory.llm.messages import text_of
from repertory.llm.model import ModelRequest
from repertory.testing import FunctionModel, call

Answer = Callable[[ModelRequest], object]


def said(request: ModelRequest) -> str:
    """All that a model is shown."""
    return "\n".join(text_of(block) for message in request.messages for block in message.content)


class Script:
    """What the models answer; a test puts in its own."""

    lead: Answer
    worker: Answer

    @classmethod
    def reset(cls) -> None:
        """A lead that hands its task on and reports what came."""
        cls.lead = staticmethod(delegate_once)
        cls.worker = staticmethod(lambda _: "42")


def delegate_once(request: ModelRequest) -> object:
    """Delegate, then say what the worker has said."""
    if len(request.messages) == 1:
        return call("delegate", agent="worker", task="Compute.")
    return f"It is {text_of(request.messages[-1].content[-1])}"


async def _lead(request: ModelRequest) -> object:
    answer = Script.lead(request)
    return await answer if isinstance(answer, Awaitable) else answer


async def _worker(request: ModelRequest) -> object:
    answer = Script.worker(request)
    return await answer if isinstance(answer, Awaitable) else answer


Script.reset()
WORKER = rp.Agent(
    "worker", model=FunctionModel(_worker, name="worker"), placement=["gpu"], memory="isolated", context=None
)
LEAD = rp.Agent("lead", team=[WORKER], model=FunctionModel(_lead, name="lead"), context=None)
REF = "placed_team:LEAD"
