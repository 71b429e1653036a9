"""Extracts the words of blocks, and what may be needed again: lines, and identifiers found by their shape.

There are several tokenizers, because what counts as one identifier is a matter of taste; a figure that holds for all of
them is not an artefact of one.

A result may be megabytes of base64, so each pattern must take time in proportion to the text: it reads a run of its
characters only from the run's beginning, to its end or up to a bound, and the next search begins after what was read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from repertory.llm.features import is_compaction
from repertory.llm.messages import Block, RawBlock, Text, ToolUse, text_of

_GUTTER = re.compile(r"\s*\d+(?:[→\t|:]|-(?![\d-]))")  # of `cat -n`, `grep -n`, file viewers
_MATCH = re.compile(r"[\w./@-]+[:-]\d+[:-]")  # what `grep` puts before a line when it searches many files
_MIN_LINE = 12  # fewest characters of a line that says more than a bracket or a keyword
_PATH_RUN = re.compile(r"[\w.\-@~/]+")  # a run, matched whatever it holds: it is not searched again from its middle
_PATH = re.compile(r".*/[\w.\-@]+")  # within such a run: up to the last slash before a name, and that name
_URL = re.compile(r"https?://[^\s\"'<>)\]\\]+")
_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{3,}")
_NUMBER = re.compile(r"(?<![\w.])\d{3,}(?!\w)")  # whole, of three digits or more
_HEX = re.compile(  # hashes and UUIDs
    r"(?<!\w)(?:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{20,}|(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,40})(?!\w)"
)
_KEY = re.compile(r"[\"'`]([A-Za-z0-9_.\-/:]{4,60})[\"'`]")  # short words in quotes, such as keys and values
_RUN = re.compile(r"[\w./:@\-]{4,}")
_INNER = re.compile(r"[a-z][A-Z]|[A-Z]{2,}[a-z]|_|\d|\w\.\w")  # distinguishes a name from a word

_LONGEST = 200


def leaves(value: Any) -> str:
    """Return the keys, strings and numbers of a JSON value, one a line, unescaped."""
    parts: list[str] = []
    stack = [value]  # no recursion: a recording may be nested arbitrarily deep
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
    """Return the words of a turn: its text and the arguments of its calls."""
    parts: list[str] = []
    for block in content:
        if isinstance(block, Text):
            parts.append(block.text)
        elif isinstance(block, ToolUse):
            parts.append(leaves(block.input))
    return "\n".join(parts)


def words_of(block: Block) -> str:
    """Return what a reader sees of a block: text, a result's text, the values of a call's arguments, a summary."""
    if isinstance(block, RawBlock):
        source = block.raw.get("source")
        document = source.get("data") if isinstance(source, dict) and source.get("type") == "text" else ""
        return str(block.raw.get("content") or "") if is_compaction(block) else str(document or "")
    if isinstance(block, ToolUse):
        return f"{block.name}\n{leaves(block.input)}"
    return text_of(block)


def without_gutter(line: str) -> str:
    """Remove the number that a viewer puts before a line, and the space around it."""
    gutter = _GUTTER.match(line)
    return line[gutter.end() if gutter else 0 :].strip()


def bare_line(line: str) -> str:
    """Remove the number, or the file and the number, that a search puts before a line."""
    found = _MATCH.match(line)
    return line[found.end() :].strip() if found else without_gutter(line)


def lines_of(text: str) -> set[str]:
    """Return the meaningful lines of a text: of at least twelve characters and two words, without any prefix."""
    lines = (bare_line(line) for line in text.splitlines())
    return {line for line in lines if len(line) >= _MIN_LINE and len(line.split(None, 1)) == 2}


def places_of(name: str, text: str) -> Iterator[int]:
    """Yield where a name occurs in a text, except as part of a longer word."""
    at = text.find(name)
    while at >= 0:
        end = at + len(name)
        if not (_in_word(text[at - 1 : at]) or _in_word(text[end : end + 1])):
            yield at
        at = text.find(name, at + 1)


def _in_word(character: str) -> bool:
    return character.isalnum() or character == "_"


# --- identifiers ------------------------------------------------------------------------------------------


def paths(text: str) -> set[str]:
    """Find paths of files and addresses of pages."""
    matches = (_PATH.match(run) for run in set(_PATH_RUN.findall(text)) if "/" in run)
    found = {match[0].rstrip("./-:@") for match in matches if match is not None}
    found = {path for path in found if "/" in path[1:] and path[:2] != "//" and any(c.isalpha() for c in path)}
    return {path for path in found | {url.rstrip(".,") for url in _URL.findall(text)} if 5 <= len(path) < _LONGEST}


def symbols(text: str) -> set[str]:
    """Find names in programs: ``snake_case``, ``camelCase``, ``dotted.names``, words with digits."""
    return {name for raw in set(_SYMBOL.findall(text)) if 4 <= len(name := raw.strip(".")) < 80 and _INNER.search(name)}


def _every(pattern: re.Pattern[str]) -> Callable[[str], set[str]]:
    return lambda text: set(pattern.findall(text))


def runs(text: str) -> set[str]:
    """Find maximal runs of the characters of names, including marks between their parts."""
    found = (raw.strip("./:-@") for raw in set(_RUN.findall(text)))
    return {run for run in found if 4 <= len(run) < 120 and (_INNER.search(run) or any(c in run for c in "/-:"))}


TOKENIZERS: Mapping[str, Callable[[str], set[str]]] = {
    "paths": paths,
    "symbols": symbols,
    "numbers": _every(_NUMBER),
    "hex": _every(_HEX),
    "keys": _every(_KEY),
    "runs": runs,
}
"""The tokenizers by their names in a report, which adds ``union``: whatever any of them finds."""


def tokens_of(text: str) -> dict[str, list[str]]:
    """Return the identifiers in a text, each with the tokenizers that find it, and its lines, which none of them finds.

    An identifier has no space in it and a line has one, so nothing is both.
    """
    found: dict[str, list[str]] = {line: [] for line in lines_of(text)}
    for kind, tokenize in TOKENIZERS.items():
        for name in tokenize(text):
            found.setdefault(name, []).append(kind)
    return found
