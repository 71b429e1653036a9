"""Projection: from a snapshot and a plan to the request. Pure, deterministic, byte-stable.

What stands for a stretch is shown as one call of ``context_trail`` with its result: text that came out of tools stays
in the frame of a result. What was kept of the stretch stands before it, each in its own role: what users said as
theirs, what the agent answered as its own, a pinned result behind its call. Then the entries that nothing covers
follow, neighbours of one role as one message, each as the plan shows it.

A provider's signed summary stands first, at the head of the assistant's turn that came after it: the thinking there
stays valid only if nothing comes between. What is kept of its entries is said again behind a later message of the
user's, the last one there was when the summary was swapped in, so that nothing that was sent before is changed.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from repertory.context.plan import EMPTY, CoverRange, ExpandEntry, Plan, RemoveResult, StubResult
from repertory.llm.messages import (
    Block,
    Json,
    Message,
    RawBlock,
    RedactedThinking,
    Role,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    text_of,
    tool_uses,
)
from repertory.llm.model import Breakpoint, CacheTtl, ModelRequest, ToolSchema
from repertory.llm.profiles import ModelProfile, canonical_name
from repertory.record.entries import Entry

_SURROGATE = re.compile("[\ud800-\udfff]")
_THINKING = (Thinking, RedactedThinking)
FRAME = "context_trail"
"""The name of the call whose result stands for a stretch. No tool has it: the runtime calls it."""
_RESTATED = "[Still in force, word for word, from before the summary:]"


def project(
    snapshot: Sequence[Entry],
    plan: Plan = EMPTY,
    *,
    profile: ModelProfile,
    system: Sequence[Block] = (),
    tools: Sequence[ToolSchema] = (),
    max_tokens: int = 8192,
    options: Json | None = None,
    betas: Sequence[str] = (),
) -> ModelRequest:
    """Make the request that a plan shows of a snapshot.

    The same arguments always give the same bytes. A tool call whose result is missing at the end of the
    snapshot is the caller's to complete first; ``validate`` refuses such a request.

    Args:
        snapshot: The ledger, from position 0.
        plan: How its entries are shown.
        profile: The model's; its name goes into the request, its cache rules say where breakpoints stand.
        system: The instructions.
        tools: What the model may call.
        max_tokens: Bound on the tokens of the answer.
        options: Further fields of the request, see ``ModelRequest``.
        betas: See ``ModelRequest``.
    """
    view = View(plan, profile=profile)
    view.add_covered(snapshot)
    view.add(snapshot, plan.start)
    messages = view.messages()
    return ModelRequest(
        model=profile.name,
        messages=messages,
        system=tuple(system),
        tools=tuple(tools),
        max_tokens=max_tokens,
        breakpoints=view.breakpoints(messages, profile, head=bool(system or tools)),
        options=options or {},
        betas=tuple(betas),
    )


class _Open(NamedTuple):
    """How far a view has come: so many messages are done, and one is open."""

    done: int
    role: Role | None
    results: tuple[Block, ...]
    others: tuple[Block, ...]


class View:
    """The messages of one plan, grown entry by entry. ``project`` and ``Projector`` both build with it."""

    def __init__(self, plan: Plan, *, profile: ModelProfile) -> None:
        self.plan = plan
        # Only the provider signs reasoning, and it takes back only what it signed.
        self._signed = canonical_name(profile.name).startswith("claude")
        self.position = 0  # entries below are in the view
        self._done: list[Message] = []  # messages that no later entry can change
        self._last: list[int] = []  # for each of them, and for the open one, the last position in it
        self._role: Role | None = None
        self._results: list[Block] = []  # results come first in a user message, whatever arrived in between
        self._others: list[Block] = []
        self._ends: list[_Open] = []  # behind each cover
        self._restated: tuple[Block, ...] = ()  # what a provider's summary covers and stays in view verbatim
        self._restated_at = -1

    def add_covered(self, snapshot: Sequence[Entry], *, like: View | None = None) -> None:
        """Begin with what stands for stretches, and what is kept of them.

        Args:
            snapshot: The ledger.
            like: The view of an earlier plan; where it shows the covered entries in the same way, so does this one.
        """
        covers = self.plan.covers
        same = 0
        if like is not None and not any(c.restated_at >= 0 for c in (*covers[:1], *like.plan.covers[:1])):
            same = min(self.plan.covers_shared(like.plan), len(like._ends))
        if like is not None and same:
            end = like._ends[same - 1]
            self._ends = like._ends[:same]
            self._done, self._role = like._done[: end.done], end.role
            self._results, self._others = list(end.results), list(end.others)
            self._last = like._last[: end.done]
            if end.role is not None:
                self._last.append(covers[same - 1].last)
        for cover in covers[same:]:
            if cover.restated_at >= 0:
                self._add("assistant", cover.content, cover.last)
                self._restate(snapshot, cover)
            else:
                for position in self.plan.kept(cover):
                    self._add_kept(snapshot, position)
                if cover.content:
                    call = f"trail-{cover.first}-{cover.last}"
                    span = "–".join(map(str, dict.fromkeys(max(1, at) for at in cover.iterations)))
                    self._add("assistant", (ToolUse(call, FRAME, {"iterations": span}),), cover.last)
                    self._add("user", (ToolResult(call, text_of(cover.content)),), cover.last)
            self._ends.append(_Open(len(self._done), self._role, tuple(self._results), tuple(self._others)))
        self.position = self.plan.start

    def _restate(self, snapshot: Sequence[Entry], cover: CoverRange) -> None:
        """Say again what a provider's block covers and stays: nothing may come between the block and what follows."""
        kept = [block for position in self.plan.kept(cover) for block in _restated(snapshot[position])]
        self._restated = (Text(_RESTATED), *kept) if kept else ()
        self._restated_at = cover.restated_at
        if cover.restated_at < self.plan.start:  # covered since, so it is said right behind
            self._add("user", self._restated, cover.last)

    def _add_kept(self, snapshot: Sequence[Entry], position: int) -> None:
        """Add an entry under a cover that stays: words in their role, a result behind its call."""
        entry = snapshot[position]
        if entry.tool_call_id is None:
            words = [block for block in self._shown(entry) if not isinstance(block, (ToolUse, *_THINKING))]
            self._add(entry.role, words, position)
            return
        call = next(
            use
            for at in range(position - 1, -1, -1)
            for use in tool_uses(snapshot[at].content)
            if use.id == entry.tool_call_id
        )
        self._add("assistant", (call,), position)
        self._add("user", self._shown(entry), position)

    def add(self, snapshot: Sequence[Entry], start: int) -> None:
        """Add the entries from a position on."""
        for entry in snapshot[start:]:
            self._add(entry.role, self._shown(entry), entry.position)
            if entry.position == self._restated_at:
                self._others.extend(self._restated)
        self.position = len(snapshot)

    def _add(self, role: Role, blocks: Sequence[Block], position: int) -> None:
        if not blocks:
            return
        if role != self._role:
            self._close()
            self._role = role
            self._last.append(position)
        self._last[-1] = position
        for block in map(_sendable, blocks):
            (self._results if isinstance(block, ToolResult) else self._others).append(block)

    def _close(self) -> None:
        if self._role is not None:
            self._done.append(self._open())
            self._results, self._others = [], []

    def _open(self) -> Message:
        assert self._role is not None
        if len(self._results) > 1 and self._done:
            # Results are in the ledger in the order in which they came in; shown, in the order of their calls.
            asked = {use.id: place for place, use in enumerate(tool_uses(self._done[-1].content))}
            self._results.sort(key=lambda block: asked.get(getattr(block, "tool_use_id", ""), len(asked)))
        return Message(self._role, (*self._results, *self._others))

    def messages(self) -> tuple[Message, ...]:
        """All messages so far; the last may still grow."""
        return (*self._done, self._open()) if self._role is not None else tuple(self._done)

    def breakpoints(
        self, messages: Sequence[Message], profile: ModelProfile, *, head: bool, ttl: CacheTtl = "5m"
    ) -> tuple[Breakpoint, ...]:
        """Where cache entries are written, the most valuable first while there is room for them.

        The last message that is not held back, so that the next request finds this one. The plan's edge, so that
        the next edit behind it finds what stands before. The static head, which other runs share. On the first
        request after an edit the edge before it, which is where the cache still holds the prefix; later, where a
        request adds more blocks than a lookup goes back, the message on which the request before it ended.
        """
        room = profile.cache.breakpoints
        last = len(messages) - 1
        if not room or last < 0:
            return ()
        plan, decided_now = self.plan, self.position == self.plan.decided_at
        if plan.held and decided_now:
            last = self._message_before(plan.held)
        wanted: list[int | None] = [last]
        if self.plan.edges:
            wanted.append(self._message_before(self.plan.edges[-1]))
        if head:
            wanted.append(None)
        if decided_now and len(plan.edges) > 1:
            wanted.append(self._message_before(plan.edges[-2]))
        # The message on which the request before this one ended, where that is further back than a lookup goes.
        ended = last - 2
        if decided_now and plan.held_before:
            ended = self._message_before(plan.held_before)
        if sum(len(message.content) for message in messages[ended + 1 :]) >= profile.cache.lookback_blocks - 1:
            wanted.append(ended)
        places = list(dict.fromkeys(place for place in wanted if place is None or place >= 0))[:room]
        return tuple(Breakpoint(place, ttl) for place in sorted(places, key=lambda p: -1 if p is None else p))

    def _message_before(self, edge: int) -> int:
        """Index of the last message that ends before a position; -1 for none."""
        index = bisect_left(self._last, edge) - 1
        return 0 if index < 0 and self.plan.covers else index

    def _shown(self, entry: Entry) -> Sequence[Block]:
        plan = self.plan
        match plan.shown.get(entry.position):
            case StubResult(text=text):
                return [_with_content(block, text) for block in entry.content]
            case RemoveResult(text=text):
                return (Text(text),)
            case ExpandEntry(content=tuple() as content):
                return [_with_content(block, content) for block in entry.content]
            case _:
                pass  # as it stands in the ledger
        blocks: Sequence[Block] = entry.content
        if entry.role == "assistant":
            return self._speakable(blocks, entry)
        if any(not _legal(block) for block in blocks):
            return [_legalised(block) for block in blocks if not _blank(block)]
        return blocks

    def _speakable(self, blocks: Sequence[Block], entry: Entry) -> Sequence[Block]:
        """What may be sent back of an assistant's turn: no removed calls, no blank text, no thinking at its end."""
        thinking = entry.position >= self.plan.thinking_from
        out = [
            block
            for block in blocks
            if not _blank(block)
            and not (isinstance(block, ToolUse) and block.id in self.plan.removed_calls)
            and (thinking or not isinstance(block, _THINKING))
            and not (self._signed and isinstance(block, Thinking) and not block.signature)
        ]
        while out and isinstance(out[-1], _THINKING):
            out.pop()
        return out if len(out) != len(blocks) else blocks


