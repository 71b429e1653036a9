"""Glob patterns for paths, which match quickly even if the pattern is hostile."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

_CHOICE: Final = re.compile(r"\{([^{}]*,[^{}]*)\}")
_MOST_CHOICES: Final = 100  # more than any list of endings has; {a,b}{a,b}… doubles with each pair


@lru_cache(maxsize=1_000)
def _component(pattern: str) -> re.Pattern[str]:
    # fnmatch translates each star to an atomic group, so a name is matched without backtracking.
    return re.compile(fnmatch.translate(pattern))


@lru_cache(maxsize=1_000)
def _choices(pattern: str) -> tuple[str, ...]:
    """The patterns that one with ``{…,…}`` stands for, and itself, as a name may have braces; itself if too many."""
    done, todo = [pattern], [pattern]
    while todo:
        each = todo.pop()
        if found := _CHOICE.search(each):
            todo += [each[: found.start()] + choice + each[found.end() :] for choice in found[1].split(",")]
        else:
            done.append(each)
        if len(done) + len(todo) > _MOST_CHOICES:
            return (pattern,)
    return tuple(dict.fromkeys(done))


def match_glob(pattern: str, parts: Sequence[str]) -> bool:
    """Whether a path fits a pattern.

    ``*``, ``?`` and ``[…]`` match within one name, ``**`` matches any number of folders, ``{…,…}`` one of several
    texts. A pattern without a slash is compared with the last name only, at any depth. A pattern that ends in a slash
    matches everything below.

    Args:
        pattern: Such as ``*.py``, ``*.{md,rst}``, ``src/**/test_*.py``, ``docs/``.
    """
    return any(_fits(each, parts) for each in _choices(pattern))


def _fits(pattern: str, parts: Sequence[str]) -> bool:
    if pattern.endswith("/"):
        pattern += "**"
    wanted = [piece for piece in pattern.split("/") if piece not in ("", ".")]
    if "/" not in pattern:
        wanted = ["**", *wanted]
    # fits[i]: the pieces so far can end just before parts[i]. One pass per piece: pieces times names steps in all.
    fits = [True] + [False] * len(parts)
    for piece in wanted:
        if piece == "**":
            first = fits.index(True) if True in fits else len(fits)
            fits = [index >= first for index in range(len(fits))]
        else:
            match = _component(piece).match
            fits = [False] + [fits[index] and match(name) is not None for index, name in enumerate(parts)]
    return fits[-1]
