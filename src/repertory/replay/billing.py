"""What requests cost: hashes each block once, and looks requests up in a prompt cache by its rules."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from itertools import takewhile
from typing import Any, NamedTuple

import msgspec

from repertory._json_text import canonical_json
from repertory.llm.estimate import estimate_tokens
from repertory.llm.features import is_compaction
from repertory.llm.messages import (
    Block,
    Image,
    Message,
    RawBlock,
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
    encode_block,
    tool_uses,
)
from repertory.llm.model import Breakpoint, ModelRequest, Usage
from repertory.llm.profiles import ModelProfile
from repertory.replay.recording import RecordedRun
from repertory.testing.prefix_cache import Prefix, PrefixCache

_THINKING = (Thinking, RedactedThinking)


class Position(Prefix, frozen=True):
    """One block of a request, and everything before it.

    Attributes:
        block: The block; None for a tool.
        bound: Hash of everything up to here except thinking; a thinking block that follows is bound to it.
        thought: The signature of the last thinking block up to here; "" if there is none.
    """

    block: Block | None
    bound: bytes
    thought: str


class _BlockData(NamedTuple):
    block: Block  # referenced, so that its ``id`` is not reused
    digest: bytes
    tokens: int
    picture: bool


class Biller:
    """Bills the requests of one run, one after another. It does not read again what a request shares with the last one.

    Attributes:
        positions: The positions of the last billed request.
    """

    def __init__(self, profile: ModelProfile) -> None:
        self._now = 0.0
        self._rules = profile.cache
        self._cache = PrefixCache(lambda: self._now)
        self._known: dict[int, _BlockData] = {}
        self._frame: tuple[Any, ...] | None = None
        self._head = 0  # positions of tools and system
        self._messages: tuple[Message, ...] = ()
        self._ends: list[int] = []  # for each message, the positions up to its end
        self.positions: list[Position] = []

    def bill(self, request: ModelRequest, *, at: float) -> tuple[Usage, int]:
        """Bill the prompt of one request.

        Args:
            at: Seconds; not before the last billed request.

        Returns:
            The usage, without the answer, and how many positions are shared with the request before.
        """
        self._now = at
        kept = self._read(request)
        marked = [(self._marker_position(point), point.ttl) for point in request.breakpoints]
        use = self._cache.look_up(self.positions, marked, self._rules)
        use.begun()
        return use.usage, kept

    def _read(self, request: ModelRequest) -> int:
        """Update the positions to a request; return how many stay."""
        pictures = any(self._look_up_block(block).picture for message in request.messages for block in message.content)
        # A change of any of these changes the prefix of every message.
        settings = [request.options.get("tool_choice"), request.options.get("thinking"), pictures]
        frame = (request.model, settings, request.tools, request.system)
        if frame != self._frame:
            self._frame, self._messages = frame, ()
            self.positions = list(self._read_head(request))
            self._head = len(self.positions)
        pairs = zip(self._messages, request.messages, strict=False)
        # By identity: an unedited view hands out the same messages.
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], pairs))
        kept = self._ends[shared - 1] if shared else self._head
        del self.positions[kept:], self._ends[shared:]
        level = canonical_json(settings)
        for message in request.messages[shared:]:
            for block in message.content:
                self.positions.append(self._next_position(message.role.encode() + level, message.role.encode(), block))
            self._ends.append(len(self.positions))
        self._messages = request.messages
        if len(self._known) > 4 * len(self.positions) + 1_000:  # earlier views showed these blocks, this one does not
            used = {id(position.block) for position in self.positions}
            self._known = {key: known for key, known in self._known.items() if key in used}
        return kept

    def _read_head(self, request: ModelRequest) -> Iterator[Position]:
        key = blake2b(canonical_json(request.model), digest_size=16).digest()
        tokens = 0
        parts: list[tuple[bytes, bytes, int, Block | None]] = [
            *((b"tools", canonical_json(tool), estimate_tokens(tool), None) for tool in request.tools),
            *((b"system", *self._look_up_block(block)[1:3], block) for block in request.system),
        ]
        for level, digest, size, block in parts:
            key, tokens = _chain(key, level, digest), tokens + size
            yield Position(key, tokens, block, key, "")

    def _next_position(self, level: bytes, role: bytes, block: Block) -> Position:
        known = self._look_up_block(block)
        before = self.positions[-1] if self.positions else _NOTHING
        key = _chain(before.key, level, known.digest)
        tokens = before.tokens + known.tokens
        if isinstance(block, _THINKING):
            thought = block.signature if isinstance(block, Thinking) else block.data
            return Position(key, tokens, block, before.bound, thought)
        if is_compaction(block):
            return Position(key, tokens, block, *sealed(block))
        return Position(key, tokens, block, _chain(before.bound, role, known.digest), before.thought)

    def _look_up_block(self, block: Block) -> _BlockData:
        known = self._known.get(id(block))
        if known is None:
            inner = block.content if isinstance(block, ToolResult) and not isinstance(block.content, str) else (block,)
            digest = blake2b(canonical_json(encode_block(block)), digest_size=16).digest()
            picture = any(isinstance(part, Image) for part in inner)
            known = self._known[id(block)] = _BlockData(block, digest, estimate_tokens(block), picture)
        return known

    def _marker_position(self, point: Breakpoint) -> int:
        """Return the position of a cache marker."""
        if point.message is None:
            return self._head - 1
        end = self._ends[point.message]
        begin = self._ends[point.message - 1] if point.message else self._head
        return next((at for at in range(end - 1, begin - 1, -1) if _markable(self.positions[at].block)), end - 1)


_NOTHING = Position(b"", 0, None, b"", "")


def seal(position: Position) -> str:
    """Sign a summary of everything up to a position: thinking after it stays bound to the original history."""
    return f"{position.bound.hex()}|{position.thought}"


def sealed(block: Block) -> tuple[bytes, str]:
    """Return what a summary's signature says that it replaces; nothing if the signature is not ours."""
    signature = str(block.raw.get("signature", "")) if isinstance(block, RawBlock) else ""
    bound, _, thought = signature.partition("|")
    try:
        return bytes.fromhex(bound), thought
    except ValueError:
        return b"", ""


def _markable(block: Block | None) -> bool:
    return not isinstance(block, _THINKING) and not (isinstance(block, Text) and not block.text)


def _chain(before: bytes, level: bytes, digest: bytes) -> bytes:
    return blake2b(before + level + b"\0" + digest, digest_size=16).digest()


def plain_requests(run: RecordedRun, frame: ModelRequest, *, reasoning: Thinking | None) -> Iterator[ModelRequest]:
    """Yield the requests of a loop that only appends and shortens nothing, with the provider's automatic caching.

    Its cache markers are on the static head and on the last block.

    Args:
        frame: A request of the run without messages: model, instructions and tools.
        reasoning: Thinking with which every turn of the model begins; None for none.
    """
    head = [Breakpoint(None)] if frame.system or frame.tools else []
    thought = (reasoning,) if reasoning is not None else ()
    messages = [Message("user", (Text(run.task),))]
    for turn in run.turns:
        points = (*head, Breakpoint(len(messages) - 1))
        yield msgspec.structs.replace(frame, messages=tuple(messages), breakpoints=points)
        messages.append(Message("assistant", (*thought, *turn.content)))
        results = [turn.results[use.id] for use in tool_uses(turn.content) if use.id in turn.results]
        messages.append(Message("user", (*results, *(Text(said) for said in turn.said))))
