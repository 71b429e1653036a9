"""The messages to the summarizer, and its answers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import anyio
import msgspec

from repertory._frozen import Frozen
from repertory.actors import ActorRef, Request
from repertory.llm.messages import Json
from repertory.llm.model import Model, ModelRequest, Reservation
from repertory.llm.profiles import Amount
from repertory.record import Snapshot
from repertory.record.records import SummaryStored

EXTRACTIVE, MODEL, PROVIDER = "extractive", "model", "provider"
"""Values of ``SummaryStored.strategy``: written by the program from the record, by a model, or by the provider."""


class Budget(Protocol):
    """What a run may still use."""

    def reserved(self, call: int, at_most: Amount, *, must_fit: bool) -> AbstractContextManager[Reservation]:
        """Reserve what a model call can use; ``LimitExceeded`` if it must fit beside those under way, and does not."""
        ...


class Summarize(msgspec.Struct, frozen=True, kw_only=True):
    """Summarize the entries ``first`` to ``upto``, not included, of a snapshot. Answered by a later message.

    Attributes:
        snapshot: The ledger; nothing after ``upto`` is read.
        first: The first entry to cover; 0 if summaries chain.
        upto: The entry after the last one to cover.
        previous: A summary of the beginning of the range, to be merged; "" for none.
        previous_upto: The first entry that ``previous`` does not cover.
        tokens: Bound on ``SummaryStored.tokens``; None derives it from the length of the stretch.
        retrieval: Whether the agent has tools that show the originals.
        models: Models to try, in this order; None for those of the run's supervisor.
        fallback: Whether the program writes a summary from the record if no model can write one.
        request: For a signed summary by the provider: the request that showed exactly the entries before ``upto``,
            already sent and answered. ``models`` must then be the run's own model, since a summary by another one would
            invalidate the thinking after it; it is asked once, without a substitute. None for any other summary.
        iteration: The iteration that asked, for the log of model calls.
        budget: The budget that pays for the calls; None for no bound.
        reply_to: Receives ``SummaryReady`` or ``SummaryFailed``; None if nobody waits.
    """

    run_id: str
    snapshot: Snapshot
    first: int
    upto: int
    previous: str = ""
    previous_upto: int = 0
    tokens: int | None = None
    retrieval: bool = True
    models: tuple[Model, ...] | None = None
    fallback: bool = True
    request: ModelRequest | None = None
    iteration: int = 0
    budget: Budget | None = None
    reply_to: ActorRef[Any] | None = None

    def failed(self, reason: str, *, superseded: bool = False) -> SummaryFailed:
        """Return the answer that there is no summary."""
        return SummaryFailed(run_id=self.run_id, first=self.first, upto=self.upto, reason=reason, superseded=superseded)


class SummarizeResult(Frozen, frozen=True, kw_only=True):
    """Summarize one result. Answered by ``ResultSummarized`` once that is durable, or by ``ResultNotSummarized``.

    Attributes:
        position: Position of the result's entry.
        text: What the model was shown of the result.
        content_id: The id of the stored whole, which is summarized instead; None if ``text`` is the whole.
        tool: The tool whose result it is.
        arguments: What the tool was called with.
        kind: The kind of the entry: ``action-result`` or ``sub-agent-result``.
        turn: The iteration that added the result.
        goal: What the agent was asked to do.
        prompt: Template of the instructions; "" for the built-in ones. See ``check_prompt``.
        length: Approximate characters of the summary; more than twice as many are refused.
        models: Models to try, in this order; None for those of the run's supervisor.
        iteration: The iteration that asked, for the log of model calls.
        budget: The budget that pays for the calls; None for no bound.
        reply_to: Receives the answer; None if nobody waits.
    """

    run_id: str
    position: int
    text: str
    content_id: str | None = None
    tool: str = ""
    arguments: Json = msgspec.field(default_factory=dict)
    kind: str = "action-result"
    turn: int = 0
    goal: str = ""
    prompt: str = ""
    length: int = 400
    models: tuple[Model, ...] | None = None
    iteration: int = 0
    budget: Budget | None = None
    reply_to: ActorRef[Any] | None = None

    def failed(self, reason: str) -> ResultNotSummarized:
        """Return the answer that there is no summary."""
        reason = f"the result of {self.tool or 'a tool'} in entry {self.position} has no summary: {reason}"
        return ResultNotSummarized(run_id=self.run_id, position=self.position, reason=reason)


class ForgetRun(Request[Sequence[anyio.Event]], frozen=True):
    """Drop the requests of a run and of those below it, and cancel those in progress. None of them is answered.

    The answer is an event for each that is in progress; once all are set, nothing more is recorded for these runs.
    """

    run_id: str


class ResultSummarized(msgspec.Struct, frozen=True, kw_only=True):
    """A result's summary is durable.

    Attributes:
        cost: US dollars that it cost, with failed attempts; the most that those which broke off can have cost.
    """

    run_id: str
    position: int
    text: str
    cost: float = 0.0


class ResultNotSummarized(msgspec.Struct, frozen=True, kw_only=True):
    """There will be no summary of this result.

    Attributes:
        reason: The reason, for a person to read.
        cost: US dollars that the attempts cost; the most that those which broke off can have cost.
    """

    run_id: str
    position: int
    reason: str
    cost: float = 0.0


class SummaryReady(msgspec.Struct, frozen=True):
    """A summary is durable. The planner decides whether and when it is shown.

    Attributes:
        cost: US dollars that it cost, with failed attempts; the most that those which broke off can have cost.
        failure: Why no model could write it and the program wrote it from the record; "" if a model wrote it.
    """

    summary: SummaryStored
    cost: float = 0.0
    failure: str = ""


class SummaryFailed(msgspec.Struct, frozen=True, kw_only=True):
    """There will be no summary of this range.

    Attributes:
        reason: The reason, for a person to read.
        cost: US dollars that the attempts cost; the most that those which broke off can have cost.
        superseded: Whether a newer request of the same run replaced this one, so that nothing failed.
    """

    run_id: str
    first: int
    upto: int
    reason: str
    cost: float = 0.0
    superseded: bool = False
