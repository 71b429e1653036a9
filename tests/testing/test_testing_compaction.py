"""Compaction on demand and context editing: what the server refuses, answers, signs, clears and bills."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from repertory.llm import AnthropicModel, Message, Text, ToolUse, profile_for
from repertory.llm.messages import Thinking, encode_block
from repertory.llm.model import ModelRequest, ModelResponse
from repertory.testing import open_messages_server
from repertory.testing.binding import Binder
from repertory.testing.cache import prompt_tokens
from repertory.testing.compaction import BETA, plain_summary, summary_of
from repertory.testing.editing import CLEARED, check_editing, edit_context
from repertory.testing.refusal import Refusal
from repertory.testing.rules import check_body
from repertory.testing.wire import decode_request

BINDING = profile_for("claude-opus-5-5")
FREE = profile_for("claude-opus-4-8")
BETAS = frozenset({BETA})


def history(turns: int, *, binder: Binder, profile: Any = BINDING) -> dict[str, Any]:
    """A conversation that ends with the user's turn, in which every answer thought and called a tool."""
    body: dict[str, Any] = {
        "model": profile.name,
        "max_tokens": 1_000,
        "system": [{"type": "text", "text": "Be brief."}],
        "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
        "messages": [{"role": "user", "content": "begin"}],
    }
    for number in range(turns):
        grow(body, number, binder=binder, profile=profile)
    return body


def grow(body: dict[str, Any], number: int, *, binder: Binder, profile: Any = BINDING) -> None:
    """One more answer and its tool's result."""
    said = (Thinking(f"thought {number}"), ToolUse(f"c{number}", "f", {"n": number}))
    answer = binder.sign(said, body=body, model=profile.name)
    body["messages"] += [
        {"role": "assistant", "content": [encode_block(block) for block in answer]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"c{number}", "content": "r" * 400}]},
    ]


def compacted(turns: int, kept: int, *, binder: Binder, profile: Any = BINDING, by: Any = None) -> dict[str, Any]:
    """A conversation whose beginning was summarized while so many further turns were made."""
    body = history(turns, binder=binder, profile=profile)
    count = len(body["messages"])
    block = binder.sign_summary("what was", body=body, profile=by or profile)
    for number in range(turns, turns + kept):
        grow(body, number, binder=binder, profile=profile)
    body["messages"][:count] = [{"role": "assistant", "content": [block.raw]}]
    return body


def refusal(body: dict[str, Any], betas: frozenset[str] = BETAS, *, profile: Any = BINDING) -> Refusal:
    """What a request is refused with."""
    with pytest.raises(Refusal) as caught:
        check_body(body, profile=profile, betas=betas)
        Binder(1).check(body, profile=profile, betas=betas)
    return caught.value


def accept(body: dict[str, Any], *, binder: Binder, profile: Any = BINDING) -> list[Any]:
    """Check a request; what was dropped of it."""
    check_body(body, profile=profile, betas=BETAS)
    return binder.check(body, profile=profile, betas=BETAS)[1]


# --- the request for a summary ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"compaction": {"type": "short"}}, "compaction.type"),
        ({"compaction": {"type": "summarize", "trigger": 1}}, "Extra inputs"),
        ({"compaction": {"type": "summarize", "instructions": 7}}, "valid string"),
        ({"compaction": {"type": "summarize", "instructions": "x" * 16_385}}, "at most 16384"),
        ({"context_management": {"edits": []}}, "context_management"),
        ({"stop_sequences": ["x"]}, "stop_sequences"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"output_config": {"format": {}}}, "output_config.format"),
        ({"output_config": {"task_budget": {"remaining": 1}}}, "task_budget.remaining"),
    ],
)
def test_a_compaction_request_is_refused_for_what_does_not_belong_to_it(fields: dict[str, Any], words: str) -> None:
    """Each rule of the documents by itself; the same request without the field passes."""
    body = {**history(2, binder=Binder(1)), "compaction": {"type": "summarize", "instructions": "x" * 16_384}}
    betas = BETAS | {"context-management-2025-06-27", "task-budgets-2026-03-13"}
    check_body(body, profile=BINDING, betas=betas)
    assert words in refusal({**body, **fields}, betas).message


