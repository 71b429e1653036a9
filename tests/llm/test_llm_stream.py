"""Putting an answer together from its events, however they are cut and whatever unknown they bring."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory.errors import ModelResponseInvalid
from repertory.llm import ModelResponse, Text, ToolUse, Usage
from repertory.llm._stream import Assembler, EventReader, response_of, usage_of
from repertory.llm.messages import RawBlock, Thinking
from repertory.llm.model import TextDelta, ThinkingDelta, ToolUseStarted
from repertory.testing.wire import encode_event, encode_response, events_of

words = st.text(max_size=120)
inputs = st.dictionaries(
    st.text(max_size=5), st.integers(-(10**6), 10**6) | words | st.lists(words, max_size=2), max_size=3
)
blocks = st.one_of(
    st.builds(Text, words),
    st.builds(Thinking, words, words),
    st.builds(ToolUse, words, words, inputs),
    st.builds(lambda text: RawBlock({"type": "compaction", "content": text}), words),
)
counts = st.integers(0, 10**7)
usages = st.builds(Usage, counts, counts, counts, counts, counts)
responses = st.builds(
    ModelResponse,
    content=st.lists(blocks, max_size=5).map(tuple),
    stop_reason=st.sampled_from(["end_turn", "tool_use", "refusal"]),
    usage=usages,
    model=words,
    response_id=words,
    extra=st.just({}) | st.just({"input_transformations": []}),
)


def assemble(data: bytes, cuts: list[int] | None = None) -> tuple[ModelResponse, list[Any]]:
    """Read a body in pieces."""
    reader, answer, pieces = EventReader(), Assembler(), []
    bounds = [0, *sorted(cut % (len(data) + 1) for cut in cuts or ()), len(data)]
    for start, end in pairwise(bounds):
        for event in reader.feed(data[start:end]):
            pieces.extend(answer.feed(event))
    return answer.finish(), pieces


@given(responses, st.lists(st.integers(0, 10**6), max_size=8), st.booleans())
def test_an_answer_survives_being_streamed_in_any_pieces(response: ModelResponse, cuts: list[int], crlf: bool) -> None:
    """Server and client agree on every block, the usage with its split by TTL, and all other fields."""
    data = b"".join(encode_event(event) for event in events_of(response))
    if crlf:
        data = data.replace(b"\n", b"\r\n")
    whole, pieces = assemble(data, cuts)
    assert whole == response
    assert "".join(p.text for p in pieces if isinstance(p, TextDelta)) == "".join(
        block.text for block in response.content if isinstance(block, Text)
    )
    assert "".join(p.thinking for p in pieces if isinstance(p, ThinkingDelta)) == "".join(
        block.thinking for block in response.content if isinstance(block, Thinking)
    )
    assert [p.id for p in pieces if isinstance(p, ToolUseStarted)] == [
        block.id for block in response.content if isinstance(block, ToolUse)
    ]


@given(responses)
def test_an_answer_survives_without_streaming(response: ModelResponse) -> None:
    """The JSON form says the same as the events."""
    wire = msgspec.json.decode(msgspec.json.encode(encode_response(response)))
    assert response_of(wire) == response


START: dict[str, Any] = {"type": "message_start", "message": {"id": "m", "model": "x", "content": [], "usage": {}}}
STOP: dict[str, Any] = {"type": "message_stop"}


def block(begun: dict[str, Any], index: int = 0) -> dict[str, Any]:
    """The event with which a block begins."""
    return {"type": "content_block_start", "index": index, "content_block": begun}


def delta(kind: str, piece: str, index: int = 0) -> dict[str, Any]:
    """A piece of text or thinking."""
    return {"type": "content_block_delta", "index": index, "delta": {"type": f"{kind}_delta", kind: piece}}


def json_delta(piece: str, index: int = 0) -> dict[str, Any]:
    """A piece of a call's arguments."""
    said = {"type": "input_json_delta", "partial_json": piece}
    return {"type": "content_block_delta", "index": index, "delta": said}


def feed(*events: dict[str, Any]) -> ModelResponse:
    """Assemble an answer from events."""
    answer = Assembler()
    for event in events:
        answer.feed(event)
    return answer.finish()


