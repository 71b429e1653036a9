"""What callers and agents ask of the plan, and what they are told: expanding, due summaries, lifecycle events."""

from __future__ import annotations

import pytest

from context_histories import expand, long_story, pin, plan_afresh, profile
from repertory.context import EMPTY, ContextPolicy, apply, project
from repertory.context.lifecycle import added, events_of
from repertory.errors import ContextError
from repertory.llm.messages import text_of
from repertory.llm.profiles import ModelProfile
from repertory.shortening import ResultPolicy

NO_CACHE: ModelProfile = profile(cache=False)


def test_a_part_of_the_whole_can_be_expanded() -> None:
    """The lines that were asked for, out of the content store's whole, under a line that says which."""
    story = long_story(12)
    plan = plan_afresh(story.snapshot(), policy=ContextPolicy(), profile=NO_CACHE, iteration=13).plan
    whole = "".join(f"line {n}\n" for n in range(1, 101))
    decision = expand(story.snapshot(), plan, 2, iteration=13, whole=whole, items=(40, 41))
    request = project(story.snapshot(), apply(plan, decision), profile=NO_CACHE)
    assert any("[lines 40–41 of 100]\nline 40\nline 41\n" in text_of(b) for m in request.messages for b in m.content)
    own = expand(story.snapshot(), plan, 2, iteration=13, items=(1, 1))
    assert "lines 1–1 of" in str(own.edits)


def test_expanding_what_cannot_be_is_an_error() -> None:
    """What is in view already, lines that are not there, entries that do not exist."""
    story = long_story(12)
    plan = plan_afresh(story.snapshot(), policy=ContextPolicy(), profile=NO_CACHE, iteration=13).plan
    with pytest.raises(ContextError, match="entry 24 is in view already"):
        expand(story.snapshot(), plan, 24, iteration=13)
    with pytest.raises(ContextError, match="lines 1–2; lines 9–9 cannot be shown"):
        expand(story.snapshot(), plan, 2, iteration=13, whole="a\nb\n", items=(9, 9))
    with pytest.raises(ContextError, match="there is no entry -1"):
        expand(story.snapshot(), plan, -1, iteration=13)


def test_what_was_expanded_can_be_compacted_again() -> None:
    """An expanded result is a result like any other for the next plan."""
    story = long_story(12)
    plan = plan_afresh(story.snapshot(), policy=ContextPolicy(), profile=NO_CACHE, iteration=13).plan
    back = apply(plan, expand(story.snapshot(), plan, 2, iteration=13))
    assert back.representation(story.entries[2]) == "expanded"
    again = plan_afresh(story.snapshot(), back, policy=ContextPolicy(), profile=NO_CACHE, iteration=14).plan
    assert again.representation(story.entries[2]) in ("covered", "expanded")
    late = plan_afresh(story.snapshot(), EMPTY, policy=ContextPolicy(summaries=False), profile=NO_CACHE, iteration=13)
    again = apply(late.plan, expand(story.snapshot(), late.plan, 2, iteration=13))
    policy = ContextPolicy(summaries=False)
    again = plan_afresh(story.snapshot(), again, policy=policy, profile=NO_CACHE, iteration=14).plan
    assert again.representation(story.entries[2]) == "stub"


def test_every_edit_becomes_an_event() -> None:
    """Added, compacted, expired, removed, covered, expanded: with turn, reason, tokens and price."""
    policy = ContextPolicy(
        tools={"gone": ResultPolicy(expiration_mode="remove", expiration_turns=1)}, summarize_every=1, keep_recent=2
    )
    story = long_story(8)
    assert [(e.kind, e.position, e.tokens_saved) for e in added(story.entries[:1])] == [
        ("added", 0, -story.entries[0].tokens)
    ]
    story.turn("gone soon\n" * 300, tool="gone")
    for _ in range(4):
        story.turn("words\n" * 300)
    outcome = plan_afresh(story.snapshot(), policy=policy, profile=NO_CACHE, iteration=14)
    events = [e for d in outcome.decisions for e in events_of(d, story.snapshot())]
    assert {event.kind for event in events} >= {"covered"}
    assert all(event.turn == 14 and event.reason and event.saving_per_call > 0 for event in events)
    bare = ContextPolicy(tools=policy.tools, summaries=False, keep_recent=2)
    outcome = plan_afresh(story.snapshot(), policy=bare, profile=NO_CACHE, iteration=14)
    kinds = [e.kind for d in outcome.decisions for e in events_of(d, story.snapshot())]
    assert kinds[:2] == ["expired", "removed"]
    assert "compacted" in kinds
    shown = expand(story.snapshot(), outcome.plan, 2, iteration=15)
    (event,) = events_of(shown, story.snapshot())
    assert (event.kind, event.position, event.tokens_saved < 0) == ("expanded", 2, True)
    assert events_of(pin(story.snapshot(), 2, iteration=3), story.snapshot()) == []
