"""A model that an application wrote may give anything; the run ends with a clear error, and can be resumed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

import repertory as rp
from repertory.errors import ModelResponseInvalid, RunFailed
from repertory.llm.messages import Json, Text, ToolUse
from repertory.llm.model import ModelRequest, ModelResponse, Usage
from repertory.llm.profiles import OFFLINE
from repertory.testing import ScriptedModel


class OwnModel:
    """Gives what a function returns, unseen."""

    name = "own"
    profile = OFFLINE

    def __init__(self, give: Callable[[], object]) -> None:
        self._give = give
        self.calls = 0

    async def complete(self, request: ModelRequest, *, on_event: object = None) -> ModelResponse:
        """Whatever the function gives."""
        self.calls += 1
        return cast("ModelResponse", self._give())

    async def aclose(self) -> None:
        """Nothing to release."""


def nested(levels: int) -> Json:
    """An object of so many levels."""
    value: Json = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


def endless() -> Json:
    """An object that contains itself."""
    value: Json = {}
    value["a"] = value
    return value


def answer(**fields: Any) -> ModelResponse:
    """An answer with fields of any type."""
    values: dict[str, Any] = {"content": (Text("Done."),), **fields}
    return ModelResponse(**values)


@pytest.mark.parametrize(
    ("give", "told"),
    [
        (lambda: None, "must give a ModelResponse, got a value of type NoneType"),
        (
            lambda: {"content": [{"type": "text", "text": "Done."}]},
            "must give a ModelResponse, got a value of type dict",
        ),
        (lambda: answer(content=None), "content of a ModelResponse must be a tuple, got a value of type NoneType"),
        (lambda: answer(content="Done."), "content of a ModelResponse must be a tuple, got a value of type str"),
        (lambda: answer(usage=None), "usage of a ModelResponse must be a Usage, got a value of type NoneType"),
        (lambda: answer(extra=None), "extra of a ModelResponse must be a dict, got a value of type NoneType"),
        (lambda: answer(content=[ToolUse("t1", "look", nested(5_000))]), "nested too deep"),
        (lambda: answer(content=[ToolUse("t1", "look", endless())]), "contains itself"),
    ],
)
async def test_what_is_no_answer_ends_the_run_after_one_call_and_it_can_be_resumed(
    give: Callable[[], object], told: str
) -> None:
    """It is an error of the model, not a crash that repeats the call and pays for it again."""
    model = OwnModel(give)
    async with rp.open_supervisor() as supervisor:
        run = await supervisor.spawn(rp.Agent("clerk", model=model), "Go.")
        with pytest.raises(RunFailed, match=told) as caught:
            await run.wait_result()
        assert isinstance(caught.value.__cause__, ModelResponseInvalid)
        assert model.calls == 1
        better = rp.Agent("clerk", model=ScriptedModel(["Done."]))
        assert await (await supervisor.resume(run.id, agent=better)).wait_result() == "Done."


async def test_arguments_too_deep_to_look_for_secrets_in_end_the_run_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are looked for before anything else is done with an answer."""
    monkeypatch.setenv("PASSWORD", "correct horse")
    model = OwnModel(lambda: answer(content=[ToolUse("t1", "look", nested(990))], usage=Usage(output_tokens=1)))
    async with rp.open_supervisor(redact=["PASSWORD"]) as supervisor:
        run = await supervisor.spawn(rp.Agent("clerk", model=model), "Go.")
        with pytest.raises(RunFailed, match="nested too deep"):
            await run.wait_result()
    assert model.calls == 1
