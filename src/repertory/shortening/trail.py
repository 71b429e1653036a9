"""The trail: a log that replaces an old stretch of a run, written once, without a model, for the agent to work from.

For each iteration, by number, it has what the agent said, each call, and the most telling lines of each result. Lines
at the margin are the runtime's; the agent's words, arguments and whatever a tool returned are indented, so that no
result can pass for anything else. Old observations are shortened; the agent's own words and actions stay: see The
Complexity Trap, arXiv 2508.21433.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Reversible, Sequence
from copy import copy
from itertools import chain
from typing import Protocol

from repertory._counting import counted
from repertory._cutting import clip, first_chars
from repertory._json_text import canonical_json
from repertory.llm.estimate import count_bytes
from repertory.llm.messages import Block, Text, ToolUse, equal_items, text_of
from repertory.record.entries import Entry
from repertory.shortening.lines import (
    MAX_READ,
    Vocabulary,
    choose_lines,
    has_long_lines,
    headings_of,
    last_verdict,
    looks_like_file,
    source_lines,
    with_gaps,
)
from repertory.shortening.rules import ResultRules, expiring_together
from repertory.shortening.shaping import failed, media_in, requested_text, tool_text

WINDOW = 5
"""Default number of newest iterations that stay as they arrived (FEATURES.md C1)."""
SHARE = 0.2
"""The share of a long result's or argument's characters that the trail keeps (`docs/context.md` has the table)."""
_WHOLE_CHARS = 300  # characters up to which a result or an argument is kept whole
_MAX_CHARS = 7_200  # characters of one result: beyond that, lines cost more than they are needed
_TEXT_CHARS = 2_000  # characters up to which the agent's text in one turn is kept word for word
_BRIEF_CHARS = 120  # characters of what is told in brief: a call alone, a line that tells calls apart
_ONE_LINE_CHARS = 100  # characters up to which a result of one line is put after "→" without indentation
_REST_OF_NAME = re.compile(r"[\w./:@~%?&=#+-]*", re.ASCII)
TALKERS = ("user", "assistant")
_INDENT = " "  # a single space: it costs a character in every line
_OMITTED_NOTE = "(older lines are left out)"


def _default_rules(_: str | None) -> ResultRules:
    return ResultRules()


def room_of(length: int, importance: float = 1.0) -> int:
    """Return how many characters the trail keeps of a result of this length."""
    share = int(length * min(1.0, SHARE * importance))
    return min(length, max(_WHOLE_CHARS, min(_MAX_CHARS, share)))


def argument_room(length: int) -> int:
    """Return how many characters the trail keeps of an argument of this length: agents follow plans that they wrote."""
    return max(_WHOLE_CHARS, int(min(length, MAX_READ) * SHARE))


class Stretch(Protocol):
    """Something that replaces a stretch of a run."""

    @property
    def content(self) -> tuple[Block, ...]:
        """Its text."""
        ...


class Trail:
    """Writes the trail of one run, turn by turn, as turns leave the window.

    The text of a turn depends on the record up to the end of its window and on the trail before it. It does not depend
    on when it is requested, nor on the order in which results arrived.

    Attributes:
        position: Entries below this position have been written.
        known_upto: Entries below this position count for the weights of names: those that the model had seen when it
            last answered. So all of them can be read, and written, while it answers.
    """

    def __init__(
        self,
        window: int = WINDOW,
        rules: Callable[[str | None], ResultRules] = _default_rules,
        *,
        keep_user_input: bool = True,
    ) -> None:
        """Start at the beginning of a record.

        Args:
            window: Newest iterations that stay as they arrived.
            rules: Returns the rules for the results of a tool.
            keep_user_input: Whether what users and leads say is talk, which stays; if not, it becomes trail.
        """
        self._window = window
        self._keep_user_input = keep_user_input
        self._rules_for = rules
        self._rules: dict[str | None, ResultRules] = {}
        self._vocabulary = Vocabulary()
        self._read = 0  # entries below this are in the vocabulary
        self._cover_lines: set[str] = set()  # the lines of the covers before this trail
        self._written: set[str] = set()  # the lines written after these
        self._told: dict[int, int] = {}  # iterations of the results written after these, by hash
        self._starts: list[int] = []  # position of each written turn
        self._texts: list[str] = []
        self._talk: list[str] = []  # for each turn that stays verbatim its role; "" for any other
        self._sizes: list[int] = [0]  # at each index, bytes of that many texts
        self._result_summaries: Mapping[int, str] = {}
        self._summary_positions = frozenset[int]()  # the mapping may grow
        self._covers: tuple[Stretch, ...] = ()
        self._chosen: dict[tuple[int, int], tuple[list[str], str]] = {}  # see ``lines_of``
        self.position = 0
        self.known_upto = sys.maxsize

    def follow(self, covers: tuple[Stretch, ...], start: int, snapshot: Sequence[Entry]) -> None:
        """Continue the trail after ``covers``, which replaces the entries below ``start``. If ``covers`` changed, what
        follows it is written again, since other lines are in view now.
        """
        if covers != self._covers:
            shared = equal_items(self._covers, covers)
            if shared < len(self._covers):
                self._cover_lines, shared = set(), 0
            for stretch in covers[shared:]:
                self._cover_lines.update(map(str.strip, text_of(stretch.content).splitlines()[1:]))
            self._covers = covers
            self._restart(start, snapshot)

    def add_summaries(self, result_summaries: Mapping[int, str], snapshot: Sequence[Entry]) -> bool:
        """Take in a model's summaries of single results, by position; they are used if a policy asks for them.

        Returns:
            Whether one is new for a turn that has been written already; then the trail must be written again.
        """
        self._result_summaries = result_summaries
        if len(result_summaries) != len(self._summary_positions):
            new = result_summaries.keys() - self._summary_positions
            self._summary_positions = frozenset(result_summaries)
            if self._starts and any(self._starts[0] <= at < self.position for at in new):
                self._restart(self._starts[0], snapshot)
                return True
        return False

    def result_summary(self, entry: Entry) -> str:
        """Return the model's summary of a result, if its policy asks for one; "" if there is none."""
        wanted = self._rules_of(entry.tool).compact_mode == "summary"
        return self._result_summaries.get(entry.position, "") if wanted else ""

    def _restart(self, start: int, snapshot: Sequence[Entry]) -> None:
        """Start again after the covers, with the vocabulary as it is there."""
        if self.position > start:
            self._vocabulary, self._read, self._chosen = Vocabulary(), 0, {}
        self._written, self._told = set(), {}
        self._starts, self._texts, self._talk, self._sizes = [], [], [], [0]
        self.position = start
        first = snapshot[start].iteration if start < len(snapshot) else 0
        while self._read < start and snapshot[self._read].iteration <= first - 2 * Vocabulary.REMEMBERED:
            self._read += 1  # forgotten before it would count

    def scratch_copy(self, snapshot: Sequence[Entry]) -> Trail:
        """Make a copy that can be written ahead of time without affecting this one."""
        self._read_until(snapshot, snapshot[-1].iteration)  # nothing is left to read, so both can share the vocabulary
        copied = copy(self)
        copied._written, copied._told = {*self._written}, {**self._told}
        copied._starts, copied._texts = [*self._starts], [*self._texts]
        copied._talk, copied._sizes = [*self._talk], [*self._sizes]
        return copied

    def write(self, snapshot: Sequence[Entry], upto: int) -> None:
        """Write the turns up to a position at which no call is open."""
        while self.position < upto:
            first = self.position
            last = first + 1
            while last < upto and snapshot[last].role != "assistant":
                last += 1
            answers = [entry for entry in snapshot[first:last] if entry.tool_call_id is not None]
            for at, entry in enumerate(snapshot[first:last], first):  # a user may speak before the results arrive
                if entry.tool_call_id is None:
                    self._read_until(snapshot, entry.iteration + self._window - 1)
                    talk = entry.role if is_talk(entry, keep_user_input=self._keep_user_input) else ""
                    self._add(at, self._turn_text(entry, answers), talk=talk)
            self.position = last

    def _add(self, start: int, text: str, *, talk: str) -> None:
        """Add the text of a turn. A turn that stays word for word is not part of the trail: its lines do not count."""
        self._starts.append(start)
        self._talk.append(talk)
        self._texts.append(text)
        self._sizes.append(self._sizes[-1] + (0 if talk or not text else count_bytes(text) + 1))
        if not talk:
            self._written.update(map(str.strip, text.splitlines()))

    def _read_until(self, snapshot: Sequence[Entry], iteration: int) -> None:
        """Let the vocabulary read everything up to an iteration, as far as ``known_upto`` allows."""
        end = min(len(snapshot), self.known_upto)
        while self._read < end and snapshot[self._read].iteration <= iteration:
            first, current = self._read, snapshot[self._read].iteration
            while self._read < end and snapshot[self._read].iteration == current:
                self._read += 1
            self._chosen.clear()
            entries = snapshot[first : self._read]
            results = [text_of(entry.content) for entry in entries if entry.tool_call_id is not None]
            self._vocabulary.read(current, results)

    def tokens(self, upto: int) -> int:
        """Estimate the tokens written for entries before a position, without turns that stay verbatim."""
        return self._sizes[bisect_left(self._starts, upto)] // 4

    def text(self, first: int, upto: int, *, talk: Collection[str] = ()) -> str:
        """Return the text written for a range. It includes talk only of the roles in ``talk``, user or assistant; other
        talk stays in view as it is.
        """
        places = range(bisect_left(self._starts, first), bisect_left(self._starts, upto))
        return "\n".join(
            self._texts[at] for at in places if self._texts[at] and (not self._talk[at] or self._talk[at] in talk)
        )

    def lines_of(self, entry: Entry, snapshot: Sequence[Entry], room: int) -> tuple[list[str], str]:
        """Choose lines of a result that leaves view now, and say how much of it they are; "" if they are all of it.

        The answer is cached: it is computed ahead of time, and by each step that tries to make a prompt fit.
        """
        self._read_until(snapshot, snapshot[-1].iteration)
        key = entry.position, room
        if key not in self._chosen:
            text = tool_text(entry)
            lines = source_lines(text)
            chosen = choose_lines(lines, room, self._vocabulary, outcome=not looks_like_file(text))
            share = "" if len(chosen) == len(lines) else _size(lines, text, entry.original_length, of=len(chosen))
            self._chosen[key] = with_gaps(chosen, lines), share
        return self._chosen[key]

    # --- one turn -----------------------------------------------------------------------------------------

    def _turn_text(self, entry: Entry, answers: Sequence[Entry]) -> str:
        """Return the text of a turn and its results; "" if there is nothing to say."""
        media = media_in(entry)
        if entry.role != "assistant":
            head = f"{entry.iteration}. [{speaker(entry)} said{media and f', with {media}'}]"
            return "\n".join(part for part in (head, _indent(text_of(entry.content))) if part)
        results = {answer.tool_call_id: answer for answer in answers}
        rules = dict(zip(results, expiring_together([self._rules_of(answer.tool) for answer in answers]), strict=True))
        parts: list[str] = []
        for block in entry.content:
            if isinstance(block, Text) and block.text.strip():
                text = block.text.strip()
                words = _words(text)
                if len(text) > _TEXT_CHARS:
                    lines = source_lines(text)
                    opening = lines[:1]  # says what the rest is, however few names it has
                    room = _TEXT_CHARS - sum(map(len, opening)) - 1
                    chosen = [*opening, *choose_lines(lines[1:], room, self._vocabulary)]
                    words = f" [of {len(block.text):,} characters]{_below(chosen, lines)}"
                parts.append(f"{entry.iteration}.{words}")
            elif isinstance(block, ToolUse):
                call = f"{entry.iteration}. {self._call_text(block)}"
                answer = results.get(block.id)
                result = "" if answer is None else self._result_text(answer, rules[block.id], separate="\n" in call)
                parts.append(call + result)
        if media:  # such as what the provider's own tools found
            parts.append(f"{entry.iteration}. [with {media}]")
        return "\n".join(parts)

    def _call_text(self, call: ToolUse) -> str:
        """Write a call on one line, with long arguments below it."""
        short: list[str] = []
        long: list[str] = []
        texts = [value for value in call.input.values() if isinstance(value, str)]
        for name, value in call.input.items():
            if value is None or value is False or value == "":
                continue  # usually the same as leaving it out
            text = value if isinstance(value, str) else canonical_json(value).decode()
            if len(text) <= _WHOLE_CHARS and text.splitlines() == [text]:
                short.append(f"{clip(name, _BRIEF_CHARS)}={text}")
                continue
            lines = source_lines(text)
            chosen = self._choose(lines, argument_room(len(text)))
            new = bool(chosen) and not self._new(lines)
            if lines and not chosen:  # a line by which calls can be distinguished, and an edit's two texts
                others = {line.strip() for other in texts if other != text for line in other.splitlines()}
                own = next((line for line in lines if line.strip() not in others), lines[0])
                chosen = [clip(own, _BRIEF_CHARS)]
            how_many = "" if len(chosen) == len(lines) else f" {_size(lines, text, of=len(chosen), new=new)}"
            long.append(f"{clip(name, _BRIEF_CHARS)}:{how_many}{_below(chosen, lines)}")
        return "\n".join([f"{call.name}({', '.join(short)})", *long])

    def _result_text(self, entry: Entry, rules: ResultRules, *, separate: bool) -> str:
        """Write the result of a call, to be put after the call; ``separate`` it from arguments below the call."""
        if rules.expiration_mode == "remove":
            return "\n→ [expired]"
        text = tool_text(entry)
        fails, media = "failed" * failed(entry), media_in(entry)
        marks = list(filter(None, (fails, media)))
        requested = requested_text(entry, rules, self.result_summary(entry))
        lines = requested.splitlines() if requested else source_lines(text)
        if requested:
            chosen = lines
            marks.append("in short")
        elif len(lines) == 1 and len(lines[0]) <= _ONE_LINE_CHARS:
            return f"\n→ {', '.join([*marks, lines[0].strip()])}"
        else:
            room = room_of(entry.original_length or len(text), rules.importance)
            if rules.expiration_mode == "compact":
                room = min(room, rules.compact_length)
            same: list[str] = []
            if not (entry.original_length or media):  # otherwise the text is not all of it
                told = self._told.setdefault(hash((text, fails)), entry.iteration)
                same = [f"as in iteration {told}"] * (told < entry.iteration)
            chosen = self._choose(lines, room, result=text)
            if lines and not chosen:
                marks += same or [f"{_size(lines, text, entry.original_length)}, known"]
            elif len(chosen) < len(lines):
                size = _size(lines, text, entry.original_length, of=len(chosen), new=not (same or self._new(lines)))
                marks += [*same, size]
            elif lines and separate and not marks:
                marks.append(_size(lines, text, entry.original_length))
        if not (marks or chosen):
            return "\n→ [nothing]"
        head = f"\n→ {', '.join(marks)}" if marks else ""
        return head + _below(chosen, lines)

    def _choose(self, lines: Sequence[str], room: int, *, result: str = "") -> list[str]:
        """Choose lines that are not in the trail yet, and note that they are now. Told each time is what names the
        columns of a new row, and what says how something ended: of a ``result``, unless it is a file's text.
        """
        new = self._new(lines)
        is_part = len(new) < len(lines) or sum(map(len, new)) > room
        outcome = bool(result) and is_part and not looks_like_file(result)
        told = {*new, *([last_verdict(lines)] if outcome else [])}
        headings = set[str]()
        if 0 < len(new) < len(lines):
            headings = {lines[above] for row, above in headings_of(lines).items() if lines[row] in told} - told

        def choose(among: set[str]) -> list[str]:
            own = [line for line in lines if line in among]
            return choose_lines(own, room, self._vocabulary, outcome=outcome)

        chosen = choose(told | headings)
        if headings.issuperset(chosen):  # there is no room for what is below them
            chosen = choose(told)
        self._written.update(map(str.strip, chosen))
        return chosen

    def _new(self, lines: Sequence[str]) -> list[str]:
        """Return the lines that are not in the trail yet."""
        written, covers = self._written, self._cover_lines
        return [line for line in lines if (bare := line.strip()) not in written and bare not in covers]

    def _rules_of(self, tool: str | None) -> ResultRules:
        if tool not in self._rules:
            self._rules[tool] = self._rules_for(tool)
        return self._rules[tool]


