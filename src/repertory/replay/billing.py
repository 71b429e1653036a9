"""What requests cost: each one's blocks hashed once, looked up in the prompt cache by its rules."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import msgspec

from repertory.llm.estimate import estimate_tokens
from repertory.llm.messages import (
    Block,
    Image,
    Message,
    RawBlock,
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
    canonical_json,
    encode_block,
    tool_uses,
)
from repertory.llm.model import Breakpoint, ModelRequest, Usage
from repertory.llm.profiles import ModelProfile
from repertory.replay.recording import RecordedRun
from repertory.replay.words import is_summary
from repertory.testing.prefix_cache import PrefixCache

_THINKING = (Thinking, RedactedThinking)


class Position(msgspec.Struct, frozen=True):
    """One block of a request, and all before it.

    Attributes:
        key: Stands for every byte up to here.
        tokens: Of everything up to here.
        block: The block; None for a tool.
        bound: Stands for everything up to here but thinking: what a thinking block behind it is bound to.
        thought: The signature of the last thinking block up to here; "" where there is none.
    """

    key: bytes
    tokens: int
    block: Block | None
    bound: bytes
    thought: str


class _Known(msgspec.Struct, frozen=True):
    block: Block  # kept, so that its identity is not given to another
    digest: bytes
    tokens: int
    picture: bool


class Positions:
    """The positions of one run's requests. What a request shares with the one before it is not looked at again."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}
        self._frame: tuple[Any, ...] | None = None
        self._head = 0  # positions of tools and system
        self._messages: tuple[Message, ...] = ()
        self._ends: list[int] = []  # for each message, the positions up to its end
        self._pictures: list[bool] = []  # for each message, whether a picture stands in it or before it
        self.positions: list[Position] = []

    def read(self, request: ModelRequest) -> int:
        """Bring ``positions`` up to a request.

        Returns:
            How many of the positions are those of the request before.
        """
        settings = [request.options.get("tool_choice"), request.options.get("thinking")]
        frame = (request.model, settings, request.tools, request.system)
        if frame != self._frame:
            self._frame, self._messages = frame, ()
            self.positions = list(self._read_head(request))
            self._head = len(self.positions)
        same = _shared(self._messages, request.messages)
        had_pictures = bool(self._pictures) and self._pictures[-1]
        has_pictures = (same > 0 and self._pictures[same - 1]) or any(
            self._recall(block).picture for message in request.messages[same:] for block in message.content
        )
        if has_pictures != had_pictures:
            same = 0  # pictures in or out of a request make another prefix of every message
        kept = self._ends[same - 1] if same else self._head
        del self.positions[kept:], self._ends[same:], self._pictures[same:]
        level = canonical_json([*settings, has_pictures])
        for message in request.messages[same:]:
            pictured = bool(self._pictures) and self._pictures[-1]
            for block in message.content:
                self.positions.append(self._next(message.role.encode(), level, block))
                pictured = pictured or self._recall(block).picture
            self._ends.append(len(self.positions))
            self._pictures.append(pictured)
        self._messages = request.messages
        self._forget()
        return kept

    def _forget(self) -> None:
        """Drop what earlier views showed and this one does not, now and then."""
        if len(self._known) > 4 * len(self.positions) + 1_000:
            used = {id(position.block) for position in self.positions}
            self._known = {key: known for key, known in self._known.items() if key in used}

    def _read_head(self, request: ModelRequest) -> Iterator[Position]:
        key = blake2b(canonical_json(request.model), digest_size=16).digest()
        tokens = 0
        for tool in request.tools:
            raw = canonical_json(tool)
            key = _chain(key, b"tools", raw)
            tokens += estimate_tokens(tool)
            yield Position(key, tokens, None, key, "")
        for block in request.system:
            known = self._recall(block)
            key = _chain(key, b"system", known.digest)
            tokens += known.tokens
            yield Position(key, tokens, block, key, "")

    def _next(self, role: bytes, level: bytes, block: Block) -> Position:
        known = self._recall(block)
        before = self.positions[-1] if self.positions else _NOTHING
        key = _chain(before.key, role + level, known.digest)
        tokens = before.tokens + known.tokens
        if isinstance(block, _THINKING):
            return Position(key, tokens, block, before.bound, signature_of(block))
        if is_summary(block):
            bound, thought = sealed(block)
            return Position(key, tokens, block, bound, thought)
        return Position(key, tokens, block, _chain(before.bound, role, known.digest), before.thought)

    def _recall(self, block: Block) -> _Known:
        known = self._known.get(id(block))
        if known is None:
            inner = block.content if isinstance(block, ToolResult) and not isinstance(block.content, str) else (block,)
            known = self._known[id(block)] = _Known(
                block,
                blake2b(canonical_json(encode_block(block)), digest_size=16).digest(),
                estimate_tokens(block),
                any(isinstance(part, Image) for part in inner),
            )
        return known

    def marked(self, request: ModelRequest) -> list[tuple[int, str]]:
        """The positions of the request that was read last that carry cache markers, and their TTL."""
        return [(self._place(point), point.ttl) for point in request.breakpoints]

    def _place(self, point: Breakpoint) -> int:
        if point.message is None:
            return self._head - 1
        end = self._ends[point.message]
        begin = self._ends[point.message - 1] if point.message else self._head
        return next((at for at in range(end - 1, begin - 1, -1) if _markable(self.positions[at].block)), end - 1)


