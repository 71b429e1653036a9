"""Chooses the most telling lines of a long text: whole lines, rare names first. Pure and deterministic.

This is the only ranker of lines. At equal length, lines chosen by rare names keep more of what a later turn uses than
head and tail do. Lists of names keep nothing of what was said about a name (`docs/context.md` has the table).
"""

from __future__ import annotations

import heapq
import math
import re
import string
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, islice, pairwise, starmap

import msgspec

from repertory._cutting import LOOKED_AT, clip, kind_of_text
from repertory.shortening.pieces import LONG_LINE, join_records, pieces_of

MAX_READ = 96_000
"""Most characters of one text that are read, two thirds of them from its beginning: choosing takes time."""

# Colours, movements of the cursor and links, in ECMA-48's words CSI and OSC.
_CONTROL_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*+[ -/]*+[@-~]|\][^\x07\x1b]*+(?:\x07|\x1b\\))")
# Numbers that a viewer puts before the lines of a file, or a search before the lines around a match.
_NUMBERED = re.compile(r"\n[ \t]*(\d{1,7})(?:[ \t]*(?:[→|\t]|:(?![0-5]\d\b))|-(?![\d-]))")  # no hours, no dates
_NUMBERS_READ = 200  # of a text, to see whether they count lines
_WORD = re.compile(r"[A-Za-z\d_~./@][\w./:@~\-]+")
# For ``bytes.translate``: bytes that no word contains become spaces. Splitting there takes a third of a pattern's time.
_SEPARATORS = bytes(
    byte if byte >= 128 or re.match(r"[\w./:@~\-\n]", chr(byte)) else ord(" ")  # other alphabets are left alone
    for byte in range(256)
)
# Lines of base64 have 64 characters (RFC 7468) or 76 (RFC 2045), or it is all on one; a path or a name may match, too.
# In an address its marks are written with percent signs.
_DATA = r"(?:[A-Za-z\d+/]|%2[BbFf])"
_LONG_WORDS = re.compile(
    rf"(?<![A-Za-z\d+/]){_DATA}{{60,}}+(?:\n[ \t]*+{_DATA}{{60,}}+)*+(?:\n[ \t]*+{_DATA}*+=)?(?:=|%3[Dd])*+"
)
_STRING = re.compile(r'"((?:[^"\\]|\\.)*+)("?)')  # of JSON; the last may be cut off
# In such a string. Half a character is left as it is, and what no terminal shows.
_ESCAPES = re.compile(
    r"(?:\\(?:[\"\\/nrt]|u(?!00(?:0|1[^bB])|[dD][89a-fA-F])[\da-fA-F]{4}"
    r"|u[dD][89abAB][\da-fA-F]{2}\\u[dD][c-fC-F][\da-fA-F]{2}))+"
)
_CHARACTER_KINDS = re.compile(r"[a-z]+|[A-Z]+|\d+")
_LETTER = re.compile(r"[^\W\d]")
_SAYS = re.compile(r"[^\W_]")  # a letter or digit: a line without one is a bracket or a ruler
_NAME_MARK = re.compile(r"[a-z][A-Z]|[A-Z]{2,}[a-z]|_|\d|\w[./:\-]\w")  # distinguishes a name from a word
_VERDICT = re.compile(
    r"\b\d+ (?:passed|failed|errors?|warnings?|issues?|tests?|matches|rows)\b|\b(?:exit code|status) \d+", re.I
)
_DIGIT = re.compile(r"\d")
_GAPS = re.compile(r" {2,}")
_LEAST_GAPS = 2  # between the columns of a table: a line of prose or code may have one
_NUMBERED_WORD = re.compile(r"\b[^\W\d]*+\d\w*+")  # only from a word's beginning: a word may be long
_FORM = {ord(char): "0" if char in string.hexdigits else "a" for char in string.digits + string.ascii_letters}
_LOWER = {ord(capital): capital.lower() for capital in string.ascii_uppercase}
_LINES_PER_END = 50  # lines with a trouble word that are checked from each end: a few with 'fail' may say 'fail-over'
_LONGEST_NAME = 255  # characters, as for file names: what is longer is data
_VERDICTS = 3  # lines that are chosen first; of more, those with rare names are chosen anyway
_PER_LINE = 5  # characters that a line costs besides its own, for its indent and its end
_TROUBLE = re.compile(
    r"(?<!\b0 )\b(?:errors?|fail(?:ed|ing|ures?|s)?|exceptions?|traceback|panic(?:ked)?|denied|refused|rejected"
    r"|conflict|timed out|aborted|not found|no such|undefined|can(?:not|'t)|could(?: not|n't)|unable to|invalid"
    r"|fatal|critical|severe)\b(?![\"']? ?[:=] ?0\b)"  # no errors are no trouble
    r"|[a-z](?:error|exception)(?:[:)]|$)",  # a class of exceptions, before its message or after it
    re.I,
)
# Every match of the pattern has one of these in it.
_TROUBLE_WORDS = (
    *("error", "fail", "exception", "traceback", "panic", "denied", "refused", "rejected", "conflict"),
    *("timed out", "aborted", "not found", "no such", "undefined", "cannot", "can't", "could not", "couldn't"),
    *("unable to", "invalid", "fatal", "critical", "severe"),
)
_VERDICT_WORDS = (" passed", " warning", " issue", " test", " matches", " rows", "exit code ", "status ")


