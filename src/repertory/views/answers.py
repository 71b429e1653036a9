"""Reads a model's answer once, before any of it is stored.

A model or a server may send anything: call ids that no server accepts, arguments that cannot be encoded, a call that
the output limit cut in half. What goes into the record can always be sent again. If it differs from what came, the
original is kept beside it. A call that cannot be made as it came is not made, and the model is told why.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, cast

import msgspec

from repertory._json_text import canonical_json, decode_received
from repertory.context.projector import FRAME_ID
from repertory.errors import ModelResponseInvalid
from repertory.llm.features import SERVER_CALLS, is_compaction
from repertory.llm.messages import (
    KNOWN_TYPES,
    Block,
    Json,
    RawBlock,
    RedactedThinking,
    Text,
    Thinking,
    ToolUse,
    decode_block,
    encode_block,
    is_document,
)
from repertory.llm.model import CUT_OFF, ModelResponse
from repertory.llm.validation import CALL_ID, TOOL_NAME
from repertory.record import Entry
from repertory.tools.execution import unknown_tool

REFUSAL: Final = "refusal"
PAUSED: Final = "pause_turn"
# Stop reasons after which a call is whole; the last two are from servers with OpenAI's words. A stop sequence may occur
# within a call's arguments, and it is safe to assume that an unknown reason cut something off.
_COMPLETE: Final = frozenset({"end_turn", "tool_use", PAUSED, "stop", "tool_calls"})

MAX_DEPTH: Final = 100  # levels; readers recurse, Python's up to 1,000 frames, and a request adds some around a block
_MAX_ID: Final = 256  # characters of a call's id, which its result repeats
_MAX_NAME: Final = 128  # characters of a tool's name, by the API's rule
_MAX_REASON: Final = 100  # characters of a stop reason
_MAX_RAW: Final = 1_000_000  # characters of the original that are kept beside the record
_ILLEGAL: Final = re.compile(r"[^a-zA-Z0-9_-]+")
_BLOCKS: Final = (Text, Thinking, RedactedThinking, ToolUse, RawBlock)
# What a model left behind when it declined and another one took over; some of it must not be sent back, and no call of
# it has a result (platform.claude.com/docs, Refusals and fallback; 2026-08).
_NOT_TAKEN_OVER: Final = ("thinking", "redacted_thinking", "connector_text", "tool_use")
_KINDS: Final[Mapping[type, str]] = {
    type(None): "nothing",
    str: "text",
    bool: "true or false",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "an object",
}


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer as it goes into the record.

    Attributes:
        content: The turn; legal in every later request of the run, once each call has its result.
        stop_reason: Why the answer ended.
        rejected: For each call that must not run, by id, what the model is told instead of a result.
        raw: The original as JSON, at most 1,000,000 characters; "" if it does not differ from ``content``.
    """

    content: tuple[Block, ...]
    stop_reason: str
    rejected: Mapping[str, str]
    raw: str = ""

    @property
    def refused(self) -> bool:
        """Whether the model, or a classifier behind it, declined; then nothing in the answer may be acted on."""
        return self.stop_reason == REFUSAL


def is_part(turn: Entry) -> bool:
    """Whether a turn was cut off or paused, so that another one continues it."""
    return turn.stop_reason == PAUSED or turn.stop_reason in CUT_OFF


def check_response(response: object) -> ModelResponse:
    """Check what a model returned; the model may be an application's own.

    Raises:
        ModelResponseInvalid: It is not an answer.
    """
    if not isinstance(response, ModelResponse):
        raise ModelResponseInvalid(
            f"the model must give a ModelResponse, got a value of type {type(response).__name__}"
        )
    return response


def read_answer(response: ModelResponse, *, known: Collection[str], tools: Iterable[str], most: int) -> Answer:
    """Read an answer.

    A call id that is illegal or not new is replaced: it only serves to pair call and result. A call with an illegal
    name or arguments keeps its place, with a substitute for them, and is not made. What an assistant's turn cannot hold
    is left out: blank text, results, images, blocks that lack a field. Blocks of unknown types are kept, as far as JSON
    can represent them.

    Args:
        response: What the model answered.
        known: The ids of all calls of the run so far.
        tools: The names of the existing tools, for what the model is told.
        most: Most characters of the whole answer; the rest is left out, and the answer says so.
    """
    reason = str(response.stop_reason)[:_MAX_REASON]
    reader = _Reader(known, tools, most, reason)
    content = reader.read(response.content)
    raw = _raw_json(response.content) if reader.changed else ""
    return Answer(content=content, stop_reason=reason, rejected=reader.rejected, raw=raw)


