"""The summarizer: one actor for all runs. It never blocks anyone, and no agent notices when it fails."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import msgspec

from repertory._ids import new_id
from repertory.actors import Accepts, ActorContext, ActorRef, handler
from repertory.context import text_tokens
from repertory.errors import ActorStopped, JournalError, MailboxFull
from repertory.llm.estimate import estimate_tokens
from repertory.llm.messages import Json, Text, canonical_json
from repertory.llm.model import ModelRequest, ModelResponse, encode_request
from repertory.llm.profiles import ModelProfile, cost_at_most, cost_of
from repertory.record import Journal, request_digest
from repertory.record.records import EventLogged, ModelCalled, ModelReplied, SummaryStored
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
from repertory.summarizer.results import RESULT_SUMMARIZED, ResultTask, ResultWriter, check_result_summary
from repertory.summarizer.strategies import (
    ExtractiveStrategy,
    Strategy,
    SummaryTask,
    SummaryText,
    check_strategy,
    check_written,
    sendable,
    within,
)

_RESULT_CALLS = 1_000_000_000_000  # apart from the numbers of the calls that summarize ranges


class SummarizerActor:
    """Takes snapshots through a queue and answers with stored summaries.

    First come, first served, but for this: one run has one summary in work at a time, and a newer request of a run
    takes the place of its older one that has not been begun. A strategy gets a deadline and a second chance; then
    the extractive one writes the summary. The provider is asked once, and nobody takes its place: its summary is
    the only legal one there, and without it the run's view just grows on. A summary that is empty, older than what is
    stored, or no smaller than what it stands for is refused.
    """

    receives: Accepts[Summarize | SummarizeResult | GetSummary | GetStatistics]

    def __init__(
        self,
        journal: Journal,
        strategy: Strategy | None = None,
        *,
        clock: Callable[[], float] = time.time,
        attempts: int = 2,
        attempt_timeout: float = 60.0,
        provider_timeout: float = 600.0,
        workers: int = 4,
        queue_limit: int = 1_000,
    ) -> None:
        """Make a summarizer.

        Args:
            journal: Where summaries become durable before anyone is told.
            strategy: Who writes those whose request names nobody; None for ``ExtractiveStrategy``.
            clock: Seconds since 1970.
            attempts: How often a strategy is asked before the extractive one takes over.
            attempt_timeout: Seconds that one attempt may take.
            provider_timeout: The same for the provider's summary, which is of a whole prompt.
            workers: How many runs are summarized at once.
            queue_limit: Requests that may wait; one more is refused.

        Raises:
            ConfigurationError: The strategy is none.
        """
        if strategy is not None:
            check_strategy(strategy, "strategy")
        self._journal = journal
        self._strategy: Strategy = strategy or ExtractiveStrategy()
        self._fallback = ExtractiveStrategy()
        self._clock = clock
        self._attempts = attempts
        self._attempt_timeout = attempt_timeout
        self._provider_timeout = provider_timeout
        self._workers = workers
        self._queue_limit = queue_limit
        self._queue: list[Summarize | SummarizeResult] = []
        self._running: set[str] = set()
        self._counts = SummarizerStatistics()
        self._spent: dict[str, float] = {}  # US dollars by run, until its next answer says so

    # --- messages -----------------------------------------------------------------------------------------

    @handler
    def summarize(self, job: Summarize, ctx: ActorContext) -> None:
        """Queue a request and begin what can be begun."""
        self._count(asked=1)
        problem = self._problem(job)
        if problem:
            self._refuse(job, problem)
            return
        for index, waiting in enumerate(self._queue):
            if isinstance(waiting, Summarize) and waiting.run_id == job.run_id:
                self._queue[index] = job
                self._count(superseded=1)
                self._answer(
                    waiting, self._failed(waiting, "a newer request of the same run took its place", superseded=True)
                )
                return
        if len(self._queue) >= self._queue_limit:
            self._refuse(job, f"{self._queue_limit} requests are waiting already")
            return
        self._queue.append(job)
        self._begin(ctx)

    @handler
    def summarize_result(self, job: SummarizeResult, ctx: ActorContext) -> None:
        """Queue a request behind the others and begin what can be begun."""
        self._count(asked=1)
        if not isinstance(self._strategy, ResultWriter):
            self._count(refused=1)  # without a model a stub is what was asked for
            return
        if len(self._queue) >= self._queue_limit:
            self._give_up(job, f"{self._queue_limit} requests are waiting already")
            return
        self._queue.append(job)
        self._begin(ctx)

    @handler(expected=JournalError)
    async def get_summary(self, wanted: GetSummary) -> SummaryStored | None:
        """Look a summary up in the journal, so that it is found after a restart too."""
        for summary in reversed(await self._journal.read_summaries(wanted.run_id)):
            ends = await self._journal.read_entries(wanted.run_id, start=summary.last, stop=summary.last + 1)
            begins = await self._journal.read_entries(wanted.run_id, start=summary.first, stop=summary.first + 1)
            if ends and begins and begins[0].iteration <= wanted.iteration <= ends[0].iteration:
                return summary
        return None

    @handler
    def statistics(self, _: GetStatistics) -> SummarizerStatistics:
        """Give the counts."""
        return msgspec.structs.replace(self._counts, queued=len(self._queue), running=len(self._running))

    # --- the queue ----------------------------------------------------------------------------------------

    def _problem(self, job: Summarize) -> str:
        if not 0 <= job.first <= job.previous_upto <= job.upto <= len(job.snapshot):
            return (
                f"entries {job.first}–{job.upto} with a summary up to {job.previous_upto} do not lie in order within "
                f"a snapshot of {len(job.snapshot)}"
            )
        if job.previous_upto == job.upto:
            return "there is nothing new to summarize"
        return ""

    def _begin(self, ctx: ActorContext) -> None:
        index = 0
        while index < len(self._queue) and len(self._running) < self._workers:
            if self._queue[index].run_id in self._running:
                index += 1
                continue
            job = self._queue.pop(index)
            self._running.add(job.run_id)
            ctx.start_soon(self._work, job, ctx)

    async def _work(self, job: Summarize | SummarizeResult, ctx: ActorContext) -> None:
        try:
            if isinstance(job, SummarizeResult):
                await self._make_result(job)
            else:
                self._answer(job, await self._make(job))
        finally:
            self._running.discard(job.run_id)
        self._begin(ctx)

    # --- one summary --------------------------------------------------------------------------------------

    async def _make(self, job: Summarize) -> SummaryReady | SummaryFailed:
        stored = [s for s in await self._journal.read_summaries(job.run_id) if s.first <= job.first]
        if any(summary.last >= job.upto - 1 for summary in stored):
            return self._failed(job, f"a summary up to entry {job.upto - 1} is there already")
        if job.request is not None:
            replaced = estimate_tokens(job.request.messages)
            strategy, text, failure = await self._ask_provider(job, replaced)
        else:
            entries = job.snapshot[max(job.first, job.previous_upto) : job.upto]
            replaced = sum(entry.tokens for entry in entries) + len(job.previous) // 4
            strategy, text, failure = await self._write(job, replaced)
        if text is None:
            return self._failed(job, failure)
        tokens = text_tokens(text.text)
        summary = SummaryStored(
            run_id=job.run_id,
            summary_id=new_id("sum"),
            first=job.first,
            last=job.upto - 1,
            strategy=strategy,
            content=text.content or (Text(text.text),),
            tokens=tokens,
            replaced_tokens=sum(entry.tokens for entry in job.snapshot[job.first : job.upto]),
            model=text.model,
            at=self._clock(),
        )
        await self._journal.write([summary])
        self._count(stored=1, tokens_covered=summary.replaced_tokens, tokens_written=tokens)
        return SummaryReady(summary, failure=failure)

    async def _ask_provider(self, job: Summarize, replaced: int) -> tuple[str, SummaryText | None, str]:
        """Have the provider write, once; None, and why, where nothing usable comes of it."""
        strategy = job.strategy or self._strategy
        text, failure = await self._attempt(
            strategy, self._task(job, 0), timeout=self._provider_timeout, replaced=replaced
        )
        return strategy.name, text, failure

    async def _write(self, job: Summarize, replaced: int) -> tuple[str, SummaryText | None, str]:
        """Have the strategy write, then the extractive one.

        Returns:
            Who wrote; what, None where nothing is usable; why that is not the strategy's own, "" if it is.
        """
        strategy, failure = job.strategy or self._strategy, ""
        bounds = [job.tokens, replaced // 2]
        if type(strategy) is not ExtractiveStrategy:
            for attempt in range(self._attempts):
                task, timeout = self._task(job, attempt), self._attempt_timeout
                text, failure = await self._attempt(
                    strategy, task, timeout=timeout, replaced=replaced, bound=job.tokens
                )
                if text is not None:
                    return strategy.name, text, ""
            bounds = [min(bounds)]
        for bound in bounds:
            text = await self._fallback.summarize(self._task(job, self._attempts, tokens=bound))
            if text.text.strip() and text_tokens(text.text) < replaced:
                self._count(fallbacks=bool(failure))
                return self._fallback.name, SummaryText(sendable(text.text)), failure
        why = f"no summary is smaller than the {replaced} tokens that it would stand for"
        return self._fallback.name, None, f"{why}; {failure}" if failure else why

    async def _attempt(
        self, strategy: Strategy, task: SummaryTask, *, timeout: float, replaced: int, bound: int | None = None
    ) -> tuple[SummaryText | None, str]:
        """Ask a strategy once; None, and why, where nothing usable comes of it."""
        failure = ""
        try:
            with anyio.fail_after(timeout):
                text = check_written(await strategy.summarize(task))
        except BaseException as error:  # noqa: BLE001 - a strategy may be an application's; counted, and the run goes on
            _pass_on(error)
            failure = f"{type(error).__name__}: {error}"
        else:
            if bound is not None and not within(text.text, bound):
                failure = f"a summary of {len(text.text):,} characters is more than the {bound} tokens asked for"
            elif text_tokens(text.text) >= replaced:
                failure = f"the summary is not smaller than the {replaced} tokens that it would stand for"
            else:
                return text, ""
        self._count(failures=1)
        return None, failure

    async def _make_result(self, job: SummarizeResult) -> None:
        """Have the strategy summarize a result, and tell the run once that is durable."""
        assert isinstance(self._strategy, ResultWriter)
        stored = await self._journal.read_content(job.content_id) if job.content_id else None
        cost, why = 0.0, ""

        def log(attempt: int, request: ModelRequest, profile: ModelProfile) -> Callable[..., None]:
            replied = self._log(job, attempt, request, profile)

            def count(answer: ModelResponse | BaseException) -> None:
                nonlocal cost
                cost += cost_of(profile, answer.usage) if isinstance(answer, ModelResponse) else 0.0
                replied(answer)

            return count

        for attempt in range(self._attempts):
            task = ResultTask(
                text=stored.body if stored is not None and stored.body else job.text,
                tool=job.tool,
                goal=job.goal,
                prompt=job.prompt,
                length=job.length,
                log=partial(log, attempt),
            )
            try:
                with anyio.fail_after(self._attempt_timeout):
                    text = check_result_summary(await self._strategy.summarize_result(task), job.length)
            except BaseException as error:  # noqa: BLE001 - a strategy may be an application's; a stub is shown
                _pass_on(error)
                why = f"{type(error).__name__}: {error}"
                self._count(failures=1)
                continue
            body: Json = {"position": job.position, "text": text}
            kept = EventLogged(
                run_id=job.run_id, type=RESULT_SUMMARIZED, body=body, at=self._clock(), iteration=job.iteration
            )
            await self._journal.write([kept])
            self._count(results=1)
            done = ResultSummarized(run_id=job.run_id, position=job.position, text=text, cost=cost)
            self._tell(job.reply_to, done)
            return
        self._give_up(job, why, cost=cost)

    def _give_up(self, job: SummarizeResult, why: str, *, cost: float = 0.0) -> None:
        """Say that a stub is to be shown."""
        self._count(refused=1)
        reason = f"the result of {job.tool or 'a tool'} in entry {job.position} has no summary: {why}"
        failed = ResultNotSummarized(run_id=job.run_id, position=job.position, reason=reason, cost=cost)
        self._tell(job.reply_to, failed)

    def _task(self, job: Summarize, attempt: int, *, tokens: int | None = None) -> SummaryTask:
        return SummaryTask(
            entries=tuple(job.snapshot[max(job.first, job.previous_upto) : job.upto]),
            previous=job.previous,
            tokens=job.tokens if tokens is None else tokens,
            log=partial(self._log, job, attempt),
            retrieval=job.retrieval,
            request=job.request,
        )

    def _log(
        self, job: Summarize | SummarizeResult, attempt: int, request: ModelRequest, profile: ModelProfile
    ) -> Callable[[ModelResponse | BaseException], None]:
        """Record a model call. Its number is negative: the run's own calls count from 1 upwards."""
        if isinstance(job, Summarize):
            position, call = job.upto, -(job.upto * 100 + attempt + 1)
        else:
            position, call = job.position, -(_RESULT_CALLS + job.position * 100 + attempt + 1)
        body = encode_request(request)
        begun = self._clock()
        prompt = len(canonical_json(body)) // 4
        self._journal.submit(
            [
                ModelCalled(
                    run_id=job.run_id,
                    call=call,
                    iteration=job.iteration,
                    model=request.model,
                    position=position,
                    digest=request_digest(body),
                    body=body,
                    at=begun,
                    prompt_estimate=prompt,
                    cost_at_most=cost_at_most(profile, prompt=prompt, output=request.max_tokens),
                    purpose="summary",
                )
            ]
        )

        def replied(answer: ModelResponse | BaseException) -> None:
            now = self._clock()
            if isinstance(answer, ModelResponse):
                cost = cost_of(profile, answer.usage)
                if isinstance(job, Summarize):  # a single result's answer carries its own cost
                    self._spent[job.run_id] = self._spent.get(job.run_id, 0.0) + cost
                record = ModelReplied(
                    run_id=job.run_id,
                    call=call,
                    at=now,
                    content=answer.content,
                    usage=answer.usage,
                    cost=cost,
                    stop_reason=answer.stop_reason,
                    duration=now - begun,
                    purpose="summary",
                )
            else:
                words = f"{type(answer).__name__}: {answer}"
                record = ModelReplied(
                    run_id=job.run_id, call=call, at=now, error=words, duration=now - begun, purpose="summary"
                )
            self._journal.submit([record])

        return replied

    # --- answers ------------------------------------------------------------------------------------------

    def _failed(self, job: Summarize, reason: str, *, superseded: bool = False) -> SummaryFailed:
        return SummaryFailed(run_id=job.run_id, first=job.first, upto=job.upto, reason=reason, superseded=superseded)

    def _refuse(self, job: Summarize, reason: str) -> None:
        self._answer(job, self._failed(job, reason))

    def _answer(self, job: Summarize, answer: SummaryReady | SummaryFailed) -> None:
        if isinstance(answer, SummaryFailed) and not answer.superseded:
            self._count(refused=1)
        self._tell(job.reply_to, msgspec.structs.replace(answer, cost=self._spent.pop(job.run_id, 0.0)))

    def _tell(
        self,
        asker: ActorRef[Any] | None,
        answer: SummaryReady | SummaryFailed | ResultSummarized | ResultNotSummarized,
    ) -> None:
        if asker is not None:
            try:
                asker.tell(answer)
            except (MailboxFull, ActorStopped):
                # What is stored can be looked up; a run that is gone or flooded does not stop the others.
                return

    def _count(self, **more: int) -> None:
        counts = self._counts
        self._counts = msgspec.structs.replace(
            counts, **{name: getattr(counts, name) + number for name, number in more.items()}
        )


def _pass_on(error: BaseException) -> None:
    """Raise again what is meant for the event loop or the whole program; anything else is a strategy's failure."""
    meant_for_others = (anyio.get_cancelled_exc_class(), KeyboardInterrupt, SystemExit)
    if isinstance(error, meant_for_others) or (
        isinstance(error, BaseExceptionGroup) and error.subgroup(meant_for_others) is not None
    ):
        raise error