def test_the_header_is_required_to_ask_and_to_send_the_block() -> None:
    """And the words differ, as the documents say."""
    asks = {**history(1, binder=Binder(1)), "compaction": {"type": "summarize"}}
    assert "requires anthropic-beta: compact-2026-09-04" in refusal(asks, frozenset()).message
    carries = compacted(2, 1, binder=Binder(1))
    assert "does not match any of the expected tags" in refusal(carries, frozenset()).message


def test_an_open_tool_call_cannot_be_summarized_but_an_answer_at_the_end_can() -> None:
    """A conversation may end with the assistant, whose call must have its result."""
    body = {**history(2, binder=Binder(1)), "compaction": {"type": "summarize"}}
    ends = {**body, "messages": [*body["messages"], {"role": "assistant", "content": "so be it"}]}
    check_body(ends, profile=BINDING, betas=BETAS)
    found = refusal({**body, "messages": body["messages"][:-1]})
    assert (found.status, found.code) == (400, "compaction_incomplete_turn")
    without = {name: value for name, value in ends.items() if name != "compaction"}
    assert "prefill" in refusal(without).message


# --- the block ----------------------------------------------------------------------------------------------


def tampered(body: dict[str, Any], what: str) -> dict[str, Any]:
    """A request whose block is not as it was returned, or not where it belongs."""
    body = copy.deepcopy(body)
    block = body["messages"][0]["content"][0]
    if what == "content":
        block["content"] += "!"
    elif what == "signature":
        block["signature"] = block["signature"][:-8] + "AAAAAAA="
    elif what == "null field":
        block["citations"] = None
    elif what == "tool changes":
        block["tool_changes"] = []
    elif what == "twice":
        body["messages"][0]["content"].append(copy.deepcopy(block))
    elif what == "misplaced":
        body["messages"].insert(0, {"role": "user", "content": "begin"})
    elif what == "empty":
        block["content"] = ""
    return body


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ("content", "compaction_content_mismatch"),
        ("signature", "compaction_signature_invalid"),
        ("null field", ""),
        ("empty", ""),
        ("tool changes", "compaction_tool_changes_mismatch"),
        ("twice", "compaction_block_ambiguous"),
        ("misplaced", "compaction_block_misplaced"),
    ],
)
def test_a_block_is_sent_back_first_alone_and_byte_for_byte(what: str, code: str) -> None:
    """Anything else is refused, with the documents' code; as it came, it passes."""
    body = compacted(3, 2, binder=Binder(1))
    assert accept(body, binder=Binder(1)) == []
    found = refusal(tampered(body, what))
    assert (found.status, found.code) == (400, code)


def test_another_servers_block_is_no_block() -> None:
    """The key is the server's own."""
    assert refusal(compacted(2, 1, binder=Binder(2))).code == "compaction_signature_invalid"


def test_the_block_may_open_the_first_message_of_either_role() -> None:
    """By itself in an assistant's message, at the head of the assistant's turn that followed, or of the user's."""
    alone = compacted(3, 2, binder=Binder(1))
    first, second, *rest = copy.deepcopy(alone["messages"])
    merged = {**alone, "messages": [{"role": "assistant", "content": first["content"] + second["content"]}, *rest]}
    assert accept(merged, binder=Binder(1)) == []
    binder = Binder(1)
    whole = compacted(3, 0, binder=binder)
    whole["messages"] = [
        {"role": "user", "content": [*whole["messages"][0]["content"], {"type": "text", "text": "go"}]}
    ]
    assert accept(whole, binder=binder) == []


# --- the thinking behind it ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [1, 2, 4])
def test_thinking_of_kept_turns_stays_valid(kept: int) -> None:
    """And what is thought behind the block is bound to the block, also through a second compaction."""
    binder = Binder(1)
    body = compacted(3, kept, binder=binder)
    assert accept(body, binder=binder) == []
    grow(body, 50, binder=binder)
    assert accept(body, binder=binder) == []
    count = len(body["messages"])
    block = binder.sign_summary("again", body=body, profile=BINDING)
    grow(body, 51, binder=binder)
    body["messages"][:count] = [{"role": "assistant", "content": [block.raw]}]
    assert accept(body, binder=binder) == []


