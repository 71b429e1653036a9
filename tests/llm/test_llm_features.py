"""Beta features: what a request needs for them, over the wire."""

from __future__ import annotations

from typing import Any

import pytest

from repertory.errors import ThinkingMismatch
from repertory.llm import AnthropicModel, Message, ModelRequest, RetryPolicy, Text
from repertory.llm.features import compaction_request, dropping_mismatched, is_compaction, needed_betas
from repertory.llm.messages import RawBlock, Thinking
from repertory.llm.model import encode_request
from repertory.summarizer.stretches import compaction_text
from repertory.testing import open_messages_server

NAME = "claude-sonnet-5-5"
BLOCK = RawBlock({"type": "compaction", "content": "what was", "signature": "s", "later": None})


def request(**fields: Any) -> ModelRequest:
    """A short request."""
    return ModelRequest(**{"model": NAME, "messages": (Message("user", (Text("hello " * 2_000),)),), **fields})


def test_headers_follow_from_what_a_request_says() -> None:
    """Each feature needs its own; what the caller gives stays in front, once."""
    assert needed_betas(encode_request(request())) == ()
    assert needed_betas(encode_request(compaction_request(request()))) == ("compact-2026-09-04",)
    carries = request(messages=(Message("assistant", (BLOCK,)), Message("user", (Text("go on"),))))
    assert needed_betas(encode_request(carries), ("mine", "compact-2026-09-04")) == ("mine", "compact-2026-09-04")
    edits = request(options={"context_management": {"edits": []}})
    assert needed_betas(encode_request(edits)) == ("context-management-2025-06-27",)
    drops = request(options=dropping_mismatched({}))
    assert needed_betas(encode_request(drops)) == ("thinking-binding-controls-2026-08-01",)
    hurries = request(options={"output_config": {"task_budget": {"type": "tokens", "total": 40_000}}, "speed": "fast"})
    assert needed_betas(encode_request(hurries)) == ("task-budgets-2026-03-13", "fast-mode-2026-02-01")
    tells = request(options={"thinking": {"type": "adaptive", "display": "updates"}})
    assert needed_betas(encode_request(tells)) == ("thinking-display-updates-2026-08-18",)
    turn = Message("assistant", (RawBlock({"type": "fallback"}), Text("So.")))
    for handed_over in (request(options={"fallbacks": "default"}), request(messages=(*request().messages, turn))):
        assert needed_betas(encode_request(handed_over)) == ("server-side-fallback-2026-07-01",)


def test_a_compaction_request_leaves_out_what_the_provider_refuses_on_it_and_nothing_else() -> None:
    """Everything that is cached stays as it was."""
    options = {
        "context_management": {"edits": []},
        "stop_sequences": ["x"],
        "fallbacks": "default",
        "tool_choice": {"type": "any"},
        "output_config": {"format": {}, "effort": "low", "task_budget": {"total": 9, "remaining": 3}},
        "thinking": {"type": "adaptive"},
    }
    asked = compaction_request(request(options=options), instructions="briefly")
    assert asked.options == {
        "output_config": {"effort": "low", "task_budget": {"total": 9}},
        "thinking": {"type": "adaptive"},
        "compaction": {"type": "summarize", "instructions": "briefly"},
    }
    assert asked.messages == request().messages
    kept = compaction_request(request(options={"tool_choice": {"type": "auto"}}))
    assert kept.options == {"tool_choice": {"type": "auto"}, "compaction": {"type": "summarize"}}


def test_a_block_is_known_by_its_type_and_read_for_its_text() -> None:
    """Nothing else of it is looked at."""
    assert is_compaction(BLOCK)
    assert not is_compaction(Text("compaction"))
    assert compaction_text([Text("no"), BLOCK, RawBlock({"type": "compaction", "content": None})]) == "what was"


async def test_the_block_goes_back_untouched_and_is_accepted() -> None:
    """Asked for, streamed, and sent back first: the server checks it byte for byte."""
    async with open_messages_server(lambda _: "ok", thinks=True, summarizer=lambda _: "what was") as server:
        model = AnthropicModel(NAME, base_url=server.url, api_key="none")
        summary = await model.complete(compaction_request(request()))
        assert compaction_text(summary.content) == "what was"
        told = ModelRequest(
            model=NAME, messages=(Message("assistant", summary.content), Message("user", (Text("go on"),)))
        )
        assert (await model.complete(told)).stop_reason == "end_turn"
        assert [exchange.status for exchange in server.exchanges] == [200, 200]
        assert await model.count_tokens(told) < 100
        await model.aclose()


async def test_mismatched_thinking_is_an_error_of_its_own_and_can_be_dropped_on_request() -> None:
    """The same request with the option is answered, and says which block went; the model's own thinking type stays."""
    async with open_messages_server(lambda _: "ok", thinks=True) as server:
        model = AnthropicModel(
            NAME,
            base_url=server.url,
            api_key="none",
            retry=RetryPolicy(attempts=1),
            thinking={"type": "adaptive", "display": "summarized"},
        )
        answer = await model.complete(request())
        assert isinstance(answer.content[0], Thinking)
        broken = request(
            messages=(Message("user", (Text("edited"),)), Message("assistant", answer.content), *request().messages)
        )
        with pytest.raises(ThinkingMismatch, match="bound to a different conversation"):
            await model.complete(broken)
        dropping = request(messages=broken.messages, options=dropping_mismatched({}))
        response = await model.complete(dropping)
        assert [entry["path"] for entry in response.extra["input_transformations"]] == ["messages.1.content.0"]
        assert server.exchanges[-1].body["thinking"] == {
            "type": "adaptive",
            "display": "summarized",
            "block_binding": {"prefix_mismatch_behavior": "drop_block"},
        }
        assert await model.count_tokens(dropping) > 0
        await model.aclose()
