"""Merges what the run, its agent and its tools say about what the model sees; and what the model is told of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import msgspec

from repertory._choices import show
from repertory.agents.agent import Agent
from repertory.agents.delegation import TEAM_TOOLS
from repertory.context import ContextPolicy
from repertory.errors import ConfigurationError
from repertory.record.records import RunStarted
from repertory.runs.live import LiveRun
from repertory.runs.payloads import instructions_of
from repertory.shortening import ResultPolicy
from repertory.shortening.compactors import COMPACTORS
from repertory.summarizer import check_prompt
from repertory.tools import Tool, context_tools
from repertory.tools.retrieval_guard import RETRIEVALS

_GUIDANCE = (
    "Older stretches of this conversation may stand as results of `context_trail`: a log made by the runtime, of your "
    "own words, your calls and whole lines of their results; it cannot be called. A result that was shortened or cited "
    "can be fetched whole, by lines or by a search, with `context_retrieve` and `retrieve_content`. Do so sparingly: "
    "only where you need a detail that is not in view."
)
_STRICT_GUIDANCE = (  # in the words of the users' documents
    "Large content may come as a content citation: an excerpt, metadata and a citation id. Older results may be "
    "compacted to save tokens: key information is preserved, details are omitted. Retrieve full content sparingly, "
    "with `retrieve_content` and the citation id, or `context_retrieve` for a compacted message: only when the excerpt "
    "does not contain what you need, when you need exact data points, or when you compare sources in detail. Search "
    "terms bring the relevant sections instead of the whole."
)


def tools_of(agent: Agent[Any], opened: tuple[Tool, ...] = ()) -> tuple[Tool, ...]:
    """Return the tools that an agent may call besides its team, including its opened tool sets, without disabled ones.

    Strict rhythm adds the retrieval tools, as the requirements demand.
    """
    strict = agent.context is not None and agent.context.rhythm == "strict" and agent.context.retrieval
    names = {tool.name for tool in (*agent.own_tools, *opened)}
    added = [tool for tool in _retrieval_tools() if tool.name not in names] if strict else []
    return enabled(agent, (*agent.own_tools, *opened, *added))


@cache  # they can serve any number of runs, and making them takes milliseconds
def _retrieval_tools() -> tuple[Tool, ...]:
    return tuple(context_tools())


def enabled(agent: Agent[Any], tools: Iterable[Tool]) -> tuple[Tool, ...]:
    """Return the tools that the agent does not disable."""
    return tuple(tool for tool in tools if tool.name not in agent.disabled_tools)


def layered_policy(live: LiveRun) -> ContextPolicy | None:
    """Return the agent's policy, with its tools' own defaults below and the run's overrides on top; None for a plain
    loop.

    ``retrieval`` is off if the agent does not have the retrieval tools, so that no text names them.
    """
    agent = live.agent
    if agent.context is None:
        return None
    tools = tools_of(agent, live.opened_tools)
    policy = _merge_layers(tools, agent.context, results_of(live.started))
    can_retrieve = {tool.name for tool in tools} >= RETRIEVALS
    return msgspec.structs.replace(policy, retrieval=policy.retrieval and can_retrieve)


def system_text(live: LiveRun, policy: ContextPolicy | None, result: str = "") -> str:
    """Join the agent's instructions, how to work with shortened context (if it has the tools for that), the guidance of
    its tools, and ``result``.

    The text is the same for the whole run, which keeps the prompt cache valid.
    """
    parts = [instructions_of(live.agent, live.payload)]
    if policy is not None and policy.retrieval:
        parts.append(_STRICT_GUIDANCE if policy.rhythm == "strict" else _GUIDANCE)
    parts += dict.fromkeys(tool.guidance for tool in tools_of(live.agent, live.opened_tools))
    return "\n\n".join(text for text in (*parts, result) if text.strip())


def results_of(started: RunStarted) -> ResultPolicy | None:
    """Return the result policy that the caller of a run set; None if there is none."""
    return msgspec.convert(started.results, ResultPolicy) if started.results else None


def _merge_layers(tools: Iterable[Tool], policy: ContextPolicy, run: ResultPolicy | None) -> ContextPolicy:
    own = {tool.name: tool.policy for tool in tools if tool.policy is not None}
    return policy.with_layers(tools=own, run=run)


def check_policies(agent: Agent[Any], results: ResultPolicy | None) -> None:
    """Check the policies of an agent and its team before a run of it starts.

    Args:
        agent: The agent to run.
        results: The caller's policy for its results.

    Raises:
        ConfigurationError: A policy makes no sense; the message names the agent and the field.
    """
    _check_results(agent, results)
    known = {tool.name for member in agent.walk() for tool in member.own_tools} | TEAM_TOOLS
    all_known = not any(member.tool_sets for member in agent.walk())
    for member in agent.walk():
        _check_disabled(member)
        if member.context is None:
            continue
        unknown = sorted(member.context.tools.keys() - known)
        if unknown and all_known:
            raise ConfigurationError(
                f"agent {member.name}: context.tools names {unknown[0]!r}, a tool that neither it nor its team has; "
                f"there are {', '.join(sorted(known))}"
            )
        policy = _merge_layers(tools_of(member), member.context, results if member is agent else None)
        merged = {
            "its tools": policy.results,
            **{tool.name: policy.result_policy(tool.name) for tool in member.own_tools},
        }
        some_expire = any(wanted.expiration_mode is not None for wanted in merged.values())
        for name, wanted in merged.items():
            subject = f"for the results of {name}"
            if wanted.compactor and wanted.compactor not in COMPACTORS:
                raise ConfigurationError(
                    f"agent {member.name}: compactor {subject} is {show(wanted.compactor)}; expected one of "
                    f"{', '.join(sorted(COMPACTORS))}, or register_compactor(…) before the run"
                )
            check_prompt(wanted.compact_prompt or "", f"agent {member.name}: compact_prompt {subject}")
            # A policy for all tools may be meant for those of them that expire.
            meant = wanted.expiration_mode or (some_expire and policy.results.expiration_turns is not None)
            if policy.expiration and wanted.expiration_turns is not None and not meant:
                raise ConfigurationError(
                    f"agent {member.name}: expiration_turns {subject} is {wanted.expiration_turns}, and "
                    "expiration_mode is 'none', as no layer says otherwise, so nothing would expire; expected "
                    "'compact' or 'remove'"
                )


def _check_disabled(agent: Agent[Any]) -> None:
    if agent.tool_sets:
        return  # their tools are only known once they are open
    known = {tool.name for tool in agent.own_tools} | RETRIEVALS | (TEAM_TOOLS if agent.team else set())
    unknown = [name for name in agent.disabled_tools if name not in known]
    if unknown:
        raise ConfigurationError(
            f"agent {agent.name}: disabled_tools names {unknown[0]!r}, a tool that it does not have; there are "
            f"{', '.join(sorted(known))}"
        )


def _check_results(agent: Agent[Any], results: object) -> None:
    if results is None:
        return
    if not isinstance(results, ResultPolicy):
        keys = [*results] if isinstance(results, Mapping) else []
        wrong = [key for key in keys if key not in ResultPolicy.__struct_fields__]
        also = f", whose {show(wrong[0])} is no field of it" if wrong else ""
        raise ConfigurationError(f"results must be a ResultPolicy, got {show(results)}{also}")
    if agent.context is None:
        raise ConfigurationError(
            f"results is {show(results)}, and agent {agent.name} is a plain loop (context=None), which shows "
            "everything as it comes; give it a ContextPolicy"
        )
