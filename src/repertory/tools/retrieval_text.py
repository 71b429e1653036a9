"""Messages as retrieval shows them: a heading, then their words, some of their lines, or a hint."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from repertory._counting import counted
from repertory._excerpts import Lines
from repertory.errors import ToolRetry
from repertory.llm.messages import Block, Image, RawBlock, Text, ToolResult, ToolUse, is_media, text_of
from repertory.record.entries import Entry, Part
from repertory.record.rows import encode_json
from repertory.shortening.compactors import compact
from repertory.tools.context import ContentReader

_HINT_CHARS: Final = 200


class Piece(NamedTuple):
    """A message as it is shown: a heading, then its words, which begin at offset ``start`` of their source."""

    head: str
    words: str
    source: str
    start: int = 0

    @property
    def text(self) -> str:
        """The heading and the words."""
        return f"{self.head}\n{self.words}"


def parts_of(pieces: Sequence[Piece], start: int, end: int, at: int) -> list[Part]:
    """The parts that a page of pieces, joined by empty lines, brings back; the page begins at ``at`` of its text."""
    found: list[Part] = []
    offset = 0
    for piece in pieces:
        words = offset + len(piece.head) + 1
        first, last = max(start, words), min(end, offset + len(piece.text))
        if first < last:
            begin = piece.start + first - words
            found.append(Part(piece.source, begin, begin + last - first, at + first - start))
        offset += len(piece.text) + 2
    return found


async def render(entry: Entry, contents: ContentReader | None, *, lines: tuple[int, int] | None = None) -> Piece:
    """One message, or a range of its lines, from 1; a last line of 0 means the end."""
    body, note, source = await _body(entry, contents)
    if lines is None:
        return Piece(_head(entry, f"{counted(len(body), 'character')}{note}"), body, source)
    within = Lines(body)
    first, last = line_range(f"the message at position {entry.position}", within.count, *lines)
    head = _head(entry, f"lines {first}-{last} of {within.count}{note}")
    start, end = within.slice(first, last)
    return Piece(head, body[start:end], source, start)


async def hint_of(entry: Entry, contents: ContentReader | None) -> Piece:
    """What a message is about, and how long it is."""
    body, note, source = await _body(entry, contents)
    count = Lines(body).count
    head = _head(entry, counted(count, "line"), f"{counted(len(body), 'character')}{note}")
    return Piece(head, compact(body, _HINT_CHARS, tool=entry.tool or ""), f"hint of {source}")


async def _body(entry: Entry, contents: ContentReader | None) -> tuple[str, str, str]:
    """The whole of a message, a note of what is missing, and the name of its source."""
    body, here = "\n".join(words_in(entry.content)), f"position {entry.position}"
    if entry.content_id is not None and not entry.original_length and not entry.deduplicated_from:
        return body, "", entry.content_id
    if entry.content_id is not None:
        stored = None if contents is None else await contents.read_content(entry.content_id)
        if stored is not None and stored.body:
            return stored.body, "", entry.content_id
        if entry.original_length > len(body):
            return body, f", all that is left of {entry.original_length:,}", here
    return body, "", here


def line_range(what: str, count: int, first: int, last: int) -> tuple[int, int]:
    """The first and last line of a range, from 1, both included, in a text of ``count`` lines; 0 means the end.

    Raises:
        ToolRetry: The range is empty.
    """
    if last and first > last:
        raise ToolRetry(f"start_line {first} comes after end_line {last}; {what} has {counted(count, 'line')}")
    if first > count:
        raise ToolRetry(f"{what} has {counted(count, 'line')}, so there is nothing from line {first} on")
    return first, min(last or count, count)


def _head(entry: Entry, *lengths: str) -> str:
    marks = [f"position {entry.position}", f"iteration {entry.iteration}", entry.kind]
    marks += [mark for mark in (entry.tool, entry.tool_call_id, entry.content_id) if mark]
    return f"--- {' · '.join([*marks, *lengths])}"


def media_of(entry: Entry) -> list[Image | RawBlock]:
    """The images and documents of a result, to be shown again."""
    inside = [block.content for block in entry.content if isinstance(block, ToolResult)]
    parts = [part for content in inside if not isinstance(content, str) for part in content]
    return [part for part in parts if not isinstance(part, Text) and is_media(part)]


def words_in(content: Iterable[Block]) -> list[str]:
    """The words of a message, its calls spelled out, without its reasoning."""
    lines: list[str] = []
    for block in content:
        if isinstance(block, ToolUse):
            lines.append(f"[call {block.id}] {block.name} {encode_json(block.input)}")
        elif isinstance(block, Image | RawBlock):
            lines.append(f"[{'image' if isinstance(block, Image) else block.raw.get('type', 'block')}]")
        elif text := text_of(block):
            lines.append(text)
    return lines
