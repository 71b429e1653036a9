"""Validation: every rule refuses what breaks it, and names the place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from repertory.errors import InvalidRequest
from repertory.llm import validate
from repertory.llm.messages import Block, Image, Message, RawBlock, Text, Thinking, ToolResult, ToolUse
from repertory.llm.model import Breakpoint, ModelRequest, ToolSchema, encode_request
from repertory.llm.profiles import CacheRules, ModelProfile, Prices
from repertory.llm.validation import Validator
from repertory.testing.refusal import Refusal
from repertory.testing.rules import check_body

TOOL = ToolSchema("read", "Read.", {"type": "object"})


PICTURE = Image({"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="})
PROFILE = ModelProfile(
    name="test-model",
    target="free",
    context_window=200_000,
    max_output=8192,
    prices=(Prices(input=3.0, output=15.0, cache_read=0.3, cache_write=3.75, cache_write_1h=6.0),),
    cache=CacheRules(),
)


def legal() -> ModelRequest:
    """A request that breaks no rule: task, two calls, two results."""
    calls = ToolUse("call_1", "read", {"n": 0}), ToolUse("call_2", "read", {"n": 1})
    answers = ToolResult("call_1", "one"), ToolResult("call_2", (Text("two"), PICTURE))
    return ModelRequest(
        model=PROFILE.name,
        messages=(user(Text("Why?")), agent(Thinking("hm", "sig"), Text("Let me look."), *calls), user(*answers)),
        system=(Text("S"),),
        tools=(TOOL,),
        max_tokens=8192,
        breakpoints=(Breakpoint(None), Breakpoint(2)),
    )


def with_messages(*messages: Message) -> Callable[[ModelRequest], ModelRequest]:
    """Replace the messages and drop the markers."""
    return lambda request: msgspec.structs.replace(request, messages=messages, breakpoints=())


def replaced(**fields: Any) -> Callable[[ModelRequest], ModelRequest]:
    """Replace fields."""
    return lambda request: msgspec.structs.replace(request, **fields)


def user(*blocks: Block) -> Message:
    """A turn of the user."""
    return Message("user", blocks)


def agent(*blocks: Block) -> Message:
    """A turn of the assistant."""
    return Message("assistant", blocks)


HI = user(Text("hi"))
CALL = ToolUse("a", "read", {})
BOTH = (
    (with_messages(), "messages: there must be at least one"),
    (with_messages(agent(Text("x"))), "messages[0].role"),
    (with_messages(HI, agent(CALL), agent(Text("x")), user(Text("y"))), "messages[2].role"),
    (with_messages(HI, agent(Text("x")), user()), "messages[2].content"),
    (with_messages(HI, agent(CALL)), "messages[1].role"),
    (with_messages(user(Text(" "))), "messages[0].content[0]: text must not be blank"),
    (with_messages(HI, agent(CALL), user(Text("no"))), "messages[1].content[0]: call 'a' has no result"),
    (with_messages(user(ToolResult("a", "x"))), "result of 'a'"),
    (with_messages(HI, agent(CALL), user(ToolResult("a", "x"), ToolResult("a", "y"))), "a second result of 'a'"),
    (with_messages(HI, agent(CALL), user(Text("t"), ToolResult("a", "x"))), "results must come first"),
    (
        with_messages(HI, agent(CALL), user(ToolResult("a", "x")), agent(CALL), user(ToolResult("a", "x"))),
        "messages[3].content[0].id: 'a' was used before",
    ),
    (with_messages(HI, agent(ToolUse("ä b", "read", {})), user(ToolResult("ä b", "x"))), "messages[1].content[0].id"),
    (
        with_messages(HI, agent(ToolUse("a", "no spaces", {})), user(ToolResult("a", "x"))),
        "messages[1].content[0].name",
    ),
    (with_messages(user(CALL)), "ToolUse belongs to the assistant"),
    (with_messages(user(Thinking("x", "s"))), "Thinking belongs to the assistant"),
    (with_messages(HI, agent(ToolResult("a", "x")), HI), "ToolResult belongs to the user"),
    (with_messages(HI, agent(RawBlock({"type": "document"})), HI), "'document' lacks a field, or belongs to the user"),
    (replaced(max_tokens=0), "max_tokens"),
    (replaced(max_tokens=10**6), "writes at most 8192"),
    (replaced(tools=(ToolSchema("bad name", "", {"type": "object"}),)), "tools[0].name"),
    (replaced(tools=(TOOL, TOOL)), "'read' is there twice"),
    (replaced(tools=(ToolSchema("x", "", {}),)), "tools[0].input_schema"),
    (replaced(options={"thinking": {"type": "enabled", "budget_tokens": 99}}), "thinking.budget_tokens"),
    (replaced(breakpoints=(Breakpoint(0), Breakpoint(2, "1h"))), "1-hour marker"),
)
OURS = (
    (with_messages(HI, agent(Text("x"), Thinking("hm", "s")), HI), "must not end with thinking"),
    (
        with_messages(HI, agent(CALL), user(ToolResult("a", (PICTURE,), is_error=True))),
        "an error's content must be text",
    ),
    (with_messages(HI, agent(PICTURE), HI), "Image belongs to the user"),
    (with_messages(user(RawBlock({"kind": "?"}))), "has no type"),
    (replaced(system=(Text(""),)), "system[0]: text must not be blank"),
    (replaced(system=(PICTURE,)), "system[0]: must be text"),
    (replaced(breakpoints=tuple(Breakpoint(n) for n in range(5))), "at most 4"),
    (replaced(breakpoints=(Breakpoint(2), Breakpoint(0))), "in order"),
    (replaced(breakpoints=(Breakpoint(9),)), "message 9 does not exist"),
    (replaced(system=(), tools=(), breakpoints=(Breakpoint(None),)), "no static head"),
    (with_messages(HI, agent(CALL), HI), "call 'a' has no result in the next message"),
    (replaced(tools=tuple(ToolSchema(f"t{n}", "", {"type": "object"}) for n in range(10_001))), "at most 10,000"),
)


@pytest.mark.parametrize(("broken", "words"), [*BOTH, *OURS], ids=lambda value: value if isinstance(value, str) else "")
def test_each_rule_refuses_what_breaks_it(broken: Callable[[ModelRequest], ModelRequest], words: str) -> None:
    """The error names the rule and the place."""
    with pytest.raises(InvalidRequest) as caught:
        validate(broken(legal()), PROFILE)
    assert words in str(caught.value)
    validator = Validator(PROFILE)
    for request in (legal(), broken(legal()), broken(legal()), legal()):
        if request == legal():
            validator.validate(request)  # whatever was refused before
        else:
            with pytest.raises(InvalidRequest) as again:
                validator.validate(request)
            assert str(again.value) == str(caught.value)


def test_what_is_new_is_checked_against_what_passed_before() -> None:
    """A request that goes on is refused for what only its whole shows: an id used before, a result of no call."""
    first = legal()
    validator = Validator(PROFILE)
    validator.validate(first)
    call = next(block for block in first.messages[1].content if isinstance(block, ToolUse))
    for new in ((agent(call), user(ToolResult(call.id, "x"))), (agent(Text("x")), user(ToolResult(call.id, "x")))):
        longer = msgspec.structs.replace(first, messages=(*first.messages, *new))
        with pytest.raises(InvalidRequest) as caught:
            validator.validate(longer)
        with pytest.raises(InvalidRequest) as whole:
            validate(longer, PROFILE)
        assert str(caught.value) == str(whole.value)
        validator.validate(first)
    validator.validate(msgspec.structs.replace(first, messages=(HI, agent(call), user(ToolResult(call.id, "x")))))


@pytest.mark.parametrize(("broken", "words"), BOTH, ids=lambda value: value if isinstance(value, str) else "")
def test_the_strict_server_refuses_the_same(broken: Callable[[ModelRequest], ModelRequest], words: str) -> None:
    """Two checkers, written apart, agree on what the API refuses."""
    with pytest.raises(Refusal):
        check_body(encode_request(broken(legal())), profile=PROFILE, betas=frozenset())


def test_a_legal_request_passes_both() -> None:
    """The request that every case above breaks is itself accepted; without a profile too."""
    validate(legal(), PROFILE)
    validate(legal())
    check_body(encode_request(legal()), profile=PROFILE, betas=frozenset())


def test_a_marker_needs_a_block_that_can_carry_it() -> None:
    """A turn of pure thinking cannot be marked (nor be sent, but this rule speaks for itself)."""
    request = legal()
    messages = (HI, agent(Thinking("x", "s")), HI)
    from repertory.llm.validation import _check_breakpoints

    with pytest.raises(InvalidRequest, match="no block that can carry a marker"):
        _check_breakpoints(msgspec.structs.replace(request, messages=messages, breakpoints=(Breakpoint(1),)), None)


def test_a_paused_turn_may_be_sent_back() -> None:
    """The server's own unfinished turn goes back as it is; unknown blocks are let through."""
    paused = agent(RawBlock({"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}))
    validate(msgspec.structs.replace(legal(), messages=(HI, paused), breakpoints=()))
