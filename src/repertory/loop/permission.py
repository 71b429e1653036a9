"""Permission for tool calls: what the rules say, and what a person decides if the rules want one to be asked."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import msgspec

from repertory._frozen import Frozen
from repertory._json_text import canonical_json
from repertory.agents.agent import Agent
from repertory.agents.delegation import TEAM_TOOLS
from repertory.errors import ConfigurationError, RunError, ToolRetry
from repertory.llm.messages import Json, ToolUse
from repertory.loop.outside import wait_for_decision
from repertory.runs.events import ApprovalDecided, ApprovalRequested
from repertory.runs.live import LiveRun
from repertory.runs.log import log
from repertory.tools import Approvals, ProposedCall, Tool
from repertory.tools.approvals import STRICTEST_FIRST, Verdict, strictest
from repertory.tools.arguments import proposed_arguments
from repertory.tools.repeats import arguments_digest


class Refused(Exception):
    """The call is not made; the model is told the text."""


class Permitted(Frozen, frozen=True):
    """A call that may be made.

    Attributes:
        arguments: The arguments with which it is made.
        note: What the model is told after the result; "" for nothing.
    """

    arguments: Json
    note: str = ""


def needs_permission(live: LiveRun, tool: Tool) -> bool:
    """Whether any rule may apply to a tool's calls."""
    return tool.approval != "never" or bool(live.approvals)


async def ask_permission(live: LiveRun, tool: Tool, use: ToolUse) -> Permitted:
    """Find out whether a call may be made; if a person must decide, wait for the decision.

    A request for approval and its decision remain valid even if rules change later; only a ``deny`` rule still applies.

    Raises:
        Refused: The call may not be made.
        Unfinished: The run continues later, see ``wait_for_decision``.
        EndedWaiting: The run was stopped alone, see ``wait_for_decision``.
    """
    call_id, waits = use.id, live.waits
    decided, request = waits.decided.get(call_id), waits.requested.get(call_id)
    arguments = use.input if decided is None or decided.arguments is None else decided.arguments
    try:
        proposed = proposed_arguments(tool, arguments)
    except ToolRetry:
        # Making the call tells the model what is wrong; the tool's body is never reached.
        return Permitted(arguments, "" if decided is None else edit_note(decided))
    verdict, who = _apply_rules(live, tool, proposed)
    if verdict == "deny":
        raise Refused(f"{tool.name} was not run: {who} forbids calls like this one.")
    if request is None and decided is None and verdict != "ask" and not _tool_asks(live, tool, use, proposed):
        return Permitted(arguments)
    digest = arguments_digest(tool.name, use.input)
    if request is None:
        timeouts = [layer.approval_timeout for _, layer in live.approvals if layer.approval_timeout is not None]
        request = live.event(
            ApprovalRequested,
            call_id=call_id,
            tool=tool.name,
            arguments=use.input,
            digest=digest,
            reason=f"{who if verdict == 'ask' else f'tool {tool.name}'} wants this call to be allowed by a person",
        )
        if timeouts:
            request = msgspec.structs.replace(request, expires_at=request.at + min(timeouts))
    if decided is None:
        waits.permit_edit[call_id] = partial(_check_edit, live, tool)
        live.wake()
        decided = await wait_for_decision(live, request)
    if not decided.allowed:
        by = f" by {decided.by}" if decided.by else ""
        raise Refused(f"{tool.name} was not run; it was denied{by}: {decided.reason}")
    if decided.arguments is None:
        arguments = use.input
        if decided.digest != digest:
            raise Refused(f"{tool.name} was not run: it was allowed with other arguments than these")
        return Permitted(arguments)
    return Permitted(decided.arguments, edit_note(decided))


def edit_note(decided: ApprovalDecided) -> str:
    """What the model is told about a call that was made with changed arguments; "" if they were not changed."""
    if decided.arguments is None:
        return ""
    by, changed = decided.by or "a person", canonical_json(decided.arguments).decode()
    return f"[{by} changed the arguments of this call; it was made with {changed}]"


