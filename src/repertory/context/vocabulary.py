"""What names the record has shown and the agent has used, and what a name is worth keeping. Pure and deterministic.

Every figure can be asked for as of an earlier iteration, so that it does not matter how far ahead one has read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from repertory.context.names import TOKEN, WEIGHT, kind_of_name

_LONGEST = 200  # characters of a token that is looked at; longer ones would only fill the caches
_NO_NAME = ("", 0.0)
_MARK = re.compile(r"[/.:@\-]+")
_SPREAD = (0, 1.0, 3.5, 8.0, 13.0)  # in so many results
_REPEAT = (0, 1.0, 1.7, 2.5, 3.0)  # so often in one
CHUNK = 2_000
"""Characters that are read at a time."""
MOST_READ = 48_000
"""Characters of one text that are read, two thirds of them from its beginning."""
BATCH = 200
"""Names that are looked at at a time."""
_REMEMBERED = 100_000  # names; after so many new ones, those that have not come up since are forgotten
LEAST_WORTH = 0.001
"""Names worth less are dropped: by the measurements, what a name of 25 plain characters, seen once, is worth."""


@lru_cache(maxsize=1 << 16)
def _named(raw: str) -> tuple[str, float]:
    """A token's name and its weight per character; 0.0 for a plain word."""
    name = raw.rstrip("./-~@:")
    kind = kind_of_name(name)
    return name, WEIGHT[kind] / (len(name) + 1) / 100 if kind else 0.0


def names_of(text: str) -> list[str]:
    """The names in a text, each once, in order."""
    tokens = (token for token in dict.fromkeys(TOKEN.findall(text)) if len(token) <= _LONGEST)
    return [name for name, weight in map(_named, tokens) if weight]


@lru_cache(maxsize=1 << 16)
def parts_of(name: str) -> tuple[str, ...]:
    """A name and what can be read off it: tails of a path, members of a dotted name."""
    tails = (name[mark.end() :] for mark in _MARK.finditer(name))
    return tuple({name, *(part for part in (*tails, *_MARK.split(name)) if len(part) > 2)})