def _below(chosen: Sequence[str], lines: Sequence[str]) -> str:
    """Write the lines chosen of a text below what says where they are from."""
    return "\n".join(["", *with_gaps(chosen, lines, indent=_INDENT)])


def _size(lines: Sequence[str], text: str, length: int = 0, *, of: int = 0, new: bool = False) -> str:
    """Say how much a text is, or that a number of its lines are chosen ``of`` it.

    Args:
        lines: Its ``source_lines``. Some are pieces if it has very long lines.
        text: The text. If it is too long to be read, its lines are not counted.
        length: Characters of the whole if the text is only a part; 0 if it is the whole.
        of: How many of the lines are chosen; 0 for nothing to say of that.
        new: Whether the trail has the others.
    """
    word = " new" if new else ""
    if length or len(text) > MAX_READ:
        return f"{f'{of}{word} lines of ' if of else ''}{length or len(text):,} characters"
    size = counted(len(lines), "piece" if has_long_lines(text) else "line")
    return f"{of}{word} of {size}" if of else size


def is_talk(entry: Entry, *, keep_user_input: bool = True) -> bool:
    """Whether an entry is part of the talk between user and agent: the task, a turn without calls and, if
    ``keep_user_input``, what users and leads said after the task.
    """
    if entry.role == "assistant":
        return ToolUse not in map(type, entry.content)
    return entry.kind == "task" or (keep_user_input and entry.kind in ("user-input", "lead-input"))


