"""The interface through which traces and metrics are made, called in the task that does the work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

from repertory.llm.messages import ToolUse
from repertory.llm.model import Model, ModelRequest, ModelResponse
from repertory.record import RunStatistics
from repertory.tools import Tool, ToolOutput

TRACED: Final = "Traced"  # the type of the records that refer to a run's trace
AroundRun: TypeAlias = AbstractContextManager[Callable[[str | None], None]]
AroundModelCall: TypeAlias = AbstractContextManager[Callable[[ModelResponse], None]]
AroundToolCall: TypeAlias = AbstractContextManager[Callable[[ToolOutput], None]]


@dataclass
class Trace:
    """What telemetry keeps with a run.

    Attributes:
        parent: What was current (``Telemetry.here``) where the run was begun or continued; None for nothing.
        earlier: The trace of the run in an earlier process, or in an earlier incarnation here; None for none.
    """

    parent: Any = None
    earlier: Mapping[str, str] | None = None


class TracedRun(Protocol):
    """The part of a run that telemetry uses; see ``LiveRun``."""

    run_id: str
    agent: Any
    iteration: int
    shared: Any
    trace: Trace

    @property
    def root(self) -> Any:
        """The run at the top of its tree."""
        ...

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
    """Wraps each run, model call and tool call in a context manager, such as a span. It must not raise.

    The work is done inside the context managers, so a span that is current there is the parent of everything traced
    within.
    """

    def run(self, live: TracedRun) -> AroundRun:
        """Wrap a run's work in this process, from when it begins or continues.

        The function that it yields is called with the text of the run's error; None if the run did not fail.
        """
        ...

    def model_call(self, live: TracedRun, request: ModelRequest) -> AroundModelCall:
        """Wrap one model call with all its attempts; the function that it yields is called with the answer."""
        ...

    def tool_call(self, live: TracedRun, tool: Tool, use: ToolUse) -> AroundToolCall:
        """Wrap one tool call; the function that it yields is called with the outcome."""
        ...

    def here(self) -> Any:
        """What is current (such as a span), as the parent of a run that is about to begin or to continue."""
        ...


class NoTelemetry:
    """Telemetry that does nothing."""

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
    """Do nothing."""
