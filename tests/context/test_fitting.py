"""A prompt that cannot be made to fit: the error says by whose limit, and which part is too large."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
from frames import unsaid

from context_histories import PICTURE, Story, long_story, plan_afresh, planned, profile, words_of
from repertory.context import ContextPolicy, Planner, project
from repertory.context.decisions import Decision
from repertory.context.plan import CoverRange
from repertory.errors import ContextOverflow
from repertory.llm.messages import Text, text_of

LONG = "word " * 4_000  # 5,000 tokens


def overflow(story: Story, policy: ContextPolicy, *, head: int = 10, window: int = 4_000, **options: int) -> str:
    """What the error says."""
    planner = Planner(policy=policy, profile=profile(window=window), head_tokens=head, max_tokens=1_000)
    with pytest.raises(ContextOverflow) as caught:
        planner.next(story.snapshot(), iteration=2, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("budget", "options", "words"),
    [
        (2_000, {}, r"2,000 may be sent (the policy's budget_tokens)"),
        (None, {}, r"3,000 may be sent (the window of model less 1,000 for the answer)"),
        (3_500, {}, r"3,000 may be sent (the window of model less 1,000 for the answer)"),
        (None, {"shrink_to": 900}, r"900 may be sent (the server refused a longer one)"),
    ],
)
def test_the_error_names_whose_limit_it_is(budget: int | None, options: dict[str, int], words: str) -> None:
    """The budget, the window or the server: each is raised in another place."""
    story = Story(LONG)
    story.turn("ok")
    said = overflow(story, ContextPolicy(budget_tokens=budget), **options)
    assert words.replace("model", profile().name) in said


def test_a_limit_that_the_server_taught_is_named_as_such() -> None:
    """It is below what the profile says of the window."""
    story = Story(LONG)
    story.turn("ok")
    planner = Planner(policy=ContextPolicy(), profile=profile(window=100_000), accepted_tokens=1_500)
    with pytest.raises(ContextOverflow, match=r"1,500 may be sent \(the server refused longer ones\)"):
        planner.next(story.snapshot(), iteration=2)


@pytest.mark.parametrize(("large", "part"), [("head", 0), ("task", 1), ("user", 1), ("turn", 2)])
def test_the_error_says_which_part_is_too_large(large: str, part: int) -> None:
    """The instructions and tools, what always stays, the newest turn: its tokens stand out, and the parts add up."""
    story = Story(LONG if large == "task" else "Read.")
    story.turn("ok")
    story.turn("ok", text=LONG if large == "turn" else "go on")
    if large == "user":
        story.say(LONG)
    said = overflow(story, ContextPolicy(budget_tokens=2_000), head=5_000 if large == "head" else 10)
    total, *parts = (int(number.replace(",", "")) for number in re.findall(r"([\d,]+) (?:tokens at|of )", said))
    assert sum(parts) == pytest.approx(total, abs=4)
    assert parts[part] > 4_800
    assert sum(number > 1_000 for number in parts) == 1


@pytest.mark.parametrize("budget", [12_000, 6_000, 2_000])
def test_a_stretch_that_had_to_become_its_calls_alone_still_says_what_it_took_out_of_view(budget: int) -> None:
    """What the trail of it would have been was never in view."""
    story = long_story(40)
    policy = ContextPolicy(budget_tokens=budget)
    (decision,) = plan_afresh(story.snapshot(), policy=policy, profile=profile(), iteration=41).decisions
    covers = [edit for edit in decision.edits if isinstance(edit, CoverRange)]
    gone = story.entries[: covers[-1].last + 1]
    assert sum(cover.was_tokens for cover in covers) == sum(entry.tokens for entry in gone)


def test_a_log_of_one_long_stretch_can_be_shortened_too() -> None:
    """Of several the newest quarter stays; a single one was left as it was, and the run ended."""
    story = Story()
    for number in range(1, 41):
        story.turn("".join(f"row_{number}_{at} is at berth_{number}_{at}\n" for at in range(90)))
    end, policy = len(story.entries), ContextPolicy()
    folded = plan_afresh(story.snapshot(end), policy=policy, profile=profile(), iteration=41, cold=True).plan
    (stretch,) = folded.covers
    policy = ContextPolicy(budget_tokens=3_000)
    assert stretch.tokens > 3_000
    outcome = plan_afresh(story.snapshot(end), folded, policy=policy, profile=profile(), iteration=41)
    assert outcome.prompt_tokens <= 3_000
    assert outcome.plan.covers[0].content


def test_images_are_left_out_before_a_run_ends_for_want_of_room() -> None:
    """As the texts beside them are cut; what is shown instead says so."""
    story = Story()
    story.turn((Text("a chart"), PICTURE), (PICTURE,), (Text("long " * 1_000), PICTURE), "short")
    asked: Any = {"policy": ContextPolicy(budget_tokens=2_000), "profile": profile(), "iteration": 2}
    outcome = plan_afresh(story.snapshot(), **asked)
    assert outcome.prompt_tokens <= 2_000
    messages = project(story.snapshot(), outcome.plan, profile=profile()).messages
    *cut, short = [text_of(block) for block in messages[-1].content]
    end = "[shortened because the context is full, without 1 image; context_retrieve(iteration=1) shows the whole]"
    assert cut[:2] == [f"a chart\n{end}", end]
    assert cut[2].startswith("long long")
    assert cut[2].endswith(end)
    assert short == "short"


def test_an_edit_for_comfort_replaces_what_was_shown_once() -> None:
    """Results that were not written to the cache are not written after all because the view is long."""
    story = Story()
    for number in range(40):
        words = f"berth_{number} " + "plain words of no use " * 20
        story.turn("\n".join([words] * 12), text=f"Step {number}. " + "What I think of it. " * 30)
    policy = ContextPolicy(comfort_tokens=12_000)
    shown_once, kinds = set[int](), set[str]()
    for snapshot, outcome in planned(story, policy, profile(window=1_000_000), head_tokens=2_000):
        verbatim = {at for at in shown_once if outcome.plan.representation(snapshot[at]) == "verbatim"}
        assert not verbatim, f"at entry {len(snapshot)}"
        kinds |= {decision.kind for decision in outcome.decisions if shown_once}
        held = outcome.plan.held if outcome.decisions else 0
        shown_once = {entry.position for entry in snapshot[held:] if entry.tool_call_id} if held else set[int]()
    assert kinds >= {"once", "comfort"}


@pytest.mark.parametrize("thinking", ["", "Hm."])
@pytest.mark.parametrize("calls", [1, 2, 4])
def test_large_turns_are_shown_once_whatever_else_is_edited_and_their_stubs_stay_within_the_comfort(
    calls: int, thinking: str
) -> None:
    """A result that was written to the cache beside an edit for comfort made that necessary at each request; and stubs,
    of which a fold would clear nothing, filled the view."""
    story, comfort = Story(), 40_000
    for number in range(120):
        rows = [f"row {number}-{at} lies at berth_{number}_{at}\n" for at in range(700)]
        story.turn(*("".join(rows[part::calls]) for part in range(calls)), thinking=thinking)
    decisions, model = list[Decision](), profile(window=1_000_000, target="binding" if thinking else "free")
    for snapshot, outcome in planned(story, ContextPolicy(comfort_tokens=comfort), model, head_tokens=2_000)[2:]:
        assert outcome.plan.held == len(snapshot) - calls
        assert outcome.prompt_tokens <= comfort
        decisions += outcome.decisions
    kinds = Counter(decision.kind for decision in decisions)
    assert kinds["comfort"] * 4 < kinds["once"]


def test_what_users_said_is_in_the_log_where_it_does_not_stay_in_their_words() -> None:
    """``keep_user_input=False`` frees its place in view; it does not take it from the agent."""
    story = Story()
    for number in range(1, 31):
        story.turn(f"def handler_{number}(request): return {number}\n" * 100)
        story.say(f"remark_{number:02}")
    model = profile(cache=False)
    for keep in (True, False):
        snapshot, outcome = planned(story, ContextPolicy(keep_user_input=keep), model)[-1]
        messages = project(snapshot, outcome.plan, profile=model).messages
        assert outcome.plan.start > len(snapshot) // 2, "or nothing was folded"
        said = [block for message in messages for block in message.content if message.role == "user"]
        assert (Text("remark_01") in said) is keep
        assert [number for number in range(1, 31) if f"remark_{number:02}" not in words_of(messages)] == []


def test_a_long_talk_leaves_the_trail_within_its_share_and_every_word_of_it_in_view() -> None:
    """A line between every two remarks would be more than there is room for: the view would grow without end."""
    story, policy = Story(), ContextPolicy(comfort_tokens=12_000)
    for number in range(1, 301):
        story.turn(f"def handler_{number}(request): return {number}\n" * 40)
        story.say(f"remark {number}")
    for snapshot, outcome in planned(story, policy, profile())[50::50]:
        assert outcome.prompt_tokens < 12_000
        assert len(outcome.plan.covers) < 150
        assert unsaid(project(snapshot, outcome.plan, profile=profile()), snapshot, users=True) == []
