"""Assembles an answer from the events of a stream. Unknown blocks, deltas and fields are kept.

Data from a server is untrusted and may have any shape. If it is bad, this module raises ``ModelResponseInvalid`` and
nothing else. Time and memory are proportional to what was sent.
"""

from __future__ import annotations

import reprlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from repertory._json_text import decode_received
from repertory.errors import ModelResponseInvalid
from repertory.llm._bounds import ANSWER_BYTES, DOCUMENT_BYTES, MOST_BLOCKS, MOST_TOKENS, MOST_VALUES
from repertory.llm.messages import Json, decode_content
from repertory.llm.model import ModelResponse, StreamEvent, TextDelta, ThinkingDelta, ToolUseStarted, Usage

T = TypeVar("T")
_KNOWN = frozenset({"id", "type", "role", "content", "model", "stop_reason", "usage"})
# For each known type of block, the fields that must be strings. For each known type of delta, the only type of block
# that can have it, and the field that must be a string.
_STRINGS = {"text": ("text",), "thinking": ("thinking", "signature"), "redacted_thinking": ("data",), "tool_use": ()}
_DELTAS = {
    "text_delta": ("text", "text"),
    "citations_delta": ("text", ""),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("thinking", "signature"),
    "input_json_delta": ("tool_use", "partial_json"),
}
_OF_PROMPT = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")  # figures of the usage

