"""The next step from a view and from the full record, asked of models that are functions."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from replay_stories import long_run

from repertory.context import ContextPolicy
from repertory.errors import ModelUnavailable
from repertory.llm.messages import Text, Thinking, ToolUse
from repertory.llm.model import ModelRequest, encode_request
from repertory.replay import Agreement, Sample, agree, price_at_most, profile_named, sample_requests
from repertory.replay.words import words_of
from repertory.shortening import ResultPolicy
from repertory.testing import FunctionModel, call
from repertory.testing.rules import check_body

RUN = long_run(40)
FORGETS = ContextPolicy(
    rhythm="strict",
    strict_chars=0,
    summaries=False,
    results=ResultPolicy(expiration_mode="remove", expiration_turns=2),
)
PROFILE = profile_named("r=0.1")


def model(answer: Any, profile: Any = PROFILE) -> FunctionModel:
    """A model that is a function of the request."""
    return FunctionModel(answer, profile=profile)


def drawn(count: int = 8, *, policy: ContextPolicy | None = FORGETS, **more: Any) -> list[Sample]:
    """Samples of one run."""
    return sample_requests([RUN], policy=policy, model=more.pop("model", model("")), count=count, **more)


def shown(request: ModelRequest) -> str:
    """Everything that a request says."""
    return "\n".join(words_of(block) for message in request.messages for block in message.content)


def test_a_sample_is_a_turn_with_less_in_view_than_in_the_record() -> None:
    """Drawn by a seed, never twice; a policy that takes nothing away leaves nothing to ask."""
    samples = drawn()
    assert len(samples) == 8
    assert len({sample.iteration for sample in samples}) == 8
    assert samples == drawn()
    assert [sample.iteration for sample in samples] != [sample.iteration for sample in drawn(seed=1)]
    for sample in samples:
        first = f"part{0}/file.py"
        assert (first in shown(sample.view), first in shown(sample.record)) == (False, True)
        assert sample.view.messages[0] == sample.record.messages[0]
    assert 8 < len(drawn(1_000)) < 40
    assert drawn(policy=None) == []


def test_a_full_record_that_does_not_fit_is_not_asked_for() -> None:
    """Nobody could answer it."""
    small = msgspec.structs.replace(PROFILE, context_window=14_000, max_output=2_000)
    fitting = drawn(1_000, model=model("", small))
    assert 0 < len(fitting) < len(drawn(1_000))


def test_nothing_that_is_sent_carries_a_signature_of_the_replay() -> None:
    """A summary is sent as words of the user, a stand-in for reasoning not at all: the provider takes every request."""
    binding = profile_named("claude-sonnet-5-5")
    samples = sample_requests(
        [long_run(60, size=12_000)], policy=ContextPolicy(), model=model("", binding), count=1_000
    )
    assert any("[what came before" in words_of(sample.view.messages[0].content[0]) for sample in samples)
    for request in (request for sample in samples for request in (sample.view, sample.record)):
        assert not [block for each in request.messages for block in each.content if isinstance(block, Thinking)]
        check_body(encode_request(request), profile=binding, betas=frozenset())
        assert request.options == {}


def test_tools_take_the_arguments_that_were_recorded() -> None:
    """A recording says no more of a tool."""
    [sample] = drawn(1)
    for request in (sample.view, sample.record):
        [tool] = request.tools
        assert (tool.name, tool.input_schema["properties"]) == ("look", {"what": {"type": ["string"]}})


def looks_back(request: ModelRequest) -> ToolUse:
    """Goes on with the first part where it can see it, and searches for it where it cannot."""
    seen = "part0/file.py" in shown(request)
    return call("read", path="part0/file.py") if seen else call("search", words="the first part")


def test_what_the_view_lost_shows_in_the_next_step() -> None:
    """The record agrees with itself, and the view does not agree with it; control: a model that needs nothing."""
    samples = drawn()
    lost = agree(samples, model(looks_back))
    assert (lost.samples, lost.tools_view, lost.tools_record, lost.arguments_view, lost.arguments_record) == (
        8,
        0.0,
        1.0,
        0.0,
        1.0,
    )
    same = agree(samples, model(call("look", what="next")))
    assert (same.tools_view, same.tools_record, same.arguments_view, same.arguments_record) == (1, 1, 1, 1)
    silent = agree(samples, model("Done."))
    assert (silent.tools_view, silent.arguments_view) == (1.0, None)
    assert agree([], model("")) == Agreement(
        samples=0,
        failed=[],
        tools_view=None,
        tools_record=None,
        arguments_view=None,
        arguments_record=None,
        cost=0.0,
    )


def test_a_model_that_wavers_does_not_agree_with_itself() -> None:
    """That is what the view's figure is read beside."""
    [sample] = drawn(1)
    answers = iter([call("a", n=1), call("a", n=1), call("b", n=1)])
    found = agree([sample], model(lambda _: next(answers)))
    assert (found.tools_view, found.tools_record, found.arguments_view, found.arguments_record) == (0.5, 0, 0.5, 0)


@pytest.mark.parametrize(
    ("one", "other", "share"),
    [
        (call("t", path="a.py", limit=5), call("t", path="a.py", limit=6), 1 / 3),
        (call("t", command="go  test"), call("t", command="go test"), 1.0),
        (call("t", path="a.py", why="Run all of the tests"), call("t", path="a.py", why="See what comes out now"), 1.0),
        (call("t", path="a.py", text="a\nb"), call("t", path="a.py", text="c\nd"), 1.0),
        (call("t", path="a.py", text="x" * 201), call("t", path="a.py"), 1.0),
        (call("t", path="a.py", parts=["x"]), call("t", path="a.py", parts=["y"]), 1.0),
    ],
)
def test_key_arguments_say_what_is_done_and_not_how_it_is_worded(one: ToolUse, other: ToolUse, share: float) -> None:
    """Long texts, prose and structures are left out; space does not count."""
    [sample] = drawn(1)
    answers = itertools.cycle([one, other, other])
    found = agree([sample], model(lambda _: next(answers)))
    assert found.arguments_view == pytest.approx(share)


def test_a_turn_whose_answer_fails_is_left_out_and_named() -> None:
    """The others count."""
    samples = drawn(3)
    first = samples[0].view

    def answer(request: ModelRequest) -> Text:
        if request == first:
            raise ModelUnavailable("overloaded")
        return Text("Done.")

    found = agree(samples, model(answer))
    assert found.samples == 2
    assert found.failed == [f"long, iteration {samples[0].iteration}: overloaded"]


def test_it_never_costs_more_than_was_said() -> None:
    """Every answer as long as it may be, nothing from the cache; what was billed comes out."""
    samples = drawn(3)
    asked: list[ModelRequest] = []

    def answer(request: ModelRequest) -> Text:
        asked.append(request)
        return Text("long " * 1_000)

    found = agree(samples, model(answer))
    assert len(asked) == 9
    assert 0 < found.cost < price_at_most(samples, PROFILE)
