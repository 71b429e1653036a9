"""What the strict server refuses: one spoiled request per rule, and the words that name the place."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from repertory.llm import profile_for
from repertory.testing.refusal import Refusal
from repertory.testing.rules import check_body, check_headers, check_length

FREE = profile_for("claude-sonnet-4-6")
BINDING = profile_for("claude-opus-5-5")
MARK = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}


def good() -> dict[str, Any]:
    """A request with one of everything, which the API accepts."""
    return {
        "model": "claude-sonnet-4-6",
        "max_tokens": 2048,
        "stream": True,
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "tool_choice": {"type": "auto"},
        "tools": [
            {"name": "add", "description": "Adds.", "input_schema": {"type": "object", "properties": {"a": {}}}},
            {"type": "web_search_20250305", "name": "web_search"},
        ],
        "system": [{"type": "text", "text": "Be brief.", "cache_control": HOUR}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "1 + 2?"}, {"type": "image", "source": {}}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "redacted_thinking", "data": "d"},
                    {"type": "tool_use", "id": "t1", "name": "add", "input": {}},
                    {"type": "tool_use", "id": "t2", "name": "add", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t2", "content": [{"type": "text", "text": "3"}]},
                    {
                        "type": "tool_result",
                        "tool_use_id": "t1",
                        "content": "",
                        "is_error": True,
                        "cache_control": MARK,
                    },
                    {"type": "text", "text": "Go on."},
                ],
            },
            {"role": "user", "content": "Please."},
        ],
    }


def test_a_good_request_passes() -> None:
    """Negative control of all that follows: unspoiled, the request is accepted."""
    check_body(good(), profile=FREE, betas=frozenset())
    check_body({**good(), "thinking": {"type": "adaptive"}}, profile=BINDING, betas=frozenset())
    plain = {"model": "m", "max_tokens": 1, "system": "Be brief.", "messages": [{"role": "user", "content": "hi"}]}
    check_body(plain, profile=FREE, betas=frozenset())
    counted = {key: value for key, value in good().items() if key not in ("max_tokens", "stream")}
    check_body(counted, profile=FREE, betas=frozenset(), counting=True)


def at(body: Any, path: str) -> tuple[Any, Any]:
    """The container and the key of a place such as ``messages.0.content``."""
    *way, last = (int(step) if step.isdigit() else step for step in path.split("."))
    for step in way:
        body = body[step]
    return body, last


REMOVE = object()
TEXT = {"type": "text", "text": "x"}
FIVE = [{"type": "text", "text": "x", "cache_control": MARK}] * 5

CASES: list[tuple[str, Any, str]] = [
    ("max_tokens", REMOVE, "max_tokens: Field required"),
    ("max_tokens", "9", "max_tokens: Input should be a valid integer"),
    ("max_tokens", True, "max_tokens: Input should be a valid integer"),
    ("max_tokens", 0, "max_tokens: Input should be greater than or equal to 1"),
    ("max_tokens", 128_001, "max_tokens: 128001 > 128000, which is the maximum allowed number of output tokens for "),
    ("colour", "red", "colour: Extra inputs are not permitted"),
    ("temperature", 1.0, "temperature: Extra inputs are not permitted"),
    ("context_management", {}, "context_management: Extra inputs are not permitted"),
    ("output_config", {"task_budget": {}}, "output_config.task_budget: Extra inputs are not permitted"),
    ("output_config", {"effort": "huge"}, "output_config.effort: Input should be 'low'"),
    ("tools", {}, "tools: Input should be a valid list"),
    ("tools.0", "add", "tools.0: Input should be a valid dictionary"),
    ("tools.0.name", REMOVE, "tools.0.custom.name: Field required"),
    ("tools.0.name", "a b", "tools.0.custom.name: String should match pattern '^[a-zA-Z0-9_-]{1,128}$'"),
    ("tools.0.name", "a" * 129, "tools.0.custom.name: String should match pattern"),
    ("tools.0.input_schema", REMOVE, "tools.0.custom.input_schema: Field required"),
    ("tools.0.input_schema", [], "tools.0.custom.input_schema: Input should be a valid dictionary"),
    ("tools.0.input_schema", {}, "tools.0.custom.input_schema.type: Field required"),
    ("tools.0.input_schema", {"type": "string"}, "tools.0.custom.input_schema.type: Input should be 'object'"),
    ("tools.0.input_schema.properties", ["a"], "tools.0.custom.input_schema: JSON schema is invalid."),
    ("tools.0.input_schema.properties", {"a": 1}, "tools.0.custom.input_schema: JSON schema is invalid."),
    ("tools.0.input_schema.properties", {"größe": {}}, "tools.0.custom.input_schema.properties: Property keys should"),
    ("tools.0.input_schema.anyOf", [{}], "input_schema does not support oneOf, allOf, or anyOf at the top level"),
    ("tools.0.description", 7, "tools.0.custom.description: Input should be a valid string"),
    ("tools.1", good()["tools"][0], "tools: Tool names must be unique."),
    ("tool_choice", "auto", "tool_choice: Input tag"),
    ("tool_choice", {"type": "tool", "name": "sub"}, "Tool 'sub' not found in provided tools"),
    ("thinking", {"type": "maybe"}, "thinking.type: Input should be"),
    ("thinking", {"type": "enabled"}, "thinking.enabled.budget_tokens: Field required"),
    ("thinking.budget_tokens", 1023, "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024"),
    ("thinking.budget_tokens", 2048, "`max_tokens` must be greater than `thinking.budget_tokens`"),
    ("thinking", {"type": "adaptive", "block_binding": {}}, "thinking.adaptive.block_binding: Extra inputs"),
    ("system", 7, "system: Input should be a valid list"),
    ("system", [{"type": "image"}], "system.0.type: Input should be 'text'"),
    ("system.0.text", "", "system.0.text: cache_control cannot be set for empty text blocks"),
    ("system", [{"type": "text", "text": ""}], "system: text content blocks must be non-empty"),
    ("messages", REMOVE, "messages: Field required"),
    ("messages", {}, "messages: Input should be a valid list"),
    ("messages", [], "messages: at least one message is required"),
    ("messages.0", "hi", "messages.0: Input should be a valid dictionary"),
    ("messages.0.role", "system", "messages.0.role: Input should be 'user' or 'assistant'"),
    ("messages.0.name", "x", "messages.0.name: Extra inputs are not permitted"),
    ("messages", [{"role": "assistant", "content": "hi"}], 'messages: first message must use the "user" role'),
    ("messages.0.content", REMOVE, "messages.0.content: Field required"),
    ("messages.0.content", 7, "messages.0.content: Input should be a valid list"),
    ("messages.0.content", [], "messages.0: all messages must have non-empty content except for the optional final"),
    ("messages.0.content", "", "messages.0: all messages must have non-empty content except for the optional final"),
    ("messages.0.content", " \n", "messages: text content blocks must contain non-whitespace text"),
    ("messages.0.content.0.text", "", "messages: text content blocks must be non-empty"),
    ("messages.0.content.0.text", "\n", "messages: text content blocks must contain non-whitespace text"),
    ("messages.0.content.0.text", 7, "messages.0.content.0.text.text: Input should be a valid string"),
    ("messages.0.content.0.text", REMOVE, "messages.0.content.0.text.text: Field required"),
    ("messages.0.content.0.colour", "red", "messages.0.content.0.text.colour: Extra inputs are not permitted"),
    ("messages.0.content.0.citations", [{}], "messages.0.content.0.text.citations: Extra inputs are not permitted"),
    ("messages.0.content.0", "hi", "messages.0.content.0.type: Field required"),
    ("messages.0.content.0.type", 7, "messages.0.content.0.type: Field required"),
    (
        "messages.0.content.0",
        {"type": "tool_use", "id": "a", "name": "b", "input": {}},
        "`tool_use` blocks can only be",
    ),
    ("messages.1.content.0.cache_control", MARK, "messages.1.content.0.thinking.cache_control: Extra inputs are not"),
    ("messages.1.content.0.signature", REMOVE, "messages.1.content.0.thinking.signature: Field required"),
    ("messages.1.content.0", {"type": "document"}, "messages.1.content.0: `document` blocks can only be"),
    ("messages.1.content.2.input", [], "messages.1.content.2.tool_use.input: Input should be a valid dictionary"),
    ("messages.1.content.2.id", "a b", "messages.1.content.2.tool_use.id: String should match pattern"),
    ("messages.1.content.2.name", "", "messages.1.content.2.tool_use.name: String should match pattern"),
    ("messages.1.content.3.id", "t1", "messages.1.content.3: `tool_use` ids must be unique"),
    (
        "messages.2.content.0",
        TEXT,
        "messages.2: `tool_use` ids were found without `tool_result` blocks immediately after: ",
    ),
    ("messages.2.content.0.tool_use_id", "t3", "messages.2: `tool_use` ids were found without `tool_result` blocks"),
    ("messages.2.content.0.tool_use_id", "t1", "messages.2: `tool_use` ids were found without `tool_result` blocks"),
    (
        "messages.2.content.2",
        {"type": "tool_result", "tool_use_id": "t9"},
        "messages.2.content.2: unexpected `tool_use_id` found in `tool_result` blocks: t9.",
    ),
    (
        "messages.2.content.2",
        {"type": "tool_result", "tool_use_id": "t1"},
        "messages.2.content.1: each tool_use must have a single result. Found multiple `tool_result` blocks with",
    ),
    (
        "messages.2.content.0.content",
        [{"type": "tool_use", "id": "a", "name": "b", "input": {}}],
        "messages.2.content.0.tool_result.content.0: Input tag 'tool_use'",
    ),
    ("messages.2.content.0.content", 7, "messages.2.content.0.tool_result.content: Input should be a valid list"),
    ("messages.2.content.0.content", ["x"], "messages.2.content.0.tool_result.content.0.type: Field required"),
    ("messages.3", good()["messages"][1], "`tool_use` ids must be unique"),
    ("messages.3.content", FIVE, "A maximum of 4 blocks with cache_control may be provided. Found 7."),
    (
        "messages.3.content",
        [{**TEXT, "cache_control": HOUR}],
        "messages.3.content.0.cache_control.ttl: a ttl='1h' cache_control block must not come after a ttl='5m'",
    ),
    ("system.0.cache_control", {"type": "for ever"}, "system.0.cache_control.type: Input should be 'ephemeral'"),
    ("system.0.cache_control", {"type": "ephemeral", "ttl": "1d"}, "system.0.cache_control.ttl: Input should be '5m'"),
    ("cache_control", HOUR, "cache_control.cache_control.ttl: a ttl='1h'"),
]


@pytest.mark.parametrize(("path", "value", "says"), CASES, ids=[f"{n}-{path}" for n, (path, _, _) in enumerate(CASES)])
def test_a_spoiled_request_is_refused(path: str, value: Any, says: str) -> None:
    """Each rule catches what breaks it, and names the place as the real API does."""
    body = copy.deepcopy(good())
    container, key = at(body, path)
    if value is REMOVE:
        del container[key]
    else:
        container[key] = value
    with pytest.raises(Refusal) as caught:
        check_body(body, profile=FREE, betas=frozenset())
    assert says in caught.value.message
    assert (caught.value.status, caught.value.kind) == (400, "invalid_request_error")


def test_a_call_without_its_result_poisons_the_end_too() -> None:
    """A history that ends in an open call is refused, which is what a crash leaves behind."""
    body = good()
    body["messages"] = body["messages"][:2]
    with pytest.raises(Refusal, match=r"messages\.1: `tool_use` ids were found without"):
        check_body(body, profile=FREE, betas=frozenset())


@pytest.mark.parametrize(
    ("model", "thinking"),
    [
        ("claude-sonnet-4-6", {"type": "disabled"}),
        ("claude-opus-5-5", {"type": "adaptive"}),
        ("claude-sonnet-4-5", {"type": "enabled", "budget_tokens": 1024}),
    ],
)
def test_an_answer_is_begun_for_old_models_only(model: str, thinking: dict[str, Any]) -> None:
    """For those before 4.6, and only if they do not think; the optional final message may also be empty."""
    for beginning in ("It is", ""):
        body = {**good(), "thinking": {"type": "disabled"}}
        body["messages"].append({"role": "assistant", "content": beginning})
        for old in ("claude-sonnet-4-5", "qwen3"):
            check_body(body, profile=profile_for(old), betas=frozenset())
        with pytest.raises(Refusal, match="must end with a user message"):
            check_body({**body, "thinking": thinking}, profile=profile_for(model), betas=frozenset())


@pytest.mark.parametrize(
    ("model", "taken"),
    [
        ("claude-haiku-4-5-20251001", "enabled disabled"),
        ("claude-opus-4-6", "adaptive enabled disabled"),
        ("claude-opus-5", "adaptive disabled"),
        ("anthropic/claude-opus-5.5", "adaptive"),
        ("claude-mythos-5-1", "adaptive"),
        ("claude-sonnet-5-5", "adaptive between_tools"),
        ("qwen3", "adaptive enabled disabled between_tools"),
    ],
)
def test_a_model_takes_only_its_kinds_of_thinking(model: str, taken: str) -> None:
    """Others are refused in the API's words, as is a forced tool beside a budget, or on a model that always thinks."""
    kinds = {kind: {"type": kind} for kind in ("adaptive", "disabled", "between_tools")}
    kinds["enabled"] = {"type": "enabled", "budget_tokens": 1024}
    forced = {"tool_choice": {"type": "any"}}
    for kind, thinking in kinds.items():
        body = {**good(), "thinking": thinking}
        if kind in taken.split():
            check_body(body, profile=profile_for(model), betas=frozenset())
        else:
            with pytest.raises(Refusal, match=r"thinking.* is not supported"):
                check_body(body, profile=profile_for(model), betas=frozenset())
            continue
        if kind != "enabled" and "disabled" in taken:
            check_body(body | forced, profile=profile_for(model), betas=frozenset())
        else:
            with pytest.raises(Refusal, match="Thinking may not be enabled"):
                check_body(body | forced, profile=profile_for(model), betas=frozenset())
    del body["thinking"]
    if "disabled" not in taken:
        with pytest.raises(Refusal, match="Thinking may not be enabled"):
            check_body(body | forced, profile=profile_for(model), betas=frozenset())


