"""The provider's prompt cache, by its published rules: what a request reads, what it writes, what that is billed as.

The rules (the order is tools, system, messages; a position is one block of these):

- A position stands for everything up to it, byte for byte; markers themselves do not count.
- An entry is written only at a marked position, and only if the prefix has the model's minimum of tokens.
- For each marked position the cache looks back up to 20 positions, itself included, for an entry that an earlier
  request wrote. The longest that any marker finds is read.
- An entry lives for its TTL from the START of the request that last wrote or read it, and can be read only once the
  response of the request that wrote it has begun.
- Billing: what is read; then from there to the last 1-hour marker at the 1-hour price, to the last 5-minute marker at
  the 5-minute price; the rest is plain input.
- Whatever changes how messages are read (``tool_choice``, ``thinking``, images in or out) changes every position
  within them.

Where the documents are silent this takes the dearer reading: a marker inside what is read writes no entry of its own,
and reading an entry refreshes that one alone, not shorter ones.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import msgspec

from repertory.llm.estimate import estimate_tokens
from repertory.llm.messages import Json, canonical_json, decode_block
from repertory.llm.model import Usage
from repertory.llm.profiles import ModelProfile

_TTL = {"5m": 300.0, "1h": 3600.0}


class Position(msgspec.Struct, frozen=True):
    """One block of a request, and all before it.

    Attributes:
        key: Stands for every byte up to here.
        tokens: Of everything up to here.
        marker: The TTL of its cache marker; None where it has none.
        markable: Whether it may carry one: not thinking, and not empty.
    """

    key: bytes
    tokens: int
    marker: str | None
    markable: bool = True


class _Entry(msgspec.Struct):
    ttl: float
    expires: float
    ready: bool


class CacheUse(msgspec.Struct, frozen=True):
    """What one request does to the cache.

    Attributes:
        usage: What is billed for the prompt; the output is not known yet.
        begun: Call it when the response begins: what was written can be read from then on.
    """

    usage: Usage
    begun: Callable[[], None]


class PromptCache:
    """The cache of one workspace.

    Args:
        clock: Seconds; anything that only goes forward.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._entries: dict[bytes, _Entry] = {}

    def use(self, body: Json, profile: ModelProfile) -> CacheUse:
        """Look a request up and note what it writes."""
        now = self._clock()
        rules = profile.cache
        positions = positions_of(body)
        total = positions[-1].tokens if positions else 0
        marked = [
            index
            for index, position in enumerate(positions)
            if position.marker is not None and rules.breakpoints and position.tokens >= rules.minimum_tokens
        ]
        hits = [hit for index in marked if (hit := self._look_back(positions, index, now, rules.lookback_blocks)) >= 0]
        for hit in hits:
            entry = self._entries[positions[hit].key]
            entry.expires = max(entry.expires, now + entry.ttl)
        reached = max(hits, default=-1)
        read = positions[reached].tokens if reached >= 0 else 0

        new = [index for index in marked if index > reached]
        written = {"5m": 0, "1h": 0}
        fresh: list[bytes] = []
        at = read
        for index in new:
            position = positions[index]
            assert position.marker is not None
            written[position.marker] += position.tokens - at
            at = position.tokens
            ttl = _TTL[position.marker]
            # Two requests at once both pay for writing; the entry is ready as soon as either begins to answer.
            old = self._entries.get(position.key)
            if old is None or old.expires <= now:
                self._entries[position.key] = _Entry(ttl, now + ttl, ready=False)
            fresh.append(position.key)

        def begun() -> None:
            for key in fresh:
                self._entries[key].ready = True

        usage = Usage(
            input_tokens=total - at,
            cache_read_tokens=read,
            cache_write_tokens=written["5m"],
            cache_write_1h_tokens=written["1h"],
        )
        return CacheUse(usage, begun)

    def _look_back(self, positions: list[Position], index: int, now: float, lookback: int) -> int:
        for candidate in range(index, max(-1, index - lookback), -1):
            if self._is_readable(positions[candidate].key, now):
                return candidate
        return -1

    def _is_readable(self, key: bytes, now: float) -> bool:
        entry = self._entries.get(key)
        return entry is not None and entry.ready and entry.expires > now


def positions_of(body: Json) -> list[Position]:
    """Every position of a request, in the API's order."""
    digest = blake2b(canonical_json(body["model"]), digest_size=16).digest()
    tokens = 0
    positions: list[Position] = []

    def add(level: str, block: Json) -> None:
        nonlocal digest, tokens
        plain, marker = _unmarked(block)
        digest = blake2b(digest + level.encode() + b"\0" + canonical_json(plain), digest_size=16).digest()
        tokens += block_tokens(plain)
        markable = plain.get("type") not in ("thinking", "redacted_thinking") and plain.get("text") != ""
        positions.append(Position(digest, tokens, marker, markable))

    for tool in body.get("tools") or ():
        add("tools", tool)
    system = body.get("system") or ()
    for block in [{"type": "text", "text": system}] if isinstance(system, str) else system:
        add("system", block)
    digest = blake2b(digest + canonical_json(_message_settings(body)), digest_size=16).digest()
    for message in body["messages"]:
        content = message["content"]
        for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
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
        if not isinstance(message["content"], str)
        for outer in message["content"]
        for block in (outer, *(outer["content"] if isinstance(outer.get("content"), list) else ()))
    )
    return [body.get("tool_choice"), body.get("thinking"), has_images]


def _unmarked(block: Json) -> tuple[Json, str | None]:
    """A block without its marker, or those on its parts; and the marker's TTL."""
    marker = block.get("cache_control")
    plain = {name: value for name, value in block.items() if name != "cache_control"}
    if isinstance(plain.get("content"), list):
        parts = [_unmarked(part) for part in plain["content"]]
        plain["content"] = [part for part, _ in parts]
        marker = marker or next(({"ttl": ttl} for _, ttl in parts if ttl), None)
    return plain, (marker.get("ttl", "5m") if marker else None)


def block_tokens(block: Json) -> int:
    """The tokens of one block or tool, as this server counts them: a quarter of its bytes, rounded up."""
    if "type" not in block or "input_schema" in block:
        return -(-len(canonical_json(block)) // 4)
    return estimate_tokens(decode_block(block))


def prompt_tokens(body: Json) -> int:
    """The tokens of a whole prompt."""
    positions = positions_of(body)
    return positions[-1].tokens if positions else 0
