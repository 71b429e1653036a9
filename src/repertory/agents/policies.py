"""What an agent and its tools say together about what the model sees."""

from __future__ import annotations

from repertory.agents.agent import Agent
from repertory.context import ContextPolicy


def layered_policy(agent: Agent) -> ContextPolicy | None:
    """The agent's policy with its tools' own defaults below it; None for a plain loop."""
    if agent.context is None:
        return None
    return agent.context.with_layers(tools={tool.name: tool.policy for tool in agent.tools if tool.policy is not None})
