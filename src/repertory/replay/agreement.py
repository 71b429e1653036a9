"""Whether a model takes the same step from a policy's view as from the full record.

A model does not always agree with itself. So it is asked twice from the full record, and the agreement of these two
answers is what the view is compared with.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import anyio
import msgspec

from repertory.context import ContextPolicy
from repertory.errors import ModelError
from repertory.llm.estimate import estimate_tokens
from repertory.llm.features import is_compaction
from repertory.llm.messages import Block, Json, Message, RedactedThinking, Text, Thinking, tool_uses
from repertory.llm.model import Model, ModelRequest, ModelResponse, ToolSchema
from repertory.llm.profiles import ModelProfile, amount_at_most, cost_of
from repertory.replay.billing import plain_requests
from repertory.replay.playing import play
from repertory.replay.recording import RecordedRun
from repertory.replay.words import words_of
from repertory.supervisor import run as run_async

_MAX_ANSWER = 2_048  # tokens: enough for a step, and a low bound on the cost
_CONCURRENCY = 4  # samples; even a provider's smallest limits allow as many
_KEY_CHARS = 200  # of an argument that says what to do, rather than how to word it
_PROSE = re.compile(r"(?:[^\W\d_]+[,.']?\s+){3,}[^\W\d_]+[.!]?")  # four plain words: a description


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One turn whose request did not show the full record.

    Attributes:
        run: The run's id.
        iteration: The turn, from 1.
        view: The request under the policy.
        record: The request with the full record.
    """

    run: str
    iteration: int
    view: ModelRequest
    record: ModelRequest


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """How often answers agreed. Shares are from 0 to 1, None if no two answers could be compared.

    Attributes:
        samples: Turns for which all three answers arrived.
        failed: Why other turns were left out.
        tools_view: Share of turns whose answers from the view and from the full record call the same tools, or none.
        tools_record: The same for the two answers from the full record.
        arguments_view: Share of equal key arguments between view and full record. Key arguments are one-line values of
            at most 200 characters that are not prose. If neither answer calls a tool, nothing is compared.
        arguments_record: The same for the two answers from the full record.
        cost: US dollars; 0 if the prices are not known.
    """

    samples: int
    failed: list[str]
    tools_view: float | None
    tools_record: float | None
    arguments_view: float | None
    arguments_record: float | None
    cost: float


def sample_requests(
    runs: Iterable[RecordedRun],
    *,
    policy: ContextPolicy | None,
    model: Model,
    count: int,
    seed: int = 0,
    on_request: Callable[[], None] = lambda: None,
) -> list[Sample]:
    """Draw turns whose request, under a policy, does not show the full record.

    Args:
        model: The model to ask later: the policy decides by its prices, and the full record must fit its window.
        count: Number of turns; if there are fewer, all are drawn.
        seed: Decides which turns are drawn.
        on_request: Called after every request that is played.
    """
    rng = random.Random(seed)  # noqa: S311  what is drawn has to be drawn again, and is no secret
    drawn: list[Sample] = []
    found = 0
    for run in runs:
        for sample in _differing(run, policy, model, on_request):
            found += 1
            if len(drawn) < count:
                drawn.append(sample)
            elif (place := rng.randrange(found)) < count:  # each is equally likely to be drawn
                drawn[place] = sample
    return drawn


def _differing(
    run: RecordedRun, policy: ContextPolicy | None, model: Model, on_request: Callable[[], None]
) -> list[Sample]:
    requests: list[ModelRequest] = []

    def keep(request: ModelRequest) -> None:
        requests.append(request)
        on_request()

    # asyncio starts tasks in the order in which they were made: the same turns are drawn again.
    run_async(partial(play, run, policy=policy, profile=model.profile, on_request=keep), backend="asyncio")
    if not requests:
        return []
    tools = tuple(_tools(run))
    samples: list[Sample] = []
    records = plain_requests(run, requests[0], reasoning=None)
    for iteration, (request, record) in enumerate(zip(requests, records, strict=False), 1):
        view = without_signatures(request, model, tools)
        full = without_signatures(record, model, tools)
        if view.messages != full.messages and estimate_tokens(full) + _MAX_ANSWER <= model.profile.context_window:
            samples.append(Sample(run=run.id, iteration=iteration, view=view, record=full))
    return samples


def without_signatures(request: ModelRequest, model: Model, tools: tuple[ToolSchema, ...]) -> ModelRequest:
    """Make a request sendable: without anything signed, since the signatures of a replay are not the provider's."""
    messages = tuple(part for each in request.messages for part in _unsigned(each))
    return ModelRequest(model=model.name, messages=messages, system=request.system, tools=tools, max_tokens=_MAX_ANSWER)


