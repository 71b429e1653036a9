"""What an agent may have to name again: paths, symbols, numbers, hashes, keys. Found by shape, for any tool.

Several tokenizers, because what counts as one identifier is a matter of taste; a figure that holds for all of them
is no artefact of one.

A result may be megabytes of base64, so each pattern takes time in proportion to the text: it reads a run of its
characters from the run's beginning only, to the end of it or a bounded number of them, and the next search begins
behind what was read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

_WAY = re.compile(r"[\w.\-@~/]+")  # a whole run, matched whatever it holds: it is not searched again from its middle
_PATH = re.compile(r".*/[\w.\-@]+")  # within one: up to the last slash before a name, and that name
_URL = re.compile(r"https?://[^\s\"'<>)\]\\]+")
_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{3,}")
_NUMBER = re.compile(r"(?<![\w.])\d{3,}(?!\w)")
_HEX = re.compile(
    r"(?<!\w)(?:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{20,}|(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,40})(?!\w)"
)
_KEY = re.compile(r"[\"'`]([A-Za-z0-9_.\-/:]{4,60})[\"'`]")
_RUN = re.compile(r"[\w./:@\-]{4,}")
_INNER = re.compile(r"[a-z][A-Z]|[A-Z]{2,}[a-z]|_|\d|\w\.\w")  # what tells a name from a word

_LONGEST = 200


def paths(text: str) -> set[str]:
    """Paths of files and addresses of pages."""
    ways = (_PATH.match(way) for way in set(_WAY.findall(text)) if "/" in way)
    found = {way[0].rstrip("./-:@") for way in ways if way is not None}
    found = {path for path in found if "/" in path[1:] and path[:2] != "//" and any(c.isalpha() for c in path)}
    return {path for path in found | {url.rstrip(".,") for url in _URL.findall(text)} if 5 <= len(path) < _LONGEST}


def symbols(text: str) -> set[str]:
    """Names of programs: ``snake_case``, ``camelCase``, ``dotted.names``, words with digits."""
    return {name for raw in set(_SYMBOL.findall(text)) if 4 <= len(name := raw.strip(".")) < 80 and _INNER.search(name)}


def numbers(text: str) -> set[str]:
    """Whole numbers of three digits or more."""
    return set(_NUMBER.findall(text))


def hashes(text: str) -> set[str]:
    """Hashes and UUIDs in hexadecimal digits."""
    return set(_HEX.findall(text))


def keys(text: str) -> set[str]:
    """Short words in quotes, such as keys and values."""
    return set(_KEY.findall(text))


def runs(text: str) -> set[str]:
    """Maximal runs of what names are made of, marks between their parts included."""
    found = (raw.strip("./:-@") for raw in set(_RUN.findall(text)))
    return {run for run in found if 4 <= len(run) < 120 and (_INNER.search(run) or any(c in run for c in "/-:"))}


TOKENIZERS: Mapping[str, Callable[[str], set[str]]] = {
    "paths": paths,
    "symbols": symbols,
    "numbers": numbers,
    "hex": hashes,
    "keys": keys,
    "runs": runs,
}
"""By the name that a report gives them; it adds ``union``, whatever any of them finds."""


def kinds_of(text: str) -> dict[str, list[str]]:
    """The identifiers in a text, each with the tokenizers that find it."""
    found: dict[str, list[str]] = {}
    for kind, tokenize in TOKENIZERS.items():
        for name in tokenize(text):
            found.setdefault(name, []).append(kind)
    return found
