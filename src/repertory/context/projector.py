"""Projection: from a snapshot and a plan to the request. Deterministic, byte-stable.

A cover is shown as one call of ``context_trail`` with its result, so that text from tools stays in the frame of a
result. What was kept of the stretch comes before it, each entry in its own role: what users said as a user's words,
what the agent answered as its own, a pinned result after its call. The entries that no cover includes follow, each as
the plan shows it; neighbours of one role become one message.

A provider's signed summary comes first, at the head of the assistant's turn that followed it: the thinking there
stays valid only if nothing comes between. What is kept of its entries is restated after a later message of the user,
the last one when the summary was swapped in, so that nothing that was sent before changes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple, TypedDict, Unpack

import msgspec

from repertory.context.plan import EMPTY, CoverRange, Plan
from repertory.context.projection import document, replacement, restate, sendable, spoken, verbatim, without_removed
from repertory.llm.messages import Block, Json, Message, Role, Text, ToolResult, ToolUse, text_of, tool_uses
from repertory.llm.model import Breakpoint, ModelRequest, ToolSchema
from repertory.llm.profiles import ModelProfile, canonical_name
from repertory.record.entries import Entry

FRAME = "context_trail"
"""The name of the call whose result replaces a stretch. It is not a tool: the runtime makes the call up."""
FRAME_ID = "trail-"
"""How the ids of these calls begin, and those of no other call."""
_RESTATED = "[Still in force, word for word, from before the summary:]"


class RequestParts(TypedDict, total=False):
    """The parts of a request besides the messages, the same in all requests of a run; see ``ModelRequest``."""

    system: Sequence[Block]
    tools: Sequence[ToolSchema]
    max_tokens: int
    options: Json
    betas: Sequence[str]


class _State(NamedTuple):
    """A state of a view under construction: the number of finished messages, and the parts of the open one."""

    done: int = 0
    role: Role | None = None
    results: tuple[Block, ...] = ()
    others: tuple[Block, ...] = ()


def project(
    snapshot: Sequence[Entry], plan: Plan = EMPTY, *, profile: ModelProfile, **parts: Unpack[RequestParts]
) -> ModelRequest:
    """Make the request that shows a snapshot as a plan says, with a new ``Projector``.

    The same arguments always give the same bytes. If a tool call at the end of the snapshot has no result, the
    caller must add it first; ``validate`` refuses such a request.

    Args:
        snapshot: The ledger, from position 0.
        plan: How its entries are shown.
        profile: The model's profile; the request gets its name, and its cache rules say where breakpoints are set.
        parts: The rest of the request; ``max_tokens`` is 8,192 by default.
    """
    return Projector(profile=profile, **parts).project(snapshot, plan)


class Projector:
    """Projects one run, call after call. Use one per run, and not from several tasks at once.

    As long as the plan is the same object, only the entries that are new since the last call are processed. After a
    change of the plan, what is shown differently and what follows it are projected again. The cost of that depends on
    the length of the view, never on that of the record.
    """

    def __init__(self, *, profile: ModelProfile, **parts: Unpack[RequestParts]) -> None:
        """Start a run; the arguments are those of ``project``."""
        system, tools = tuple(parts.get("system", ())), tuple(parts.get("tools", ()))
        self._request = ModelRequest(
            model=profile.name,
            messages=(),
            system=system,
            tools=tools,
            max_tokens=parts.get("max_tokens", 8192),
            options=parts.get("options") or {},
            betas=tuple(parts.get("betas", ())),
        )
        self._cache = profile.cache
        self._has_head = bool(system or tools)
        # Only the provider signs reasoning, and it accepts only what it signed.
        self._signed = canonical_name(profile.name).startswith("claude")
        self._plan: Plan | None = None
        self._position = 0  # entries below are in the view
        self._done: list[Message] = []  # messages that no later entry can change
        self._last_positions: list[int] = []  # the last position in each of them and in the open one
        self._role: Role | None = None
        self._results: list[Block] = []  # results come first in a user message, in whatever order its entries arrived
        self._others: list[Block] = []
        self._cover_states: list[_State] = []  # the state after each cover
        self._restated: tuple[Block, ...] = ()  # what a provider's summary covers but stays in view verbatim
        self._restated_at = -1
        self._verbatim: dict[int, tuple[Block, ...]] = {}  # of uncovered entries

    def project(self, snapshot: Sequence[Entry], plan: Plan = EMPTY) -> ModelRequest:
        """Make the request that shows the snapshot as the plan says.

        Args:
            snapshot: The ledger.
            plan: How its entries are shown.
        """
        if plan is not self._plan or self._position > len(snapshot):
            self._restart(snapshot, plan)
        for entry in snapshot[self._position :]:
            self._add(entry.role, self._blocks_of(entry, plan), entry.position)
            if entry.position == self._restated_at:
                self._others.extend(self._restated)
        self._position = len(snapshot)
        messages = tuple(self._done) if self._role is None else (*self._done, self._open_message())
        return msgspec.structs.replace(self._request, messages=messages, breakpoints=self._breakpoints(messages, plan))

    # --- the messages -------------------------------------------------------------------------------------

    def _restart(self, snapshot: Sequence[Entry], plan: Plan) -> None:
        """Start the view with the covers and what they keep, reusing the covers that have not changed."""
        before, self._plan = self._plan, plan
        covers = plan.covers
        shared = 0
        if before is not None and not any(c.restated_at >= 0 for c in (*covers[:1], *before.covers[:1])):
            shared = plan.count_shared_covers(before)
        done, self._role, results, others = self._cover_states[shared - 1] if shared else _State()
        del self._cover_states[shared:], self._done[done:], self._last_positions[done:]
        self._results, self._others = list(results), list(others)
        if self._role is not None:
            self._last_positions.append(covers[shared - 1].last)
        self._restated, self._restated_at = (), -1
        for cover in covers[shared:]:
            self._add_cover(snapshot, plan, cover)
            self._cover_states.append(_State(len(self._done), self._role, tuple(self._results), tuple(self._others)))
        if before is None or plan.start != before.start or self._position > len(snapshot):
            self._verbatim = {at: self._verbatim[at] for at in range(plan.start, len(snapshot)) if at in self._verbatim}
        self._position = plan.start

    def _add_cover(self, snapshot: Sequence[Entry], plan: Plan, cover: CoverRange) -> None:
        if cover.restated_at >= 0:
            # Nothing may come between the provider's block and what follows, so what stays is restated later.
            self._add("assistant", sendable(b for b in cover.content if not isinstance(b, Text)), cover.last)
            logs = [document(FRAME, block.text) for block in cover.content if isinstance(block, Text)]
            kept = [block for position in plan.kept(cover) for block in restate(snapshot[position], plan)]
            self._restated = sendable([*logs, Text(_RESTATED), *kept] if kept else logs)
            self._restated_at = cover.restated_at
            if cover.restated_at < plan.start:  # covered since, so it is restated right after the block
                self._add("user", self._restated, cover.last)
            return
        for position in plan.kept(cover):
            entry = snapshot[position]
            shown = self._blocks_of(entry, plan)
            if entry.tool_call_id is None:
                self._add(entry.role, spoken(shown), position)
                continue
            # A result must follow its call, which is in one of the turns before it.
            turns = (snapshot[at] for at in range(position - 1, -1, -1))
            call = next(use for turn in turns for use in tool_uses(turn.content) if use.id == entry.tool_call_id)
            self._add("assistant", sendable([call]), position)
            self._add("user", shown, position)
        if cover.content:
            call_id = f"{FRAME_ID}{cover.first}-{cover.last}"
            span = "–".join(map(str, dict.fromkeys(max(1, at) for at in cover.iterations)))
            self._add("assistant", [ToolUse(call_id, FRAME, {"iterations": span})], cover.last)
            self._add("user", sendable([ToolResult(call_id, text_of(cover.content))]), cover.last)

    def _blocks_of(self, entry: Entry, plan: Plan) -> Sequence[Block]:
        """Return the blocks of an entry as the plan shows it; those of an unedited entry are kept."""
        edit = plan.shown.get(entry.position)
        blocks = None if edit is None else replacement(entry, edit)
        if blocks is None:
            blocks = self._verbatim.get(entry.position)
        if blocks is None:
            blocks = self._verbatim[entry.position] = verbatim(entry, signed=self._signed)
        if entry.role == "assistant" and (plan.removed_calls or entry.position < plan.thinking_from):
            return without_removed(blocks, plan.removed_calls, thinking=entry.position >= plan.thinking_from)
        return blocks

    def _add(self, role: Role, blocks: Sequence[Block], position: int) -> None:
        if not blocks:
            return
        if role != self._role:
            if self._role is not None:
                self._done.append(self._open_message())
                self._results, self._others = [], []
            self._role = role
            self._last_positions.append(position)
        self._last_positions[-1] = position
        for block in blocks:
            (self._results if isinstance(block, ToolResult) else self._others).append(block)

    def _open_message(self) -> Message:
        assert self._role is not None
        if len(self._results) > 1 and self._done:
            # The ledger has results in the order in which they arrived; show them in the order of their calls.
            call_order = {use.id: place for place, use in enumerate(tool_uses(self._done[-1].content))}
            self._results.sort(key=lambda block: call_order.get(getattr(block, "tool_use_id", ""), len(call_order)))
        return Message(self._role, (*self._results, *self._others))

    # --- the prompt cache ---------------------------------------------------------------------------------

    def _breakpoints(self, messages: Sequence[Message], plan: Plan) -> tuple[Breakpoint, ...]:
        """Choose where cache entries are written, the most valuable first, as many as the model allows.

        They are: the last message that is not held back, so that the next request finds this one; the plan's edge, so
        that the next edit after it finds what comes before; the static head, which other runs share; on the first
        request after an edit, the previous edge, up to which the cache still holds the prefix; and if a request adds
        more blocks than a lookup goes back, the message with which the request before it ended.
        """
        room, last = self._cache.breakpoints, len(messages) - 1
        if not room or last < 0:
            return ()
        decided_now = self._position == plan.decided_at
        if plan.held and decided_now:
            last = self._message_before(plan.held, plan)
        wanted: list[int | None] = [last]
        if plan.edges:
            wanted.append(self._message_before(plan.edges[-1], plan))
        if self._has_head:
            wanted.append(None)
        if decided_now and len(plan.edges) > 1:
            wanted.append(self._message_before(plan.edges[-2], plan))
        # The last message of the request before this one, if it is further back than a lookup goes.
        previous_end = last - 2
        if decided_now and plan.held_before:
            previous_end = self._message_before(plan.held_before, plan)
        if sum([len(message.content) for message in messages[previous_end + 1 :]]) >= self._cache.lookback_blocks - 1:
            wanted.append(previous_end)
        places = list(dict.fromkeys([place for place in wanted if place is None or place >= 0]))[:room]
        return tuple(map(Breakpoint, sorted(places, key=lambda p: -1 if p is None else p)))

    def _message_before(self, position: int, plan: Plan) -> int:
        """Return the index of the last message that ends before a position; -1 for none."""
        index = bisect_left(self._last_positions, position) - 1
        return 0 if index < 0 and plan.covers else index
