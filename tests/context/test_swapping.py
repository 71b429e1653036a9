"""Swapping a provider's signed summary in: what the request looks like, and when it must not be done."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from repertory.context import EMPTY, ContextPolicy, Planner, apply, decode_decision, encode_decision, project
from repertory.llm import Text, ToolResult, ToolUse, profile_for, text_of
from repertory.llm.messages import RawBlock, Thinking
from repertory.llm.validation import validate
from repertory.record.entries import Entry
from repertory.record.records import SummaryStored

PROFILE = profile_for("claude-sonnet-5-5")
BLOCK = RawBlock({"type": "compaction", "content": "what was", "signature": "s"})


def entry(position: int, role: str, kind: str, *content: Any, tokens: int = 400) -> Entry:
    """One entry of a ledger."""
    call_id = content[0].tool_use_id if isinstance(content[0], ToolResult) else None
    return Entry(
        position=position,
        iteration=(position + 1) // 2,
        role=role,  # type: ignore[arg-type]
        kind=kind,
        content=content,
        created_at=0.0,
        tokens=tokens,
        tool_call_id=call_id,
        tool="read" if call_id else None,
    )


def ledger(turns: int) -> list[Entry]:
    """The task, and so many thinking turns with a tool call and its result each."""
    out = [entry(0, "user", "task", Text("Do it before noon."), tokens=10)]
    for number in range(1, turns + 1):
        use = ToolUse(f"c{number}", "read", {"n": number})
        out.append(entry(len(out), "assistant", "assistant", Thinking(f"t{number}", "sig"), use))
        out.append(entry(len(out), "user", "action-result", ToolResult(f"c{number}", f"result {number}")))
    return out


def summary(last: int, *, tokens: int = 20) -> SummaryStored:
    """A provider's summary of everything up to an entry."""
    return SummaryStored(
        run_id="r", summary_id="s", first=0, last=last, strategy="provider", content=(BLOCK,), tokens=tokens, at=0.0
    )


def swap(
    snapshot: list[Entry], last: int, plan: Any = EMPTY, *, policy: ContextPolicy | None = None, **options: Any
) -> Any:
    """Ask for the swap."""
    stored = summary(last, **options)
    return Planner(policy=policy or ContextPolicy(), profile=PROFILE).swap_in(snapshot, plan, stored, iteration=9)


def test_what_was_paid_beside_the_run_is_counted_by_the_swap() -> None:
    """So that the next decision does not count it once more; control: a swap that is not made leaves it to that."""
    for last, left in ((8, 0.0), (800, 0.5)):
        planner = Planner(policy=ContextPolicy(), profile=PROFILE, charged=0.5)
        decision = planner.swap_in(ledger(6), EMPTY, summary(last), iteration=9)
        assert ((decision is not None) and decision.counted, planner.charged) == (not left, left)


def shown(snapshot: list[Entry], plan: Any) -> Any:
    """The legal request of a plan."""
    request = project(snapshot, plan, profile=PROFILE)
    validate(request, PROFILE)
    return request


def test_the_block_comes_first_and_what_is_kept_is_said_again_behind_the_last_entry() -> None:
    """Between the block and the turn that followed there is nothing; later requests only append."""
    snapshot = ledger(6)
    decision = swap(snapshot, 8)
    assert decision.arithmetic.cleared_tokens > 2_000
    assert decode_decision(encode_decision(decision)) == decision
    plan = apply(EMPTY, decision)
    request = shown(snapshot, plan)
    assert request.messages[0].role == "assistant"
    assert request.messages[0].content == (BLOCK, *snapshot[9].content)
    assert [type(block) for block in request.messages[-1].content] == [ToolResult, RawBlock, Text, Text]
    assert text_of(request.messages[-1].content[-1]) == "Do it before noon."
    longer = shown(ledger(8), plan)
    assert longer.messages[: len(request.messages)] == request.messages


def test_a_second_summary_takes_the_place_of_the_first_and_says_the_task_again() -> None:
    """However often the run is compacted, there is one block, and the task once behind it."""
    plan = apply(EMPTY, swap(ledger(6), 8))
    snapshot = ledger(12)
    plan = apply(plan, swap(snapshot, 20, plan))
    said = [block for message in shown(snapshot, plan).messages for block in message.content]
    assert said.count(BLOCK) == 1
    assert said.count(Text("Do it before noon.")) == 1


def logs(snapshot: list[Entry], plan: Any) -> list[str]:
    """The logs that are said again behind the block."""
    blocks = [block for message in shown(snapshot, plan).messages for block in message.content]
    found = [block.raw for block in blocks if isinstance(block, RawBlock) and block.raw["type"] == "document"]
    assert {raw["title"] for raw in found} <= {"context_trail"}
    return [raw["source"]["data"] for raw in found]


def test_the_log_of_what_a_summary_stands_for_is_said_again_beside_it() -> None:
    """Each stretch once, in order, however often the run is compacted; nothing of it is the user's words."""
    plan = apply(EMPTY, swap(ledger(6), 8))
    first = logs(ledger(6), plan)
    assert [log.splitlines()[0] for log in first] == [
        "[log of iterations 1–4; context_retrieve(iteration=N) shows one whole]"
    ]
    assert "4. read(n=4)" in first[0]
    assert "→ result 4" in first[0]
    assert "before noon" not in first[0]
    snapshot = ledger(12)
    plan = apply(plan, swap(snapshot, 20, plan))
    second = logs(snapshot, plan)
    assert second[0] == first[0]
    assert second[1].startswith("[log of iterations 5–10;")
    assert len(second) == 2


