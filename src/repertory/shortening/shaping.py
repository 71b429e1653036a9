"""What the model sees of one result on arrival, and what replaces it later. Pure and deterministic.

Every note that the engine writes around a result's own words is made here. The plan stores the finished text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from repertory._counting import counted
from repertory._cutting import clip, cut, first_chars
from repertory._json_text import canonical_json
from repertory.llm.messages import Image, RawBlock, Text, ToolResult, is_document, text_of
from repertory.record.entries import Entry
from repertory.shortening.compactors import compact, describe, first_words
from repertory.shortening.rules import ResultRules

Content: TypeAlias = str | tuple[Text | Image | RawBlock, ...]
"""What a tool result may hold."""

Why: TypeAlias = Literal["shortened", "shown once", "superseded", "expired", "cut"]
"""Why a result is not shown as it arrived: its policy or rhythm says so, it was bulky, the same was called again, it
expired, or the prompt would not fit."""

_FACTS_CHARS = 200  # two lines: an address and a few small values


# --- on arrival -------------------------------------------------------------------------------------------


class Shaped(msgspec.Struct, frozen=True, kw_only=True):
    """A result as it goes into the ledger.

    Attributes:
        content: What the model is shown.
        content_id: The id to store the whole under; None if the ledger holds all that is needed.
        original_length: Characters of the whole; 0 if ``content`` is the whole.
        gist: A compactor's description of the whole, if ``content`` is not all of it; "" if none fits.
        spans: Where the tool's own words are in the text; see ``Draft.spans``.
    """

    content: Content
    content_id: str | None = None
    original_length: int = 0
    gist: str = ""
    spans: tuple[tuple[int, int], ...] = ()


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

    A result up to the cap is shown whole. A longer one is cut to head and tail where the text stays readable; it ends
    with what was left out, its address and small facts, and how to get the whole. Images and other blocks stay.

    Args:
        content: The whole result.
        rules: The rules for the tool's results.
        content_id: The id to store the whole under, if necessary.
        tool: The tool's name.
        url: Where the result came from; "" if it has no address.
        facts: Small facts that stay visible if the result is not shown whole.
    """
    text = text_of(content)
    # Pinned results are verbatim by definition; what would be cut must be stored, however short.
    short = None if rules.pin or not rules.cap_chars else cut(text, rules.cap_chars)
    cited = bool(rules.cite_over) and len(text) > rules.cite_over
    retrieval, source = _content_note(content_id, rules), _source_text(url, facts or {})
    size = counted(len(text), "character")
    if cited and rules.cite_on_arrival and not rules.pin:
        excerpt, lines = first_chars(text, rules.excerpt_chars), text.count("\n") + (not text.endswith("\n"))
        parts = (f"citation {content_id}", tool, f"{size}, {counted(lines, 'line')}", source)
        head = " | ".join(filter(None, parts))
        shown = f"[{head}]\n{excerpt}"
        spans: tuple[tuple[int, int], ...] = ((len(shown) - len(excerpt), len(shown)),)
        last = excerpt.rstrip("\n").count("\n") + 1
        where = f"above: the first {len(excerpt):,} of {size}, line 1–{last} of {lines:,}"
        shown += f"\n[{'this is all of it' if excerpt == text else where}{retrieval}]"
    elif short is not None:
        end = len(short.text)
        spans = ((0, len(short.head)), *([(end - len(short.tail), end)] if short.tail else []))
        note = f"{len(text) - short.omitted:,} of {size} shown"
        shown = f"{short.text}\n[{note}{source and f'; {source}'}{retrieval}]"
    else:
        return Shaped(content=content, content_id=content_id if cited else None)
    others = () if isinstance(content, str) else tuple(block for block in content if not isinstance(block, Text))
    return Shaped(
        content=shown if isinstance(content, str) else (Text(shown), *others),
        content_id=content_id,
        original_length=len(text),
        gist=describe(text, rules.compact_length, tool=tool, name=rules.compactor) or "",
        spans=spans,
    )


# --- later ------------------------------------------------------------------------------------------------


def tool_text(entry: Entry) -> str:
    """Return the tool's own words in a result, as far as the entry holds them, without the engine's notes."""
    text = text_of(entry.content)
    return "\n".join(text[start:end] for start, end in entry.spans) if entry.spans else text


def plug_in_text(entry: Entry, rules: ResultRules) -> str:
    """Describe a result by the compactor that its policy names or the application added for its tool; "" if none."""
    text = describe(
        tool_text(entry), rules.compact_length, tool=entry.tool or "", name=rules.compactor, requested_only=True
    )
    # A result that was cut on arrival was described then, from the whole.
    return first_chars(entry.gist, rules.compact_length) if text is not None and entry.gist else text or ""


