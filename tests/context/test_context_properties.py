"""What holds for every history, every policy and every model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from frames import strangers
from hypothesis import given, settings
from hypothesis import strategies as st

from context_histories import Story, expand, long_story, models, pin, plan_afresh, planned, policies, profile, stories
from random_runs import drawn, lived
from repertory._json_text import canonical_json
from repertory.context import (
    EMPTY,
    ContextPolicy,
    Outcome,
    Plan,
    Planner,
    Projector,
    apply,
    encode_decision,
    project,
    replay,
)
from repertory.context.decisions import entry_at
from repertory.context.plan import CoverRange, DropThinking, HoldBack, RemoveResult, StubResult
from repertory.errors import ContextError, ContextOverflow, InvalidRequest
from repertory.llm.messages import Text, ToolResult, encode_message, text_of
from repertory.llm.model import ModelRequest, encode_request
from repertory.llm.profiles import ModelProfile, Target
from repertory.llm.validation import validate
from repertory.record import Entry, Snapshot
from repertory.record.records import SummaryStored
from repertory.record.requests import RecordedRequest, RequestRecorder, request_digest
from repertory.shortening.shaping import shape_result
from repertory.testing.rules import check_body

SYSTEM = (Text("You are careful."),)
_PLANNED = (CoverRange, DropThinking, HoldBack, RemoveResult, StubResult)


def follow(
    story: Story, policy: ContextPolicy, model: ModelProfile, *, summaries: bool = True
) -> Iterator[tuple[Snapshot, Outcome, ModelRequest]]:
    """Live through a story as an agent would, with a summarizer that is always a little late."""
    planner = Planner(policy=policy, profile=model, head_tokens=100, max_tokens=1024)
    plan: Plan = EMPTY
    ready: list[SummaryStored] = []
    for position in story.requests():
        snapshot = story.snapshot(position)
        iteration = story.entries[position - 1].iteration + 1
        offered = ready if summaries else ()
        outcome = planner.next(
            snapshot, plan, iteration=iteration, summaries=offered, result_summaries=result_summaries_of(snapshot)
        )
        plan = outcome.plan
        yield snapshot, outcome, project(snapshot, plan, profile=model, system=SYSTEM, max_tokens=1024)
        if iteration % 3 == 0 and position > 2:
            ready = [*ready, summary_of(snapshot)]


def result_summaries_of(snapshot: Snapshot) -> dict[int, str]:
    """What a model wrote of every other result."""
    results = [entry.position for entry in snapshot if entry.tool_call_id is not None]
    return {position: f"Found at {position}.\n- and more" for position in results[::2]}


def summary_of(snapshot: Snapshot, *, tokens: int = 20) -> SummaryStored:
    """A short summary of everything."""
    return SummaryStored(
        run_id=snapshot.run_id,
        summary_id=f"sum-{len(snapshot)}",
        first=0,
        last=len(snapshot) - 1,
        strategy="model",
        content=(Text(f"FACTS: what entries 0 to {len(snapshot) - 1} said."),),
        tokens=tokens,
        at=0.0,
    )


def outcomes(story: Story, policy: ContextPolicy, model: ModelProfile, **options: Any) -> list[Any]:
    """All of ``follow``; a story that cannot fit ends where it no longer does."""
    out = []
    with suppress(ContextOverflow):
        out.extend(follow(story, policy, model, **options))
    return out


def _json(value: Any) -> str:
    return canonical_json(value).decode()


def sent_text(request: ModelRequest) -> str:
    """Every word of a request's messages."""
    parts = []
    for message in request.messages:
        for block in message.content:
            parts.append(text_of(block) if not hasattr(block, "input") else _json(block.input))
    return "\n".join(parts)


def gaps(snapshot: Snapshot, plan: Plan, request: ModelRequest) -> list[int]:
    """Positions of the record that the request neither shows, nor cites, nor covers by a summary."""
    shown = sent_text(request)
    ids = {block.tool_use_id for m in request.messages for block in m.content if isinstance(block, ToolResult)}
    missing = []
    for entry in snapshot:
        match plan.representation(entry):
            case "covered":
                cover = plan.cover_of(entry.position)
                assert cover is not None
                ok = all(text_of(block) in shown for block in cover.content)
            case "removed" | "stub":
                instead = plan.shown[entry.position]
                assert isinstance(instead, StubResult | RemoveResult)
                ok = instead.text in shown
            case _ if entry.tool_call_id is not None and plan.cover_of(entry.position) is None:
                ok = entry.tool_call_id in ids
            case _:
                ok = all(
                    block.text in shown for block in entry.content if isinstance(block, Text) and block.text.strip()
                )
        if not ok:
            missing.append(entry.position)
    return missing


