"""The planner: when edits pay, what they cost, what is kept, and how a prompt is made to fit."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec
import pytest

from context_histories import Story, long_story, measure, pin, plan_afresh, planned, profile
from repertory.context import EMPTY, ContextPolicy, Outcome, Planner, Projector, apply, project
from repertory.context.decisions import arithmetic_of
from repertory.context.plan import CoverRange, RemoveResult, StubResult
from repertory.context.view_index import ViewIndex
from repertory.errors import ContextOverflow
from repertory.llm.estimate import Calibration
from repertory.llm.messages import Text, text_of
from repertory.llm.model import Usage, encode_request
from repertory.llm.profiles import ModelProfile, Prices, cost_of
from repertory.llm.validation import validate
from repertory.record import Snapshot
from repertory.record.records import SummaryStored
from repertory.shortening import ResultPolicy
from repertory.testing.cache import PromptCache

SYSTEM = (Text("instructions " * 600),)
HEAD = 1_960


def bill(story: Story, policy: ContextPolicy | None, model: ModelProfile, *, pause_after: int = 0) -> list[float]:
    """What each call has cost in all so far, by the exact rules of the prompt cache; None plans nothing."""
    clock = [0.0]
    cache = PromptCache(lambda: clock[0])
    projector = Projector(profile=model, system=SYSTEM)
    planner = None if policy is None else Planner(policy=policy, profile=model, head_tokens=HEAD)
    plan, calibration, total, spent = EMPTY, Calibration(), 0.0, []
    for number, position in enumerate(story.requests(), 1):
        snapshot = story.snapshot(position)
        clock[0] += 1_000.0 if number == pause_after else 5.0
        estimate = 0
        if planner is not None:
            outcome = planner.next(
                snapshot,
                plan,
                iteration=snapshot[-1].iteration + 1,
                calibration=calibration,
                cold=number == pause_after,
            )
            plan, estimate = outcome.plan, outcome.estimate
        request = projector.project(snapshot, plan)
        validate(request, model)
        use = cache.use(encode_request(request), model)
        use.begun()
        calibration = calibration.observe(estimate=estimate, real=use.usage.prompt_tokens)
        total += cost_of(model, use.usage + Usage(output_tokens=60))
        spent.append(total)
    return spent


@pytest.mark.parametrize("read", [0.1, 0.05, 0.025, 1.0])
@pytest.mark.parametrize("size", [200, 3_000, 12_000])
def test_at_no_call_has_a_run_cost_more_than_if_nothing_were_edited(read: float, size: int) -> None:
    """Never dearer than doing nothing, wherever the run ends: billed by the cache's own rules, not by the plan's."""
    story = long_story(70, size=size)
    model = profile(read=read, window=1_000_000)
    plain, mine = bill(story, None, model), bill(story, ContextPolicy(), model)
    assert max(one / other for one, other in zip(mine, plain, strict=True)) <= 1.001


def test_a_run_in_chinese_costs_no_more_either() -> None:
    """A character has three bytes there, in what replaces a result as in the result."""
    story, model, chance = Story(), profile(read=0.025, window=1_000_000), Random(1)
    for number in range(70):
        lines = ["".join(chance.choices("合同自双方签字之日起生效请提前做好数据备份", k=40)) for _ in range(80)]
        story.turn("\n".join([*lines, f"负责人是王伟，合同金额为{number + 53_000}元。"]))
    plain, mine = bill(story, None, model), bill(story, ContextPolicy(), model)
    assert max(one / other for one, other in zip(mine, plain, strict=True)) <= 1.001
    assert mine[-1] < plain[-1]


def test_a_long_run_is_much_cheaper() -> None:
    """With large results the bill falls by more than a third at usual prices."""
    story, model = long_story(110, size=12_000), profile(read=0.1, window=1_000_000)
    assert bill(story, ContextPolicy(), model)[-1] < 0.65 * bill(story, None, model)[-1]


def test_editing_at_every_call_is_dear() -> None:
    """Negative control: the same bill shows what strict rhythm costs at today's read prices."""
    story, model = long_story(70, size=3_000), profile(read=0.025)
    strict = ContextPolicy(rhythm="strict", strict_chars=0, summarize_every=3)
    assert bill(story, strict, model)[-1] > 1.1 * bill(story, None, model)[-1]


