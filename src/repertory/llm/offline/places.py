"""Where to look next: files and lines, ranked by how well their names and their hits fit the question."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from repertory.llm.offline.view import Hit
from repertory.llm.offline.words import Keyword, fit, stems_of

_ASIDE = frozenset(
    {"test", "tests", "testing", "bench", "benchmarks", "examples", "mock", "mocks"}
    | {"vendor", "third_party", "site", "packages", "node_modules", "typeshed"}
)
_DEFINES = re.compile(r"^\s*(?:async\s+)?(?:def|class|func|fn|function|struct|interface|#+)\s")
_NOT_TEXT = re.compile(r"\.(so|pyc|pyd|dll|o|a|png|jpe?g|gif|ico|pdf|zip|gz|whl|exe|bin|db|sqlite3?)$", re.IGNORECASE)
_PATH_LINE = re.compile(r"^[^\s].*?[\w-]\.\w{1,8}$")
WINDOW = 200  # lines that one look at a file shows


def path_fit(path: str, wanted: Sequence[Keyword]) -> float:
    """How well a path fits; tests and the like count less, unless they are what is asked about."""
    return fit(path, wanted) * (0.3 if is_aside(path, wanted) else 1.0)


def is_aside(path: str, wanted: Sequence[Keyword]) -> bool:
    """Whether a path leads to tests, examples or other people's code, and the question is not about these."""
    parts = set(re.split(r"[/.-]", path.lower()))
    parts |= {part.partition("_")[0] for part in parts}  # test_queues
    return bool(parts & _ASIDE) and not {keyword.stem for keyword in wanted} & {"test", "exampl", "bench"}


def files_in(listing: str, wanted: Sequence[Keyword]) -> dict[str, float]:
    """The files that a listing names and that fit, with their scores."""
    rows = [row.strip().lstrip("-* ") for row in listing.splitlines()]
    files = (row for row in rows if _PATH_LINE.match(row) and not _NOT_TEXT.search(row))
    return {row: score for row in files if (score := path_fit(row, wanted)) > 0}


def windows(hits: Iterable[Hit], wanted: Sequence[Keyword]) -> dict[str, float]:
    """The places in files around which the most telling hits lie, as ``path:line``, with their scores."""
    by_path: dict[str, dict[int, float]] = {}
    for hit in hits:
        value = fit(hit.text, wanted) * (1.5 if _DEFINES.match(hit.text) else 1.0)
        by_path.setdefault(hit.path, {})[hit.line] = value
    found: dict[str, float] = {}
    for path, values in by_path.items():
        name, share = path_fit(path, wanted), 0.3 if is_aside(path, wanted) else 1.0
        left = dict(values)
        for _ in range(3):  # a file has at most three places of interest at a time
            if not left:
                break
            # A window begins a little above its first hit, so that the heading or the signature is in it.
            start = max(left, key=lambda line: (_sum(left, line), -line))
            score = _sum(left, start) * share
            if score <= 0:
                break
            found[f"{path}:{max(1, start - 5)}"] = round(2 * name + score, 3)
            left = {line: value for line, value in left.items() if not start - 5 <= line < start - 5 + WINDOW}
    return found


def _sum(values: dict[int, float], start: int) -> float:
    inside = sorted((value for line, value in values.items() if start <= line < start + WINDOW - 5), reverse=True)
    # The best hits count; a crowd of weak ones does not.
    return sum(value / (rank + 1) for rank, value in enumerate(inside[:8]))


def definition_pattern(words: Sequence[str]) -> str:
    """A regular expression for the definitions whose names contain one of these words."""
    return rf"\b(class|def|func|fn|function|struct|interface)\s+\w*({'|'.join(map(re.escape, words))})"


def any_pattern(words: Sequence[str]) -> str:
    """A regular expression for one of these words, anywhere."""
    return "|".join(map(re.escape, words))


def overlaps(place: str, viewed: Iterable[str]) -> bool:
    """Whether most of the window at ``path:line`` has been read; ``viewed`` holds ``path:first-last``."""
    path, _, line = place.rpartition(":")
    start = int(line)
    for seen in viewed:
        seen_path, _, extent = seen.rpartition(":")
        first, _, last = extent.partition("-")
        if seen_path == path and int(first) - WINDOW // 2 <= start <= int(last or first):
            return True
    return False


def same_topic(first: str, second: str) -> bool:
    """Whether two texts say nearly the same: most stems of the shorter are in the longer."""
    one, two = stems_of(first), stems_of(second)
    small, large = (one, two) if len(one) <= len(two) else (two, one)
    return bool(small) and len(small & large) >= 0.8 * len(small)
