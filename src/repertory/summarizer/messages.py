"""What the summarizer is told, what it answers, and what it counts."""

from __future__ import annotations

from typing import Any

import msgspec

from repertory._frozen import freeze_fields
from repertory.actors import ActorRef, Request
from repertory.llm.messages import Json
from repertory.llm.model import Budget, Model, ModelRequest
from repertory.record import Snapshot
from repertory.record.records import SummaryStored

EXTRACTIVE, MODEL, PROVIDER = "extractive", "model", "provider"
"""Who wrote a summary, as ``SummaryStored.strategy`` says: the program, from the record; a model; the provider."""


class Summarize(msgspec.Struct, frozen=True, kw_only=True):
    """Summarize the entries ``first`` to ``upto``, not included, of a snapshot. Answered by a later message.

    Attributes:
        snapshot: The ledger; nothing after ``upto`` is looked at.
        first: The first entry to cover; 0 where summaries chain.
        upto: The entry after the last one to cover.
        previous: A summary of the beginning of the range, to be merged; "" for none.
        previous_upto: The first entry that ``previous`` does not cover.
        tokens: Bound on ``SummaryStored.tokens``; None for what a stretch of this length deserves.
        retrieval: Whether the agent has tools that show the originals.
        models: Who may write it, tried in this order; None for those of the run's supervisor.
        fallback: Whether the program takes a summary from the record where none of them can write one.
        request: The request that showed exactly the entries before ``upto``, already sent and answered, for a signed
            summary by the provider. Then ``models`` is the run's own, as another one's summary would leave the thinking
            behind it invalid; it is asked once, and nobody takes its place. None for any other summary.
        iteration: The iteration that asked, for the log of model calls.
        budget: What pays for it; None for no bound.
        reply_to: Told ``SummaryReady`` or ``SummaryFailed``; None where nobody waits.
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
        """The answer that there is none."""
        return SummaryFailed(run_id=self.run_id, first=self.first, upto=self.upto, reason=reason, superseded=superseded)


class SummarizeResult(msgspec.Struct, frozen=True, kw_only=True):
    """Summarize one result. Answered by ``ResultSummarized`` once that is durable, or by ``ResultNotSummarized``.

    Attributes:
        position: The result's entry.
        text: What the model was shown of it.
        content_id: Under which the whole is stored, to be summarized instead; None where ``text`` is all of it.
        tool: Whose result it is.
        arguments: What the tool was called with.
        kind: What the entry is: ``action-result`` or ``sub-agent-result``.
        turn: The iteration that added it.
        goal: What the agent was asked to do.
        prompt: Instructions, a template; "" for the built-in ones. See ``check_prompt``.
        length: Characters that the summary should have, about; more than twice as many are refused.
        models: Who may write it, tried in this order; None for those of the run's supervisor.
        iteration: The iteration that asked, for the log of model calls.
        budget: What pays for it; None for no bound.
        reply_to: Who is told; None where nobody waits.
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

    def __post_init__(self) -> None:
        freeze_fields(self, "arguments")

    def failed(self, reason: str) -> ResultNotSummarized:
        """The answer that there is none."""
        reason = f"the result of {self.tool or 'a tool'} in entry {self.position} has no summary: {reason}"
        return ResultNotSummarized(run_id=self.run_id, position=self.position, reason=reason)


class ResultSummarized(msgspec.Struct, frozen=True, kw_only=True):
    """A result's summary is durable.

    Attributes:
        cost: US dollars that it cost, failed attempts included.
    """

    run_id: str
    position: int
    text: str
    cost: float = 0.0


class ResultNotSummarized(msgspec.Struct, frozen=True, kw_only=True):
    """There will be no summary of this result.

    Attributes:
        reason: Why, for a person to read.
        cost: US dollars that the attempts cost.
    """

    run_id: str
    position: int
    reason: str
    cost: float = 0.0


class SummaryReady(msgspec.Struct, frozen=True):
    """A summary is durable. Whether and when it is shown, the planner decides.

    Attributes:
        cost: US dollars that it cost, failed attempts included.
        failure: Why no model could write it, so that the program took it from the record; "" if one could.
    """

    summary: SummaryStored
    cost: float = 0.0
    failure: str = ""


class SummaryFailed(msgspec.Struct, frozen=True, kw_only=True):
    """There will be no summary of this range.

    Attributes:
        reason: Why, for a person to read.
        cost: US dollars that the attempts cost.
        superseded: A newer request of the same run took its place, so nothing failed.
    """

    run_id: str
    first: int
    upto: int
    reason: str
    cost: float = 0.0
    superseded: bool = False


class GetSummary(Request[SummaryStored | None], frozen=True):
    """The newest summary that covers an iteration of a run; None where none does.

    Attributes:
        iteration: The iteration; 0 for the beginning.
    """

    run_id: str
    iteration: int = 0
