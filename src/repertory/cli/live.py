"""The progress of a running tree of agents: a live display on a terminal, or a line for each event."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from repertory._counting import counted
from repertory._ids import parent_of
from repertory.cli import output
from repertory.cli.options import Shown
from repertory.cli.output import one_line, tokens
from repertory.cli.reading import awaited_line, call_line
from repertory.cli.runs import in_tree
from repertory.cli.signals import drawn_on
from repertory.runs import events, streaming
from repertory.supervisor import Run

_KEPT: Final = 500  # characters of an answer that is streamed, which is more than a row shows, and of a line of words
_BEFORE_NOW: Final = 44  # columns between the names of agents and what they do
_NOTED = (  # events whose lines stay below the display for a while
    events.ContextEdited,
    events.SummaryTaken,
    events.SummaryRefused,
    events.Alert,
    events.ModelRetrying,
    events.RunResumed,
)


@contextmanager
def show_progress(shown: Shown) -> Generator[Progress]:
    """Show the progress on standard error until the block is left; with ``as_json``, only as a live display."""
    screen = output.console(stderr=True)
    if shown.quiet or shown.plain or not output.has_picture(screen):
        yield Progress(None if shown.quiet or shown.as_json else output.remark)
        return
    progress = Progress(is_drawn=True)
    progress.announce = progress.notes.append

    def new_picture() -> Live:
        # Rich draws from a thread of its own, so the event loop never waits for the terminal.
        return Live(
            console=screen,
            get_renderable=lambda: draw(progress, screen),
            refresh_per_second=output.REFRESH,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="ellipsis",
        )

    picture = new_picture()

    @asynccontextmanager
    async def aside() -> AsyncGenerator[None]:
        nonlocal picture
        picture.stop()
        try:
            yield
        finally:
            picture = new_picture()  # the stopped one would draw over the question
            picture.start(refresh=True)

    progress.aside = aside
    with drawn_on(screen.file.fileno()):
        picture.start()
        try:
            yield progress
            progress.end()
        finally:
            picture.stop()


# --- the state of the runs ----------------------------------------------------------------------------------------


@dataclass
class AgentLine:
    """The current state of one run."""

    run_id: str
    parent_id: str | None
    name: str
    state: str = "running"
    iteration: int = 0
    view_tokens: int = 0
    record_tokens: int = 0
    cost: float = 0.0
    calls: dict[str, str] = field(default_factory=dict)  # tool calls in progress
    now: str = "starting"
    said: str = ""  # the end of what its model is saying


class Progress:
    """Takes in events and streamed text of runs; may be read from any thread.

    ``announce`` shows a message without disturbing the live display; within ``aside`` the display stands still, so that
    a question can be asked below it.

    Args:
        on_line: Gets a line for each event that has one, and the lines of what the first run says between its calls.
        is_drawn: There is a live display.
    """

    def __init__(self, on_line: Callable[[str], None] | None = None, *, is_drawn: bool = False) -> None:
        self.announce: Callable[[str], None] = output.say
        self.aside: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
        self.started_at = time.monotonic()
        self.agents: dict[str, AgentLine] = {}
        self.notes: deque[str] = deque(maxlen=6)
        self.counts: Counter[str] = Counter()
        self.is_drawn = is_drawn
        self._on_line = on_line
        self._names: Counter[str] = Counter()

    def add(self, event: events.Event) -> None:
        """Take in one event."""
        agent = self._agent(event.run_id, event.agent)
        text = self._take(event, agent)
        lines = [text] if text else []
        is_first = agent is next(iter(self.agents.values()))
        if is_first and isinstance(event, events.ModelAnswered) and event.tool_calls:  # else it is the answer itself
            said = [line.rstrip() for line in output.clean(event.text).split("\n") if line.strip()]
            lines += [f"│ {line[:_KEPT]}{'…' * (len(line) > _KEPT)}" for line in said]
        for line in lines:
            whole = f"{time.monotonic() - self.started_at:5.1f}s  {agent.name:<13} {line}"
            if self._on_line is not None:
                self._on_line(whole)
            if isinstance(event, _NOTED):
                self.notes.append(whole)

    def describe(self, event: events.Event) -> tuple[str, str]:
        """Take in one event; returns the name of its agent, and the event's line, or ""."""
        agent = self._agent(event.run_id, event.agent)
        return agent.name, self._take(event, agent)

    async def read_along(self, run: Run[Any]) -> None:
        """Take in what a run says, while it says it."""
        agent, iteration = self._agent(run.id, run.agent.name), 0
        async for piece in run.stream():
            if piece.iteration != iteration or isinstance(piece, streaming.StreamRestarted):
                iteration, agent.said = piece.iteration, ""
            if isinstance(piece, streaming.TextStreamed | streaming.ThinkingStreamed):
                agent.said = (agent.said + piece.text)[-_KEPT:]
            elif isinstance(piece, streaming.ToolCallStreamed):
                agent.now, agent.said = f"writes a call to {one_line(piece.tool)}", ""

    def end(self) -> None:
        """Mark runs that are still unfinished as interrupted: no more events will come."""
        for agent in self.agents.values():
            if agent.state in ("running", "waiting"):
                agent.state, agent.now, agent.said = "interrupted", "", ""
                agent.calls.clear()

    def _agent(self, run_id: str, agent_name: str) -> AgentLine:
        agent = self.agents.get(run_id)
        if agent is None:
            self._names[agent_name] += 1
            # An id starts with its parent's; the first run seen counts as the root.
            parent_id = parent_of(run_id) if self.agents else None
            name = f"{agent_name} {self._names[agent_name]}" if parent_id else agent_name
            agent = self.agents[run_id] = AgentLine(run_id, parent_id, one_line(name, 32))
        return agent

    def _take(self, event: events.Event, agent: AgentLine) -> str:
        """Take in what an event changes; returns its line, or ""."""
        match event:
            case events.RunSpawned():
                return f"starts: {one_line(event.task, 160)}"
            case events.RunResumed():
                agent.iteration = event.iteration
                count = event.interrupted_calls
                interrupted = f", {count} {'call was' if count == 1 else 'calls were'} interrupted" if count else ""
                return f"continues from its record of {counted(event.entries, 'entry', 'entries')}{interrupted}"
            case events.IterationStarted():
                agent.iteration, agent.now = event.iteration, "thinking"
                agent.view_tokens, agent.record_tokens = event.view_tokens, event.record_tokens
            case events.ModelAnswered():
                agent.cost += event.cost
                agent.now = agent.said = ""
                prompt = event.usage.prompt_tokens
                seen = f"saw {tokens(prompt)} of {tokens(max(agent.record_tokens, prompt))} tokens"
                did = f"calls {counted(event.tool_calls, 'tool')}" if event.tool_calls else "answers"
                return f"iteration {event.iteration}: {seen}, {did}"
            case events.ModelRetrying():
                agent.now = f"retries in {event.delay:.0f} s"
                return f"retries the model call in {event.delay:.1f} s: {one_line(event.reason, 160)}"
            case events.ToolStarted():
                agent.calls[event.call_id] = call_line(event.tool, event.arguments, 80)
                return call_line(event.tool, event.arguments, 120)
            case events.ToolEnded():
                agent.calls.pop(event.call_id, None)
                self.counts["tool call"] += 1
                if event.deduplicated:
                    return f"{one_line(event.tool)}: already called, the earlier result is used again"
                return "" if event.status == "ok" else f"{one_line(event.tool)}: {event.status}"
            case events.ApprovalRequested():
                agent.calls[event.call_id] = call_line(event.tool, event.arguments, 80)
                return f"waits for approval: {call_line(event.tool, event.arguments, 120)}"
            case events.ApprovalDecided():
                agent.calls.pop(event.call_id, None)
                by = f" by {event.by}" if event.by else ""
                how = f"allowed{by}" if event.allowed else f"denied{by}: {event.reason}"
                return one_line(f"{event.tool} is {how}", 200)
            case events.ResultAwaited():
                agent.calls[event.call_id] = line = awaited_line(event.tool, event.note, 200)
                return line
            case events.ContextEdited():
                self.counts["edits"] += 1
                return f"view edited, {one_line(event.reason, 200)}"
            case events.SummaryTaken():
                self.counts["summaries"] += 1
                size = f"{tokens(event.replaced_tokens)} → {tokens(event.tokens)} tokens"
                return f"summary of entries {event.first}–{event.last} is ready: {size} ({event.strategy})"
            case events.SummaryRefused():
                return f"summary refused: {one_line(event.reason, 160)}"
            case events.Alert():
                return f"alert: {one_line(event.reason, 200)}"
            case events.PayloadConflicted():
                places = one_line(", ".join(event.paths), 120)
                return f"payload: {places} was changed by others first; version {event.version} keeps the other value"
            case events.StateChanged():
                agent.state, agent.said = event.state, ""
                agent.now = one_line(event.error or "", 120)
                if event.state == "failed":
                    return f"failed: {agent.now}"
                return event.state if event.state not in ("running", "waiting") else ""
            case events.EventsMissed():
                return f"{counted(event.count, 'event')} came too fast to show; the record has all"
        return ""


