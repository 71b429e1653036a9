"""The provider's prompt cache, by its published rules: what a request reads and writes, and how that is billed.

A position is one block of a request (tools, system, messages, in this order) and stands for everything up to it,
byte for byte; markers themselves do not count. The rules:

- An entry is written only at a marked position, and only if the prefix has the model's minimum of tokens.
- For each marked position the cache looks back over up to 20 positions, including itself, for an entry that an
  earlier request wrote. The longest entry that any marker finds is read.
- An entry lives for its TTL from the START of the request that last wrote or read it, and can be read only once the
  response of the request that wrote it has begun.
- Billing: what is read, at the read price; from there to the last 1-hour marker, at the 1-hour price; from there to
  the last 5-minute marker, at the 5-minute price; the rest as plain input.

If the documents are silent, this takes the more expensive reading: a marker within the part that is read writes no
entry, and reading an entry refreshes only that entry, not shorter ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from repertory.llm.model import Usage
from repertory.llm.profiles import CacheRules

_TTL = {"5m": 300.0, "1h": 3600.0}


class Prefix(msgspec.Struct, frozen=True):
    """Everything up to a position of a request.

    Attributes:
        key: A digest of every byte up to here.
        tokens: The tokens of everything up to here.
    """

    key: bytes
    tokens: int


class _Entry(msgspec.Struct):
    ttl: float
    expires: float
    ready: bool


class CacheUse(msgspec.Struct, frozen=True):
    """What one request does to the cache.

    Attributes:
        usage: What is billed for the prompt; the output is not known yet.
        begun: Call it when the response begins: from then on the written entries can be read.
    """

    usage: Usage
    begun: Callable[[], None]


class PrefixCache:
    """The cache of one workspace.

    Args:
        clock: Returns seconds; it must only go forward.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._entries: dict[bytes, _Entry] = {}

    def look_up(self, prefixes: Sequence[Prefix], markers: Sequence[tuple[int, str]], rules: CacheRules) -> CacheUse:
        """Look up a request and note what it writes. The time this takes depends on the markers, not on the request.

        Args:
            prefixes: Every position of the request, in order.
            markers: The index of each marked position and its TTL, ``5m`` or ``1h``, in order.
        """
        now = self._clock()
        total = prefixes[-1].tokens if prefixes else 0
        marked = [
            (index, ttl)
            for index, ttl in markers
            if rules.breakpoints and prefixes[index].tokens >= rules.minimum_tokens
        ]
        found = [self._look_back(prefixes, index, now, rules.lookback_blocks) for index, _ in marked]
        hits = [hit for hit in found if hit >= 0]
        for hit in hits:
            entry = self._entries[prefixes[hit].key]
            entry.expires = max(entry.expires, now + entry.ttl)
        reached = max(hits, default=-1)
        read = prefixes[reached].tokens if reached >= 0 else 0

        written = {"5m": 0, "1h": 0}
        fresh: list[bytes] = []
        at = read
        for index, ttl in marked:
            if index <= reached:
                continue
            prefix = prefixes[index]
            written[ttl] += prefix.tokens - at
            at = prefix.tokens
            # Two simultaneous requests both pay for writing; the entry is ready once either begins to answer.
            old = self._entries.get(prefix.key)
            if old is None or old.expires <= now:
                self._entries[prefix.key] = _Entry(_TTL[ttl], now + _TTL[ttl], ready=False)
            fresh.append(prefix.key)

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

    def _look_back(self, prefixes: Sequence[Prefix], index: int, now: float, lookback: int) -> int:
        for candidate in range(index, max(-1, index - lookback), -1):
            entry = self._entries.get(prefixes[candidate].key)
            if entry is not None and entry.ready and entry.expires > now:
                return candidate
        return -1
