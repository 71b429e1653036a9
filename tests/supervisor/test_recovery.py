"""What a run owes its record after the process died."""

from __future__ import annotations

from typing import get_args

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

import repertory as rp
from repertory.llm.messages import Block, Text, ToolResult, ToolUse, text_of
from repertory.loop.open_calls import INTERRUPTED, calls_of, error_result, open_calls
from repertory.record.entries import Entry
from repertory.record.records import Effect, ToolIntended
from repertory.testing import ScriptedModel, call


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


def intended(call_id: str, effect: Effect) -> ToolIntended:
    """A journalled intent."""
    return ToolIntended(
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
    found = {call.use.id: call.is_interrupted for call in open_calls(entries, rows)}
    expected = {use.id: effect == "unsafe" for use, (answered, effect) in zip(uses, calls, strict=True) if not answered}
    assert found == expected


@rp.tool(effect="idempotent")
async def pay(to: str) -> str:
    """Pay."""
    return "paid"


@rp.tool(name="pay", effect="idempotent")
async def pay_amount(to: str, amount: int) -> str:
    """Pay."""
    return "paid"


NEW_CODE = {
    "there is no tool named 'pay'": rp.Agent("clerk"),
    "invalid arguments: Object missing required field `amount`": rp.Agent("clerk", tools=[pay_amount]),
    "agent clerk forbids calls like this one": rp.Agent("clerk", tools=[pay], approvals=rp.Approvals(deny=["pay"])),
}


@pytest.mark.parametrize("why", NEW_CODE)
async def test_a_call_that_new_code_cannot_repeat_may_have_acted_all_the_same(why: str) -> None:
    """A model that is only told why would call again, under another key."""
    paying = trio.Event()

    @rp.tool(name="pay", effect="idempotent")
    async def pay_once(to: str) -> None:
        """Pay."""
        paying.set()
        await trio.sleep_forever()

    async with rp.open_journal() as journal:
        model = ScriptedModel([call("pay", to="ann")])
        async with rp.open_supervisor(journal=journal, model=model, drain_timeout=0) as supervisor:
            run = await supervisor.spawn(rp.Agent("clerk", tools=[pay_once]), "Pay Ann.")
            await paying.wait()
        model = ScriptedModel(["I do not know."])
        async with rp.open_supervisor(journal=journal, model=model) as supervisor:
            await (await supervisor.resume(run.id, agent=NEW_CODE[why])).wait_result()
    told = text_of(model.requests[0].messages[-1].content)
    assert told.startswith("[interrupted; effect unknown]")
    assert why in told


def test_a_run_that_has_not_begun_owes_nothing() -> None:
    """There is no turn whose calls could be open."""
    assert open_calls([], []) == []
    assert open_calls([entry(0, "user", Text("task"))], []) == []


def test_a_call_that_is_not_made_gets_an_honest_result() -> None:
    """It answers the call, as an error, in the turn that asked for it."""
    draft = error_result(ToolUse("c1", "fire", {}), INTERRUPTED, 3)
    (block,) = draft.content
    assert isinstance(block, ToolResult)
    assert block.is_error
    assert "effect unknown" in str(block.content)
    assert (draft.tool_call_id, draft.tool, draft.iteration) == ("c1", "fire", 3)


def test_a_key_follows_from_run_place_and_arguments() -> None:
    """The same over restarts, whatever id the model gave; another for another place, arguments or run."""
    turn = entry(4, "assistant", Text("go"), ToolUse("a", "t", {}), ToolUse("b", "t", {}))
    first, second = calls_of(turn)
    renamed, _ = calls_of(entry(4, "assistant", ToolUse("x", "t", {}), ToolUse("y", "t", {})))
    later, _ = calls_of(entry(6, "assistant", ToolUse("a", "t", {}), ToolUse("b", "t", {})))
    key = first.idempotency_key("run", "digest")
    assert key == renamed.idempotency_key("run", "digest")
    others = [call.idempotency_key("run", "digest") for call in (second, later)]
    others += [first.idempotency_key("run", "other"), first.idempotency_key("other", "digest")]
    assert len({key, *others}) == 5
