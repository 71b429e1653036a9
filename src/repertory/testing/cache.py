"""The prompt cache of the test server: looks up the positions of a request body by the published rules.

``repertory.testing.prefix_cache`` has the rules. This module turns a body into positions: whatever changes how messages
are read (``tool_choice``, ``thinking``, whether there are images) changes every position within them.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import msgspec

from repertory._json_text import canonical_json
from repertory.llm.estimate import estimate_tokens
from repertory.llm.messages import Json, Text, decode_block
from repertory.llm.profiles import ModelProfile
from repertory.testing.prefix_cache import CacheUse, Prefix, PrefixCache
from repertory.testing.wire import blocks_of, unmarked, walk


class Position(Prefix, frozen=True):
    """One block of a request, with everything before it.

    Attributes:
        marker: The TTL of its cache marker; None if it has none.
        markable: Whether it may carry a marker: it is not thinking, and not empty.
    """

    marker: str | None
    markable: bool = True


class PromptCache(PrefixCache):
    """The cache of one workspace, used with request bodies."""

    def use(self, body: Json, profile: ModelProfile) -> CacheUse:
        """Look up a request and note what it writes."""
        positions = positions_of(body)
        markers = [(index, position.marker) for index, position in enumerate(positions) if position.marker is not None]
        return self.look_up(positions, markers, profile.cache)


def positions_of(body: Json) -> list[Position]:
    """Every position of a request, in the API's order."""
    digest = blake2b(canonical_json(body["model"]), digest_size=16).digest()
    tokens = 0
    positions: list[Position] = []

    def add(level: str, block: Json) -> None:
        nonlocal digest, tokens
        plain = unmarked(block)
        digest = blake2b(digest + level.encode() + b"\0" + canonical_json(plain), digest_size=16).digest()
        tokens += block_tokens(plain)
        markable = plain.get("type") not in ("thinking", "redacted_thinking") and plain.get("text") != ""
        positions.append(Position(digest, tokens, _ttl_of(block), markable))

    for tool in body.get("tools") or ():
        add("tools", tool)
    for block in blocks_of(body.get("system") or []):
        add("system", block)
    digest = blake2b(digest + canonical_json(_message_settings(body)), digest_size=16).digest()
    for message in body["messages"]:
        for block in blocks_of(message["content"]):
            add(message["role"], block)
    automatic = body.get("cache_control")
    last = max((index for index, position in enumerate(positions) if position.markable), default=None)
    if automatic and last is not None:
        positions[last] = msgspec.structs.replace(positions[last], marker=automatic.get("ttl", "5m"))
    return positions


def _message_settings(body: Json) -> list[Any]:
    has_images = any(
        block.get("type") == "image"
        for message in body["messages"]
        for outer in blocks_of(message["content"])
        for _, block in walk(outer)
    )
    return [body.get("tool_choice"), body.get("thinking"), has_images]


def _ttl_of(block: Json) -> str | None:
    """The TTL of a block's marker, or of the first on its parts; None if there is none."""
    markers = (marker for _, part in walk(block) if (marker := part.get("cache_control")))
    return next((marker.get("ttl", "5m") for marker in markers), None)


def block_tokens(block: Json) -> int:
    """The tokens of one block or tool, as this server counts them: a quarter of its bytes, rounded up."""
    if "type" not in block or "input_schema" in block:
        return -(-len(canonical_json(block)) // 4)
    if block["type"] == "compaction":
        return estimate_tokens(Text(block.get("content") or ""))  # the model reads no signature
    return estimate_tokens(decode_block(block))


def prompt_tokens(body: Json) -> int:
    """The tokens of a whole prompt."""
    positions = positions_of(body)
    return positions[-1].tokens if positions else 0
