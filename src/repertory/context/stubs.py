"""Stubs: what remains in view of an old result. Pure and deterministic; the plan keeps the text that was made."""

from __future__ import annotations

from collections.abc import Iterable

from repertory.context.compactors import compact
from repertory.context.cutting import first_chars
from repertory.context.names import best_names, trouble_lines
from repertory.context.policy import ResultRules
from repertory.context.shaping import how_to_get
from repertory.llm.messages import Image, ToolResult, text_of
from repertory.memory.entries import Entry


def stub_of(entry: Entry, rules: ResultRules, *, used: Iterable[str] = ()) -> str:
    """Make the text that stands for a result from now on.

    It says what it stands for and how to get the whole; then, within ``compact_length`` characters, what a plug-in
    makes of the content, lines that report trouble, and the names most likely to be needed again.

    Args:
        entry: The result.
        rules: What holds for the tool's results.
        used: Names that the agent has used before; they are kept first.
    """
    text = text_of(entry.content)
    head = (
        f"[shortened: {entry.tool or 'result'}, iteration {entry.iteration}, {_size(entry, text)}; {whole_of(entry)}]"
    )
    if rules.compact_mode == "first_chars":
        return f"{head}\n{first_chars(text, rules.compact_length)}".rstrip()
    gist = compact(text, rules.compact_length, tool=entry.tool or "", name=rules.compactor)
    trouble = [line for line in trouble_lines(text, most=2) if line not in gist] if _failed(entry) else []
    body = "\n".join([gist, *trouble]) if trouble else gist
    room = rules.compact_length - len(body)
    names = best_names([text], room, without=body, also=used) if room > 20 else []
    return "\n".join(part for part in (head, body, " ".join(names)) if part)


def once_stub(entry: Entry, names: Iterable[str], length: int) -> str:
    """What remains of a result that was shown once: how to get the whole, its beginning, the names worth keeping."""
    text = text_of(entry.content)
    head = (
        f"[shown once: {entry.tool or 'result'}, iteration {entry.iteration}, {_size(entry, text)}; {whole_of(entry)}]"
    )
    gist = first_chars(text, length)
    rest = " ".join(name for name in names if name not in gist)
    return "\n".join(part for part in (head, gist.strip(), rest) if part)


def removal_of(entry: Entry) -> str:
    """Make the line that stays when a result is removed."""
    return f"[expired: {entry.tool or 'result'}, iteration {entry.iteration}; {whole_of(entry)}]"


def whole_of(entry: Entry) -> str:
    """How the model gets at the whole of a result."""
    if entry.content_id is not None:
        return how_to_get(entry.content_id)
    return f"context_retrieve(iteration={entry.iteration}) shows the whole"


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
