"""Shows single entries as blocks that may be sent. Pure, deterministic."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from repertory.context.plan import Plan, RemoveResult, Shown, StubResult
from repertory.llm.messages import Block, RawBlock, RedactedThinking, Text, Thinking, ToolResult, ToolUse, text_of
from repertory.record.entries import Entry

_SURROGATE = re.compile("[\ud800-\udfff]")
_THINKING = (Thinking, RedactedThinking)
_encode = msgspec.json.Encoder().encode


def verbatim(entry: Entry, *, signed: bool) -> tuple[Block, ...]:
    """Return an entry's blocks as they are in the ledger, without what no request may hold.

    Args:
        entry: The entry.
        signed: Whether the provider signs reasoning: then it accepts only what it signed.
    """
    blocks = [
        _made_legal(block)
        for block in entry.content
        if not _is_blank(block) and not (signed and isinstance(block, Thinking) and not block.signature)
    ]
    while blocks and isinstance(blocks[-1], _THINKING):
        blocks.pop()  # no turn may end with reasoning
    return sendable(blocks)


def replacement(entry: Entry, shown: Shown) -> tuple[Block, ...] | None:
    """Return what a plan shows instead of an entry; None if it shows the entry as it is in the ledger."""
    if isinstance(shown, RemoveResult):
        return sendable([Text(shown.text)])
    content = shown.text if isinstance(shown, StubResult) else shown.content
    if content is None:
        return None
    results = [block for block in entry.content if isinstance(block, ToolResult)]
    if not results:  # what somebody said
        return sendable([Text(text_of(content))])
    return sendable(msgspec.structs.replace(block, content=content) for block in results)


def without_removed(blocks: Sequence[Block], removed_calls: frozenset[str], *, thinking: bool) -> tuple[Block, ...]:
    """Return an assistant's turn without calls whose results were removed and, unless ``thinking``, its reasoning."""
    out = [
        block
        for block in blocks
        if not (isinstance(block, ToolUse) and block.id in removed_calls)
        and (thinking or not isinstance(block, _THINKING))
    ]
    while out and isinstance(out[-1], _THINKING):
        out.pop()
    return tuple(out)


def spoken(blocks: Sequence[Block]) -> list[Block]:
    """Return what was said in a turn: neither its calls nor its reasoning."""
    return [block for block in blocks if not isinstance(block, (ToolUse, *_THINKING))]


def restate(entry: Entry, plan: Plan) -> list[Block]:
    """Repeat an entry without its call or turn: what tools and the agent said becomes documents, not a user's words."""
    out: list[Block] = []
    edit = plan.shown.get(entry.position)
    for block in (isinstance(edit, StubResult) and replacement(entry, edit)) or entry.content:
        if isinstance(block, ToolResult):
            parts = (Text(block.content),) if isinstance(block.content, str) else block.content
            out.extend(
                document(f"result of {entry.tool or 'a tool'}, iteration {entry.iteration}", part.text)
                if isinstance(part, Text)
                else part
                for part in parts
                if not _is_blank(part)
            )
        elif entry.role == "assistant" and isinstance(block, Text):
            out.append(document(f"what you said in iteration {entry.iteration}", block.text))
        elif not isinstance(block, (ToolUse, *_THINKING)) and not _is_blank(block):
            out.append(block)
    return out


def document(title: str, text: str) -> RawBlock:
    """Make a titled document: text that is nobody's words. For the provider's own servers."""
    return RawBlock(
        {"type": "document", "title": title, "source": {"type": "text", "media_type": "text/plain", "data": text}}
    )


def sendable(blocks: Iterable[Block]) -> tuple[Block, ...]:
    """Replace lone surrogates in blocks by U+FFFD: JSON from a model may contain them, but no request can."""
    found = tuple(blocks)
    try:
        _encode(found)
    except UnicodeEncodeError:
        cleaned: tuple[Block, ...] = _cleaned(found)
        return cleaned
    return found


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        inside: dict[str, Any] = value
        return {_cleaned(name): _cleaned(inner) for name, inner in inside.items()}
    if isinstance(value, list | tuple):
        items: Iterable[Any] = value
        return tuple(map(_cleaned, items)) if isinstance(value, tuple) else list(map(_cleaned, items))
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.replace(value, **_cleaned(msgspec.structs.asdict(value)))
    return value


def _is_blank(block: Block) -> bool:
    return isinstance(block, Text) and not block.text.strip()


def _made_legal(block: Block) -> Block:
    """Make a block legal: the API takes no blank text, and only text in a result that reports an error."""
    if not isinstance(block, ToolResult) or isinstance(block.content, str):
        return block
    parts = tuple(
        Text(f"[{type(part).__name__.lower()}]") if block.is_error and not isinstance(part, Text) else part
        for part in block.content
        if not _is_blank(part)
    )
    return block if parts == block.content else msgspec.structs.replace(block, content=parts)
