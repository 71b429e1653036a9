"""Requests that no API would take: whatever a client sends, the strict server answers, and says what was wrong."""

from __future__ import annotations

import copy
import http.client
import json
from collections.abc import Iterator
from typing import Any

import anyio
import anyio.to_thread
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends import RunAsync
from patience import PATIENCE
from repertory.llm import profile_for
from repertory.llm.features import COMPACT, CONTEXT_EDITING, TASK_BUDGETS, THINKING_CONTROLS
from repertory.llm.messages import Thinking, encode_block
from repertory.testing import FunctionModel, open_messages_server
from repertory.testing.binding import Binder

MODEL = "claude-sonnet-4-6"
HEADERS = {
    "content-type": "application/json",
    "anthropic-version": "2026-10-21",
    "anthropic-beta": ",".join((COMPACT, CONTEXT_EDITING, TASK_BUDGETS, THINKING_CONTROLS)),
}
MARK = {"type": "ephemeral", "ttl": "1h"}
ASKED: dict[str, Any] = {
    "model": MODEL,
    "system": [{"type": "text", "text": "s", "cache_control": MARK}],
    "tools": [
        {"name": "t", "description": "d", "input_schema": {"type": "object", "properties": {"a": {"type": "string"}}}},
        {"type": "memory_20250818", "name": "memory", "cache_control": MARK},
    ],
    "messages": [{"role": "user", "content": "hi"}],
}
[THOUGHT] = Binder(0).sign([Thinking("hm")], body=ASKED, model=MODEL)
PLAIN: dict[str, Any] = {
    **ASKED,
    "max_tokens": 5000,
    "stream": False,
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {
        "type": "enabled",
        "budget_tokens": 1024,
        "block_binding": {"prefix_mismatch_behavior": "drop_block"},
    },
    "messages": [
        *ASKED["messages"],
        {
            "role": "assistant",
            "content": [encode_block(THOUGHT), {"type": "tool_use", "id": "a", "name": "t", "input": {}}],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "a",
                    "is_error": False,
                    "content": [
                        {"type": "text", "text": "r", "cache_control": MARK},
                        {"type": "image", "source": {"type": "url", "url": "x"}},
                        {"type": "document", "content": [{"type": "text", "text": "p"}]},
                    ],
                }
            ],
        },
    ],
}
SUMMARY = Binder(0).sign_summary("so far", body=ASKED, profile=profile_for(MODEL)).raw
FIELD = {"type": "string", "enum": ["x"]}
REQUESTS: list[dict[str, Any]] = [
    {
        **PLAIN,
        "context_management": {
            "edits": [
                {"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 1}},
                {
                    "type": "clear_tool_uses_20250919",
                    "trigger": {"type": "input_tokens", "value": 1},
                    "keep": {"type": "tool_uses", "value": 0},
                    "clear_at_least": {"type": "input_tokens", "value": 1},
                    "exclude_tools": ["x"],
                    "clear_tool_inputs": True,
                },
            ]
        },
    },
    {
        **ASKED,
        "max_tokens": 5000,
        "tool_choice": {"type": "auto"},
        "compaction": {"type": "summarize", "instructions": "x"},
        "output_config": {"effort": "low", "task_budget": {"total": 5}},
    },
    {
        **ASKED,
        "max_tokens": 5000,
        "stream": True,
        "tool_choice": {"type": "tool", "name": "t"},
        "metadata": {"user_id": "u"},
        "stop_sequences": ["x"],
        "messages": [{"role": "user", "content": [SUMMARY, {"type": "text", "text": "go on"}]}],
        "output_config": {
            "format": {
                "type": "json_schema",
                "schema": {
                    "type": "object",
                    "properties": {
                        "a": FIELD,
                        "b": {"type": "array", "items": {"$ref": "#/$defs/c"}, "minItems": 1},
                        "d": {"anyOf": [FIELD, {"type": "null"}]},
                        "e": {"type": "string", "format": "date"},
                    },
                    "required": ["a"],
                    "additionalProperties": False,
                    "$defs": {"c": FIELD},
                },
            }
        },
    },
]
COUNTED = [
    {name: value for name, value in body.items() if name in ("model", "system", "tools", "messages", "thinking")}
    for body in REQUESTS
]


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in a JSON value, but for the whole of it."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield (*above, key)
        yield from places(each, (*above, key))


def spoiled(body: dict[str, Any], place: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """A copy with another value at a place."""
    whole = copy.deepcopy(body)
    holder: Any = whole
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    return whole


VALUES = st.one_of(
    st.sampled_from([None, 0, 5, -1, 10**40, 1.5, "", "x", True, False, [], {}, [None], [5], ["x"], [[]], [{}]]),
    st.sampled_from(
        [{"a": 1}, {"type": 5}, {"type": "x"}, {"type": []}, [{"type": "text"}], [{"type": "x", "content": [5]}]]
    ),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8"), max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["type", "content", "name", "cache_control", "$ref"]), inner, max_size=3)
        ),
        max_leaves=5,
    ),
)