def test_the_decision_carries_the_arithmetic_that_the_bill_confirms() -> None:
    """What a decision says it costs now is what the next call really costs more, within a tenth."""
    story, model = long_story(60, size=12_000), profile(read=0.1)
    runs = planned(story, ContextPolicy(), model, head_tokens=HEAD)
    at, (snapshot, outcome) = next((i, r) for i, r in enumerate(runs) if any(d.kind == "pays" for d in r[1].decisions))
    decision, unedited = outcome.decisions[0], runs[at - 1][1].plan

    def next_call(plan: Any) -> float:
        cache, projector = PromptCache(lambda: 0.0), Projector(profile=model, system=SYSTEM)
        for earlier, before in runs[:at]:
            cache.use(encode_request(projector.project(earlier, before.plan)), model).begun()
        return cost_of(model, cache.use(encode_request(projector.project(snapshot, plan)), model).usage)

    real = next_call(outcome.plan) - next_call(unedited)
    said = decision.arithmetic
    assert said.cost_now == pytest.approx(real, abs=0.1 * next_call(unedited))
    assert said.cleared_tokens == measure(snapshot, unedited) - measure(snapshot, outcome.plan)
    assert said.prompt_before - said.prompt_after == said.cleared_tokens
    assert said.saving_per_call == pytest.approx(said.cleared_tokens * 0.3 / 1_000_000)
    assert "clears" in decision.sentence


def test_the_price_of_an_edit_follows_the_published_formula() -> None:
    """Extra cost (w-r) x rewritten - r x cleared now, r x cleared saved at each later call; cliffs included."""
    model = profile(read=0.1)
    plain = Calibration()
    price = arithmetic_of(model, plain, before=50_000, after=30_000, new=1_000, untouched=10_000)
    assert price.saving_per_call == pytest.approx(20_000 * 0.3e-6)
    assert price.cost_now == pytest.approx((19_000 * (3.75 - 0.3) - 20_000 * 0.3) / 1e6)
    cold = arithmetic_of(model, plain, before=50_000, after=30_000, new=1_000, untouched=10_000, cold=True)
    assert cold.cost_now == pytest.approx(-20_000 * 3.75e-6)
    none = arithmetic_of(profile(cache=False), plain, before=50_000, after=30_000, new=1_000, untouched=0)
    assert none.cost_now == none.saving_per_call * -1 == pytest.approx(-20_000 * 3e-6)
    above = Prices(input=15.0, output=75.0, cache_read=1.5, cache_write=18.75, cache_write_1h=30.0, above=40_000)
    cliff = msgspec.structs.replace(model, prices=(*model.prices, above))
    assert arithmetic_of(cliff, plain, before=50_000, after=30_000, untouched=0).cost_now < price.cost_now


def test_without_a_prompt_cache_old_results_go_at_once() -> None:
    """Nothing is read from a cache, so every token not sent is money saved."""
    runs = planned(long_story(12), ContextPolicy(), profile(cache=False))
    assert {decision.kind for _, outcome in runs for decision in outcome.decisions} == {"uncached"}
    assert runs[-1][1].estimate < 0.75 * (500 + measure(runs[-1][0], EMPTY))


def test_a_cold_cache_makes_edits_free() -> None:
    """After a pause everything is written again anyway, so what may go goes then."""
    story, model = long_story(20, size=6_000), profile(read=0.025)
    policy = ContextPolicy(show_once=False)
    snapshot = story.snapshot()
    warm = plan_afresh(snapshot, policy=policy, profile=model, iteration=21)
    cold = plan_afresh(snapshot, policy=policy, profile=model, iteration=21, cold=True)
    assert warm.decisions == ()
    assert cold.decisions[0].kind == "cold"
    assert cold.decisions[0].arithmetic.cost_now < 0
    mine, plain = bill(story, policy, model, pause_after=15), bill(story, None, model, pause_after=15)
    assert mine[-1] < 0.97 * plain[-1]


