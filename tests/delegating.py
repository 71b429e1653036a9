"""A lead and its workers, played by one model that a test scripts: who asks, what it was told, what came back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import anyio

import repertory as rp
from repertory.llm.messages import ToolResult, ToolUse, text_of
from repertory.llm.model import ModelRequest
from repertory.testing import FunctionModel, call

Turn = Callable[[ModelRequest], object] | object


def results_in(request: ModelRequest) -> list[str]:
    """What the tools of the asking run have answered, in order."""
    return [text_of(b) for message in request.messages for b in message.content if isinstance(b, ToolResult)]


def task_of(request: ModelRequest) -> str:
    """What the asking run was told to do."""
    return text_of(request.messages[0].content).split("\n", 1)[0]


def said_in(request: ModelRequest) -> str:
    """All that was said to the asking run, but by tools."""
    blocks = [block for message in request.messages if message.role == "user" for block in message.content]
    return "\n".join(text_of(block) for block in blocks if not isinstance(block, ToolResult))


def delegate(*tasks: str, tool: str = "delegate", **more: object) -> list[ToolUse]:
    """Delegations in one turn."""
    return [call(tool, agent="worker", task=task, **more) for task in tasks]


def company(
    delegation: rp.Delegation | None = None, *, worker: Mapping[str, object] | None = None, **lead: object
) -> rp.Agent:
    """A lead with workers."""
    member = rp.Agent("worker", instructions="You work.", **(worker or {}))  # type: ignore[arg-type]
    policy = delegation if delegation is not None else rp.Delegation(background=True)
    return rp.Agent("lead", instructions="You lead.", team=[member], delegation=policy, **lead)  # type: ignore[arg-type]


class Company:
    """A model for both: the lead takes its turns from a list, each worker does what its task names.

    Attributes:
        at_work: Tasks whose workers have begun, in order.
        may_end: By task, what its worker waits for before it answers.
        most: How many workers were asked at once at most.
        otherwise: What workers answer whose work is not listed; None for a report on their task.
    """

    def __init__(self, *turns: Turn, work: Mapping[str, Sequence[object]] | None = None) -> None:
        self._turns = turns
        self._work = work or {}
        self._asked: dict[str, int] = {}
        self._busy = 0
        self.at_work: list[str] = []
        self.may_end: dict[str, anyio.Event] = {}
        self.begun: dict[str, anyio.Event] = {}
        self.most = 0
        self.otherwise: object = None
        self.leads: list[ModelRequest] = []
        self.workers: list[ModelRequest] = []
        self.model = FunctionModel(self._answer)

    def hold(self, *tasks: str) -> None:
        """Let the workers of some tasks wait until ``release``."""
        for task in tasks:
            self.may_end[task], self.begun[task] = anyio.Event(), anyio.Event()

    def release(self, *tasks: str) -> None:
        """Let them answer."""
        for task in tasks or tuple(self.may_end):
            self.may_end[task].set()

    async def _answer(self, request: ModelRequest) -> object:
        if text_of(request.system).startswith("You lead."):
            self.leads.append(request)
            turn = self._turns[sum(message.role == "assistant" for message in request.messages)]
            answer = turn(request) if callable(turn) else turn
            return await answer if isinstance(answer, Awaitable) else answer
        self.workers.append(request)
        task = task_of(request)
        self.at_work.append(task)
        self._busy += 1
        self.most = max(self.most, self._busy)
        try:
            if task in self.may_end:
                self.begun[task].set()
                await self.may_end[task].wait()
        finally:
            self._busy -= 1
        step = self._asked[task] = self._asked.get(task, 0) + 1
        answer = self._work[task][step - 1] if task in self._work else self.otherwise or f"report on {task}"
        if isinstance(answer, Exception):
            raise answer
        return answer(request) if callable(answer) else answer


def last(request: ModelRequest) -> str:
    """Answer with the newest result."""
    return results_in(request)[-1]


def runs_started(request: ModelRequest) -> list[str]:
    """The ids that ``delegate_start`` gave."""
    return [result.rpartition(" ")[2] for result in results_in(request) if " has begun as run " in result]


def collect(request: ModelRequest) -> ToolUse:
    """Collect all that was started."""
    return call("delegate_collect", runs=runs_started(request))