def speaker(entry: Entry) -> str:
    """Say who spoke in an entry of the user role that is not a result."""
    return "the lead" if entry.kind == "lead-input" else "the user" if is_talk(entry) else "the runtime"


def log_head(first: int, last: int, *, retrieval: bool, what: str = "") -> str:
    """Write the first line of a stretch of trail: what it replaces, and how to get that if the agent has the tool."""
    first = max(1, first)
    span = f"iterations {first}–{last}" if last > first else f"iteration {first}"
    how = "; context_retrieve(iteration=N) shows one whole" if retrieval else ""
    return f"[log of {span}{what}{how}]"


def log_of_calls(turns: Reversible[Entry], *, tokens: int, previous: str = "", retrieval: bool = True) -> str:
    """Write a shorter stretch of trail: one line for each call and for what was said.

    The newest lines are kept as far as there is room; the text is "" if there are none to keep.

    Args:
        turns: The entries that it replaces, in order; only the newest that fit are read.
        tokens: Bound on the text, at four bytes a token.
        previous: The text that replaced everything before them, if this text is to replace that too.
        retrieval: Whether to name the tool that shows the originals.
    """
    first, last = next(iter(turns), None), next(reversed(turns), None)
    span = (0 if previous or first is None else first.iteration), (0 if last is None else last.iteration)
    head = log_head(*span, retrieval=retrieval, what=", calls alone")
    kept: list[str] = []
    room, omitted = 4 * tokens - count_bytes(head) - len(_OMITTED_NOTE) - 2, False
    previous_lines = previous.split("\n") if previous else []
    for line in chain(chain.from_iterable(map(_calls_in, reversed(turns))), reversed(previous_lines)):
        room -= count_bytes(line) + 1
        omitted = room < 0
        if omitted:
            break
        kept.append(line)
    if not (kept or omitted):
        return ""
    return first_chars("\n".join([head, *([_OMITTED_NOTE] if omitted else []), *reversed(kept)]), 4 * tokens)


