"""A run's payload: how it begins, how instructions show it, and what a sub-agent's changes bring back to its lead."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from repertory._choices import show
from repertory._json_values import ValueType
from repertory.agents.agent import Agent
from repertory.errors import ConfigurationError, PayloadInvalid
from repertory.memory.documents import find, parts_of, resolve, show_path
from repertory.memory.payload import Payload, PayloadState, Staged, replay
from repertory.record.memory_records import PayloadChanged
from repertory.record.records import ContentStored, RunStarted
from repertory.record.rows import encode_json
from repertory.runs.events import PayloadConflicted
from repertory.runs.live import LiveRun

# Nothing else between braces is a template, so instructions may contain JSON and code as they are. Double braces escape
# a template.
_TEMPLATE: Final = re.compile(r"\{\{payload[\w.-]*\}\}|\{payload((?:\.[\w-]+)*)\}")


def check_payloads(agent: Agent[Any]) -> None:
    """Check the payload types, scopes and templates of an agent and its team before a run starts.

    Raises:
        ConfigurationError: A payload type is unusable, or a scope or a template names something that no payload has.
    """
    fields = _fields(agent)
    _check_template(agent, fields)
    for member in agent.team:
        own, scope = _fields(member), member.payload_scope
        if scope is None:
            if member.payload is not None:
                _check_defaults(member)
        elif not _has_payload(agent):
            raise ConfigurationError(
                f"agent {member.name}: payload_scope names parts of its lead's payload, and {agent.name} has none; "
                f"give {agent.name} a payload=…, or leave out the scope"
            )
        for parts in () if scope is None else scope.paths:
            for whose, there in ((agent, fields), (member, own)):
                if there is not None and parts[0] not in there:
                    raise ConfigurationError(
                        f"agent {member.name}: payload_scope names {'.'.join(map(str, parts))!r}, and the payload of "
                        f"{whose.name} has no {parts[0]!r}; there is {', '.join(sorted(there))}"
                    )
        check_payloads(member)


def new_payload(
    agent: Agent[Any],
    value: Any = None,
    *,
    started: RunStarted,
    lead: PayloadState | None = None,
    redact: Callable[[PayloadChanged], PayloadChanged],
) -> tuple[PayloadState | None, list[PayloadChanged]]:
    """The payload of a new run, and its first version to record; None for a run without a payload.

    Args:
        value: The value given by the caller; None for the defaults of the type.
        lead: The payload of the lead's run, of which the sub-agent's scope selects a part.
        redact: Removes from a record what must not be kept.

    Raises:
        PayloadInvalid: The value does not fit the type, or the agent has no payload.
    """
    if not _has_payload(agent):
        if value is not None:
            raise PayloadInvalid(
                f"agent {agent.name} takes no payload, got {show(value)}; name its type: Agent(payload=…)"
            )
        return None, []
    scope = None if lead is None else agent.payload_scope
    if value is None:
        value = {} if lead is None or scope is None else scope.of(lead.document)
    state, base = PayloadState(_type_of(agent), scope), 0 if lead is None else lead.version
    first = redact(state.begin(value, run_id=started.run_id, at=started.at, base=base))
    return replay(state.type, [first], scope), [first]  # which checks that it still fits


def payload_on_record(agent: Agent[Any], records: Sequence[PayloadChanged], *, below: bool) -> PayloadState | None:
    """The payload of a run that continues, as the type that its agent declares now, if it declares one.

    Raises:
        PayloadInvalid: The payload does not fit that type.
    """
    if not records:
        return None
    return replay(_type_of(agent), records, agent.payload_scope if below else None)


def bring_back(payload: Payload, run_id: str, state: PayloadState | None) -> None:
    """Stage a finished sub-agent's changes of its lead's payload, in the draft of the call that reports it.

    Changes that its run has already brought back are not repeated.
    """
    if state is not None and state.scope.write:
        payload.bring_back(state.brings_back(), base=state.base, run_id=run_id)


def instructions_of(agent: Agent[Any], state: PayloadState | None) -> str:
    """The agent's instructions, with parts of the payload filled in as of the run's start.

    The current payload would change the beginning of every request, and so invalidate the whole prompt cache.

    Raises:
        ConfigurationError: The instructions name something that the payload does not have.
    """

    def shown(found: re.Match[str]) -> str:
        if found[1] is None:
            return found[0][1:-1]
        where = f"agent {agent.name}: its instructions show {found[0]}, and"
        if state is None:
            raise ConfigurationError(f"{where} it has no payload; {{{found[0]}}} stands for the words themselves")
        try:
            value = find(state.first, resolve(state.first, found[1][1:]))
        except PayloadInvalid as error:
            raise ConfigurationError(f"{where} {error}") from error
        return value if isinstance(value, str) else encode_json(value)

    return _TEMPLATE.sub(shown, agent.instructions)


def _check_template(agent: Agent[Any], fields: frozenset[str] | None) -> None:
    for found in _TEMPLATE.finditer(agent.instructions):
        parts = parts_of(found[1][1:]) if found[1] else ()
        if found[1] is not None and (
            not _has_payload(agent) or (parts and fields is not None and parts[0] not in fields)
        ):
            there = f"its payload has {', '.join(sorted(fields))}" if fields else "it has no payload"
            raise ConfigurationError(
                f"agent {agent.name}: its instructions show {found[0]}, and {there}; {{{found[0]}}} stands for the "
                "words themselves"
            )


def _check_defaults(member: Agent[Any]) -> None:
    kind = _type_of(member)
    try:
        Payload({}, kind.kind)
    except PayloadInvalid as error:
        raise ConfigurationError(
            f"agent {member.name}: {error}; as a sub-agent it begins with the defaults of its type, or with what its "
            "payload_scope takes of its lead's"
        ) from error


def _has_payload(agent: Agent[Any]) -> bool:
    return agent.payload is not None or agent.payload_scope is not None


def _type_of(agent: Agent[Any]) -> ValueType:
    """The type of its payload; a plain mapping if it has only a scope."""
    return ValueType(dict[str, Any] if agent.payload is None else agent.payload, f"agent {agent.name}: payload")


def _fields(agent: Agent[Any]) -> frozenset[str] | None:
    return _type_of(agent).fields if _has_payload(agent) else None


def changes_of(
    live: LiveRun, staged: Sequence[Staged], *, call_id: str = "", stored: ContentStored | None = None
) -> tuple[list[PayloadChanged], list[PayloadConflicted]]:
    """The records to write for changes of a run's payload, and the events that report conflicts.

    This changes nothing yet: ``LiveRun.adopt_payload`` does, once the records are being written to the disk. Hold
    ``LiveRun.changing_payload`` from the one to the other.
    """
    if live.payload is None or not (staged or stored is not None):
        return [], []
    staged = live.shared.journal.redact(staged)  # so that it equals what is recorded
    records = live.payload.commit(staged, run_id=live.run_id, at=live.shared.clock(), call_id=call_id, stored=stored)
    return records, [
        live.event(
            PayloadConflicted,
            call_id=call_id,
            source=record.source,
            version=record.version,
            paths=tuple(show_path(conflict.change.path) for conflict in record.conflicts),
        )
        for record in records
        if record.conflicts
    ]
