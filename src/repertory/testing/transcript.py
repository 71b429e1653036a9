"""The rules of the Messages API for the conversation itself: blocks, turns, and calls with their results."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby, takewhile
from operator import itemgetter
from typing import Any

from repertory.llm.messages import Json, broken_field
from repertory.testing.compaction import begins_with_summary
from repertory.testing.refusal import refuse
from repertory.testing.shape import check_kind
from repertory.testing.wire import blocks_of

TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_TOOL_USE_ID = re.compile(r"[a-zA-Z0-9_-]+")

_CONTENT_FIELDS: dict[str, frozenset[str]] = {
    "text": frozenset({"text", "citations", "cache_control"}),
    "thinking": frozenset({"thinking", "signature"}),
    "redacted_thinking": frozenset({"data"}),
    "tool_use": frozenset({"id", "name", "input", "cache_control", "caller"}),
    "tool_result": frozenset({"tool_use_id", "content", "is_error", "cache_control"}),
    "image": frozenset({"source", "cache_control"}),
}
_REQUIRED: dict[str, tuple[str, ...]] = {
    "text": ("text",),
    "thinking": ("thinking", "signature"),
    "redacted_thinking": ("data",),
    "tool_use": ("id", "name", "input"),
    "tool_result": ("tool_use_id",),
    "image": ("source",),
}
_ROLE_OF = {"thinking": "assistant", "redacted_thinking": "assistant", "tool_use": "assistant", "tool_result": "user"}


def check_system(system: Any) -> None:
    """Check the system prompt: a string, or non-empty text blocks."""
    if system is None or isinstance(system, str):
        return
    if not isinstance(system, list):
        refuse("system: Input should be a valid list")
    for index, block in enumerate(system):
        if not isinstance(block, dict) or block.get("type") != "text":
            refuse(f"system.{index}.type: Input should be 'text'")
        _check_block(block, f"system.{index}", "user")
        if not block["text"]:
            refuse("system: text content blocks must be non-empty")


def check_messages(messages: list[Any] | None, *, answered: bool = True) -> None:
    """Check the turns: their roles and content, and that every call has its result.

    Args:
        answered: Whether a turn of the assistant's follows; a summary does not continue the conversation.
    """
    if messages is None:
        refuse("messages: Field required")
    if not messages:
        refuse("messages: at least one message is required")
    for index, message in enumerate(messages):
        where = f"messages.{index}"
        if message.get("role") not in ("user", "assistant"):
            refuse(f"{where}.role: Input should be 'user' or 'assistant'")
        for field in message:
            if field not in ("role", "content"):
                refuse(f"{where}.{field}: Extra inputs are not permitted")
        _check_content(message.get("content"), where, message["role"], last=index == len(messages) - 1)
    if messages[0]["role"] != "user" and not begins_with_summary(messages):
        refuse('messages: first message must use the "user" role')
    _check_pairs(messages, finished=answered)


def is_paused(messages: list[Json]) -> bool:
    """Whether the conversation ends with a turn that the server paused: one in which its own tools ran."""
    content = messages[-1]["content"]
    kinds = [block["type"] for block in content] if isinstance(content, list) else []
    return any(kind in ("server_tool_use", "mcp_tool_use") or kind.endswith("_tool_result") for kind in kinds)


def _check_content(content: Any, where: str, role: str, *, last: bool) -> None:
    if content is None:
        refuse(f"{where}.content: Field required")
    if not isinstance(content, str | list):
        refuse(f"{where}.content: Input should be a valid list")
    if not content and not (last and role == "assistant"):
        refuse(f"{where}: all messages must have non-empty content except for the optional final assistant message")
    if isinstance(content, str):
        if content and not content.strip():
            refuse("messages: text content blocks must contain non-whitespace text")
        return
    for index, block in enumerate(content):
        place = f"{where}.content.{index}"
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            refuse(f"{place}.type: Field required")
        _check_block(block, place, role)
        if block["type"] == "document" and role == "assistant":
            refuse(f"{place}: `document` blocks can only be specified in `user` messages")
        if block["type"] == "text" and not block["text"]:
            refuse("messages: text content blocks must be non-empty")
        if block["type"] == "text" and not block["text"].strip():
            refuse("messages: text content blocks must contain non-whitespace text")


def _check_block(block: Json, where: str, role: str) -> None:
    kind = block["type"]
    known = _CONTENT_FIELDS.get(kind)
    if known is None:
        return  # a type of block that this server does not check; the real one may
    for field in _REQUIRED[kind]:
        if block.get(field) is None:
            refuse(f"{where}.{kind}.{field}: Field required")
    if broken := broken_field(block):
        field, wanted = broken
        check_kind(block[field], wanted, f"{where}.{kind}.{field}")
    for field in block:
        if field != "type" and field not in known:
            refuse(f"{where}.{kind}.{field}: Extra inputs are not permitted")
    if _ROLE_OF.get(kind, role) != role:
        refuse(f"{where}: `{kind}` blocks can only be specified in `{_ROLE_OF[kind]}` messages")
    if kind == "text" and role == "user" and block.get("citations"):
        refuse(f"{where}.text.citations: Extra inputs are not permitted")
    if kind == "text" and not block["text"] and block.get("cache_control"):
        refuse(f"{where}.text: cache_control cannot be set for empty text blocks")
    if kind == "tool_use":
        if not _TOOL_USE_ID.fullmatch(block["id"]):
            refuse(f"{where}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'")
        if not TOOL_NAME.fullmatch(block["name"]):
            refuse(f"{where}.tool_use.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'")
    if kind == "tool_result" and not isinstance(block.get("content", ""), str):
        check_kind(block["content"], list, f"{where}.tool_result.content")
        for index, inner in enumerate(block["content"]):
            place = f"{where}.tool_result.content.{index}"
            if not isinstance(inner, dict) or not isinstance(inner.get("type"), str):
                refuse(f"{place}.type: Field required")
            if inner["type"] in _ROLE_OF:
                refuse(f"{place}: Input tag '{inner['type']}' does not match any of the expected tags")
            _check_block(inner, place, role)


def _check_pairs(messages: list[Json], *, finished: bool) -> None:
    """Check that every call has exactly one result, at the beginning of the next message, and every result a call."""
    seen: set[str] = set()
    open_calls: list[str] = []
    for index, message in enumerate(_merged(messages)):
        blocks = message["content"]
        leading = [b["tool_use_id"] for b in takewhile(lambda b: b["type"] == "tool_result", blocks)]
        _refuse_unanswered([call for call in open_calls if call not in leading], index)
        results = [block.get("tool_use_id") for block in blocks if block["type"] == "tool_result"]
        for position, block in enumerate(blocks):
            if block["type"] != "tool_result":
                continue
            result = block["tool_use_id"]
            if result not in open_calls:
                refuse(
                    f"messages.{index}.content.{position}: unexpected `tool_use_id` found in `tool_result` blocks: "
                    f"{result}. Each `tool_result` block must have a corresponding `tool_use` block in the previous "
                    "message."
                )
            if results.count(result) > 1:
                refuse(
                    f"messages.{index}.content.{position}: each tool_use must have a single result. Found multiple "
                    f"`tool_result` blocks with id: {result}"
                )
        open_calls = []
        for position, block in enumerate(blocks):
            if block["type"] == "tool_use":
                if block["id"] in seen:
                    refuse(f"messages.{index}.content.{position}: `tool_use` ids must be unique")
                seen.add(block["id"])
                open_calls.append(block["id"])
    if messages[-1]["role"] == "assistant" and finished:
        _refuse_unanswered(open_calls, len(messages) - 1)


def _refuse_unanswered(calls: list[str], index: int) -> None:
    if calls:
        refuse(
            f"messages.{index}: `tool_use` ids were found without `tool_result` blocks immediately after: "
            f"{', '.join(calls)}. Each `tool_use` block must have a corresponding `tool_result` block in the next "
            "message."
        )


def _merged(messages: list[Json]) -> Iterator[Json]:
    """Merge neighbouring messages of the same role, as the API does; content is always given as blocks."""
    for role, group in groupby(messages, key=itemgetter("role")):
        yield {"role": role, "content": [block for message in group for block in blocks_of(message["content"])]}