@pytest.mark.parametrize(
    ("thinks", "lines", "once"), [(range(1, 8), 1_500, False), (range(1, 8), 3_000, True), ((), 1_500, True)]
)
def test_only_large_results_are_held_back_from_the_cache_if_their_stubs_cost_reasoning(
    thinks: Sequence[int], lines: int, once: bool
) -> None:
    """Once a cold cache has cost the reasoning so far, an answer may lack it, and the next one has some again; where
    there never was any, it is switched off."""
    story, plan, kinds = Story(), EMPTY, set[str]()
    planner = Planner(policy=ContextPolicy(), profile=profile(target="binding"))
    for iteration in range(1, 12):
        outcome = planner.next(story.snapshot(), plan, iteration=iteration, cold=iteration == 8)
        plan = outcome.plan
        kinds |= {decision.kind for decision in outcome.decisions if iteration > 8}
        text = "The tide rises.\n" * (lines if iteration > 8 else 1_500)
        story.turn(text, thinking="Hm." if iteration in thinks else "")
    assert ("once" in kinds) == once


def test_the_newest_iterations_and_what_is_pinned_are_kept() -> None:
    """A digest stands for what is older than the window, but for the task, what users said and what is pinned."""
    policy = ContextPolicy(window=3, tools={"law": ResultPolicy(pin=True)})
    story = Story()
    for number, tool in enumerate(["law", *["read"] * 8]):
        story.turn(f"lib/part_{number}.py and words and more\n" * 200, tool=tool)
        if number == 4:
            story.say("mind the lock gates")
    plan = plan_afresh(story.snapshot(), policy=policy, profile=profile(cache=False), iteration=10).plan
    whole = {entry.iteration for entry in story.entries if entry.tool and plan.representation(entry) == "verbatim"}
    assert whole == {1, 7, 8, 9}  # the first is pinned
    request = project(story.snapshot(), plan, profile=profile())
    assert story.entries[2].content[0] in [block for message in request.messages for block in message.content]
    assert [text_of(cover.content).count("read(") for cover in plan.covers] == [0, 4, 1]
    assert [cover.kept for cover in plan.covers] == [(0,), (2,), (11,)]
    said = "".join(text_of(cover.content) for cover in plan.covers)
    assert all(f"lib/part_{number}.py" in said for number in range(1, 6))


def test_what_matters_more_keeps_more_of_its_names() -> None:
    """Importance says how much a name must be worth to stay."""
    found = {}
    for importance in (0.1, 1.0, 10.0):
        policy = ContextPolicy(tools={"read": ResultPolicy(importance=importance)})
        story = Story()
        for number in range(12):
            story.turn("\n".join(f"some/long/way/to/{k}/file_{number}_{k}.txt" for k in range(40)) + " words" * 300)
        plan = plan_afresh(story.snapshot(), policy=policy, profile=profile(cache=False), iteration=13).plan
        found[importance] = len("".join(text_of(cover.content) for cover in plan.covers))
    assert found[0.1] < found[1.0] < found[10.0]


@pytest.mark.parametrize(("importance", "whole"), [(0.0, 0), (0.5, 2), (1.0, 4), (2.0, 8)])
def test_in_strict_rhythm_what_matters_more_becomes_a_stub_later(importance: float, whole: int) -> None:
    """Importance multiplies the window; what no model has seen yet is shown all the same."""
    policy = ContextPolicy(
        rhythm="strict",
        window=4,
        keep_recent=20,
        summaries=False,
        results=ResultPolicy(importance=importance, cite_over=0),
    )
    story = long_story(12)
    plan = plan_afresh(story.snapshot(), policy=policy, profile=profile(cache=False), iteration=13).plan
    shown = [entry.iteration for entry in story.entries if entry.tool and plan.representation(entry) == "verbatim"]
    assert shown == list(range(13 - max(whole, 1), 13))


def test_a_result_that_no_model_has_seen_is_never_compacted_for_money() -> None:
    """All results of the newest turn stay whole, however many and however little is to be kept."""
    story = long_story(5)
    newest = story.turn(*["fresh words\n" * 500] * 8)[1:]
    outcome = plan_afresh(
        story.snapshot(), policy=ContextPolicy(keep_recent=0), profile=profile(cache=False), iteration=7, cold=True
    )
    assert outcome.decisions
    assert all(outcome.plan.representation(entry) == "verbatim" for entry in newest)