def test_deltas_and_events_of_next_year_are_carried_along() -> None:
    """An unknown delta grows strings and sets the rest; unknown events are left aside."""
    response = feed(
        START,
        {"type": "content_block_start", "index": 0, "content_block": {"type": "sketch", "lines": "a"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "sketch_delta", "lines": "b", "size": 3}},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": "x"}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "citations_delta", "citation": {"n": 1}}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "citations_delta", "citation": {"n": 2}}},
        {"type": "content_block_stop", "index": 1},
        {"type": "weather", "temperature": 12},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "context_management": {"applied_edits": []}},
        STOP,
    )
    assert response.content == (
        RawBlock({"type": "sketch", "lines": "ab", "size": 3}),
        Text("x", extra={"citations": [{"n": 1}, {"n": 2}]}),
    )
    assert response.extra == {"context_management": {"applied_edits": []}}


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ([], "before its stop reason"),
        ([START], "before its stop reason"),
        ([STOP], "before its stop reason"),
        ([START, START], "within an answer"),
        ([{"no": "type"}], "malformed"),
        ([START, json_delta('{"a"', index=3)], "input_json_delta for no block"),
        ([START, block({"type": "text", "text": ""}), json_delta('{"a"')], "for text block"),
    ],
)
def test_a_stream_that_makes_no_sense_is_refused(events: list[dict[str, Any]], says: str) -> None:
    """A truncated or shuffled stream never passes for an answer."""
    with pytest.raises(ModelResponseInvalid, match=says):
        feed(*events)


TEXT, CALL = {"type": "text", "text": ""}, {"type": "tool_use", "id": "t", "name": "f"}
CALLED = ToolUse("t", "f", {"a": 1})


@pytest.mark.parametrize(
    ("events", "content"),
    [
        ([block(TEXT), delta("text", "Hi"), block(CALL, 1), json_delta('{"a":1}', 1)], (Text("Hi"), CALLED)),
        ([START, block(CALL), json_delta('{"a":1}'), block(TEXT), delta("text", "Hi")], (CALLED, Text("Hi"))),
        ([START, block(CALL, 1), json_delta('{"a":1}', 1), block(TEXT), delta("text", "Hi")], (CALLED, Text("Hi"))),
        ([START, delta("text", "H"), delta("text", "i")], (Text("Hi"),)),
        ([START, block(TEXT), delta("thinking", "h"), delta("thinking", "m")], (Text(""), Thinking("hm"))),
        ([START, block({**CALL, "input": None})], (ToolUse("t", "f", {}),)),
        ([START, block(CALL)], (ToolUse("t", "f", {}),)),
    ],
    ids=["no start", "an index twice", "an index late", "no block", "another kind", "null", "no arguments"],
)
def test_a_stream_that_was_translated_carelessly_is_read(
    events: list[dict[str, Any]], content: tuple[Any, ...]
) -> None:
    """llama.cpp, LiteLLM and others begin no message or block, use an index twice, or leave out empty arguments."""
    assert feed(*events, STOP).content == content


def test_the_name_of_an_event_says_what_it_is_if_its_data_does_not() -> None:
    """A gateway's error may hold no more than words."""
    (event,) = EventReader().feed(b'event: error\r\ndata: {"message": "out of memory"}\r\n\r\n')
    assert event == {"type": "error", "message": "out of memory"}


def call_in_pieces(*pieces: str, stop_reason: str = "tool_use") -> ModelResponse:
    """An answer with one tool call, its arguments in these pieces."""
    return feed(
        START,
        block({"type": "text", "text": "Now."}),
        block({"type": "tool_use", "id": "t", "name": "f", "input": {}}, 1),
        *(json_delta(piece, 1) for piece in pieces),
        {"type": "message_delta", "delta": {"stop_reason": stop_reason}, "usage": {"output_tokens": 9}},
        STOP,
    )


def test_the_arguments_of_a_call_come_in_pieces() -> None:
    """JSON is read only when it is whole; no pieces at all mean no arguments."""
    assert call_in_pieces('{"a"', ": 1}").content[1] == ToolUse("t", "f", {"a": 1})
    assert call_in_pieces("").content[1] == ToolUse("t", "f", {})


