"""The outcome of a tool call: how it ended, and its content, made safe and limited in size."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

import msgspec

from repertory._choices import check_choice, check_number, check_struct, check_type, check_types
from repertory._counting import counted
from repertory._error_texts import safe_str
from repertory._frozen import freeze_fields
from repertory._json_text import canonical_json, json_text
from repertory.llm.messages import Image, Json, RawBlock, Text, encode_block, is_media
from repertory.record.entries import Retrieved
from repertory.record.records import OutcomeStatus, Record
from repertory.record.rows import MAX_TEXT
from repertory.tools.media import media_block, media_type_of, too_large

if TYPE_CHECKING:
    from collections.abc import Sequence

Content: TypeAlias = str | tuple[Text | Image | RawBlock, ...]
Cause: TypeAlias = Literal["arguments", "unknown-tool", "retry", "failed", "deadline", "crash", "result"]

NO_OUTPUT: Final = "(no output)"
_MOST_FACTS: Final = 10_000  # characters as JSON


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    """Why a call failed, for logs and metrics. The model is shown ``ToolOutput.content`` instead.

    Attributes:
        cause: ``arguments`` (they did not fit the tool), ``unknown-tool``, ``retry`` or ``failed`` (the tool raised
            ``ToolRetry`` or ``ToolFailed``), ``deadline`` (it passed), ``crash`` (any other error) or ``result``
            (the result cannot be shown).
        type: The error's class; "" if there was no error.
        message: The whole text of the error.
        traceback: The error's traceback, with the errors that led to it; "" if there was no error.
    """

    cause: Cause
    type: str = ""
    message: str = ""
    traceback: str = ""


class ResultLater(msgspec.Struct, frozen=True):
    """Returned by a tool whose result will come later from outside: from a webhook, a queue or a person.

    The tool has sent out its request with ``ToolContext.run_id`` and ``call_id``. The call waits, also across
    restarts, until ``Run.give_result`` delivers the result. Without ``state``, the tool is not run again for this call.

    Attributes:
        note: What the call waits for, as a note to people.
        timeout: Seconds after which the model is told that no result came; with ``state``, the tool is told instead.
            None waits without limit.
        schema: JSON schema that a result must fit unless it is an error; None accepts any. The check needs the
            library jsonschema, which comes with ``repertory[mcp]``. A result that comes before the tool has returned
            is not checked.
        state: None if the value given is the result of the call. Otherwise the value is an answer with which the tool
            continues: the tool is called again with the same arguments, and ``ToolContext.answer`` holds the value
            and this state. As JSON; kept in the record.

    Raises:
        ConfigurationError: A value is of another type, or the timeout is not a number of at least 0.
    """

    note: str = ""
    timeout: float | None = None
    schema: Json | None = None
    state: Json | None = None

    def __post_init__(self) -> None:
        freeze_fields(self, "schema", "state")
        check_number("ResultLater.timeout", self.timeout, int | float, least=0, none=True)
        check_struct(self)


# The fields that a tool sets in its own output. A value of a wrong type would crash the run that records it.
_FIELDS: Final[tuple[tuple[str, Any, str], ...]] = (
    ("content", (str, tuple, list), "a text, or a list of blocks"),
    *((name, str, "a text") for name in ("source_type", "url", "format")),
    *((name, dict, "a dict") for name in ("facts", "metadata")),
    ("records", (tuple, list), "a list of records"),
    *((name, bool, "True or False") for name in ("as_is", "pin")),
    ("retrieved", Retrieved | None, "a Retrieved, or None"),
    ("error", ErrorDetail | None, "an ErrorDetail, or None"),
    ("later", ResultLater | None, "a ResultLater, or None"),
)


class ToolOutput(msgspec.Struct, frozen=True):
    """The outcome of a tool call. A tool returns one itself if it has more to say than a plain value can.

    Attributes:
        content: What the model is shown.
        status: ``ok``, ``error``, or ``interrupted`` if it is unknown what the call did.
        source_type: Its kind in the content store: ``web``, ``database``, ``file``, ``search``, ``tool``.
        url: Where the content came from; "" if it has no address.
        format: ``text``, ``markdown``, ``json``, ``code``, …
        facts: Small facts about the result, as JSON. The model is shown them if the content is cited or shortened.
        metadata: The application's own data, as JSON. It is kept with the result and never read.
        records: Durable records that commit in one transaction with the outcome; if that is an error, none commits.
        as_is: Whether it is shown whole, neither cut nor cited, such as one page of something longer, or instructions
            that must be followed to the word.
        retrieved: What a retrieval brought back into view; None if this is not a retrieval. A retrieval is shown whole
            and stays in view for a while.
        pin: Whether to keep it in view whatever happens around it, as ``Run.pin`` does.
        truncated_from: Characters of the content before it was cut to the tool's ``output_cap``; None if it was
            not cut.
        error: Why the call failed; None if it did not.
        later: What the call waits for if its result is still to come; None if this is the result.
        duration: Seconds that the tool's function took.

    Raises:
        ConfigurationError: A value is of another type; the message names it.
    """

    content: Content
    status: OutcomeStatus = "ok"
    source_type: str = "tool"
    url: str = ""
    format: str = "text"
    facts: Json = msgspec.field(default_factory=Json)
    metadata: Json = msgspec.field(default_factory=Json)
    records: tuple[Record, ...] = ()
    as_is: bool = False
    retrieved: Retrieved | None = None
    pin: bool = False
    truncated_from: int | None = None
    error: ErrorDetail | None = None
    later: ResultLater | None = None
    duration: float = 0.0

    def __post_init__(self) -> None:
        check_choice("ToolOutput.status", self.status, OutcomeStatus)
        check_types("ToolOutput.", self, _FIELDS)
        if not isinstance(self.content, str):
            for index, block in enumerate(self.content):
                check_type(
                    f"ToolOutput.content[{index}]", block, Text | Image | RawBlock, "a Text, an Image or a RawBlock"
                )

    @property
    def is_error(self) -> bool:
        """Whether the model is told that the call failed."""
        return self.status != "ok"

    @property
    def text(self) -> str:
        """The text of the content, without images and other blocks."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(block.text for block in self.content if isinstance(block, Text))