@pytest.mark.parametrize("what", ["system", "tools", "skipped", "added", "shortened", "still there", "free"])
def test_each_condition_for_kept_thinking_is_needed(what: str) -> None:
    """The block is accepted all the same; the thinking behind it is not."""
    binder = Binder(1)
    body = compacted(3, 3, binder=binder, by=FREE if what == "free" else None)
    messages = body["messages"]
    if what == "system":
        body["system"][0]["text"] = "Be verbose."
    elif what == "tools":
        body["tools"][0]["description"] = "D"
    elif what == "skipped":
        del messages[1:3]
    elif what == "added":
        messages.insert(1, {"role": "user", "content": "by the way"})
    elif what == "shortened":
        messages[2]["content"][0]["content"] = "cleared"
    elif what == "still there":
        messages[1:1] = [{"role": "assistant", "content": "before"}, {"role": "user", "content": "go on"}]
    check_body(body, profile=BINDING, betas=BETAS)
    with pytest.raises(Refusal, match="bound to a different conversation"):
        binder.check(body, profile=BINDING, betas=BETAS)


def test_a_first_kept_message_of_the_same_role_breaks_the_thinking_behind_it() -> None:
    """The API would merge it into the last summarized message: nothing else about the request is wrong."""
    binder = Binder(1)
    body = history(2, binder=binder)
    block = binder.sign_summary("what was", body=body, profile=BINDING)
    count = len(body["messages"])
    body["messages"].append({"role": "user", "content": "one thing more"})
    grow(body, 9, binder=binder)
    assert binder.check(body, profile=BINDING, betas=BETAS)[1] == []
    body["messages"][:count] = [{"role": "assistant", "content": [block.raw]}]
    with pytest.raises(Refusal, match="bound to a different conversation"):
        binder.check(body, profile=BINDING, betas=BETAS)


def test_everything_behind_a_gap_is_dropped_and_what_is_thought_then_is_valid_next_time() -> None:
    """As the documents say: the failing block and every later one; but not what comes of the request itself."""
    binder = Binder(1)
    body = history(4, binder=binder)
    del body["messages"][3]["content"][0]
    body["thinking"] = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
    betas = frozenset({"thinking-binding-controls-2026-08-01"})
    dropped = binder.check(body, profile=BINDING, betas=betas)[1]
    assert [entry["path"] for entry in dropped] == ["messages.5.content.0", "messages.7.content.0"]
    answer = binder.sign((Thinking("anew"), Text("yes")), body=body, model=BINDING.name, dropped=dropped)
    body["messages"] += [
        {"role": "assistant", "content": [encode_block(block) for block in answer]},
        {"role": "user", "content": "and?"},
    ]
    assert binder.check(body, profile=BINDING, betas=betas)[1] == dropped


# --- the answer, over HTTP ----------------------------------------------------------------------------------


def ask(**options: Any) -> ModelRequest:
    """A request for a summary of a short conversation."""
    begun = Message("user", (Text("begin " * 3_000),))
    return ModelRequest(
        model="claude-opus-5-5",
        messages=(begun, Message("assistant", (Text("yes"),)), Message("user", (Text("and?"),))),
        options={"compaction": {"type": "summarize", **options}},
    )


async def test_the_answer_is_one_block_whose_usage_stands_in_iterations() -> None:
    """At the top everything is zero; the client sums the iterations and gets the bill."""
    async with open_messages_server(lambda _: "ok", summarizer=lambda _: "what was") as server:
        model = AnthropicModel("claude-opus-5-5", base_url=server.url, api_key="none")
        response = await model.complete(ask())
        assert response.stop_reason == "compaction"
        assert [block.raw["content"] for block in response.content] == ["what was"]  # type: ignore[union-attr]
        assert response.usage == server.exchanges[-1].usage
        assert response.usage.input_tokens > 4_000
        assert 0 < server.cost == server.exchanges[-1].cost
        await model.aclose()