# Everything that reading decoded JSON can raise, including for a stack that is too small.
UNREADABLE = (msgspec.MsgspecError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


@contextmanager
def reading(what: str, value: object) -> Generator[None]:
    """Turn every error in reading untrusted data into a ``ModelResponseInvalid`` that begins with ``what``."""
    try:
        yield
    except UNREADABLE as error:
        why = f"{type(error).__name__}: {str(error)[:200]}"
        raise ModelResponseInvalid(f"{what} ({why}), got {excerpt(value)}") from error


class EventReader:
    """Cuts a response body into server-sent events.

    The SDK's own reader has no size limits, and its nested async generators leak on trio if they are left early.
    """

    def __init__(self) -> None:
        self._taken = 0  # bytes of the whole body
        self._values = 0  # signs in it that begin a JSON value, also within texts
        self._line: list[bytes] = []  # pieces of an unfinished line
        self._name = ""  # of an unfinished event
        self._data: list[bytes] = []  # its data lines
        self._size = 0  # bytes of both

    def feed(self, chunk: bytes) -> Iterator[Json]:
        """Add a piece of the body and yield the events that it completes, without pings and comments."""
        self._taken += len(chunk)
        self._values += sum(map(chunk.count, b"[{,"))
        for taken, most, what in ((self._taken, ANSWER_BYTES, "bytes"), (self._values, MOST_VALUES, "values")):
            if taken > most:
                raise ModelResponseInvalid(f"the answer has more than {most:,} {what}")
        for index, piece in enumerate(chunk.split(b"\n")):
            if index:  # so the line before it has ended
                line = b"".join(self._line).removesuffix(b"\r")
                self._line = []
                field, _, value = line.partition(b":")
                if field == b"data":
                    self._data.append(value.removeprefix(b" "))
                elif field == b"event":
                    self._name = value.decode(errors="replace").strip()
                elif not line:
                    name, data = self._name, b"\n".join(self._data)
                    self._name, self._data, self._size = "", [], 0
                    if data and (event := _event(name, data)) is not None:
                        yield event
            self._line.append(piece)
            self._size += len(piece)
            if self._size > DOCUMENT_BYTES:
                raise ModelResponseInvalid(f"an event of the answer has more than {DOCUMENT_BYTES:,} bytes")


def _event(name: str, data: bytes) -> Json | None:
    with reading("an event of the answer is not a JSON object", data[:200]):
        event = _require(dict, decode_received(data))
    if "type" not in event:  # some servers end a stream with an error that has none
        event["type"] = "error" if "error" in event else name or "ping"
    return None if event["type"] == "ping" else event


class _Open:
    """A block that is still streaming. Strings arrive in pieces and are joined once."""

    def __init__(self, raw: Json) -> None:
        self.raw = raw
        self._pieces: dict[str, list[str]] = {}

    def add(self, name: str, value: Any) -> None:
        """Append to a string, add a citation, or replace any other value."""
        if name == "citation":
            if not isinstance(self.raw.get("citations"), list):
                self.raw["citations"] = []
            self.raw["citations"].append(value)
        elif isinstance(value, str):
            old = self.raw.get(name)
            self._pieces.setdefault(name, [old] if isinstance(old, str) else []).append(value)
        else:
            self._pieces.pop(name, None)
            self.raw[name] = value

    def close(self) -> Json:
        """Return the whole block. Arguments that are not JSON, for example because a limit cut them off, stay text."""
        pieces = self._pieces.pop("partial_json", None)
        self.raw.update((name, "".join(grown)) for name, grown in self._pieces.items())
        if arguments := "".join(pieces or ()).strip():
            try:
                self.raw["input"] = decode_received(arguments)
            except ValueError:
                self.raw["input"] = arguments
        elif (pieces is not None or self.raw.get("type") == "tool_use") and not self.raw.get("input"):
            self.raw["input"] = {}  # llama.cpp leaves it out of a call without arguments
        return self.raw


class Assembler:
    """Collects the events of one streamed answer; ``finish`` gives the answer.

    Servers that translate from another protocol do not always begin a message or a block, and may give two blocks the
    same index. So blocks stand in the order in which they came, and an index means the newest block that has it.

    Attributes:
        complete: Whether the stream said that nothing more will come.
        stopped: Whether it said why the answer ended, and sent no part of a block since: then all has come that counts.
        grown: How many events added something to the answer. Other events do not show that an answer is coming.
    """

    def __init__(self) -> None:
        self._message: Json = {}
        self._blocks: list[_Open] = []
        self._newest: dict[int, _Open] = {}  # by index
        self.complete = self.stopped = False
        self.grown = 0

    def feed(self, event: Json) -> list[StreamEvent]:
        """Add one event and return the parts of it that a caller may want to show."""
        with reading("malformed event in the answer's stream", event):
            kind = event["type"]
            self.stopped = self.stopped and kind not in ("content_block_start", "content_block_delta")
            if kind == "message_start":
                if self.grown:
                    raise ValueError("'message_start' within an answer")
                self._message = dict(_require(dict, event["message"]))
                for index, block in enumerate(self._message.get("content") or ()):
                    self._begin(index, block)
                self.grown += 1
            elif kind == "content_block_start":
                return self._begin(event["index"], event["content_block"])
            elif kind == "content_block_delta":
                return self._delta(_require(int, event["index"]), _require(dict, event["delta"]))
            elif kind == "message_delta":
                self._message_delta(event)
            elif kind == "message_stop":
                self.complete = self.grown > 0
        return []  # content_block_stop says nothing new; the API may add kinds of events

    def _begin(self, index: object, block: object) -> list[StreamEvent]:
        if len(self._blocks) >= MOST_BLOCKS:
            raise ValueError(f"more than {MOST_BLOCKS:,} blocks")
        raw = dict(_require(dict, block))
        begun = self._newest[_require(int, index)] = _Open(raw)
        self._blocks.append(begun)
        self.grown += 1
        match raw:
            case {"type": "text", "text": str(text)} if text:
                return [TextDelta(text)]
            case {"type": "tool_use", "id": str(id_), "name": str(name)}:
                return [ToolUseStarted(id_, name)]
        return []

    def _delta(self, index: int, delta: Json) -> list[StreamEvent]:
        kind, block = delta["type"], self._newest.get(index)
        of_type, words = _DELTAS.get(kind, ("", ""))
        type_ = block and block.raw.get("type")
        if of_type and of_type != type_ and (block is None or type_ in _STRINGS):
            if words != of_type:
                raise ValueError(f"{kind} for {type_ or 'no'} block")
            self._begin(index, {"type": of_type})
        block = self._newest[index]
        if words:
            _require(str, delta[words])
        # Fields that we know, and those that the API may add.
        said = {name: value for name, value in delta.items() if name != "type" and value is not None}
        for name, value in said.items():
            block.add(name, value)
        self.grown += any(value != "" for value in said.values())
        if kind == "text_delta":
            return [TextDelta(delta["text"])]
        return [ThinkingDelta(delta["thinking"])] if kind == "thinking_delta" else []

    def _message_delta(self, event: Json) -> None:
        said = {name: value for name, value in event.items() if name not in ("type", "delta")}
        said.update(_require(dict, event["delta"]))
        usage, earlier = said.pop("usage", None), self._message.get("usage")
        if isinstance(usage, dict):
            # The figures are cumulative; those that are not repeated keep the value from `message_start`. Some gateways
            # write 0 for all of the prompt instead, which only a prompt that was declined can have.
            told = said.get("stop_reason") == "refusal" or any(map(usage.get, _OF_PROMPT))
            left_out = () if told else _OF_PROMPT
            merged = {name: value for name, value in usage.items() if value is not None and name not in left_out}
            said["usage"] = {**(earlier if isinstance(earlier, dict) else {}), **merged}
        self._message.update((name, value) for name, value in said.items() if value is not None)
        self.stopped = self.stopped or bool(said.get("stop_reason"))

    def finish(self) -> ModelResponse:
        """Return the whole answer. Raises ``ModelResponseInvalid`` if the stream ended early."""
        if not (self.complete or self.stopped):
            raise ModelResponseInvalid("the answer's stream ended before its stop reason")
        return response_of({**self._message, "content": [block.close() for block in self._blocks]})


def response_of(message: object) -> ModelResponse:
    """Read a whole answer, as the API gives it without streaming."""
    with reading("the answer is not a message", message):
        said = _require(dict, message)
        content = said["content"]
        if len(content) > MOST_BLOCKS and not isinstance(content, str):
            raise ValueError(f"more than {MOST_BLOCKS:,} blocks")
        for block in () if isinstance(content, str) else content:
            for name in _STRINGS.get(block.get("type"), ()):
                if block.get(name) is not None:
                    _require(str, block[name])
        model, response_id = said.get("model"), said.get("id")
        return ModelResponse(
            content=decode_content(content),
            stop_reason=_require(str, said.get("stop_reason") or "end_turn"),
            usage=usage_of(said.get("usage")),
            model=model if isinstance(model, str) else "",
            response_id=response_id if isinstance(response_id, str) else "",
            extra={name: value for name, value in said.items() if name not in _KNOWN and value is not None},
        )


def usage_of(raw: object) -> Usage:
    """Read the usage of an answer. What is not a number of tokens counts as 0; no figure exceeds ``MOST_TOKENS``.

    The iterations are summed: the top level omits those of a compaction, and of models before a fallback.
    """
    iterations = raw.get("iterations") if isinstance(raw, dict) else None
    parts = iterations if isinstance(iterations, list) and iterations else [raw]
    total = sum((_usage_of(part) for part in parts if isinstance(part, dict)), Usage())
    return Usage(*(min(tokens, MOST_TOKENS) for tokens in msgspec.structs.astuple(total)))


def _usage_of(raw: Json) -> Usage:
    if raw.get("type") in ("message", "fallback_message") and not raw.get("output_tokens"):
        return Usage()  # a model that declined before it said anything is not billed
    split = raw["cache_creation"] if isinstance(raw.get("cache_creation"), dict) else {}
    written = _tokens(raw.get("cache_creation_input_tokens"))
    long = _tokens(split.get("ephemeral_1h_input_tokens"))
    return Usage(
        input_tokens=_tokens(raw.get("input_tokens")),
        output_tokens=_tokens(raw.get("output_tokens")),
        cache_read_tokens=_tokens(raw.get("cache_read_input_tokens")),
        cache_write_tokens=max(0, written - long) or _tokens(split.get("ephemeral_5m_input_tokens")),
        cache_write_1h_tokens=long,
    )


def _tokens(value: object) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # a gateway's 12.0
    if not isinstance(value, int) or isinstance(value, bool):
        return 0
    return min(max(0, value), MOST_TOKENS)


def count_of(answer: object) -> int:
    """Read the answer of ``count_tokens``."""
    count = answer.get("input_tokens") if isinstance(answer, dict) else None
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MOST_TOKENS:
        raise ModelResponseInvalid(f"expected input_tokens in the count, got {excerpt(answer)}")
    return count


def _require(kind: type[T], value: object) -> T:
    """Return the value if it is of a type; raise ``TypeError`` if not."""
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"expected {kind.__name__}, got {type(value).__name__}")
    return value


_short = reprlib.Repr()
_short.maxstring = _short.maxother = 120
_short.maxdict = 6


def excerpt(value: object) -> str:
    """Show the beginning of an untrusted value without formatting all of it."""
    try:
        text = _short.repr(value)
    except UNREADABLE:  # an integer of thousands of digits
        text = type(value).__name__
    return text if len(text) <= 200 else f"{text[:200]}…"
