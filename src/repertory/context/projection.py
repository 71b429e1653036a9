"""Projection: from a snapshot and a plan to the request. Pure, deterministic, byte-stable.

The first user message is the task, then the summaries with what is kept of the entries they cover, then
whatever the user's turn goes on with. After it the entries that no summary covers follow, neighbours of one
role as one message, each as the plan shows it.

A provider's signed summary stands first, at the head of the assistant's turn that came after it: the thinking there
stays valid only if nothing comes between. What is kept of its entries is said again behind a later message of the
user's, the last one there was when the summary was swapped in, so that nothing that was sent before is changed.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import msgspec

from repertory.context.plan import EMPTY, Expanded, Plan, Removed, ShortCalls, Stub
from repertory.llm.messages import (
    Block,
    Json,
    Message,
    RedactedThinking,
    Role,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    canonical_json,
    text_of,
    tool_uses,
)
from repertory.llm.model import Breakpoint, CacheTtl, ModelRequest, ToolSchema
from repertory.llm.profiles import ModelProfile, canonical_name
from repertory.record.entries import Entry

_SURROGATE = re.compile("[\ud800-\udfff]")
_THINKING = (Thinking, RedactedThinking)
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


class View:
    """The messages of one plan, grown entry by entry. ``project`` and ``Projector`` both build with it."""

    def __init__(self, plan: Plan, *, profile: ModelProfile) -> None:
        self.plan = plan
        self._signed = canonical_name(profile.name).startswith(
            "claude"
        )  # whose provider takes back only what it signed
        self.position = 0  # entries below are in the view
        self._done: list[Message] = []  # messages that no later entry can change
        self._last: list[int] = []  # for each of them, and for the open one, the last position in it
        self._role: Role | None = None
        self._results: list[Block] = []  # results come first in a user message, whatever arrived in between
        self._others: list[Block] = []
        self._covered: list[Block] = []
        self._ends = [0]  # of so many covers in it
        self._restated: tuple[Block, ...] = ()  # what a provider's summary covers and stays in view verbatim
        self._restated_at = -1

    def add_covered(self, snapshot: Sequence[Entry], *, like: View | None = None) -> None:
        """Open the first message with the summaries and what is kept of what they cover.

        Args:
            snapshot: The ledger.
            like: The view of an earlier plan; where it shows the covered entries in the same way, so does this one.
        """
        same = 0
        if like is not None and not any(
            cover.restated_at >= 0 for cover in (*self.plan.covers[:1], *like.plan.covers[:1])
        ):
            same = self.plan.covers_shared(like.plan)
            self._ends = like._ends[: same + 1]
            self._covered = like._covered[: self._ends[same]]
        for cover in self.plan.covers[same:]:
            kept = [_sendable(block) for position in self.plan.kept(cover) for block in self._kept(snapshot[position])]
            if cover.restated_at < 0:
                self._covered.extend((*kept, *map(_sendable, cover.content)))
            else:
                self._restated = (Text(_RESTATED), *kept) if kept else ()
                if cover.restated_at < self.plan.start:  # summarized since, so it is said again in front
                    self._covered.extend(self._restated)
            self._ends.append(len(self._covered))
        provider = self.plan.covers[0] if self.plan.covers and self.plan.covers[0].restated_at >= 0 else None
        if provider is not None:
            self._role = "assistant"
            self._others.extend(provider.content)
            self._last.append(provider.last)
            self._restated_at = provider.restated_at
        if self._covered:
            if provider is not None:
                self._close()
            self._role = "user"
            self._others.extend(self._covered)
            self._last.append(self.plan.start - 1)
        self.position = self.plan.start

    def add(self, snapshot: Sequence[Entry], start: int) -> None:
        """Add the entries from a position on."""
        for entry in snapshot[start:]:
            blocks = self._shown(entry)
            if blocks:
                self._append(entry, blocks)
            if entry.position == self._restated_at:
                self._others.extend(self._restated)
        self.position = len(snapshot)

    def _append(self, entry: Entry, blocks: Sequence[Block]) -> None:
        if entry.role != self._role:
            self._close()
            self._role = entry.role
            self._last.append(entry.position)
        self._last[-1] = entry.position
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
        shown = plan.shown.get(entry.position)
        if shown is not None:
            match shown:
                case Stub():
                    return [_with_content(block, shown.text) for block in entry.content]
                case ShortCalls():
                    calls = [_with_input(block, shown.inputs) for block in entry.content]
                    return self._speakable(calls, entry)
                case Removed():
                    return (Text(shown.text),)
                case Expanded(content=tuple() as content):
                    return [_with_content(block, content) for block in entry.content]
                case _:
                    pass  # expanded: as it stands in the ledger
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

    def _kept(self, entry: Entry) -> list[Block]:
        """A covered entry that stays in view: its call, or its answer, is gone, so it becomes plain blocks."""
        shown = self.plan.shown.get(entry.position)
        content: Sequence[Block] = entry.content
        how = "kept in full"
        if isinstance(shown, Expanded) and shown.content is not None:
            content, how = [_with_content(block, shown.content) for block in content], "as it was asked for"
        out: list[Block] = []
        for block in content:
            if isinstance(block, ToolResult):
                out.append(Text(f"[result of {entry.tool or 'a tool'}, iteration {entry.iteration}, {how}]"))
                inner = (Text(block.content),) if isinstance(block.content, str) else block.content
                out.extend(part for part in inner if not _blank(part))
            elif isinstance(block, ToolUse):
                out.append(Text(f"[you called {block.name}: {canonical_json(block.input).decode()}]"))
            elif entry.role == "assistant" and isinstance(block, Text):
                out.append(Text(f"[you said in iteration {entry.iteration}] {block.text}"))
            elif not isinstance(block, _THINKING) and not _blank(block):
                out.append(block)
        return out


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


def _with_input(block: Block, inputs: dict[str, Json]) -> Block:
    """A call with other arguments, where there are some for it."""
    if isinstance(block, ToolUse) and block.id in inputs:
        return msgspec.structs.replace(block, input=inputs[block.id])
    return block
