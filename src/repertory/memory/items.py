"""Memory items: what they hold, the transforms by which their content is read, and work on many of them."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, TypeVar

import msgspec
from anyio import to_thread

from repertory._choices import check_choice, show
from repertory._counting import counted
from repertory._cutting import first_chars
from repertory._excerpts import EXCERPT, find_words, fold, pattern_of, words_of
from repertory._frozen import freeze_fields
from repertory.errors import ConfigurationError, RecordRefused
from repertory.llm.messages import Json
from repertory.memory.documents import show_path
from repertory.record.memory_records import ItemFormat, ItemInfo, ItemWritten
from repertory.record.rows import NOT_KEPT, decode_json, encode_json
from repertory.record.search import stems_of

T = TypeVar("T")

Content: TypeAlias = str | bytes | bool | int | float | list[Any] | dict[str, Any] | None
"""What an item holds: text, bytes, or any JSON value. Narrow it with ``isinstance``, or read ``Item.text``."""
NewContent: TypeAlias = Content | Sequence[Any] | Mapping[str, Any]
"""What may be stored. Tuples come back as lists; a ``TypedDict`` is a mapping to type checkers, and a dict when run."""
TransformKind: TypeAlias = Literal["full", "excerpt", "summary", "first_n", "last_n", "filtered"]

BYTES: Final = (bytes, bytearray, memoryview)
_ALWAYS_JSON: Final = frozenset({str, int, bool, type(None)})
_SENTENCE = re.compile(r"(?<=[.!?…])\s+|\n+")
_MOST_ITEMS: Final = 200  # that are worked on at once, on the event loop; to encode one takes some 30 µs
_MOST_BYTES: Final = 100_000  # of these; an excerpt of a million takes up to 0.6 s


class Item(ItemInfo, frozen=True, kw_only=True):
    """An item with its content after the transform; ``size`` is that of the whole content."""

    content: Content

    def __post_init__(self) -> None:
        freeze_fields(self, "metadata", sequences=("tags", "related_to"))  # the content is a copy of the caller's own

    @property
    def text(self) -> str:
        """The content as text to read: a value as indented JSON; for bytes, a note of what they are."""
        if isinstance(self.content, bytes):
            return f"[{self.media_type or 'bytes of an unknown type'}, {counted(self.size, 'byte')}]"
        return readable(self.content)


class Transform(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of an item's content to return.

    =============  ====================================================================
    kind           what is returned
    =============  ====================================================================
    ``full``       all of it, for any content
    ``excerpt``    the ``n`` characters where most of ``words`` stand together, or the first ones
    ``summary``    the first sentence of each paragraph, up to ``n`` characters
    ``first_n``    at most the first ``n`` characters
    ``last_n``     at most the last ``n`` characters
    ``filtered``   the lines that hold any of ``words``
    =============  ====================================================================

    All kinds but ``full`` return text; they work on the indented JSON of a value. Bytes have no words and no lines, so
    they can only be read with ``full``.

    Attributes:
        n: Characters; not used by ``full`` and ``filtered``.
        words: Words to look for. A word also finds its longer forms; case and accents do not matter.
    """

    kind: TransformKind = "full"
    n: int = EXCERPT
    words: str = ""

    def __post_init__(self) -> None:
        check_choice("Transform.kind", self.kind, TransformKind)


FULL: Final = Transform()


# --- how a content is kept --------------------------------------------------------------------------------


def check_json(where: str, value: object) -> None:
    """Check that the value for a field comes back from JSON as it was; a date, a set or a number as key would not.

    Its sequences are lists, and it does not contain itself.

    Raises:
        RecordRefused: It contains something that JSON does not have.
    """
    todo: list[tuple[Any, tuple[str | int, ...]]] = [(value, ())]
    while todo:
        each, path = todo.pop()
        if isinstance(each, dict | list):
            for key, inner in each.items() if isinstance(each, dict) else enumerate(each):
                if isinstance(each, dict) and not isinstance(key, str):
                    raise _refusal(where, path, "a text as key", key)
                if inner.__class__ not in _ALWAYS_JSON:
                    todo.append((inner, (*path, key)))
        elif not isinstance(each, str | int | float | None) or (isinstance(each, float) and not math.isfinite(each)):
            raise _refusal(where, path, "a JSON value", each)


