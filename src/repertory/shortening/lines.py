"""Choose the lines of a long text that tell most: whole lines, rare names first. Pure and deterministic.

The one ranker of lines. At equal length, lines chosen by rare names keep more of what a later turn uses than head and
tail do, and lists of names keep nothing of what was said about a name (`docs/context.md` has the table).
"""

from __future__ import annotations

import heapq
import math
import re
import string
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, pairwise

from repertory._cutting import LOOKED_AT, clip, kind_of_text, safe_cut

MOST_READ = 96_000
"""Characters of one text that are looked at, two thirds of them from its beginning: choosing takes time."""

_LONG_LINE = 400  # characters; a longer line (minified code, JSON in one line) is taken apart
_PIECE = 240  # characters, about: what such a line is taken apart into
_GUTTER = re.compile(r"^[ \t]*(\d+)[ \t]*[→|:\t]", re.M)
_GUTTERS = re.compile(r"\n[ \t]*\d+[ \t]*[→|:\t]")  # the same behind a line's end, which is found faster
_WORD = re.compile(r"[A-Za-z\d_~./@][\w./:@~\-]+")
# For ``bytes.translate``: what stands in no word becomes a space. To split there takes a third of the pattern's time.
_APART = bytes(
    byte if byte >= 128 or re.match(r"[\w./:@~\-\n]", chr(byte)) else ord(" ")  # of other alphabets nothing is known
    for byte in range(256)
)
_LETTER = re.compile(r"[^\W\d]")
_MADE = re.compile(r"[a-z][A-Z]|[A-Z]{2,}[a-z]|_|\d|\w[./:\-]\w")  # what tells a name from a word
_VERDICT = re.compile(
    r"\b\d+ (?:passed|failed|errors?|warnings?|tests?|matches|rows)\b|\b(?:exit code|status) \d+", re.I
)
_SMALL = {ord(capital): capital.lower() for capital in string.ascii_uppercase}
_ENOUGH = 50  # lines with a word of trouble that are looked at from each end: of 'fail', a few may say 'fail-over'
_LONGEST_NAME = 255  # characters, as of a file's: what is longer is data
_FEW = 5  # lines for one that reports trouble: where there are more of these, they do not stand out
_PER_LINE = 5  # characters that a line costs beside its own: its indent and its end
_BREAK = re.compile(r"(?<=[\]}],)|(?<=\\n)|(?<=[.;] )|(?<=\",)")
_TROUBLE = re.compile(
    r"\b(?:errors?|fail(?:ed|ure|s)?|exception|traceback|panic|denied|not found|undefined|cannot|invalid|fatal)\b", re.I
)
# With one of these begins all that the pattern finds.
_TROUBLE_WORDS = (
    *("error", "fail", "exception", "traceback", "panic", "denied"),
    *("not found", "undefined", "cannot", "invalid", "fatal"),
)
_VERDICT_WORDS = (" passed", " warning", " test", " matches", " rows", "exit code ", "status ")


class _NameOf(dict[str, str]):
    """The name that a word is but for marks around it; "" where it is none. The same words come again and again, so
    they are kept, but not without bound.
    """

    MOST = 1 << 16

    def __missing__(self, word: str) -> str:
        bare = word.lstrip(":-")
        name = bare.rstrip(".:-/") if len(bare) <= _LONGEST_NAME else ""
        made = _MADE.search(name) is not None and _LETTER.search(name) is not None
        found = name if len(name) > 2 and (made or name.isdigit()) else ""
        if len(self) >= self.MOST:
            self.clear()
        if len(word) <= _LONGEST_NAME:
            self[word] = found
        return found


_name_of = _NameOf().__getitem__


def _apart(text: str) -> str:
    """A text with spaces for what stands between words, but for the ends of lines."""
    return text.encode("utf-8", "surrogatepass").translate(_APART).decode("utf-8", "surrogatepass")


def _words(apart: str) -> list[str]:
    """The words in such a text; what has other letters may be several."""
    words = apart.split()
    if apart.isascii():
        return words
    return [part for word in words for part in ([word] if word.isascii() else _WORD.findall(word))]


def names_in(text: str) -> set[str]:
    """The names in a text: paths, identifiers, numbers of three digits or more."""
    lines = "\n".join(set(text.split("\n")))  # of some results many are the same
    return set(map(_name_of, _words(_apart(lines)))) - {""}