@st.composite
def malformed(draw: st.DrawFn) -> tuple[bool, dict[str, Any]]:
    """A good request with one or two of its values replaced; whether its tokens are only to be counted."""
    counting = draw(st.booleans())
    body = draw(st.sampled_from(COUNTED if counting else REQUESTS))
    for _ in range(draw(st.integers(1, 2))):
        body = spoiled(body, draw(st.sampled_from(list(places(body)))), draw(VALUES))
    return counting, body


def post(url: str, body: bytes, *, counting: bool = False) -> tuple[int, str]:
    """Ask as a plain client does, from a plain thread."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=PATIENCE)
    try:
        connection.request("POST", "/v1/messages/count_tokens" if counting else "/v1/messages", body, HEADERS)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


async def answers(*bodies: bytes, counting: bool = False) -> list[tuple[int, str]]:
    """What a server says to some requests."""
    async with open_messages_server(FunctionModel(lambda _: "ok")) as server:
        with anyio.fail_after(PATIENCE):
            return [
                await anyio.to_thread.run_sync(lambda body=body: post(server.url, body, counting=counting))
                for body in bodies
            ]


def check_refusal(status: int, text: str) -> None:
    """That an answer is the API's error for a malformed request, with words in it."""
    answer = json.loads(text)
    assert (status, answer["type"], answer["error"]["type"]) == (400, "error", "invalid_request_error")
    assert answer["error"]["message"]
    assert answer["request_id"].startswith("req_")


@pytest.mark.parametrize("counting", [False, True])
def test_the_requests_that_are_spoiled_are_good_ones(run_async: RunAsync, *, counting: bool) -> None:
    """Negative control of what follows: as they are, each gets an answer."""

    async def main() -> None:
        bodies = COUNTED if counting else REQUESTS
        answered = await answers(*(json.dumps(body).encode() for body in bodies), counting=counting)
        assert [status for status, _ in answered] == [200] * len(bodies), answered

    run_async(main)


@given(malformed())
def test_whatever_stands_in_a_request_it_is_answered_or_refused(drawn: tuple[bool, dict[str, Any]]) -> None:
    """The server never breaks on a value of another type: each part is looked at before it is used."""
    counting, body = drawn
    [(status, text)] = anyio.run(lambda: answers(json.dumps(body).encode(), counting=counting), backend="trio")
    if status == 404:  # a model of another name
        assert body["model"] != MODEL
    elif status != 200:
        check_refusal(status, text)


@pytest.mark.parametrize("levels", [100, 900, 980, 2_000, 100_000])
@pytest.mark.parametrize(
    ("place", "begin", "end"),
    [
        ('"tools": [{"name": "t", "input_schema": {"type": "object", "default": ?}}]', "[", "]"),
        ('"output_config": {"format": {"type": "json_schema", "schema": ?}}', '{"type": "array", "items": ', "}"),
        ('"messages": [{"role": "user", "content": ?}]', '[{"type": "x", "content": ', "}]"),
        ('"metadata": {"a": ?}', "[", "]"),
    ],
)
def test_what_is_nested_deep_is_answered_or_refused(
    run_async: RunAsync, place: str, begin: str, end: str, levels: int
) -> None:
    """At whatever depth Python gives up on reading, checking or counting, the client is told."""

    async def main() -> None:
        value = begin * levels + '{"type": "string"}' + end * levels
        asked = '{"model": "claude-sonnet-4-6", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}], '
        [(status, text)] = await answers(f"{asked}{place.replace('?', value)}}}".encode())
        if status != 200:
            check_refusal(status, text)
            assert "nested too deep" in text

    run_async(main)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff", b'{"model": "\xff"}', b'{"model": "\\ud800 and more"}', b'{"a": 1e999}']
)
def test_bytes_that_are_no_json_are_refused(run_async: RunAsync, body: bytes) -> None:
    """Also those that are no UTF-8, and halves of characters."""

    async def main() -> None:
        [(status, text)] = await answers(body)
        check_refusal(status, text)
        assert "not valid JSON" in text

    run_async(main)
