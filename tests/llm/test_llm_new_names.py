"""Names that the table does not have, or not so, over HTTP: what was asked for is sent, and cached."""

from __future__ import annotations

import msgspec
import pytest

import repertory as rp
from backends import RunAsync
from repertory.llm import AnthropicModel, ModelRequest, ToolResult, ToolUse, profile_for
from repertory.llm.profiles import ModelProfile
from repertory.testing import open_messages_server


@rp.tool
def look(page: int) -> str:
    """Look at a page."""
    return f"Page {page} tells of the tides. " * 200


def reader(request: ModelRequest) -> str | ToolUse:
    """Looks at four pages, then answers."""
    read = sum(isinstance(block, ToolResult) for message in request.messages for block in message.content)
    return ToolUse(f"toolu_{read}", "look", {"page": read}) if read < 4 else "Read."


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("claude-sonnet-4-6-20260217", None),
        ("anthropic/claude-sonnet-4.6", None),
        ("our-gateways-name", profile_for("claude-sonnet-4-6")),
    ],
)
def test_requests_name_the_model_that_was_asked_for(
    name: str, profile: ModelProfile | None, run_async: RunAsync
) -> None:
    """A date, a gateway's spelling, an alias with a profile of its own: none of them is sent as another name."""

    async def main() -> None:
        served = msgspec.structs.replace(profile or profile_for(name), name=name)
        async with open_messages_server(reader, profile=served) as server:
            model = AnthropicModel(name, api_key="key", base_url=server.url, profile=profile)
            assert model.profile.name == name
            async with rp.open_supervisor(model=model) as supervisor:
                run = await supervisor.spawn(rp.Agent("reader", tools=[look]), "Read.")
                assert await run.wait_result() == "Read."
            await model.aclose()
            assert {exchange.body["model"] for exchange in server.exchanges} == {name}

    run_async(main)


def test_a_new_claude_model_reads_its_prompt_from_the_cache(run_async: RunAsync) -> None:
    """Nobody has described it, and still every request but the first reads what the one before it wrote."""

    async def main() -> None:
        name = "claude-opus-9"
        served = msgspec.structs.replace(profile_for("claude-opus-5-5"), name=name)
        async with open_messages_server(reader, profile=served, thinks=True) as server:
            model = AnthropicModel(name, api_key="key", base_url=server.url)
            async with rp.open_supervisor(model=model) as supervisor:
                run = await supervisor.spawn(rp.Agent("reader", tools=[look]), "Read.")
                assert await run.wait_result() == "Read."
                assert run.statistics().cost_seen == 0.0  # nobody knows what it costs
            await model.aclose()
            assert [exchange.status for exchange in server.exchanges] == [200] * 5
            later = [exchange.usage for exchange in server.exchanges[2:]]
            assert all(usage.cache_read_tokens > usage.prompt_tokens / 2 for usage in later)

    run_async(main)
