"""Lifecycle events: each names its message, its tool and call, and why just this one is shown otherwise."""

from __future__ import annotations

import re
from typing import Any

import pytest

from context_histories import Story, long_story, planned, profile
from repertory.context import ContextPolicy, MessageEvent
from repertory.context.lifecycle import events_of
from repertory.shortening import ResultPolicy


def events(story: Story, policy: ContextPolicy, **model: Any) -> list[MessageEvent]:
    """What is said of all the decisions of a run."""
    return [
        event
        for snapshot, outcome in planned(story, policy, profile(**model))
        for decision in outcome.decisions
        for event in events_of(decision, snapshot)
    ]


def strict(**options: Any) -> ContextPolicy:
    """A policy in strict rhythm."""
    return ContextPolicy(rhythm="strict", strict_chars=0, **options)


def test_in_strict_rhythm_a_stub_says_why_just_this_one() -> None:
    """Not the sentence about all policies."""
    heard = events(long_story(6), strict(window=2))
    assert heard
    assert {event.reason for event in heard} == {"older than the window, or than the newest results"}
    assert {event.kind for event in heard} == {"compacted"}
    assert all((event.tool, event.tool_call_id) == ("read", f"call_{event.position // 2}") for event in heard)


def test_in_strict_rhythm_a_log_says_what_it_stands_for() -> None:
    """It is about a range, so it names no tool."""
    heard = [event for event in events(long_story(40), strict(window=2, summarize_every=2)) if event.kind == "covered"]
    assert heard
    for event in heard:
        assert re.fullmatch(r"a log stands for iterations \d+ to \d+", event.reason)
        assert (event.tool, event.tool_call_id) == (None, None)


def test_a_result_whose_call_was_made_again_says_so() -> None:
    """With the reason for which it happens just now."""
    story = Story()
    story.turn("something old\n" * 200, arguments={"path": "a"})
    story.turn("something new\n" * 200, arguments={"path": "a"})
    story.turn("something else\n" * 60)
    (event,) = [event for event in events(story, ContextPolicy(budget_tokens=1_900)) if event.position == 2]
    why, _, rest = event.reason.partition("; ")
    assert why == "the same was called again since"
    assert rest.startswith("the prompt must not exceed")


@pytest.mark.parametrize(("turns", "shown"), [(0, 1), (1, 1), (2, 2), (5, 5)])
@pytest.mark.parametrize("mode", ["remove", "compact"])
def test_a_result_is_shown_in_as_many_requests_as_its_policy_says(turns: int, shown: int, mode: Any) -> None:
    """And in one at least: 0 and 1 are the same."""
    rules = ResultPolicy(expiration_turns=turns, expiration_mode=mode)
    policy = strict(window=50, summaries=False, results=rules)
    whole = [
        outcome.plan.representation(snapshot[2]) == "verbatim"
        for snapshot, outcome in planned(long_story(12), policy, profile())
        if len(snapshot) > 2
    ]
    assert whole == [True] * shown + [False] * (len(whole) - shown)
    (expired, _) = [event for event in events(long_story(12), policy) if event.position == 2]
    assert (expired.kind, expired.turn) == ("expired", 2 + shown)
    assert expired.reason == f"expired after {shown} iteration{'s' * (shown > 1)}"
