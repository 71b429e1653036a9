"""Definitions that cannot be meant are refused before anything runs, by agent and field; others are left alone."""

from __future__ import annotations

from typing import Any

import pytest

import repertory as rp
from context_scenes import clerk, read_log
from repertory.errors import ConfigurationError, RunFailed
from repertory.record import open_journal
from repertory.shortening import register_compactor
from repertory.shortening.compactors import COMPACTORS
from repertory.testing import ScriptedModel, call

EXPIRES = rp.ResultPolicy(expiration_turns=3, expiration_mode="remove")
TURNS = rp.ResultPolicy(expiration_turns=3)


@rp.tool(effect="pure", policy=EXPIRES)
def look() -> str:
    """Look."""
    return "nothing"


def agent(*tools: rp.Tool, name: str = "clerk", team: Any = (), **context: Any) -> rp.Agent:
    """An agent with these tools, or with one that reads."""
    return rp.Agent(name, tools=tools or (read_log,), team=team, context=rp.ContextPolicy(**context))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: clerk("strict"),
            "agent clerk: context must be a ContextPolicy, or None .*, got 'strict'",
        ),
        (lambda: rp.Agent("a", context=rp.ResultPolicy()), "context must be a ContextPolicy"),  # type: ignore[arg-type]
        (
            lambda: rp.Agent("a", model=5),  # type: ignore[arg-type]
            "agent a: model must be a Model, which has name, profile, complete and aclose, the name .* None, got 5",
        ),
        (
            lambda: rp.Agent("a", model=ScriptedModel([], profile="claude-haiku-5-5")),  # type: ignore[arg-type]
            "agent a: model.profile must be a ModelProfile, such as .*, got 'claude-haiku-5-5'",
        ),
    ],
)
def test_an_agent_that_makes_no_sense_is_refused_when_it_is_made(make: Any, words: str) -> None:
    """Not when it first runs."""
    with pytest.raises(ConfigurationError, match=words):
        make()


async def test_a_supervisor_needs_a_model_or_its_name() -> None:
    """A number is neither, and no run need begin to find that out."""
    with pytest.raises(ConfigurationError, match=r"open_supervisor: model must be a Model, .*, got 5"):
        async with rp.open_supervisor(model=5):  # type: ignore[arg-type]
            pass


@pytest.mark.parametrize(
    ("run", "results", "words"),
    [
        (agent(), rp.ContextPolicy(), "results must be a ResultPolicy, got ContextPolicy"),
        (agent(), {"cap_tokns": 100}, "results must be a ResultPolicy, got .* whose 'cap_tokns' is no field of it"),
        (agent(), {"cap_chars": 100}, "results must be a ResultPolicy, got {'cap_chars': 100}$"),
        (clerk(None), TURNS, "results is ResultPolicy.* and agent clerk is a plain loop"),
        (agent(results=rp.ResultPolicy(compactor="nope")), None, "its tools is 'nope'; expected one of .*json"),
        (
            agent(tools={"read_log": rp.ResultPolicy(compactor="no")}),
            None,
            "of read_log is 'no'; expected one of",
        ),
        (agent(), rp.ResultPolicy(compactor="nope"), "compactor for the results of its tools is 'nope'"),
        (
            agent(tools={"read_lgo": TURNS}),
            None,
            "context.tools names 'read_lgo', .*; there are .*read_log",
        ),
        (agent(results=TURNS), None, "its tools is 3, and expiration_mode is 'none'"),
        (agent(), TURNS, "its tools is 3, and expiration_mode is 'none'"),
        (agent(look, read_log, tools={"read_log": TURNS}), None, "of read_log is 3, and expiration_mode is 'none'"),
        (agent(team=[agent(name="helper", results=TURNS)]), None, "agent helper: expiration_turns"),
    ],
)
async def test_policies_that_cannot_be_meant_start_no_run(run: rp.Agent, results: Any, words: str) -> None:
    """The error names the agent and the field, what was expected and what came; nothing is in the journal."""
    async with rp.open_supervisor(model=ScriptedModel(["Done."])) as supervisor:
        with pytest.raises(ConfigurationError, match=words):
            await supervisor.spawn(run, "Read.", results=results)
        assert await supervisor.runs() == []


@pytest.mark.parametrize(
    ("run", "results"),
    [
        (agent(look, read_log, results=TURNS), None),  # for those of the tools that expire
        (agent(look), TURNS),
        (agent(results=TURNS, expiration=False), None),  # switched off for a while
        (agent(results=rp.ResultPolicy(expiration_turns=3, expiration_mode="none")), None),  # said so
        (agent(tools={"look": EXPIRES}, team=[agent(look, name="helper")]), None),  # one policy for a whole team
        (agent(team=[agent(name="helper")], tools={"delegate": rp.ResultPolicy(pin=True)}), None),
        (agent(results=rp.ResultPolicy(compactor="json")), None),
        (agent(look, results=rp.ResultPolicy(pin=True)), None),
        (agent(*rp.context_tools(), results=rp.ResultPolicy(cite_on_arrival=True)), None),
        (clerk(None), None),
    ],
)
async def test_policies_that_can_be_meant_are_left_alone(run: rp.Agent, results: rp.ResultPolicy | None) -> None:
    """Negative control: what is unusual is not wrong."""
    async with rp.open_supervisor(model=ScriptedModel(["Done."])) as supervisor:
        assert await (await supervisor.spawn(run, "Read.", results=results)).wait_result() == "Done."


class Ships:
    """A plug-in for results about ships."""

    name = "ships"

    def matches(self, text: str, data: Any) -> bool:
        """All of them."""
        return True

    def compact(self, text: str, data: Any, length: int) -> str:
        """Count them."""
        return f"{text.count('ship')} ships"


async def test_a_compactor_may_be_registered_after_the_agent_was_made() -> None:
    """It is looked for when a run starts or goes on, and then it is there or it is an error."""
    late = agent(results=rp.ResultPolicy(compactor="ships"))
    model = ScriptedModel([call("read_log", day=1), rp.errors.ModelUnavailable("gone"), "Done."])
    async with open_journal() as journal, rp.open_supervisor(model=model, journal=journal) as supervisor:
        with pytest.raises(ConfigurationError, match="'ships'"):
            await supervisor.spawn(late, "Read.")
        try:
            register_compactor(Ships())
            run = await supervisor.spawn(late, "Read.")
            with pytest.raises(RunFailed):
                await run.wait_result()
        finally:
            del COMPACTORS["ships"]
        with pytest.raises(ConfigurationError, match="'ships'"):
            await supervisor.resume(run.id, agent=late)
        again = await supervisor.resume(run.id, agent=agent())
        assert await again.wait_result() == "Done."
        assert await (await supervisor.resume(run.id, agent=late)).wait_result() == "Done."