def test_at_the_highest_efforts_a_new_model_thinks() -> None:
    """There thinking cannot be disabled; older models do not mind."""
    body = {**good(), "thinking": {"type": "disabled"}, "output_config": {"effort": "max"}}
    check_body(body, profile=FREE, betas=frozenset())
    check_body({**body, "output_config": {"effort": "high"}}, profile=profile_for("claude-opus-5"), betas=frozenset())
    with pytest.raises(Refusal, match="'disabled' is not supported with"):
        check_body(body, profile=profile_for("claude-opus-5"), betas=frozenset())


def test_neighbouring_messages_of_one_role_are_one() -> None:
    """The API joins them, so results may come in two messages."""
    body = good()
    first, second, *rest = body["messages"][2]["content"]
    body["messages"][2:3] = [{"role": "user", "content": [first]}, {"role": "user", "content": [second, *rest]}]
    check_body(body, profile=FREE, betas=frozenset())


def test_a_beta_opens_its_fields() -> None:
    """What is unknown without the header is accepted with it, and only then."""
    body = {**good(), "context_management": {"edits": []}, "thinking": {"type": "adaptive", "block_binding": {}}}
    check_body(
        body, profile=FREE, betas=frozenset({"context-management-2025-06-27", "thinking-binding-controls-2026-08-01"})
    )


