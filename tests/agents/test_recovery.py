"""What a run owes its record after the process died."""

from __future__ import annotations

from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from repertory.agents.recovery import interrupted_result, open_calls, with_unique_ids
from repertory.llm.messages import Block, Text, ToolResult, ToolUse
from repertory.memory.entries import Entry
from repertory.memory.journal import ToolCallRow
from repertory.memory.records import Effect, ToolIntended


def entry(position: int, role: str, *content: Block) -> Entry:
    """An entry of a ledger."""
    return Entry(
        position=position,
        role=role,  # type: ignore[arg-type]
        kind="assistant" if role == "assistant" else "action-result",
        content=content,
        created_at=0.0,
        tokens=1,
        iteration=1,
    )


def intended(call_id: str, effect: Effect) -> ToolCallRow:
    """A journalled intent."""
    return ToolCallRow(
        intended=ToolIntended(
            run_id="run",
            call_id=call_id,
            tool="t",
            effect=effect,
            arguments={},
            arguments_digest="",
            idempotency_key="",
            iteration=1,
            at=0.0,
        )
    )


@given(
    st.lists(st.tuples(st.booleans(), st.one_of(st.none(), st.sampled_from(get_args(Effect)))), min_size=0, max_size=8)
)
def test_every_call_without_a_result_gets_the_fate_that_its_effect_allows(
    calls: list[tuple[bool, Effect | None]],
) -> None:
    """Answered calls are left alone; only a begun unsafe call is given up, all others run."""
    uses = [ToolUse(f"c{number}", "t", {}) for number in range(len(calls))]
    entries = [entry(0, "user", Text("task")), entry(1, "assistant", Text("go"), *uses)]
    rows = []
    for use, (answered, effect) in zip(uses, calls, strict=True):
        if answered:
            entries.append(entry(len(entries), "user", ToolResult(use.id, "done")))
        if effect is not None:
            rows.append(intended(use.id, effect))
    found = {call.use.id: call.fate for call in open_calls(entries, rows)}
    expected = {
        use.id: "interrupted" if effect == "unsafe" else "run"
        for use, (answered, effect) in zip(uses, calls, strict=True)
        if not answered
    }
    assert found == expected


def test_a_run_that_has_not_begun_owes_nothing() -> None:
    """There is no turn whose calls could be open."""
    assert open_calls([], []) == []
    assert open_calls([entry(0, "user", Text("task"))], []) == []


def test_an_interrupted_call_gets_an_honest_result() -> None:
    """It answers the call, as an error, and claims nothing about the effect."""
    draft = interrupted_result(ToolUse("c1", "fire", {}), 3)
    (block,) = draft.content
    assert isinstance(block, ToolResult)
    assert block.is_error
    assert "effect unknown" in str(block.content)
    assert (draft.tool_call_id, draft.tool, draft.iteration) == ("c1", "fire", 3)


@given(st.lists(st.lists(st.sampled_from(["a", "b", "a_2", "c"]), max_size=4), max_size=6))
def test_call_ids_stay_apart_whatever_the_model_does(turns: list[list[str]]) -> None:
    """No id is used twice in a run, and a first use keeps its id."""
    known: set[str] = set()
    given_out: list[str] = []
    for turn in turns:
        content = with_unique_ids([ToolUse(call_id, "t", {}) for call_id in turn], known)
        given_out.extend(block.id for block in content if isinstance(block, ToolUse))
    assert len(given_out) == len(set(given_out)) == len(known)
    if turns and turns[0]:
        assert given_out[0] == turns[0][0]
