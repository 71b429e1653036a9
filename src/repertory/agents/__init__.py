"""Agents: what they are, the loop that runs them, the runs it makes, and the supervisor over all of it."""

from __future__ import annotations

from repertory.agents.agent import Agent, Limits, load_agent
from repertory.agents.alerts import AlertThresholds
from repertory.agents.events import (
    Alert,
    AnyEvent,
    ContextEdited,
    Event,
    EventsMissed,
    IterationStarted,
    ModelAnswered,
    ModelRetrying,
    RunResumed,
    RunSpawned,
    StateChanged,
    SummaryRefused,
    SummaryTaken,
    ToolEnded,
    ToolProgress,
    ToolStarted,
)
from repertory.agents.runs import Run
from repertory.agents.supervisor import Supervisor, open_supervisor, run, run_sync
from repertory.agents.teams import research_team

__all__ = [
    "Agent",
    "Alert",
    "AlertThresholds",
    "AnyEvent",
    "ContextEdited",
    "Event",
    "EventsMissed",
    "IterationStarted",
    "Limits",
    "ModelAnswered",
    "ModelRetrying",
    "Run",
    "RunResumed",
    "RunSpawned",
    "StateChanged",
    "SummaryRefused",
    "SummaryTaken",
    "Supervisor",
    "ToolEnded",
    "ToolProgress",
    "ToolStarted",
    "load_agent",
    "open_supervisor",
    "research_team",
    "run",
    "run_sync",
]
