"""Stubs: what remains in view of an old result. Pure and deterministic; the plan keeps the text that was made."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from repertory.context.compactors import beginning, compact, own_compactor
from repertory.context.cutting import first_chars
from repertory.context.names import best_names, trouble_lines
from repertory.context.policy import ResultRules
from repertory.context.shaping import facts_line, how_to_get, own_words
from repertory.llm.messages import Image, ToolResult, text_of
from repertory.record.entries import Entry


def stub_of(entry: Entry, rules: ResultRules, *, used: Iterable[str] = (), summary: str = "") -> str:
    """Make the text that stands for a result from now on.

    It says what it stands for and how to get the whole, and where it came from; then, within ``compact_length``
    characters, what a plug-in makes of the content, lines that report trouble, and the names most likely to be needed
    again.

    Args:
        entry: The result.
        rules: What holds for the tool's results.
        used: Names that the agent has used before; they are kept first.
        summary: What a model wrote of it, which then stands in the place of all this; "" for nothing.
    """
    if summary:
        return _under("shortened", entry, rules, summary)
    if rules.compact_mode == "first_chars":
        return _under("shortened", entry, rules, first_chars(own_words(entry)[0], rules.compact_length))
    text = "\n".join(own_words(entry))
    gist = _gist(entry, rules)
    trouble = [line for line in trouble_lines(text, most=2) if line not in gist] if _failed(entry) else []
    body = "\n".join([gist, *trouble]) if trouble else gist
    room = rules.compact_length - len(body)
    names = best_names([text], room, without=body, also=used) if room > 20 else []
    return _under("shortened", entry, rules, body, " ".join(names))


def once_stub(entry: Entry, names: Iterable[str], rules: ResultRules, *, summary: str = "") -> str:
    """What remains of a result that was shown once.

    It says how to get the whole, and where that came from; then what a plug-in that the policy names makes of it, or
    its beginning, and the names worth keeping; or what the policy asks for.
    """
    asked = words_asked_for(entry, rules, summary)
    if asked:
        return _under("shown once", entry, rules, asked)
    gist = _gist(entry, rules) if rules.compactor else first_chars(own_words(entry)[0], rules.compact_length)
    return _under("shown once", entry, rules, gist, " ".join(name for name in names if name not in gist))


def words_asked_for(entry: Entry, rules: ResultRules, summary: str) -> str:
    """What an application wants to remain of a result; "" where it leaves that open.

    That is a model's summary, the first characters, or what a compactor of its own says.
    """
    if summary:
        return summary
    if rules.compact_mode == "first_chars":
        return first_chars(own_words(entry)[0], rules.compact_length)
    own = own_compactor(own_words(entry)[0], tool=entry.tool or "", name=rules.compactor)
    return _gist(entry, msgspec.structs.replace(rules, compactor=own)) if own else ""


def superseded_stub(entry: Entry, newer: Entry) -> str:
    """What remains of a result whose call was made again: where the newer one is."""
    return (
        f"[superseded: {entry.tool or 'result'}, iteration {entry.iteration}; called again with the same arguments in "
        f"iteration {newer.iteration}]"
    )


def removal_of(entry: Entry, rules: ResultRules) -> str:
    """Make the line that stays when a result is removed."""
    return f"[expired: {entry.tool or 'result'}, iteration {entry.iteration}{whole_of(entry, rules)}]"


def whole_of(entry: Entry, rules: ResultRules) -> str:
    """How the model gets at the whole of a result, to end a note with; nothing where it has no tool for that."""
    if entry.content_id is not None:
        return how_to_get(entry.content_id, retrieval=rules.retrieval)
    return f"; context_retrieve(iteration={entry.iteration}) shows the whole" if rules.retrieval else ""


def facts_of(entry: Entry) -> str:
    """Where a result came from and what its tool says about it, in one line; what was retrieved says that itself."""
    return "" if entry.retrieved is not None else facts_line(entry.url, entry.facts)


def _under(what: str, entry: Entry, rules: ResultRules, *parts: str) -> str:
    """A stub: its head line, the facts, and the rest."""
    size = _size(entry, text_of(entry.content))
    head = f"[{what}: {entry.tool or 'result'}, iteration {entry.iteration}, {size}{whole_of(entry, rules)}]"
    return "\n".join(part for part in (head, facts_of(entry), *(part.strip() for part in parts)) if part)


def _gist(entry: Entry, rules: ResultRules) -> str:
    """What a compactor says of the whole result: of one that was cut on arrival, what it said then."""
    head, _ = own_words(entry)
    if not entry.original_length:
        return compact(head, rules.compact_length, tool=entry.tool or "", name=rules.compactor)
    if len(entry.gist) <= rules.compact_length:
        return entry.gist or beginning(head, rules.compact_length)
    lines = entry.gist[: rules.compact_length + 1].rpartition("\n")[0]
    return lines or first_chars(entry.gist, rules.compact_length)


def _size(entry: Entry, text: str) -> str:
    images = sum(isinstance(part, Image) for block in entry.content for part in _parts(block))
    pictures = f", {images} image{'s' * (images > 1)}" if images else ""
    return f"{entry.original_length or len(text):,} characters{pictures}"


def _parts(block: object) -> tuple[object, ...]:
    if isinstance(block, ToolResult) and isinstance(block.content, tuple):
        return block.content
    return (block,)


def _failed(entry: Entry) -> bool:
    return any(isinstance(block, ToolResult) and block.is_error for block in entry.content)
