"""Relates the record of a run to what its model saw: which edit changed an entry, and which text stands for it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from repertory._json_text import canonical_json
from repertory.context import Decision
from repertory.context.plan import TRAIL, CoverRange, ExpandEntry, PinEntry, Plan, RemoveResult, StubResult, UnpinEntry
from repertory.llm.messages import Json, encode_block
from repertory.record.entries import Entry


class Marks:
    """Tells for each entry how a plan shows it, and which of the decisions that made the plan caused that."""

    def __init__(self, plan: Plan, decisions: Sequence[Decision]) -> None:
        self._plan = plan
        self._singles: dict[int, int] = {}  # which decision edited an entry last
        self._pins: dict[int, int] = {}
        covered_by: dict[tuple[int, int], int] = {}
        for index, decision in enumerate(decisions):
            for edit in decision.edits:
                match edit:
                    case StubResult() | RemoveResult() | ExpandEntry():
                        self._singles[edit.position] = index
                    case PinEntry() | UnpinEntry():
                        self._pins[edit.position] = index
                    case CoverRange():
                        covered_by[edit.first, edit.last] = index
                    case _:
                        pass
        self._covers: dict[int, tuple[CoverRange, int]] = {}
        for cover in plan.covers:
            for position in range(cover.first, cover.last + 1):
                self._covers[position] = cover, covered_by[cover.first, cover.last]

    def of(self, entry: Entry) -> Json:
        """How an entry is shown, for the record.

        ``mark`` is the word for it: ``""`` (unchanged), ``shaped`` on arrival, ``folded`` into a trail,
        ``summarized``, ``removed``, ``expanded``, or why a result is shortened, such as ``expired``. ``decision`` is
        the number of the decision behind it, None if there is none. ``tokens_shown`` is what it costs in the prompt,
        None if it shares a text with others: ``stands_for`` has the first and last of these.
        """
        at, shown = entry.position, self._plan.representation(entry)
        pinned = at in self._plan.pins
        said: Json = {"shown": shown, "mark": "", "pinned": pinned, "stands_for": None, "tokens_shown": entry.tokens}
        said["decision"] = self._singles.get(at, self._pins.get(at) if pinned else None)
        if shown == "covered":
            cover, said["decision"] = self._covers[at]
            said["mark"] = "folded" if cover.strategy == TRAIL else "summarized"
            said["stands_for"], said["tokens_shown"] = (cover.first, cover.last), None
            return said
        edit = self._plan.shown.get(at)
        if edit is None:
            said["mark"] = shown if shown == "shaped" else ""
            said["decision"] = self._pins.get(at) if pinned else None
            return said
        said["mark"] = (edit.why or "shortened") if isinstance(edit, StubResult) else shown
        said["tokens_shown"] = edit.tokens
        return said


def places(messages: Sequence[Json], entries: Sequence[Entry]) -> list[list[int | None]]:
    """For each block of each message of a request, the position of the entry that it shows; None if the block stands
    for a stretch, or is not in the ledger.

    A result is identified by its call, everything else by its text; among equal ones the next is taken.
    """
    results = {entry.tool_call_id: entry.position for entry in entries if entry.tool_call_id is not None}
    others: dict[bytes, list[int]] = {}
    for entry in entries:
        for held in entry.content:
            others.setdefault(canonical_json(encode_block(held)), []).append(entry.position)
    found: list[list[int | None]] = []
    last = -1
    for message in messages:
        line: list[int | None] = []
        for block in wire_blocks(message["content"]):
            if block.get("type") == "tool_result":
                at = results.get(str(block.get("tool_use_id")))
            else:
                bare = {name: value for name, value in block.items() if name != "cache_control"}
                equal = others.get(canonical_json(bare), [])
                at = equal[min(bisect_left(equal, last), len(equal) - 1)] if equal else None
            line.append(at)
            last = last if at is None else at
        found.append(line)
    return found


def wire_blocks(content: str | Sequence[Json]) -> Sequence[Json]:
    """The blocks of a content in its wire format, in which a text may stand alone."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
