"""Thinking blocks: valid where they were made, and nowhere else on a binding model."""

from __future__ import annotations

import base64
import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory.llm import Text, profile_for
from repertory.llm.messages import RedactedThinking, Thinking, encode_block
from repertory.testing.binding import Binder
from repertory.testing.refusal import Refusal

BINDING = profile_for("claude-opus-5-5")
FREE = profile_for("claude-sonnet-4-6")
DROP = {"thinking": {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}}
BETA = frozenset({"thinking-binding-controls-2026-08-01"})


def conversation(turns: int, *, binder: Binder, profile: Any = BINDING) -> dict[str, Any]:
    """A history in which every answer thought, signed as the server would."""
    body: dict[str, Any] = {
        "model": profile.name,
        "system": [{"type": "text", "text": "Be brief."}],
        "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
        "messages": [],
    }
    for number in range(turns):
        body["messages"].append({"role": "user", "content": f"question {number}"})
        answer = binder.sign((Thinking(f"thought {number}"), Text(f"answer {number}")), body=body, model=profile.name)
        body["messages"].append({"role": "assistant", "content": [encode_block(block) for block in answer]})
    body["messages"].append({"role": "user", "content": "and now?"})
    return body


def edit(body: dict[str, Any], what: str) -> dict[str, Any]:
    """Change something before or between the thinking blocks."""
    body = copy.deepcopy(body)
    messages = body["messages"]
    if what == "system":
        body["system"][0]["text"] = "Be verbose."
    elif what == "tools":
        body["tools"][0]["description"] = "D"
    elif what == "first":
        messages[0]["content"] = "another question"
    elif what == "middle":
        messages[2]["content"] = "another question"
    elif what == "drop turn":
        del messages[2:4]
    elif what == "insert":
        messages[0:0] = [{"role": "user", "content": "summary"}]
    elif what == "gap":
        del messages[3]["content"][0]
    return body


@given(st.integers(1, 5))
def test_an_unchanged_history_is_valid(turns: int) -> None:
    """Append-only conversations of any length pass, and nothing is dropped."""
    binder = Binder(1)
    body = conversation(turns, binder=binder)
    assert binder.check(body, profile=BINDING, betas=frozenset()) == (body, [])


@pytest.mark.parametrize("what", ["system", "tools", "first", "middle", "drop turn", "insert", "gap"])
def test_an_edit_of_the_past_invalidates_what_comes_after(what: str) -> None:
    """Every edit that the documents name is caught, in the documents' words; on other models it is no matter."""
    binder = Binder(1)
    body = edit(conversation(3, binder=binder), what)
    with pytest.raises(Refusal, match="The block is bound to a different conversation"):
        binder.check(body, profile=BINDING, betas=frozenset())
    shown, report = binder.check({**body, **DROP}, profile=BINDING, betas=BETA)
    assert report
    assert {entry["reason"] for entry in report} == {"prefix_binding_mismatch"}
    paths = {entry["path"] for entry in report}
    kept = sum(
        b["type"] == "thinking" for m in shown["messages"] if not isinstance(m["content"], str) for b in m["content"]
    )
    sent = sum(
        b["type"] == "thinking" for m in body["messages"] if not isinstance(m["content"], str) for b in m["content"]
    )
    assert kept + len(paths) == sent
    with pytest.raises(Refusal):  # without the beta the setting does not hold
        binder.check({**body, **DROP}, profile=BINDING, betas=frozenset())

    free = edit(conversation(3, binder=binder, profile=FREE), what)
    assert binder.check(free, profile=FREE, betas=frozenset()) == (free, [])


@pytest.mark.parametrize("removed", [[0], [0, 1], [2], [1, 2], [0, 1, 2]])
def test_thinking_may_be_taken_out_from_either_end(removed: list[int]) -> None:
    """All of it, the oldest run, or the newest run: no gap, no mismatch."""
    binder = Binder(1)
    body = conversation(3, binder=binder)
    for turn in removed:
        del body["messages"][2 * turn + 1]["content"][0]
    assert binder.check(body, profile=BINDING, betas=frozenset()) == (body, [])


def test_moving_a_cache_marker_is_no_edit() -> None:
    """Markers are not part of what is bound, wherever they stand."""
    binder = Binder(1)
    body = conversation(2, binder=binder)
    body["tools"][0]["cache_control"] = {"type": "ephemeral"}
    body["system"][0]["cache_control"] = {"type": "ephemeral"}
    body["messages"][0]["content"] = [{"type": "text", "text": "question 0", "cache_control": {"type": "ephemeral"}}]
    result = {
        "type": "tool_result",
        "tool_use_id": "t",
        "content": [{"type": "text", "text": "x", "cache_control": {}}],
    }
    body["messages"][-1]["content"] = [result]
    assert binder.check(body, profile=BINDING, betas=frozenset()) == (body, [])


def test_a_run_of_thinking_goes_with_its_first_bad_block() -> None:
    """Consecutive blocks of one turn are dropped together; the text between turns ends the run."""
    binder = Binder(1)
    body: dict[str, Any] = {"model": BINDING.name, "messages": [{"role": "user", "content": "q"}]}
    answer = binder.sign((Thinking("a"), Thinking("b"), Text("t")), body=body, model=BINDING.name)
    assert binder.sign(answer, body=body, model=BINDING.name) == answer  # signed blocks are left alone
    body["messages"].append({"role": "assistant", "content": [encode_block(block) for block in answer]})
    body["messages"].append({"role": "user", "content": "go on"})
    body["messages"][0]["content"] = "Q"
    shown, report = binder.check({**body, **DROP}, profile=BINDING, betas=BETA)
    assert [entry["path"] for entry in report] == ["messages.1.content.0", "messages.1.content.1"]
    assert shown["messages"][1]["content"] == [encode_block(answer[2])]


@pytest.mark.parametrize("signature", ["", "not base64!", base64.b64encode(b"{}").decode(), "changed"])
def test_a_signature_of_somebody_else_is_refused(signature: str) -> None:
    """Made up, from another server, or for other words: refused on every model, and never dropped."""
    binder = Binder(1)
    body = conversation(1, binder=binder)
    block = body["messages"][1]["content"][0]
    if signature == "changed":
        block["thinking"] = "other words"
    else:
        block["signature"] = signature
    for profile in (BINDING, FREE):
        with pytest.raises(Refusal, match=r"messages\.1\.content\.0: Invalid `signature` in `thinking` block$"):
            binder.check({**body, **DROP}, profile=profile, betas=BETA)
    with pytest.raises(Refusal, match="Invalid `signature`"):
        Binder(2).check(conversation(1, binder=binder), profile=BINDING, betas=frozenset())


def test_another_models_thinking_is_dropped_quietly() -> None:
    """A switch of model costs the reasoning, not the request; a redacted block is passed through."""
    binder = Binder(1)
    body = conversation(1, binder=binder, profile=FREE)
    body["messages"][1]["content"].insert(0, encode_block(RedactedThinking("opaque")))
    shown, report = binder.check({**body, "model": BINDING.name}, profile=BINDING, betas=frozenset())
    assert [entry["reason"] for entry in report] == ["model_binding_mismatch"]
    assert [block["type"] for block in shown["messages"][1]["content"]] == ["redacted_thinking", "text"]
