"""Answers that are broken in hundreds of ways, through the real SDK and a real socket, on both backends."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backends import RunAsync
from broken_streams import broken_answer
from repertory.errors import ModelError
from repertory.llm import (
    AnthropicModel,
    Message,
    ModelRequest,
    ModelResponse,
    RetryPolicy,
    StreamEvent,
    Text,
    estimate_tokens,
)
from repertory.llm._bounds import MOST_TOKENS
from repertory.llm.messages import Thinking
from repertory.llm.model import TextDelta, ThinkingDelta
from repertory.llm.profiles import cost_of
from repertory.testing import FunctionModel, open_messages_server
from repertory.testing.faults import Raw

NAME = "claude-sonnet-4-6"
REQUEST = ModelRequest(model=NAME, messages=(Message("user", (Text("Hello?"),)),), max_tokens=64)
ONCE = RetryPolicy(attempts=1)
TWICE = RetryPolicy(attempts=2, first_delay=0.0, total_time=1.0)
BATCH = 60


def check(response: ModelResponse) -> None:
    """An answer has the types that it says, and its bill is possible."""
    assert isinstance(response.stop_reason, str)
    assert isinstance(response.model, str)
    assert isinstance(response.response_id, str)
    assert isinstance(response.extra, dict)
    for tokens in msgspec.structs.astuple(response.usage):
        assert type(tokens) is int
        assert 0 <= tokens <= MOST_TOKENS
    for block in response.content:
        if isinstance(block, Text):
            assert isinstance(block.text, str)
        elif isinstance(block, Thinking):
            assert isinstance(block.thinking, str)
            assert isinstance(block.signature, str)


def test_a_seed_gives_the_same_answer_whatever_was_played_before() -> None:
    """So that a failure can be replayed by its number alone."""
    first = [broken_answer(seed) for seed in range(BATCH)]
    for seed in range(BATCH, 5 * BATCH):
        broken_answer(seed)
    assert [broken_answer(seed) for seed in range(BATCH)] == first


@pytest.mark.parametrize("batch", [0, 1, *(pytest.param(batch, marks=pytest.mark.nightly) for batch in range(2, 20))])
def test_a_broken_answer_is_an_error_of_ours_or_a_whole_answer(run_async: RunAsync, batch: int) -> None:
    """Nothing else ever comes out; and where a second attempt is allowed, a good answer to it is returned."""

    async def main() -> None:
        async with open_messages_server(FunctionModel(lambda _: "fine")) as server:
            once = AnthropicModel(NAME, base_url=server.url, retry=ONCE, content_idle_timeout=5)
            twice = AnthropicModel(NAME, base_url=server.url, retry=TWICE, content_idle_timeout=5)
            refused = good = again = failed = 0
            for seed in range(batch * BATCH, (batch + 1) * BATCH):
                shown: list[StreamEvent] = []
                fault = broken_answer(seed)
                server.inject(fault)
                try:
                    try:
                        check(await once.complete(REQUEST, on_event=shown.append))
                        good += 1
                    except ModelError:
                        refused += 1
                    assert all(isinstance(e.text, str) for e in shown if isinstance(e, TextDelta))
                    assert all(isinstance(e.thinking, str) for e in shown if isinstance(e, ThinkingDelta))
                    server.inject(fault)
                    try:
                        response = await twice.complete(REQUEST)
                        check(response)
                        again += response.content == (Text("fine"),)
                    except ModelError:
                        failed += 1
                except BaseException as error:
                    error.add_note(f"replay with broken_answer({seed})")
                    raise
                server._faults.clear()  # what was not asked for
            await once.aclose()
            await twice.aclose()
            assert refused > BATCH / 3  # the grammar breaks what it is meant to
            assert again > BATCH / 3  # and most of it passes
            assert good  # not everything that is odd is wrong

    run_async(main)


def events(*, usage: Any) -> Raw:
    """A good answer with this usage."""
    said = [
        {"type": "message_start", "message": {"id": "m", "model": NAME, "content": [], "usage": usage}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "fine"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage},
        {"type": "message_stop"},
    ]
    return Raw(body=b"".join(b"data: " + msgspec.json.encode(event) + b"\n\n" for event in said))


ESTIMATED = estimate_tokens(REQUEST)


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"input_tokens": -1_000_000}, ESTIMATED),
        ({"input_tokens": "many"}, ESTIMATED),
        ({"input_tokens": True}, ESTIMATED),
        ({"input_tokens": 12.0}, 12),
        ({"input_tokens": 12.5}, ESTIMATED),
        ({"input_tokens": 10**30}, MOST_TOKENS),
        ({"input_tokens": 1e300}, MOST_TOKENS),
        ({"iterations": "two"}, ESTIMATED),
        ({"iterations": [{"input_tokens": 3, "iterations": [{"input_tokens": 9}]}, None, "x"]}, 3),
        ("none today", ESTIMATED),
        (None, ESTIMATED),
        ([], ESTIMATED),
    ],
    ids=repr,
)
def test_a_bill_is_a_number_of_tokens_whatever_was_sent(run_async: RunAsync, usage: Any, tokens: int) -> None:
    """No bill is negative, fractional or beyond all reason, and a server that gives none is not taken for free."""

    async def main() -> None:
        async with open_messages_server(FunctionModel(lambda _: ""), faults=[events(usage=usage)]) as server:
            model = AnthropicModel(NAME, base_url=server.url, retry=ONCE)
            response = await model.complete(REQUEST)
            await model.aclose()
            check(response)
            assert response.content == (Text("fine"),)
            assert response.usage.prompt_tokens == tokens
            assert response.usage.output_tokens == estimate_tokens(response.content)
            assert cost_of(model.profile, response.usage) > 0

    run_async(main)
