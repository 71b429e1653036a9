"""Agent definitions, and how to load them from files or by reference. Nothing in this package runs."""

from __future__ import annotations

from repertory.agents.agent import Agent, Limits
from repertory.agents.definitions import load_agents
from repertory.agents.delegation import Delegation
from repertory.agents.loading import load_agent
from repertory.agents.research import research_team

__all__ = ["Agent", "Delegation", "Limits", "load_agent", "load_agents", "research_team"]
