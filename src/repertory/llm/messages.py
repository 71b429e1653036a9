"""The content of a conversation, in the format of the Messages API.

Every block is deeply frozen and has the fields that repertory reads. Other fields from a provider are kept in
``extra`` and sent back unchanged, and a block of an unknown type is a ``RawBlock``. So decoding and encoding again
gives the same JSON object, also for block types that do not exist yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from operator import is_not
from typing import Any, ClassVar, Literal, TypeAlias

import msgspec

from repertory._frozen import Frozen

__all__ = ["Image", "RawBlock", "RedactedThinking"]

Role: TypeAlias = Literal["user", "assistant"]
Json: TypeAlias = dict[str, Any]


class _Frozen(Frozen, frozen=True):
    deepest: ClassVar[int] = 1_000  # an answer may be nested deeper than what is kept of it; see ``views.answers``


class Text(_Frozen, frozen=True):
    """A block of text."""

    text: str
    extra: Json | None = None


class Thinking(_Frozen, frozen=True):
    """The model's reasoning. The signature binds it to everything before it; both are sent back byte for byte."""

    thinking: str
    signature: str = ""
    extra: Json | None = None


class RedactedThinking(_Frozen, frozen=True):
    """Reasoning that only the provider can read."""

    data: str
    extra: Json | None = None


class ToolUse(_Frozen, frozen=True):
    """A tool call that the model asks for."""

    id: str
    name: str
    input: Json
    extra: Json | None = None


class Image(_Frozen, frozen=True):
    """A picture; ``source`` is the API's object (``base64``, ``url`` or ``file``)."""

    source: Json
    extra: Json | None = None


class RawBlock(_Frozen, frozen=True):
    """A block of a type that repertory does not know, kept as it came."""

    raw: Json


class ToolResult(_Frozen, frozen=True):
    """The answer to a tool call; the content is a string or blocks, as the API allows."""

    tool_use_id: str
    content: str | tuple[Text | Image | RawBlock, ...] = ""
    is_error: bool = False
    extra: Json | None = None


Block: TypeAlias = Text | Thinking | RedactedThinking | ToolUse | ToolResult | Image | RawBlock


class Message(_Frozen, frozen=True):
    """One turn: a role and its blocks."""

    role: Role
    content: tuple[Block, ...]


# Each type of block with its struct and the types of its fields; a result's content is checked separately.
_FIELDS: dict[str, tuple[type[Any], dict[str, type[Any]]]] = {
    "text": (Text, {"text": str}),
    "thinking": (Thinking, {"thinking": str, "signature": str}),
    "redacted_thinking": (RedactedThinking, {"data": str}),
    "tool_use": (ToolUse, {"id": str, "name": str, "input": dict}),
    "tool_result": (ToolResult, {"tool_use_id": str, "content": object, "is_error": bool}),
    "image": (Image, {"source": dict}),
}
KNOWN_TYPES = frozenset(_FIELDS)
_KINDS = {struct: kind for kind, (struct, _) in _FIELDS.items()}
_REQUIRED = {
    kind: {field.name for field in msgspec.structs.fields(struct) if field.required}
    for kind, (struct, _) in _FIELDS.items()
}


def decode_block(raw: Mapping[str, Any]) -> Block:
    """Read one content block: a ``RawBlock`` if its type is unknown, or a field is missing or of the wrong type."""
    kind = raw.get("type")
    if not isinstance(kind, str) or kind not in _FIELDS or broken_field(raw):
        return RawBlock(dict(raw))
    struct, fields = _FIELDS[kind]
    # SDKs write null for an absent field; an unknown field with a value is kept.
    said = {name: value for name, value in raw.items() if name != "type" and value is not None}
    extra = {name: said.pop(name) for name in tuple(said) if name not in fields}
    inner = said.get("content", "")
    if struct is ToolResult and not isinstance(inner, str):
        if not isinstance(inner, (list, tuple)) or not all(isinstance(part, dict) for part in inner):
            return RawBlock(dict(raw))
        said["content"] = tuple(decode_block(part) for part in inner)
    block: Block = struct(**said, extra=extra or None)
    return block


def broken_field(raw: Mapping[str, Any]) -> tuple[str, type[Any]] | None:
    """The first field of a block of a known type that is missing or of the wrong type, and the right type; or None."""
    for name, kind in _FIELDS[raw["type"]][1].items():
        value = raw.get(name)
        if name in _REQUIRED[raw["type"]] if value is None else not isinstance(value, kind):
            return name, kind
    return None


def encode_block(block: Block) -> Json:
    """Write one content block as the API's JSON object, its keys in a fixed order."""
    if isinstance(block, RawBlock):
        return block.raw
    kind = _KINDS[type(block)]
    out: Json = {"type": kind}
    for name in _FIELDS[kind][1]:
        out[name] = getattr(block, name)
    if isinstance(block, ToolResult):
        if not isinstance(block.content, str):
            out["content"] = [encode_block(part) for part in block.content]
        if not block.is_error:
            del out["is_error"]
    return {**out, **block.extra} if block.extra else out


def decode_content(content: str | Iterable[Mapping[str, Any]]) -> tuple[Block, ...]:
    """Read a message's content, which the API allows to be a plain string."""
    return (Text(content),) if isinstance(content, str) else tuple(map(decode_block, content))


def encode_message(message: Message) -> Json:
    """Write one message as the API's JSON object."""
    return {"role": message.role, "content": [*map(encode_block, message.content)]}


def text_of(content: Block | str | Sequence[Block]) -> str:
    """The text in a block, a content list or a tool result, joined by newlines; no thinking, no images."""
    if isinstance(content, str):
        return content
    parts: list[str] = []
    for block in content if isinstance(content, tuple | list) else (content,):
        if isinstance(block, Text):
            parts.append(block.text)
        elif isinstance(block, ToolResult):
            parts.append(block.content if isinstance(block.content, str) else text_of(block.content))
    return "\n".join(filter(None, parts))


def is_document(block: object) -> bool:
    """Whether a block is a document, such as a PDF."""
    return isinstance(block, RawBlock) and block.raw.get("type") == "document"


def is_media(block: object) -> bool:
    """Whether a block is an image or a document, whose bytes say nothing about its tokens."""
    return isinstance(block, Image) or is_document(block)


def tool_uses(content: Sequence[Block]) -> tuple[ToolUse, ...]:
    """The tool calls that a turn asks for, in order."""
    return tuple([block for block in content if isinstance(block, ToolUse)])


def equal_items(old: tuple[Any, ...], new: tuple[Any, ...]) -> int:
    """How many leading items of two tuples are equal; identical ones cost next to nothing to compare."""
    count = min(len(old), len(new))
    if old[:count] == new[:count]:
        return count
    others = compress(range(count), map(is_not, old, new))  # fast: thousands may be identical
    return next(at for at in others if old[at] != new[at])
