"""What the run, its agent and its tools say together about what the model sees."""

from __future__ import annotations

import msgspec

from repertory.agents.live import LiveRun
from repertory.context import ContextPolicy, ResultPolicy
from repertory.tools.retrieval import RETRIEVALS


def layered_policy(live: LiveRun) -> ContextPolicy | None:
    """The agent's policy, its tools' own defaults below it and the run's overrides on top; None for a plain loop.

    No text tells the model to call a retrieval tool that its agent does not have.
    """
    agent = live.agent
    if agent.context is None:
        return None
    run = msgspec.convert(live.started.results, ResultPolicy) if live.started.results else None
    tools = {tool.name: tool.policy for tool in agent.tools if tool.policy is not None}
    policy = agent.context.with_layers(tools=tools, run=run)
    has = {tool.name for tool in agent.tools} >= RETRIEVALS
    return msgspec.structs.replace(policy, retrieval=policy.retrieval and has)
