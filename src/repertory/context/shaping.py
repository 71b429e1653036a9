"""Shape a tool result on arrival: what the model first sees of it, and whether the whole goes to the content store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from repertory.context.cutting import cut, first_chars, kind_of_text
from repertory.context.names import clip
from repertory.context.policy import ResultRules
from repertory.llm.messages import Image, RawBlock, Text, text_of

Content: TypeAlias = str | tuple[Text | Image | RawBlock, ...]
"""What a tool result may hold."""

_CHARS_PER_TOKEN = 4
_PARAMS_CHARS = 300


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
        params: Small facts about it.
    """

    content_id: str
    source: str
    excerpt: str
    location: str
    length: int
    lines: int
    url: str = ""
    params: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])

    @property
    def text(self) -> str:
        """The citation as the model sees it."""
        head = [
            f"citation {self.content_id}",
            self.source,
            self.url,
            f"{self.length:,} characters, {self.lines:,} lines",
        ]
        out = [f"[{' | '.join(part for part in head if part)}]"]
        if self.params:
            out.append(clip("; ".join(f"{name}: {value}" for name, value in self.params.items()), _PARAMS_CHARS))
        out.append(self.excerpt)
        out.append(f"[{self.location}; {how_to_get(self.content_id)}]")
        return "\n".join(out)


class Shaped(msgspec.Struct, frozen=True, kw_only=True):
    """A result as it goes into the ledger.

    Attributes:
        content: What the model is shown.
        content_id: Under which the whole must be stored; None where the ledger holds all that is needed.
        original_length: Characters of the whole where ``content`` is not all of it; 0 where it is.
        citation: For the payload and for listings; None where nothing is stored.
    """

    content: Content
    content_id: str | None = None
    original_length: int = 0
    citation: Citation | None = None


def how_to_get(content_id: str) -> str:
    """How the model gets at a stored content."""
    return f'retrieve_content(content_id="{content_id}") shows the whole, given lines, or what matches a search'


def shape_result(
    content: Content,
    *,
    rules: ResultRules,
    content_id: str,
    tool: str = "",
    url: str = "",
    params: Mapping[str, Any] | None = None,
) -> Shaped:
    """Decide what the model first sees of a result.

    It is whole up to the cap; head and tail beyond, cut where the text stays readable, and it ends with what was
    left out and how to get it. Images and blocks of other types stay.

    Args:
        content: The whole result.
        rules: What holds for the tool's results.
        content_id: The id to store the whole under, should that be needed.
        tool: The tool's name.
        url: Where the result came from; "" where it has no address.
        params: Small facts that stay visible when the result is cited.
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
    citation = cite(text, content_id=content_id, source=tool, excerpt_chars=rules.excerpt_chars, url=url, params=params)
    if cited and rules.cite_on_arrival and not rules.pin:
        shown: Content = _with_text(content, citation.text)
    elif over:
        shown = _with_text(content, _capped(text, cap, content_id))
    else:
        return Shaped(content=content, content_id=content_id, citation=citation)
    return Shaped(content=shown, content_id=content_id, original_length=length, citation=citation)


def cite(
    text: str,
    *,
    content_id: str,
    source: str = "",
    excerpt_chars: int = 500,
    url: str = "",
    params: Mapping[str, Any] | None = None,
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
        params=dict(params or {}),
    )


def _capped(text: str, cap: int, content_id: str) -> str:
    found = cut(text, cap, kind=kind_of_text(text))
    assert found is not None
    shown = len(text) - found.omitted
    return f"{found.text}\n[{shown:,} of {len(text):,} characters shown; {how_to_get(content_id)}]"


def _with_text(content: Content, text: str) -> Content:
    if isinstance(content, str):
        return text
    others = tuple(block for block in content if not isinstance(block, Text))
    return (Text(text), *others)