@pytest.mark.parametrize(
    ("answer", "stop_reason"),
    [
        ((ToolUse("c1", "f", {}),), "tool_use"),
        ((), "end_turn"),
        ((Text(" "),), "end_turn"),
        ((Text("x" * 40_000),), "max_tokens"),
    ],
)
async def test_without_a_summary_the_answer_is_empty_and_billed(answer: Any, stop_reason: str) -> None:
    """A 200 whose stop reason says why."""
    summarizer = lambda _: ModelResponse(content=answer)  # noqa: E731
    async with open_messages_server(lambda _: "ok", summarizer=summarizer) as server:
        model = AnthropicModel("claude-opus-5-5", base_url=server.url, api_key="none")
        response = await model.complete(ask())
        assert (response.content, response.stop_reason) == ((), stop_reason)
        assert server.exchanges[-1].status == 200
        assert response.usage.input_tokens > 4_000
        await model.aclose()


def test_the_servers_own_summary_quotes_the_beginning_and_the_end() -> None:
    """What is used where a test does not say otherwise."""
    text = plain_summary(ask())
    assert text.startswith("Summary of 3 messages.\nuser: begin")
    assert text.endswith("user: and?")
    assert summary_of(ModelResponse(content=(Text("x"),), stop_reason="refusal"), 10) == ("", "refusal")


# --- context editing ----------------------------------------------------------------------------------------


def edited(turns: int, *edits: dict[str, Any], profile: Any = BINDING) -> tuple[dict[str, Any], list[Any], int]:
    """What a conversation becomes, what is reported, and how many tokens it had."""
    body = {**history(turns, binder=Binder(1), profile=profile), "context_management": {"edits": list(edits)}}
    check_body(body, profile=profile, betas=frozenset({"context-management-2025-06-27"}))
    return *edit_context(body, profile), prompt_tokens(body)


def cleared(body: dict[str, Any]) -> list[bool]:
    """Of each tool result, whether it is gone."""
    blocks = [b for m in body["messages"] if not isinstance(m["content"], str) for b in m["content"]]
    return [block["content"] == CLEARED for block in blocks if block["type"] == "tool_result"]


def test_old_tool_results_are_cleared_once_the_trigger_is_exceeded() -> None:
    """The oldest first, all but three; what is reported is what the prompt lost."""
    uses = {"type": "clear_tool_uses_20250919", "trigger": {"type": "tool_uses", "value": 5}}
    at, report, _ = edited(5, uses)
    assert (cleared(at), report) == ([False] * 5, [])
    over, report, before = edited(6, uses)
    assert cleared(over) == [True] * 3 + [False] * 3
    assert report == [
        {
            "type": "clear_tool_uses_20250919",
            "cleared_tool_uses": 3,
            "cleared_input_tokens": before - prompt_tokens(over),
        }
    ]
    tokens = {"type": "clear_tool_uses_20250919", "trigger": {"type": "input_tokens", "value": before}}
    assert edited(6, tokens)[1] == []
    assert edited(7, tokens)[1] != []
    assert edited(7, {"type": "clear_tool_uses_20250919"})[1] == []  # 100,000 tokens by default


def test_clearing_keeps_what_it_is_told_to_and_does_nothing_if_that_is_too_little() -> None:
    """``keep``, ``exclude_tools``, ``clear_tool_inputs`` and ``clear_at_least``."""
    base = {"type": "clear_tool_uses_20250919", "trigger": {"type": "tool_uses", "value": 1}}
    assert cleared(edited(4, {**base, "keep": {"type": "tool_uses", "value": 0}})[0]) == [True] * 4
    assert cleared(edited(4, {**base, "exclude_tools": ["f"]})[0]) == [False] * 4
    body = edited(4, {**base, "clear_tool_inputs": True})[0]
    inputs = [b["input"] for m in body["messages"][1::2] for b in m["content"] if b["type"] == "tool_use"]
    assert inputs == [{}, {"n": 1}, {"n": 2}, {"n": 3}]
    least = edited(4, base)[1][0]["cleared_input_tokens"]
    for value, times in ((least, 1), (least + 1, 0)):
        assert len(edited(4, {**base, "clear_at_least": {"type": "input_tokens", "value": value}})[1]) == times