class _Reader:
    """Reads the blocks of one answer, in order."""

    def __init__(self, known: Collection[str], tools: Iterable[str], most: int, stop_reason: str) -> None:
        self.rejected: dict[str, str] = {}
        self.changed = False
        self._known = known
        self._tools = tuple(tools)
        self._most = self._remaining = most
        self._stop_reason = stop_reason
        self._ids: set[str] = set()
        self._calls: set[tuple[str, str, bytes]] = set()
        self._results: list[object] = []  # the calls of the server's own tools that have a result

    def read(self, content: Sequence[object]) -> tuple[Block, ...]:
        received = [_json_of(block) for block in content]
        last, taken_over = -1, 0
        for place, raw in enumerate(received):
            if not raw:
                continue
            if not _is_blank(raw):
                last = place
            if "tool_use_id" in raw:
                self._results.append(raw["tool_use_id"])
            if raw.get("type") == "fallback":
                taken_over = place
        kept: list[Block] = []
        for place, raw in enumerate(received):
            if self._remaining < 0:
                break
            lost = place < taken_over and raw is not None and self._is_lost(raw)
            read = self._block(raw, last=place == last) if raw and not lost else None
            self.changed = self.changed or read is None or encode_block(read) != raw
            if read is not None:
                kept.append(read)
        if self._remaining < 0:
            self.changed = True
            kept.append(Text(f"[The rest of this answer was left out: it has more than {self._most:,} characters.]"))
        return tuple(kept)

    def _block(self, raw: Json, *, last: bool) -> Block | None:
        """Return a block in a legal form; None if it has none."""
        if raw.get("type") == "tool_use":
            return self._call(raw, last=last)
        if raw.get("type") == "text" and isinstance(raw.get("text"), str):
            return self._text(raw)
        kept = None if self._is_unanswered(raw) else self._other_fields(raw)
        block = decode_block(kept) if kept else None
        return None if block is None or is_compaction(block) or not _is_allowed(block) else block

    def _is_lost(self, raw: Json) -> bool:
        """Whether a block before the last change of models must be left out."""
        kind = raw.get("type")
        return kind in _NOT_TAKEN_OVER or (kind in SERVER_CALLS and raw.get("id") not in self._results)

    def _is_unanswered(self, raw: Json) -> bool:
        """Whether a block is a call of the server's own tools that will never have a result: no server accepts that.

        In a paused turn, and after calls of our tools, the result comes with the next answer.
        """
        if raw.get("type") not in SERVER_CALLS or self._stop_reason in (PAUSED, "tool_use"):
            return False
        return raw.get("id") not in self._results

    def _text(self, raw: Json) -> Block | None:
        room, text = self._remaining, cast("str", raw["text"])
        self._remaining -= len(text)
        text = text[:room]
        return Text(text, self._other_fields(raw, "type", "text")) if text.strip() else None

    def _other_fields(self, raw: Json, *fields: str) -> Json | None:
        """Return a block's other fields, if they can be kept. Cache markers are dropped: only we set the four of a
        request."""
        more = {name: value for name, value in raw.items() if name not in (*fields, "cache_control")}
        if not more:
            return None
        problem, size = _json_problem(more, self._remaining)
        self._remaining -= size
        return None if problem else more

    def _call(self, raw: Json, *, last: bool) -> Block | None:
        sent_id, sent_name, sent_input = raw.get("id"), raw.get("name"), raw.get("input", "")
        if not isinstance(sent_input, dict):
            sent_input = _unwrapped(sent_input)
        problem, size = _json_problem(sent_input, self._remaining)
        if not isinstance(sent_input, dict):
            problem = problem or f"{_describe_kind(sent_input)} instead of an object"
        arguments: Json = {} if problem else cast("Json", sent_input)
        name = sent_name if isinstance(sent_name, str) and TOOL_NAME.fullmatch(sent_name) else None
        if name and not problem:
            same = (sent_id if isinstance(sent_id, str) else "", name, canonical_json(arguments))
            if same in self._calls:
                return None  # the same call sent twice: two intended calls would have two ids
            self._calls.add(same)
        call_id = self._new_id(sent_id)
        self._remaining -= size + len(call_id) + _MAX_NAME
        others = self._other_fields(raw, "type", "id", "name", "input")
        use = ToolUse(call_id, name or _legal_part(sent_name, _MAX_NAME) or "unnamed", arguments, others)
        rejection = self._rejection(use, sent_name if name is None else name, problem, last=last)
        if rejection:
            self.rejected[call_id] = rejection
        return use

    def _new_id(self, sent_id: object) -> str:
        legal = isinstance(sent_id, str) and len(sent_id) <= _MAX_ID and CALL_ID.fullmatch(sent_id) is not None
        wanted = cast("str", sent_id) if legal else _legal_part(sent_id, _MAX_ID) or "call"
        if wanted.startswith(FRAME_ID):  # a stretch of trail may get this id later
            wanted = f"call_{wanted[: _MAX_ID - 5]}"
        call_id, number = wanted, len(self._known) + len(self._ids) + 1
        while call_id in self._known or call_id in self._ids:
            call_id, number = f"{wanted[: _MAX_ID - 20]}_{number}", number + 1
        self._ids.add(call_id)
        return call_id

    def _rejection(self, use: ToolUse, sent_name: object, problem: str, *, last: bool) -> str:
        """Return what the model is told if a call must not be made; "" if it may be made."""
        reason = self._stop_reason
        # Blocks arrive in order, so a call with another block after it is whole. The exception is a call whose
        # arguments never arrived: it has the empty object with which every call begins.
        if reason == REFUSAL or (reason not in _COMPLETE and (last or not use.input)):
            return (
                f"{use.name} was not run: your answer ended with stop reason {reason!r}, and this call may be "
                "incomplete. Make it again; if it is long, in smaller parts."
            )
        if sent_name != use.name:
            shown_name = sent_name[:1_000] if isinstance(sent_name, str) else _describe_kind(sent_name)
            return unknown_tool(shown_name, self._tools).text
        if problem:
            return f"{use.name} was not run: its arguments hold {problem}. Call it again with one plain JSON object."
        return ""


