"""What the run, its agent and its tools say together about what the model sees."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from repertory.agents.agent import Agent
from repertory.agents.live import LiveRun
from repertory.agents.teams import DELEGATE
from repertory.context import ContextPolicy, ResultPolicy
from repertory.context.compactors import COMPACTORS
from repertory.errors import ConfigurationError
from repertory.record.records import RunStarted
from repertory.summarizer import check_prompt
from repertory.tools.retrieval_guard import RETRIEVALS


def layered_policy(live: LiveRun) -> ContextPolicy | None:
    """The agent's policy, its tools' own defaults below it and the run's overrides on top; None for a plain loop.

    No text tells the model to call a retrieval tool that its agent does not have.
    """
    agent = live.agent
    if agent.context is None:
        return None
    policy = _layered(agent, agent.context, results_of(live.started))
    has = {tool.name for tool in agent.tools} >= RETRIEVALS
    return msgspec.structs.replace(policy, retrieval=policy.retrieval and has)


def results_of(started: RunStarted) -> ResultPolicy | None:
    """What the caller of a run said of its results; None for nothing."""
    return msgspec.convert(started.results, ResultPolicy) if started.results else None


def _layered(agent: Agent, policy: ContextPolicy, run: ResultPolicy | None) -> ContextPolicy:
    own = {tool.name: tool.policy for tool in agent.tools if tool.policy is not None}
    return policy.with_layers(tools=own, run=run)


def check_policies(agent: Agent, results: ResultPolicy | None) -> None:
    """See that the policies of an agent and its team can be meant as they stand, before a run of it starts.

    Args:
        agent: What is to run.
        results: What its caller says of its results.

    Raises:
        ConfigurationError: They cannot; the message names the agent and the field.
    """
    _check_results(agent, results)
    known = {tool.name for member in agent.walk() for tool in member.tools} | {DELEGATE}
    for member in agent.walk():
        if member.context is None:
            continue
        unknown = sorted(member.context.tools.keys() - known)
        if unknown:
            raise ConfigurationError(
                f"agent {member.name}: context.tools names {unknown[0]!r}, a tool that neither it nor its team has; "
                f"there are {', '.join(sorted(known))}"
            )
        policy = _layered(member, member.context, results if member is agent else None)
        merged = {tool.name: policy.said_of(tool.name) for tool in member.tools}
        _check_compactors(member, {"its tools": policy.results, **merged})
        for name, said in {"its tools": policy.results, **merged}.items():
            check_prompt(said.compact_prompt or "", f"agent {member.name}: compact_prompt for the results of {name}")
        if policy.expiration:
            _check_expiration(member, policy.results, merged)


def _check_results(agent: Agent, results: object) -> None:
    if results is None:
        return
    if not isinstance(results, ResultPolicy):
        keys = [*results] if isinstance(results, Mapping) else []
        wrong = [key for key in keys if key not in ResultPolicy.__struct_fields__]
        also = f", whose {wrong[0]!r} is no field of it" if wrong else ""
        raise ConfigurationError(f"results must be a ResultPolicy, got {results!r}{also}")
    if agent.context is None:
        raise ConfigurationError(
            f"results is {results!r}, and agent {agent.name} is a plain loop (context=None), which shows everything as "
            "it comes; give it a ContextPolicy"
        )


def _check_compactors(agent: Agent, merged: Mapping[str, ResultPolicy]) -> None:
    for name, policy in merged.items():
        if policy.compactor and policy.compactor not in COMPACTORS:
            raise ConfigurationError(
                f"agent {agent.name}: compactor for the results of {name} is {policy.compactor!r}; expected one of "
                f"{', '.join(sorted(COMPACTORS))}, or register_compactor(…) before the run"
            )


def _check_expiration(agent: Agent, shared: ResultPolicy, merged: Mapping[str, ResultPolicy]) -> None:
    """After how many turns is a question only where results expire; one for all tools may be meant for some."""
    some = any(policy.expiration_mode is not None for policy in (shared, *merged.values()))
    for name, policy in {"its tools": shared, **merged}.items():
        meant = policy.expiration_mode is not None or (some and shared.expiration_turns is not None)
        if policy.expiration_turns is not None and not meant:
            raise ConfigurationError(
                f"agent {agent.name}: expiration_turns for the results of {name} is {policy.expiration_turns}, and "
                "expiration_mode is 'none', as no layer says otherwise, so nothing would expire; expected 'compact' or "
                "'remove' with it"
            )