_NOTHING = Position(b"", 0, None, b"", "")


def signature_of(block: Thinking | RedactedThinking) -> str:
    """What says that a thinking block is the provider's own."""
    return block.signature if isinstance(block, Thinking) else block.data


def seal(position: Position) -> str:
    """The signature of a summary of everything up to a position: thinking behind it stays bound to what it was."""
    return f"{position.bound.hex()}|{position.thought}"


def sealed(block: Block) -> tuple[bytes, str]:
    """What a summary says that it stands for; nothing, where its signature is not of ours."""
    signature = str(block.raw.get("signature", "")) if isinstance(block, RawBlock) else ""
    bound, _, thought = signature.partition("|")
    try:
        return bytes.fromhex(bound), thought
    except ValueError:
        return b"", ""


def _shared(old: tuple[Message, ...], new: tuple[Message, ...]) -> int:
    """How many messages both begin with, by identity: an unedited view hands out the same ones."""
    count = 0
    for one, other in zip(old, new, strict=False):
        if one is not other:
            break
        count += 1
    return count


def _markable(block: Block | None) -> bool:
    return not isinstance(block, _THINKING) and not (isinstance(block, Text) and not block.text)


def _chain(before: bytes, level: bytes, digest: bytes) -> bytes:
    return blake2b(before + level + b"\0" + digest, digest_size=16).digest()


class Biller:
    """Bills the requests of one run, one after another.

    Args:
        profile: The model's prices and cache rules.
    """

    def __init__(self, profile: ModelProfile) -> None:
        self.now = 0.0
        self._rules = profile.cache
        self._cache = PrefixCache(lambda: self.now)
        self._read = Positions()

    @property
    def positions(self) -> list[Position]:
        """Those of the request that was billed last."""
        return self._read.positions

    def bill(self, request: ModelRequest, *, at: float) -> tuple[Usage, int]:
        """Bill the prompt of one request.

        Args:
            request: As it is sent.
            at: Seconds; not before the request that was billed last.

        Returns:
            The usage, without the answer, and how many positions are those of the request before.
        """
        self.now = at
        kept = self._read.read(request)
        use = self._cache.look_up(self.positions, self._read.marked(request), self._rules)
        use.begun()
        return use.usage, kept


def plain_requests(run: RecordedRun, frame: ModelRequest, *, reasoning: Thinking | None) -> Iterator[ModelRequest]:
    """The requests of a loop that appends and shortens nothing, with the provider's automatic caching.

    Its cache markers stand on the static head and on the last block.

    Args:
        run: What was recorded.
        frame: A request of the run without messages: model, instructions and tools.
        reasoning: What every turn of the model begins with; None for nothing.
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