def test_old_thinking_is_cleared_by_turns_and_signatures_stay_valid() -> None:
    """A tool loop is one turn; what was sent is what is checked, so the edit breaks nothing."""
    binder = Binder(1)
    body = history(2, binder=binder)
    body["messages"].append({"role": "assistant", "content": "first"})
    body["messages"].append({"role": "user", "content": "next"})
    grow(body, 7, binder=binder)
    edit = {"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 1}}
    body["context_management"] = {"edits": [edit]}
    assert binder.check(body, profile=BINDING, betas=frozenset())[1] == []
    shown, report = edit_context(body, BINDING)
    thoughts = [b for m in shown["messages"] if not isinstance(m["content"], str) for b in m["content"]]
    assert [block["thinking"] for block in thoughts if block["type"] == "thinking"] == ["thought 7"]
    assert report[0]["cleared_thinking_turns"] == 1
    for keep in ("all", {"type": "all"}, None):
        body["context_management"] = {
            "edits": [{"type": "clear_thinking_20251015", **({"keep": keep} if keep else {})}]
        }
        assert edit_context(body, BINDING)[1] == []


@pytest.mark.parametrize(
    "edits",
    [
        "none",
        [{"type": "compact_20260112"}],
        [{"type": "clear_tool_uses_20250919", "keeps": 1}],
        [{"type": "clear_tool_uses_20250919", "keep": {"type": "tool_uses", "value": -1}}],
        [{"type": "clear_tool_uses_20250919", "trigger": {"type": "turns", "value": 1}}],
        [{"type": "clear_tool_uses_20250919", "exclude_tools": True}],
        [{"type": "clear_tool_uses_20250919"}, {"type": "clear_tool_uses_20250919"}],
        [{"type": "clear_tool_uses_20250919"}, {"type": "clear_thinking_20251015"}],
        [{"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 0}}],
    ],
)
def test_edits_that_make_no_sense_are_refused(edits: Any) -> None:
    """Unknown strategies, fields and numbers, repeats, and thinking that is not first."""
    body = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}
    with pytest.raises(Refusal, match=r"context_management\.edits"):
        check_body(
            {**body, "context_management": {"edits": edits}},
            profile=BINDING,
            betas=frozenset({"context-management-2025-06-27"}),
        )


def test_clearing_thinking_needs_thinking() -> None:
    """Models that always think need not say so; others must."""
    body = {"context_management": {"edits": [{"type": "clear_thinking_20251015"}]}, "messages": []}
    check_editing(body, BINDING)
    for extra in ({}, {"thinking": {"type": "disabled"}}):
        with pytest.raises(Refusal, match="requires `thinking`"):
            check_editing({**body, **extra}, FREE)


async def test_edits_are_reported_and_billed_by_the_cache_rules() -> None:
    """The prefix before the first cleared result is read, the rest is written anew; the count says both figures."""
    result = {"type": "clear_tool_uses_20250919", "trigger": {"type": "tool_uses", "value": 3}, "keep": None}
    options = {"context_management": {"edits": [{k: v for k, v in result.items() if v}]}}
    body = history(5, binder=Binder(0))
    messages = decode_request(body).messages
    async with open_messages_server(lambda _: "ok") as server:
        model = AnthropicModel("claude-opus-5-5", base_url=server.url, api_key="none")
        request = ModelRequest(model="claude-opus-5-5", messages=messages[:1] + messages[1:], options=options)
        # Signed by this server's key (seed 0), but for other tools: without its thinking the history is anybody's.
        bare = [m if i % 2 == 0 else type(m)(m.role, m.content[1:]) for i, m in enumerate(request.messages)]
        request = ModelRequest(model="claude-opus-5-5", messages=tuple(bare), options=options)
        response = await model.complete(request)
        applied = response.extra["context_management"]["applied_edits"]
        assert [edit["cleared_tool_uses"] for edit in applied] == [2]
        assert response.usage.prompt_tokens == await model.count_tokens(request)
        plain = ModelRequest(model="claude-opus-5-5", messages=tuple(bare))
        lost = await model.count_tokens(plain) - response.usage.prompt_tokens
        assert lost == applied[0]["cleared_input_tokens"]
        await model.aclose()