class _NameCache(dict[str, str]):
    """Maps a word to the name in it, without marks around it; "" if it is no name. Words recur, so this is a cache,
    with a bound.
    """

    MAX_WORDS = 1 << 16

    def __missing__(self, word: str) -> str:
        bare = word.lstrip(":-")
        name = bare.rstrip(".:-/") if len(bare) <= _LONGEST_NAME else ""
        has_mark = _NAME_MARK.search(name) is not None and _LETTER.search(name) is not None
        found = name if len(name) > 2 and (has_mark or name.isdigit()) else ""
        if len(self) >= self.MAX_WORDS:
            self.clear()
        if len(word) <= _LONGEST_NAME:
            self[word] = found
        return found


_name_of = _NameCache().__getitem__


def _separate_words(text: str) -> str:
    """Replace everything between words by spaces, except newlines."""
    return text.encode("utf-8", "surrogatepass").translate(_SEPARATORS).decode("utf-8", "surrogatepass")


def _words(separated: str) -> list[str]:
    """Return the words in a text from ``_separate_words``; one with letters of other alphabets may be several words."""
    words = separated.split()
    if separated.isascii():
        return words
    return [part for word in words for part in ([word] if word.isascii() else _WORD.findall(word))]


def names_in(text: str) -> set[str]:
    """Return the names in a text: paths, identifiers, numbers of three digits or more."""
    lines = "\n".join(set(text.split("\n")))  # some results repeat many lines
    return set(map(_name_of, _words(_separate_words(lines)))) - {""}


def _names_by_line(lines: Sequence[str]) -> list[set[str]]:
    """Return the names in each line; a set may also contain ""."""
    separated = _separate_words("\n".join(lines))
    words = str.split if separated.isascii() else _words
    return [set(map(_name_of, words(line))) for line in separated.split("\n")]


def reports_trouble(line: str) -> bool:
    """Whether a line reports an error or a failure."""
    return _TROUBLE.search(line) is not None


