"""Merges of digests: what they say follows from the digests alone, however it was prepared."""

from __future__ import annotations

import pytest
from context_histories import Story, profile

from repertory.context import EMPTY, ContextPolicy, Plan, Planner, project, validate
from repertory.context.ageing import Ageing, lines_of
from repertory.context.live import Live
from repertory.context.merging import Merge, merge_of
from repertory.context.vocabulary import Standing
from repertory.llm.messages import Text, text_of
from repertory.record import Snapshot

POLICY = ContextPolicy()


def remarked(iterations: int) -> Story:
    """A run of new names throughout, and a user who speaks every twenty iterations."""
    story = Story("Say which crane is moved.")
    for number in range(iterations):
        lines = [f"crane_{number}_{line} stands in yard_{number % 7}, it says" for line in range(30)]
        story.turn("\n".join(lines), arguments={"path": f"yard_{number % 7}/list_{number}.txt"}, text=f"See {number}.")
        if number % 20 == 19:
            story.say(f"Remark {number}: take care of the ropes.")
    return story


def digested(story: Story, *, read: float = 0.1) -> list[tuple[Snapshot, Plan]]:
    """The plans of the whole run, request by request."""
    planner, plan, plans = Planner(policy=POLICY, profile=profile(read=read), head_tokens=2_000), EMPTY, []
    for number, position in enumerate(story.requests(), 1):
        snapshot = story.snapshot(position)
        plan = planner.next(snapshot, plan, iteration=number).plan
        plans.append((snapshot, plan))
    return plans


def merge_for(snapshot: Snapshot, plan: Plan, *, policy: ContextPolicy = POLICY) -> Merge:
    """The merge that is due, for one who comes upon the plan afresh."""
    live = Live(plan, policy, snapshot)
    ageing = Ageing(live)
    ageing.finish(snapshot)
    merge = merge_of(plan, snapshot, ageing)
    assert merge is not None
    return merge


@pytest.fixture(scope="module")
def run() -> list[tuple[Snapshot, Plan]]:
    """A run that merges several times."""
    return digested(remarked(500))


def merges(run: list[tuple[Snapshot, Plan]]) -> list[int]:
    """The requests at which digests were merged."""
    return [
        at
        for at in range(1, len(run))
        if any(cover.strategy == "merged" and cover not in run[at - 1][1].covers for cover in run[at][1].covers)
    ]


def test_a_merge_says_the_same_however_it_was_prepared(run: list[tuple[Snapshot, Plan]]) -> None:
    """Prepared over many calls, at once, or by a process that has just resumed the run."""
    assert len(merges(run)) >= 2
    for at in merges(run):
        snapshot, before, after = run[at][0], run[at - 1][1], run[at][1]
        expected = [(edit.first, edit.last, edit.content) for edit in merge_for(snapshot, before).edits(snapshot)]
        assert [(c.first, c.last, c.content) for c in after.covers][: len(expected)] == expected


def test_a_merge_halves_the_digests_and_keeps_the_newest_lines(run: list[tuple[Snapshot, Plan]]) -> None:
    """Lines of the newest digests stand as they did; what users said stands before the digest of its time."""
    for at in merges(run):
        snapshot, before, after = run[at][0], run[at - 1][1], run[at][1]
        merge = merge_for(snapshot, before)
        edits = merge.edits(snapshot)
        assert sum(edit.tokens for edit in edits) <= 0.55 * sum(cover.tokens for cover in merge.covers)
        newest = lines_of(merge.covers[-1])
        shown = [line for cover in after.covers if cover.last <= edits[-1].last for line in lines_of(cover)]
        left = [cover for cover in before.covers if cover.last > edits[-1].last]
        assert [cover for cover in after.covers if cover in left] == left
        assert shown[-len(newest) :] == newest
        request = project(snapshot, after, profile=profile())
        validate(request)
        said = "\n".join(text_of(message.content) for message in request.messages)
        remarks = range(19, snapshot[-1].iteration, 20)
        assert {said.count(f"Remark {number}: take care of the ropes.") for number in remarks} == {1}


def test_older_digests_become_one(run: list[tuple[Snapshot, Plan]]) -> None:
    """However often a user spoke between them, their number stays small."""
    assert len(run[-1][1].covers) < 20


def test_the_names_that_stand_afterwards_are_those_of_what_stands(run: list[tuple[Snapshot, Plan]]) -> None:
    """They were looked up ahead, and are the same as looked up afterwards."""
    for at in merges(run):
        snapshot, before = run[at][0], run[at - 1][1]
        merge = merge_for(snapshot, before)
        afterwards = Standing()
        for edit in merge.edits(snapshot):
            for block in edit.content:
                assert isinstance(block, Text)
                afterwards.put(*block.text.split("\n")[1:])
        assert merge.standing == afterwards


@pytest.mark.parametrize("retrieval", [True, False])
def test_a_merged_digest_names_the_tool_only_to_an_agent_that_has_it(
    run: list[tuple[Snapshot, Plan]], retrieval: bool
) -> None:
    """Its head is made anew, whatever those of the digests before it said."""
    at = merges(run)[0]
    merge = merge_for(run[at][0], run[at - 1][1], policy=ContextPolicy(retrieval=retrieval))
    texts = [text_of(edit.content) for edit in merge.edits(run[at][0]) if edit.content]
    assert texts
    assert all(text.startswith("[digest of iterations") for text in texts)
    assert [text for text in texts if "context_retrieve" in text] == (texts if retrieval else [])
