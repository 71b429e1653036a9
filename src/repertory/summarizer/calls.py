"""The model calls of one request to the summarizer: recorded as the run's, and added up."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import msgspec

from repertory.context.projector import BREAKPOINTS
from repertory.llm.messages import Json, canonical_json
from repertory.llm.model import Model, ModelRequest, ModelResponse, encode_request, server_of
from repertory.llm.profiles import cost_at_most, cost_of
from repertory.record import Journal
from repertory.record.records import ModelCalled, ModelReplied
from repertory.record.requests import EntryBlocks, request_digest
from repertory.summarizer.messages import Summarize, SummarizeResult


class RecordedCalls:
    """Makes calls.

    Attributes:
        cost: US dollars that they have cost so far.
    """

    def __init__(self, journal: Journal, clock: Callable[[], float], job: Summarize | SummarizeResult) -> None:
        """Make none yet."""
        self._journal = journal
        self._clock = clock
        self._job = job
        self.cost = 0.0

    async def complete(self, model: Model, request: ModelRequest) -> ModelResponse:
        """Have a model answer. The request is on record before it is sent; the answer or the error, after.

        Raises:
            ModelError: There was no answer.
            TypeError: The model is no model.
        """
        job, begun = self._job, self._clock()
        body, recorded = self._bodies(request)
        prompt = len(canonical_json(body)) // 4
        # Negative, as the run's own calls count from 1 upwards, and drawn by lot, so that no other call has it, also
        # after a restart.
        call = -1 - int.from_bytes(os.urandom(6))
        called = ModelCalled(
            run_id=job.run_id,
            call=call,
            iteration=job.iteration,
            model=request.model,
            position=job.upto if isinstance(job, Summarize) else job.position,
            digest=request_digest(body),
            body=recorded,
            at=begun,
            prompt_estimate=prompt,
            cost_at_most=cost_at_most(model.profile, prompt=prompt, output=request.max_tokens),
            purpose="summary",
            server=server_of(model),
        )
        self._journal.submit([called])
        answered: dict[str, Any] = {}
        try:
            response = _checked(await model.complete(request))
            cost = cost_of(model.profile, response.usage)
            self.cost += cost
            answered = {
                "content": response.content,
                "usage": response.usage,
                "cost": cost,
                "stop_reason": response.stop_reason,
            }
            return response
        except BaseException as error:
            answered["error"] = f"{type(error).__name__}: {error}"
            raise
        finally:
            now = self._clock()
            replied = ModelReplied(
                run_id=job.run_id, call=call, at=now, duration=now - begun, purpose="summary", **answered
            )
            self._journal.submit([replied])

    def _bodies(self, request: ModelRequest) -> tuple[Json, Json]:
        """A request as it is to be read back, its cache markers listed apart, and as it is kept.

        What is kept names the blocks that the ledger holds: a request for a signed summary repeats a whole prompt.
        """
        blocks = EntryBlocks()
        if isinstance(self._job, Summarize) and self._job.request is not None:
            blocks.add(self._job.snapshot[: self._job.upto])
        body = encode_request(msgspec.structs.replace(request, breakpoints=()))
        body[BREAKPOINTS] = msgspec.to_builtins(request.breakpoints)
        messages = [{"role": turn.role, "content": blocks.encode(turn.content)} for turn in request.messages]
        return body, {**body, "messages": messages}


def _checked(response: object) -> ModelResponse:
    if not isinstance(response, ModelResponse):
        raise TypeError(f"a model must answer with a ModelResponse, got {response!r:.200}")
    return response
