"""Entries: what the ledger of a run is made of."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from repertory.llm.messages import Block, Json, Role

EntryKind: TypeAlias = Literal[
    "task",  # what the run was asked to do; always in view, verbatim
    "user-input",  # said by the user, or by the parent agent, while the run went on
    "assistant",  # the model's turn
    "action-result",  # the outcome of one tool call
    "sub-agent-result",  # the outcome of one delegation
    "retry-context",  # why the runtime asks the model again
    "system",  # said by the runtime: a reminder, a notice of recovery
]


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """An entry before the ledger has given it a position.

    Attributes:
        role: Whose turn it belongs to. Neighbouring entries of one role become one message.
        kind: What it is.
        content: What the model was first shown, as blocks; a tool result is exactly one ``ToolResult`` block.
        iteration: The iteration that added it; 0 for what came before the first model call.
        tool: The tool's name, for results.
        tool_call_id: The call's id, for results.
        content_id: The citation under which the content store holds the whole, where ``content`` is not all
            of it (or where it is large enough to be cited); None otherwise.
        original_length: Characters of the whole result, before it was shaped on arrival; 0 where it was not.
        gist: What stands for the whole of a result that was cut, once it is shortened further; "" where that is to be
            made from ``content``.
        url: Where a result came from; "" where it has no address.
        step_id: Which step of the run wrote it, for traces; "" where nobody asked.
        metadata: The application's own, kept and never read.
    """

    role: Role
    kind: EntryKind
    content: tuple[Block, ...]
    iteration: int = 0
    tool: str | None = None
    tool_call_id: str | None = None
    content_id: str | None = None
    original_length: int = 0
    gist: str = ""
    url: str = ""
    step_id: str = ""
    metadata: Json = msgspec.field(default_factory=dict)


class Entry(Draft, frozen=True, kw_only=True):
    """One record in the ledger. It never changes.

    Attributes:
        position: Its place in the run's ledger, from 0, without gaps.
        created_at: Seconds since 1970.
        tokens: Estimate of what ``content`` costs in a prompt, by characters; see ``repertory.llm``.
    """

    position: int
    created_at: float
    tokens: int
