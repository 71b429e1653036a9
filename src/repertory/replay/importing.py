"""Writes a conversation that was held elsewhere into a journal, as a run that can be asked again.

As in a fork, only the record is written: no calls, of models or of tools, so that nothing counts as spent here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from repertory._choices import check_fields, check_number
from repertory.agents import Agent
from repertory.agents.agent import check_agent
from repertory.agents.tasks import check_run_id, read_task, show_task
from repertory.errors import RecordingError, RecordRefused, RunExists
from repertory.llm.messages import Block, Text, ToolResult, text_of, tool_uses
from repertory.record import Draft, Ledger, Record
from repertory.record.memory_records import ScopeOpened
from repertory.record.records import RunStarted, RunStateChanged
from repertory.record.rows import decode_json, encode_json
from repertory.replay.formats import read_document
from repertory.replay.recording import NO_RESULT, RecordedRun
from repertory.runs.events import RunSpawned, StateChanged, to_record
from repertory.runs.payloads import instructions_of, new_payload
from repertory.supervisor import Supervisor
from repertory.supervisor.quotas import check_client


async def import_run(
    supervisor: Supervisor,
    conversation: Sequence[Mapping[str, Any]] | Mapping[str, Any],
    *,
    agent: Agent[Any],
    run_id: str,
    agent_ref: str = "",
    payload: Any = None,
    client: str = "",
    at: float | None = None,
) -> None:
    """Record a conversation that was held elsewhere as a run, which ``supervisor.resume`` then finds.

    If the model had the last word, the run is done, and ``Run.ask`` goes on with it. Otherwise it is stopped, and
    ``resume`` lets the model answer. Nothing is sent and no tool is called. It is all or nothing, and safe to repeat.

    Args:
        supervisor: Where the run is to live.
        conversation: Messages of the Messages API or of OpenAI's chat API, as decoded from JSON: a list of them, or a
            request's body. Its system text and its tools are ignored: the agent has its own.
        agent: Who goes on with it.
        run_id: The run's id, as of ``Supervisor.spawn``.
        agent_ref: Where the agent is defined, as of ``Supervisor.spawn``.
        payload: The first value of its payload; None for the defaults of its type.
        client: For whom the run is, as of ``Supervisor.spawn``.
        at: When it was held, in seconds since 1970, for lists and the removal of old runs; None for now.

    Raises:
        RecordingError: It is no conversation, or no model has answered in it.
        RunExists: There is another run with this id, or there was one that has been removed.
        ConfigurationError: The id or another argument is malformed, or the first words do not fit the agent's
            ``input``.
        PayloadInvalid: The payload does not fit its type, or the agent declares none.
    """
    check_agent(agent)
    check_client(client)
    try:
        written = encode_json(conversation)
        document = decode_json(written)
    except (TypeError, ValueError, RecursionError) as error:
        raise RecordingError(f"the conversation is not JSON: {error}") from None
    recorded = read_document(document, run_id=check_run_id(run_id), file="", where="the conversation")
    if recorded is None:
        raise RecordingError("no model has answered in the conversation; spawn a run with its words as the task")
    journal = supervisor.journal
    check_number("at", at, int | float, least=0, none=True)
    at = time.time() if at is None else float(at)
    started = RunStarted(
        run_id=run_id,
        agent=agent.name,
        task=read_task(agent, recorded.task),
        at=at,
        model=recorded.model,
        agent_digest=agent.digest,
        agent_ref=agent_ref,
        scope_id=f"scope-{run_id}",
        request=f"import-{blake2b(written.encode(), digest_size=12).hexdigest()}",
        client=client,
    )
    check_fields("import_run", started)
    state, first = new_payload(agent, payload, started=started, redact=journal.redact)
    instructions_of(agent, state)
    if await journal.was_removed(run_id):
        raise RunExists(f"run {run_id} was there and has been removed; give the new run another id")
    row, refused = await journal.run_or_none(run_id), None
    if row is None:
        ledger, task = Ledger(journal, run_id, clock=lambda: started.at), show_task(agent, started.task)
        try:
            bounds = [journal.redact(each) for each in _bounds(started, recorded)]
            await ledger.append(*_drafts(task, recorded), also=[*bounds, *first])
            return
        except RecordRefused as error:  # somebody else may have begun it meanwhile
            row, refused = await journal.run_or_none(run_id), error
            if row is None:
                raise
    if (row.started.agent, row.started.request) != (agent.name, started.request):
        raise RunExists(f"run {run_id} is there already, and is no such import; give this one another id") from refused


def _bounds(started: RunStarted, recorded: RecordedRun) -> list[Record]:
    """The records of the run's beginning and end."""
    run_id, at, last = started.run_id, started.at, recorded.turns[-1]
    end: dict[str, Any] = {"state": "stopped"}
    if not tool_uses(last.content) and not last.said:
        end = {"state": "done", "result": text_of(last.content)}
    of_end: dict[str, Any] = {"run_id": run_id, "at": at, "iteration": len(recorded.turns), **end}
    spawned = RunSpawned(run_id=run_id, agent=started.agent, iteration=0, at=at, task=started.task, model=started.model)
    return [
        started,
        ScopeOpened(scope_id=started.scope_id, owner=run_id, mode="root", at=at),
        to_record(spawned),
        RunStateChanged(**of_end),
        to_record(StateChanged(agent=started.agent, **of_end)),
    ]


def _drafts(task: str, recorded: RecordedRun) -> Iterator[Draft]:
    """What the record says, in the order in which a loop would have written it."""
    yield _draft("task", Text(task))
    for iteration, turn in enumerate(recorded.turns, 1):
        calls = tool_uses(turn.content)
        reason = "tool_use" if calls else "end_turn"
        yield _draft("assistant", *turn.content, role="assistant", iteration=iteration, stop_reason=reason)
        for use in calls:
            result = turn.results.get(use.id) or ToolResult(use.id, NO_RESULT, is_error=True)
            yield _draft("action-result", result, iteration=iteration, tool=use.name, tool_call_id=use.id)
        for said in turn.said:
            yield _draft("user-input", Text(said), iteration=iteration)


def _draft(kind: Any, *content: Block, role: Any = "user", **more: Any) -> Draft:
    return Draft(kind=kind, role=role, content=content, **more)
