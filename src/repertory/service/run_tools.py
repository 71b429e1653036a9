"""The runs and the memory of a supervisor as tools, which are served to the models of MCP clients."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import wraps
from typing import Annotated, Any, Final

import anyio
import msgspec

from repertory.errors import JournalError, RepertoryError, ToolFailed, ToolRetry
from repertory.llm.messages import Json
from repertory.record.records import FINAL_STATES
from repertory.runs.events import ModelAnswered, ToolStarted
from repertory.service.control import Control
from repertory.service.memories import read_item, read_memory
from repertory.service.requests import RunsQuery
from repertory.service.views import RunView
from repertory.supervisor import Run
from repertory.tools import Tool, ToolContext, tool

ABOUT: Final = """\
Agents that work on their own, each run with a durable record. The tool named after an agent gives it a task and waits \
for the answer; start_run begins one and returns at once. A run that stopped when its connection ended goes on with \
resume_run.
"""
Limit = Annotated[int, msgspec.Meta(ge=1, le=1000)]
Timeout = Annotated[float, msgspec.Meta(ge=0, le=3600)]


def run_tools(control: Control) -> Sequence[Tool]:
    """Tools for the runs of a supervisor: one for each agent, with its name, and some to start, follow and steer runs.

    Only the agents that ``control`` offers can be started.
    """
    runs = _Runs(control)
    reads: dict[str, Any] = {"effect": "pure", "repeatable": False}
    made: list[Tool] = [
        tool(runs.list_agents, **reads),
        _make(runs.list_runs, **reads),
        _make(runs.run_status, **reads),
        _make(runs.wait_result, deadline=None, **reads),
        _make(runs.query_memory, **reads),
        _make(runs.read_memory, **reads),
        _make(runs.start_run),
        _make(runs.send_message),
        _make(runs.stop_run, effect="idempotent"),
        _make(runs.resume_run, effect="idempotent"),
    ]
    for agent in control.offers.list():
        name = agent.name
        while any(each.name == name for each in made):
            name = f"ask_{name}"
        made.append(_make(_asking(control, agent.name), name=name, description=agent.description, deadline=None))
    return made


def _make(ask: Callable[..., Awaitable[Any]], **options: Any) -> Tool:
    """A tool whose refusals the client's model is told: an id that does not exist is no crash of a tool."""

    @wraps(ask)
    async def answer(*args: Any, **given: Any) -> Any:
        try:
            return await ask(*args, **given)
        except (JournalError, ToolFailed):
            raise
        except RepertoryError as error:
            raise ToolRetry(str(error)) from error

    return tool(answer, **options)


class _Runs:
    """Operations on the runs. The client's model is shown the docstrings."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def list_agents(self) -> list[Json]:
        """The agents that a run can be started with."""
        return [msgspec.to_builtins(view) for view in self._control.offers.list()]

    async def list_runs(self, limit: Limit = 20) -> list[Json]:
        """The newest runs, oldest first.

        Args:
            limit: How many at most.
        """
        return [_brief(view) for view in (await self._control.runs.list_runs(RunsQuery(limit=limit))).runs]

    async def run_status(self, run_id: str) -> Json:
        """How a run stands: its state, its iterations and what it cost.

        Args:
            run_id: The run, or an unambiguous beginning of its id.
        """
        return await self._told(run_id)

    async def wait_result(self, run_id: str, timeout: Timeout = 60.0) -> Json:
        """Wait for a run's result; after the timeout, or where nobody runs it, say how it stands.

        Args:
            run_id: The run, or an unambiguous beginning of its id.
            timeout: Seconds to wait at most.
        """
        await self._control.wait_ended(run_id, timeout)
        return await self._told(run_id)

    async def query_memory(self, run_id: str, text: str = "", limit: Limit = 20) -> Json:
        """List what a run has in memory, newest first, or the best for some words: ids and how each begins.

        Args:
            run_id: The run.
            text: Words to look for.
            limit: How many at most.
        """
        found = await read_memory(self._control.journal, await self._control.scope_of(run_id), text=text, limit=limit)
        listed: Json = msgspec.to_builtins(found)
        return listed

    async def read_memory(self, run_id: str, item_id: str) -> Json:
        """Read an item of a run's memory whole.

        Args:
            run_id: The run.
            item_id: The item, as query_memory lists it.
        """
        scope_id = await self._control.scope_of(run_id)
        item: Json = msgspec.to_builtins(await read_item(self._control.journal, scope_id, item_id))
        return item

    async def start_run(self, agent: str, task: str) -> Json:
        """Start a run and return its id at once.

        Args:
            agent: Which agent, as list_agents names them.
            task: What it is to do, complete in itself.
        """
        return {"run_id": await self._control.start(agent, task)}

    async def send_message(self, run_id: str, text: str) -> str:
        """Say something to a run that is under way; its model reads it at its next iteration.

        Args:
            run_id: The run.
            text: What to say.
        """
        await self._control.send(run_id, text)
        return "said"

    async def stop_run(self, run_id: str) -> str:
        """End a run at its next boundary. It can be resumed.

        Args:
            run_id: The run.
        """
        await self._control.tell(run_id, "stop")
        return "it ends at its next boundary"

    async def resume_run(self, run_id: str) -> str:
        """Let a run go on that was paused, stopped or failed, or that an earlier process began.

        Args:
            run_id: The run.
        """
        await self._control.resume(run_id)
        return "it goes on"

    async def _told(self, run_id: str) -> Json:
        detail = await self._control.read_run(run_id)
        result = {"result": detail.result} if detail.run.state in FINAL_STATES else {}
        return {**_brief(detail.run), **result}


def _asking(control: Control, agent: str) -> Callable[[str, ToolContext], Awaitable[str]]:
    """A function that starts a run of an agent and waits for its answer."""

    async def ask(task: str, context: ToolContext) -> str:
        """Args:
        task: What it is to do, complete in itself.
        """
        run_id = await control.start(agent, task)
        context.progress(f"run {run_id}")
        run = control.find(run_id)
        async with anyio.create_task_group() as tasks:
            if run is not None:
                tasks.start_soon(_follow, run, context)
            with suppress(RepertoryError):  # the read below raises them again, outside of a group
                await control.wait_ended(run_id, math.inf)
            tasks.cancel_scope.cancel()
        ended = await control.wait_ended(run_id, 0)
        if ended.state != "done":
            raise ToolFailed(f"run {run_id} of {agent} is {ended.state}: {ended.error or 'it has no answer'}")
        return ended.result or ""

    return ask


async def _follow(run: Run[Any], context: ToolContext) -> None:
    """Report to the caller what the run does."""
    async for event in run.events(tree=True):
        if isinstance(event, ToolStarted):
            context.progress(f"{event.agent} calls {event.tool}")
        elif isinstance(event, ModelAnswered) and event.text:
            context.progress(f"{event.agent}: {event.text[:200]}")


def _brief(view: RunView) -> Json:
    return {key: value for key, value in msgspec.to_builtins(view).items() if value not in (None, "", [])}