def trouble_lines(text: str, *, most: int, width: int) -> list[str]:
    """Return the first and last lines that report trouble, each clipped to a width."""
    text = readable_part(text)
    lowered = text.lower()
    if len(lowered) != len(text):  # some character became longer, so positions would differ
        lowered = text.translate(_LOWER)
    # To look for each word by itself takes a tenth of the time of asking the pattern about every line.
    places = sorted({place for word in _TROUBLE_WORDS for place in _lines_with(word, lowered)})

    def matching_lines(places: Iterable[tuple[int, int]], step: int) -> Iterator[str]:
        for begin, end in places:
            yield from (clip(line, width) for line in source_lines(text[begin:end])[::step] if reports_trouble(line))

    first = _first_distinct(matching_lines(places, 1), most)
    if len(first) < most:
        return first
    last = _first_distinct(matching_lines(reversed(places), -1), most - most // 2)
    return [*first[: most // 2], *reversed(last)]


def _lines_with(word: str, text: str) -> Iterator[tuple[int, int]]:
    """Find the first and the last lines with a word: enough of them that a few report trouble if any do."""
    start, at = 0, text.find(word)
    for _ in range(_LINES_PER_END):
        if at < 0:
            return
        end = text.find("\n", at)
        start = end if end >= 0 else len(text)
        yield text.rfind("\n", 0, at) + 1, start
        at = text.find(word, start)
    stop = len(text)
    for _ in range(_LINES_PER_END):
        at = text.rfind(word, start, stop)
        if at < 0:
            return
        end = text.find("\n", at)
        stop = text.rfind("\n", 0, at) + 1
        yield stop, end if end >= 0 else len(text)


def _first_distinct(lines: Iterable[str], limit: int) -> list[str]:
    """Return the first distinct lines."""
    found: dict[str, None] = {}
    for line in lines:
        found[line] = None
        if len(found) == limit:
            break
    return list(found)


def readable_part(text: str, *, strings: bool = False) -> str:
    """Return the part of a text to read line by line: all of it, or the beginning and end of a very long one.

    It is what a terminal shows: without control sequences, and without what a carriage return has overwritten. It may
    include what is in the long ``strings`` of JSON; then it is no JSON any more.
    """
    if len(text) > MAX_READ:
        end, start = MAX_READ * 2 // 3, len(text) - MAX_READ // 3
        end = text.rfind("\n", end - LONG_LINE, end) + 1 or end
        start = text.find("\n", start, start + LONG_LINE) + 1 or start
        text = f"{text[:end]}\n{text[start:]}"
    text = _read_strings(text) if strings and "\\" in text else text
    text = _CONTROL_SEQUENCE.sub("", text) if "\x1b" in text else text
    if "\r" not in text or "\n" not in text.strip():  # some old files end their lines with carriage returns alone
        return text
    return "\n".join([line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")])


def _read_strings(text: str) -> str:
    """Return a text in which the long strings in long lines of JSON are what they say: text, or JSON again."""
    return "\n".join(
        _STRING.sub(_read_string, line) if len(line) > LONG_LINE and line.lstrip().startswith(("{", "[", '"')) else line
        for line in text.split("\n")
    )


def _read_string(found: re.Match[str]) -> str:
    if len(found[1]) <= LONG_LINE:
        return found[0]  # stays in the line of its record
    return f'"{_read_strings(_ESCAPES.sub(_unescape, found[1]))}{found[2]}'


def _unescape(found: re.Match[str]) -> str:
    return msgspec.json.decode(f'"{found[0]}"', type=str)


def source_lines(text: str) -> list[str]:
    """Return the lines of a text without line-number gutters, blank lines and repeats; of JSON, that is no file's, the
    records that fit on one.
    """
    read = readable_part(text, strings=True)
    plain = _without_gutters(read)
    lines: dict[str, str] = {}
    has_records = plain == read and ("{\n" in plain or "[\n" in plain)
    for raw in dict.fromkeys(join_records(plain.splitlines()) if has_records else plain.splitlines()):
        whole = raw.rstrip()
        if len(whole) <= LONG_LINE:
            lines.setdefault(whole.lstrip(), whole)
            continue
        for piece in pieces_of(whole):
            lines.setdefault(piece.strip(), piece)
    lines.pop("", None)
    return list(lines.values())


def has_long_lines(text: str) -> bool:
    """Whether a text has a line that ``source_lines`` splits."""
    return max(map(len, text.splitlines()), default=0) > LONG_LINE


def looks_like_file(text: str) -> bool:
    """Whether a text seems to be from a file that the agent may want to edit: its lines are numbered, or it is code."""
    text = text[:LOOKED_AT]
    text = (_read_strings(text) if "\\" in text else text).rpartition("\n")[0]  # the last line may be cut
    numbers = [int(found[1]) for found in _NUMBERED.finditer(f"\n{text}")]
    if 2 * len(numbers) > text.count("\n") + 1 and all(starmap(_is_next, pairwise(numbers))):
        return True  # matches of a search are numbered too, but not consecutively
    return kind_of_text(_without_gutters(text)) == "code"


def _without_gutters(text: str) -> str:
    """Remove the numbers of lines. Numbers that count no lines stay: times, keys of a table, sizes."""
    text = f"\n{text}"
    found = [*islice(_NUMBERED.finditer(text), _NUMBERS_READ)]
    pairs = [*pairwise(int(each[1]) for each in found)]
    if pairs and 2 * sum(starmap(_is_next, pairs)) >= len(pairs):
        mark = found[0][0][-1]
        if mark not in "|\t" or mark not in text[: found[0].start()]:  # else a table with a heading
            text = _NUMBERED.sub("\n", text)
    return text[1:]


def _is_next(before: int, after: int) -> bool:
    return after == before + 1


def _without_data(lines: Sequence[str]) -> list[str]:
    """Return distinct lines with an ellipsis for base64, whose rare words would outrank everything beside it."""
    return list(dict.fromkeys(_LONG_WORDS.sub(_shorten_data, "\n".join(lines)).split("\n")))


def _shorten_data(found: re.Match[str]) -> str:
    words = found[0]
    kinds = _CHARACTER_KINDS.findall(words)
    # In base64 of compressed data the kind changes at 62 of 100 characters, in that of English text at 58, in paths and
    # names of this length at 22; one of six changes is to a digit. Hexadecimal digests stay: agents use them as names.
    changes = len(kinds) > 0.45 * len(words) and sum(map(str.isdigit, kinds)) > 0.05 * len(kinds)
    return "…" if changes and not (words.islower() or words.isupper()) else words


class Vocabulary:
    """Counts how many results of the last iterations held a name."""

    REMEMBERED = 200
    """Iterations whose names count; a bound, so that a resumed run does not have to read its whole record."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._results = 0
        self._read: deque[tuple[int, list[set[str]]]] = deque()

    def read(self, iteration: int, results: Iterable[str]) -> None:
        """Take in the results of one iteration; iterations come in order."""
        found = [names_in(readable_part(result, strings=True)) for result in results]
        for names in found:
            self._counts.update(names)
        self._results += len(found)
        self._read.append((iteration, found))
        while self._read[0][0] <= iteration - self.REMEMBERED:
            forgotten = self._read.popleft()[1]
            for name in chain.from_iterable(forgotten):
                if self._counts[name] > 1:
                    self._counts[name] -= 1
                else:
                    self._counts.pop(name)
            self._results -= len(forgotten)

    def weights(self, names: Iterable[str]) -> dict[str, float]:
        """Return the weight of each name: the fewer results hold it, the higher (inverse document frequency)."""
        names = list(names)
        counts = [count or 1 for count in map(self._counts.get, names)]
        weight_of = {count: math.log(1 + self._results / count) for count in set(counts)}
        return dict(zip(names, map(weight_of.__getitem__, counts), strict=True))


def choose_lines(lines: Sequence[str], room: int, vocabulary: Vocabulary, *, outcome: bool = False) -> list[str]:
    """Choose the lines that tell most for their length, and return them in their original order.

    A name counts once: a second line with it has that much less value. Of lines that differ only in their numbers, such
    as those of one message in a log, the second best counts half, the third a third. With a row of a table comes the
    line that names its columns. The remaining room goes to the lines around those chosen; of a text without names the
    beginning is kept. If no line fits, the beginning of the most telling one is. Unless all lines fit, an ellipsis
    replaces encoded data in them.

    Args:
        lines: From ``source_lines``.
        room: Most characters of the chosen lines.
        vocabulary: The names so far.
        outcome: Whether the last lines that report trouble, or how something ended, come first. A file, and an
            argument, has no outcome: in its code they would be those that handle errors.
    """
    if _fit(lines, room) or _fit(lines := _without_data(lines), room):
        return list(lines)
    if min(map(len, lines)) >= room:
        lines = [clip(line.strip(), room - 1) for line in lines]
    names = _names_by_line(lines)
    weights = vocabulary.weights(set().union(*names))  # 0 once a chosen line holds the name
    weights[""] = 0.0
    # Names of one form that fill a text, such as the words of a hex dump or the times of a log, tell little each.
    numbered = list(filter(_DIGIT.search, weights))
    forms = "\n".join(numbered).translate(_FORM).split("\n")
    counts = Counter(forms)
    for name, form in zip(numbered, forms, strict=False):
        weights[name] /= 1 + math.log(counts[form])
    headings = headings_of(lines)
    chosen = set[int]()

    def choose(at: int) -> None:
        nonlocal room
        room -= len(lines[at]) + 1
        chosen.add(at)
        weights.update(dict.fromkeys(names[at], 0.0))
        heading = headings.get(at, at)
        if heading not in chosen and len(lines[heading]) < room:
            choose(heading)

    first = room // 2
    for at in _verdicts(lines)[: -1 - _VERDICTS : -1] if outcome else ():
        if at not in chosen and len(lines[at]) < (first if chosen else room):
            first -= len(lines[at]) + 1
            choose(at)

    messages = _NUMBERED_WORD.sub("0", "\n".join(lines)).split("\n")
    rank = [1] * len(lines)  # among the lines of one message, the best first

    def value(at: int) -> float:
        # Summed exactly: a set has no order, and equal runs must give equal views.
        return math.fsum(map(weights.__getitem__, names[at])) / (len(lines[at]) + _PER_LINE) / rank[at]

    told = Counter[str]()
    for at in sorted(range(len(lines)), key=value, reverse=True):
        told[messages[at]] += 1
        rank[at] = told[messages[at]]
    # Values only fall as lines are chosen, so if the first of the queue is still the best after an update, take it.
    queue = [(-initial, at) for at in range(len(lines)) if at not in chosen and (initial := value(at))]
    heapq.heapify(queue)
    shortest = min(map(len, lines))
    while queue and room > shortest:
        before, at = heapq.heappop(queue)
        if at in chosen or len(lines[at]) >= room:
            continue
        now = value(at)
        if not now:
            continue
        if now < -before and queue and now < -queue[0][0]:
            heapq.heappush(queue, (-now, at))
            continue
        choose(at)
    # The remaining room goes to the lines around those, so that they can be understood and found in their context.
    for at in _nearest(sorted(chosen), len(lines)):
        if room <= shortest:
            break
        if at not in chosen and len(lines[at]) < room and _SAYS.search(lines[at]):
            choose(at)
    return [lines[at] for at in sorted(chosen)]


def headings_of(lines: Sequence[str]) -> dict[int, int]:
    """Return for rows of tables the index of the line that names their columns: before them, with as many columns and,
    unlike them, without a digit.
    """
    found: dict[int, int] = {}
    first, above, above_depth = -1, "", 0  # of the lines with as many columns, and the line before
    for at, line in enumerate(lines):
        if not _SAYS.search(line):
            continue  # a ruler below the heading
        depth = _depth(line)
        shared = min(above_depth, depth)  # indentation separates no columns
        columns = _columns(line[shared:])
        if columns[1] < _LEAST_GAPS or columns != _columns(above[shared:]):
            first = at
        elif _DIGIT.search(line) and not _DIGIT.search(lines[first]):
            found[at] = first
        above, above_depth = line, depth
    return found


def _columns(line: str) -> tuple[str, int]:
    """Return what separates the columns of a line, if it has any, and how often."""
    for mark in "\t|;,":
        if mark in line and (gaps := line.count(mark)) >= _LEAST_GAPS:
            return mark, gaps
    return "  ", len(_GAPS.findall(line)) if "  " in line else 0


def with_gaps(chosen: Sequence[str], lines: Sequence[str], *, indent: str = "") -> list[str]:
    """Return chosen lines, each after ``indent``, with an ellipsis above one whose heading is left out: it would pass
    for a part of what stands above it. A line's heading is the nearest line before it that is indented less.
    """
    places = {line: at for at, line in enumerate(lines)}
    shown: list[str] = []
    after = 0  # the line before
    for line in chosen:
        at, depth = places.get(line, after), _depth(line)  # unknown if an ellipsis replaces data in it
        if shown and any(_depth(left_out) < depth for left_out in lines[after:at]):
            shown.append("…")
        shown.append(f"{indent}{line}")
        after = at + 1
    return shown


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def _fit(lines: Sequence[str], room: int) -> bool:
    return sum(map(len, lines)) + len(lines) <= room + 1  # a newline between each two


def last_verdict(lines: Sequence[str]) -> str:
    """Return the line that says how something ended; "" if none does."""
    verdicts = _verdicts(lines)
    return lines[verdicts[-1]] if verdicts else ""


def _verdicts(lines: Sequence[str]) -> list[int]:
    """Return the indexes of lines that report trouble, or how something ended."""
    lowered = "\n".join(lines).lower()
    ends = [at + count for count, at in enumerate(accumulate(map(len, lowered.split("\n"))), 1)]
    places = set[int]()
    # To look for each word by itself takes a tenth of the time of asking the patterns about every line.
    for word in (*_TROUBLE_WORDS, *_VERDICT_WORDS):
        at = lowered.find(word)
        while at >= 0:
            place = bisect_right(ends, at)
            places.add(place)
            at = lowered.find(word, ends[place] - 1)
    return sorted(at for at in places if reports_trouble(lines[at]) or _VERDICT.search(lines[at]))


def _nearest(chosen: Sequence[int], count: int) -> Iterator[int]:
    """Yield the other indexes below ``count``, those nearest to a chosen one first; from 0 on if none is chosen."""
    gaps = [*pairwise([-count, *(chosen or [-1]), 2 * count])]
    for distance in range(1, count + 1):
        gaps = [(left, right) for left, right in gaps if left + distance <= right - distance]
        for left, right in gaps:
            before, after = left + distance, right - distance
            if 0 <= before < count:
                yield before
            if before < after and 0 <= after < count:
                yield after
