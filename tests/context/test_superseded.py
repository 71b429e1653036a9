"""Superseded reads: when a call is made again, what it gave before is compacted first."""

from __future__ import annotations

from typing import Any

import pytest

from context_histories import Story, planned, profile
from repertory.context import ContextPolicy, Plan, Planner
from repertory.context.plan import CoverRange, StubResult

OLD = "def turn():\n    lib/crane.py turns left\n" + "the load hangs in the wind\n" * 150
NEW = "def turn():\n    lib/crane.py turns right\n" + "the load hangs in the wind\n" * 150


def read_twice(**second: Any) -> Story:
    """The same file is read at the start and two turns later; then other files follow."""
    story = Story()
    story.turn(OLD, arguments={"path": "a", "line": 1})
    story.turn("something else\n" * 60)
    story.turn(NEW, **{"arguments": {"line": 1, "path": "a"}, **second})
    return story


def short_of_room(story: Story) -> ContextPolicy:
    """A policy whose budget is a little less than what a story has at its end."""
    whole = (
        Planner(policy=ContextPolicy(), profile=profile(), head_tokens=500)
        .next(story.snapshot(), iteration=4)
        .prompt_tokens
    )
    return ContextPolicy(budget_tokens=int(whole * 0.9), show_once=False)


def last_plan(story: Story, policy: ContextPolicy, **model: Any) -> Plan:
    """The plan of the newest request."""
    *_, (_, outcome) = planned(story, policy, profile(**model))
    return outcome.plan


def test_an_older_read_goes_when_room_is_needed() -> None:
    """Though it is within the window; it says where the newer one is, whatever the order of the arguments."""
    plan = last_plan(read_twice(), short_of_room(read_twice()))
    assert [*plan.shown] == [2]
    stub = plan.shown[2]
    assert isinstance(stub, StubResult)
    assert stub.text == "[superseded: read, iteration 1; called again for this or more in iteration 3]"


@pytest.mark.parametrize(
    "second",
    [
        {"arguments": {"path": "a", "line": 2}},
        {"arguments": {"path": "b", "line": 1}},
        {"tool": "stat"},
        {"errors": [0]},
    ],
    ids=["another range", "another path", "another tool", "it failed"],
)
def test_what_is_not_the_same_supersedes_nothing(second: dict[str, Any]) -> None:
    """Negative control: only a newer answer to the same call makes an older one go."""
    assert not last_plan(read_twice(**second), short_of_room(read_twice())).shown


@pytest.mark.parametrize("wider", [{"lines": [1, 400]}, {"limit": 400}, {}], ids=["a pair", "a number", "all of it"])
def test_a_wider_range_of_the_same_read_makes_the_older_one_go(wider: dict[str, Any]) -> None:
    """All that it gave stands in the newer one, whatever the tool says above and below its lines."""
    part = "".join(f"{number}\tcrane_{number} turns left\n" for number in range(100, 330))
    whole = "".join(f"{number}\tcrane_{number} turns left\n" for number in range(1, 400))
    story = Story()
    story.turn(f"a (lines 100-329)\n{part}100 more", arguments={"path": "a", "lines": [100, 329]})
    story.turn("something else\n" * 60)
    story.turn(f"a (lines 1-399)\n{whole}", arguments={"path": "a", **wider})
    assert [*last_plan(story, short_of_room(story)).shown] == [2]


def test_a_pointer_to_the_first_result_does_not_supersede_it() -> None:
    """A repeat that was answered from the first leans on it."""
    story = read_twice()
    pointer = story.entries[-1]
    story.entries[-1] = type(pointer)(
        **{name: getattr(pointer, name) for name in pointer.__struct_fields__ if name != "deduplicated_from"},
        deduplicated_from="call_1",
    )
    assert not last_plan(story, short_of_room(story)).shown


def test_an_unread_result_stays() -> None:
    """What the model has not seen yet is not taken away."""
    story = Story()
    story.turn(OLD, NEW, arguments={"path": "a"})
    shown = last_plan(story, short_of_room(story)).shown.values()
    assert not [stub for stub in shown if isinstance(stub, StubResult) and stub.why == "superseded"]


@pytest.mark.parametrize("window", [3, 4, 6])
def test_a_fold_takes_superseded_reads_behind_it_along(window: int) -> None:
    """They are written anew with it anyway, so nothing else need pay for that."""
    story = Story()
    for number in range(60):
        story.turn("plain words of no use\n" * 250, arguments={"path": number})
        rope = f"rope_{number}_left holds lib/crane.py\n"
        story.turn(rope + "the load hangs in the wind\n" * 150, arguments={"path": "a"}, text="")
    folds = [
        outcome.decisions[0]
        for _, outcome in planned(story, ContextPolicy(window=window, show_once=False), profile(cache=False))
        if outcome.decisions
    ]
    taken = [
        edit for fold in folds for edit in fold.edits if isinstance(edit, StubResult) and "superseded" in edit.text
    ]
    assert len(taken) > 3
    starts = {id(fold): max(e.last + 1 for e in fold.edits if isinstance(e, CoverRange)) for fold in folds}
    assert all(edit.position >= starts[id(fold)] for fold in folds for edit in fold.edits if edit in taken)


def test_without_stubs_none_is_made() -> None:
    """Superseded or not."""
    story = read_twice()
    assert not last_plan(story, ContextPolicy(rhythm="strict", stubs=False, strict_chars=0)).shown


def test_a_prompt_that_must_shrink_loses_them_first() -> None:
    """Where that is enough, nothing else is touched."""
    story = read_twice()
    planner = Planner(policy=short_of_room(story), profile=profile(), head_tokens=500)
    (decision,) = planner.next(story.snapshot(), iteration=4).decisions
    assert [(type(edit), edit.position) for edit in decision.edits if isinstance(edit, StubResult)] == [(StubResult, 2)]
    assert len(decision.edits) == 1
