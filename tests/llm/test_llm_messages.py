"""Blocks and messages: reading and writing them loses nothing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory._json_text import canonical_json
from repertory.llm import Message, Text, ToolResult, ToolUse, text_of
from repertory.llm.messages import (
    Image,
    RawBlock,
    RedactedThinking,
    Thinking,
    decode_block,
    decode_content,
    encode_block,
    encode_message,
    tool_uses,
)

words = st.text(max_size=20)
names = st.text(alphabet="abcdefgh_", min_size=1, max_size=8)
json_values: st.SearchStrategy[Any] = st.recursive(
    st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)
json_objects = st.dictionaries(names, json_values, max_size=4)
extras = st.none() | st.dictionaries(names.map(lambda name: f"x_{name}"), json_values, min_size=1, max_size=3)

texts = st.builds(Text, words, extras)
images = st.builds(Image, json_objects, extras)
raws = st.builds(lambda kind, rest: RawBlock({**rest, "type": f"new_{kind}"}), names, json_objects)
results = st.builds(
    ToolResult,
    words,
    st.one_of(words, st.lists(texts | images | raws, max_size=3).map(tuple)),
    st.booleans(),
    extras,
)
blocks = st.one_of(
    texts,
    images,
    raws,
    results,
    st.builds(Thinking, words, words, extras),
    st.builds(RedactedThinking, words, extras),
    st.builds(ToolUse, words, words, json_objects, extras),
)


@given(blocks)
def test_a_block_survives_being_written_and_read(block: Any) -> None:
    """Encoding and decoding are inverse, for every kind of block, unknown fields included."""
    wire = msgspec.json.decode(canonical_json(encode_block(block)))
    assert decode_block(wire) == block


@given(st.one_of(json_objects, json_objects.map(lambda raw: {**raw, "type": "text", "text": "x"})))
def test_a_json_object_survives_being_read_and_written(raw: dict[str, Any]) -> None:
    """Whatever a provider sends goes back as it came, whether we know the block or not."""
    assert encode_block(decode_block(raw)) == raw


@pytest.mark.parametrize(
    "raw",
    [
        {"type": "tool_result", "tool_use_id": "a", "content": 5},
        {"type": "tool_result", "tool_use_id": "a", "content": ["words"]},
        {"type": "tool_result"},
        {"type": "text"},
        {"type": 7},
        {},
    ],
)
def test_a_block_that_makes_no_sense_is_kept_raw(raw: dict[str, Any]) -> None:
    """A malformed block is neither an error nor lost: it is somebody else's business."""
    assert decode_block(raw) == RawBlock(raw)
    assert encode_block(decode_block(raw)) == raw


def test_nulls_that_mean_nothing_are_left_out() -> None:
    """SDKs write null for what is not there; sending it back could be refused."""
    assert encode_block(decode_block({"type": "text", "text": "a", "citations": None})) == {"type": "text", "text": "a"}


def test_a_message_may_have_a_plain_string_as_content() -> None:
    """The API allows a string for one text block."""
    message = Message("user", decode_content("hello"))
    assert message.content == (Text("hello"),)
    assert encode_message(message) == {"role": "user", "content": [{"type": "text", "text": "hello"}]}
    assert decode_content("") == (Text(""),)


def test_the_words_of_a_turn_are_its_text_alone() -> None:
    """Thinking and pictures are not words; a tool result's are."""
    turn = (Thinking("hm", "sig"), Text("a"), ToolUse("1", "f", {}), Image({"type": "base64"}), Text("b"))
    assert text_of(turn) == "a\nb"
    assert text_of(ToolResult("1", (Text("c"), Image({})))) == "c"
    assert text_of(ToolResult("1", "d")) == "d"
    assert tool_uses(turn) == (ToolUse("1", "f", {}),)


def test_canonical_json_does_not_depend_on_the_order_of_keys() -> None:
    """Equal values have equal bytes, which prompt caches and digests rely on."""
    assert canonical_json({"b": 1, "a": {"d": 1, "c": 2}}) == canonical_json({"a": {"c": 2, "d": 1}, "b": 1})
    assert canonical_json({"a": 1}) != canonical_json({"a": 2})
