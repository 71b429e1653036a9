"""Entries: what the ledger of a run is made of."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import msgspec

from repertory._frozen import freeze_fields
from repertory.llm.messages import Block, Json, Role

EntryKind: TypeAlias = Literal[
    "task",  # what the run was asked to do; always in view, verbatim
    "user-input",  # said by the user while the run went on
    "lead-input",  # said by the agent that delegated the task, while the run went on
    "assistant",  # the model's turn
    "action-result",  # the outcome of one tool call
    "sub-agent-result",  # the outcome of one delegation
    "retry-context",  # why the runtime asks the model again
    "system",  # said by the runtime: a reminder, a notice of recovery
]


class Part(NamedTuple):
    """Characters ``start`` to ``end``, not included, of an earlier entry or a stored content.

    ``at`` is where they stand in the text that brought them back; -1 where that is not known.
    """

    source: str
    start: int
    end: int
    at: int = -1


class Retrieved(msgspec.Struct, frozen=True, kw_only=True):
    """What a result brought back of what was no longer in view.

    Attributes:
        positions: The entries that it shows, or hints at.
        content_id: The stored content that it shows; "" for none.
        parts: The characters of them that it shows.
        hint: Whether it only tells that they are there, and brings nothing back.
    """

    positions: tuple[int, ...] = ()
    content_id: str = ""
    parts: tuple[Part, ...] = ()
    hint: bool = False


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
        spans: Where in the text of ``content`` the tool's own words stand, as (start, end) in characters: what stands
            around them and between them is the runtime's. () where all of it is the tool's.
        url: Where a result came from; "" where it has no address.
        facts: Small facts about a result, as its tool gave them; told where the result is shown short.
        step_id: Which step of the run wrote it, for traces; "" where nobody asked.
        stop_reason: Why the model stopped, for its turns; "" otherwise.
        message_id: Which message to the run it is, for what users say; "" otherwise.
        deduplicated_from: The call whose result it repeats or points at; "" for a result of its own.
        retrieved: What it brought back; None for everything but the results of retrievals.
        covered: Whether a summary stood for something of what it brought back.
        pinned: Whether its tool asked to keep it in view, as ``Run.pin`` would.
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
    spans: tuple[tuple[int, int], ...] = ()
    url: str = ""
    facts: Json = msgspec.field(default_factory=dict)
    step_id: str = ""
    stop_reason: str = ""
    message_id: str = ""
    deduplicated_from: str = ""
    retrieved: Retrieved | None = None
    covered: bool = False
    pinned: bool = False
    metadata: Json = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        freeze_fields(self, "facts", "metadata", sequences=("content",))


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
