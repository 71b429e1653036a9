"""Glob patterns over paths, in time that a hostile pattern cannot blow up."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from functools import lru_cache


@lru_cache(maxsize=1_000)
def _component(pattern: str) -> re.Pattern[str]:
    # fnmatch writes each star as an atomic group, so a name is matched without backtracking.
    return re.compile(fnmatch.translate(pattern))


def match_glob(pattern: str, parts: Sequence[str]) -> bool:
    """Whether a path fits a pattern.

    ``*`` and ``?`` and ``[…]`` stay within one name, ``**`` stands for any number of folders. A pattern without
    a slash is about the last name, wherever it is; one that ends in a slash is about everything below.

    Args:
        pattern: Such as ``*.py``, ``src/**/test_*.py``, ``docs/``.
        parts: The names on the path.
    """
    if pattern.endswith("/"):
        pattern += "**"
    wanted = [piece for piece in pattern.split("/") if piece not in ("", ".")]
    if "/" not in pattern:
        wanted = ["**", *wanted]
    # fits[i]: the pieces so far can end just before parts[i]. One row per piece, so pieces times names steps.
    fits = [True] + [False] * len(parts)
    for piece in wanted:
        if piece == "**":
            first = fits.index(True) if True in fits else len(fits)
            fits = [index >= first for index in range(len(fits))]
        else:
            match = _component(piece).match
            fits = [False] + [fits[index] and match(name) is not None for index, name in enumerate(parts)]
    return fits[-1]
