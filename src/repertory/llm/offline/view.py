"""What the offline model sees: the task, what was called and what came back, and its own last progress note.

A context may have been shortened: old results can be stubs, old turns can be covered by a summary. So nothing here
counts turns. What must not be forgotten stands in the progress note that ends every turn of the model.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import quote, unquote

import msgspec

from repertory.llm.messages import Json, Message, Text, ToolResult, ToolUse, text_of
from repertory.llm.model import ModelRequest

_NOTE = re.compile(r"\[progress ([^\]\n]*)\]")
_HIT = re.compile(r"^\s*(?P<path>[^\s:|>][^:\n\t]*?):(?P<line>\d+)(?:[:|]|\s*-)\s?(?P<text>.*)$")
_NUMBERED = re.compile(r"^\s*(?P<line>\d+)(?:\t|\s*[|│→]\s?)(?P<text>.*)$")


class Hit(msgspec.Struct, frozen=True):
    """A line of a file, as a search reports it."""

    path: str
    line: int
    text: str


class Call(msgspec.Struct, frozen=True):
    """A tool call that is still in view, with what came back; "" where nothing has."""

    name: str
    input: Json
    result: str
    failed: bool


class Progress(msgspec.Struct, frozen=True):
    """What the model must remember from turn to turn. It is written into the visible text and read back from there.

    Attributes:
        step: Turns taken.
        phase: What the next turn is about.
        focus: The folder or file to which searches are confined; "" for everywhere.
        searched: What was searched for.
        viewed: What was read, as ``path:first-last``.
        queue: What to read next, as ``path:line``, the most promising first.
        terms: What to search for next.
        findings: How many findings were noted.
    """

    step: int = 0
    phase: str = "search"
    focus: str = ""
    searched: tuple[str, ...] = ()
    viewed: tuple[str, ...] = ()
    queue: tuple[str, ...] = ()
    terms: tuple[str, ...] = ()
    findings: int = 0

    def note(self, limit: int) -> str:
        """Write it as one line, such as ``[progress step=5/12 searched=lock,queue findings=3]``."""
        parts = [f"step={self.step}/{limit}", f"phase={self.phase}"]
        if self.focus:
            parts.append(f"focus={_quoted(self.focus)}")
        for name in ("searched", "viewed", "queue", "terms"):
            values = getattr(self, name)
            if values:
                parts.append(f"{name}={','.join(_quoted(value) for value in values)}")
        parts.append(f"findings={self.findings}")
        return f"[progress {' '.join(parts)}]"


def _quoted(value: str) -> str:
    return quote(value, safe="/:.-_()|\\+*?^$")


def read_progress(text: str) -> Progress | None:
    """The newest progress note in a text; None where there is none."""
    notes = _NOTE.findall(text)
    if not notes:
        return None
    found = dict(part.split("=", 1) for part in notes[-1].split() if "=" in part)

    def values(name: str) -> tuple[str, ...]:
        return tuple(unquote(value) for value in found.get(name, "").split(",") if value)

    def number(name: str) -> int:
        digits = re.match(r"\d+", found.get(name, ""))
        return int(digits.group()) if digits else 0

    return Progress(
        step=number("step"),
        phase=found.get("phase", "search"),
        focus=unquote(found.get("focus", "")),
        searched=values("searched"),
        viewed=values("viewed"),
        queue=values("queue"),
        terms=values("terms"),
        findings=number("findings"),
    )


class View(msgspec.Struct, frozen=True):
    """One request, read.

    Attributes:
        task: What the user asked last.
        progress: From the newest note since then; None when the work has not begun.
        calls: The tool calls in view since then, in order.
        last: Those of the newest turn.
        notes: What the model itself said since then, in order.
        others: Other text from the user's side since then: summaries, reminders.
    """

    task: str
    progress: Progress | None
    calls: tuple[Call, ...]
    last: tuple[Call, ...]
    notes: tuple[str, ...]
    others: tuple[str, ...]

    def called(self, name: str) -> tuple[Call, ...]:
        """The calls of one tool in view."""
        return tuple(call for call in self.calls if call.name == name)


def read(request: ModelRequest) -> View:
    """Read a request."""
    segment = _since_last_answer(request.messages)
    said_by_user = [
        block.text
        for message in segment
        if message.role == "user"
        for block in message.content
        if isinstance(block, Text)
    ]
    task = said_by_user[0] if said_by_user else ""
    results = {
        block.tool_use_id: block
        for message in segment
        if message.role == "user"
        for block in message.content
        if isinstance(block, ToolResult)
    }
    notes: list[str] = []
    calls: list[Call] = []
    last: list[Call] = []
    progress: Progress | None = None
    for message in segment:
        if message.role != "assistant":
            continue
        last = []
        for block in message.content:
            if isinstance(block, Text):
                progress = read_progress(block.text) or progress
                notes.append(_NOTE.sub("", block.text).strip())
            elif isinstance(block, ToolUse):
                result = results.get(block.id)
                last.append(
                    Call(
                        block.name,
                        block.input,
                        text_of(result) if result else "",
                        bool(result and result.is_error),
                    )
                )
        calls.extend(last)
    return View(task, progress, tuple(calls), tuple(last), tuple(notes), tuple(said_by_user[1:]))


def _since_last_answer(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages since the last turn in which the assistant called nothing: its answer to an earlier question."""
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        answered = message.role == "assistant" and not any(isinstance(block, ToolUse) for block in message.content)
        if answered and index + 1 < len(messages):
            return messages[index + 1 :]
    return messages


def hits_in(text: str) -> list[Hit]:
    """The lines of a search result that name a place, ``path:line: text``."""
    found = []
    for row in text.splitlines():
        match = _HIT.match(row)
        if match:
            found.append(Hit(match["path"].strip(), int(match["line"]), match["text"]))
    return found


def numbered_lines(text: str) -> list[tuple[int, str]]:
    """The numbered lines of a file view, ``  123<tab>text``."""
    found = []
    for row in text.splitlines():
        match = _NUMBERED.match(row)
        if match:
            found.append((int(match["line"]), match["text"]))
    return found
