"""The server's side of the Messages API on the wire: reads requests, and writes answers as JSON or as events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from repertory.llm.messages import Block, Json, Message, Text, Thinking, ToolUse, decode_content, encode_block
from repertory.llm.model import ModelRequest, ModelResponse, ToolSchema, Usage

_OWN = frozenset({"model", "messages", "max_tokens", "system", "tools", "stream"})
CLIENT_TYPES = ("memory_20250818",)  # tools that the provider describes and the client runs
_PIECE = 48  # characters of one delta: small enough that even a short answer comes in several


def decode_request(body: Json, betas: tuple[str, ...] = ()) -> ModelRequest:
    """Read the body of ``POST /v1/messages``. Cache markers stay where they are, in the blocks' ``extra``."""
    return ModelRequest(
        model=body["model"],
        messages=tuple(Message(said["role"], decode_content(said["content"])) for said in body["messages"]),
        system=decode_content(body.get("system") or ()),
        tools=tuple(
            ToolSchema(tool["name"], "", {"type": "object"}, tool["type"])
            if tool.get("type") in CLIENT_TYPES
            else ToolSchema(tool["name"], tool.get("description", ""), tool["input_schema"])
            for tool in body.get("tools") or ()
            if tool.get("type") in (None, "custom", *CLIENT_TYPES)
        ),
        max_tokens=body.get("max_tokens", 8192),
        options={name: value for name, value in body.items() if name not in _OWN},
        betas=betas,
    )


def blocks_of(content: Any) -> list[Json]:
    """The blocks of a content, which may also be a string."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def walk(block: Json, path: str = "") -> Iterator[tuple[str, Json]]:
    """A block with its path, and the blocks within it; blocks of unknown types may also hold other values."""
    yield path, block
    parts: list[Any] = block["content"] if isinstance(block.get("content"), list) else []
    for index, part in enumerate(parts):
        if isinstance(part, dict):
            yield from walk(part, f"{path}.content.{index}")


def unmarked(block: Json) -> Json:
    """Copy a block without its cache marker and those of its parts."""
    plain = {name: value for name, value in block.items() if name != "cache_control"}
    if isinstance(plain.get("content"), list):
        parts: list[Any] = plain["content"]
        plain["content"] = [unmarked(part) if isinstance(part, dict) else part for part in parts]
    return plain


def cut_off(content: tuple[Block, ...], most: int) -> tuple[Block, ...]:
    """The beginning of an answer that fits ``most`` tokens, at four characters each; blocks without text count none.

    A text ends anywhere, and so does thinking. A call that is cut off has no arguments: only whole ones are sent.
    """
    room, kept = 4 * most, list[Block]()
    for block in content:
        text, cut = "", block
        match block:
            case Text(text):
                cut = msgspec.structs.replace(block, text=text[:room])
            case Thinking(text):
                cut = msgspec.structs.replace(block, thinking=text[:room])
            case ToolUse(input=arguments):
                text = msgspec.json.encode(arguments).decode() if arguments else ""
                cut = msgspec.structs.replace(block, input={})
            case _:
                pass
        if len(text) > room:
            return (*kept, cut) if room else tuple(kept)
        kept.append(block)
        room -= len(text)
    return content


def encode_usage(usage: Usage) -> Json:
    """Write usage as the API does, with the cache writes split by TTL."""
    return {
        "input_tokens": usage.input_tokens,
        "cache_read_input_tokens": usage.cache_read_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens + usage.cache_write_1h_tokens,
        "cache_creation": {
            "ephemeral_5m_input_tokens": usage.cache_write_tokens,
            "ephemeral_1h_input_tokens": usage.cache_write_1h_tokens,
        },
        "output_tokens": usage.output_tokens,
    }


def encode_compaction(usage: Usage) -> Json:
    """Write the usage of a compaction: zeros at the top level, since no reply was generated, and one iteration."""
    return {**encode_usage(Usage()), "iterations": [{"type": "compaction", **encode_usage(usage)}]}


def encode_response(response: ModelResponse, *, compaction: bool = False) -> Json:
    """Write an answer as one JSON object.

    Args:
        compaction: Whether the request asked for a summary, which changes how usage is reported.
    """
    return {
        "id": response.response_id,
        "type": "message",
        "role": "assistant",
        "model": response.model,
        "content": [encode_block(block) for block in response.content],
        "stop_reason": response.stop_reason,
        "stop_sequence": None,
        "usage": encode_compaction(response.usage) if compaction else encode_usage(response.usage),
        **response.extra,
    }


def events_of(response: ModelResponse, *, compaction: bool = False) -> Iterator[Json]:
    """Write an answer as the events of a stream, pings included. A compaction block arrives whole, without deltas."""
    whole = encode_response(response, compaction=compaction)
    usage: Json = whole["usage"]
    # As in the API, input transformations come first and context edits last.
    edits = {"context_management": whole.pop("context_management")} if "context_management" in whole else {}
    begun = {name: value for name, value in usage.items() if name != "iterations"}
    first = {**whole, "content": [], "stop_reason": None, "usage": {**begun, "output_tokens": 0 if compaction else 1}}
    yield {"type": "message_start", "message": first}
    yield {"type": "ping"}
    for index, block in enumerate(response.content):
        match block:
            case Text(text):
                empty: Json = {**encode_block(block), "text": ""}
                deltas: list[Json] = [{"type": "text_delta", "text": piece} for piece in _pieces(text)]
            case Thinking(thinking, signature):
                empty = {**encode_block(block), "thinking": "", "signature": ""}
                deltas = [{"type": "thinking_delta", "thinking": piece} for piece in _pieces(thinking)]
                deltas.append({"type": "signature_delta", "signature": signature})
            case ToolUse(input=arguments):
                empty = {**encode_block(block), "input": {}}
                encoded = msgspec.json.encode(arguments).decode() if arguments else ""
                # As in the API, an empty piece comes first, and is the only one of a call without arguments.
                deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ("", *_pieces(encoded))]
            case _:
                empty, deltas = encode_block(block), []
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    end: Json = {"stop_reason": response.stop_reason, "stop_sequence": None}
    # Without the split by TTL, which the real API gives only at the start.
    usage = {name: value for name, value in usage.items() if name != "cache_creation"}
    yield {"type": "message_delta", "delta": end, "usage": usage, **edits}
    yield {"type": "message_stop"}


def encode_event(event: Json) -> bytes:
    """Write one server-sent event."""
    return b"event: %s\ndata: %s\n\n" % (event["type"].encode(), msgspec.json.encode(event))


def error_body(kind: str, message: str, request_id: str, *, code: str = "") -> dict[str, Any]:
    """The body of an error; ``code`` is the ``error_code`` in its details, "" for no details."""
    details = {"details": {"error_code": code}} if code else {}
    return {"type": "error", "error": {"type": kind, "message": message, **details}, "request_id": request_id}


def _pieces(text: str) -> list[str]:
    return [text[start : start + _PIECE] for start in range(0, len(text), _PIECE)]
