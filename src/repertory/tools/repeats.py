"""Finding earlier tool calls whose results still hold."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import msgspec

from repertory._json_text import canonical_json

if TYPE_CHECKING:
    from repertory.tools.decorator import Tool


def arguments_digest(name: str, arguments: Any) -> str:
    """Hash of a tool's name and its arguments, as 32 hexadecimal digits; the order of keys does not matter."""
    return hashlib.blake2b(canonical_json([name, arguments]), digest_size=16).hexdigest()


class EarlierCall(msgspec.Struct, frozen=True):
    """A call whose result still answers the same question."""

    call_id: str
    iteration: int

    @property
    def note(self) -> str:
        """The note with which the repeated result is marked."""
        return f"[already called in iteration {self.iteration} with the same arguments; this is that result]"


class ToolCallCache:
    """Knows the calls of one run that need not be made again. It holds no results: the ledger does.

    It knows only successful calls of ``repeatable`` tools, and forgets them when a tool that is not pure runs, as that
    may have changed what they saw. It does not know a call that ran at the same time as one that is not pure.

    Usage: ``find`` before a call; if it finds nothing, ``begin`` when the call starts and ``finish`` when it has ended.
    """

    def __init__(self, *, max_calls: int = 1_000) -> None:
        """Args: max_calls: Maximum number of calls; the least recently used is forgotten first. 0 turns it off."""
        self._max_calls = max_calls
        self._calls: OrderedDict[str, EarlierCall] = OrderedDict()
        self._changes = 0  # how often a call began or finished that may change what pure tools see

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def remembers(self) -> bool:
        """Whether it is not turned off."""
        return self._max_calls > 0

    def find(self, tool: Tool, digest: str) -> EarlierCall | None:
        """The earlier call that answers one with this ``arguments_digest``; None if the tool must run."""
        if not tool.repeatable or digest not in self._calls:
            return None
        self._calls.move_to_end(digest)
        return self._calls[digest]

    def begin(self, tool: Tool) -> int:
        """Note that a call of a tool starts; returns a mark to pass to ``finish``."""
        if tool.effect != "pure":
            self.clear()
        return self._changes

    def finish(self, tool: Tool, digest: str, mark: int, *, call_id: str, iteration: int, ok: bool) -> None:
        """Note that a call has ended; ``mark`` is what ``begin`` returned."""
        if tool.effect != "pure":
            self.clear()
        elif ok and tool.repeatable and mark == self._changes and self.remembers:
            self._calls[digest] = EarlierCall(call_id, iteration)
            self._calls.move_to_end(digest)
            if len(self._calls) > self._max_calls:
                self._calls.popitem(last=False)

    def clear(self) -> None:
        """Forget all calls, including those in progress."""
        self._calls.clear()
        self._changes += 1
