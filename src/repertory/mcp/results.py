"""Turning an MCP server's answers into the outputs of tools."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from repertory.llm.messages import Text
from repertory.record.records import Effect, OutcomeStatus
from repertory.tools.media import Media, media_block, media_type_of
from repertory.tools.output import Content, ToolOutput

if TYPE_CHECKING:
    import mcp_types as types


_FORMATS: Final = {"application/json": "json", "text/markdown": "markdown"}


def tool_output(result: types.CallToolResult, *, server: str) -> ToolOutput:
    """A server's answer as a tool's output: its blocks, or its structured value if these say nothing."""
    blocks = [block for block in map(_block, result.content) if block != Text("")]
    structured: Any = getattr(result, "structured_content", None)
    status: OutcomeStatus = "error" if result.is_error else "ok"
    if not blocks and structured is not None:
        text = msgspec.json.encode(structured, order="deterministic").decode()
        return ToolOutput(text, status=status, source_type="mcp", format="json", facts={"server": server})
    content = _content(blocks)
    form = "json" if structured is not None and isinstance(content, str) and content[:1] in ("{", "[") else "text"
    return ToolOutput(content, status=status, source_type="mcp", format=form, facts={"server": server})


def resource_output(result: types.ReadResourceResult, *, server: str) -> ToolOutput:
    """A server's resource as a tool's output; what is within it, such as files in a folder, under its own URI each."""
    found = result.contents
    blocks: list[Text | Media] = []
    for each in found:
        blocks += [Text(f"{each.uri}:"), _resource(each)] if len(found) > 1 else [_resource(each)]
    (uri, kind) = (found[0].uri, found[0].mime_type) if len(found) == 1 else ("", "")
    form = _FORMATS.get(kind or "", "text")
    return ToolOutput(_content(blocks), source_type="mcp", url=uri, format=form, facts={"server": server})


def _content(blocks: Sequence[Text | Media]) -> Content:
    texts = [block.text for block in blocks if isinstance(block, Text)]
    return "\n".join(texts) if len(texts) == len(blocks) else tuple(blocks)


def _block(block: Any) -> Text | Media:
    match block.type:
        case "text":
            return Text(block.text)
        case "image" | "audio":
            return _media(block.data, block.mime_type, block.type)
        case "resource":
            return _resource(block.resource)
        case _:  # the last of the types that the SDK reads
            about = f": {block.description}" if block.description else ""
            return Text(f"[resource {block.name} at {block.uri}{about}]")


def _resource(contents: types.TextResourceContents | types.BlobResourceContents) -> Text | Media:
    text: str | None = getattr(contents, "text", None)
    if text is not None:
        return Text(text)
    return _media(getattr(contents, "blob", ""), contents.mime_type, f"resource {contents.uri}")


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