def _json_of(block: object) -> Json | None:
    """Return a block as the API's object; None for what an assistant's turn cannot hold."""
    if not isinstance(block, _BLOCKS):
        return None
    raw = cast("object", encode_block(block))
    return cast("Json", raw) if isinstance(raw, dict) else None


def _unwrapped(arguments: object) -> object:
    """Arguments without what some servers make of them: null for none, and the JSON of an object as a text."""
    with suppress(ValueError):
        inner = decode_received(arguments) if isinstance(arguments, str) else arguments
        return {} if inner is None else inner if isinstance(inner, dict) else arguments
    return arguments


def _is_blank(raw: Json) -> bool:
    text = raw.get("text")
    return raw.get("type") == "text" and (not isinstance(text, str) or not text.strip())


def _is_allowed(block: Block) -> bool:
    """Whether an assistant's turn may hold a block; text and calls are checked elsewhere."""
    if isinstance(block, RawBlock):
        kind = block.raw.get("type")
        # A block of a known type lacks a field, and a document belongs to the user.
        return isinstance(kind, str) and kind not in KNOWN_TYPES and not is_document(block)
    return isinstance(block, Thinking) or (isinstance(block, RedactedThinking) and bool(block.data))


def _legal_part(name: object, max_chars: int) -> str:
    """Return the legal part of a name; "" if there is none."""
    return _ILLEGAL.sub("_", name[: 4 * max_chars]).strip("_")[:max_chars] if isinstance(name, str) else ""


def _describe_kind(value: object) -> str:
    return next((_KINDS[kind] for kind in type(value).__mro__ if kind in _KINDS), "something that JSON does not have")


def _json_problem(value: Any, max_chars: int) -> tuple[str, int]:
    """Return why a value cannot be written as JSON, sent and read again ("" if it can), and about how many characters
    it has.

    It does not recurse: a value that is too deep for a reader would be too deep for a recursive check as well.
    """
    size, open_values = 0, [(value, 1)]
    while open_values:
        inner, depth = open_values.pop()
        match inner:
            case None | bool():
                size += 4
            case str():
                size += len(inner) + 2
            case int():
                if not -(2**63) <= inner < 2**64:
                    return "a whole number of more than 64 bits", size
                size += 8
            case float():
                if not math.isfinite(inner):
                    return f"{inner}, a number that JSON does not have", size
                size += 8
            case dict() | list() | tuple():
                if depth > MAX_DEPTH:
                    return f"values nested more than {MAX_DEPTH} deep", size
                size += 2 + 2 * len(inner)
                if isinstance(inner, dict):
                    for name in inner:
                        if not isinstance(name, str):
                            return "names that are not text", size
                        size += len(name) + 2
                open_values += [(each, depth + 1) for each in (inner.values() if isinstance(inner, dict) else inner)]
            case _:
                return f"a value of type {type(inner).__name__}, which JSON does not have", size
        if size > max_chars:
            return "more than an answer may have", size
    return "", size


def _raw_json(content: Iterable[object]) -> str:
    """Write the original as JSON for people to read: cut in depth and length, with words for what JSON lacks."""
    remaining = _MAX_RAW

    def cut(value: Any, levels: int) -> Any:
        nonlocal remaining
        remaining -= 1
        if remaining < 0 or not levels:
            return "…"
        if isinstance(value, str):
            value = value[:remaining]
            remaining -= len(value)
            return value
        if isinstance(value, msgspec.Struct):
            value = encode_block(value) if isinstance(value, _BLOCKS) else msgspec.structs.asdict(value)
        if isinstance(value, dict):
            return {str(name): cut(each, levels - 1) for name, each in value.items()}
        if isinstance(value, list | tuple):
            return [cut(each, levels - 1) for each in cast("Sequence[Any]", value)]
        if isinstance(value, int) and abs(value) >= 2**64:
            return hex(value)[:1_000]
        return value if value is None or isinstance(value, int | float) else repr(value)[:1_000]

    return json.dumps([cut(block, MAX_DEPTH + 10) for block in content])[:_MAX_RAW]
