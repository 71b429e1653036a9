"""The tool sets of agents: opened for a run, or once for all runs of a supervisor, and closed when they end."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import anyio.abc
import msgspec

from repertory._cancelling import crash_of
from repertory._error_texts import name_error
from repertory.agents.agent import Agent
from repertory.agents.delegation import TEAM_TOOLS
from repertory.context.projector import FRAME
from repertory.errors import RepertoryError, ToolSetUnavailable
from repertory.llm.json_outputs import FINAL_RESULT
from repertory.runs.log import log
from repertory.tools import Tool
from repertory.tools.decorator import made_tools
from repertory.tools.retrieval_guard import RETRIEVALS
from repertory.tools.schema import LONGEST_NAME
from repertory.tools.tool_sets import ToolSet

# A foreign server may name its tools as it likes, even so that they would be taken for one of these.
_OURS: Final = TEAM_TOOLS | RETRIEVALS | {FINAL_RESULT, FRAME}


class ToolSets:
    """The tool sets that all runs of a supervisor share. Each is opened, held and closed by a task of its own."""

    def __init__(self, tasks: anyio.abc.TaskGroup) -> None:
        self._tasks = tasks
        self._held: dict[int, _Held] = {}  # by identity: two tool sets may connect to the same server
        self._closing = anyio.Event()

    def close(self) -> None:
        """Close all tool sets; their tools are no longer called. One that is still being opened is given up."""
        self._closing.set()
        for held in self._held.values():
            if not held.settled.is_set():
                held.scope.cancel()

    @asynccontextmanager
    async def open(self, agent: Agent[Any]) -> AsyncGenerator[tuple[Tool, ...]]:
        """The tools of an agent's tool sets, for as long as the block lasts.

        Raises:
            ToolSetUnavailable: A tool set cannot be opened.
            ConfigurationError: A tool set offers something that is not a tool.
        """
        finished = False
        try:
            async with AsyncExitStack() as stack:
                offered: list[tuple[ToolSet, Sequence[Tool]]] = []
                # Side by side, as opening one can take seconds: it may download a server, or wait for a sign-in.
                shared = {id(each): self._share(each) for each in agent.tool_sets if each.lifetime == "supervisor"}
                for each in agent.tool_sets:
                    held = shared.get(id(each))
                    try:
                        opened = await (stack.enter_async_context(each.open()) if held is None else held.wait())
                    except BaseException as raised:
                        cause = crash_of(raised)
                        if isinstance(cause, RepertoryError):
                            raise
                        log(logging.WARNING, "tool.set.unavailable", tool_set=each.name, exc_info=cause)
                        told = f"tool set {each.name} cannot be opened: {name_error(cause)}"
                        raise ToolSetUnavailable(told) from cause
                    offered.append((each, made_tools(opened, f"tool set {each.name}: what open() gives")))
                yield _without_clashes([*_OURS, *(tool.name for tool in agent.own_tools)], offered)
                finished = True
        except BaseException as raised:  # noqa: BLE001 - raised again, or foreign code
            error = crash_of(raised)
            if not finished:
                raise error  # noqa: B904 - it is what was raised, or has that as its cause
            # The run has ended: a connection that breaks while closing must not make it run again.
            log(logging.WARNING, "tool.set.lost", agent=agent.name, exc_info=error)

    def _share(self, tool_set: ToolSet) -> _Held:
        held = self._held.get(id(tool_set))
        if held is None:
            held = self._held[id(tool_set)] = _Held(tool_set)
            self._tasks.start_soon(self._hold, held)
        return held

    async def _hold(self, held: _Held) -> None:
        try:
            with held.scope:
                async with held.tool_set.open() as tools:
                    held.tools = tools
                    held.settled.set()
                    await self._closing.wait()
        except BaseException as raised:  # noqa: BLE001 - foreign code: ends the runs that need it, not the supervisor
            held.failure = error = crash_of(raised)
            if held.settled.is_set():
                log(logging.WARNING, "tool.set.lost", tool_set=held.tool_set.name, exc_info=error)
        finally:
            del self._held[id(held.tool_set)]  # the next run opens it again
            held.settled.set()


@dataclass(eq=False)
class _Held:
    tool_set: ToolSet
    tools: Sequence[Tool] = ()
    failure: Exception | None = None
    settled: anyio.Event = field(default_factory=anyio.Event)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)

    async def wait(self) -> Sequence[Tool]:
        """Wait until it is open, and return its tools; raise why it cannot be opened."""
        await self.settled.wait()
        if self.failure is not None:
            raise self.failure
        return self.tools


def _without_clashes(taken: Sequence[str], offered: Sequence[tuple[ToolSet, Sequence[Tool]]]) -> tuple[Tool, ...]:
    """The tools of all sets; if several have the same name, each is prefixed with the name of its set.

    A tool whose own name equals such a prefixed name is prefixed too, so no server can pass its tool off as another's.
    Tools that still have the same name are dropped.
    """
    tools = [(tool, f"{tool_set.name}_{tool.name}"[:LONGEST_NAME]) for tool_set, given in offered for tool in given]
    times = Counter([*taken, *(tool.name for tool, _ in tools)])
    times.update([longer for tool, longer in tools if times[tool.name] > 1])
    kept = dict[str, Tool | None].fromkeys(taken)
    for tool, longer in tools:
        name = longer if times[tool.name] > 1 else tool.name
        if name in kept:
            log(logging.WARNING, "tool.dropped", tool=tool.name, reason=f"another tool is called {name}")
        else:
            known_as = (*tool.own_names, tool.name)
            kept[name] = tool if name == tool.name else msgspec.structs.replace(tool, name=name, own_names=known_as)
    return tuple(tool for tool in kept.values() if tool is not None)