def _unsigned(message: Message) -> Iterator[Message]:
    """Yield a summary as words of the user, with whom a conversation has to begin, and then the rest of its message."""
    if told := tuple(Text(words_of(block)) for block in message.content if is_compaction(block)):
        yield Message("user", told)
    yield Message(message.role, tuple(block for block in message.content if not _is_signed(block)))


def _is_signed(block: Block) -> bool:
    return is_compaction(block) or isinstance(block, Thinking | RedactedThinking)


def _tools(run: RecordedRun) -> Iterator[ToolSchema]:
    """Describe the tools of a run by the arguments that were ever given; a recording does not say more."""
    keys: dict[str, dict[str, set[str]]] = {}
    for turn in run.turns:
        for use in tool_uses(turn.content):
            known = keys.setdefault(use.name, {})
            for key, value in use.input.items():
                known.setdefault(key, set()).add(_type_of(value))
    for name, known in sorted(keys.items()):
        properties: Json = {key: {"type": sorted(types)} for key, types in known.items()}
        yield ToolSchema(name, f"{name}, as it was recorded.", {"type": "object", "properties": properties})


_TYPES = ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array"))


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    return next((name for kind, name in _TYPES if isinstance(value, kind)), "object")


def price_at_most(samples: Sequence[Sample], profile: ModelProfile) -> float:
    """Return the most US dollars that asking can cost: if nothing is cached and every answer has the maximum length."""
    return sum(
        times * amount_at_most(profile, prompt=estimate_tokens(request), output=_MAX_ANSWER).cost
        for sample in samples
        for times, request in ((1, sample.view), (2, sample.record))
    )


def agree(samples: Sequence[Sample], model: Model, *, on_answer: Callable[[], None] = lambda: None) -> Agreement:
    """Ask a model for its next step, once from each view and twice from each full record.

    Args:
        model: The model to ask; it is closed afterwards.
    """
    answers: dict[int, tuple[ModelResponse, ModelResponse, ModelResponse]] = {}
    failed: dict[int, str] = {}
    cost = 0.0
    limiter = anyio.CapacityLimiter(_CONCURRENCY)

    async def ask(request: ModelRequest) -> ModelResponse:
        nonlocal cost
        response = await model.complete(request)
        cost += cost_of(model.profile, response.usage)
        on_answer()
        return response

    async def ask_all(index: int, sample: Sample) -> None:
        async with limiter:
            try:
                answers[index] = (await ask(sample.view), await ask(sample.record), await ask(sample.record))
            except ModelError as error:
                failed[index] = f"{sample.run}, iteration {sample.iteration}: {error}"

    async def main() -> None:
        try:
            async with anyio.create_task_group() as tasks:
                for index, sample in enumerate(samples):
                    tasks.start_soon(ask_all, index, sample)
        finally:
            await model.aclose()

    run_async(main, backend="asyncio")
    steps = [tuple(map(_Step.of, answers[index])) for index in sorted(answers)]
    with_view = [pair for view, one, other in steps for pair in ((view, one), (view, other))]
    with_itself = [(one, other) for _, one, other in steps]
    return Agreement(
        samples=len(steps),
        failed=[failed[index] for index in sorted(failed)],
        tools_view=_mean(float(one.tools == other.tools) for one, other in with_view),
        tools_record=_mean(float(one.tools == other.tools) for one, other in with_itself),
        arguments_view=_mean(_shared(one, other) for one, other in with_view),
        arguments_record=_mean(_shared(one, other) for one, other in with_itself),
        cost=cost,
    )


class _Step(msgspec.Struct, frozen=True):
    """What an answer does: the tools that it calls, how often, and their key arguments."""

    tools: Counter[str]
    arguments: frozenset[tuple[str, str, str]]

    @classmethod
    def of(cls, response: ModelResponse) -> _Step:
        uses = tool_uses(response.content)
        return cls(
            Counter(use.name for use in uses),
            frozenset(
                (use.name, key, " ".join(str(value).split()))
                for use in uses
                for key, value in use.input.items()
                if _is_key(value)
            ),
        )


def _is_key(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= _KEY_CHARS and "\n" not in value.strip() and not _PROSE.fullmatch(value.strip())
    return isinstance(value, bool | int | float)


def _shared(one: _Step, other: _Step) -> float | None:
    """Return the share of all key arguments that both steps have."""
    every = one.arguments | other.arguments
    return len(one.arguments & other.arguments) / len(every) if every else None


def _mean(shares: Iterable[float | None]) -> float | None:
    known = [share for share in shares if share is not None]
    return sum(known) / len(known) if known else None
