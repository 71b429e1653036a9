"""What a question is about, and which lines of a text answer it: words, stems and sentences, for the offline model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import msgspec

from repertory._cutting import first_chars

_STOP = frozenset(
    """
    about above after again all also always and another answer any anything are around ask because been before being
    below between both but can cannot cite code come compare could describe detail did different does doing done during
    each either else every everything example explain file find first for from get give given had has have here how
    into its just keep know last let like line list look made main make many may might more most much must name need
    new not now off often once one only other our out over own part path per place please point possible purpose
    question really report result same say see several shall should show since some something source still such
    summarize take task tell than that the their them then there these they thing this those through too under until
    use using various very via want was way well were what when where whether which while who why will with within
    without work would write you your
    """.split()  # noqa: SIM905 - so many quoted words would be worse
)
# Words that fit nearly everything in their field, and so carry little information.
_GENERAL = frozenset(
    """
    class data function implementation item library method module object package process program project python run
    software standard start stop system type value
    """.split()  # noqa: SIM905
)
_WORD = re.compile(r"(`?)([A-Za-z_][A-Za-z0-9_]*|\d{3,})")
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")  # the parts of QueueFull and wake_up
_ENDING = re.compile(r"(?:'s|ations?|ingly|ings?|edly|ies|ers?|ed|es|(?<!s)s|ly|y|e)$")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`\"'(*\d])")
_SOURCE = re.compile(r" \(([^\s()]+):\d+\)$")
# Tests, examples and other people's code explain less than the thing itself.
_ASIDE = re.compile(r"(^|[/_.-])(tests?|testing|bench\w*|examples?|mocks?|vendor|site-packages|node_modules)([/_.-]|$)")

_DEFINITION = re.compile(r"(\s*)(?:async\s+)?(def|class|func|fn|function|struct|interface)\s+(\w+)")
_STATEMENT = re.compile(
    r"(?:if|elif|else|for|while|return|import|from|raise|try|except|finally|with|async|await|yield|assert|del|pass|"
    r"break|continue|global|self|const|let|var|def|class|lambda|not|print|@)\b|[\w.\[\]'\"]+\s*(?:=|\+=|\()|[@)\]}]"
)
_POINTS = re.compile(r"(?:This (?:method|function|class)|Deprecated|Please|Use)\b")  # says little without a name
_LITERAL = re.compile(r"""(?:^|(?<=[(\s=]))[fF]?(["'])(?P<said>(?:(?!\1)[^\\]){4,})\1""")
_MARKS = re.compile(r"^(?:#+|//+|/\*+|\*+|;+|--|>+|[rRbBuU]?(?:\"\"\"|'''))\s*|\s*(?:\"\"\"|'''|\*/)$")


class Keyword(msgspec.Struct, frozen=True):
    """A keyword of a question, its stem, and the weight that it adds to a text."""

    word: str
    stem: str
    weight: float


def stem(word: str) -> str:
    """The stem that the forms of a word share: ``queues`` and ``queue``, ``waiting`` and ``waits``."""
    word = word.lower()
    short = _ENDING.sub("", word)
    if len(short) < 3:
        return word
    doubled = len(short) > 3 and short[-1] == short[-2] and short[-1] not in "aeiosl"  # running, runn, run
    return short[:-1] if doubled else short


_STOP_STEMS, _GENERAL_STEMS = ({stem(word) for word in words} for words in (_STOP, _GENERAL))


@lru_cache(maxsize=4_096)
def _stems(text: str) -> frozenset[str]:
    words = [match[2] for match in _WORD.finditer(text)]
    return frozenset(stem(part) for word in words for part in (word, *_PARTS.findall(word)))


def keywords(text: str, *, limit: int = 12) -> list[Keyword]:
    """The keywords of a text, the most informative first: names in programs, then nouns and verbs."""
    found: dict[str, Keyword] = {}
    for quote, word in _WORD.findall(text):
        key = stem(word)
        if len(word) < 3 or key in _STOP_STEMS:
            continue
        is_name = bool(quote) or "_" in word or any(letter.isupper() for letter in word[1:])
        weight = 2.0 if is_name else 0.5 if key in _GENERAL_STEMS else 1.0
        if key not in found or found[key].weight < weight:
            found[key] = Keyword(word, key, weight)
    return sorted(found.values(), key=lambda keyword: -keyword.weight)[:limit]


def fit(text: str, wanted: Iterable[Keyword]) -> float:
    """How well a text fits: the weights of the keywords that occur in it, each once; less for tests and the like."""
    stems = _stems(text)
    source = _SOURCE.search(text)
    aside = _ASIDE.search(source[1] if source else text if " " not in text else "")
    return sum(keyword.weight for keyword in wanted if keyword.stem in stems) * (0.3 if aside else 1.0)


def choose(lines: Iterable[str], wanted: Sequence[Keyword], *, limit: int) -> list[str]:
    """The lines that answer best together: each is weighed by what it adds, and none is repeated."""
    left = list(dict.fromkeys(lines))
    chosen: list[str] = []
    missing = list(wanted)
    floor = 0.0

    def worth(line: str) -> float:
        value = fit(line, wanted) + 0.6 * fit(line, missing)
        # Half a sentence explains little, and a long one matches more words by chance.
        return value * (1.0 if line[0].isupper() or line[0] in "`-" else 0.6) / (1 + len(line) / 600)

    while left and len(chosen) < limit:
        best = max(left, key=worth)
        left.remove(best)
        if worth(best) <= floor:
            break
        if any(_same(best, other) for other in chosen):
            continue
        floor = floor or 0.35 * worth(best)
        chosen.append(best)
        told = _stems(best)
        missing = [keyword for keyword in missing if keyword.stem not in told]
    return chosen


def _same(first: str, second: str) -> bool:
    one, two = sorted((_stems(_SOURCE.sub("", first)), _stems(_SOURCE.sub("", second))), key=len)
    return len(one & two) >= 0.8 * len(one)


def cited_in(text: str) -> list[str]:
    """The lines of a text that end with their source, ``path:line`` in brackets."""
    rows = (row.strip().removeprefix("- ") for row in text.splitlines())
    return [row for row in rows if _SOURCE.search(row)]


def sentences(text: str) -> list[str]:
    """Cut prose into sentences; a blank line or a list item ends one too."""
    found: list[str] = []
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*#>]|\d+\.)\s)", text):
        found.extend(part for part in _SENTENCE_END.split(" ".join(paragraph.split())) if part)
    return found


def shorten(text: str, limit: int) -> str:
    """Cut a text where it stays readable, with an ellipsis, so that it has at most ``limit`` characters."""
    text = " ".join(text.split())
    return text if len(text) <= limit else first_chars(text, limit - 1).rstrip(" ,;:") + "…"


def messages(path: str, lines: Iterable[tuple[int, str]]) -> Iterator[str]:
    """The sentences in the string literals of code, in order, each with its source."""
    said: list[str] = []
    first = 0
    inside = holder = ""  # as in quotable
    for number, text in (*lines, (0, "")):
        bare, defined = text.strip(), _DEFINITION.match(text)
        spoken = _LITERAL.search(bare) if '"""' not in bare and "'''" not in bare else None
        goes_on = said and spoken and not spoken.start()
        if said and not goes_on:
            whole = shorten("".join(said), 240)
            if len(whole.split()) >= 4 and _is_prose(whole, marked=True):
                yield f"{f'`{inside}`: ' if inside and _POINTS.match(whole) else ''}{whole} ({path}:{first})"
            said = []
        if defined:
            inside, holder = _name(defined, holder)
        if spoken and (goes_on or not spoken.start() or _STATEMENT.match(bare)):
            first = first if said else number
            said.append(spoken["said"])


def quotable(path: str, lines: Iterable[tuple[int, str]]) -> Iterator[str]:
    """The paragraphs of prose, comments and docstrings in numbered lines of a file, each with its source."""
    run: list[str] = []
    first = 0
    # The definition that the next paragraph may describe, the newest one, and the class around it.
    owner = inside = holder = ""
    for number, text in (*lines, (0, "}")):
        bare, defined = _MARKS.sub("", text.strip()), _DEFINITION.match(text)
        if bare and not defined and _is_prose(bare, marked=bare != text.strip()):
            first = first if run else number
            run.append(bare)
            continue
        said = shorten(" ".join(run), 240)
        if said and (owner or len(said) >= 25):
            name = owner or (inside if _POINTS.match(said) else "")
            yield f"{f'`{name}`: ' if name else ''}{said} ({path}:{first})"
        owner = "" if run or bare else owner
        run = []
        if defined:
            owner, holder = _name(defined, holder)
            inside = owner


def _name(defined: re.Match[str], holder: str) -> tuple[str, str]:
    """The full name of a definition, and the class around what follows."""
    indent, kind, name = defined.groups()
    holder = name if kind == "class" else holder if indent else ""
    return f"{holder}.{name}" if holder and kind != "class" else name, holder


def _is_prose(text: str, *, marked: bool) -> bool:
    """Whether a line reads like a sentence, or the rest of one; comment signs make it likely."""
    words = text.split()
    plain = sum(word.strip(".,;:!?()'\"`*").replace("-", "").replace("'", "").isalpha() for word in words)
    return plain >= 0.6 * len(words) and (marked or (len(words) > 1 and not _STATEMENT.match(text)))
