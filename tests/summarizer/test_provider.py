"""The provider's own summary: asked for once, stored as it came, or not at all."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from summarizer_scenes import open_scene

from repertory.errors import ModelUnavailable
from repertory.llm import Message, ModelRequest, ModelResponse, Text, Usage
from repertory.llm.messages import RawBlock
from repertory.llm.model import Breakpoint, encode_request
from repertory.record.requests import sent_body
from repertory.summarizer import SummaryFailed, SummaryReady
from repertory.testing import FunctionModel

BLOCK = RawBlock({"type": "compaction", "content": "GOAL: measure the tides.", "signature": "abc"})
SENT = ModelRequest(model="m", messages=(Message("user", (Text("Measure. " * 500),)),))


def provider(answer: Any) -> tuple[FunctionModel, list[ModelRequest]]:
    """A model with one answer; and what it is asked."""
    model = FunctionModel(lambda request: answer)
    return model, model.requests


def good(*blocks: Any, stop_reason: str = "compaction") -> ModelResponse:
    """An answer to a compaction request."""
    return ModelResponse(
        content=blocks, stop_reason=stop_reason, usage=Usage(cache_read_tokens=1_000, output_tokens=50)
    )


async def test_the_signed_block_is_stored_as_it_came() -> None:
    """Asked with exactly the request, durable before anyone is told, its call in the log."""
    model, asked = provider(good(BLOCK))
    async with open_scene() as scene:
        ledger = await scene.work(6)
        scene.ask(ledger, models=(model,), request=SENT)
        (answer,) = await scene.wait_heard(1)
        assert isinstance(answer, SummaryReady)
        assert (answer.summary.strategy, answer.summary.content) == ("provider", (BLOCK,))
        assert answer.summary.tokens < 20
        assert (await scene.journal.read_summaries("run-1"))[-1] == answer.summary
        (call,) = await scene.journal.read_model_calls("run-1")
        assert call.called.purpose == "summary"
        assert call.replied is not None
        assert call.replied.usage.cache_read_tokens == 1_000
    assert asked[0].messages == SENT.messages
    assert asked[0].options["compaction"]["type"] == "summarize"
    assert "Do not call tools" in asked[0].options["compaction"]["instructions"]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (good(stop_reason="tool_use"), "stop reason 'tool_use'"),
        (good(stop_reason="refusal"), "stop reason 'refusal'"),
        (good(BLOCK, BLOCK), "2 blocks"),
        (good(RawBlock({"type": "compaction", "content": None})), "no summary came"),
        (good(RawBlock({"type": "compaction", "content": "x" * 9_000, "signature": "s"})), "not smaller"),
        (ModelUnavailable("overloaded"), "overloaded"),
    ],
)
async def test_what_is_no_summary_is_refused_and_nobody_else_writes_one(answer: Any, words: str) -> None:
    """One attempt, one failure counted, no extractive text in its place: that would be an illegal edit."""
    model, asked = provider(answer)
    async with open_scene() as scene:
        scene.ask(await scene.work(6), models=(model,), request=SENT)
        (heard,) = await scene.wait_heard(1)
        assert isinstance(heard, SummaryFailed)
        assert words in heard.reason
        assert await scene.journal.read_summaries("run-1") == []
    assert len(asked) == 1


async def test_a_provider_that_hangs_is_given_up(autojump_clock: Any) -> None:
    """After its deadline."""

    async def hang(_: ModelRequest) -> Any:
        import trio

        await trio.sleep_forever()

    async with open_scene(timeout=400.0) as scene:
        scene.ask(await scene.work(6), models=(FunctionModel(hang),), request=SENT)
        (heard,) = await scene.wait_heard(1)
    assert isinstance(heard, SummaryFailed)
    assert "TimeoutError" in heard.reason


async def test_the_request_is_kept_without_repeating_the_ledger() -> None:
    """It is read back as it was sent, cache markers listed apart."""
    model, asked = provider(good(BLOCK))
    async with open_scene() as scene:
        snapshot = (await scene.work(6)).snapshot()
        messages = tuple(Message(entry.role, entry.content) for entry in snapshot)
        sent = ModelRequest(model="m", messages=messages, breakpoints=(Breakpoint(message=2),))
        scene.ask(scene.ledgers["run-1"], models=(model,), request=sent)
        await scene.wait_heard(1)
        (row,) = await scene.journal.read_model_calls("run-1")
        whole = await scene.journal.read_request("run-1", row.called.call)
    assert sent_body(whole) == encode_request(asked[0])
    assert len(msgspec.json.encode(row.called.body["messages"])) * 5 < len(msgspec.json.encode(whole["messages"]))


async def test_a_signed_summary_may_follow_a_models_own() -> None:
    """On a model whose past is free to edit both kinds can be asked for; each stands for itself."""
    model, _ = provider(good(BLOCK))
    async with open_scene() as scene:
        ledger = await scene.work(6)
        scene.ask(ledger)
        await scene.wait_heard(1)
        scene.ask(ledger, models=(model,), request=SENT)
        scene.ask(ledger, models=(model,), request=SENT)
        _, signed, *_ = await scene.wait_heard(2)
    assert isinstance(signed, SummaryReady)
    assert (signed.summary.strategy, signed.summary.key) == ("provider", "")