_UNSAFE = re.compile("[\ud800-\udfff\x00]")  # lone surrogates cannot be UTF-8; NUL ends the text in many stores


def clean_text(text: str) -> tuple[str, int]:
    """Replace characters that cannot be sent or stored as text with U+FFFD.

    Returns:
        The text, and how many of its characters were replaced.
    """
    if "\0" not in text and (text.isascii() or _can_be_written(text)):
        return text, 0
    return _UNSAFE.subn("\N{REPLACEMENT CHARACTER}", text)


def _can_be_written(text: str) -> bool:
    # The pattern takes five times as long, which matters for many megabytes; most texts need only the first try.
    for encoding in ("latin-1", "utf-8"):
        try:
            text.encode(encoding)
        except UnicodeEncodeError:
            continue
        return True
    return False


def cut_middle(text: str, limit: int, *, name: str) -> str:
    """Cut a text longer than ``limit`` characters to its head and tail, with a note of what is missing."""
    if len(text) <= limit:
        return text
    head, tail = limit - limit // 3, limit // 3
    note = (
        f"\n[… {len(text) - limit:,} of {len(text):,} characters are missing here: "
        f"{name} may return {limit:,}. Ask it for less …]\n"
    )
    return text[:head] + note + text[len(text) - tail :]


def to_output(value: object, *, name: str, cap: int | None) -> ToolOutput:
    """Turn whatever a tool returned into an outcome that is safe to show, store and send.

    Args:
        value: Text, bytes, blocks, a ``ToolOutput``, None, or anything msgspec can write as JSON.
        name: The tool's name, for the note that says that something is missing.
        cap: Characters to keep; None keeps all.

    Raises:
        TypeError: The type of the value cannot be written as JSON.
        ValueError: Its content cannot be written as JSON, or it is too long to be kept.
        RecursionError: The value contains itself.
    """
    output = value if isinstance(value, ToolOutput) else _convert(value)
    replaced = 0
    if isinstance(output.content, str):
        content, replaced = clean_text(output.content)
        length, shown = len(content), content if cap is None else cut_middle(content, cap, name=name)
        bounded: Content = shown + _note(replaced, output.format) if content else NO_OUTPUT
    else:
        bounded, length = _bound_blocks(output.content, name=name, cap=cap, only_text=output.is_error)
    if (cap is None or cap > MAX_TEXT) and length > MAX_TEXT:
        raise ValueError(f"it has {length:,} characters, and no more than {MAX_TEXT:,} can be kept; return less of it")
    return msgspec.structs.replace(
        output,
        content=bounded,
        url=clean_text(output.url)[0],
        facts=_plain(output.facts, "facts"),
        metadata=_plain(output.metadata, "metadata"),
        truncated_from=length if cap is not None and length > cap else output.truncated_from,
    )


def _convert(value: object) -> ToolOutput:
    if value is None:
        return ToolOutput("")
    if isinstance(value, ResultLater):
        return ToolOutput(value.note, later=value)
    if isinstance(value, str):
        return ToolOutput(value)
    if isinstance(value, bytes | bytearray | memoryview):
        value = bytes(value)
        if media_type_of(value):
            return ToolOutput((media_block(value),))
        # surrogateescape keeps one mark per bad byte, so that clean_text can count them
        return ToolOutput(value.decode("utf-8", "surrogateescape"))
    blocks = blocks_of(value)
    if blocks is not None:
        return ToolOutput(blocks)
    return ToolOutput(json_text(value), format="json")