@given(story=stories(), policy=policies(), model=models())
def test_every_request_is_legal(story: Story, policy: ContextPolicy, model: ModelProfile) -> None:
    """No history and no policy leads to a request that the API would refuse; two independent checkers agree."""
    for _, _, request in outcomes(story, policy, model):
        validate(request, model)
        check_body(encode_request(request), profile=model, betas=frozenset())


@given(story=stories(), policy=policies(), model=models())
def test_nothing_of_the_record_is_missing(story: Story, policy: ContextPolicy, model: ModelProfile) -> None:
    """Every entry is in view verbatim, shaped, cited, or covered by a summary that is in view."""
    for snapshot, outcome, request in outcomes(story, policy, model):
        assert gaps(snapshot, outcome.plan, request) == []


def test_a_gap_is_seen() -> None:
    """Negative control: a request that leaves a message out has a gap, and so has one without its summary."""
    story = long_story(30)
    (snapshot, outcome, request) = list(follow(story, ContextPolicy(rhythm="strict"), profile()))[-1]
    assert gaps(snapshot, outcome.plan, request) == []
    without_last = msgspec.structs.replace(request, messages=request.messages[:-1])
    without_first = msgspec.structs.replace(request, messages=request.messages[1:])
    assert gaps(snapshot, outcome.plan, without_last) != []
    assert gaps(snapshot, outcome.plan, without_first) != []


@given(story=stories(), policy=policies(), model=models())
def test_the_task_and_what_is_pinned_stay_verbatim(story: Story, policy: ContextPolicy, model: ModelProfile) -> None:
    """The task's words open every request; a pinned result stands in each that follows it, word for word."""
    for snapshot, _, request in outcomes(story, policy, model):
        assert request.messages[0].content[0] == snapshot[0].content[0]
        words = sent_text(request)
        for entry in snapshot:
            if entry.tool == "pinned" and text_of(entry.content).strip():  # the API takes no blank text block
                assert text_of(entry.content) in words


@given(story=stories(), policy=policies(), model=models())
def test_planning_again_gives_the_same_bytes(story: Story, policy: ContextPolicy, model: ModelProfile) -> None:
    """Planner and projection are functions: the same record gives the same decisions and the same request."""
    once, twice = outcomes(story, policy, model), outcomes(story, policy, model)
    assert [canonical_json(encode_request(r)) for _, _, r in once] == [
        canonical_json(encode_request(r)) for _, _, r in twice
    ]
    assert [o.decisions for _, o, _ in once] == [o.decisions for _, o, _ in twice]


@given(story=stories(), policy=policies(), model=models())
def test_the_incremental_planner_and_projector_equal_the_pure_ones(
    story: Story, policy: ContextPolicy, model: ModelProfile
) -> None:
    """Keeping state between calls changes the cost and nothing else, and the journal's form is the whole request."""
    recorder = RequestRecorder()
    projector = Projector(profile=model, system=SYSTEM, max_tokens=1024)
    before, calls = EMPTY, {}
    for call, (snapshot, outcome, request) in enumerate(outcomes(story, policy, model, summaries=False), 1):
        pure = plan_afresh(
            snapshot,
            before,
            policy=policy,
            profile=model,
            iteration=snapshot[-1].iteration + 1,
            head_tokens=100,
            max_tokens=1024,
            result_summaries=result_summaries_of(snapshot),
        )
        assert (pure.plan, pure.decisions, pure.estimate) == (outcome.plan, outcome.decisions, outcome.estimate)
        kept = projector.project(snapshot, outcome.plan)
        assert canonical_json(encode_request(kept)) == canonical_json(encode_request(request))
        record = recorder.record(kept, snapshot, run_id="r", call=call, iteration=1, position=len(snapshot), at=0.0)
        calls[call] = record
        whole = RecordedRequest([calls[number] for number in range(call, 0, -1)]).whole(snapshot)
        assert record.digest == request_digest(whole)
        assert whole["messages"] == [encode_message(message) for message in request.messages]
        before = outcome.plan


