"""The plan: edits, what they may not do, and the journal's form."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from context_histories import PICTURE, Story, long_story, profile
from repertory.context import (
    EMPTY,
    Arithmetic,
    Decision,
    Plan,
    apply,
    decode_decision,
    encode_decision,
    project,
    replay,
)
from repertory.context.plan import (
    CoverRange,
    DropThinking,
    Edit,
    ExpandEntry,
    HoldBack,
    PinEntry,
    RemoveResult,
    StubResult,
    UnpinEntry,
)
from repertory.errors import ContextError, JournalUnreadable
from repertory.llm.messages import RawBlock, Text, text_of
from repertory.llm.validation import validate


def decide(*edits: Edit, **fields: Any) -> Decision:
    """A decision with just these edits."""
    return Decision(**{"kind": "strict", "reason": "test", "iteration": 3, "position": 9, **fields}, edits=edits)


def cover(first: int, last: int, **fields: Any) -> CoverRange:
    """A summary of a range."""
    return CoverRange(first=first, last=last, content=(Text("S"),), tokens=5, was_tokens=100, **fields)


STUB = StubResult(position=2, text="[short]", tokens=3, was_tokens=900)
REMOVAL = RemoveResult(position=4, call_id="call_2", text="[expired]", tokens=3, was_tokens=900)


def test_each_edit_changes_how_its_entry_is_shown() -> None:
    """Every representation, in the words of the design."""
    story = long_story(5)
    entries = story.entries
    plan = apply(EMPTY, decide(STUB, REMOVAL))
    assert [plan.representation(entries[p]) for p in (0, 2, 4, 6)] == ["verbatim", "stub", "removed", "verbatim"]
    plan = apply(plan, decide(ExpandEntry(position=2, tokens=900, was_tokens=3)))
    assert plan.representation(entries[2]) == "expanded"
    plan = apply(plan, decide(cover(0, 6, kept=(0,))))
    assert [plan.representation(entries[p]) for p in (0, 2, 4, 8)] == ["verbatim", "covered", "covered", "verbatim"]
    assert plan.representation(msgspec.structs.replace(entries[8], original_length=10**6)) == "shaped"


def test_a_plan_never_changes() -> None:
    """Applying makes a new plan; the old one shows what it always showed."""
    one = apply(EMPTY, decide(STUB))
    two = apply(one, decide(REMOVAL))
    assert (len(EMPTY.shown), len(one.shown), len(two.shown)) == (0, 1, 2)
    with pytest.raises(TypeError):
        one.shown[3] = one.shown[2]  # type: ignore[index]
    with pytest.raises(AttributeError):
        one.epoch = 7  # type: ignore[misc]


def test_the_plan_does_not_grow_with_what_is_covered() -> None:
    """A thousand covered entries leave one cover; single edits under it are dropped."""
    plan = EMPTY
    for position in range(2, 2002, 2):
        plan = apply(plan, decide(StubResult(position=position, text="x", tokens=1, was_tokens=9)))
    plan = apply(plan, decide(cover(0, 2001, kept=(0,))))
    assert (len(plan.covers), len(plan.shown), plan.start) == (1, 0, 2002)


def test_summaries_follow_one_another_or_replace_what_they_include() -> None:
    """Covers have no gaps and no overlaps."""
    plan = apply(EMPTY, decide(cover(0, 4), cover(5, 8)))
    assert [(c.first, c.last) for c in plan.covers] == [(0, 4), (5, 8)]
    assert [(c.first, c.last) for c in apply(plan, decide(cover(0, 10))).covers] == [(0, 10)]
    assert [(c.first, c.last) for c in apply(plan, decide(cover(5, 12))).covers] == [(0, 4), (5, 12)]
    assert plan.cover_of(6) == plan.covers[1]
    assert plan.cover_of(9) is None


def test_a_summary_may_take_the_place_of_those_in_front() -> None:
    """Newer ones behind it stay, and what follows them may be covered with the same decision."""
    plan = apply(EMPTY, decide(cover(0, 4), cover(5, 8), cover(9, 10)))
    merged = apply(plan, decide(cover(0, 8), cover(11, 12)))
    assert [(c.first, c.last) for c in merged.covers] == [(0, 8), (9, 10), (11, 12)]
    assert merged.covers[1] is plan.covers[2]


def test_what_was_asked_for_stays_as_asked_for_under_a_summary() -> None:
    """A part that is held in view is still that part when its surroundings are covered; let go, it goes with them."""
    story = long_story(8)
    part = ExpandEntry(position=2, content=(Text("lines 3–5"),), tokens=9, was_tokens=9)
    held = apply(EMPTY, decide(PinEntry(position=2), part))
    covered = apply(held, decide(cover(0, 6, kept=(0,))))
    request = project(story.snapshot(), covered, profile=profile())
    validate(request)
    assert request.messages[1].content == story.entries[1].content[1:]  # its call
    assert [text_of(block) for block in request.messages[2].content] == ["lines 3–5"]
    gone = apply(apply(covered, decide(UnpinEntry(position=2))), decide(cover(0, 8, kept=(0,))))
    assert gone.representation(story.entries[2]) == "covered"


@pytest.mark.parametrize(
    "edit",
    [cover(6, 9), cover(3, 9), cover(0, 2), StubResult(position=1, text="", tokens=0, was_tokens=0), REMOVAL],
)
def test_an_edit_that_does_not_fit_is_refused(edit: Edit) -> None:
    """A gap, an overlap, a shrinking summary, an edit of what is covered: none is applied."""
    plan = apply(EMPTY, decide(cover(0, 4)))
    with pytest.raises(ContextError):
        apply(plan, decide(edit))


def test_what_is_pinned_cannot_be_edited_and_is_shown_in_full() -> None:
    """Pinning undoes a stub or a removal; unpinning allows it again."""
    plan = apply(EMPTY, decide(STUB, REMOVAL))
    plan = apply(plan, decide(PinEntry(position=2), PinEntry(position=4)))
    assert (dict(plan.shown), plan.removed_calls) == ({}, frozenset())
    with pytest.raises(ContextError, match="entry 2, which is pinned"):
        apply(plan, decide(STUB))
    assert apply(apply(plan, decide(UnpinEntry(position=2))), decide(STUB)).shown


def test_a_mere_pin_starts_no_epoch() -> None:
    """What rewrites nothing moves no cache edge."""
    plan = apply(EMPTY, decide(PinEntry(position=2)))
    assert (plan.epoch, plan.edges) == (0, ())
    covered = apply(plan, decide(cover(0, 6)))
    assert apply(covered, decide(PinEntry(position=4))).epoch == 2


def test_edges_remember_the_last_two_epochs() -> None:
    """The cache holds the prefix up to the one before; the next edit begins behind the newest."""
    plan = apply(EMPTY, decide(STUB, edge=3))
    plan = apply(plan, decide(REMOVAL, edge=5))
    plan = apply(plan, decide(cover(0, 6), edge=7, position=20, iteration=9))
    assert (plan.edges, plan.epoch, plan.decided_at) == ((5, 7), 3, 20)
    assert apply(plan, decide(HoldBack(position=9), edge=0)).edges == (5, 7)


def test_every_edit_survives_the_journal() -> None:
    """JSON and back is the identical decision, signed blocks and pictures included."""
    signed = RawBlock({"type": "compaction", "content": "opaque", "signature": "abc"})
    decision = decide(
        STUB,
        REMOVAL,
        CoverRange(first=0, last=9, content=(signed, Text("é")), tokens=1, was_tokens=2, kept=(0, 3)),
        ExpandEntry(position=2, tokens=5, was_tokens=1, content=(Text("x"), PICTURE)),
        ExpandEntry(position=3, tokens=5, was_tokens=1),
        PinEntry(position=1),
        UnpinEntry(position=1),
        DropThinking(position=8),
        arithmetic=Arithmetic(cleared_tokens=31_000, cost_now=0.019, saving_per_call=0.0035),
    )
    assert decode_decision(msgspec.json.decode(msgspec.json.encode(encode_decision(decision)))) == decision


@pytest.mark.parametrize(
    "break_it",
    [
        lambda b: b["edits"].append({"edit": "paint"}),
        lambda b: b.pop("reason"),
        lambda b: b["edits"][0].pop("text"),
        lambda b: b.update(arithmetic=3),
    ],
)
def test_an_unknown_decision_is_refused_not_guessed(break_it: Any) -> None:
    """A journal of a newer version, or a damaged one, ends in an error that says so."""
    body = encode_decision(decide(STUB))
    break_it(body)
    with pytest.raises(JournalUnreadable, match="decision"):
        replay([body])


def test_a_decision_reads_as_a_sentence() -> None:
    """A person sees the reason and the arithmetic."""
    paid = Arithmetic(cleared_tokens=31_000, cost_now=0.019, saving_per_call=0.0035)
    assert decide(STUB, reason="it pays", arithmetic=paid).sentence == (
        "it pays: clears 31.0k tokens, costs $0.0190 now, saves $0.0035 a call"
    )
    free = Arithmetic(cleared_tokens=310, cost_now=-0.01, saving_per_call=0.0035)
    assert "310 tokens, saves $0.0100 at once" in decide(STUB, arithmetic=free).sentence
    assert decide(PinEntry(position=1), reason="pin").sentence == "pin: clears 0 tokens"


def test_thinking_is_dropped_up_to_a_position_and_no_further() -> None:
    """Reasoning behind an edit goes; what comes later stays."""
    story = Story()
    story.turn("a", thinking="first")
    story.turn("b", thinking="second")
    plan = apply(EMPTY, decide(DropThinking(position=3)))
    words = str(project(story.snapshot(), plan, profile=profile()))
    assert "first" not in words
    assert "second" in words


def test_a_cover_and_an_expanded_entry_make_a_legal_request() -> None:
    """A covered entry that is expanded stands before the summary: words in their role, a result behind its call."""
    story = long_story(6)
    plan = apply(EMPTY, decide(cover(0, 8, kept=(0,))))
    plan = apply(
        plan,
        decide(
            ExpandEntry(position=3, tokens=9, was_tokens=0),
            ExpandEntry(position=4, tokens=9, was_tokens=0, content=(Text("part"),)),
        ),
    )
    request = project(story.snapshot(), plan, profile=profile())
    validate(request)
    assert [[text_of(block) for block in message.content] for message in request.messages[:4]] == [
        ["Find out why the tides differ."],
        ["Let me look.", ""],
        ["part"],
        [""],
    ]
    assert isinstance(plan, Plan)
