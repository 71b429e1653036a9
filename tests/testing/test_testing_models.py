"""Scripted models: they play their script, and fail loudly when the run does not follow it."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

import repertory as rp
from backends import RunAsync
from repertory.errors import ConfigurationError, ModelUnavailable, RunFailed
from repertory.llm import Message, Model, ModelRequest, ModelResponse, StreamEvent, Text, ToolUse, Usage, profile_for
from repertory.llm.messages import Thinking
from repertory.llm.model import TextDelta, ThinkingDelta, ToolUseStarted
from repertory.testing import Answer, FunctionModel, ScriptedModel, call


def request(text: str = "hello") -> ModelRequest:
    """A small request."""
    return ModelRequest(model="scripted", messages=(Message("user", (Text(text),)),))


def test_a_script_is_played_in_order(run_async: RunAsync) -> None:
    """Every kind of step gives what it says; requests are recorded; the script is complete at the end."""

    async def later(asked: ModelRequest) -> str:
        await anyio.lowlevel.checkpoint()
        return f"{len(asked.messages)} message"

    whole = ModelResponse(content=(Text("whole"),), stop_reason="refusal", usage=Usage(1, 2), model="other")

    async def main() -> None:
        model = ScriptedModel(
            [
                "words",
                call("search", query="tides"),
                [Text("both"), call("f", call_id="mine"), call("g")],
                whole,
                lambda asked: asked.model,
                later,
                ModelUnavailable("down"),
                lambda _: ModelUnavailable("down too"),  # type: ignore[list-item, return-value]
            ]
        )
        assert isinstance(model, Model)
        events: list[StreamEvent] = []
        first = await model.complete(request(), on_event=events.append)
        assert (first.content, first.stop_reason, first.model) == ((Text("words"),), "end_turn", "scripted")
        assert first.usage.input_tokens > 0
        assert first.usage.output_tokens > 0
        second = await model.complete(request(), on_event=events.append)
        [use] = second.content
        assert isinstance(use, ToolUse)
        assert (use.name, use.input, second.stop_reason) == ("search", {"query": "tides"}, "tool_use")
        third = await model.complete(request("other"))
        ids = [block.id for block in third.content if isinstance(block, ToolUse)]
        assert ids[0] == "mine"
        assert len({*ids, use.id}) == 3
        assert await model.complete(request()) == whole
        assert (await model.complete(request())).content == (Text("scripted"),)
        assert (await model.complete(request())).content == (Text("1 message"),)
        with pytest.raises(AssertionError, match="2 of 8 steps"):
            model.assert_complete()
        for why in ("down", "down too"):
            with pytest.raises(ModelUnavailable, match=why):
                await model.complete(request())
        model.assert_complete()
        assert events == [TextDelta("words"), ToolUseStarted(use.id, "search")]
        assert [asked.messages[0].content for asked in model.requests[1:3]] == [(Text("hello"),), (Text("other"),)]
        await model.aclose()

    run_async(main)


def test_a_run_that_asks_too_often_fails(run_async: RunAsync) -> None:
    """The error names the script's length and the end of what was asked: the two things one needs to see."""

    async def main() -> None:
        model = ScriptedModel([])
        model.assert_complete()
        with pytest.raises(AssertionError, match=r"is over after 0 steps.*'why\?'"):
            await model.complete(request("why?"))

    run_async(main)


@pytest.mark.parametrize("kind", [AssertionError, LookupError])
def test_a_check_in_a_script_that_fails_is_not_got_past(run_async: RunAsync, kind: type[Exception]) -> None:
    """A run that crashes tries again, unless by an assertion: it would take the next step, and the test would pass."""

    def check(asked: ModelRequest) -> str:
        raise kind("the model was shown too little")

    async def main() -> None:
        model = ScriptedModel([check, "second"])
        async with rp.open_supervisor(model=model) as supervisor:
            run = await supervisor.spawn(rp.Agent("clerk"), "Go.")
            with pytest.raises(RunFailed) as failed:
                await run.wait_result()
        assert "the model was shown too little" in str(failed.value.__cause__)
        assert (len(model.requests) == 1) == (kind is AssertionError)
        with pytest.raises(kind, match="too little"):
            model.assert_complete()

    run_async(main)


