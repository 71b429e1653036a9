"""What is known of a running tree of agents, from its events: the model behind the live picture."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from repertory.agents import (
    Alert,
    ContextEdited,
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
    ToolStarted,
)
from repertory.agents.events import Event
from repertory.cli.entries import call_line
from repertory.cli.output import dollars, one_line, say, tokens


class AgentLine:
    """One run, as it stands."""

    def __init__(self, run_id: str, parent_id: str | None, name: str) -> None:
        self.run_id = run_id
        self.parent_id = parent_id
        self.name = name
        self.state = "running"
        self.iteration = 0
        self.view_tokens = 0
        self.record_tokens = 0
        self.cost = 0.0
        self.calls: dict[str, str] = {}  # tool calls under way
        self.now = "starting"


class Progress:
    """Takes in events; read from any thread. ``on_line`` gets each event that is worth a line, as text.

    ``announce`` says what the person at the keyboard has to know, where it does not get into the picture's way.
    """

    def __init__(self, on_line: Callable[[str], None] | None = None) -> None:
        self.announce: Callable[[str], None] = say
        self.started_at = time.monotonic()
        self.agents: dict[str, AgentLine] = {}
        self.notes: deque[str] = deque(maxlen=6)
        self.summaries = 0
        self.edits = 0
        self.tool_calls = 0
        self._on_line = on_line
        self._names: dict[str, int] = {}
        self._handlers: dict[type[Event], Callable[[Any, AgentLine], str]] = {
            RunSpawned: self._spawned,
            RunResumed: self._resumed,
            IterationStarted: self._iteration,
            ModelAnswered: self._answered,
            ModelRetrying: self._retrying,
            ToolStarted: self._tool_started,
            ToolEnded: self._tool_ended,
            ContextEdited: self._edited,
            SummaryTaken: self._summarised,
            SummaryRefused: self._refused,
            Alert: self._alerted,
            StateChanged: self._changed,
            EventsMissed: self._missed,
        }

    def add(self, event: Event) -> None:
        """Take in one event."""
        agent = self._agent(event)
        line = self._handlers[type(event)](event, agent)
        if line:
            stamp = time.monotonic() - self.started_at
            words = f"{stamp:5.1f}s  {agent.name:<13} {line}"
            if self._on_line is not None:
                self._on_line(words)
            if isinstance(event, (ContextEdited, SummaryTaken, SummaryRefused, Alert, ModelRetrying, RunResumed)):
                self.notes.append(words)

    def end(self) -> None:
        """Nothing more will come: what goes on by its record was interrupted."""
        for agent in self.agents.values():
            if agent.state in ("running", "waiting"):
                agent.state, agent.now = "interrupted", ""
                agent.calls.clear()

    def _agent(self, event: Event) -> AgentLine:
        agent = self.agents.get(event.run_id)
        if agent is None:
            number = self._names[event.agent] = self._names.get(event.agent, 0) + 1
            parent_id = event.parent_id if isinstance(event, RunSpawned) else None
            if parent_id is None and self.agents:
                # A run that was resumed says nothing of its parent, but its id does.
                parent_id = event.run_id.rpartition(".")[0] or None
            name = event.agent if parent_id is None else f"{event.agent} {number}"
            agent = self.agents[event.run_id] = AgentLine(event.run_id, parent_id, one_line(name, 32))
        return agent

    # --- one event each; the line it is worth, or "" ---

    def _spawned(self, event: RunSpawned, agent: AgentLine) -> str:
        return f"starts: {one_line(event.task, 160)}"

    def _resumed(self, event: RunResumed, agent: AgentLine) -> str:
        agent.iteration = event.iteration
        interrupted = f", {event.interrupted_calls} calls were interrupted" if event.interrupted_calls else ""
        return f"goes on from its record of {event.entries} entries{interrupted}"

    def _iteration(self, event: IterationStarted, agent: AgentLine) -> str:
        agent.iteration = event.iteration
        agent.view_tokens, agent.record_tokens = event.view_tokens, event.record_tokens
        agent.now = "thinking"
        return ""

    def _answered(self, event: ModelAnswered, agent: AgentLine) -> str:
        agent.cost += event.cost
        agent.now = ""
        prompt = event.usage.prompt_tokens
        seen = f"saw {tokens(prompt)} of {tokens(max(agent.record_tokens, prompt))} tokens"
        did = f"calls {event.tool_calls} tools" if event.tool_calls else "answers"
        return f"iteration {event.iteration}: {seen}, {did}"

    def _retrying(self, event: ModelRetrying, agent: AgentLine) -> str:
        agent.now = f"asks again in {event.delay:.0f} s"
        return f"asks the model again in {event.delay:.1f} s: {one_line(event.reason, 160)}"

    def _tool_started(self, event: ToolStarted, agent: AgentLine) -> str:
        agent.calls[event.call_id] = call_line(event.tool, event.arguments, 80)
        return call_line(event.tool, event.arguments, 120)

    def _tool_ended(self, event: ToolEnded, agent: AgentLine) -> str:
        agent.calls.pop(event.call_id, None)
        self.tool_calls += 1
        if event.deduplicated:
            return f"{one_line(event.tool)}: already called, the earlier result again"
        return "" if event.status == "ok" else f"{one_line(event.tool)}: {event.status}"

    def _edited(self, event: ContextEdited, agent: AgentLine) -> str:
        self.edits += 1
        return f"view edited, {one_line(event.reason, 200)}"

    def _summarised(self, event: SummaryTaken, agent: AgentLine) -> str:
        self.summaries += 1
        return (
            f"summary of entries {event.first}–{event.last} is ready: {tokens(event.replaced_tokens)} → "
            f"{tokens(event.tokens)} tokens ({one_line(event.strategy)})"
        )

    def _refused(self, event: SummaryRefused, agent: AgentLine) -> str:
        return f"summary refused: {one_line(event.reason, 160)}"

    def _alerted(self, event: Alert, agent: AgentLine) -> str:
        return f"alert: {one_line(event.reason, 200)}"

    def _changed(self, event: StateChanged, agent: AgentLine) -> str:
        agent.state = event.state
        agent.now = ""
        if event.state == "failed":
            agent.now = one_line(event.error or "", 120)
            return f"failed: {agent.now}"
        return event.state if event.state not in ("running", "waiting") else ""

    def _missed(self, event: EventsMissed, agent: AgentLine) -> str:
        return f"{event.count} events were too fast to show; the record has them all"

    @property
    def cost(self) -> str:
        """What all of it cost so far."""
        return dollars(sum(agent.cost for agent in list(self.agents.values())))
