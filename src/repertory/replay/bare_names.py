"""Measures how much of a text is names without context: the part of a view that no model can work from."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator

from repertory.replay.words import bare_line, without_gutter

_MIN_START = 40  # fewest characters by which the beginning of a cut line is recognized
_MAX_NAME = 200  # characters of a name that are examined
_MIN_ROW = 3  # names; two can also be neighbours in a sentence
_BULLET = re.compile(r"\s*(?:[-*>•·+→]|\d+[.):]|L\d+:?|\[[\w \-–]+\])\s+")
_TOKEN = re.compile(r"[^\s,;|]+")
_NAME = re.compile(r"[a-z][A-Z]|[A-Z]{2,}[a-z]|_|\d|\w[./]\w|^[.~]?/\w|^--?\w|\w-\w+-\w")  # no plain word, by its shape
_CODE = re.compile(r"[=+*<>{}\[\]$&!?\\\"(]")  # of a piece of code or of a call
_MARKS = re.compile(r"[\W_]+")


class BareNames:
    """Distinguishes bare names from meaningful text: whole lines of the recording, calls, sentences.

    Args:
        sources: All texts of the recording. Their lines never count as lists of names, whatever is in them.
        tools: The names of the tools that were called.
    """

    def __init__(self, sources: Iterable[str], tools: Iterable[str]) -> None:
        lines = {line for text in sources for raw in text.splitlines() for line in (bare_line(raw), raw.strip())}
        self._lines = lines
        self._sorted = sorted(line for line in lines if len(line) > _MIN_START)
        named = "|".join(map(re.escape, sorted(tools, key=len, reverse=True))) or r"\b\B"
        self._call = re.compile(rf"(?<!\w)(?:\w+\(|(?:{named})(?:[ :]?\s*[({{\[\"']|:|\s+\w+=))")

    def count(self, text: str) -> tuple[int, int]:
        """Count the characters of a text.

        Returns:
            The characters of bare names, and all characters except the space around lines.
        """
        lines = text.splitlines()
        bare = sum(end - begin for line in lines for begin, end in self._spans(line))
        return bare, sum(len(line.strip()) for line in lines)

    def _spans(self, line: str) -> Iterator[tuple[int, int]]:
        """Find bare names: three or more in a row, or nothing else on the line."""
        bullet = _BULLET.match(line)
        begin = bullet.end() if bullet else 0
        if self._is_source(line) or self._is_source(line[begin:]):
            return
        called = self._call.search(line, begin)
        if called:  # names in its arguments are not bare; if its end was cut off, nothing that follows is
            end = line.rfind(")", called.end()) + 1 if called[0].endswith("(") else 0
            line = f"{line[: called.start()]}{'(' * ((end or len(line)) - called.start())}{line[end or len(line) :]}"
        row: list[tuple[int, int]] = []
        others = 0
        for token in _TOKEN.finditer(line, begin):
            word = token[0][:_MAX_NAME]
            if _CODE.search(word) or not (_NAME.search(word) or _MARKS.fullmatch(word)):
                others += 1
                if len(row) >= _MIN_ROW:
                    yield row[0][0], row[-1][1]
                row = []
            elif not _MARKS.fullmatch(word):  # there may be a dash or an arrow between two
                row.append(token.span())
        if len(row) >= _MIN_ROW or (row and not others):
            yield row[0][0], row[-1][1]

    def _is_source(self, line: str) -> bool:
        """Whether a line is in the recording, or is the beginning of a long line there."""
        return any(
            known in self._lines or self._is_line_start(known.partition("…")[0].rstrip())
            for known in (line.strip(), bare_line(line), without_gutter(line))
            if known
        )

    def _is_line_start(self, part: str) -> bool:
        at = bisect_left(self._sorted, part)
        return len(part) >= _MIN_START and at < len(self._sorted) and self._sorted[at].startswith(part)