# --- the live display ------------------------------------------------------------------------------------------


def draw(progress: Progress, screen: Console) -> RenderableType:
    """Draw the current tree."""
    agents = list(progress.agents.values())
    fitting = max(3, screen.height - 11)
    tree = list(in_tree(agents, attrgetter("run_id", "parent_id")))
    widest = max([15, *(len(branch + agent.name) for branch, agent in tree[:fitting])])
    room = max(10, screen.width - widest - _BEFORE_NOW)
    rows: list[tuple[str | Text, ...]] = [
        (
            f"{branch}{agent.name}".ljust(15),  # keeps the columns in place when agents are added
            output.coloured_state(agent.state.ljust(8)),
            f"{agent.iteration:4}",
            f"{tokens(agent.view_tokens)} / {tokens(agent.record_tokens)}".rjust(15),
            output.dollars(agent.cost),
            Text(_now(agent, room), style="dim"),
        )
        for branch, agent in tree[:fitting]
    ]
    headers = ("AGENT", "STATE", ">ITER", ">VIEW / RECORD", ">COST", "NOW")
    parts: list[RenderableType] = [output.Columns(headers, rows)]
    if len(agents) > fitting:
        parts.append(Text(f"… {len(agents) - fitting} more", style="dim"))
    facts = [f"\n{time.monotonic() - progress.started_at:.0f} s", counted(len(agents), "agent")]
    facts.append(counted(progress.counts["tool call"], "tool call"))
    facts.append(counted(progress.counts["summaries"], "summary", "summaries"))
    facts.append(f"{counted(progress.counts['edits'], 'edit')} of the view")
    facts.append(output.dollars(sum(agent.cost for agent in agents)))
    parts.append(Text("   ".join(facts), style="bold", no_wrap=True, overflow="ellipsis"))
    parts += [Text(note, style="dim", no_wrap=True, overflow="ellipsis") for note in list(progress.notes)]
    return Group(*parts)


def _now(agent: AgentLine, room: int) -> str:
    """What an agent is doing; while its model speaks, the end of what it says."""
    if calls := list(agent.calls.values()):
        return calls[0] if len(calls) == 1 else f"{len(calls)} calls: {calls[0]}"
    said = one_line(agent.said)
    return agent.now if not said else said if len(said) <= room else f"…{said[1 - room :]}"