def _restated(entry: Entry) -> list[Block]:
    """An entry that is said again without its call or turn: what a tool gave as a document, never as words."""
    out: list[Block] = []
    for block in entry.content:
        if isinstance(block, ToolResult):
            parts = (Text(block.content),) if isinstance(block.content, str) else block.content
            out.extend(
                _document(f"result of {entry.tool or 'a tool'}, iteration {entry.iteration}", part.text)
                if isinstance(part, Text)
                else part
                for part in parts
                if not _blank(part)
            )
        elif entry.role == "assistant" and isinstance(block, Text):
            out.append(_document(f"what you said in iteration {entry.iteration}", block.text))
        elif not isinstance(block, (ToolUse, *_THINKING)) and not _blank(block):
            out.append(block)
    return out


def _document(title: str, text: str) -> RawBlock:
    return RawBlock(
        {"type": "document", "title": title, "source": {"type": "text", "media_type": "text/plain", "data": text}}
    )


def _sendable(block: Block) -> Block:
    """A block without lone surrogates, which JSON from a model may carry and no request can: each becomes U+FFFD."""
    fields = msgspec.structs.asdict(block)
    mended: dict[str, Any] = {name: _mended(value) for name, value in fields.items() if _has_surrogate(value)}
    if isinstance(block, ToolResult) and not isinstance(block.content, str):
        parts = tuple(map(_sendable, block.content))
        if any(part is not other for part, other in zip(parts, block.content, strict=True)):
            mended["content"] = parts
    return msgspec.structs.replace(block, **mended) if mended else block