def summary(story: Story, last: int, *, first: int = 0, tokens: int = 30) -> SummaryStored:
    """A summary that the summarizer has stored."""
    return SummaryStored(
        run_id="run-test",
        summary_id=f"sum-{last}",
        first=first,
        last=last,
        strategy="model",
        content=(Text(f"FACTS: 0 to {last}"),),
        tokens=tokens,
        at=1.0,
    )


def test_the_best_fitting_summary_is_swapped_in() -> None:
    """It covers most, splits no pair, reaches into nothing recent, and is smaller than what it replaces."""
    story, policy = long_story(20), ContextPolicy(rhythm="strict", strict_chars=0)
    offered = [
        summary(story, 8),
        summary(story, 12),
        summary(story, 13),  # ends between a call and its result
        summary(story, 36),  # reaches into what is recent
        summary(story, 16, first=5),  # leaves a gap
        summary(story, 10, tokens=10**6),  # grows
    ]
    outcome = plan_afresh(story.snapshot(), policy=policy, profile=profile(), iteration=21, summaries=offered)
    assert [(cover.summary_id, cover.kept) for cover in outcome.plan.covers] == [("sum-12", (0,))]
    assert isinstance(outcome.decisions[0].edits[0], CoverRange)
    for _ in range(8):
        story.turn("words\n" * 700)
    later = plan_afresh(
        story.snapshot(),
        outcome.plan,
        policy=policy,
        profile=profile(),
        iteration=29,
        summaries=[summary(story, 8), summary(story, 44, first=13), summary(story, 40)],
    )
    assert [cover.summary_id for cover in later.plan.covers] == ["sum-12", "sum-44"]


def test_a_summary_fits_where_the_user_spoke_right_after_it() -> None:
    """What follows a summary may be the assistant's turn or the user's: no pair is split either way."""
    story = long_story(4)
    story.say("and the moon?")
    for _ in range(8):
        story.turn("words\n" * 400)
    policy = ContextPolicy(rhythm="strict")
    outcome = plan_afresh(
        story.snapshot(), policy=policy, profile=profile(), iteration=13, summaries=[summary(story, 8)]
    )
    assert [cover.summary_id for cover in outcome.plan.covers] == ["sum-8"]
    request = project(story.snapshot(), outcome.plan, profile=profile())
    validate(request)
    assert text_of(request.messages[2].content) == "FACTS: 0 to 8\nand the moon?"


@pytest.mark.parametrize(("comfort", "swapped"), [(20_000, True), (0, False)])
def test_in_thrifty_rhythm_a_summary_takes_the_place_of_trail_that_is_too_long(comfort: int, swapped: bool) -> None:
    """A trail is worth more than a summary, so it stays until it has outgrown its share of the model's comfort."""
    story, policy = Story(), ContextPolicy(comfort_tokens=comfort)
    for turn in range(60):
        story.turn("\n".join(f"crane_{turn}_{line} loads berth_{line}" for line in range(150)))
    model = profile(cache=False)
    runs = planned(story, policy, model, summaries=[summary(story, 8)])
    assert any(cover.summary_id for cover in runs[-1][1].plan.covers) == swapped


def test_summaries_can_be_switched_off() -> None:
    """Then old results become stubs and nothing is covered."""
    policy = ContextPolicy(summaries=False)
    outcomes = [o for _, o in planned(long_story(60), policy, profile(cache=False), summaries=[])]
    assert all(not outcome.plan.covers for outcome in outcomes)
    assert outcomes[-1].plan.shown
    plain = ContextPolicy(summaries=False, stubs=False)
    assert all(not outcome.decisions for _, outcome in planned(long_story(60), plain, profile(cache=False)))


def test_without_a_summarizer_the_planner_covers_the_past_itself() -> None:
    """No summary ever comes; the view stays bounded all the same, and says where the originals are."""
    sizes = []
    for _, outcome in planned(long_story(300, size=1_000), ContextPolicy(), profile(cache=False)):
        sizes.append(outcome.estimate)
    assert outcome.plan.covers
    assert sum(cover.tokens for cover in outcome.plan.covers) < 13_000
    assert max(sizes) < 0.2 * measure(long_story(300, size=1_000).snapshot(), EMPTY)
    assert "context_retrieve" in text_of(outcome.plan.covers[-1].content)


