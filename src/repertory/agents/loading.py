"""Finding an agent by a reference that outlives the process: ``module:name``, or the path of its file."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from repertory.agents.agent import Agent, Limits, check_agent
from repertory.agents.definitions import is_definition, load_definition
from repertory.errors import ConfigurationError, RepertoryError
from repertory.record.records import RunStarted

_DEFAULTS: Final = Limits()


def load_agent(reference: str, /, *, limits: Mapping[str, Any] | None = None, **arguments: Any) -> Agent[Any]:
    """Find an agent by a reference that another process can use too: ``module:name``, or a path.

    Args:
        reference: The module, as one would import it, a colon, and a name in it: an ``Agent``, or a function that makes
            one. Or the path of an agent file or of a folder of them, over the tools that come along.
        limits: Fields of its ``Limits`` that are to be others; None for none.
        arguments: Passed to such a function, as far as it takes them. For a path, ``root`` is the folder that its file
            tools read.

    Raises:
        ConfigurationError: The reference is malformed, nothing is there, or it is no agent; or a limit is none.
            ``DefinitionError`` where a file is wrong.
    """
    return with_limits(_load(reference, arguments), limits or {})


def agent_of(started: RunStarted, agent: Agent[Any] | None) -> Agent[Any]:
    """The definition to go on with: what was handed in, or what the record names.

    Raises:
        ConfigurationError: It names none, or there is none any more.
    """
    if agent is not None:
        check_agent(agent)
        return agent
    if not started.agent_ref:
        raise ConfigurationError(
            f"run {started.run_id} does not say where its agent {started.agent!r} is defined; hand it in: "
            "supervisor.resume(run_id, agent=…), or on the command line --agent module:name"
        )
    return load_agent(started.agent_ref, **started.options)


def definitions_of(started: RunStarted) -> list[Agent[Any]]:
    """The definitions from the one that the record names down to the run's own, which is the last.

    That is more than one for a sub-agent that was placed. Its limits are what it may take of those above it.

    Raises:
        ConfigurationError: The record names none, or there is none any more.
    """
    placed = started.placed
    if placed is None:
        return [agent_of(started, None)]
    found = [load_agent(started.agent_ref, **placed.options)]
    for name in placed.path:
        member = found[-1].member(name)
        if member is None:
            raise ConfigurationError(f"agent {found[-1].name} has no {name!r} in its team any more")
        found.append(member)
    return [*found[:-1], with_limits(found[-1], placed.limits)]


def with_limits(agent: Agent[Any], limits: Mapping[str, Any]) -> Agent[Any]:
    """An agent with some fields of its ``Limits`` replaced.

    Raises:
        ConfigurationError: There is no such limit, or it cannot be that.
    """
    return msgspec.structs.replace(agent, limits=check_limits(limits, agent.limits)) if limits else agent


def check_limits(fields: Mapping[str, Any], limits: Limits = _DEFAULTS) -> Limits:
    """Limits with some of their fields replaced; raises ``ConfigurationError`` where they cannot be."""
    known = {name: getattr(limits, name) for name in Limits.__struct_fields__}
    for name in fields:
        if name not in known:
            raise ConfigurationError(f"there is no limit {name!r:.100}; there are {', '.join(known)}")
    return Limits(**known | dict(fields))


def _load(reference: str, arguments: dict[str, Any]) -> Agent[Any]:
    if is_definition(reference):
        return load_definition(reference, **arguments)
    if not _is_reference(reference):
        raise ConfigurationError(f"expected an agent as module:name, or the path of its file, got {reference!r}")
    found = _import(reference, "agent", arguments)
    if not isinstance(found, Agent):
        raise ConfigurationError(f"{reference!r} is of the type {type(found).__name__}, not an Agent")
    return found


def load_context(reference: str) -> Any:
    """Find the application context of runs, for programs that are started with a reference to it.

    Args:
        reference: ``module:name`` of the object, or of a function or class that makes it.

    Raises:
        ConfigurationError: The reference is malformed, nothing is there, or it makes nothing.
    """
    if not _is_reference(reference):
        raise ConfigurationError(f"expected a context as module:name, got {reference!r}")
    found = _import(reference, "context", {})
    if found is None:
        raise ConfigurationError(f"context {reference!r} is None; name an object, or a function that makes one")
    return found


def _is_reference(reference: str) -> bool:
    module_name, _, name = reference.partition(":")
    return bool(module_name and name)


def _import(reference: str, what: str, arguments: dict[str, Any]) -> Any:
    """What stands under ``module:name``, or what a function there makes.

    Raises:
        ConfigurationError: Nothing stands there, or it makes nothing.
    """
    module_name, _, name = reference.partition(":")
    words = f"module {module_name!r} cannot be imported"
    try:
        module = importlib.import_module(module_name)
        found = getattr(module, name, None)
        if not isinstance(found, Agent) and callable(found):
            words = f"{reference!r} makes no {what}"
            found = found(**_accepted(found, arguments))
    except RepertoryError:
        raise
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise ConfigurationError(
                f"no module named {error.name!r} for {what} {reference!r}; is its folder on PYTHONPATH?"
            ) from error
        raise ConfigurationError(f"module {module_name!r} needs {error.name!r}, which is not installed") from error
    except (Exception, SystemExit) as error:
        raise ConfigurationError(f"{words}: {type(error).__name__}: {error}") from error
    if not hasattr(module, name):
        agents = sorted(key for key, value in vars(module).items() if isinstance(value, Agent))
        hint = f"; it has the agents {', '.join(agents)}" if agents and what == "agent" else ""
        raise ConfigurationError(f"module {module_name!r} has no {name!r}{hint}")
    return found


def _accepted(function: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return arguments
    return {name: value for name, value in arguments.items() if name in parameters}


def lasting_reference(reference: str) -> str:
    """A reference to an agent that is as good in another folder."""
    return os.path.abspath(reference) if is_definition(reference) else reference