@given(story=stories(), policy=policies(), model=models())
def test_a_request_continues_the_one_before_it_unless_a_decision_says_otherwise(
    story: Story, policy: ContextPolicy, model: ModelProfile
) -> None:
    """Without a decision the next request repeats the last one block by block and adds to its end."""
    last: list[bytes] | None = None
    for _, outcome, request in outcomes(story, policy, model):
        blocks = [canonical_json([m["role"], b]) for m in map(encode_message, request.messages) for b in m["content"]]
        if last is not None and not outcome.decisions:
            assert blocks[: len(last)] == last
        last = blocks


def test_a_changed_prefix_is_seen() -> None:
    """Negative control: decisions do change earlier bytes, so the property above compares something."""
    story = long_story(12)
    runs = list(follow(story, ContextPolicy(rhythm="strict", window=2), profile(), summaries=False))
    changed = 0
    for (_, _, one), (_, outcome, other) in pairwise(runs):
        if one.messages != other.messages[: len(one.messages)]:
            assert outcome.decisions
            changed += 1
    assert changed > 3


@given(story=stories(), policy=policies(), model=models())
def test_replaying_the_journalled_decisions_gives_the_same_plan(
    story: Story, policy: ContextPolicy, model: ModelProfile
) -> None:
    """A restart finds the plan where it was left: decisions survive JSON and add up to the identical plan."""
    bodies: list[Any] = []
    for _, outcome, _ in outcomes(story, policy, model):
        bodies += [msgspec.json.decode(msgspec.json.encode(encode_decision(d))) for d in outcome.decisions]
        assert replay(bodies) == outcome.plan


@given(story=stories(), policy=policies(), model=models(), data=st.data())
def test_expanding_restores_the_exact_original(
    story: Story, policy: ContextPolicy, model: ModelProfile, data: st.DataObject
) -> None:
    """Whatever became of an entry, expanding shows its exact words again, in a legal request."""
    runs = outcomes(story, policy, model)
    if not runs:
        return
    snapshot, outcome, _ = runs[-1]
    hidden = [e for e in snapshot if outcome.plan.representation(e) in ("stub", "removed", "covered")]
    if not hidden:
        return
    entry: Entry = data.draw(st.sampled_from(hidden))
    decision = expand(snapshot, outcome.plan, entry.position, iteration=99)
    plan = apply(outcome.plan, decision)
    assert plan.representation(entry) == "expanded"
    request = project(snapshot, plan, profile=model, system=SYSTEM, max_tokens=1024)
    validate(request, model)
    shown = sent_text(request)
    for block in entry.content:
        for line in text_of(block).split("\n"):
            assert line in shown or not line.strip()
    again = project(snapshot, replay([encode_decision(decision)]), profile=model)
    assert text_of(entry.content) in sent_text(again) or not text_of(entry.content).strip()


@given(story=stories(), policy=policies(), model=models())
def test_breakpoints_are_few_and_always_mark_the_last_message(
    story: Story, policy: ContextPolicy, model: ModelProfile
) -> None:
    """At most four, in order; without the last one the next request would find nothing. What is held back has none."""
    for _, outcome, request in outcomes(story, policy, model):
        points = request.breakpoints
        assert len(points) <= model.cache.breakpoints
        if model.cache.breakpoints:
            held = outcome.plan.held if outcome.decisions else 0
            last = len(request.messages) - 1
            assert points[-1].message == (last - 1 if held else last)


@given(story=stories(), policy=policies(), model=models())
def test_the_prompt_keeps_to_its_budget_or_the_run_is_told(
    story: Story, policy: ContextPolicy, model: ModelProfile
) -> None:
    """What is sent fits the window and the budget by the planner's own count; what cannot fit is an error."""
    limit = min(model.context_window - 1024, policy.budget_tokens or model.context_window)
    for _, outcome, _ in outcomes(story, policy, model):
        assert outcome.prompt_tokens <= limit


def test_binding_models_are_not_shown_reasoning_behind_an_edit() -> None:
    """Where reasoning is bound to the past, an edit takes all of it along, and nothing is edited for money."""
    model = profile(target="binding")
    calm = planned(long_story(60, thinking="hm"), ContextPolicy(), model)
    assert all(not outcome.decisions for _, outcome in calm)
    edited = 0
    for snapshot, outcome in planned(long_story(40, thinking="hm"), ContextPolicy(budget_tokens=12_000), model):
        if outcome.decisions:
            edited += 1
            request = project(snapshot, outcome.plan, profile=model)
            assert '"thinking"' not in canonical_json(encode_request(request)).decode()
    assert edited > 0


