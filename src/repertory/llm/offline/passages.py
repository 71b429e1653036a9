"""What in a piece of a file can be quoted: sentences of comments and docstrings, definitions, telling lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, TypeAlias

import msgspec

from repertory.llm.offline.words import Keyword, fit, is_identifier, shorten, stem

Kind: TypeAlias = Literal["definition", "prose", "code"]

_DEFINITION = re.compile(
    r"^(?P<indent>\s*)(?:async\s+)?(?:def|class|func|fn|function|struct|interface)\s+(?P<name>\w+)"
)
_STATEMENT = re.compile(
    r"^(?:if|elif|else|for|while|return|import|from|raise|try|except|finally|with|async|await|yield|assert|del|pass|"
    r"break|continue|global|self|const|let|var|def|class|lambda|not|print|@)\b|^[\w.\[\]'\"]+\s*(?:=|\+=|\()|^[@)\]}]"
)
_MARKS = re.compile(r"^(?:#+|//+|/\*+|\*+|;+|--|%|>+)\s?|^[rRbBuU]?(?:\"\"\"|''')|(?:\"\"\"|''')\s*$|\*/\s*$")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`\"'(*\d])")
_WORTH: dict[Kind, float] = {"definition": 1.3, "prose": 1.2, "code": 0.35}
_QUOTES = re.compile(r"^[rRbBuU]?(?:\"\"\"|''')")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w{3,}")


class Passage(msgspec.Struct, frozen=True):
    """Something worth quoting, with the line on which it begins."""

    path: str
    line: int
    text: str
    kind: Kind

    @property
    def cited(self) -> str:
        """The text with its source."""
        return f"{self.text.rstrip('.:')} ({self.path}:{self.line})"


def passages(path: str, lines: Sequence[tuple[int, str]]) -> list[Passage]:
    """Everything in some numbered lines of a file that could be quoted."""
    found: list[Passage] = []
    owners: list[tuple[int, str]] = []  # the classes around a line: indentation and name
    run: list[tuple[int, str]] = []  # neighbouring lines of prose
    pending: Passage | None = None  # a definition whose docstring may follow
    signature = False  # whether the definition's own lines go on

    def flush() -> str:
        """Close the run of prose; returns its first sentence."""
        nonlocal pending
        whole = [*_sentences(path, run)]
        first = whole[0].text if whole else ""
        if pending is not None:
            pending = msgspec.structs.replace(pending, text=f"{pending.text}: {first}") if first else pending
            found.append(pending)
            whole = whole[1:]
            pending = None
        found.extend(passage for passage in whole if len(passage.text) >= 25)
        run.clear()
        return first

    for number, text in lines:
        definition = _DEFINITION.match(text)
        bare = _unmarked(text)
        if pending is not None and not run and not signature and not _QUOTES.match(text.strip()):
            flush()  # no docstring
        if definition is None and bare and _is_prose(bare, marked=bare != text.strip(), going_on=bool(run)):
            run.append((number, bare))
            continue
        # In many languages what a definition is for stands in a comment above it.
        above = bool(run) and run[-1][0] == number - 1 and not text.startswith((" ", "\t")) and pending is None
        first = flush() if run else ""
        if definition is not None:
            indent = len(definition["indent"])
            owners = [owner for owner in owners if owner[0] < indent]
            name = ".".join([*(owner for _, owner in owners), definition["name"]])
            if text.lstrip().startswith(("class", "struct", "interface")):
                owners.append((indent, definition["name"]))
            pending = Passage(path, number, f"`{name}`", "definition")
            signature = not text.rstrip().endswith((":", "{"))
            if above and first:
                pending = msgspec.structs.replace(pending, text=f"`{name}`: {first}")
        elif signature:
            signature = not text.rstrip().endswith((":", "{"))
        elif _STATEMENT.match(text.strip()) and len(text.strip()) > 12:
            found.append(Passage(path, number, f"`{shorten(text.strip(), 120)}`", "code"))
    flush()
    return found


def _unmarked(text: str) -> str:
    text = text.strip()
    while (shorter := _MARKS.sub("", text).strip()) != text:
        text = shorter
    return text


def _is_prose(text: str, *, marked: bool, going_on: bool) -> bool:
    """Whether a line reads like a sentence, or the rest of one; comment signs make it likely."""
    if not marked and _STATEMENT.match(text):
        return False
    words = text.split()
    plain = sum(word.strip(".,;:!?()'\"`*").replace("-", "").replace("'", "").isalpha() for word in words)
    if going_on:
        return plain >= (0.25 if marked else 0.4) * len(words)
    return plain >= (2 if marked else 4) and plain >= 0.6 * len(words)


def _sentences(path: str, run: Sequence[tuple[int, str]]) -> Iterator[Passage]:
    """Cut neighbouring lines of prose into sentences, each with the line on which it begins."""
    whole, starts = "", []
    for number, text in run:
        starts.append((len(whole), number))
        whole += text + " "
    at = 0
    for sentence in _SENTENCE_END.split(whole.strip()):
        at = whole.index(sentence, at)
        line = next((number for offset, number in reversed(starts) if offset <= at), 0)
        if sentence:
            yield Passage(path, line, shorten(sentence, 300), "prose")
        at += len(sentence)


def worth(passage: Passage, wanted: Sequence[Keyword]) -> float:
    """How well a passage answers; 0 where it says nothing about what is wanted."""
    base = fit(passage.text, wanted)
    if passage.kind == "definition" and ": " not in passage.text:
        base *= 0.3  # a name alone explains little
    elif passage.kind == "prose" and not (passage.text[0].isupper() and passage.text.endswith((".", "…"))):
        base *= 0.7  # half a sentence
    # Long sentences hit more words by chance.
    return base * _WORTH[passage.kind] / (1 + len(passage.text) / 600)


def best(found: Iterable[Passage], wanted: Sequence[Keyword], *, limit: int) -> list[Passage]:
    """The passages that answer best, each adding something to those before it."""
    ranked = sorted(((worth(p, wanted), p) for p in found), key=lambda pair: (-pair[0], pair[1].line))
    floor = 0.5 * max((keyword.weight for keyword in wanted), default=0.0)
    chosen: list[Passage] = []
    for value, passage in ranked:
        if value < floor or len(chosen) == limit:
            break
        if all(abs(passage.line - other.line) > 1 for other in chosen):
            chosen.append(passage)
    return chosen


def names_in(found: Iterable[Passage], wanted: Sequence[Keyword]) -> list[str]:
    """Identifiers worth looking up next: named in what fits, telling, and not simply what was asked for."""
    asked = {keyword.stem for keyword in wanted}
    counts: dict[str, float] = {}
    for passage in found:
        value = worth(passage, wanted)
        if value <= 0:
            continue
        for name in _IDENTIFIER.findall(passage.text):
            if is_identifier(name) and stem(name) not in asked:
                counts[name] = counts.get(name, 0.0) + value
    return sorted(counts, key=lambda name: (-counts[name], name))
