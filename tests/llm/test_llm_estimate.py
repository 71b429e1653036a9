"""Token estimates: additive, never zero for something, and not fooled by pictures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory._json_text import canonical_json
from repertory.llm import Message, ModelRequest, Text, ToolResult, ToolUse, estimate_tokens
from repertory.llm.estimate import IMAGE_TOKENS
from repertory.llm.messages import Image, RawBlock, encode_block
from repertory.llm.model import ToolSchema

texts = st.builds(Text, st.text(max_size=200))
messages = st.builds(Message, st.sampled_from(["user", "assistant"]), st.lists(texts, max_size=4).map(tuple))


@given(st.lists(messages, max_size=4), st.lists(texts, max_size=2))
def test_an_estimate_is_the_sum_of_its_parts(turns: list[Message], system: list[Text]) -> None:
    """So prefixes can be summed up block by block, which caches and planners do."""
    tool = ToolSchema("f", "d", {"type": "object"})
    request = ModelRequest(model="m", messages=tuple(turns), system=tuple(system), tools=(tool,))
    blocks = [*system, *(block for turn in turns for block in turn.content)]
    assert estimate_tokens(request) == estimate_tokens(tool) + sum(map(estimate_tokens, blocks))
    assert estimate_tokens(turns) == sum(map(estimate_tokens, turns))


@given(st.text(max_size=300))
def test_text_counts_by_its_bytes(text: str) -> None:
    """A quarter of the bytes, rounded up."""
    assert estimate_tokens(text) == -(-len(text.encode()) // 4)


@pytest.mark.parametrize(
    "block", [Text("x" * 400), ToolUse("i", "n", {"a": "b" * 50}), RawBlock({"type": "new", "x": 1})]
)
def test_a_block_counts_by_its_json(block: Text | ToolUse | RawBlock) -> None:
    """What is sent is what is counted."""
    assert estimate_tokens(block) == -(-len(canonical_json(encode_block(block))) // 4)


def test_a_picture_counts_flat() -> None:
    """Its base64 is large and says nothing about its price; inside a tool result too."""
    picture = Image({"type": "base64", "data": "A" * 1_000_000})
    assert estimate_tokens(picture) == IMAGE_TOKENS
    result = ToolResult("t", (Text("see"), picture))
    assert IMAGE_TOKENS < estimate_tokens(result) < IMAGE_TOKENS + 50
    assert estimate_tokens(()) == 0
