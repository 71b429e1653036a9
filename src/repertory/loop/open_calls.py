"""Tool calls without a result: what to do with each, also when a run ends with open calls."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import msgspec

from repertory.llm.messages import ToolResult, ToolUse, tool_uses
from repertory.record import Draft, Entry, Journal, Ledger
from repertory.record.records import Effect, OutcomeStatus, ToolFinished, ToolIntended
from repertory.tools.repeats import arguments_digest

INTERRUPTED = (
    "[interrupted; effect unknown] The run was interrupted while this tool was running, and it is not safe to run "
    "it again unseen. It may have done all, part or nothing of its work: find out before you repeat it."
)
NOT_REPEATED = (
    "[interrupted; effect unknown] The run was interrupted while this tool was running. It may have done all, part or "
    "nothing of its work, and could not be run again: "
)
CLOSED = (
    "[ended; effect unknown] The run was ended before this call had a result. It may not have begun, or have done all, "
    "part or nothing of its work."
)
NOT_MADE = "[ended] The run was ended before anybody allowed this call; it was not made."


class OpenCall(msgspec.Struct, frozen=True):
    """A tool call without a result.

    Attributes:
        use: The call.
        position: The position in the ledger of the turn that asked for it.
        index: Its index among that turn's calls, from 0.
        digest: The digest of its tool and arguments, as asked for.
        begun: The effect that its tool declared when it began, in an earlier process; None if it never began.
        answers: With how many answers from outside it had begun to continue, in an earlier process.
    """

    use: ToolUse
    position: int
    index: int
    digest: str
    begun: Effect | None = None
    answers: int = 0

    @property
    def is_interrupted(self) -> bool:
        """Whether its effect is unknown, and it may not be run again."""
        return self.begun == "unsafe"

    @property
    def may_have_acted(self) -> bool:
        """Whether it may have had an effect in an earlier process."""
        return self.begun in ("unsafe", "idempotent")

    def failure(self, text: str) -> tuple[str, OutcomeStatus]:
        """What the model is told if the tool is not run, for the reason in ``text``, and how the call has ended."""
        return (f"{NOT_REPEATED}{text}", "interrupted") if self.may_have_acted else (text, "error")

    def idempotency_key(self, run_id: str, arguments_digest: str) -> str:
        """The key under which it runs, the same after a restart: it follows from its place and its arguments."""
        parts = f"{run_id}\0{self.position}\0{self.index}\0{arguments_digest}"
        return hashlib.blake2b(parts.encode(), digest_size=16).hexdigest()


def calls_of(turn: Entry) -> list[OpenCall]:
    """The tool calls that a turn asks for, in order."""
    return [
        OpenCall(use, turn.position, index, arguments_digest(use.name, use.input))
        for index, use in enumerate(tool_uses(turn.content))
    ]


def open_calls(entries: Sequence[Entry], intents: Iterable[ToolIntended]) -> list[OpenCall]:
    """Find the calls of the last turn that have no result, each with what it may have done.

    A result is written in the same transaction as its outcome, so a call without a result has no outcome. If it has no
    intent either it never began. Otherwise the effect decides that its tool declared then: ``pure`` and ``idempotent``
    calls run again (with the same key), ``transactional`` ones too, since their effect would have been committed with
    the outcome, and ``unsafe`` ones never.

    Args:
        entries: The run's ledger.
        intents: The recorded intents of the run's tool calls, at least those of the last turn, in order.
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
    begun = {intended.call_id: intended for intended in intents}  # the last attempt at each
    calls = [call for call in calls_of(last) if call.use.id not in answered]
    return [
        call if intent is None else msgspec.structs.replace(call, begun=intent.effect, answers=intent.answers)
        for call, intent in ((call, begun.get(call.use.id)) for call in calls)
    ]


async def read_intents(journal: Journal, ledger: Ledger) -> list[ToolIntended]:
    """The intents that ``open_calls`` needs, without reading the rest of a long record."""
    turns = (entry.iteration for entry in reversed(ledger.snapshot()) if entry.role == "assistant")
    return await journal.read_intents(ledger.run_id, iteration=next(turns, 0))


async def close_calls(ledger: Ledger, *, iteration: int, at: float) -> None:
    """Give every open call of a run that will never continue a result, so that its record is complete.

    Nobody else may append to its ledger any more. ``iteration`` is the run's last, ``at`` is in seconds since 1970.
    """
    run_id = ledger.run_id
    uses = [call.use for call in open_calls(ledger.snapshot(), ())]
    if uses:
        results = [error_result(use, CLOSED, iteration) for use in uses]
        ends = [ToolFinished(run_id=run_id, call_id=use.id, tool=use.name, status="interrupted", at=at) for use in uses]
        await ledger.append(*results, also=ends)


def error_result(use: ToolUse, text: str, iteration: int) -> Draft:
    """An error result for a call, with the text that the model is told."""
    return tool_result(use, text, iteration, wrong=True)


def tool_result(use: ToolUse, text: str, iteration: int, *, wrong: bool = False) -> Draft:
    """A result for a call, without running a tool."""
    return Draft(
        role="user",
        kind="action-result",
        content=(ToolResult(use.id, text, is_error=wrong),),
        iteration=iteration,
        tool=use.name,
        tool_call_id=use.id,
    )
