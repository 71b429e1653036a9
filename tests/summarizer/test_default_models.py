"""Who writes summaries where nobody has said so: the small model of the same provider, through the same server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

import repertory as rp
from backends import RunAsync
from repertory.errors import ConfigurationError
from repertory.llm.model import ModelRequest
from repertory.llm.profiles import profile_for
from repertory.llm.retry import RetryPolicy
from repertory.testing import FunctionModel, call
from repertory.testing.server import MessagesServer, open_messages_server

LARGE, SMALL = "claude-opus-4-8", "claude-haiku-5-5"
STRICT = rp.ContextPolicy(rhythm="strict", window=2, summarize_every=5)


@rp.tool(effect="pure")
def measure(pier: int) -> str:
    """Measure the tide at a pier."""
    return "\n".join(f"pier_{pier} at {hour}:00: {pier * hour} cm" for hour in range(24))


def turns() -> Any:
    """An agent's model that measures at twelve piers."""
    made = 0

    def respond(request: ModelRequest) -> Any:
        nonlocal made
        if request.model == SMALL:
            return "GOAL: to measure.\nFACTS:\n- pier_1 is low\n> pier_1 at 3:00: 3 cm"
        made += 1
        return call("measure", pier=made) if made <= 12 else "Done."

    return respond


@asynccontextmanager
async def scene(name: str = LARGE) -> AsyncIterator[tuple[MessagesServer, rp.AnthropicModel]]:
    """A strict server that knows one key, and the real client for it."""
    async with open_messages_server(turns(), api_key="the-right-key") as server:
        model = rp.AnthropicModel(name, base_url=server.url, api_key="the-right-key", retry=RetryPolicy(attempts=1))
        try:
            yield server, model
        finally:
            await model.aclose()


async def play(model: Any, **options: Any) -> set[str]:
    """One run in strict rhythm; who wrote its summaries."""
    async with rp.open_supervisor(model=model, **options) as supervisor:
        agent = rp.Agent("clerk", tools=[measure], context=STRICT, limits=rp.Limits(iterations=20))
        run = await supervisor.spawn(agent, "Measure.")
        assert await run.wait_result() == "Done."
        while not (stored := await supervisor.journal.read_summaries(run.id)):
            await anyio.sleep(0)
        return {summary.strategy for summary in stored}


def models_of(server: MessagesServer) -> set[str]:
    """The models that were asked."""
    return {exchange.body["model"] for exchange in server.exchanges}


def test_a_real_model_has_the_small_one_of_its_provider_write(run_async: RunAsync) -> None:
    """Reached at the same server with the same key; nothing is refused."""

    async def main() -> None:
        async with scene() as (server, model):
            assert server.exchanges == []
            assert await play(model) == {"model"}
        assert models_of(server) == {LARGE, SMALL}
        assert {exchange.status for exchange in server.exchanges} == {200}

    run_async(main)


async def test_one_setting_switches_that_off() -> None:
    """Then the program takes them from the record; nobody else is asked anything."""
    async with scene() as (server, model):
        assert await play(model, summaries=()) == {"extractive"}
    assert models_of(server) == {LARGE}


async def test_the_small_model_itself_is_its_own() -> None:
    """No second client for the same name."""
    model = rp.AnthropicModel(SMALL, api_key="none")
    assert model.sibling(model.profile.summary_model) is model


@pytest.mark.parametrize("profile", [None, profile_for(LARGE)])
async def test_a_model_of_no_server_has_none(profile: Any) -> None:
    """Whatever its profile says, a scripted or offline model reaches nobody."""
    assert await play(FunctionModel(turns(), profile=profile)) == {"extractive"}


async def test_a_limit_on_money_counts_the_small_models_price() -> None:
    """It is known, so the limit can be kept; one whose price nobody knows is refused before anything begins."""
    agent = rp.Agent("clerk", tools=[measure], context=STRICT, limits=rp.Limits(cost=1.0, iterations=20))
    async with scene() as (_, model):
        async with rp.open_supervisor(model=model) as supervisor:
            run = await supervisor.spawn(agent, "Measure.")
            assert await run.wait_result() == "Done."
        unknown = FunctionModel(turns(), profile=profile_for("mystery"))
        async with rp.open_supervisor(model=model, summaries=["offline", unknown]) as supervisor:
            with pytest.raises(ConfigurationError, match=r"'mystery'.*writes summaries"):
                await supervisor.spawn(agent, "Measure.")


async def test_a_template_that_nobody_can_fill_in_is_refused_at_spawn() -> None:
    """With the agent, the tool and the name in it."""
    policy = rp.ResultPolicy(compact_mode="summary", compact_prompt="Condense {{ original_content }} for {{ reader }}.")
    async with rp.open_supervisor(model=FunctionModel(turns())) as supervisor:
        with pytest.raises(ConfigurationError, match=r"agent clerk: compact_prompt for the results of .*reader"):
            await supervisor.spawn(rp.Agent("clerk", tools=[measure], context=STRICT), "Measure.", results=policy)