@pytest.mark.parametrize("rhythm", ["thrifty", "strict"])
def test_results_expire_after_their_turns(rhythm: Any) -> None:
    """Removed or compacted once they are older than their policy says, not before, and the events say so."""
    policy = ContextPolicy(
        rhythm=rhythm,
        summaries=False,
        window=50,
        keep_recent=50,
        tools={
            "gone": ResultPolicy(expiration_mode="remove", expiration_turns=2),
            "short": ResultPolicy(expiration_mode="compact", expiration_turns=1, compact_mode="first_chars"),
        },
    )
    story = Story()
    story.turn("to be removed\n" * 200, tool="gone")
    story.turn("to be shortened\n" * 200, tool="short")
    kinds: list[list[type]] = []
    for number in range(4):
        outcome = plan_afresh(
            story.snapshot(), policy=policy, profile=profile(cache=False), iteration=story.iteration + 1
        )
        kinds.append([type(edit) for decision in outcome.decisions for edit in decision.edits])
        story.turn(f"ok {number}")
    assert kinds == [[], [RemoveResult, StubResult], [RemoveResult, StubResult], [RemoveResult, StubResult]]
    off = msgspec.structs.replace(policy, expiration=False)
    assert plan_afresh(story.snapshot(), policy=off, profile=profile(cache=False), iteration=9).decisions == ()


@pytest.mark.parametrize("mode", ["remove", "compact"])
@pytest.mark.parametrize("size", [50, 200, 1_500])
@pytest.mark.parametrize("window", [2, 5])
def test_an_expiration_waits_for_at_most_a_window(window: int, size: int, mode: Any) -> None:
    """Also while every new result is shown once, which saves more than the expiration does."""
    rules = ResultPolicy(expiration_mode=mode, expiration_turns=1)
    policy = ContextPolicy(window=window, tools={"read": rules})
    story = Story()
    for day in range(30):
        story.turn("\n".join(f"ship_{day}_{number} lies at berth_{day * number}" for number in range(size)))
    for snapshot, outcome in planned(story, policy, profile(read=0.05), head_tokens=2_000):
        plan = outcome.plan
        whole = [entry.iteration for entry in snapshot if entry.tool and plan.representation(entry) == "verbatim"]
        iteration = snapshot[-1].iteration + 1
        assert [at for at in whole if iteration - at > 1 + window] == []


@pytest.mark.parametrize("window", [2, 3, 5])
def test_what_is_shown_once_leaves_its_names(window: int) -> None:
    """However far ahead the lines of digests are made, in which the same names stand."""
    story = Story()
    for number in range(10):
        story.turn(f"berth_{number}_north crane_{number}_south\n" + "plain words of no use\n" * 400)
    model = profile(cache=True, window=1_000_000)
    stubs = [
        edit
        for _, outcome in planned(story, ContextPolicy(window=window), model, head_tokens=2_000)
        for decision in outcome.decisions
        for edit in decision.edits
        if isinstance(edit, StubResult)
    ]
    assert len(stubs) > 2
    for edit in stubs:
        number = story.entries[edit.position].iteration - 1
        assert f"crane_{number}_south" in edit.text


def test_results_of_one_turn_expire_together_each_in_its_own_way() -> None:
    """The strictest time, mode and length hold for all; what is made of each is its own tool's matter."""
    story = Story()
    story.turn("words " * 200, "words " * 200, tool="first")
    story.entries[-1] = msgspec.structs.replace(story.entries[-1], tool="second")
    story.turn("more")
    policy = ContextPolicy(
        rhythm="strict",
        window=50,
        summaries=False,
        strict_chars=0,
        tools={
            "first": ResultPolicy(expiration_mode="compact", expiration_turns=1, compact_mode="first_chars"),
            "second": ResultPolicy(compact_mode="stub", compactor="json"),
        },
    )
    view = ViewIndex(EMPTY, policy, story.snapshot())
    assert [(rules.expiration_mode, rules.compact_mode) for _, rules in view.expired(9)] == [
        ("compact", "first_chars"),
        ("compact", "stub"),
    ]