def requested_text(entry: Entry, rules: ResultRules, summary: str) -> str:
    """Return what an application wants to remain of a result; "" if it does not say.

    That is the first characters if the policy says so; otherwise what a plug-in says, or else what a model wrote.
    """
    if rules.compact_mode == "first_chars":
        return first_chars(tool_text(entry), rules.compact_length)
    return plug_in_text(entry, rules) or summary


def stub_of(entry: Entry, rules: ResultRules, why: Why, body: str) -> str:
    """Write a stub: why it is there, what it replaces, how to get the whole, where that came from, what remains."""
    length, media = entry.original_length or len(text_of(entry.content)), media_in(entry)
    size = ", ".join(part for part in (counted(length, "character") if length or not media else "", media) if part)
    source = "" if entry.retrieved is not None else _source_text(entry.url, entry.facts)
    head = _note(entry, why, f", {size}{retrieval_note(entry, rules)}")
    return "\n".join(part for part in (head, source, body.strip()) if part)


def lines_stub(entry: Entry, rules: ResultRules, why: Why, lines: Sequence[str], share: str) -> str:
    """Write a stub of chosen lines, which says how much of the whole they are if they are not all of it."""
    return stub_of(entry, rules, why, "\n".join([*([f"{share}:"] if share else []), *lines]))


def viewed_stub(entry: Entry, rules: ResultRules) -> str:
    """Write the line that replaces a result the model has seen, outside the window of strict rhythm."""
    if not entry.original_length:
        gist = compact(tool_text(entry), rules.compact_length, tool=entry.tool or "", name=rules.compactor)
    else:
        gist = first_chars(entry.gist, rules.compact_length) or first_words(tool_text(entry), rules.compact_length)
    return f"{_note(entry, 'previously viewed', retrieval_note(entry, rules))} {' '.join(gist.split())}"


def superseded_stub(entry: Entry, newer: Entry) -> str:
    """Write what remains of a result whose call was made again: where the newer result is."""
    return _note(entry, "superseded", f"; called again for this or more in iteration {newer.iteration}")


def removal_of(entry: Entry, rules: ResultRules) -> str:
    """Write the line that remains of a removed result."""
    return _note(entry, "expired", retrieval_note(entry, rules))


def retrieval_note(entry: Entry, rules: ResultRules) -> str:
    """Say how the model can get the whole of a result, as the end of a note; "" if it has no tool for that."""
    if entry.retrieved is not None:  # a retrieval finds only what is on record elsewhere
        return "; the same call shows it again" if rules.retrieval else ""
    if entry.content_id is not None:
        return _content_note(entry.content_id, rules)
    return f"; context_retrieve(iteration={entry.iteration}) shows the whole" if rules.retrieval else ""


def media_in(entry: Entry) -> str:
    """Say how many images, documents and other blocks without text a result holds; "" for none."""
    counts: Counter[str] = Counter()
    for block in entry.content:
        inside = block.content if isinstance(block, ToolResult) else (block,)
        for part in () if isinstance(inside, str) else inside:
            if isinstance(part, Image):
                counts["image"] += 1
            elif isinstance(part, RawBlock):
                counts["document" if is_document(part) else "other block"] += 1
    if not counts:
        return ""
    kinds = [kind for kind in ("image", "document", "other block") if counts[kind]]
    return ", ".join(counted(counts[kind], kind) for kind in kinds)


def is_said_with_media(entry: Entry) -> bool:
    """Whether somebody said it, with images or documents."""
    return entry.role == "user" and entry.tool_call_id is None and media_in(entry) != ""


def without_media(entry: Entry, rules: ResultRules | None = None) -> str:
    """Return the text of an entry with a note that its images and documents are left out.

    Args:
        entry: The entry.
        rules: Say whether they can be retrieved, if there is no room for them; None if they cannot be read.
    """
    why = "it could not be read, or something beside it"
    if rules is not None:
        why = f"there was no room{retrieval_note(entry, rules)}"
    return f"{text_of(entry.content)}\n[without {media_in(entry)}: {why}]".lstrip()


def failed(entry: Entry) -> bool:
    """Whether a result reports that its call failed."""
    return any(isinstance(block, ToolResult) and block.is_error for block in entry.content)


# --- the notes' parts -------------------------------------------------------------------------------------


def _note(entry: Entry, why: str, more: str = "") -> str:
    return f"[{why}: {entry.tool or 'result'}, iteration {entry.iteration}{more}]"


def _content_note(content_id: str, rules: ResultRules) -> str:
    return f'; retrieve_content(content_id="{content_id}") shows the whole' if rules.retrieval else ""


def _source_text(url: str, facts: Mapping[str, Any]) -> str:
    """Say where a result came from and what its tool says about it, in one line."""
    facts_text = (
        f"{key}: {value if isinstance(value, str) else canonical_json(value).decode()}" for key, value in facts.items()
    )
    return clip("; ".join([*([url] if url else []), *facts_text]), _FACTS_CHARS)
