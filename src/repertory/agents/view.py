"""What the model sees of one run: the planner asked, the decisions journalled, the request made and recorded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from repertory.actors import ActorRef
from repertory.agents.events import IterationStarted, ModelAnswered
from repertory.agents.run import LiveRun
from repertory.context import EMPTY, Projector
from repertory.errors import ModelError
from repertory.llm.estimate import estimate_tokens
from repertory.llm.messages import Text, text_of, tool_uses
from repertory.llm.model import Model, ModelRequest, ModelResponse
from repertory.llm.profiles import cost_of
from repertory.memory.records import ModelReplied
from repertory.tools import Tool

if TYPE_CHECKING:
    from repertory.agents.supervisor import Supervisor


class Shown(msgspec.Struct, frozen=True):
    """A request that is about to be sent.

    Attributes:
        call: Number of the model call within the run.
        view_estimate: Tokens that its prompt is expected to have.
        record_estimate: Tokens that a plain loop's prompt is expected to have.
    """

    request: ModelRequest
    call: int
    view_estimate: int
    record_estimate: int


class ContextView:
    """The view of one run."""

    def __init__(
        self, supervisor: Supervisor, live: LiveRun, *, model: Model, tools: Iterable[Tool], ref: ActorRef[Any]
    ) -> None:
        self._supervisor = supervisor
        self._live = live
        self._model = model
        self._plan = EMPTY
        agent = live.agent
        self._projector = Projector(
            profile=model.profile,
            system=(Text(agent.instructions),) if agent.instructions else (),
            tools=[tool.schema for tool in tools],
            max_tokens=min(agent.max_tokens, model.profile.max_output),
            options=agent.options,
        )
        self._calls = 0

    async def open(self) -> None:
        pass

    async def show(self, iteration: int) -> Shown:
        snapshot = self._live.ledger.snapshot()
        request = self._projector.project(snapshot, self._plan)
        self._calls += 1
        estimate = sum(e.tokens for e in snapshot)
        record = self._projector.record(request, run_id=self._live.run_id, call=self._calls, iteration=iteration,
                                        position=len(snapshot), at=self._supervisor.clock(), prompt_estimate=estimate)
        self._supervisor.journal.submit([record])
        self._supervisor.publish(self._live, IterationStarted, view_tokens=estimate, record_tokens=estimate)
        return Shown(request, self._calls, estimate, estimate)

    def replied(self, shown: Shown, response: ModelResponse, *, duration: float) -> ModelReplied:
        cost = cost_of(self._model.profile, response.usage)
        self._live.meter.count_call(self._model.profile, response.usage, view_estimate=shown.view_estimate, record_estimate=shown.record_estimate)
        self._supervisor.publish(self._live, ModelAnswered, usage=response.usage, cost=cost, stop_reason=response.stop_reason, text=text_of(response.content), tool_calls=len(tool_uses(response.content)), duration=duration)
        return ModelReplied(run_id=self._live.run_id, call=shown.call, at=self._supervisor.clock(), content=response.content, usage=response.usage, cost=cost, stop_reason=response.stop_reason, duration=duration)

    def failed(self, shown: Shown, error: ModelError, *, duration: float) -> None:
        self._supervisor.journal.submit([ModelReplied(run_id=self._live.run_id, call=shown.call, at=self._supervisor.clock(), error=f"{type(error).__name__}: {error}", duration=duration)])

    def shrink(self) -> bool:
        return False

    def request_summary(self, iteration: int) -> None:
        pass

    def offer(self, message: Any) -> None: ...
    def summary_failed(self, message: Any) -> None: ...
