"""Whose word counts about a tool's results: the run's, the agent's for the tool, the tool's, the agent's for all."""

from __future__ import annotations

import pytest

import repertory as rp
from repertory.llm.messages import ToolResult, text_of
from repertory.testing import ScriptedModel, call

TOOL, AGENT, RUN = (rp.ResultPolicy(cap_chars=number) for number in (900, 600, 300))


async def first_shown(
    *,
    every: rp.ResultPolicy | None = None,
    tool: rp.ResultPolicy | None,
    agent: rp.ResultPolicy | None,
    run: rp.ResultPolicy | None,
) -> int:
    """Characters of a 5,000 character result that the model sees, about."""

    @rp.tool(effect="pure", policy=tool)
    def read() -> str:
        """Read."""
        return "\n".join(f"line {number:04}" for number in range(500))

    policy = rp.ContextPolicy(results=every or rp.ResultPolicy(), tools={"read": agent} if agent else {})
    model = ScriptedModel([call("read"), "Done."])
    async with rp.open_supervisor(model=model) as supervisor:
        held = await supervisor.spawn(rp.Agent("a", tools=[read], context=policy), "Read.", results=run)
        await held.wait_result()
    (result,) = [b for m in model.requests[1].messages for b in m.content if isinstance(b, ToolResult)]
    return len(text_of(result).rpartition("\n[")[0])


@pytest.mark.parametrize(
    ("tool", "agent", "run", "most"),
    [
        (TOOL, None, None, 900),
        (TOOL, AGENT, None, 600),
        (TOOL, AGENT, RUN, 300),
        (TOOL, None, RUN, 300),
        (None, None, RUN, 300),
        (TOOL, rp.ResultPolicy(importance=2.0), rp.ResultPolicy(excerpt_chars=50), 900),
    ],
)
async def test_the_stronger_layer_wins_field_by_field(
    tool: rp.ResultPolicy | None, agent: rp.ResultPolicy | None, run: rp.ResultPolicy | None, most: int
) -> None:
    """Run, then agent's entry for the tool, then the tool; a layer that says nothing of a field leaves it alone."""
    assert most - 60 < await first_shown(tool=tool, agent=agent, run=run) < most + 80


@pytest.mark.parametrize(
    ("tool", "agent", "run", "most"),
    [(None, None, None, 1_200), (TOOL, None, None, 900), (None, AGENT, None, 600), (TOOL, AGENT, RUN, 300)],
)
async def test_what_is_said_of_one_tool_beats_what_is_said_of_all(
    tool: rp.ResultPolicy | None, agent: rp.ResultPolicy | None, run: rp.ResultPolicy | None, most: int
) -> None:
    """The agent's policy for every result stands below all that names the tool, its own default included."""
    every = rp.ResultPolicy(cap_chars=1_200)
    assert most - 60 < await first_shown(every=every, tool=tool, agent=agent, run=run) < most + 80


async def removed_in(policy: rp.ContextPolicy) -> int:
    """How many results a run under a policy takes out of view, although run and tool both ask for it."""
    gone = rp.ResultPolicy(expiration_turns=0, expiration_mode="remove")

    @rp.tool(effect="pure", policy=gone)
    def read(day: int) -> str:
        """Read."""
        return f"day {day}: " + "all quiet " * 80

    model = ScriptedModel([*(call("read", day=day) for day in range(1, 6)), "Done."])
    async with rp.open_supervisor(model=model) as supervisor:
        agent = rp.Agent("a", tools=[read], context=policy)
        run = await supervisor.spawn(agent, "Read.", results=gone)
        await run.wait_result()
        return sum(entry.representation == "removed" for entry in run.view())


async def test_expiration_can_be_turned_off_whatever_the_layers_say() -> None:
    """``expiration=False`` beats the run's own override; with it on, the same layers remove results."""
    policy = rp.ContextPolicy(rhythm="strict", window=9, strict_chars=0)
    assert await removed_in(policy) >= 3
    off = rp.ContextPolicy(rhythm="strict", window=9, strict_chars=0, expiration=False)
    assert await removed_in(off) == 0


async def test_an_override_outlives_the_process() -> None:
    """It is kept with the run: whoever resumes it applies it too."""
    gone = rp.ResultPolicy(cap_chars=200)

    @rp.tool(effect="pure")
    def read(day: int) -> str:
        """Read."""
        return f"day {day}: " + "all quiet " * 200

    agent = rp.Agent("a", tools=[read])
    model = ScriptedModel([rp.errors.ModelUnavailable("no"), call("read", day=1), "Done."])
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(agent, "Read.", results=gone)
        with pytest.raises(rp.errors.RunFailed):
            await run.wait_result()
        again = await supervisor.resume(run.id, agent=agent)
        await again.wait_result()
        assert again.view()[2].representation == "shaped"
