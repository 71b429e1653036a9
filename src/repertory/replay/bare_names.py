"""How much of a text is names with nothing around them: the part of a view that no model can work from."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator

from repertory.replay.words import bare_line, without_gutter

_CUT = 40  # characters from which on the beginning of a line is known again, where it was cut
_LONGEST = 200  # characters of a name that are looked at
_ROW = 3  # names; two also stand side by side in a sentence
_BULLET = re.compile(r"\s*(?:[-*>•·+→]|\d+[.):]|L\d+:?|\[[\w \-–]+\])\s+")
_TOKEN = re.compile(r"[^\s,;|]+")
_NAME = re.compile(r"[a-z][A-Z]|[A-Z]{2,}[a-z]|_|\d|\w[./]\w|^[.~]?/\w|^--?\w|\w-\w+-\w")  # no plain word, by its shape
_CODE = re.compile(r"[=+*<>{}\[\]$&!?\\\"(]")  # of a piece of code or of a call
_MARKS = re.compile(r"[\W_]+")


class BareNames:
    """Tells names from what says something: whole lines of the recording, calls, sentences.

    Args:
        sources: All texts of the recording. A line of theirs is no list of names, whatever stands in it.
        tools: The names of the tools that were called.
    """

    def __init__(self, sources: Iterable[str], tools: Iterable[str]) -> None:
        lines = {line for text in sources for raw in text.splitlines() for line in (bare_line(raw), raw.strip())}
        self._lines = lines
        self._sorted = sorted(line for line in lines if len(line) > _CUT)
        named = "|".join(map(re.escape, sorted(tools, key=len, reverse=True))) or r"\b\B"
        self._call = re.compile(rf"(?<!\w)(?:\w+\(|(?:{named})(?:[ :]?\s*[({{\[\"']|:|\s+\w+=))")

    def count(self, text: str) -> tuple[int, int]:
        """Count the characters of a text.

        Returns:
            Those of bare names, and all but the space around lines.
        """
        lines = text.splitlines()
        bare = sum(end - begin for line in lines for begin, end in self._spans(line))
        return bare, sum(len(line.strip()) for line in lines)

    def _spans(self, line: str) -> Iterator[tuple[int, int]]:
        """Where names stand bare: three and more in a row, or nothing else on the line."""
        bullet = _BULLET.match(line)
        begin = bullet.end() if bullet else 0
        if self._is_source(line) or self._is_source(line[begin:]):
            return
        called = self._call.search(line, begin)
        if called:  # what its arguments name has a call around it; where its end was cut off, all that follows
            end = line.rfind(")", called.end()) + 1 if called[0].endswith("(") else 0
            line = f"{line[: called.start()]}{'(' * ((end or len(line)) - called.start())}{line[end or len(line) :]}"
        row: list[tuple[int, int]] = []
        others = 0
        for token in _TOKEN.finditer(line, begin):
            word = token[0][:_LONGEST]
            if _CODE.search(word) or not (_NAME.search(word) or _MARKS.fullmatch(word)):
                others += 1
                if len(row) >= _ROW:
                    yield row[0][0], row[-1][1]
                row = []
            elif not _MARKS.fullmatch(word):  # a dash or an arrow may stand between two
                row.append(token.span())
        if len(row) >= _ROW or (row and not others):
            yield row[0][0], row[-1][1]

    def _is_source(self, line: str) -> bool:
        """Whether a line is one of the recording, or the beginning of a long one."""
        return any(
            known in self._lines or self._begins(known.partition("…")[0].rstrip())
            for known in (line.strip(), bare_line(line), without_gutter(line))
            if known
        )

    def _begins(self, part: str) -> bool:
        at = bisect_left(self._sorted, part)
        return len(part) >= _CUT and at < len(self._sorted) and self._sorted[at].startswith(part)
