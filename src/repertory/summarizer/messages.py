"""What the summarizer is told, what it answers, and what it counts."""

from __future__ import annotations

from typing import Any

import msgspec

from repertory.actors import ActorRef, Request
from repertory.llm.model import ModelRequest
from repertory.record import Snapshot
from repertory.record.records import SummaryStored
from repertory.summarizer.strategies import Strategy


class Summarize(msgspec.Struct, frozen=True, kw_only=True):
    """Summarize the entries ``first`` to ``upto``, not included, of a snapshot. Answered by a later message.

    Attributes:
        snapshot: The ledger; nothing after ``upto`` is looked at.
        first: The first entry to cover; 0 where summaries chain.
        upto: The entry after the last one to cover.
        previous: A summary of the beginning of the range, to be merged; "" for none.
        previous_upto: The first entry that ``previous`` does not cover.
        tokens: Bound on the summary.
        retrieval: Whether the agent has tools that show the originals.
        strategy: Who writes it; None for the summarizer's own.
        request: The request that showed exactly the entries before ``upto``, already sent and answered, for the
            provider to summarize: then it is asked once, and nobody else takes its place. None for any other summary.
        iteration: The iteration that asked, for the log of model calls.
        reply_to: Told ``SummaryReady`` or ``SummaryFailed``; None where nobody waits.
    """

    run_id: str
    snapshot: Snapshot
    first: int
    upto: int
    previous: str = ""
    previous_upto: int = 0
    tokens: int = 500
    retrieval: bool = True
    strategy: Strategy | None = None
    request: ModelRequest | None = None
    iteration: int = 0
    reply_to: ActorRef[Any] | None = None


class SummarizeResult(msgspec.Struct, frozen=True, kw_only=True):
    """Summarize one result. Answered by ``ResultSummarized`` once that is durable, or by ``ResultNotSummarized``.

    Attributes:
        position: The result's entry.
        text: What the model was shown of it.
        content_id: Under which the whole is stored, to be summarized instead; None where ``text`` is all of it.
        tool: Whose result it is.
        goal: What the agent was asked to do.
        prompt: Instructions; "" for the built-in ones.
        length: Characters that the summary should have, about.
        iteration: The iteration that asked, for the log of model calls.
        reply_to: Who is told; None where nobody waits.
    """

    run_id: str
    position: int
    text: str
    content_id: str | None = None
    tool: str = ""
    goal: str = ""
    prompt: str = ""
    length: int = 400
    iteration: int = 0
    reply_to: ActorRef[Any] | None = None


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
        failure: Why the strategy that was asked could not write it, so that the extractive one did; "" if it could.
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


class SummarizerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What a summarizer has done since it started.

    Attributes:
        asked: Requests that came.
        stored: Summaries that were made durable.
        failures: Attempts of a strategy that gave nothing usable.
        fallbacks: Summaries that the extractive strategy wrote because the wanted one failed.
        refused: Requests that ended without a summary, but for the superseded.
        superseded: Requests that a newer one of the same run replaced before they were begun.
        results: Summaries of single results that were made durable.
        queued: Requests that wait now.
        running: Requests in work now.
        tokens_covered: Estimate of what the covered entries cost.
        tokens_written: Estimate of what their summaries cost.
    """

    asked: int = 0
    stored: int = 0
    failures: int = 0
    fallbacks: int = 0
    refused: int = 0
    superseded: int = 0
    results: int = 0
    queued: int = 0
    running: int = 0
    tokens_covered: int = 0
    tokens_written: int = 0


class GetStatistics(Request[SummarizerStatistics], frozen=True):
    """What the summarizer has done so far."""