def test_a_stub_is_removed_when_its_time_is_up() -> None:
    """A result that left the window before it expired is a stub by then; its call goes with it all the same."""
    rules = ResultPolicy(expiration_mode="remove", expiration_turns=6)
    policy = ContextPolicy(rhythm="strict", window=2, summaries=False, tools={"read": rules})
    story = long_story(12)
    kinds: dict[int, list[tuple[str, int]]] = {}
    for snapshot, outcome in planned(story, policy, profile(cache=False)):
        for decision in outcome.decisions:
            for edit in decision.edits:
                at = snapshot[getattr(edit, "position", 0)]
                kinds.setdefault(at.iteration, []).append((type(edit).__name__, decision.iteration - at.iteration))
    assert kinds[1] == [("StubResult", 3), ("RemoveResult", 7)]


def test_strict_rhythm_shows_its_window_whole_and_covers_the_rest() -> None:
    """The documents' literal behaviour: the last five iterations, stubs or a summary for what came before."""
    policy = ContextPolicy(rhythm="strict")
    story = long_story(16, policy=policy)
    outcome = planned(story, policy, profile())[-1][1]
    plan = outcome.plan
    shown = [entry for entry in story.entries if entry.tool and plan.representation(entry) == "shaped"]
    assert {entry.iteration for entry in shown} == {12, 13, 14, 15, 16}
    assert outcome.estimate < 0.5 * measure(long_story(16).snapshot(), EMPTY)


def test_a_prompt_that_would_not_fit_is_made_to() -> None:
    """Gently first; the newest results, the task and what is pinned go last, and headroom is left."""
    story = long_story(40)
    for budget in (30_000, 12_000, 6_000, 3_500):
        outcome = plan_afresh(
            story.snapshot(), policy=ContextPolicy(budget_tokens=budget), profile=profile(), iteration=41
        )
        assert outcome.decisions[0].kind == "forced"
        assert f"{budget:,}" in outcome.decisions[0].reason
        assert outcome.prompt_tokens <= budget
        assert outcome.plan.representation(story.entries[0]) == "verbatim"
        validate(project(story.snapshot(), outcome.plan, profile=profile()))


def test_even_unread_results_are_cut_when_nothing_else_helps() -> None:
    """One giant turn: what came last is shortened, with the way to the whole."""
    story = Story()
    story.turn(*["giant words\n" * 3_000] * 3, "tiny")
    outcome = plan_afresh(story.snapshot(), policy=ContextPolicy(budget_tokens=3_000), profile=profile(), iteration=2)
    assert outcome.prompt_tokens <= 3_000
    stub = outcome.plan.shown[2]
    assert "context is full; context_retrieve(iteration=1)" in getattr(stub, "text", "")
    assert 5 not in outcome.plan.shown


def test_what_users_said_gives_way_before_the_run_fails() -> None:
    """Many long messages: they stay verbatim while there is room, then a digest stands for them."""
    story = long_story(3)
    for number in range(30):
        story.say(f"remark {number} " + "blah " * 200)
        story.turn("ok")
    policy = ContextPolicy(budget_tokens=4_000, summary_tokens=300)
    outcome = plan_afresh(story.snapshot(), policy=policy, profile=profile(), iteration=34)
    assert outcome.prompt_tokens <= 4_000
    assert outcome.plan.covers[0].kept == (0,)
    assert "remark" in text_of(outcome.plan.covers[0].content)


def test_what_cannot_fit_is_an_error_with_its_size() -> None:
    """A task larger than the budget ends the run instead of looping."""
    story = Story("word " * 4_000)
    story.turn("ok")
    with pytest.raises(ContextOverflow, match=r"at its smallest, 2,000 may be sent"):
        plan_afresh(story.snapshot(), policy=ContextPolicy(budget_tokens=2_000), profile=profile(), iteration=2)


