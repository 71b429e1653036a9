"""Figures of a view, and what it takes to read them."""

from __future__ import annotations

from typing import Any

import pytest

from context_histories import Story
from repertory.context import EMPTY, ContextPolicy
from repertory.context.view_index import ViewIndex


def view_of(talk: str) -> ViewIndex:
    """The view of a story: ``t`` is a turn with a result, ``s`` something that the user says, ``a`` an answer."""
    story = Story()
    for letter in talk:
        if letter == "s":
            story.say("And now?")
        else:
            story.turn(*["a result"] * (letter == "t"))
    return ViewIndex(EMPTY, ContextPolicy(), story.snapshot())


@pytest.mark.parametrize("talk", ["", "s", "t", "as", "tasasa", "ttasst", "tsastasas", "asastt", "saattssaat"])
def test_talk_is_passed_over_as_if_entry_by_entry(talk: str) -> None:
    """From each position: to the first entry that does not stay, and never past the newest one."""
    view = view_of(talk)
    for position in range(view.position + 1):
        end = position
        while end in view.kept and end + 1 < view.position:
            end += 1
        assert view.skip_talk(position) == max(position, view.end_before(end))


class Counting(list[int]):
    """Counts how often it is read."""

    reads = 0

    def __getitem__(self, key: Any) -> Any:
        """Count it."""
        self.reads += 1
        return super().__getitem__(key)


def test_a_long_talk_is_passed_over_at_once() -> None:
    """A chat that is resumed plans for each of its requests, so that each may not read all the talk that follows."""
    view = view_of("as" * 1_000)
    view.kept = kept = Counting(view.kept)
    view.others_before = others = Counting(view.others_before)
    assert view.skip_talk(2) == view.position - 1
    assert 0 < kept.reads + others.reads < 50
