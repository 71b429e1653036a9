"""What the run, its agent and its tools say together about what the model sees."""

from __future__ import annotations

import msgspec

from repertory.agents.live import LiveRun
from repertory.context import ContextPolicy, ResultPolicy


def layered_policy(live: LiveRun) -> ContextPolicy | None:
    """The agent's policy, its tools' own defaults below it and the run's overrides on top; None for a plain loop."""
    agent = live.agent
    if agent.context is None:
        return None
    run = msgspec.convert(live.started.results, ResultPolicy) if live.started.results else None
    tools = {tool.name: tool.policy for tool in agent.tools if tool.policy is not None}
    return agent.context.with_layers(tools=tools, run=run)
