"""The model calls of one request to the summarizer: recorded as calls of the run, and added up."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from repertory._error_texts import name_error
from repertory._json_text import canonical_json
from repertory.errors import ModelError
from repertory.llm.model import (
    BrokenOff,
    Model,
    ModelRequest,
    ModelResponse,
    Reservation,
    StreamEvent,
    encode_request,
    server_of,
)
from repertory.llm.profiles import amount_at_most, cost_of
from repertory.record import Journal
from repertory.record.records import ModelCalled, ModelReplied
from repertory.record.requests import RequestRecorder
from repertory.summarizer.messages import Summarize, SummarizeResult


class RecordedCalls:
    """Makes and records model calls.

    Attributes:
        cost: US dollars that the calls have cost so far; of attempts that broke off, the most that they can have cost.
    """

    def __init__(self, journal: Journal, clock: Callable[[], float], job: Summarize | SummarizeResult) -> None:
        """Prepare to make calls for a request."""
        self._journal = journal
        self._clock = clock
        self._job = job
        self.cost = 0.0

    async def complete(self, model: Model, request: ModelRequest) -> ModelResponse:
        """Call a model. The request is recorded before it is sent, the answer or the error afterwards.

        Raises:
            LimitExceeded: The run's limits leave no room for the call.
            ModelError: There was no answer.
            TypeError: The model did not answer with a ``ModelResponse``.
        """
        job = self._job
        prompt = len(canonical_json(encode_request(request))) // 4
        # Negative, since the run's own calls count from 1 upwards, and random, so that it is unique even after a
        # restart.
        call = -1 - int.from_bytes(os.urandom(6))
        most = amount_at_most(model.profile, prompt=prompt, output=request.max_tokens)
        # A request for a signed summary repeats a whole prompt, which the ledger already holds.
        recorded = job.snapshot[: job.upto] if isinstance(job, Summarize) and job.request is not None else ()
        called = RequestRecorder().record(
            request,
            recorded,
            call=call,
            run_id=job.run_id,
            iteration=job.iteration,
            position=job.upto if isinstance(job, Summarize) else job.position,
            at=self._clock(),
            prompt_estimate=prompt,
            cost_at_most=most.cost,
            tokens_at_most=most.tokens,
            purpose="summary",
            server=server_of(model),
        )
        room = Reservation(most)
        with nullcontext(room) if job.budget is None else job.budget.reserved(call, most, must_fit=True) as room:
            await self._journal.write([called])
            return await self._answer(called, model, request, room)

    async def _answer(
        self, called: ModelCalled, model: Model, request: ModelRequest, room: Reservation
    ) -> ModelResponse:
        def hear(event: StreamEvent) -> None:
            if isinstance(event, BrokenOff):
                room.broke_off()

        def replied(**fields: Any) -> ModelReplied:
            now, lost = self._clock(), room.lost
            self.cost += fields.get("cost", 0.0) + lost.cost
            common: dict[str, Any] = {"run_id": called.run_id, "call": called.call, "purpose": called.purpose}
            common |= {"at": now, "duration": now - called.at, "cost_lost": lost.cost, "tokens_lost": lost.tokens}
            return ModelReplied(**common, **fields)

        try:
            response = _checked(await model.complete(request, on_event=hear))
        except BaseException as error:
            if not isinstance(error, ModelError):
                room.broke_off()  # a timeout, or a defect of the model: nobody knows what was billed
            ticket = self._journal.submit([replied(error=name_error(error))])
            if isinstance(error, Exception):
                await ticket.wait()  # its reservation ends with this record
            raise
        cost = cost_of(model.profile, response.usage)
        answered: dict[str, Any] = {name: getattr(response, name) for name in ("content", "usage", "stop_reason")}
        await self._journal.write([replied(cost=cost, **answered)])
        return response


def _checked(response: object) -> ModelResponse:
    if not isinstance(response, ModelResponse):
        raise TypeError(f"a model must answer with a ModelResponse, got {response!r:.200}")
    return response
