"""Words: what a question is about, and how well a piece of text fits it. No model, no statistics, no state."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import msgspec

_STOP = frozenset(
    """
    a about above across after again against all along already also although always am among an analyse analyze and
    another answer any anything are around as ask at away back based be became because been before being below
    between both briefly but by call can cannot citation citations cite code come compare could describe detail
    details did different do does doing done down during each either else enough every everything example examples
    explain file files find findings first for from further get give given go good had has have having he help her
    here him his how however i if in inside instead into is it its itself just keep know larger last least less let
    like line lines list little look made main make makes many may me means might more most much must my name need
    needs never new no nor not nothing now of off often on once one only onto or other our out over own part path
    paths per place please point possible provide purpose put question quite rather really relevant report research
    result results same say see seem separate set several shall she short should show since so some something source
    sources still such summarise summarize take task tell than that the their them then there these they thing
    things think this those though through thus to together too toward under understand until up upon us use used
    uses using various very via want was way ways we well were what when where whether which while who whole whose
    why will with within without work works would write yet you your
    """.split()  # noqa: SIM905 - two hundred quoted words would be worse
)
# Words that fit nearly everything in their field, and so tell little.
_GENERAL = frozenset(
    """
    python code program library module package class function method object system implementation value data type kind
    standard run start stop handle manage process project software hand
    """.split()  # noqa: SIM905
)
# Other words in which texts about programs say the same, by stem; a text that has one fits a little.
_RELATED = {
    "hand": ("wake", "notify", "release"),
    "wait": ("block", "wake"),
    "run": ("execute", "schedule", "step"),
    "lost": ("durable", "lose"),
    "crash": ("kill", "recover"),
    "stop": ("cancel", "close"),
    "start": ("spawn", "begin"),
    "fail": ("error", "exception"),
    "fast": ("cache", "speed"),
    "saf": ("lock", "atomic"),
}
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*|\d{3,}")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z`\"'(\d*])")


class Keyword(msgspec.Struct, frozen=True):
    """A word that a question turns on.

    Attributes:
        word: As it was written.
        stem: What its forms have in common.
        weight: How much a text that has it gains; an identifier tells more than a word.
    """

    word: str
    stem: str
    weight: float


@lru_cache(maxsize=65_536)
def stem(word: str) -> str:
    """Cut a word's ending: ``queues`` and ``queue``, ``waiting`` and ``waits`` become one. Crude, but steady."""
    word = word.lower().rstrip("'")
    for ending in (
        "'s",
        "ations",
        "ation",
        "ingly",
        "ings",
        "ing",
        "edly",
        "ies",
        "ers",
        "er",
        "ed",
        "es",
        "s",
        "ly",
        "e",
    ):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word[: -len(ending)]
            break
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "aeiosl":
        word = word[:-1]  # running, runn, run
    return word.removesuffix("e") if len(word) > 3 else word


@lru_cache(maxsize=65_536)
def stems_of(text: str) -> frozenset[str]:
    """The stems of all words in a text; ``_wake_up_first`` and ``QueueFull`` count as whole and in parts."""
    found: set[str] = set()
    for match in _WORD.finditer(text):
        word = match.group()
        found.add(stem(word))
        for part in re.split(r"[._]+", word):
            if part:
                found.add(stem(part))
                found.update(stem(piece) for piece in _CAMEL.split(part) if len(piece) > 1)
    return frozenset(found)


def is_identifier(word: str) -> bool:
    """Whether a word looks like a name in a program rather than a word of a sentence."""
    return "_" in word or "." in word or any(c.isdigit() for c in word) or bool(_CAMEL.search(word))


def keywords(text: str, *, limit: int = 12) -> tuple[Keyword, ...]:
    """What a text is about, the most telling words first.

    Args:
        text: A question, a task, anything.
        limit: How many at most.
    """
    weights: dict[str, Keyword] = {}
    order: dict[str, int] = {}
    for position, (word, emphasis) in enumerate(_words_in(text)):
        if len(word) < 3 or word.lower() in _STOP:
            continue
        weight = 1.0 + min(len(word), 12) / 40
        if emphasis or is_identifier(word):
            weight *= 2
        elif word.lower() in _GENERAL or word.lower().rstrip("s") in _GENERAL:
            weight *= 0.5
        elif word.endswith("s") and not word.endswith("ss"):
            weight += 0.25  # most plurals are nouns, and the nouns are what a question is about
        key = stem(word)
        order.setdefault(key, position)
        old = weights.get(key)
        gained = max(weight + old.weight * 0.25, old.weight) if old else weight
        weights[key] = Keyword(old.word if old else word, key, round(gained, 3))
    ranked = sorted(weights.values(), key=lambda k: (-k.weight, order[k.stem]))
    return tuple(ranked[:limit])


def related(wanted: Sequence[Keyword]) -> list[Keyword]:
    """Other words for what is wanted, at half the weight of an ordinary word."""
    known = {keyword.stem for keyword in wanted}
    words = dict.fromkeys(word for keyword in wanted for word in _RELATED.get(keyword.stem, ()))
    return [Keyword(word, stem(word), 0.5) for word in words if stem(word) not in known]


def _words_in(text: str) -> Iterator[tuple[str, bool]]:
    """The words of a text, and whether each is marked as a name: in backquotes, or a part of a dotted name."""
    for match in _WORD.finditer(text):
        quoted = text[match.start() - 1 : match.start()] == "`"
        parts = match.group().split(".")
        for part in parts:
            yield part, quoted or len(parts) > 1


def fit(text: str, wanted: Sequence[Keyword]) -> float:
    """How well a text fits: the weights of the distinct keywords that occur in it. Each counts once."""
    present = stems_of(text)
    return sum(keyword.weight for keyword in wanted if keyword.stem in present)


def covered(text: str, wanted: Iterable[Keyword]) -> frozenset[str]:
    """The stems of the keywords that occur in a text."""
    present = stems_of(text)
    return frozenset(keyword.stem for keyword in wanted if keyword.stem in present)


def sentences(text: str) -> list[str]:
    """Cut prose into sentences; a blank line or a list item ends one too."""
    found: list[str] = []
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*#>]|\d+\.)\s)", text):
        whole = " ".join(paragraph.split())
        found.extend(part.strip() for part in _SENTENCE.split(whole) if part.strip())
    return found


def shorten(text: str, limit: int) -> str:
    """Cut a text at a word, with an ellipsis, so that it has at most ``limit`` characters."""
    text = " ".join(text.split())
    if len(text) <= limit:
        return text
    return text[: limit - 1].rsplit(" ", 1)[0].rstrip(",;:") + "…"