def test_a_broken_request_is_seen() -> None:
    """Negative control: the checker that the properties rely on refuses a split pair."""
    story = long_story(2)
    request = project(story.snapshot(), profile=profile())
    broken = msgspec.structs.replace(request, messages=(request.messages[0], *request.messages[2:]))
    with pytest.raises(InvalidRequest):
        validate(broken)


def test_the_histories_lead_to_every_kind_of_edit() -> None:
    """What the properties range over is all that a planner does, not its common cases alone."""
    seen: Counter[type] = Counter()

    @settings(max_examples=300, derandomize=True, database=None)
    @given(story=stories(), policy=policies(), model=models())
    def look(story: Story, policy: ContextPolicy, model: ModelProfile) -> None:
        for _, outcome, _ in outcomes(story, policy, model):
            seen.update({type(edit) for decision in outcome.decisions for edit in decision.edits})

    look()
    assert {kind for kind in _PLANNED if not seen[kind]} == set()


@pytest.mark.parametrize("target", ["free", "binding"])
@pytest.mark.parametrize("runs", [40, pytest.param(5_000, marks=pytest.mark.nightly)], ids=["some", "very many"])
def test_every_request_of_longer_runs_keeps_every_promise(runs: int, target: Target) -> None:
    """Legal, without a gap, with the task and no word outside its frame; equal runs give equal views."""
    for seed in range(1_000, 1_000 + runs):
        run = drawn(seed)
        run = run._replace(model=msgspec.structs.replace(run.model, target=target))
        views: list[ModelRequest] = []
        for step in lived(run):
            plan, where = step.outcome.plan, f"seed {seed}, {len(step.snapshot)} entries"
            request = project(step.snapshot, plan, profile=run.model, system=SYSTEM, max_tokens=1024)
            validate(request, run.model)
            check_body(encode_request(request), profile=run.model, betas=frozenset())
            assert gaps(step.snapshot, plan, request) == [], where
            assert request.messages[0].content[0] == step.snapshot[0].content[0], where
            assert strangers(request, step.snapshot) == [], where
            views.append(request)
        for step, view in zip(lived(run), views, strict=True):
            plan = step.outcome.plan
            assert project(step.snapshot, plan, profile=run.model, system=SYSTEM, max_tokens=1024) == view, seed


@given(
    text=st.text(alphabet=st.characters(codec="utf-8"), max_size=3000),
    cap=st.integers(0, 1_600),
)
def test_shaping_never_grows_nor_splits(text: str, cap: int) -> None:
    """What is shown of a result is made of its own pieces and a note; the whole is stored when not all is shown."""
    rules = msgspec.structs.replace(ContextPolicy().rules(None), cap_chars=cap)
    shaped = shape_result(text, rules=rules, content_id="c-1")
    assert isinstance(shaped.content, str)
    if shaped.content == text:
        assert shaped.original_length == 0
        return
    assert shaped.content_id == "c-1"
    assert shaped.original_length == len(text)
    head = shaped.content.split("[…", maxsplit=1)[0].rstrip("\n")
    assert text.startswith(head)
    assert len(head) <= cap


def test_a_pin_by_the_caller_survives_everything() -> None:
    """An entry pinned while the run goes on stays verbatim under stubs, summaries and force."""
    story = long_story(40)
    plan = apply(EMPTY, pin(story.snapshot(4), 2, iteration=2))
    words = text_of(story.entries[2].content)
    for snapshot, outcome in planned(story, ContextPolicy(budget_tokens=9_000, keep_recent=1), profile(), plan=plan)[
        2:
    ]:
        assert words in sent_text(project(snapshot, outcome.plan, profile=profile()))
    result = story.entries[2].content[0]
    off = apply(outcome.plan, pin(snapshot, 2, iteration=99, on=False))
    for plan, stands in ((outcome.plan, True), (off, False)):  # the trail tells some of its lines
        messages = project(snapshot, plan, profile=profile()).messages
        assert (result in [block for message in messages for block in message.content]) == stands
    with pytest.raises(ContextError, match="no entry 999"):
        entry_at(snapshot, 999)


def test_a_turn_that_a_caller_pins_keeps_its_results() -> None:
    """A fold that ends behind what stays never ends between calls and results."""
    story = long_story(12)
    for pinned in [entry.position for entry in story.entries if entry.role == "assistant"]:
        plan, model = Plan(pins=frozenset({pinned})), profile(cache=False)
        for snapshot, outcome in planned(story, ContextPolicy(window=2), model, plan=plan):
            validate(project(snapshot, outcome.plan, profile=model, system=SYSTEM, max_tokens=1024), model)