def count_names(text: str) -> Iterator[dict[str, int]]:
    """Count the names of a long text piece by piece; the last that is handed out holds them all."""
    if len(text) > MOST_READ:
        text = text[: MOST_READ * 2 // 3] + "\n" + text[-MOST_READ // 3 :]
    tokens: Counter[str] = Counter()
    start = 0
    while start < len(text):
        end = text.find("\n", start + CHUNK)
        end = end if 0 <= end < start + 4 * CHUNK else start + CHUNK
        tokens.update(TOKEN.findall(text, start, end))
        start = end
        yield {}
    found: dict[str, int] = {}
    for number, (token, count) in enumerate(tokens.items(), 1):
        name, weight = _named(token) if len(token) <= _LONGEST else _NO_NAME
        if weight:
            found[name] = found.get(name, 0) + count
        if not number % (2 * BATCH):
            yield found
    yield found


def values_of(value: Any) -> str:
    """The strings and numbers of a JSON value, one a line, unescaped."""
    if isinstance(value, dict):
        inside: dict[str, Any] = value
        return "\n".join(values_of(inner) for inner in inside.values())
    if isinstance(value, list):
        items: list[Any] = value
        return "\n".join(values_of(inner) for inner in items)
    return str(value)


class Vocabulary:
    """In which results a name stood, and when the agent first used it; of the last hundred thousand names at least."""

    def __init__(self) -> None:
        self._seen: dict[str, list[int]] = {}  # the iterations of the first four results
        self._seen_before: dict[str, list[int]] = {}  # the same of names that have not come up for long
        self._used: dict[str, int] = {}
        self._used_before: dict[str, int] = {}

    def saw(self, names: Iterable[str], iteration: int) -> Iterator[None]:
        """A result showed these names. Takes them in piece by piece."""
        for number, name in enumerate(names, 1):
            if not number % BATCH:
                yield
            self._note(name, iteration)
            if "/" in name:
                self._note(name.rpartition("/")[2], iteration)
        if len(self._seen) > _REMEMBERED:
            self._seen, self._seen_before = {}, self._seen

    def _note(self, name: str, iteration: int) -> None:
        seen = self._seen.get(name)
        if seen is None:
            seen = self._seen[name] = self._seen_before.pop(name, [])
        if len(seen) < len(_SPREAD) - 1:
            seen.append(iteration)

    def use(self, text: str, iteration: int) -> None:
        """The agent said this."""
        used, before = self._used, self._used_before
        for name in names_of(text):
            for part in parts_of(name):
                if part not in used:
                    used[part] = before.get(part, iteration)
        if len(used) > _REMEMBERED:
            self._used, self._used_before = {}, used

    def is_used(self, name: str, as_of: int) -> bool:
        """Whether the agent had used a name by then."""
        since = self._used.get(name, self._used_before.get(name))
        return since is not None and since <= as_of

    def used_in(self, line: str, as_of: int) -> list[str]:
        """The names in a line that the agent had used by then."""
        used, before, never = self._used, self._used_before, as_of + 1
        return [name for name in _names_in_line(line) if used.get(name, before.get(name, never)) <= as_of]

    def is_known(self, name: str, as_of: int) -> bool:
        """Whether a result had shown a name by then."""
        return any(at <= as_of for at in self._results_with(name)[:1])

    def worth(self, name: str, count: int, as_of: int) -> float:
        """How likely a name is to be needed again, for each character that keeping it takes; 1.0 where it was used."""
        if self.is_used(name, as_of):
            return 1.0
        weight = _named(name)[1]
        if not weight:
            return 0.0
        seen = self._results_with(name)
        spread = len(seen) if not seen or seen[-1] <= as_of else sum(at <= as_of for at in seen)
        return weight * _SPREAD[spread or 1] * _REPEAT[min(count, 4)]

    def _results_with(self, name: str) -> Sequence[int]:
        return self._seen.get(name) or self._seen_before.get(name) or ()

    def choose(
        self, found: Mapping[str, int], standing: Container[str], *, as_of: int, least: float = LEAST_WORTH
    ) -> list[str]:
        """The names worth keeping of those that stand nowhere else, in order.

        Args:
            found: Names and how often they stand in the text.
            standing: What stands elsewhere.
            as_of: The iteration up to which the record counts.
            least: What a name must be worth.
        """
        *_, chosen = self.choosing(found, standing, as_of=as_of, least=least)
        return chosen

    def choosing(
        self, found: Mapping[str, int], standing: Container[str], *, as_of: int, least: float = LEAST_WORTH
    ) -> Iterator[list[str]]:
        """Choose piece by piece, as ``choose`` does at once; the same list is handed out as it grows."""
        chosen: list[str] = []
        fresh: set[str] = set()
        for number, (found_name, count) in enumerate(found.items(), 1):
            name = found_name
            if not number % BATCH:
                yield chosen
            if name in standing or name in fresh:
                continue
            if self.worth(name, count, as_of) < least:
                name = name.rpartition("/")[2]  # the last part of a path may be short enough where the whole is not
                if not name or name in standing or name in fresh or self.worth(name, count, as_of) < least:
                    continue
            chosen.append(name)
            fresh.update(parts_of(name))
        yield chosen


@lru_cache(maxsize=1 << 12)
def _names_in_line(line: str) -> tuple[str, ...]:
    return tuple(names_of(line))


@lru_cache(maxsize=1 << 12)
def _parts_in(line: str) -> frozenset[str]:
    return frozenset(part for name in _names_in_line(line) for part in parts_of(name))


class Standing(set[str]):
    """Names that stand in the part of the view that lasts: the task, what users said, digests; with all their parts.

    A fold only moves lines, so it changes nothing here; a merge, which drops some, begins anew.
    """

    def put(self, *lines: str) -> None:
        """Something came into view."""
        self.update(*map(_parts_in, lines))
