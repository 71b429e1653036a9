"""Reads session files of Claude Code: one event a line, a tree of messages, answers spread over several lines.

The lines of a session form a tree by ``parentUuid``: what the user took back stays in the file as a dead branch. The
conversation is the path from the newest message up to the root, plus lines that belong to it in other ways: the other
lines of an answer (they share ``message.id``) and the results of its parallel calls. Sub-agents (``isSidechain``)
have their own files or share the session's; each is a separate run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from repertory.llm.messages import Json, Message, ToolResult, ToolUse
from repertory.llm.model import Usage
from repertory.replay.formats import read_message, read_time, read_usage, refuse
from repertory.replay.recording import RecordedMessage, RecordedRun, record_run

_SYNTHETIC = "<synthetic>"


def is_session(event: Any) -> bool:
    """Whether a line of a file is an event of a session."""
    return isinstance(event, dict) and isinstance(event.get("type"), str) and "messages" not in event


class _Event(msgspec.Struct, frozen=True, eq=False):
    """A line of the file. Lines that are not messages still link messages.

    Attributes:
        raw: The whole line.
        message: Its message; an empty one if the line is not a message, or cannot be read.
        answer: What the lines of one answer have in common; "" for a line that is not part of an answer.
    """

    raw: Json
    message: Message = Message("user", ())
    answer: str = ""
    model: str = ""
    usage: Usage | None = None

    @property
    def parent_id(self) -> str:
        """The uuid of the line that it follows."""
        return str(self.raw.get("parentUuid") or self.raw.get("logicalParentUuid"))

    def belongs_after(self, kept: Sequence[_Event]) -> bool:
        """Whether the event is part of the conversation, after the others of its branch.

        Left out are what the program said in the model's place, and what it showed only to its user. A summary is only
        used if nothing is there before it: otherwise what it summarizes is there itself.
        """
        begins = bool(self.raw.get("isCompactSummary")) and not kept
        return self.model != _SYNTHETIC and (begins or not self.raw.get("isVisibleInTranscriptOnly"))


class Session:
    """The events of one file.

    Args:
        name: The name of a run that has no session id.
    """

    def __init__(self, *, file: str, name: str) -> None:
        self._file = file
        self._name = name
        self._by_id: dict[str, _Event] = {}
        self._roots: dict[str, str] = {}
        self._messages: list[_Event] = []

    def add(self, raw: Json, *, where: str) -> None:
        """Add the next line.

        Args:
            where: The file and the line, for errors.

        Raises:
            RecordingError: It is a message that cannot be read. It still links the other messages.
        """
        self._link(_Event(raw))
        if raw["type"] in ("user", "assistant") and "message" in raw:
            event = _read(raw, where)
            self._link(event)
            self._messages.append(event)

    def _link(self, event: _Event) -> None:
        if isinstance(event.raw.get("uuid"), str):
            self._by_id[event.raw["uuid"]] = event

    def runs(self) -> Iterator[RecordedRun]:
        """Read the runs: the conversation first, then its sub-agents'."""
        agents: dict[str, list[_Event]] = {}
        for event in self._messages:
            agent = str(event.raw.get("agentId") or self._root(event)) if event.raw.get("isSidechain") else ""
            agents.setdefault(agent, []).append(event)
        for agent in sorted(agents, key=bool):
            branch = list(_group_answers(self._newest_branch(agents[agent])))
            session = str(branch[0].raw.get("sessionId") or self._name)
            run = record_run(
                _recorded_messages(branch),
                run_id=f"{session}/{agent}" if agent else session,
                file=self._file,
                model=next((event.model for event in branch if event.model not in ("", _SYNTHETIC)), ""),
            )
            if run is not None:
                yield run

    def _root(self, event: _Event) -> str:
        """Return the uuid of the first line above an event, or its own; it is noted for those below."""
        root, uuid = "", event.raw.get("uuid")
        for each in self._ancestors(event):
            if root := self._roots.get(each.parent_id, ""):
                break
            root = str(each.raw.get("uuid"))
        if isinstance(uuid, str):
            self._roots[uuid] = root
        return root

    def _ancestors(self, event: _Event) -> Iterator[_Event]:
        """Yield the event and those above it."""
        seen: set[int] = set()
        current: _Event | None = event
        while current is not None and id(current) not in seen:
            seen.add(id(current))
            yield current
            current = self._by_id.get(current.parent_id)

    def _newest_branch(self, events: Sequence[_Event]) -> list[_Event]:
        """Return the lines of the newest state of the conversation."""
        last = events[-1]
        linked = isinstance(last.raw.get("uuid"), str)
        alive = {id(event) for event in self._ancestors(last)} if linked else set[int]()
        answers = {event.answer for event in events if id(event) in alive} - {""}
        calls: set[str] = set()
        kept: list[_Event] = []
        for event in events:
            results = [block.tool_use_id for block in event.message.content if isinstance(block, ToolResult)]
            belongs = not alive or id(event) in alive or event.answer in answers or not calls.isdisjoint(results)
            if belongs and event.belongs_after(kept):
                kept.append(event)
                calls.update(block.id for block in event.message.content if isinstance(block, ToolUse))
        return kept or [last]


def _read(raw: Json, where: str) -> _Event:
    inner = raw["message"]
    if not isinstance(inner, dict):
        refuse(where, "$.message", "a message with a role", inner)
    answer = inner.get("id")
    if not isinstance(answer, str | None):
        refuse(where, "$.message.id", "text", answer)
    model = inner.get("model")
    return _Event(
        raw,
        read_message(inner, where, "$.message"),
        answer or "",
        model if isinstance(model, str) else "",
        read_usage(inner.get("usage")),
    )


def _group_answers(events: Sequence[_Event]) -> Iterator[_Event]:
    """Put the lines of one answer next to each other: results of its first calls may be between them."""
    answers: dict[object, list[_Event]] = {}
    for event in events:
        answers.setdefault(_answer(event), []).append(event)
    for event in events:
        lines = answers[_answer(event)]
        if lines[0] is event:
            yield from lines


def _answer(event: _Event) -> object:
    """Return what the lines of one answer have in common; the event itself if it belongs to none."""
    return (event.raw["type"] == "assistant" and event.answer) or id(event)


def _recorded_messages(branch: Sequence[_Event]) -> Iterator[RecordedMessage]:
    for index, event in enumerate(branch):
        # Every line of an answer repeats its usage; the last one's is complete.
        ends = index + 1 == len(branch) or _answer(branch[index + 1]) != _answer(event)
        yield RecordedMessage(event.message, event.usage if ends else None, read_time(event.raw.get("timestamp")))