def test_half_a_character_spoils_neither_an_answer_nor_a_call() -> None:
    """A gateway in JavaScript may cut a text, or a model write an escape, in the middle of a surrogate pair."""
    half = rb'{"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "a \ud83d"}}'
    (event,) = EventReader().feed(b"data: " + half + b"\n\n")
    assert feed(START, event, STOP).content == (Text("a \N{REPLACEMENT CHARACTER}"),)
    call = call_in_pieces(r'{"a": "\ud83d"}').content[1]
    assert call == ToolUse("t", "f", {"a": "\N{REPLACEMENT CHARACTER}"})


@pytest.mark.parametrize("stop_reason", ["tool_use", "max_tokens", "refusal"])
@pytest.mark.parametrize(
    ("pieces", "came"),
    [(['{"a"'], '{"a"'), (["[1", "]"], [1]), (["nul", "l"], None), (['{"a":' * 5_000], '{"a":' * 5_000)],
    ids=["half", "a list", "null", "too deep"],
)
def test_a_call_whose_arguments_are_no_json_object_is_handed_on_as_it_came(
    pieces: list[str], came: Any, stop_reason: str
) -> None:
    """It is no call that anybody could make by mistake, and the rest of the answer stands."""
    response = call_in_pieces(*pieces, stop_reason=stop_reason)
    assert response.content == (
        Text("Now."),
        RawBlock({"type": "tool_use", "id": "t", "name": "f", "input": came}),
    )
    assert response.stop_reason == stop_reason
    assert response.usage.output_tokens == 9


@pytest.mark.parametrize(
    ("raw", "usage"),
    [
        ({}, Usage()),
        ({"input_tokens": 1, "output_tokens": 2, "cache_read_input_tokens": None}, Usage(1, 2)),
        ({"cache_creation_input_tokens": 10}, Usage(cache_write_tokens=10)),
        (
            {"cache_creation_input_tokens": 10, "cache_creation": {"ephemeral_1h_input_tokens": 4}},
            Usage(cache_write_tokens=6, cache_write_1h_tokens=4),
        ),
        ({"cache_creation": {"ephemeral_5m_input_tokens": 3}}, Usage(cache_write_tokens=3)),
        (
            {"input_tokens": 5, "iterations": [{"input_tokens": 5}, {"input_tokens": 7, "output_tokens": 2}]},
            Usage(12, 2),
        ),
        (
            {
                "input_tokens": 4,
                "iterations": [
                    {"type": "message", "input_tokens": 5, "output_tokens": 0},
                    {"type": "fallback_message", "input_tokens": 4, "output_tokens": 3},
                ],
            },
            Usage(4, 3),
        ),
    ],
)
def test_usage_is_read_as_it_is_billed(raw: dict[str, Any], usage: Usage) -> None:
    """The split of cache writes by TTL, the iterations that the top level leaves out, and none that is not billed."""
    assert usage_of(raw) == usage


@pytest.mark.parametrize(
    ("stop_reason", "usage"),
    [("end_turn", Usage(input_tokens=9, output_tokens=7, cache_read_tokens=500)), ("refusal", Usage(output_tokens=7))],
)
def test_a_prompt_that_was_billed_stays_so_where_the_end_of_the_stream_says_0(stop_reason: str, usage: Usage) -> None:
    """Gateways write 0 for what they do not repeat; only what was declined is not billed after all."""
    begun = {"input_tokens": 9, "cache_read_input_tokens": 500, "output_tokens": 1}
    ended = {"input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 7}
    response = feed(
        {"type": "message_start", "message": {"content": [], "usage": begun}},
        {"type": "message_delta", "delta": {"stop_reason": stop_reason}, "usage": ended},
        STOP,
    )
    assert response.usage == usage


def test_an_answer_that_is_none_is_refused() -> None:
    """A gateway's JSON without content is not an empty answer."""
    with pytest.raises(ModelResponseInvalid, match="not a message"):
        response_of({"hello": "world"})
