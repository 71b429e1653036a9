"""Session files of Claude Code: one event a line, a tree of messages, an answer's blocks spread over several lines.

A session's lines are a tree by ``parentUuid``: what the user took back stays in the file as a dead branch. The
conversation is the way from the newest message up to the root, with what hangs on it by other names: the other
lines of an answer (they share ``message.id``) and the results of its parallel calls. Sub-agents (``isSidechain``)
have files of their own or share the session's; each is a run of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from repertory.llm.messages import Json
from repertory.replay.formats import read_message, read_time, read_usage, refuse
from repertory.replay.recording import RecordedRun, Said, record_run

_SYNTHETIC = "<synthetic>"


def is_session(event: Any) -> bool:
    """Whether a line of a file is an event of a session."""
    return isinstance(event, dict) and isinstance(event.get("type"), str) and "messages" not in event


def read_session(events: Iterable[tuple[str, Json]], *, file: str, name: str) -> Iterator[RecordedRun]:
    """Read the runs of a session file: the conversation first, then its sub-agents'.

    Args:
        events: Each line, after where it stands.
        file: Where it was read.
        name: What to call a run that has no session id.

    Raises:
        RecordingError: A message is not one.
    """
    lines = list(events)
    known = {event["uuid"]: event for _, event in lines if isinstance(event.get("uuid"), str)}
    runs: dict[str, list[tuple[str, Json]]] = {}
    for where, event in lines:
        if event["type"] in ("user", "assistant") and "message" in event:
            _check(where, event)
            agent = str(event.get("agentId") or _root(event, known)) if event.get("isSidechain") else ""
            runs.setdefault(agent, []).append((where, event))
    for agent in sorted(runs, key=bool):
        branch = list(_together(_newest_branch(runs[agent], known)))
        session = str(branch[0][1].get("sessionId") or name)
        run = record_run(
            _said(branch), run_id=f"{session}/{agent}" if agent else session, file=file, model=_model(branch)
        )
        if run is not None:
            yield run


def _check(where: str, event: Json) -> None:
    if not isinstance(event["message"], dict):
        refuse(where, "$.message", "a message with a role", event["message"])


def _model(branch: Iterable[tuple[str, Json]]) -> str:
    models = (event["message"].get("model") for _, event in branch)
    return next((model for model in models if isinstance(model, str) and model != _SYNTHETIC), "")


def _root(event: Json, known: Mapping[str, Json]) -> str:
    *_, root = _ancestors(event, known)
    return str(root.get("uuid"))


def _ancestors(event: Json, known: Mapping[str, Json]) -> Iterator[Json]:
    """The event and those above it."""
    seen: set[int] = set()
    above: Json | None = event
    while above is not None and id(above) not in seen:
        seen.add(id(above))
        yield above
        above = known.get(str(above.get("parentUuid") or above.get("logicalParentUuid")))


def _newest_branch(events: Sequence[tuple[str, Json]], known: Mapping[str, Json]) -> list[tuple[str, Json]]:
    """The lines of the conversation as it stood last."""
    last = events[-1][1]
    alive = {id(event) for event in _ancestors(last, known)} if last.get("uuid") in known else set[int]()
    answers = {event["message"].get("id") for _, event in events if id(event) in alive} - {None}
    calls: set[object] = set()
    kept: list[tuple[str, Json]] = []
    for where, event in events:
        message = event["message"]
        blocks = [block for block in message.get("content") or () if isinstance(block, dict)]
        belongs = (
            not alive
            or id(event) in alive
            or message.get("id") in answers
            or any(block.get("tool_use_id") in calls for block in blocks if block.get("type") == "tool_result")
        )
        # What the program said in the model's place, or showed to its user alone, no model has seen.
        if belongs and message.get("model") != _SYNTHETIC and not event.get("isVisibleInTranscriptOnly"):
            kept.append((where, event))
            calls.update(block.get("id") for block in blocks if block.get("type") == "tool_use")
    return kept or [events[-1]]


def _together(events: Sequence[tuple[str, Json]]) -> Iterator[tuple[str, Json]]:
    """The lines of one answer next to each other: results of its first calls may stand between them."""
    answers: dict[object, list[tuple[str, Json]]] = {}
    for where, event in events:
        answers.setdefault(_answer(event), []).append((where, event))
    for _, event in events:
        answer = _answer(event)
        if answers[answer][0][1] is event:
            yield from answers[answer]


def _answer(event: Json) -> object:
    """What the lines of one answer have in common; an event by itself where it belongs to none."""
    return (event["type"] == "assistant" and event["message"].get("id")) or id(event)


def _said(branch: Sequence[tuple[str, Json]]) -> Iterator[Said]:
    for index, (where, event) in enumerate(branch):
        raw = event["message"]
        # Every line of an answer repeats its usage, and the last one's is complete.
        ends = index + 1 == len(branch) or _answer(branch[index + 1][1]) != _answer(event)
        usage = read_usage(raw.get("usage")) if ends else None
        yield Said(read_message(raw, where, "$.message"), usage, read_time(event.get("timestamp")))