def test_two_calls_at_once_get_two_steps(run_async: RunAsync) -> None:
    """Concurrency does not play a step twice or skip one."""

    async def main() -> None:
        model = ScriptedModel([f"answer {n}" for n in range(10)])
        answers: list[str] = []

        async def ask() -> None:
            [block] = (await model.complete(request())).content
            assert isinstance(block, Text)
            answers.append(block.text)

        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(ask)
        assert sorted(answers) == [f"answer {n}" for n in range(10)]
        model.assert_complete()

    run_async(main)


def test_a_model_made_anew_does_not_reuse_call_ids(run_async: RunAsync) -> None:
    """After a restart the script goes on in a new object; ids must not collide with those in the ledger."""

    async def main() -> None:
        asked = request()
        [first] = (await ScriptedModel([call("f")]).complete(asked)).content
        longer = ModelRequest(model="scripted", messages=(*asked.messages, Message("assistant", (first,))))
        [second] = (await ScriptedModel([call("f")]).complete(longer)).content
        assert isinstance(first, ToolUse)
        assert isinstance(second, ToolUse)
        assert first.id != second.id

    run_async(main)


def test_a_function_answers_whatever_is_asked(run_async: RunAsync) -> None:
    """Any number of calls, in any order, with a profile of one's own."""

    async def main() -> None:
        model = FunctionModel(
            lambda asked: [Thinking("hm"), Text(str(len(asked.messages)))],
            profile=profile_for("claude-opus-5"),
            name="mine",
        )
        assert isinstance(model, Model)
        assert (model.name, model.profile.name) == ("mine", "claude-opus-5")
        assert (ScriptedModel([]).name, ScriptedModel([]).profile.name) == ("scripted", "scripted")
        events: list[StreamEvent] = []
        for _ in range(3):
            await model.complete(request(), on_event=events.append)
        assert events == [ThinkingDelta("hm"), TextDelta("1")] * 3
        assert len(model.requests) == 3
        await model.aclose()

    run_async(main)


def test_what_is_checked_of_a_sub_agent_fails_its_lead_too(run_async: RunAsync) -> None:
    """A lead is told that its sub-agent failed and goes on, so a test would pass whatever is checked there."""

    def answer(asked: ModelRequest) -> Answer:
        if not asked.system:
            return call("delegate", agent="clerk", task="the east") if len(asked.messages) == 1 else "All is well."
        assert asked.messages[0].content == (Text("the west"),), "the wrong task"
        return "done"

    async def main() -> None:
        lead = rp.Agent("lead", team=[rp.Agent("clerk", instructions="Count.")])
        async with rp.open_supervisor(model=FunctionModel(answer)) as supervisor:
            run = await supervisor.spawn(lead, "Count the east.")
            with pytest.raises(RunFailed, match="the wrong task"):
                await run.wait_result()

    run_async(main)


@pytest.mark.parametrize("answer", [None, 5, b"words", {"text": "words"}, ["words"], [None]])
def test_what_is_no_answer_is_refused(answer: Any, run_async: RunAsync) -> None:
    """The error says what an answer is; a run that asks fails with it at once, without being restarted."""

    async def main() -> None:
        model = FunctionModel(lambda _: answer)
        async with rp.open_supervisor(model=model) as supervisor:
            run = await supervisor.spawn(rp.Agent("clerk"), "Begin.")
            with pytest.raises(RunFailed, match="a test model answers with a text, a call"):
                await run.wait_result()
        assert len(model.requests) == 1

    run_async(main)


@pytest.mark.parametrize("steps", ["Done.", None, call("search")])
def test_a_script_is_a_list_of_steps(steps: Any) -> None:
    """A text would be played letter by letter."""
    with pytest.raises(ConfigurationError, match="must be a list"):
        ScriptedModel(steps)
