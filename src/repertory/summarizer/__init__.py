"""The background summarizer: an actor that turns snapshots into stored summaries, and who writes them.

::

    summarizer = system.spawn(partial(SummarizerActor, journal, ModelStrategy(small_model)), "summarizer")
    summarizer.tell(Summarize(run_id=…, snapshot=ledger.snapshot(), first=0, upto=40, reply_to=ctx.ref))
    # later, in the mailbox: SummaryReady(summary) or SummaryFailed(...)
"""

from __future__ import annotations

from repertory.summarizer.actor import SummarizerActor
from repertory.summarizer.messages import (
    GetStatistics,
    GetSummary,
    ResultNotSummarized,
    ResultSummarized,
    Summarize,
    SummarizeResult,
    SummarizerStatistics,
    SummaryFailed,
    SummaryReady,
)
from repertory.summarizer.provider import ProviderStrategy
from repertory.summarizer.results import ResultTask, ResultWriter
from repertory.summarizer.strategies import (
    CallLog,
    ExtractiveStrategy,
    ModelStrategy,
    Strategy,
    SummaryTask,
    SummaryText,
)

__all__ = [
    "CallLog",
    "ExtractiveStrategy",
    "GetStatistics",
    "GetSummary",
    "ModelStrategy",
    "ProviderStrategy",
    "ResultNotSummarized",
    "ResultSummarized",
    "ResultTask",
    "ResultWriter",
    "Strategy",
    "Summarize",
    "SummarizeResult",
    "SummarizerActor",
    "SummarizerStatistics",
    "SummaryFailed",
    "SummaryReady",
    "SummaryTask",
    "SummaryText",
]
