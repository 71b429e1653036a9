"""The words of blocks: what a reader sees, what a turn says, the lines in it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from repertory.llm.messages import Block, RawBlock, Text, ToolUse, text_of

_GUTTER = re.compile(r"\s*\d+(?:[→\t|:]|-(?![\d-]))")  # of `cat -n`, `grep -n`, file viewers
_MATCH = re.compile(r"[\w./@-]+[:-]\d+[:-]")  # what `grep` puts before a line of many files
_LEAST = 12  # characters from which on a line says more than a bracket or a keyword


def leaves(value: Any) -> str:
    """The keys, strings and numbers of a JSON value, one a line, unescaped."""
    parts: list[str] = []
    stack = [value]  # and no recursion: nobody says how deep a recording goes
    while stack:
        match stack.pop():
            case dict() as inner if inner:
                stack.extend(part for pair in reversed(inner.items()) for part in reversed(pair))
            case [*inner] if inner:
                stack.extend(reversed(inner))
            case dict() | []:
                parts.append("")
            case leaf:
                parts.append(str(leaf))
    return "\n".join(parts)


def spoken(content: Sequence[Block]) -> str:
    """The words of a turn: its text and the arguments of its calls."""
    parts: list[str] = []
    for block in content:
        if isinstance(block, Text):
            parts.append(block.text)
        elif isinstance(block, ToolUse):
            parts.append(leaves(block.input))
    return "\n".join(parts)


def words_of(block: Block) -> str:
    """What a reader sees of a block: text, a result's text, the values of a call's arguments, a summary."""
    if isinstance(block, RawBlock):
        return str(block.raw.get("content") or "") if is_summary(block) else ""
    if isinstance(block, ToolUse):
        return f"{block.name}\n{leaves(block.input)}"
    return text_of(block)


def is_summary(block: Block) -> bool:
    """Whether a block is the provider's signed summary of what came before it."""
    return isinstance(block, RawBlock) and block.raw.get("type") == "compaction"


def without_gutter(line: str) -> str:
    """A line without the number that a viewer puts before it, and without the space around it."""
    gutter = _GUTTER.match(line)
    return line[gutter.end() if gutter else 0 :].strip()


def bare_line(line: str) -> str:
    """A line without the number, or the file and the number, that a search puts before it."""
    found = _MATCH.match(line)
    return line[found.end() :].strip() if found else without_gutter(line)


def lines_of(text: str) -> set[str]:
    """The lines of a text that say something: of twelve characters and two words, nothing put before them."""
    lines = (bare_line(line) for line in text.splitlines())
    return {line for line in lines if len(line) >= _LEAST and len(line.split(None, 1)) == 2}


def places_of(name: str, text: str) -> Iterator[int]:
    """Where a name stands in a text, and not as a part of a longer word."""
    at = text.find(name)
    while at >= 0:
        end = at + len(name)
        if not (_in_word(text[at - 1 : at]) or _in_word(text[end : end + 1])):
            yield at
        at = text.find(name, at + 1)


def _in_word(character: str) -> bool:
    return character.isalnum() or character == "_"