def _refusal(where: str, path: Sequence[str | int], wanted: str, got: object) -> RecordRefused:
    return RecordRefused(
        f"an item's {where} must be what JSON brings back as it was: expected {wanted}, got {show(got)} - at "
        f"`{show_path(path)}`; nothing was written"
    )


def encode_content(content: object) -> tuple[ItemFormat, str]:
    """Encode a content as the text that the journal keeps.

    Raises:
        RecordRefused: It is neither text nor bytes nor a JSON value.
    """
    if isinstance(content, str):
        return "text", content
    if isinstance(content, BYTES):
        return "bytes", base64.b64encode(bytes(content)).decode()
    try:
        return "json", encode_json(content)
    except NOT_KEPT as error:
        raise RecordRefused(
            f"an item's content must be str, bytes or a value that JSON has, got {type(content).__name__}: {error}; "
            "nothing was written"
        ) from error


def decode_content(version: ItemWritten) -> Content:
    """Decode what ``encode_content`` made."""
    if version.format == "bytes":
        return base64.b64decode(version.content)
    content: Content = decode_json(version.content) if version.format == "json" else version.content
    return content


def readable(content: Content) -> str:
    """Text as it is; a value as indented JSON."""
    if isinstance(content, str):
        return content
    try:
        return msgspec.json.format(encode_json(content), indent=2)
    except msgspec.DecodeError:  # lone surrogates, which the standard library writes escaped
        return json.dumps(content, indent=2)


# --- how it is read ---------------------------------------------------------------------------------------


def item_info(version: ItemWritten) -> ItemInfo:
    """An item without its content."""
    return ItemInfo(**_facts(version))


def shape_item(version: ItemWritten, transform: Transform = FULL) -> Item:
    """An item with its content after a transform.

    Raises:
        ConfigurationError: The content is bytes, and the transform is not ``full``.
    """
    content = decode_content(version)
    if transform.kind != "full":
        if isinstance(content, bytes):
            what = f"{version.media_type or 'of an unknown type'}, {counted(version.size, 'byte')}"
            raise ConfigurationError(f"item {version.item_id!r} is no text ({what}): only transform 'full' applies")
        content = shape_text(readable(content), transform)
    return Item(**_facts(version), content=content)


def _facts(version: ItemWritten) -> Json:
    return {name: getattr(version, name) for name in ItemInfo.__struct_fields__}


def shape_text(text: str, transform: Transform) -> str:
    """Apply a transform."""
    n = max(0, transform.n)
    match transform.kind:
        case "full":
            return text
        case "excerpt":
            # Full-text search also finds an item by other forms of a word.
            best = find_words(text, transform.words, limit=1, size=n) or find_words(
                text, stems_of(transform.words), limit=1, size=n
            )
            return best[0].text if best else first_chars(text, n)
        case "summary":
            return _first_sentences(text, n)
        case "first_n":
            return first_chars(text, n)
        case "last_n":
            return text[max(0, len(text) - n) :]
        case "filtered":
            words = pattern_of(words_of(transform.words))
            return "\n".join(line for line in text.split("\n") if words and re.search(words, fold(line)))


def _first_sentences(text: str, limit: int) -> str:
    """The first sentence of each paragraph, as long as whole sentences fit; the very first one is cut to fit."""
    chosen: list[str] = []
    left = limit
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        sentence = _SENTENCE.split(paragraph.strip(), maxsplit=1)[0]
        if len(sentence) > left:
            break
        chosen.append(sentence)
        left -= len(sentence) + 1
    return " ".join(chosen) if chosen else first_chars(text.strip(), limit)


async def off_loop(work: Callable[[], T], *, items: int = 1, size: int = 0) -> T:
    """Do something with this many items of this many bytes in all: at once if they are few, else in a thread.

    A cancelled call still waits for the thread, so that nothing goes on behind its back.
    """
    if items <= _MOST_ITEMS and size <= _MOST_BYTES:
        return work()
    return await to_thread.run_sync(work)
