"""Prompts are counted by the server only where the estimate cannot decide, and then the count decides."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import repertory as rp
from repertory.errors import ModelRequestRejected
from repertory.llm import AnthropicModel, ModelResponse, Text, Usage, profile_for
from repertory.llm.estimate import Calibration, estimate_tokens
from repertory.llm.messages import ToolUse
from repertory.llm.model import ModelRequest
from repertory.testing import FunctionModel, call, open_messages_server
from repertory.views.prompt_limits import PromptLimits

WINDOW = 12_000
SMALL = msgspec.structs.replace(profile_for("claude-sonnet-4-5"), context_window=WINDOW, max_output=2_000)
ROOM = WINDOW - 2_000
POLICY = rp.ContextPolicy(summarize_every=0)


def steps(request: ModelRequest) -> ToolUse | str:
    """Reads many logs at once, then says so."""
    if len(request.messages) > 1:
        return "Done."
    return call("read_much", logs=10)


@rp.tool(effect="pure", output_cap=1_000_000)
def read_much(logs: int) -> str:
    """Read many logs at once."""
    return "\n".join(f"day {log}: {'sail and anchor ' * 215}" for log in range(logs))


def reader() -> rp.Agent:
    """An agent that reads much at once."""
    return rp.Agent("reader", tools=[read_much], context=POLICY, max_tokens=2_000)


class Dense(FunctionModel):
    """A model whose server counts more tokens in results than characters say."""

    def __init__(self, *, rejects: bool = False) -> None:
        super().__init__(steps, name=SMALL.name, profile=SMALL)
        self.asked: list[int] = []
        self.rejects = rejects

    def real_tokens(self, request: ModelRequest) -> int:
        """What the server counts."""
        head = estimate_tokens(request.messages[:2])
        return head + round(1.16 * (estimate_tokens(request) - head))

    async def count_tokens(self, request: ModelRequest) -> int:
        """Ask the server."""
        if self.rejects:
            raise ModelRequestRejected("no such endpoint")
        self.asked.append(self.real_tokens(request))
        return self.asked[-1]


@pytest.mark.parametrize(
    ("estimate", "doubtful"),
    [(5_000, None), (8_500, ROOM), (ROOM, ROOM), (ROOM + 1, None)],
)
def test_a_bound_is_in_doubt_only_where_the_estimate_may_be_on_its_wrong_side(
    estimate: int, doubtful: int | None
) -> None:
    """Far below it nothing is asked; above it the planner has seen to it already."""
    counter = PromptLimits(Dense(), max_tokens=2_000)
    assert counter.in_doubt(estimate, Calibration()) == doubtful
    counted = Calibration().observe(estimate=estimate, real=estimate)
    assert counter.in_doubt(estimate, counted) is None


def test_a_length_above_which_tokens_cost_more_is_a_bound_too() -> None:
    """Not the window alone: beyond it the whole prompt costs five times as much."""
    model = FunctionModel(steps, profile=profile_for("claude-haiku-5-5"))
    assert PromptLimits(model, max_tokens=2_000).in_doubt(90_000, Calibration()) == 100_000


async def test_a_prompt_that_the_server_counts_as_too_long_is_not_sent() -> None:
    """The request is planned again by the count; only what is sent is in the record."""
    model = Dense()
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(reader(), "Read.")
        assert await run.wait_result() == "Done."
        calls = await supervisor.journal.read_model_calls(run.id)
        decisions = await supervisor.journal.read_decisions(run.id)
    assert len(model.asked) == 1
    assert model.asked[0] > ROOM
    assert all(model.real_tokens(request) <= ROOM for request in model.requests)
    assert len(calls) == len(model.requests)
    assert calls[-1].called.position == 3
    assert [decision.kind for decision in decisions] == ["forced"]


async def test_without_a_count_that_prompt_would_have_been_sent() -> None:
    """Negative control, and what happens where the server cannot count: the estimate has to do."""
    model = Dense(rejects=True)
    async with rp.open_supervisor(model=model) as supervisor:
        assert await (await supervisor.spawn(reader(), "Read.")).wait_result() == "Done."
    assert any(model.real_tokens(request) > ROOM for request in model.requests)


async def test_a_count_that_no_prompt_can_have_does_not_end_a_run(tmp_path: Path) -> None:
    """Some servers bill several prompts together. That is counted, but says nothing of the next prompt."""
    bill = Usage(input_tokens=WINDOW + 1, output_tokens=10)

    def answer(request: ModelRequest) -> ModelResponse:
        block = call("read_much", logs=1) if len(request.messages) == 1 else Text("Done.")
        return ModelResponse(content=(block,), usage=bill, stop_reason="end_turn")

    path, model = tmp_path / "runs.db", FunctionModel(answer, name=SMALL.name, profile=SMALL)
    async with rp.open_supervisor(path, model=model) as supervisor:
        run = await supervisor.spawn(reader(), "Read.")
        assert await run.wait_result() == "Done."
    async with rp.open_supervisor(path, model=model) as supervisor:
        run = await supervisor.resume(run.id, agent=reader())
        assert await run.ask("Again.") == "Done."
        assert run.statistics().tokens_seen == 3 * bill.input_tokens
        assert not await supervisor.journal.read_decisions(run.id)


@pytest.mark.parametrize(("logs", "asked"), [(10, 1), (1, 0)])
async def test_over_http_only_a_prompt_near_the_window_is_counted(logs: int, asked: int) -> None:
    """One round trip where it decides, none in a run that is far from any bound."""

    def answer(request: ModelRequest) -> ToolUse | str:
        return call("read_much", logs=logs) if len(request.messages) == 1 else "Done."

    async with open_messages_server(answer, profile=SMALL) as server:
        model = AnthropicModel(SMALL.name, api_key="key", base_url=server.url, profile=SMALL)
        async with rp.open_supervisor(model=model) as supervisor:
            assert await (await supervisor.spawn(reader(), "Read.")).wait_result() == "Done."
        await model.aclose()
        paths = [exchange.path for exchange in server.exchanges]
        assert {exchange.status for exchange in server.exchanges} == {200}
    assert sum("count_tokens" in path for path in paths) == asked