def _has_surrogate(value: Any) -> bool:
    if isinstance(value, str):
        return not value.isascii() and _SURROGATE.search(value) is not None
    if isinstance(value, dict):
        inside: dict[str, Any] = value
        return any(_has_surrogate(name) or _has_surrogate(inner) for name, inner in inside.items())
    return isinstance(value, list | tuple) and any(map(_has_surrogate, value))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _mended(value: Any) -> Any:
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        inside: dict[str, Any] = value
        return {_mended(name): _mended(inner) for name, inner in inside.items()}
    if isinstance(value, list | tuple):
        items: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType]
        return [_mended(inner) for inner in items]
    return value


def _blank(block: Block) -> bool:
    return isinstance(block, Text) and not block.text.strip()


def _legal(block: Block) -> bool:
    if isinstance(block, ToolResult) and isinstance(block.content, tuple):
        return not any(_blank(part) or (block.is_error and not isinstance(part, Text)) for part in block.content)
    return not _blank(block)


def _legalised(block: Block) -> Block:
    """The API takes no blank text, and nothing but text in a result that reports an error."""
    if not isinstance(block, ToolResult) or isinstance(block.content, str):
        return block
    parts = [part for part in block.content if not _blank(part)]
    if block.is_error:
        parts = [part if isinstance(part, Text) else Text(f"[{type(part).__name__.lower()}]") for part in parts]
    return msgspec.structs.replace(block, content=tuple(parts))


def _with_content(block: Block, content: str | tuple[Block, ...]) -> Block:
    """A result block with other content; it keeps its call id, its error flag and whatever else it carries."""
    if not isinstance(block, ToolResult):
        return Text(content if isinstance(content, str) else text_of(content))
    return msgspec.structs.replace(block, content=content)
