"""Entries, of which the ledger of a run consists."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import msgspec

from repertory._frozen import EMPTY_DICT, Frozen
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

    ``at`` is their offset in the text that brought them back; -1 if it is not known.
    """

    source: str
    start: int
    end: int
    at: int = -1


class Retrieved(msgspec.Struct, frozen=True, kw_only=True):
    """What a retrieval brought back into view.

    Attributes:
        positions: The positions of the entries that it shows or hints at.
        content_id: The stored content that it shows; "" for none.
        parts: Which characters of them it shows.
        hint: Whether it only says that they exist, and brings nothing back.
    """

    positions: tuple[int, ...] = ()
    content_id: str = ""
    parts: tuple[Part, ...] = ()
    hint: bool = False


class Draft(Frozen, frozen=True, kw_only=True):
    """An entry before the ledger has given it a position.

    Attributes:
        role: The role whose turn it belongs to. Neighbouring entries of one role become one message.
        content: What the model was first shown, as blocks; a tool result is exactly one ``ToolResult`` block.
        iteration: The iteration that added it; 0 before the first model call.
        tool: The tool's name, for results.
        tool_call_id: The call's id, for results.
        content_id: The citation under which the content store holds the whole, if ``content`` is only part of it or
            is large enough to be cited; None otherwise.
        original_length: Characters of the whole result before it was shaped on arrival; 0 if it was not shaped.
        gist: For a result that was cut, the text that replaces the whole once it is shortened further; "" if that is
            made from ``content``.
        spans: Which parts of the text of ``content`` are the tool's own, as (start, end) in characters; the rest was
            added by the runtime. () if all of it is the tool's.
        url: Where a result came from; "" if it has no address.
        facts: Small facts about a result, as its tool gave them. They are shown with a shortened result.
        model_call: For a model's turn, the number of the call that wrote it, as in ``ModelCalled``; 0 otherwise.
        stop_reason: For a model's turn, why the model stopped; "" otherwise.
        message_id: For a user's message to the run, its id; "" otherwise.
        deduplicated_from: The call whose result it repeats or refers to; "" if it is a result of its own.
        retrieved: What it brought back into view; None if it is not the result of a retrieval.
        covered: Whether part of what it brought back was covered by a trail or a summary.
        pinned: Whether its tool asked to keep it in view, as ``Run.pin`` would.
        metadata: The application's own data. It is kept and never read.
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
    facts: Json = EMPTY_DICT
    model_call: int = 0
    stop_reason: str = ""
    message_id: str = ""
    deduplicated_from: str = ""
    retrieved: Retrieved | None = None
    covered: bool = False
    pinned: bool = False
    metadata: Json = EMPTY_DICT


class Entry(Draft, frozen=True, kw_only=True):
    """One record in the ledger. It never changes.

    Attributes:
        position: Its position in the run's ledger, from 0, without gaps.
        created_at: Seconds since 1970.
        tokens: Estimated tokens of ``content`` in a prompt; see ``repertory.llm``.
    """

    position: int
    created_at: float
    tokens: int
