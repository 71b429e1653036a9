"""Shape a tool result on arrival: what the model first sees of it, and whether the whole goes to the content store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from repertory._frozen import freeze_fields
from repertory.context.compactors import said_of
from repertory.context.cutting import clip, cut, first_chars, kind_of_text
from repertory.context.policy import ResultRules
from repertory.llm.messages import Image, RawBlock, Text, canonical_json, text_of

Content: TypeAlias = str | tuple[Text | Image | RawBlock, ...]
"""What a tool result may hold."""

_CHARS_PER_TOKEN = 4
_FACTS_CHARS = 200


class Citation(msgspec.Struct, frozen=True, kw_only=True):
    """A result in the content store, as far as a conversation needs to know it.

    Attributes:
        content_id: Its id; ``retrieve_content`` takes it.
        source: The tool or other origin.
        excerpt: Its beginning.
        location: What the excerpt shows of the whole.
        length: Characters of the whole.
        lines: Lines of the whole.
        url: Where it came from; "" where it has no address.
        facts: Small facts about it.
        retrieval: Whether the text names the tool that shows the whole.
    """

    content_id: str
    source: str
    excerpt: str
    location: str
    length: int
    lines: int
    url: str = ""
    facts: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    retrieval: bool = True

    def __post_init__(self) -> None:
        freeze_fields(self, "facts")

    @property
    def text(self) -> str:
        """The citation as the model sees it."""
        head = [
            f"citation {self.content_id}",
            self.source,
            f"{self.length:,} characters, {self.lines:,} lines",
            facts_line(self.url, self.facts),
        ]
        how = how_to_get(self.content_id, retrieval=self.retrieval)
        return f"[{' | '.join(part for part in head if part)}]\n{self.excerpt}\n[{self.location}{how}]"


class Shaped(msgspec.Struct, frozen=True, kw_only=True):
    """A result as it goes into the ledger.

    Attributes:
        content: What the model is shown.
        content_id: Under which the whole must be stored; None where the ledger holds all that is needed.
        original_length: Characters of the whole where ``content`` is not all of it; 0 where it is.
        citation: For the payload and for listings; None where nothing is stored.
        gist: What a compactor says of the whole where ``content`` is not all of it; "" where none fits.
        spans: Where in the text the tool's own words stand; see ``Draft.spans``.
    """

    content: Content
    content_id: str | None = None
    original_length: int = 0
    citation: Citation | None = None
    gist: str = ""
    spans: tuple[tuple[int, int], ...] = ()


def how_to_get(content_id: str, *, retrieval: bool) -> str:
    """How the model gets at a stored content, to end a note with; nothing where it has no tool for that."""
    return f'; retrieve_content(content_id="{content_id}") shows the whole' if retrieval else ""


def facts_line(url: str, facts: Mapping[str, Any]) -> str:
    """Where a result came from and what its tool says about it, in one line."""
    parts = [
        f"{name}: {value if isinstance(value, str) else canonical_json(value).decode()}"
        for name, value in facts.items()
    ]
    return clip("; ".join([url, *parts] if url else parts), _FACTS_CHARS)


def shape_result(
    content: Content,
    *,
    rules: ResultRules,
    content_id: str,
    tool: str = "",
    url: str = "",
    facts: Mapping[str, Any] | None = None,
) -> Shaped:
    """Decide what the model first sees of a result.

    It is whole up to the cap; head and tail beyond, cut where the text stays readable, and it ends with what was
    left out, its address and small facts, and how to get the whole. Images and blocks of other types stay.

    Args:
        content: The whole result.
        rules: What holds for the tool's results.
        content_id: The id to store the whole under, should that be needed.
        tool: The tool's name.
        url: Where the result came from; "" where it has no address.
        facts: Small facts that stay visible when the result is not shown whole.
    """
    text = text_of(content)
    length = len(text)
    limits = [limit for limit in (rules.cap_tokens * _CHARS_PER_TOKEN, rules.cap_chars) if limit]
    cap = min(limits, default=0)
    # Pinned results are verbatim by definition; what would be cut must be stored, however short.
    over = bool(cap) and length > cap and not rules.pin
    cited = bool(rules.cite_over) and length > rules.cite_over
    if not over and not cited:
        return Shaped(content=content)
    citation = cite(
        text,
        content_id=content_id,
        source=tool,
        excerpt_chars=rules.excerpt_chars,
        url=url,
        facts=facts,
        retrieval=rules.retrieval,
    )
    if cited and rules.cite_on_arrival and not rules.pin:
        shown = citation.text
        at = shown.index("]\n") + 2
        spans: tuple[tuple[int, int], ...] = ((at, at + len(citation.excerpt)),)
    elif over:
        shown, spans = _capped(text, cap, citation)
    else:
        return Shaped(content=content, content_id=content_id, citation=citation)
    gist = said_of(text, rules.compact_length, tool=tool, name=rules.compactor)
    return Shaped(
        content=_with_text(content, shown),
        content_id=content_id,
        original_length=length,
        citation=citation,
        gist=gist or "",
        spans=spans,
    )


def cite(
    text: str,
    *,
    content_id: str,
    source: str = "",
    excerpt_chars: int = 500,
    url: str = "",
    facts: Mapping[str, Any] | None = None,
    retrieval: bool = True,
) -> Citation:
    """Make the citation of a stored text."""
    excerpt = first_chars(text, excerpt_chars)
    lines = text.count("\n") + 1
    if len(excerpt) == len(text):
        location = "this is all of it"
    else:
        shown = excerpt.rstrip("\n").count("\n") + 1
        location = f"above: the first {len(excerpt):,} of {len(text):,} characters, line 1–{shown} of {lines:,}"
    return Citation(
        content_id=content_id,
        source=source,
        excerpt=excerpt,
        location=location,
        length=len(text),
        lines=lines,
        url=url,
        facts=dict(facts or {}),
        retrieval=retrieval,
    )


def _capped(text: str, cap: int, citation: Citation) -> tuple[str, tuple[tuple[int, int], ...]]:
    found = cut(text, cap, kind=kind_of_text(text))
    assert found is not None
    sizes = f"{len(text) - found.omitted:,} of {len(text):,} characters shown"
    facts = facts_line(citation.url, citation.facts)
    note = f"{sizes}; {facts}" if facts else sizes
    shown = f"{found.text}\n[{note}{how_to_get(citation.content_id, retrieval=citation.retrieval)}]"
    end = len(found.text)
    tail = ((end - len(found.tail), end),) if found.tail else ()
    return shown, ((0, len(found.head)), *tail)


def _with_text(content: Content, text: str) -> Content:
    if isinstance(content, str):
        return text
    others = tuple(block for block in content if not isinstance(block, Text))
    return (Text(text), *others)
