"""Loading an agent by a reference that outlives the process: ``module:name``, or the path of its file."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from repertory._choices import check_type
from repertory.agents.agent import Agent, Limits, check_agent
from repertory.agents.definitions import is_definition, load_definition
from repertory.errors import ConfigurationError, RepertoryError
from repertory.record.records import RunStarted

_DEFAULTS: Final = Limits()


def load_agent(reference: str, /, *, limits: Mapping[str, Any] | None = None, **arguments: Any) -> Agent[Any]:
    """Load an agent by a reference that another process can use too: ``module:name``, or a path.

    Args:
        reference: An importable module, a colon, and a name in it that is an ``Agent`` or a function that makes one. Or
            the path of an agent file, or of a folder of them; these agents may use the built-in tools.
        limits: Fields of its ``Limits`` to replace; None for none.
        arguments: Passed to such a function, except those that it does not take. For a path, ``root`` is the folder
            that the agent's file tools read.

    Raises:
        ConfigurationError: The reference is malformed, there is nothing there, or it is not an agent; or a limit does
            not exist or has a bad value. ``DefinitionError`` if a file is wrong.
    """
    check_type("load_agent: reference", reference, str, "module:name, or the path of an agent file or of a folder")
    return with_limits(_load(reference, arguments), limits or {})


def agent_of(started: RunStarted, agent: Agent[Any] | None) -> Agent[Any]:
    """The definition to continue with: the one handed in, or the one that the record names.

    Raises:
        ConfigurationError: The record names none, or the one it names no longer exists.
    """
    if agent is not None:
        check_agent(agent)
        return agent
    if not started.agent_ref:
        raise ConfigurationError(
            f"run {started.run_id} does not say where its agent {started.agent!r} is defined; hand it in as "
            "agent=…, or on the command line as --agent module:name"
        )
    return load_agent(started.agent_ref, **started.options)


def definitions_of(started: RunStarted) -> list[Agent[Any]]:
    """The definitions from the one that the record names down to the run's own, which is the last.

    There is more than one only for a sub-agent that was placed. Its limits are its share of the limits above it.

    Raises:
        ConfigurationError: The record names none, or the one it names no longer exists.
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
        ConfigurationError: There is no such limit, or it cannot have that value.
    """
    return msgspec.structs.replace(agent, limits=check_limits(limits, agent.limits)) if limits else agent


def check_limits(fields: Mapping[str, Any], limits: Limits = _DEFAULTS) -> Limits:
    """Limits with some fields replaced; raises ``ConfigurationError`` for an unknown field or a bad value."""
    known = {name: getattr(limits, name) for name in Limits.__struct_fields__}
    for name in fields:
        if name not in known:
            raise ConfigurationError(f"there is no limit {name!r:.100}; there are {', '.join(known)}")
    return Limits(**known | dict(fields))


def _load(reference: str, arguments: dict[str, Any]) -> Agent[Any]:
    if is_definition(reference):
        return load_definition(reference, **arguments)
    if not is_reference(reference):
        raise ConfigurationError(
            f"expected an agent as module:name, or the path of its .md or .toml file, got {reference!r}"
        )
    found = import_object(reference, "agent", arguments)
    if not isinstance(found, Agent):
        raise ConfigurationError(f"{reference!r} is of the type {type(found).__name__}, not an Agent")
    return found


def load_object(reference: str, what: str) -> Any:
    """Load an object of the application, for programs that are started with a reference to it.

    Args:
        reference: ``module:name`` of the object, or of a function or class that makes it.
        what: What it is, for errors: ``context`` or ``telemetry``.

    Raises:
        ConfigurationError: The reference is malformed, there is nothing there, or the function returns None.
    """
    if not is_reference(reference):
        raise ConfigurationError(f"expected a {what} as module:name, got {reference!r}")
    found = import_object(reference, what, {})
    if found is None:
        raise ConfigurationError(f"{what} {reference!r} is None; name an object, or a function that makes one")
    return found


def is_reference(reference: str) -> bool:
    """Whether a reference has the form ``module:name``."""
    module_name, _, name = reference.partition(":")
    return bool(module_name and name)


def import_object(reference: str, what: str, arguments: dict[str, Any]) -> Any:
    """The object at ``module:name``, or what a function there returns.

    Raises:
        ConfigurationError: The module cannot be imported, there is nothing at that name, or the function fails.
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
    """A reference that still works from another working directory: a path is made absolute."""
    return os.path.abspath(reference) if is_definition(reference) else reference
