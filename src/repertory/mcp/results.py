"""Turning an MCP server's answer into a tool's output."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import msgspec

from repertory.llm.messages import Text
from repertory.record.records import Effect, OutcomeStatus
from repertory.tools.media import Media, media_block, media_type_of
from repertory.tools.output import ToolOutput

if TYPE_CHECKING:
    import mcp_types as types


def to_tool_output(result: types.CallToolResult, *, server: str) -> ToolOutput:
    """A server's answer as a tool's output: its blocks, or its structured value if these say nothing."""
    blocks = tuple(block for block in map(_block, result.content) if block != Text(""))
    structured: Any = getattr(result, "structured_content", None)
    status: OutcomeStatus = "error" if result.is_error else "ok"
    if not blocks and structured is not None:
        text = msgspec.json.encode(structured, order="deterministic").decode()
        return ToolOutput(text, status=status, source_type="mcp", format="json", facts={"server": server})
    texts = [block.text for block in blocks if isinstance(block, Text)]
    content = "\n".join(texts) if len(texts) == len(blocks) else blocks
    form = "json" if structured is not None and isinstance(content, str) and content[:1] in ("{", "[") else "text"
    return ToolOutput(content, status=status, source_type="mcp", format=form, facts={"server": server})


def _block(block: Any) -> Text | Media:
    match block.type:
        case "text":
            return Text(block.text)
        case "image" | "audio":
            return _media(block.data, block.mime_type, block.type)
        case "resource":
            inner = block.resource
            text = getattr(inner, "text", None)
            return Text(text) if text is not None else _media(inner.blob, inner.mime_type, f"resource {inner.uri}")
        case _:  # the last of the types that the SDK reads
            about = f": {block.description}" if block.description else ""
            return Text(f"[resource {block.name} at {block.uri}{about}]")


def _media(encoded: str, media_type: str | None, what: str) -> Text | Media:
    """An image or a document; a line of text if the API would refuse it, as that would spoil every later request too.

    What a server says of the type is often wrong (image/jpg), or stands in front of the data (data:image/png;base64,).
    """
    try:
        data = base64.b64decode(encoded.rpartition(",")[2])
        return media_block(data, media_type_of(data) or media_type or "unknown")
    except ValueError as error:
        return Text(f"[{what} of {len(encoded) * 3 // 4:,} bytes, which cannot be shown: {error}]")


def effect_of(annotations: types.ToolAnnotations | None) -> Effect:
    """The effect that a trusted server's hints amount to.

    A missing hint promises nothing. A call that reads an open world may be repeated, but its answer may have changed,
    so it is not ``pure``. MCP has no commit that the journal could share, so nothing is ``transactional``.
    """
    if annotations is None:
        return "unsafe"
    if annotations.read_only_hint:
        return "pure" if annotations.open_world_hint is False else "idempotent"
    return "idempotent" if annotations.idempotent_hint else "unsafe"
