"""From findings to an answer that a person can read: the best first, each with its source, nothing twice."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from repertory.llm.offline.places import is_aside, same_topic
from repertory.llm.offline.words import Keyword, covered, fit

_CITED = re.compile(
    r"^\s*(?:[-*•]|\d+[.)])?\s*(?P<text>\S.*?)\s*[(\[](?P<path>[^\s()\[\]]+?):(?P<line>\d+)(?:-\d+)?[)\]]\.?\s*$"
)


class Finding(msgspec.Struct, frozen=True):
    """A statement and where it stands."""

    text: str
    path: str
    line: int

    @property
    def source(self) -> str:
        """Its place, ``path:line``."""
        return f"{self.path}:{self.line}"

    def __str__(self) -> str:
        end = "" if self.text.endswith((".", "…", "!", "?", "`")) else "."
        return f"{self.text}{end} ({self.source})"


def findings_in(texts: Iterable[str]) -> list[Finding]:
    """The statements with a source in some texts, one per line, each source once."""
    found: dict[str, Finding] = {}
    for text in texts:
        for row in text.replace("\\n", "\n").splitlines():
            match = _CITED.match(row.removeprefix("Found: "))
            if match:
                finding = Finding(match["text"].removesuffix("."), match["path"], int(match["line"]))
                found.setdefault(finding.source, finding)
    return list(found.values())


def choose(
    findings: Sequence[Finding], wanted: Sequence[Keyword], *, limit: int, per_file: int = 3, share: float = 0.0
) -> list[Finding]:
    """The findings that answer best together: each is weighed by what it adds to those before it.

    Args:
        findings: What there is to choose from.
        wanted: What is asked for.
        limit: How many at most.
        per_file: How many of one file at most.
        share: What is worth less than this share of the best is left out: it would only dilute the answer.
    """
    left = list(findings)
    chosen: list[Finding] = []
    told: set[str] = set()
    best = 0.0

    def gain(finding: Finding) -> float:
        text = f"{finding.text} {finding.path}"
        new = sum(keyword.weight for keyword in wanted if keyword.stem in covered(text, wanted) - told)
        value = fit(finding.text, wanted) + 0.4 * fit(finding.path, wanted) + 0.6 * new
        value *= 0.3 if is_aside(finding.path, wanted) else 1.0
        if finding.text.startswith("`"):
            return value * (1.0 if ": " in finding.text else 0.4)  # a name alone explains little
        return value * (0.6 if finding.text[0].islower() else 1.0)  # so does half a sentence

    while left and len(chosen) < limit:
        top = max(left, key=lambda finding: (gain(finding), finding.source))
        left.remove(top)
        crowded = sum(finding.path == top.path for finding in chosen) >= per_file
        if crowded or any(same_topic(top.text, finding.text) for finding in chosen):
            continue
        best = best or gain(top)
        if gain(top) <= share * best:
            break
        chosen.append(top)
        told |= covered(f"{top.text} {top.path}", wanted)
    return chosen


def answer(findings: Sequence[Finding], wanted: Sequence[Keyword]) -> str:
    """An answer to one question: the statement that fits best, then what supports it, by place."""
    chosen = choose(findings, wanted, limit=6, share=0.35)
    if not chosen:
        about = ", ".join(keyword.word for keyword in wanted[:5]) or "this"
        return f"I found nothing about {about} that I could quote."
    first, *rest = chosen
    lines = [str(first)]
    if rest:
        lines += ["", *(f"- {finding}" for finding in sorted(rest, key=lambda f: (f.path, f.line)))]
    told = frozenset[str]().union(*(covered(f"{f.text} {f.path}", wanted) for f in chosen))
    missing = [keyword.word for keyword in wanted[:6] if keyword.weight >= 1 and keyword.stem not in told]
    if missing:
        lines += ["", f"Nothing quotable was found about: {', '.join(missing)}."]
    return "\n".join(lines)
