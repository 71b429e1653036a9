"""Where whoever makes traces and metrics learns of the work of runs, in the very task that does it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

from repertory.llm.messages import ToolUse
from repertory.llm.model import Model, ModelRequest, ModelResponse
from repertory.record import RunStatistics
from repertory.tools import Tool, ToolOutput

TRACED: Final = "Traced"  # the type of the records that keep where a run's trace is
AroundRun: TypeAlias = AbstractContextManager[Callable[[str | None], None]]
AroundModelCall: TypeAlias = AbstractContextManager[Callable[[ModelResponse], None]]
AroundToolCall: TypeAlias = AbstractContextManager[Callable[[ToolOutput], None]]


@dataclass
class Trace:
    """What telemetry keeps with a run.

    Attributes:
        parent: What was current where a sub-agent's run began; None for a root.
        earlier: Where an earlier process, or an earlier incarnation in this one, traced the run; None for nowhere.
    """

    parent: Any = None
    earlier: Mapping[str, str] | None = None


class TracedRun(Protocol):
    """A run, as far as telemetry looks at it; see ``LiveRun``."""

    run_id: str
    agent: Any
    iteration: int
    shared: Any
    trace: Trace

    @property
    def model(self) -> Model:
        """The model that it calls."""
        ...

    @property
    def statistics(self) -> RunStatistics:
        """The figures of this run."""
        ...


@runtime_checkable
class Telemetry(Protocol):
    """Wraps each run, model call and tool call in what it makes of them. It must not raise.

    The work goes on inside of the context managers, so that what is current there (a span) is the parent of whatever
    else is traced within.
    """

    def run(self, live: TracedRun) -> AroundRun:
        """Around a run's work in this process, from its beginning or its going on.

        What it gives is called with the error that the run failed with, in words; None where it did not fail.
        """
        ...

    def model_call(self, live: TracedRun, request: ModelRequest) -> AroundModelCall:
        """Around one call of a model, with all its attempts; what it gives is called with the answer."""
        ...

    def tool_call(self, live: TracedRun, tool: Tool, use: ToolUse) -> AroundToolCall:
        """Around one call of a tool; what it gives is called with the outcome."""
        ...

    def here(self) -> Any:
        """What is current, to be the parent of a sub-agent's run that is about to begin."""
        ...


class NoTelemetry:
    """Makes nothing of anything."""

    def run(self, live: TracedRun) -> AroundRun:
        """Nothing."""
        return nullcontext(_ignore)

    def model_call(self, live: TracedRun, request: ModelRequest) -> AroundModelCall:
        """Nothing."""
        return nullcontext(_ignore)

    def tool_call(self, live: TracedRun, tool: Tool, use: ToolUse) -> AroundToolCall:
        """Nothing."""
        return nullcontext(_ignore)

    def here(self) -> Any:
        """Nothing."""
        return None


def _ignore(_: object) -> None:
    """Nobody wants to know."""