def test_a_refused_prompt_is_planned_strictly_smaller() -> None:
    """The recovery of a token-limit error: below what the caller names, or an error, never the same again."""
    story = long_story(20)
    first = plan_afresh(story.snapshot(), policy=ContextPolicy(), profile=profile(), iteration=21)
    second = plan_afresh(
        story.snapshot(),
        first.plan,
        policy=ContextPolicy(),
        profile=profile(),
        iteration=21,
        shrink_to=first.prompt_tokens * 6 // 10,
    )
    assert second.decisions[0].kind == "recovery"
    assert second.prompt_tokens <= first.prompt_tokens * 6 // 10


def test_the_window_bounds_the_prompt_where_no_budget_does() -> None:
    """The profile's window less the answer's room is the limit."""
    story, small = long_story(40), profile(window=16_000)
    sizes = [outcome.prompt_tokens for _, outcome in planned(story, ContextPolicy(), small)]
    assert max(sizes) <= 16_000 - 8_000


def test_estimates_learn_from_what_the_provider_counted() -> None:
    """The last real count and the calibrated difference; nonsense teaches nothing."""
    start = Calibration()
    assert start.real_tokens(1_000) == 1_000
    learned = start.observe(estimate=1_000, real=1_200)
    assert learned.real_tokens(1_000) == 1_200
    assert learned.real_tokens(1_100) == 1_320
    assert learned.observe(estimate=0, real=5) is learned
    assert start.observe(estimate=10, real=10_000).factor == 1.25
    story = long_story(20)
    half = plan_afresh(
        story.snapshot(),
        policy=ContextPolicy(budget_tokens=24_000),
        profile=profile(),
        iteration=21,
        calibration=Calibration().observe(estimate=10_000, real=16_000),
    )
    assert half.decisions[0].kind == "forced"


def test_a_planner_follows_a_plan_that_others_changed() -> None:
    """A caller who expands or pins hands in a new plan; the planner counts it anew."""
    story = long_story(12)
    planner = Planner(policy=ContextPolicy(), profile=profile(cache=False), head_tokens=0)
    done: Outcome = planner.next(story.snapshot(), iteration=13)
    again = planner.next(story.snapshot(), done.plan, iteration=13)
    assert (again.plan, again.decisions) == (done.plan, ())
    back = planner.next(story.snapshot(9), EMPTY, iteration=5)
    assert back.estimate == measure(story.snapshot(9), EMPTY)
    assert isinstance(story.snapshot(), Snapshot)


def test_what_was_paid_beside_the_run_is_taken_from_its_savings() -> None:
    """Until a decision counts it, also when a caller pins something meanwhile and when another planner takes over."""
    story, policy, model = long_story(60, size=12_000), ContextPolicy(), profile(window=1_000_000)
    for _ in range(3):
        story.turn("ok")  # nothing to decide about any more
    planner, plan = Planner(policy=policy, profile=model, head_tokens=HEAD), EMPTY
    for number, position in enumerate(story.requests(), 1):
        snapshot = story.snapshot(position)
        plan = planner.next(snapshot, plan, iteration=number).plan
    savings = next(cents / 100 for cents in range(10_000, 0, -1) if planner.affords(cents / 100))
    planner.charge(savings)
    assert not planner.affords(savings / 2)
    plan = apply(plan, pin(snapshot, position - 2, iteration=number))
    planner.next(snapshot, plan, iteration=number)
    assert not planner.affords(savings / 2)
    other = Planner(policy=policy, profile=model, head_tokens=HEAD, charged=planner.charged)
    other.next(snapshot, plan, iteration=number)
    assert not other.affords(savings / 2)
    assert planner.charged == savings


@pytest.mark.parametrize("read", [0.1, 0.05])
def test_a_fold_pays_for_the_talk_that_it_moves(read: float) -> None:
    """What was said stays, behind a new stretch of trail: so it is written to the cache again, and that is paid too."""
    story = Story()
    for number in range(120):
        story.turn("\n".join(f"ship_{number}_{hour} enters berth_{hour}" for hour in range(400)))
        if number % 2:
            story.say(f"Mind requirement {number}: " + "the ferry waits for the tide. " * 100)
    folds = [
        decision
        for _, outcome in planned(story, ContextPolicy(comfort_tokens=0), profile(read=read, window=1_000_000))
        for decision in outcome.decisions
        if decision.kind == "pays"
    ]
    assert folds
    assert min(decision.arithmetic.bank for decision in folds) >= 0
