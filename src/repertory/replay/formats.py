"""Reads the messages of a recording. Each message shows by itself which API's shape it has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final, NoReturn, TypeGuard

import msgspec

from repertory.errors import RecordingError
from repertory.llm.messages import (
    KNOWN_TYPES,
    Block,
    Json,
    Message,
    RawBlock,
    Text,
    ToolResult,
    ToolUse,
    broken_field,
    decode_block,
    text_of,
)
from repertory.llm.model import Usage
from repertory.replay.recording import RecordedMessage, RecordedRun, record_run

_SYSTEM = ("system", "developer")


def read_document(document: Any, *, run_id: str, file: str, where: str) -> RecordedRun | None:
    """Read one run: a list of messages, or an object that holds one (a request body, a line of a collection).

    Args:
        run_id: The run's name if the document has none.
        where: The file and the line, for errors.

    Raises:
        RecordingError: The document is something else.
    """
    outer: Json = document if isinstance(document, dict) else {}
    messages = outer.get("messages", document)
    if not isinstance(messages, list):
        refuse(where, "$", "a list of messages, or an object with one under 'messages'", document)
    system = [text_of(tuple(_blocks(outer["system"], where, "$.system")))] if outer.get("system") else []
    recorded: list[RecordedMessage] = []
    usages = _recorded_usages(outer)
    answers = 0
    for index, raw in enumerate(messages):
        place = f"$.messages[{index}]" if outer else f"$[{index}]"
        if not isinstance(raw, dict):
            refuse(where, place, "a message with a role", raw)
        if raw.get("role") in _SYSTEM and not recorded:
            system.append(text_of(tuple(_blocks(raw.get("content"), where, place))))
            continue
        message = read_message(raw, where, place)
        usage = None
        if message.role == "assistant":
            usage = usages[answers] if answers < len(usages) else None
            answers += 1
        recorded.append(RecordedMessage(message, usage))
    return record_run(
        recorded,
        run_id=str(outer.get("id") or run_id),
        file=file,
        model=str(outer.get("model") or ""),
        system="\n\n".join(filter(None, system)),
    )


def read_message(raw: Mapping[str, Any], where: str, place: str) -> Message:
    """Read a message of the Messages API or of OpenAI's chat API.

    Raises:
        RecordingError: It is neither.
    """
    role = raw.get("role")
    match role:
        case "user" | "system" | "developer":
            return Message("user", tuple(_blocks(raw.get("content"), where, f"{place}.content")))
        case "assistant":
            calls = tuple(_calls(raw, where, place))
            said = raw.get("content") or raw.get("refusal")  # OpenAI's API puts a refusal beside an empty content
            return Message("assistant", (*_blocks(said, where, f"{place}.content"), *calls))
        case "tool" | "function":
            call_id = raw.get("tool_call_id") or raw.get("name") or ""
            content = tuple(_blocks(raw.get("content"), where, f"{place}.content"))
            return Message("user", (ToolResult(str(call_id), text_of(content)),))
        case _:
            return refuse(where, f"{place}.role", "user, assistant, system, developer or tool", role)


def _blocks(content: Any, where: str, place: str) -> Iterator[Block]:
    if content is None:
        return
    if isinstance(content, str):
        yield Text(content)
        return
    if not isinstance(content, list):
        refuse(where, place, "text or a list of blocks", content)
    for index, raw in enumerate(content):
        if isinstance(raw, str):
            yield Text(raw)
            continue
        if not isinstance(raw, dict):
            refuse(where, f"{place}[{index}]", "a block with a type", raw)
        words = raw.get("text", raw.get("refusal"))
        if raw.get("type") in ("text", "input_text", "output_text", "refusal") and isinstance(words, str):
            yield Text(words)
            continue
        block = decode_block(raw)
        _check(block, raw, where, f"{place}[{index}]")
        yield block


_TYPE_NAMES: Final[dict[type[Any], str]] = {str: "text", dict: "an object", bool: "true or false"}


def _check(block: Block, raw: Json, where: str, place: str) -> None:
    """Refuse a block of a known type that lacks what its type needs: this is not checked again later."""
    if isinstance(block, RawBlock):
        kind = raw.get("type")
        if not isinstance(kind, str):
            refuse(where, place, "a block with a type", raw)
        if kind in KNOWN_TYPES:
            name, wanted = broken_field(raw) or ("content", tuple)
            refuse(where, f"{place}.{name}", _TYPE_NAMES.get(wanted, "text or blocks"), raw.get(name))
    elif isinstance(block, ToolResult) and not isinstance(block.content, str):
        for index, part in enumerate(block.content):
            _check(part, raw["content"][index], where, f"{place}.content[{index}]")


def _calls(raw: Mapping[str, Any], where: str, place: str) -> Iterator[ToolUse]:
    """Yield the calls in OpenAI's shape, of functions or of tools that take text, or in the older shape."""
    calls: Any = raw.get("tool_calls") or []
    if raw.get("function_call"):
        calls = [{"function": raw["function_call"]}]
    if not isinstance(calls, list):
        refuse(where, f"{place}.tool_calls", "a list of calls", calls)
    for index, call in enumerate(calls):
        called = (call.get("function") or call.get("custom")) if isinstance(call, dict) else None
        if not isinstance(called, dict) or not isinstance(called.get("name"), str):
            refuse(where, f"{place}.tool_calls[{index}]", "a call with a function and its name", call)
        arguments = _arguments(called.get("arguments")) if call.get("function") else {"input": called.get("input")}
        yield ToolUse(str(call.get("id") or called["name"]), called["name"], arguments)


def _arguments(written: Any) -> Json:
    if isinstance(written, str):
        try:
            written = msgspec.json.decode(written or "{}")
        except msgspec.DecodeError:
            return {"arguments": written}  # what the model wrote was not JSON, but it is kept
    return written if isinstance(written, dict) else {"arguments": written}


def _recorded_usages(outer: Mapping[str, Any]) -> list[Usage | None]:
    meta = outer.get("meta")
    rows = meta.get("usage") if isinstance(meta, dict) else None
    if not isinstance(rows, list):
        return []
    return [
        Usage(input_tokens=row[0], cache_write_tokens=row[1], cache_read_tokens=row[2], output_tokens=row[3])
        if isinstance(row, list) and len(row) == 4 and all(map(_is_count, row))
        else None
        for row in rows
    ]


def read_usage(raw: Any) -> Usage | None:
    """Read the usage that the Messages API put beside an answer; None if there is none."""
    if not isinstance(raw, dict):
        return None
    names = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    counts = [raw.get(name) for name in names]
    if not any(map(_is_count, counts)):
        return None
    return Usage(*(count if _is_count(count) else 0 for count in counts))


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def read_time(raw: Any) -> float | None:
    """Read an ISO time as seconds since 1970; None if it is not one."""
    try:
        return datetime.fromisoformat(raw).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None


def refuse(where: str, place: str, expected: str, got: Any) -> NoReturn:
    """Raise the error for a value in a recording that is not what was expected."""
    raise RecordingError(f"{where}: expected {expected} at {place}, got {type(got).__name__} {str(got)[:60]!r}")