HANDED_OVER = [TEXT, {"type": "fallback"}, TEXT]


@pytest.mark.parametrize(
    ("fields", "content", "says"),
    [
        ({"fallbacks": "default"}, HANDED_OVER, ""),
        ({"fallbacks": [{"model": "a"}, {"model": "b", "max_tokens": 9}]}, [TEXT], ""),
        ({"fallbacks": "opus"}, [TEXT], "fallbacks: Input should be"),
        ({"fallbacks": []}, [TEXT], "fallbacks: Input should be"),
        ({"fallbacks": [{"model": "a"}, {"model": "a"}]}, [TEXT], "distinct"),
        ({"fallbacks": [{"model": "claude-sonnet-4-6"}]}, [TEXT], "distinct"),
        ({}, [{"type": "connector_text"}, *HANDED_OVER], "messages.1.content.0: `connector_text` blocks before"),
        ({}, [*HANDED_OVER, {"type": "server_tool_use", "id": "s"}, *HANDED_OVER], "`server_tool_use` blocks before"),
    ],
)
def test_what_a_fallback_leaves_behind_is_refused(
    fields: dict[str, Any], content: list[dict[str, Any]], says: str
) -> None:
    """The parameter names other models; and a turn goes back without what the first model must not have said."""
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": content}]
    body = {**good(), "messages": [*messages, *messages[:1]], **fields}
    if says:
        with pytest.raises(Refusal, match=re.escape(says)):
            check_body(body, profile=FREE, betas=frozenset({"server-side-fallback-2026-07-01"}))
    else:
        check_body(body, profile=FREE, betas=frozenset({"server-side-fallback-2026-07-01"}))
        with pytest.raises(Refusal, match="fallback"):
            check_body(body, profile=FREE, betas=frozenset())


