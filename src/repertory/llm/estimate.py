"""How many tokens something will cost in a prompt, guessed from its length. Usage figures calibrate it later."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from repertory.llm.messages import Block, Image, Message, ToolResult, canonical_json, encode_block
from repertory.llm.model import ModelRequest, ToolSchema

IMAGE_TOKENS = 1_600  # a large picture's price at the Messages API; its bytes say nothing about its tokens

Countable = Block | Message | ToolSchema | ModelRequest | str


def estimate_tokens(value: Countable | Iterable[Countable], *, chars_per_token: float = 4.0) -> int:
    """Guess what a value costs in a prompt.

    The guess is additive, so a prefix may be summed up block by block: every block counts the bytes of its JSON
    (text outside ASCII costs more tokens than its characters say), rounded up by itself. An image counts a
    flat 1,600.

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
        case ToolResult(content=tuple() as content) if any(isinstance(part, Image) for part in content):
            images = sum(isinstance(part, Image) for part in content)
            words = tuple(part for part in content if not isinstance(part, Image))
            bare = msgspec.structs.replace(value, content=words)
            return images * IMAGE_TOKENS + estimate_tokens(bare, chars_per_token=chars_per_token)
        case msgspec.Struct():
            return math.ceil(len(canonical_json(encode_block(value))) / chars_per_token)
        case _:
            return sum(estimate_tokens(part, chars_per_token=chars_per_token) for part in value)
