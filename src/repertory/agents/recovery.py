"""What a run still owes its record: the tool calls that were asked for and have no result yet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

import msgspec

from repertory.llm.messages import Block, ToolResult, ToolUse, tool_uses
from repertory.memory import Draft, Entry, Journal, Ledger
from repertory.memory.journal import ToolCallRow
from repertory.memory.records import ToolFinished

Fate: TypeAlias = Literal["run", "interrupted"]

INTERRUPTED = (
    "[interrupted; effect unknown] The process ended while this tool was running, and it is not safe to run it "
    "again unseen. It may have done all, part or nothing of its work: find out before you repeat it."
)


CLOSED = (
    "[ended; effect unknown] The run was ended before this call had a result. It may not have begun, or have done all, "
    "part or nothing of its work."
)


class OpenCall(msgspec.Struct, frozen=True):
    """A tool call without a result.

    Attributes:
        use: The call.
        fate: ``run`` where it never began or may be run again; ``interrupted`` where its effect is unknown.
    """

    use: ToolUse
    fate: Fate


def open_calls(entries: Sequence[Entry], calls: Iterable[ToolCallRow]) -> list[OpenCall]:
    """Find the calls of the last turn that have no result, and say what is to become of each.

    A result is written in the same transaction as its outcome, so a call without a result has no outcome. If it
    has no intent either it never began. Otherwise its declared effect decides: ``pure`` and ``idempotent`` calls
    run again (with the same key), ``transactional`` ones too, since their effect would have been committed with
    the outcome, and ``unsafe`` ones never.

    Args:
        entries: The run's ledger.
        calls: The run's tool calls, as journalled.
    """
    last = next((entry for entry in reversed(entries) if entry.role == "assistant"), None)
    if last is None:
        return []
    answered = {
        block.tool_use_id
        for entry in entries[last.position :]
        for block in entry.content
        if isinstance(block, ToolResult)
    }
    intended = {row.intended.call_id: row.intended for row in calls}
    found: list[OpenCall] = []
    for use in tool_uses(last.content):
        if use.id in answered:
            continue
        intent = intended.get(use.id)
        fate: Fate = "interrupted" if intent is not None and intent.effect == "unsafe" else "run"
        found.append(OpenCall(use, fate))
    return found


async def close_calls(journal: Journal, ledger: Ledger, *, iteration: int, at: float) -> None:
    """Give every open call of a run that will never go on a result, so that its record is whole.

    Args:
        journal: Where the calls are recorded.
        ledger: The run's; nobody else appends to it any more.
        iteration: The run's last.
        at: Seconds since 1970.
    """
    open_ones = [call.use for call in open_calls(ledger.snapshot(), await journal.read_tool_calls(ledger.run_id))]
    finished = [
        ToolFinished(run_id=ledger.run_id, call_id=use.id, tool=use.name, status="interrupted", at=at)
        for use in open_ones
    ]
    if open_ones:
        await ledger.append(*(interrupted_result(use, iteration, CLOSED) for use in open_ones), also=finished)


def interrupted_result(use: ToolUse, iteration: int, text: str = INTERRUPTED) -> Draft:
    """The honest result of a call that nobody can account for."""
    return Draft(
        role="user",
        kind="action-result",
        content=(ToolResult(use.id, text, is_error=True),),
        iteration=iteration,
        tool=use.name,
        tool_call_id=use.id,
    )


def with_unique_ids(content: Sequence[Block], known: set[str]) -> tuple[Block, ...]:
    """Give tool calls new ids where the model used one twice in this run, as local servers do.

    Calls and results are paired by id over the whole request, so a repeated one would make it invalid.

    Args:
        content: The model's turn.
        known: The ids in use; the turn's are added.
    """
    out: list[Block] = []
    for block in content:
        if isinstance(block, ToolUse):
            call_id, number = block.id, 1
            while call_id in known:
                number += 1
                call_id = f"{block.id}_{number}"
            known.add(call_id)
            if call_id != block.id:
                block = msgspec.structs.replace(block, id=call_id)  # noqa: PLW2901
        out.append(block)
    return tuple(out)
