"""The background summarizer: an actor that lets models summarize snapshots, and stores what they write.

::

    summarizer = system.spawn(partial(SummarizerActor, journal), "summarizer")
    job = Summarize(run_id=…, snapshot=ledger.snapshot(), first=0, upto=40, models=(small,), reply_to=ctx.ref)
    summarizer.tell(job)
    # later, in the mailbox: SummaryReady(summary) or SummaryFailed(...)
"""

from __future__ import annotations

from repertory.summarizer.actor import SummarizerActor
from repertory.summarizer.messages import (
    ResultNotSummarized,
    ResultSummarized,
    Summarize,
    SummarizeResult,
    SummaryFailed,
    SummaryReady,
)
from repertory.summarizer.results import check_prompt

__all__ = [
    "ResultNotSummarized",
    "ResultSummarized",
    "Summarize",
    "SummarizeResult",
    "SummarizerActor",
    "SummaryFailed",
    "SummaryReady",
    "check_prompt",
]