def check_rules(agent: Agent[Any], supervisor: Approvals | None) -> None:
    """Check that the approval rules of an agent and its team can apply to something, before a run starts.

    Raises:
        ConfigurationError: A rule names a tool or an argument that does not exist.
    """
    everywhere = [tool for member in agent.walk() for tool in member.own_tools]
    for member in agent.walk():
        if member.approvals is not None:
            below = [tool for each in member.walk() for tool in each.own_tools]
            all_known = not any(each.tool_sets for each in member.walk())
            _check(member.approvals, f"agent {member.name}", below, more=TEAM_TOOLS, all_known=all_known)
    if supervisor is not None:  # other agents may have tools that this one does not have
        _check(supervisor, "supervisor", everywhere, more=TEAM_TOOLS, all_known=False)


def _check(
    approvals: Approvals, where: str, tools: Iterable[Tool], *, more: Iterable[str] = (), all_known: bool
) -> None:
    """Check that rules can apply to something.

    Args:
        approvals: The rules.
        where: Whose rules they are.
        tools: The known tools.
        more: Names of further tools.
        all_known: Whether there are no other tools, so that a rule about another one is a mistake.

    Raises:
        ConfigurationError: A rule names a tool or an argument that does not exist.
    """
    tools, more = tuple(tools), tuple(more)
    names = sorted({*more, *(tool.name for tool in tools)})
    for verdict in STRICTEST_FIRST:
        for rule in approvals.rules(verdict):
            if all_known and not any(fnmatchcase(name, rule.tool) for name in names):
                raise ConfigurationError(
                    f"{where}: approvals.{verdict} names {rule.tool!r}, and no tool is called so; there are "
                    f"{', '.join(names) or 'none'}"
                )
            meant = [tool for tool in tools if fnmatchcase(tool.name, rule.tool)]
            known = {name for tool in meant for name in tool.input_schema.get("properties", {})}
            # In a foreign schema, arguments that it leaves open may have any name.
            is_open = any(tool.definition.arguments is None for tool in meant) or rule.tool in more
            wrong = sorted(rule.arguments.keys() - known)
            if wrong and meant and not is_open:
                raise ConfigurationError(
                    f"{where}: approvals.{verdict} names the argument {wrong[0]!r} of {rule.tool!r}, which has "
                    f"{', '.join(sorted(known)) or 'none'}"
                )


def _apply_rules(live: LiveRun, tool: Tool, proposed: Mapping[str, Any]) -> tuple[Verdict, str]:
    """What the rules say about a call, and whose rule it is."""
    layers = live.approvals
    said: list[tuple[Verdict, str]] = [(layer.judge(tool.name, tool.effect, proposed), who) for who, layer in layers]
    for name in tool.own_names:
        # A rule for another name of the tool can only make the verdict stricter. Judged as ``pure``, as ``unsafe`` was
        # considered above, where a rule may allow the name that the model uses.
        said.extend((layer.judge(name, "pure", proposed), who) for who, layer in layers)
    verdict = strictest(each for each, _ in said)
    return verdict, next((who for each, who in said if each == verdict), "")


def _tool_asks(live: LiveRun, tool: Tool, use: ToolUse, proposed: Mapping[str, Any]) -> bool:
    """Whether the tool itself requires an approval; if its own check fails, it does."""
    if not callable(tool.approval):
        return tool.approval == "always"
    call = ProposedCall(
        run_id=live.run_id,
        agent=live.agent.name,
        call_id=use.id,
        tool=tool.name,
        effect=tool.effect,
        arguments=proposed,
        context=live.context,
    )
    try:
        return bool(tool.approval(call))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - foreign code; a call that it could not judge needs an approval
        log(logging.WARNING, "approval.failed", run=live.run_id, tool=tool.name, exc_info=error)
        return True


def _check_edit(live: LiveRun, tool: Tool, arguments: Json) -> None:
    """Check that a call may be made with the arguments that a person has changed."""
    try:
        proposed = proposed_arguments(tool, arguments)
    except ToolRetry as error:
        raise ConfigurationError(f"{tool.name}: {error}") from error
    verdict, who = _apply_rules(live, tool, proposed)
    if verdict == "deny":
        raise RunError(f"{tool.name} cannot be called with these arguments: {who} forbids it")