def _calls_in(entry: Entry) -> list[str]:
    """Return a line for each call of a turn and for what was said in it, the last first."""
    if entry.role == "user":
        line = f"{entry.iteration}. [{speaker(entry)} said] {_brief(text_of(entry.content))}"
        return [line] * is_talk(entry)
    lines: list[str] = []
    for block in reversed(entry.content):
        if isinstance(block, Text) and block.text.strip():
            lines.append(f"{entry.iteration}.{_words(_brief(block.text))}")
        elif isinstance(block, ToolUse):
            values = [
                value if isinstance(value, str) else canonical_json(value).decode() for value in block.input.values()
            ]
            lines.append(f"{entry.iteration}. {block.name}({_brief(', '.join(values))})")
    return lines


def _brief(text: str) -> str:
    """Return the beginning of a text. A path or an address is not cut: it could not be used again."""
    line = " ".join(text[: 4 * _WHOLE_CHARS].split())
    name = _REST_OF_NAME.match(line, _BRIEF_CHARS - 1)
    return clip(text, max(_BRIEF_CHARS, min(name.end() + 1 if name else 0, _WHOLE_CHARS)))


def bounded_trail(entries: Sequence[Entry], *, tokens: int, previous: str = "", retrieval: bool = True) -> str:
    """Write a text of bounded length that replaces entries if nobody writes a better one: the trail if it fits,
    otherwise the log of calls, after ``previous``.

    Args:
        entries: The entries that it replaces, in order.
        tokens: Bound on the text, at four bytes a token.
        previous: The text that replaced everything before them, if this text is to replace that too.
        retrieval: Whether to name the tool that shows the originals.
    """
    span = (0 if previous or not entries else entries[0].iteration), (entries[-1].iteration if entries else 0)
    trail = Trail()
    trail.write(entries, len(entries))
    parts = (log_head(*span, retrieval=retrieval), previous, trail.text(0, len(entries), talk=TALKERS))
    text = "\n".join(part for part in parts if part)
    if count_bytes(text) <= 4 * tokens:
        return text
    return log_of_calls(entries, tokens=tokens, previous=previous, retrieval=retrieval)


def _words(text: str) -> str:
    """Write the agent's words, to be put after a number; below it if they begin like a note of the runtime, such as of
    what the user said.
    """
    return f"\n{_indent(text)}" if text.startswith("[") else _indent(text)


def _indent(text: str) -> str:
    return "\n".join([f"{_INDENT}{line}" for line in text.splitlines()])
