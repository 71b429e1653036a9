"""Digest lines: what stands for an entry once it is old. Made once for each entry, ahead of time, in small pieces.

A line is the gist of what the agent said or called, and the names of a result that stand nowhere else in the part of
the view that lasts and are worth their characters. The answers follow from the record and the plan alone; working
ahead only changes when the time is spent.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import takewhile

from repertory.context.extractive import call_line
from repertory.context.live import Live, is_spoken
from repertory.context.names import clip, trouble_lines
from repertory.context.plan import Cover, shared_covers
from repertory.context.shaping import own_words
from repertory.context.stubs import words_asked_for
from repertory.context.vocabulary import (
    BATCH,
    CHUNK,
    LEAST_WORTH,
    MOST_READ,
    Standing,
    Vocabulary,
    count_names,
    names_of,
    values_of,
)
from repertory.llm.messages import Text, ToolResult, ToolUse, text_of
from repertory.record.entries import Entry

OWN = ("digest", "merged")
"""Strategies of the covers that are made here."""
_SAID_CHARS = 200
_AHEAD = 3  # iterations of slack for reading
_MOST_PIECES = 10  # of work at each call, where nothing is due yet
_PIECES = 8  # of work at each call, where nothing is due


class Ageing:
    """The lines of one run's entries, from the plan's start on."""

    def __init__(self, live: Live) -> None:
        """Begin at the beginning of a view's record."""
        plan, policy = live.plan, live.policy
        self._live = live
        self._policy = policy
        self.retrieval = policy.retrieval  # whether heads of digests name the tool that shows the originals
        self._later = max(0, policy.window - _AHEAD)  # iterations after an entry's own that its line may know of
        self.vocabulary = Vocabulary()
        self.standing = Standing()
        self._found: dict[int, dict[str, int]] = {}  # names of results that no cover includes
        self._words: list[tuple[int, list[str]]] = []  # what users said, of entries that have their line
        self._read = 0  # entries below are in the vocabulary
        self._aged = 0  # entries below have their line, or are covered
        self.start = plan.start  # the entry of the first line
        self._lines: list[str] = []
        self._chars = [0]  # of so many lines together
        self._reading: Iterator[None] | None = None
        self._making: Iterator[None] | None = None
        for cover in plan.covers:
            self.standing.put(*lines_of(cover))

    # --- asking -------------------------------------------------------------------------------------------

    def lines(self, first: int, upto: int) -> list[str]:
        """The lines of the entries from ``first`` on; "" where nothing of an entry needs to stay."""
        return self._lines[first - self.start : upto - self.start]

    def chars(self, upto: int) -> int:
        """How long the lines below a position are together."""
        return self._chars[max(0, upto - self.start)]

    def known_by(self, entry: Entry) -> int:
        """The iteration up to which the record is read once an entry has its line."""
        return entry.iteration + self._later

    def names_to_keep(self, entry: Entry, *, least: float) -> list[str]:
        """The names of a result that no cover includes which are worth that much and stand nowhere else that lasts."""
        found = self._found.get(entry.position, {})
        standing: Container[str] = self.standing
        if entry.position < self._aged:
            # Its line was made ahead, so what is in the line counts as standing; but the line is not in view yet.
            (line,) = self.lines(entry.position, entry.position + 1)
            found = {name: found[name] for name in names_of(line) if name in found}
            standing = ()
        return self.vocabulary.choose(found, standing, as_of=entry.iteration, least=least)

    # --- working ------------------------------------------------------------------------------------------

    def work(self, snapshot: Sequence[Entry], upto: int) -> bool:
        """See that every entry below a position has its line, and work a little ahead; whether little was to do."""
        while self._aged < upto:
            self._age(snapshot)
        done = self._keep_pace(snapshot)
        for left in range(_PIECES - done, 0, -1):
            if not self._step(snapshot):
                return left > _PIECES // 2
        return False

    def _keep_pace(self, snapshot: Sequence[Entry]) -> int:
        """Do so much now that what came at once is not due at once; how many pieces that was."""
        newest = snapshot[-1].iteration
        unread = (
            (min(4 * entry.tokens, MOST_READ) / CHUNK if entry.tool_call_id is not None else 0, entry.iteration)
            for entry in snapshot[self._read :]
        )
        pieces = _pace(unread, self._policy.window - self._later - newest)
        for _ in range(pieces):
            self._read_on(snapshot)
            if self._read == len(snapshot):
                break
        due = takewhile(lambda entry: self._can_age(entry, newest), snapshot[self._aged : self._read])
        unmade = ((len(self._found.get(entry.position, ())) / BATCH, entry.iteration) for entry in due)
        lines = _pace(unmade, self._policy.window - newest)
        for _ in range(lines):
            if not (self._aged < len(snapshot) and self._can_age(snapshot[self._aged], newest)):
                break
            self._age(snapshot)
        return pieces + lines

    def _can_age(self, entry: Entry, newest: int) -> bool:
        return entry.iteration + self._later < newest

    def finish(self, snapshot: Sequence[Entry]) -> None:
        """Do all the work there is, so that what stands does not depend on how far ahead it was done."""
        while self._step(snapshot):
            pass

    def _step(self, snapshot: Sequence[Entry]) -> bool:
        """Do one piece of work that will be due; whether there was any."""
        if self._read < len(snapshot):
            self._read_on(snapshot)
            return True
        if self._aged < len(snapshot) and self._can_age(snapshot[self._aged], snapshot[-1].iteration):
            self._age(snapshot)
            return True
        return False

    def _read_on(self, snapshot: Sequence[Entry]) -> None:
        """Read one piece of one entry."""
        if self._reading is None:
            self._reading = self._reads(snapshot[self._read])
        if next(self._reading, self) is self:
            self._reading = None
            self._read += 1

    def _reads(self, entry: Entry) -> Iterator[None]:
        if entry.tool_call_id is not None:
            counted: dict[str, int] = {}
            for counted in count_names("\n".join(own_words(entry))):  # noqa: B007 - the last one counts
                yield
            yield from self.vocabulary.saw(counted, entry.iteration)
            if entry.position >= self.start:
                self._found[entry.position] = counted
        elif entry.role == "assistant":
            for block in entry.content:
                self.vocabulary.use(said(block), entry.iteration)

    def _age(self, snapshot: Sequence[Entry]) -> None:
        """Make one piece of the next entry's line."""
        entry = snapshot[self._aged]
        as_of = self.known_by(entry)
        while self._read < len(snapshot) and snapshot[self._read].iteration <= as_of:
            self._read_on(snapshot)
        if self._making is None:
            self._making = self._makes(entry, as_of)
        if next(self._making, self) is self:
            self._making = None
            self._aged += 1

    def _makes(self, entry: Entry, as_of: int) -> Iterator[None]:
        found = self._found.get(entry.position, {})
        line = ""
        if entry.position >= self.start:
            for line in self._line(entry, found, as_of):  # noqa: B007 - the last one counts
                yield
        if is_spoken(entry, self._policy):
            words = text_of(entry.content).split("\n")
            self._words.append((entry.position, words))
            self.standing.put(*words)
        if entry.position >= self.start:
            self.standing.put(line)
            self._lines.append(line)
            self._chars.append(self._chars[-1] + len(line) + 1 if line else self._chars[-1])

    def _line(self, entry: Entry, found: dict[str, int], as_of: int) -> Iterator[str]:
        rules = self._live.rules(entry.tool)
        if is_spoken(entry, self._policy) or entry.position in self._live.plan.pins or rules.pin:
            return  # stays verbatim
        if entry.tool_call_id is not None:
            asked = " ".join(words_asked_for(entry, rules, "").split())
            if asked:
                yield f"> {asked}"
                return
            least = LEAST_WORTH / max(rules.importance, 0.01)
            names: list[str] = []
            for names in self.vocabulary.choosing(found, self.standing, as_of=as_of, least=least):  # noqa: B007
                yield ""
            wrong = any(isinstance(block, ToolResult) and block.is_error for block in entry.content)
            trouble = trouble_lines(text_of(entry.content), most=1, width=120) if wrong else []
            yield " ".join([">", *trouble, *names]) if trouble or names else ""
            return
        if entry.role == "user":
            yield clip(text_of(entry.content), _SAID_CHARS)
            return
        gists = [gist for block in entry.content if (gist := _gist(block))]
        gist = f"{entry.iteration}. {' / '.join(gists)}"
        known = {
            name: 1
            for block in entry.content
            for name in names_of(said(block))
            if self.vocabulary.is_known(name, as_of) and name not in gist
        }
        yield " ".join([gist, *self.vocabulary.choose(known, self.standing, as_of=as_of)])

    # --- following the plan -------------------------------------------------------------------------------

    def follow(self, live: Live, *, standing: Standing | None = None, upto: int = 0) -> None:
        """Take over a changed plan. Lines that were made ahead stay where the old ones stand in a digest now.

        Args:
            live: Its view.
            standing: The names in its covers in front of ``upto``, where they are known; from then on it belongs to
                this object.
            upto: A position.
        """
        old, plan = self._live.plan, live.plan
        self._live = live
        if plan.covers is old.covers and plan.pins == old.pins:
            return
        same = shared_covers(old.covers, plan.covers)
        gone = [line for line in self.lines(self.start, plan.start) if line]
        new = [line for cover in plan.covers[same:] for line in lines_of(cover)]
        kept = same == len(old.covers) and plan.pins == old.pins and new == gone
        passed = min(plan.start - self.start, len(self._lines)) if kept else len(self._lines)
        self._lines = self._lines[passed:]
        base = self._chars[passed]
        self._chars = [chars - base for chars in self._chars[passed:]]
        for position in range(self.start, plan.start):
            self._found.pop(position, None)
        self.start = plan.start
        if not kept:
            self._again(Standing() if standing is None else standing, upto)

    def _again(self, standing: Standing, upto: int) -> None:
        """Make the lines from the plan's start on anew; one that is not finished too."""
        self._making = None
        self._aged = min(self._aged, self.start)
        self._words = [(position, words) for position, words in self._words if position < self._aged]
        self.standing = standing
        for cover in self._live.plan.covers:
            if cover.last >= upto:
                self.standing.put(*lines_of(cover))
        for _, words in self._words:
            self.standing.put(*words)


def _pace(work: Iterable[tuple[float, int]], later: int) -> int:
    """Pieces to do at this call of work that is due so many calls after its iteration, in the order given."""
    total, pace = 0.0, 0.0
    for pieces, iteration in work:
        total += pieces
        pace = max(pace, total / max(1, iteration + later + 1))
    return min(_MOST_PIECES, math.ceil(pace))


def lines_of(cover: Cover) -> list[str]:
    """The lines of a cover; without the head, where it is a digest."""
    text = "\n".join(block.text for block in cover.content if isinstance(block, Text))
    lines = [line for line in text.split("\n") if line]
    return lines[1:] if cover.strategy in OWN else lines


def said(block: object) -> str:
    """What the agent says with a block: its words, or what it asks a tool for."""
    if isinstance(block, ToolUse):
        return values_of(block.input)
    return block.text if isinstance(block, Text) else ""


def _gist(block: object) -> str:
    if isinstance(block, ToolUse):
        return call_line(block.name, block.input)
    return clip(block.text, _SAID_CHARS) if isinstance(block, Text) else ""