def blocks_of(value: object) -> tuple[Text | Image | RawBlock, ...] | None:
    """The blocks in a value that is a block, or a list with at least one block; None for any other value."""
    if isinstance(value, Text | Image | RawBlock):
        return (value,)
    if not isinstance(value, list | tuple):
        return None
    items = cast("Sequence[object]", value)
    if not any(isinstance(item, Text | Image | RawBlock) for item in items):
        return None
    return tuple(_block(item) for item in items)


def _block(item: object) -> Text | Image | RawBlock:
    if isinstance(item, Text | Image | RawBlock):
        return item
    return Text(item if isinstance(item, str) else json_text(item))


def _note(replaced: int, kind: str) -> str:
    if not replaced or kind == "json":
        return ""
    what = counted(replaced, "byte or character that is", "bytes or characters that are")
    return f"\n[{what} no valid text replaced by \N{REPLACEMENT CHARACTER}]"


def _bound_blocks(
    blocks: tuple[Text | Image | RawBlock, ...], *, name: str, cap: int | None, only_text: bool
) -> tuple[Content, int]:
    """Clean the text of each block in order, and cut or leave out what exceeds the cap."""
    out: list[Text | Image | RawBlock] = []
    length, room, missing = 0, cap, 0
    for block in blocks:
        # The cap is for characters to read; the API has its own limits for media.
        text, replaced = clean_text(block.text) if isinstance(block, Text) else ("", 0)
        size = len(text) if isinstance(block, Text) or is_media(block) else len(canonical_json(encode_block(block)))
        length += size
        if room == 0 and size:  # counted, as a note for each could be longer than the cap
            missing += 1
        elif isinstance(block, Text):
            shown = text if room is None else cut_middle(text, room, name=name)
            if text:  # the API refuses empty text blocks
                out.append(Text(shown + _note(replaced, "text"), block.extra))
        else:
            refusal = too_large(block)
            if room is not None and size > room:
                refusal = f"a block of {size:,} characters is left out: {name} may return {cap:,}"
            if only_text:  # the API refuses anything but text in an error
                refusal = refusal or "something that is no text is left out of this error"
            out.append(Text(f"[{refusal}]") if refusal else block)
        room = None if room is None else max(0, room - size)
    if missing:
        out.append(Text(f"[{counted(missing, 'more block')} left out: {name} may return {cap:,} characters in all]"))
    return tuple(out) or NO_OUTPUT, length


def _plain(facts: Json, what: str) -> Json:
    """Facts in the JSON form in which they are kept; a note in their place if they are not small."""
    if not facts:
        return facts
    text = json_text(facts)
    if len(text) > _MOST_FACTS:
        return {"left_out": f"{len(text):,} characters of {what}, at most {_MOST_FACTS:,} are kept"}
    plain: Json = msgspec.json.decode(clean_text(json.dumps(json.loads(text), ensure_ascii=False))[0])
    return plain


_SECRETS: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (re.compile(r"(://[^/\s:@]*:)[^@/\s]+(@)"), r"\1[redacted]\2"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}"), r"\1 [redacted]"),
    (
        re.compile(r"\b(?:sk|pk|gh[opsur]|github_pat|glpat|xox[abeprs]|AKIA|ASIA|AIza)[-_]?[A-Za-z0-9_-]{16,}"),
        "[redacted]",
    ),
    # A name is scanned once, from its beginning, and matched whole. Otherwise a name with many hyphens or keywords and
    # no value behind it would be scanned again from each of them.
    (
        re.compile(
            r"(?i)(?<![\w-])((?=[\w-]*?(?:password|passwd|secret|token|api[_-]?key))[\w-]++"
            r"[\"']?\s*[=:]\s*)[\"']?[^\s\"',;&]+"
        ),
        r"\1[redacted]",
    ),
)
_LONGEST_LINE: Final = 500  # characters that are shown of an error
_LOOKED_THROUGH: Final = 8 * _LONGEST_LINE  # of its text: blanking out credentials shortens it


def redact(text: str) -> str:
    """Blank out what looks like a credential. A safety net for foreign error texts, not a guarantee."""
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


def one_line(error: BaseException) -> str:
    """``TypeName: message`` on one line, at most 500 characters, with credentials blanked out."""
    whole = safe_str(error)
    text = " ".join(clean_text(whole[:_LOOKED_THROUGH])[0].split())
    if len(whole) > _LOOKED_THROUGH:  # half a credential would not be recognised; a single word stays
        text = text[: max(text.rfind(mark) for mark in " \"',;&")]
    message = redact(text)
    return f"{type(error).__name__}: {message}"[:_LONGEST_LINE] if message else type(error).__name__