def test_tools_are_needed_to_be_chosen() -> None:
    """A forced choice without tools makes no sense."""
    body = {
        "model": "m",
        "max_tokens": 1,
        "messages": [{"role": "user", "content": "x"}],
        "tool_choice": {"type": "any"},
    }
    with pytest.raises(Refusal, match="may only be specified while providing tools"):
        check_body(body, profile=FREE, betas=frozenset())


def test_counting_takes_fewer_fields() -> None:
    """The count endpoint refuses what does not bear on a count."""
    with pytest.raises(Refusal, match="max_tokens: Extra inputs"):
        check_body(good(), profile=FREE, betas=frozenset(), counting=True)


@pytest.mark.parametrize(
    ("headers", "status", "says"),
    [
        ({}, 401, "x-api-key header is required"),
        ({"x-api-key": "wrong"}, 401, "invalid x-api-key"),
        ({"authorization": "Bearer wrong"}, 401, "invalid x-api-key"),
        ({"x-api-key": "right"}, 400, "anthropic-version: header is required"),
        ({"x-api-key": "right", "anthropic-version": "2026-10-21"}, 400, "content-type"),
    ],
)
def test_headers_are_checked_first(headers: dict[str, str], status: int, says: str) -> None:
    """The key, then the version, then the type of the body; the body is not looked at before."""
    with pytest.raises(Refusal, match=says) as caught:
        check_headers(headers, api_key="right")
    assert caught.value.status == status


def test_good_headers_pass() -> None:
    """Either way of giving the key, or none where none is required."""
    rest = {"anthropic-version": "2026-10-21", "content-type": "application/json"}
    check_headers({"x-api-key": "right", **rest}, api_key="right")
    check_headers({"authorization": "Bearer right", **rest}, api_key="right")
    check_headers(rest, api_key=None)


def test_prompt_and_answer_share_the_window() -> None:
    """Beyond it in two ways, each with its own words; just within passes."""
    window = FREE.context_window
    check_length(window - 2048, good(), FREE)
    with pytest.raises(Refusal, match=f"prompt is too long: {window + 1} tokens > {window} maximum"):
        check_length(window + 1, good(), FREE)
    with pytest.raises(Refusal, match="exceed context limit"):
        check_length(window - 2047, good(), FREE)
