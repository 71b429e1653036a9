"""The summarizer: one actor for all runs. It never blocks a run, and its failures do not affect agents."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

import anyio
import msgspec

from repertory._cancelling import part_for_others
from repertory._counting import counted
from repertory._error_texts import name_error
from repertory._ids import is_in_tree, new_id, root_of
from repertory.actors import Accepts, ActorContext, handler
from repertory.errors import ActorStopped, LimitExceeded, MailboxFull, ModelError
from repertory.llm.estimate import text_tokens
from repertory.llm.messages import Json, Text, text_of
from repertory.llm.model import Model, encode_request
from repertory.record import Journal
from repertory.record.records import EventLogged, SummaryStored
from repertory.record.requests import request_digest
from repertory.record.statistics import RESULT_SUMMARIZED
from repertory.shortening.trail import bounded_trail
from repertory.summarizer.calls import RecordedCalls
from repertory.summarizer.frames import Written, sendable
from repertory.summarizer.messages import (
    EXTRACTIVE,
    MODEL,
    PROVIDER,
    ForgetRun,
    ResultNotSummarized,
    ResultSummarized,
    Summarize,
    SummarizeResult,
    SummaryFailed,
    SummaryReady,
)
from repertory.summarizer.results import ResultSummary
from repertory.summarizer.stretches import ProviderSummary, StretchSummary, deserved_tokens

_Job: TypeAlias = Summarize | SummarizeResult
_Prompt: TypeAlias = StretchSummary | ProviderSummary | ResultSummary
_Answer: TypeAlias = SummaryReady | SummaryFailed | ResultSummarized | ResultNotSummarized


class _Work:
    """A request in progress."""

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.ended = anyio.Event()


class SummarizerActor:
    """Queues requests with snapshots and answers with stored summaries.

    Requests are served first come, first served, with two exceptions: a run has one summary in progress at a time, and
    a newer request to summarize a run replaces its older one that has not started. The models of a request are tried in
    order, each with a deadline and, if its answer is invalid, a second attempt. What a model wrote for the same text
    and prompt is reused within a tree of runs. A summary is refused if it is empty, older than what is stored, made up,
    or no smaller than what it replaces.
    """

    receives: Accepts[Summarize | SummarizeResult | ForgetRun]

    def __init__(
        self,
        journal: Journal,
        *,
        clock: Callable[[], float] = time.time,
        attempts: int = 2,
        timeout: float = 300.0,
        workers: int = 4,
        queue_limit: int = 1_000,
    ) -> None:
        """Make a summarizer.

        Args:
            journal: Stores summaries; they are durable before anyone is told.
            clock: Returns seconds since 1970.
            attempts: How often one model is asked before the next one is tried; once for a signed summary.
            timeout: Seconds that one attempt may take. At 100 tokens a second a summary of 20,000 tokens takes 200.
            workers: How many runs are summarized at once.
            queue_limit: How many requests may wait; further ones are refused.
        """
        self._journal = journal
        self._clock = clock
        self._attempts = attempts
        self._timeout = timeout
        self._workers = workers
        self._queue_limit = queue_limit
        self._queue: list[_Job] = []
        self._running: dict[str, _Work] = {}

    # --- messages -----------------------------------------------------------------------------------------

    @handler
    def summarize(self, job: Summarize, ctx: ActorContext) -> None:
        """Queue a request and start whatever can start."""
        problem = _find_problem(job)
        if problem:
            _reply(job, job.failed(problem))
            return
        for index, waiting in enumerate(self._queue):
            if isinstance(waiting, Summarize) and waiting.run_id == job.run_id:
                self._queue[index] = job
                _reply(waiting, waiting.failed("a newer request of the same run took its place", superseded=True))
                return
        self._enqueue(job, ctx)

    @handler
    def summarize_result(self, job: SummarizeResult, ctx: ActorContext) -> None:
        """Queue a request after the others and start whatever can start."""
        if job.models:  # without a model the stub is shown
            self._enqueue(job, ctx)

    @handler
    def forget_run(self, message: ForgetRun) -> Sequence[anyio.Event]:
        """Drop the requests of runs that have ended, so that nobody pays for what nobody will read."""
        self._queue = [job for job in self._queue if not is_in_tree(job.run_id, message.run_id)]
        found = [work for run_id, work in self._running.items() if is_in_tree(run_id, message.run_id)]
        for work in found:
            work.scope.cancel()
        return [work.ended for work in found]

    # --- the queue ----------------------------------------------------------------------------------------

    def _enqueue(self, job: _Job, ctx: ActorContext) -> None:
        if len(self._queue) >= self._queue_limit:
            _reply(job, job.failed(f"{counted(self._queue_limit, 'request')} waiting already"))
            return
        self._queue.append(job)
        self._start_jobs(ctx)

    def _start_jobs(self, ctx: ActorContext) -> None:
        index = 0
        while index < len(self._queue) and len(self._running) < self._workers:
            if self._queue[index].run_id in self._running:
                index += 1
                continue
            job = self._queue.pop(index)
            work = self._running[job.run_id] = _Work()
            ctx.start_soon(self._do, work, job, ctx)

    async def _do(self, work: _Work, job: _Job, ctx: ActorContext) -> None:
        calls = RecordedCalls(self._journal, self._clock, job)
        try:
            with work.scope:
                answer: _Answer
                if isinstance(job, Summarize):
                    answer = await self._summarize(job, calls)
                else:
                    answer = await self._summarize_result(job, calls)
                _reply(job, msgspec.structs.replace(answer, cost=calls.cost))
        finally:
            del self._running[job.run_id]
            work.ended.set()
        self._start_jobs(ctx)

    # --- one summary --------------------------------------------------------------------------------------

    async def _summarize(self, job: Summarize, calls: RecordedCalls) -> SummaryReady | SummaryFailed:
        for stored in await self._journal.read_summaries(job.run_id):
            # A request for a signed summary is not served by any other.
            is_usable = job.request is None or stored.strategy == PROVIDER
            if is_usable and stored.first <= job.first and stored.last >= job.upto - 1:
                return job.failed(f"a summary up to entry {job.upto - 1} is there already")
        covered = sum(entry.tokens for entry in job.snapshot[job.first : job.upto])
        if job.request is not None:
            strategy, (written, failure) = PROVIDER, await self._write(job, ProviderSummary(job.request), calls)
        else:
            tokens = deserved_tokens(covered) if job.tokens is None else job.tokens
            stretch = StretchSummary(job.snapshot[job.previous_upto : job.upto], job.previous, tokens=tokens)
            strategy, (written, failure) = MODEL, await self._write(job, stretch, calls)
            if written is None and job.fallback:
                try:
                    strategy, written = EXTRACTIVE, _extract(job, stretch.replaced, tokens)
                except ValueError as error:
                    failure = f"{error}; {failure}" if failure else f"{error}"
        if written is None:
            return job.failed(failure or "there is no model to write one")
        summary = SummaryStored(
            run_id=job.run_id,
            summary_id=new_id("sum"),
            first=job.first,
            last=job.upto - 1,
            strategy=strategy,
            content=written.content or (Text(written.text),),
            tokens=text_tokens(written.text),
            replaced_tokens=covered,
            model=written.model,
            at=self._clock(),
            key=written.key,
        )
        await self._journal.write([summary])
        return SummaryReady(summary, failure=failure)

    async def _summarize_result(
        self, job: SummarizeResult, calls: RecordedCalls
    ) -> ResultSummarized | ResultNotSummarized:
        stored = await self._journal.read_content(job.content_id, root=job.run_id) if job.content_id else None
        text = stored.body if stored is not None and stored.body else job.text
        written, failure = await self._write(job, ResultSummary(job, text), calls)
        if written is None:
            return job.failed(failure)
        body: Json = {"position": job.position, "text": written.text, "key": written.key}
        event = EventLogged(
            run_id=job.run_id, type=RESULT_SUMMARIZED, body=body, at=self._clock(), iteration=job.iteration
        )
        await self._journal.write([event])
        return ResultSummarized(run_id=job.run_id, position=job.position, text=written.text)

    async def _find_reusable(self, job: _Job, key: str) -> Written | None:
        """Look up what was written for the same text and prompt, for the run or another one of its tree."""
        root = root_of(job.run_id)
        if isinstance(job, SummarizeResult):
            text = await self._journal.find_result_summary(root, key)
            return None if text is None else Written(text, key=key)
        stored = await self._journal.find_summary(root, key)
        return None if stored is None else Written(text_of(stored.content), stored.model, key=key)

    async def _write(self, job: _Job, summary: _Prompt, calls: RecordedCalls) -> tuple[Written | None, str]:
        """Return the summary of the first model that can write one, or None and the reason if none can."""
        failure = ""
        for model in job.models or ():
            left = summary
            while True:
                written, failure = await self._ask(job, left, model, calls)
                if written is None:
                    break
                rest = left.after(written.text) if isinstance(left, StretchSummary) else None
                if rest is None:
                    return written, ""
                left = rest
        return None, failure

    async def _ask(self, job: _Job, summary: _Prompt, model: Model, calls: RecordedCalls) -> tuple[Written | None, str]:
        """Return what one model writes, or None and the reason if it does not."""
        failure, signed = "", isinstance(summary, ProviderSummary)
        for _ in range(1 if signed else self._attempts):
            try:
                request = summary.request(model)
                key = "" if signed else request_digest(encode_request(request))
                if key and (reused := await self._find_reusable(job, key)):
                    return reused, ""
                with anyio.fail_after(self._timeout):
                    response = await calls.complete(model, request)
                return msgspec.structs.replace(summary.read(request, response), key=key), ""
            except BaseException as error:  # a model may be an application's; the run goes on
                if part_for_others(error, KeyboardInterrupt, SystemExit) is not None:
                    raise
                failure = name_error(error)
                if isinstance(error, ModelError | LimitExceeded):
                    break  # models themselves retry what may be temporary
        return None, failure


def _find_problem(job: Summarize) -> str:
    if not 0 <= job.first <= job.previous_upto <= job.upto <= len(job.snapshot):
        return (
            f"entries {job.first}–{job.upto} with a summary up to {job.previous_upto} do not lie in order within "
            f"a snapshot of {len(job.snapshot)}"
        )
    if job.previous_upto == job.upto:
        return "there is nothing new to summarize"
    return ""


def _extract(job: Summarize, replaced: int, tokens: int) -> Written:
    """Write a summary from the record without a model: deterministic and immediate.

    Raises:
        ValueError: The stretch is too short for one.
    """
    entries = job.snapshot[job.previous_upto : job.upto]
    bound = min(tokens, replaced // 2) - text_tokens("")  # the block around it has tokens, too
    if bound <= 0:
        raise ValueError(f"the {replaced} tokens that a summary would stand for are too few for one")
    text = bounded_trail(entries, tokens=bound, previous=job.previous, retrieval=job.retrieval)
    return Written(sendable(text))


def _reply(job: _Job, answer: _Answer) -> None:
    if job.reply_to is not None:
        try:
            job.reply_to.tell(answer)
        except (MailboxFull, ActorStopped):
            # The summary is stored and can be looked up; a run that is gone or flooded must not stop the others.
            return
