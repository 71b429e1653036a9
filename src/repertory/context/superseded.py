"""Results that were asked for again later: by the same call, or by one whose result holds all that they hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from repertory._cutting import LOOKED_AT
from repertory._json_text import canonical_json
from repertory.llm.messages import ToolUse, text_of, tool_uses
from repertory.record.entries import Entry
from repertory.shortening.shaping import failed


class Superseded:
    """Follows the uncovered results of one run.

    Attributes:
        newer: For the position of each result whose call was made again for the same or a wider range: the position of
            the newer result.
    """

    def __init__(self) -> None:
        self.newer: dict[int, int] = {}
        self._calls: dict[str, tuple[int, int]] = {}  # by id, while they are open
        self._reads: dict[int, list[_Read]] = {}  # by hash, the newest results of similar calls
        self._start = 0
        self._position = 0

    def follow(self, snapshot: Sequence[Entry], start: int) -> None:
        """Take in the new entries; those below ``start`` are covered, and are forgotten."""
        if start != self._start:
            self._start, self._position = start, max(start, self._position)
            self.newer = {at: newer for at, newer in self.newer.items() if at >= start}
            remaining = (
                (kind, [read for read in reads if read.entry.position >= start]) for kind, reads in self._reads.items()
            )
            self._reads = {kind: reads for kind, reads in remaining if reads}
        for entry in snapshot[self._position :]:
            for use in tool_uses(entry.content) if entry.role == "assistant" else ():
                self._calls[use.id] = _hashes_of(use)
            call = self._calls.pop(entry.tool_call_id or "", None)
            # A failed result, or one that only points to an earlier result, supersedes nothing.
            if call is not None and not failed(entry) and not entry.deduplicated_from:
                self._add_read(entry, *call)
        self._position = len(snapshot)

    def _add_read(self, entry: Entry, exact: int, kind: int) -> None:
        text = text_of(entry.content)
        reads = self._reads.setdefault(kind, [])
        for older in reads:
            if older.call == exact or (older.probe and older.probe in text and _contains_lines(text, older.entry)):
                self.newer[older.entry.position] = entry.position
        reads[:] = [older for older in reads if older.entry.position not in self.newer]
        probe = max(text[:LOOKED_AT].splitlines()[1:-1], key=len, default="")
        reads.append(_Read(entry, exact, probe))


class _Read(NamedTuple):
    """A result, the hash of its call, and a long line of it: a text without that line need not be compared."""

    entry: Entry
    call: int
    probe: str


def _hashes_of(call: ToolUse) -> tuple[int, int]:
    """Return two hashes of a call: of its tool and arguments in any order, and of the same without any range."""
    kind = {name: value for name, value in call.input.items() if not _is_range(value)}
    return hash((call.name, canonical_json(call.input))), hash((call.name, canonical_json(kind)))


def _is_range(value: object) -> bool:
    """Whether an argument may say which part is wanted: an integer, a list of integers, or null."""
    if isinstance(value, list):
        numbers: list[object] = value
        return all(isinstance(number, int) for number in numbers)
    return value is None or isinstance(value, int)


def _contains_lines(text: str, older: Entry) -> bool:
    """Whether a text has all lines of a result, except the first and last, in which tools say what range they show."""
    return set(text_of(older.content).splitlines()[1:-1]) <= set(text.splitlines())
