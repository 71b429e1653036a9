"""Teams: the tool by which an agent hands a part of its work to a member."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeAlias

from repertory.agents.agent import Agent
from repertory.agents.live import LiveRun
from repertory.errors import LimitExceeded, ToolFailed
from repertory.tools import Tool, ToolContext, ToolOutput, tool

DELEGATE = "delegate"

_DESCRIPTION = """\
Hand a part of your work to a member of your team and get its report. It sees nothing of your conversation: say
in the task all that it needs to know, what exactly to bring back, and what to leave out. Call this several times
in one turn to have parts worked on side by side.

Your team:
"""


class Unfinished(BaseException):
    """A delegation whose run goes on when the tree is resumed: the supervisor closes, or the whole tree was stopped.

    The call stays without an outcome until then. No ``Exception``, so that no tool machinery turns it into a result.
    """


SpawnBelow: TypeAlias = Callable[[Agent[Any], str, ToolContext], Awaitable[LiveRun]]
"""Starts the run of a delegation, or finds the one that the same call began; raises ``LimitExceeded``."""


def delegate_tool(live: LiveRun, spawn: SpawnBelow) -> Tool:
    """Make the ``delegate`` tool of one run, its team's names in the schema.

    The sub-agent's run has an id that follows from the call, so a delegation that is made again after a crash
    finds the run it began and waits for that one.
    """
    team = {member.name: member for member in live.agent.team}

    async def delegate(agent: str, task: str, context: ToolContext) -> ToolOutput:
        """Args:
        agent: Who is to do it.
        task: What to do, complete in itself.
        """
        try:
            child = await spawn(team[agent], task, context)
        except LimitExceeded as error:
            raise ToolFailed(f"{agent} was not started: {error}") from error
        live.waiting += 1
        try:
            await child.ended.wait()
        finally:
            live.waiting -= 1
        end = child.end
        if end is not None and end.state == "done":
            facts = {"run": child.run_id, "agent": agent, "iterations": child.iteration}
            form = "markdown" if child.agent.output_type is None else "json"
            return ToolOutput(end.result or "", source_type="agent", format=form, facts=facts)
        if end is not None and end.state == "failed":
            raise ToolFailed(f"{agent} failed after {child.iteration} iterations: {end.error}")
        if end is not None and not live.root.stop_asked:
            raise ToolFailed(f"{agent} was stopped after {child.iteration} iterations, before it had an answer")
        raise Unfinished

    delegate.__annotations__["agent"] = Literal[tuple(team)]
    roster = "".join(f"- {member.name}: {member.summary}\n" for member in team.values())
    return tool(
        delegate,
        name=DELEGATE,
        description=_DESCRIPTION + roster,
        effect="idempotent",
        deadline=None,
        output_cap=None,
    )
