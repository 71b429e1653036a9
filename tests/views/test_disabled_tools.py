"""One setting turns a tool off, whoever gives it to the agent."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest

import repertory as rp
from repertory.errors import ConfigurationError
from repertory.testing import ScriptedModel, call


def look(word: str) -> str:
    """Look a word up."""
    return word


def drop(word: str) -> str:
    """Delete a word."""
    return word


class Server:
    """A tool set with a tool that is wanted, and one that is not."""

    name = "server"
    lifetime: Literal["run", "supervisor"] = "run"

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Sequence[rp.Tool]]:
        """Open it."""
        yield [rp.tool(look), rp.tool(drop)]


LEAD = {"team": [rp.Agent("helper")], "delegation": rp.Delegation(background=True)}
STRICT = rp.ContextPolicy(rhythm="strict")


@pytest.mark.parametrize(
    ("definition", "disabled", "left"),
    [
        ({"tools": [look, drop]}, ["drop"], {"look"}),
        ({"tools": [Server()]}, ["drop"], {"look"}),
        (LEAD, ["delegate_cancel", "delegate_message"], {"delegate", "delegate_start", "delegate_collect"}),
        ({"tools": [look], "context": STRICT}, ["retrieve_content"], {"look", "context_retrieve"}),
        ({"tools": [look], "context": STRICT}, ["retrieve_content", "context_retrieve", "look"], set()),
    ],
)
async def test_what_is_disabled_is_neither_shown_nor_run(
    definition: dict[str, Any], disabled: list[str], left: Any
) -> None:
    """A model that calls it all the same is told that there is no such tool."""
    model = ScriptedModel([call(disabled[0], word="a"), "done"])
    agent = rp.Agent("a", **definition, disabled_tools=disabled)
    async with rp.open_supervisor(None, model=model) as supervisor:
        run = await supervisor.spawn(agent, "task")
        assert await run.wait_result() == "done"
        assert {tool.name for tool in model.requests[0].tools} == left
        result = (await supervisor.journal.read_entries(run.id))[2]
        assert f"there is no tool named '{disabled[0]}'" in str(result.content)


@pytest.mark.parametrize("names", [["dorp"], ["delegate"], ["final_result"]])
async def test_a_name_that_the_agent_does_not_have_is_refused(names: list[str]) -> None:
    """Else a slip of the pen would leave on what was to be off."""
    agent = rp.Agent("a", tools=[look, drop], disabled_tools=names)
    async with rp.open_supervisor(None, model=ScriptedModel([])) as supervisor:
        with pytest.raises(ConfigurationError, match=f"a: disabled_tools names '{names[0]}', .* there are .*drop"):
            await supervisor.spawn(agent, "task")


def test_names_are_given_as_a_list() -> None:
    """One text would be taken for its letters."""
    with pytest.raises(ConfigurationError, match="agent a: disabled_tools must be a list of names, got 'look'"):
        rp.Agent("a", tools=[look], disabled_tools="look")