def _names_by_line(lines: Sequence[str]) -> list[set[str]]:
    """The names in each of some lines, and maybe ""."""
    apart = _apart("\n".join(lines))
    words = str.split if apart.isascii() else _words
    return [set(map(_name_of, words(line))) for line in apart.split("\n")]


def tells_trouble(line: str) -> bool:
    """Whether a line reports an error or a failure."""
    return _TROUBLE.search(line) is not None


def trouble_lines(text: str, *, most: int, width: int) -> list[str]:
    """The first and last lines that report trouble, each clipped to a width."""
    text = looked_at(text)
    lowered = text.lower()
    if len(lowered) != len(text):  # some character has grown, and places would be others
        lowered = text.translate(_SMALL)
    # To look for each word by itself takes a tenth of the time of asking the pattern about every line.
    places = sorted({place for word in _TROUBLE_WORDS for place in _lines_with(word, lowered)})

    def told(places: Iterable[tuple[int, int]], step: int) -> Iterator[str]:
        for begin, end in places:
            yield from (clip(line, width) for line in source_lines(text[begin:end])[::step] if tells_trouble(line))

    first = _some(told(places, 1), most)
    if len(first) < most:
        return first
    last = _some(told(reversed(places), -1), most - most // 2)
    return [*first[: most // 2], *reversed(last)]


def _lines_with(word: str, text: str) -> Iterator[tuple[int, int]]:
    """Where the first and the last lines with a word stand: so many of them that a few report trouble if any do."""
    start, at = 0, text.find(word)
    for _ in range(_ENOUGH):
        if at < 0:
            return
        end = text.find("\n", at)
        start = end if end >= 0 else len(text)
        yield text.rfind("\n", 0, at) + 1, start
        at = text.find(word, start)
    stop = len(text)
    for _ in range(_ENOUGH):
        at = text.rfind(word, start, stop)
        if at < 0:
            return
        end = text.find("\n", at)
        stop = text.rfind("\n", 0, at) + 1
        yield stop, end if end >= 0 else len(text)


def _some(lines: Iterable[str], most: int) -> list[str]:
    """The first lines, each once."""
    found: dict[str, None] = {}
    for line in lines:
        found[line] = None
        if len(found) == most:
            break
    return list(found)


def looked_at(text: str) -> str:
    """What is looked at of a text line by line: all of it, or the beginning and the end of a very long one."""
    return text if len(text) <= MOST_READ else text[: MOST_READ * 2 // 3] + "\n" + text[-MOST_READ // 3 :]


def source_lines(text: str) -> list[str]:
    """The lines of a text that are worth a look: without line-number gutters, blank ones and repeats."""
    lines: dict[str, str] = {}
    for raw in dict.fromkeys(_without_gutters(looked_at(text)).splitlines()):
        whole = raw.rstrip()
        if len(whole) <= _LONG_LINE:
            lines.setdefault(whole.lstrip(), whole)
            continue
        for piece in _pieces(whole):
            lines.setdefault(piece.strip(), piece)
    lines.pop("", None)
    return list(lines.values())


def looks_like_file(text: str) -> bool:
    """Whether a text was read from a file that somebody may want to change: its lines are numbered, or it is code."""
    lines = text[:LOOKED_AT].split("\n")[:-1]  # the last may be cut
    numbers = [int(found[1]) for line in lines if (found := _GUTTER.match(line))]
    if 2 * len(numbers) > len(lines) and all(after == before + 1 for before, after in pairwise(numbers)):
        return True  # matches of a search are numbered too, but not one after the other
    return kind_of_text(_without_gutters("\n".join(lines))) == "code"


def _without_gutters(text: str) -> str:
    return _GUTTERS.sub("\n", f"\n{text}")[1:]


def _pieces(line: str) -> Iterable[str]:
    """A very long line in pieces that can be read, cut behind its own marks where it has some."""
    piece = ""
    for part in _BREAK.split(line):
        while len(part) > _LONG_LINE:
            if piece:
                yield piece
                piece = ""
            at = safe_cut(part, _LONG_LINE)
            yield part[:at]
            part = part[at:]  # noqa: PLW2901
        if piece and len(piece) + len(part) > _PIECE:
            yield piece
            piece = ""
        piece += part
    if piece:
        yield piece


class Vocabulary:
    """How many results of the last iterations held a name."""

    REMEMBERED = 200
    """Iterations whose names count; a bound, so that a resumed run need not read its whole record."""

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()
        self._results = 0
        self._read: deque[tuple[int, list[set[str]]]] = deque()

    def read(self, iteration: int, results: Iterable[str]) -> None:
        """Take in the results of one iteration; iterations come in order."""
        found = [names_in(looked_at(result)) for result in results]
        for names in found:
            self._held.update(names)
        self._results += len(found)
        self._read.append((iteration, found))
        while self._read[0][0] <= iteration - self.REMEMBERED:
            forgotten = self._read.popleft()[1]
            for name in chain.from_iterable(forgotten):
                if self._held[name] > 1:
                    self._held[name] -= 1
                else:
                    self._held.pop(name)
            self._results -= len(forgotten)

    def weights(self, names: Iterable[str]) -> dict[str, float]:
        """What each name tells: the more, the fewer results hold it (inverse document frequency)."""
        names = list(names)
        counts = [count or 1 for count in map(self._held.get, names)]
        told = {count: math.log(1 + self._results / count) for count in set(counts)}
        return dict(zip(names, map(told.__getitem__, counts), strict=True))


def choose_lines(lines: Sequence[str], room: int, vocabulary: Vocabulary) -> list[str]:
    """Choose lines, the most telling for their length first, and give them in their own order.

    A name counts once: the second line that holds it tells that much less. Errors and verdicts come first, where they
    are few among the lines: of code that handles errors they would be every other one. The lines around those that were
    chosen take what room is left; a text without names leaves its beginning.

    Args:
        lines: From ``source_lines``.
        room: Characters that they may have.
        vocabulary: What has been said so far.
    """
    if sum(map(len, lines)) + len(lines) <= room + 1:  # a line's end stands between two
        return list(lines)
    names = _names_by_line(lines)
    weights = vocabulary.weights(set().union(*names))  # 0 once a name is told
    weights[""] = 0.0
    chosen: list[int] = []

    def choose(at: int) -> None:
        weights.update(dict.fromkeys(names[at], 0.0))
        chosen.append(at)

    verdicts = _verdicts(lines)
    first = room // 2
    for at in reversed(verdicts) if len(verdicts) * _FEW <= len(lines) else ():  # the last says how it ended
        if len(lines[at]) < first:
            first -= len(lines[at]) + 1
            room -= len(lines[at]) + 1
            choose(at)

    def value(at: int) -> float:
        # Summed exactly: a set has no order, and equal runs must give equal views.
        return math.fsum(map(weights.__getitem__, names[at])) / (len(lines[at]) + _PER_LINE)

    # A value only falls while others are chosen, so the best of the queue, looked at again, is the best of all.
    taken = set(chosen)
    queue = [(-worth, at) for at in range(len(lines)) if at not in taken and (worth := value(at))]
    heapq.heapify(queue)
    shortest = min(map(len, lines))
    while queue and room > shortest:
        before, at = heapq.heappop(queue)
        if len(lines[at]) >= room:
            continue
        now = value(at)
        if not now:
            continue
        if now < -before and queue and now < -queue[0][0]:
            heapq.heappush(queue, (-now, at))
            continue
        room -= len(lines[at]) + 1
        choose(at)
    # What room is left goes to the lines around those, so that they can be read, and found again, in their place.
    for at in _nearest(sorted(chosen), len(lines)):
        if room <= shortest:
            break
        if len(lines[at]) < room:
            room -= len(lines[at]) + 1
            chosen.append(at)
    return [lines[at] for at in sorted(chosen)]


def _verdicts(lines: Sequence[str]) -> list[int]:
    """The places of lines that report trouble, or how something ended."""
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
    return sorted(at for at in places if tells_trouble(lines[at]) or _VERDICT.search(lines[at]))


def _nearest(chosen: Sequence[int], count: int) -> Iterator[int]:
    """The other places of so many, those nearest to a chosen one first; where there is none, from the beginning."""
    gaps = [*pairwise([-count, *(chosen or [-1]), 2 * count])]
    for apart in range(1, count + 1):
        gaps = [(left, right) for left, right in gaps if left + apart <= right - apart]
        for left, right in gaps:
            before, behind = left + apart, right - apart
            if 0 <= before < count:
                yield before
            if before < behind and 0 <= behind < count:
                yield behind
