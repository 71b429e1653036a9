"""How entries and content blocks read on a screen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from repertory.cli.output import clean, one_line

if TYPE_CHECKING:
    from repertory.record import Entry

_LINES = 8
_CHARACTERS = 800


def preview(text: str, *, lines: int = _LINES, characters: int = _CHARACTERS) -> str:
    """The beginning of a text, with how much is left out."""
    kept = "\n".join(text[:characters].split("\n")[:lines])
    left = len(text) - len(kept)
    return kept if left <= 0 else f"{kept}… ({left:,} more characters)"


def describe_wire_block(block: dict[str, Any]) -> tuple[str, str]:
    """A label and the text of a content block as it is sent."""
    kind = block.get("type")
    if kind == "text":
        return "", clean(block["text"])
    if kind == "tool_use":
        return f"calls {one_line(block['name'])}", _arguments(block["input"])
    if kind == "tool_result":
        content: Any = block.get("content", "")
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        words = "\n".join(part["text"] if part.get("type") == "text" else f"({part.get('type')})" for part in parts)
        return "result" + (", an error" if block.get("is_error") else ""), clean(words)
    if kind == "thinking":
        return "thinks", clean(block["thinking"])
    return f"({one_line(kind)})", ""


def _arguments(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{one_line(name)}={one_line(_value(value))}" for name, value in arguments.items())


def _value(value: Any) -> str:
    import json

    return json.dumps(value, ensure_ascii=False)


def call_line(tool: str, arguments: dict[str, Any], width: int = 0) -> str:
    """A tool call on one line, its arguments' values first: ``search_files "lock", "asyncio"``."""
    values = ", ".join(_value(value) for value in arguments.values())
    return one_line(f"{tool} {values}", width)


def describe_entry(entry: Entry) -> str:
    """An entry on one line."""
    from repertory.llm.messages import ToolUse, text_of

    if entry.tool is not None:
        return one_line(f"{entry.tool}: {text_of(entry.content)}", 120)
    calls = "; ".join(call_line(block.name, block.input) for block in entry.content if isinstance(block, ToolUse))
    words = text_of(entry.content)
    return one_line(f"{entry.kind}: {' '.join(part for part in (words, calls) if part)}", 120)


def whole_entry(entry: Entry) -> str:
    """All that an entry says."""
    from repertory.llm.messages import encode_block

    parts: list[str] = []
    for block in entry.content:
        label, text = describe_wire_block(encode_block(block))
        parts.append(f"{label}: {text}" if label and label != "result" else text)
    return "\n".join(part for part in parts if part)
