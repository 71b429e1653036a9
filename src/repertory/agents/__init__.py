"""Agents: what they are, the loop that runs them, the runs it makes, and the supervisor over all of it.

What can be seen of a run while it goes on is in ``repertory.agents.events``.
"""

from __future__ import annotations

from repertory.agents import events
from repertory.agents.agent import Agent, Limits
from repertory.agents.alerts import AlertThresholds
from repertory.agents.definitions import load_agents
from repertory.agents.delegation import Delegation
from repertory.agents.loading import load_agent
from repertory.agents.queue import QueuedRun
from repertory.agents.quotas import Quota, Quotas
from repertory.agents.research import research_team
from repertory.agents.runs import Run
from repertory.agents.supervisor import Supervisor, open_supervisor, run, run_sync

__all__ = [
    "Agent",
    "AlertThresholds",
    "Delegation",
    "Limits",
    "QueuedRun",
    "Quota",
    "Quotas",
    "Run",
    "Supervisor",
    "events",
    "load_agent",
    "load_agents",
    "open_supervisor",
    "research_team",
    "run",
    "run_sync",
]
