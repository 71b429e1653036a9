"""Names: paths, identifiers, numbers, addresses, errors. What a later turn is likely to need of an old result.

Measured on recorded runs, identifiers that look made (``snake_case``, ``camelCase``, dotted or hyphenated names)
are used again more often per character than long paths, hashes or addresses; those on a line that defines
something, or that reports trouble, more often still. No knowledge of tools or formats.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType

TOKEN = re.compile(
    r"[\w@~./\-](?:(?<=h)ttps?://[^\s\"'<>)\]\\]+"
    r"|(?<![@~./\-][@~./\-])[\w@~./\-]*(?<=\w)(?:::?[A-Za-z_]\w*)*)"
)
"""What may be a name. It begins with a set, so that what is between tokens is passed over fast; a row of marks is tried
once, at its first."""
LINE_NUMBER = re.compile(r"(?m)^[ \t]*\d+[ \t]*[→|:\t]")
_INNER = re.compile(r"[a-z][A-Z]|[A-Z]{2,}[a-z]|_|\w\.\w")
_HEX = re.compile(r"(?=[0-9a-f]*\d)[0-9a-f]{7,40}")
_DEFINES = re.compile(
    r"\s*(?:export |pub |async |static |public |private |abstract |final )*"
    r"(?:def|func|function|fn|class|type|const|let|var|interface|struct|enum|impl|module|trait)\b"
)
TROUBLE = re.compile(
    r"\b(?:errors?|fail(?:ed|ure|s)|exception|traceback|panic|denied|not found|undefined|cannot|invalid|fatal)\b", re.I
)
WEIGHT = {
    "camel": 7.0,
    "dotted": 6.0,
    "hyphen": 5.0,
    "snake": 5.0,
    "alnum": 3.5,
    "number": 3.0,
    "path": 2.5,
    "long_number": 1.5,
    "hex": 1.5,
    "url": 1.5,
}
"""What a character of a name is worth, by the name's kind; see the head of this file."""
_LONGEST = 160
MOST_SCANNED = 30_000  # characters of one text that are looked at, from both ends


@lru_cache(maxsize=1 << 16)
def kind_of_name(token: str) -> str | None:
    """What kind of name a token is; None for a plain word."""
    if not 3 <= len(token) <= _LONGEST:
        return None
    if token.startswith("http"):
        return "url"
    if "/" in token:
        return "path"
    if token.isdigit():
        return "number" if len(token) == 3 else "long_number"
    if _HEX.fullmatch(token):
        return "hex"
    if _INNER.search(token):
        return "dotted" if "." in token else "snake" if "_" in token else "camel"
    if len(token) >= 4 and any(character.isdigit() for character in token):
        return "alnum"
    if "-" in token and len(token) >= 5:
        return "hyphen"
    return None


@lru_cache(maxsize=1 << 8)
def names_in(text: str) -> Mapping[str, float]:
    """The names in a text with their weight, in order of first appearance."""
    if len(text) > MOST_SCANNED:
        text = text[: MOST_SCANNED * 2 // 3] + "\n" + text[-MOST_SCANNED // 3 :]
    found: dict[str, float] = {}
    for line in LINE_NUMBER.sub("", text).split("\n"):
        boost = 0.0
        for raw in TOKEN.findall(line):
            token = raw.rstrip("./-~@:")
            kind = kind_of_name(token) if len(token) <= _LONGEST else None
            if kind is None:
                continue
            if not boost:
                boost = 2.0 if _DEFINES.match(line) else 1.5 if TROUBLE.search(line) else 1.0
            weight = WEIGHT[kind] * boost / (len(token) + 1)
            found[token] = weight if token not in found else max(found[token], weight) * 1.2
    return MappingProxyType(found)


def best_names(texts: Iterable[str], room: int, *, without: str = "", also: Iterable[str] = ()) -> list[str]:
    """The names most worth keeping, in order of appearance.

    Args:
        texts: Where to look.
        room: Characters that they may take, with one space each.
        without: Names that stand in this text already are not repeated.
        also: Names that are kept first where the text has them: those that were used again before.
    """
    found: dict[str, float] = {}
    for text in texts:
        for name, weight in names_in(text).items():
            found[name] = weight if name not in found else max(found[name], weight) * 1.5
    for name in also:
        if name in found:
            found[name] += 100.0
    chosen: set[str] = set()
    # Of two names that weigh the same the later one is nearer to what comes next.
    for _, _, name in sorted(((weight, at, name) for at, (name, weight) in enumerate(found.items())), reverse=True):
        if len(name) < room and name not in without:
            chosen.add(name)
            room -= len(name) + 1
    return [name for name in found if name in chosen]


def trouble_lines(text: str, *, most: int = 3, width: int = 160) -> list[str]:
    """The first and last lines that report trouble, shortened."""
    if len(text) > MOST_SCANNED:
        text = text[: MOST_SCANNED // 3] + "\n" + text[-MOST_SCANNED * 2 // 3 :]
    found = list(dict.fromkeys(" ".join(line.split()) for line in text.split("\n") if TROUBLE.search(line)))
    if len(found) > most:
        found = [*found[: most // 2], *found[-(most - most // 2) :]]
    return [clip(line, width) for line in found]


def clip(text: str, limit: int) -> str:
    """One line of at most ``limit`` characters."""
    text = " ".join(text[: limit * 4].split())
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"
