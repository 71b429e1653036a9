"""How many tokens something will cost in a prompt, guessed from its length. Usage figures calibrate it later."""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Iterable

import msgspec

from repertory.llm.messages import (
    Block,
    Image,
    Message,
    RawBlock,
    ToolResult,
    canonical_json,
    encode_block,
    is_document,
    is_media,
)
from repertory.llm.model import ModelRequest, ToolSchema

IMAGE_TOKENS = 1_600  # a large picture's price at the Messages API; its bytes say nothing about its tokens
# A page of a PDF is sent as 1,500 to 3,000 tokens of text and as an image (platform.claude.com/docs, PDF support).
PAGE_TOKENS = 2_200 + IMAGE_TOKENS
_PAGE = re.compile(rb"/Type\s*/Page(?![A-Za-z])")
_PAGE_BYTES = 50_000  # of a page where a PDF keeps its list of pages compressed; our own rough guess

Countable = Block | Message | ToolSchema | ModelRequest | str


def estimate_tokens(value: Countable | Iterable[Countable], *, chars_per_token: float = 4.0) -> int:
    """Guess what a value costs in a prompt.

    The guess is additive, so a prefix may be summed up block by block: every block counts the bytes of its JSON
    (text outside ASCII costs more tokens than its characters say), rounded up by itself. An image counts a
    flat 1,600, and each page of a document 3,800.

    Args:
        value: Text, a block, a message, a tool, a whole request, or any series of these.
        chars_per_token: How many bytes make one token; a profile knows a better guess than 4.

    Returns:
        Tokens; 0 only for an empty series.
    """
    match value:
        case str():
            return math.ceil(len(value.encode(errors="surrogatepass")) / chars_per_token)
        case Message():
            return estimate_tokens(value.content, chars_per_token=chars_per_token)
        case ModelRequest():
            parts = (*value.tools, *value.system, *value.messages)
            return estimate_tokens(parts, chars_per_token=chars_per_token)
        case ToolSchema():
            return math.ceil(len(canonical_json(value)) / chars_per_token)
        case Image():
            return IMAGE_TOKENS
        case RawBlock() if is_document(value):
            return _document_tokens(value, chars_per_token)
        case ToolResult(content=tuple() as content) if any(map(is_media, content)):
            media = tuple(part for part in content if is_media(part))
            bare = msgspec.structs.replace(value, content=tuple(part for part in content if not is_media(part)))
            return estimate_tokens((bare, *media), chars_per_token=chars_per_token)
        case msgspec.Struct():
            return math.ceil(len(canonical_json(encode_block(value))) / chars_per_token)
        case _:
            return sum([estimate_tokens(part, chars_per_token=chars_per_token) for part in value])


def count_pages(pdf: bytes) -> int:
    """About how many pages a PDF has; at least 1."""
    return len(_PAGE.findall(pdf)) or max(1, len(pdf) // _PAGE_BYTES)


def _document_tokens(block: RawBlock, chars_per_token: float) -> int:
    source = block.raw.get("source")
    kind, data = (source.get("type"), source.get("data")) if isinstance(source, dict) else (None, None)
    if kind in ("url", "file"):
        return PAGE_TOKENS  # nobody here knows how many pages it has; the provider's count will tell
    if kind != "base64" or not isinstance(data, str):  # a text
        return math.ceil(len(canonical_json(block.raw)) / chars_per_token)
    try:
        return count_pages(base64.b64decode(data)) * PAGE_TOKENS
    except binascii.Error:
        return PAGE_TOKENS