def test_the_log_says_what_the_agent_said_without_a_call() -> None:
    """What the user said stands word for word beside it, so it is not said twice."""
    snapshot = ledger(2)
    snapshot.append(entry(5, "assistant", "assistant", Text("It is done; what else?")))
    snapshot.append(entry(6, "user", "user-input", Text("Measure pier 9.")))
    for number in (3, 4):
        at = len(snapshot)
        snapshot.append(entry(at, "assistant", "assistant", ToolUse(f"c{number}", "read", {"n": number})))
        snapshot.append(entry(at + 1, "user", "action-result", ToolResult(f"c{number}", f"result {number}")))
    (log,) = logs(snapshot, apply(EMPTY, swap(snapshot, 8)))
    assert "It is done; what else?" in log
    assert "pier 9" not in log


def test_a_log_that_has_outgrown_its_share_of_the_comfort_loses_its_oldest_stretches() -> None:
    """What they said, the provider's summary says."""
    policy = ContextPolicy(comfort_tokens=200)
    plan = apply(EMPTY, swap(ledger(6), 8, policy=policy))
    assert len(logs(ledger(6), plan)) == 1
    snapshot = ledger(12)
    plan = apply(plan, swap(snapshot, 20, plan, policy=policy))
    assert [log[:25] for log in logs(snapshot, plan)] == ["[log of iterations 5–10; "]


@pytest.mark.parametrize(
    ("comfort", "turns", "asked"), [(10_000, 20, True), (10_000, 8, False), (0, 20, False), (2_300, 3, False)]
)
def test_a_view_longer_than_comfortable_is_to_be_compacted_though_nothing_is_saved_yet(
    comfort: int, turns: int, *, asked: bool
) -> None:
    """Not below the comfort, and only where that clears a fifth of it; 0 leaves the model's window as the bound."""
    snapshot = ledger(turns)
    planner = Planner(policy=ContextPolicy(comfort_tokens=comfort), profile=PROFILE)
    outcome = planner.next(snapshot, iteration=turns + 1)
    assert (outcome.compaction is not None) == asked
    if outcome.compaction is not None:
        assert outcome.compaction.upto == len(snapshot) - 2
        assert "attention" in outcome.compaction.reason


def test_a_digest_behind_the_block_keeps_the_task_in_view() -> None:
    """A forced fold covers the message in which the task was said again, so it is said in front of the digest."""
    snapshot = ledger(12)
    plan = apply(EMPTY, swap(ledger(6), 8))
    cover = plan.covers[0]
    fold = msgspec.structs.replace(cover, first=9, last=20, content=(Text("digest"),), kept=(), restated_at=-1)
    request = shown(snapshot, msgspec.structs.replace(plan, covers=(cover, fold), start=21, thinking_from=25))
    assert request.messages[0].content == (BLOCK,)
    assert "Do it before noon." in text_of(request.messages[1].content)
    assert text_of(request.messages[3].content) == "digest"


@pytest.mark.parametrize("last", [12, 11, 1, 7])
def test_a_summary_that_does_not_fit_the_moment_is_refused(last: int) -> None:
    """Nothing follows it, or the user's turn does: then a call would be cut from its result."""
    assert swap(ledger(6), last) is None


def test_a_summary_that_does_not_make_the_view_smaller_is_refused() -> None:
    """Nor one that begins elsewhere, nor while the assistant's turn is the last."""
    assert swap(ledger(6), 8, tokens=9_000) is None
    assert swap(ledger(6)[:-1], 8) is None
    elsewhere = msgspec.structs.replace(summary(8), first=1)
    planner = Planner(policy=ContextPolicy(), profile=PROFILE)
    assert planner.swap_in(ledger(6), EMPTY, elsewhere, iteration=9) is None


@pytest.mark.parametrize(("comfort", "tokens"), [(2_000, 1_500), (2_000, 3_000), (5_000, 3_000)])
def test_a_comfort_that_no_summary_can_reach_does_not_ask_for_one_again_and_again(comfort: int, tokens: int) -> None:
    """A compaction clears at least what its summary has, and a long summary is not expected to come back as a short
    one."""
    snapshot, plan, asked, stored = ledger(60), EMPTY, list[int](), None
    planner = Planner(policy=ContextPolicy(comfort_tokens=comfort), profile=PROFILE)
    for iteration in range(1, 61):
        record = snapshot[: 2 * iteration - 1]
        decision = stored and planner.swap_in(record, plan, stored, iteration=iteration)
        plan = apply(plan, decision) if decision else plan
        outcome = planner.next(record, plan, iteration=iteration)
        plan, stored = outcome.plan, None
        if outcome.compaction is not None:
            asked.append(iteration)
            stored = summary(outcome.compaction.upto - 1, tokens=tokens)
    assert 3 <= len(asked) <= sum(entry.tokens for entry in snapshot) // tokens
