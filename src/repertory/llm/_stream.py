"""Putting an answer together from the events of a stream. Unknown blocks, deltas and fields are carried along."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from repertory.errors import ModelResponseInvalid
from repertory.llm.messages import Json, decode_content
from repertory.llm.model import ModelResponse, StreamEvent, TextDelta, ThinkingDelta, ToolUseStarted, Usage

_BLANK_LINE = re.compile(rb"\r?\n\r?\n")
_KNOWN = frozenset({"id", "type", "role", "content", "model", "stop_reason", "usage"})


class EventReader:
    """Cuts a response body into server-sent events.

    The SDK has one too, but as nested async generators: leaving these early on trio leaks them.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterator[Json]:
        """Take a piece of the body in, and give the events it completes; pings and comments are left out.

        Raises:
            msgspec.DecodeError: An event's data is not a JSON object.
        """
        *parts, self._rest = _BLANK_LINE.split(self._rest + chunk)
        for part in parts:
            lines = [line.partition(b":") for line in part.splitlines()]
            data = b"\n".join(value.removeprefix(b" ") for field, _, value in lines if field == b"data")
            if not data:
                continue
            event: Json = msgspec.json.decode(data, type=dict)
            if event.get("type", "ping") != "ping":
                yield event


class Assembler:
    """Collects the events of one streamed answer; ``finish`` gives the answer."""

    def __init__(self) -> None:
        self._message: Json | None = None
        self._blocks: dict[int, Json] = {}
        self._partial_json: dict[int, list[str]] = {}
        self.complete = False  # whether the stream said that nothing more will come

    def feed(self, event: Json) -> list[StreamEvent]:
        """Take one event in.

        Returns:
            What a caller may want to show of it.

        Raises:
            ModelResponseInvalid: The event does not fit what came before.
        """
        try:
            return self._feed(event)
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ModelResponseInvalid(
                f"malformed event {_excerpt(event)} in the answer's stream: {error!r}"
            ) from error

    def _feed(self, event: Json) -> list[StreamEvent]:
        kind = event["type"]
        if kind == "message_start":
            self._message = dict(event["message"])
            self._blocks = dict(enumerate(self._message.get("content") or ()))
            return []
        if kind not in ("content_block_start", "content_block_delta", "message_delta", "message_stop"):
            return []  # content_block_stop says nothing new; the API may add kinds of events
        if self._message is None:
            raise ModelResponseInvalid(f"the answer's stream begins with {kind!r} instead of 'message_start'")
        if kind == "content_block_start":
            block = dict(event["content_block"])
            self._blocks[event["index"]] = block
            return _started(block)
        if kind == "content_block_delta":
            return self._delta(event["index"], event["delta"])
        if kind == "message_delta":
            self._message.update((name, value) for name, value in event["delta"].items() if value is not None)
            usage = event.get("usage") or {}
            # Cumulative figures; what is not repeated stands as `message_start` gave it.
            merged = {name: value for name, value in usage.items() if value is not None}
            self._message["usage"] = {**(self._message.get("usage") or {}), **merged}
            further = {k: v for k, v in event.items() if k not in ("type", "delta", "usage") and v is not None}
            self._message.update(further)
            return []
        self.complete = True
        return []

    def _delta(self, index: int, delta: Json) -> list[StreamEvent]:
        block = self._blocks[index]
        kind = delta["type"]
        if kind == "input_json_delta":
            self._partial_json.setdefault(index, []).append(delta["partial_json"])
            return []
        if kind == "citations_delta":
            block["citations"] = [*(block.get("citations") or ()), delta["citation"]]
            return []
        for name, value in delta.items():
            if name == "type" or value is None:
                continue
            # text_delta, thinking_delta, signature_delta, and whatever comes next: strings grow, the rest is set.
            old = block.get(name)
            block[name] = old + value if isinstance(old, str) and isinstance(value, str) else value
        if kind == "text_delta":
            return [TextDelta(delta["text"])]
        if kind == "thinking_delta":
            return [ThinkingDelta(delta["thinking"])]
        return []

    def finish(self) -> ModelResponse:
        """The whole answer.

        Raises:
            ModelResponseInvalid: The stream ended early, or a tool call's arguments are not a JSON object.
        """
        if self._message is None:
            raise ModelResponseInvalid("the answer's stream is empty")
        if not self.complete:
            raise ModelResponseInvalid("the answer's stream ended before 'message_stop'")
        truncated = self._message.get("stop_reason") == "max_tokens"
        content: list[Json] = []
        for index in sorted(self._blocks):
            block = self._blocks[index]
            if index in self._partial_json:
                try:
                    block["input"] = _arguments("".join(self._partial_json[index]))
                except ModelResponseInvalid:
                    if truncated:
                        continue  # half a tool call must not be made; the stop reason says why it is missing
                    raise
            content.append(block)
        return response_of({**self._message, "content": content})


def response_of(message: Json) -> ModelResponse:
    """Read a whole answer, as the API gives it without streaming.

    Raises:
        ModelResponseInvalid: It is not an answer.
    """
    try:
        return ModelResponse(
            content=decode_content(message["content"]),
            stop_reason=message.get("stop_reason") or "end_turn",
            usage=usage_of(message.get("usage") or {}),
            model=message.get("model") or "",
            response_id=message.get("id") or "",
            extra={name: value for name, value in message.items() if name not in _KNOWN and value is not None},
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ModelResponseInvalid(f"the answer {_excerpt(message)} is not a message: {error!r}") from error


def usage_of(raw: Json) -> Usage:
    """Read the usage of an answer; the iterations of a compaction are summed, since the top level omits some."""
    iterations = raw.get("iterations")
    if iterations:
        total = Usage()
        for iteration in iterations:
            total += usage_of(iteration)
        return total
    written = raw.get("cache_creation_input_tokens") or 0
    split = raw.get("cache_creation") or {}
    long = split.get("ephemeral_1h_input_tokens") or 0
    return Usage(
        input_tokens=raw.get("input_tokens") or 0,
        output_tokens=raw.get("output_tokens") or 0,
        cache_read_tokens=raw.get("cache_read_input_tokens") or 0,
        cache_write_tokens=max(0, written - long) or (split.get("ephemeral_5m_input_tokens") or 0),
        cache_write_1h_tokens=long,
    )


def _started(block: Json) -> list[StreamEvent]:
    match block["type"]:
        case "text":
            return [TextDelta(block["text"])] if block.get("text") else []
        case "tool_use":
            return [ToolUseStarted(block["id"], block["name"])]
        case _:
            return []


def _arguments(text: str) -> Json:
    if not text.strip():
        return {}
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ModelResponseInvalid(f"a tool call's arguments are not JSON ({error}): {text[:200]!r}") from error
    if not isinstance(value, dict):
        raise ModelResponseInvalid(f"a tool call's arguments are not a JSON object: {text[:200]!r}")
    return value


def _excerpt(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
