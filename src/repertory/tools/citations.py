"""Checking the citations in an answer, ``path:line`` or ``path:first-last``, against the files themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from repertory._counting import counted
from repertory.errors import ToolFailed, ToolRetry
from repertory.tools.confined import Folder, read_all
from repertory.tools.files import MAX_BYTES, split_lines

_CITATION = re.compile(
    r"(?<![\w/.:@+~-])(?P<path>[\w./+@~-]*[\w+@~-]):(?P<first>\d{1,7})(?:\s?[-–]\s?(?P<last>\d{1,7}))?(?![\w:])"
)
_QUOTE = re.compile(r'“([^“”]+)”|"([^"]+)"|`([^`]+)`')
_SHORTEST = 8  # characters of a quote; shorter ones are names and words, not passages


@dataclass(frozen=True, kw_only=True)
class Citation:
    """One citation.

    Attributes:
        path: The path as the answer has it, relative to the root.
        first: The first line, from 1.
        last: The last line; the same as the first if only one was given.
        quote: What the answer quotes from there; "" if it quotes nothing.
        problem: What is wrong with it; "" if nothing is.
    """

    path: str
    first: int
    last: int
    quote: str = ""
    problem: str = ""

    @property
    def resolved(self) -> bool:
        """Whether the file has these lines and they contain the quote."""
        return not self.problem


def check_citations(answer: str, root: Path) -> list[Citation]:
    """Find every citation in an answer, each place once, and check it.

    Args:
        root: The folder that the paths are relative to. Files outside of it do not count, nor files that ``view_file``
            would not show.
    """
    folder = Folder(root) if root.is_dir() else None
    return [
        Citation(path=path, first=first, last=last, quote=quote, problem=_problem(folder, path, first, last, quote))
        for path, first, last, quote in dict.fromkeys(_citations(answer))
    ]


def _citations(answer: str) -> Iterator[tuple[str, int, int, str]]:
    for line in answer.split("\n"):
        end = 0
        for match in _CITATION.finditer(line):
            path = match["path"]
            if "." not in path and "/" not in path:
                continue  # a time, a port, a verse
            first = int(match["first"])
            last = int(match["last"] or first)
            yield path, first, last, _quote(line[end : match.start()])
            end = match.end()


def _quote(before: str) -> str:
    """The passage that is quoted before a citation, and after the previous citation."""
    passages = [next(part for part in match.groups() if part is not None) for match in _QUOTE.finditer(before)]
    telling = [passage for passage in passages if len(passage) >= _SHORTEST and " " in passage.strip()]
    return telling[-1] if telling else ""


def _problem(folder: Folder | None, path: str, first: int, last: int, quote: str) -> str:
    if folder is None:
        return "there is no such folder any more"
    try:
        parts = folder.parts_of(path)
    except ToolRetry:
        return "outside of the folder"
    try:
        with folder.open_file(parts) as fd:
            data, more = read_all(fd, MAX_BYTES)
    except ToolRetry:
        return "no such file"
    except ToolFailed as error:
        return str(error)
    lines = split_lines(data)
    if more and last >= len(lines):  # the last line that was read may be incomplete
        return f"the file has more than {MAX_BYTES:,} bytes, and is not looked at beyond these"
    if not 1 <= first <= last <= len(lines):
        return f"the file has {counted(len(lines), 'line')}"
    if quote and not _contains(" ".join(lines[first - 1 : last]), quote):
        return "the quoted text is not there"
    return ""


def _contains(passage: str, quote: str) -> bool:
    """Whether the passage holds all parts of the quote, in order; an ellipsis stands for what was left out."""
    passage = " ".join(passage.split())
    at = 0
    for part in re.split(r"…|\.\.\.", quote):
        words = " ".join(part.split())
        found = passage.find(words, at)
        if found < 0:
            return False
        at = found + len(words)
    return True
