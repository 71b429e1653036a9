"""A result that cannot be kept is one error result: the tool is not run again, and the run goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

import repertory as rp
from repertory.llm.messages import ToolResult, text_of
from repertory.record.records import EventLogged, RunStarted
from repertory.record.rows import MAX_TEXT
from repertory.testing import ScriptedModel, call


def enormous(ran: list[str], effect: Any) -> rp.Tool:
    """A tool without a cap, whose result no journal takes."""

    @rp.tool(effect=effect, output_cap=None)
    async def read() -> str:
        """Read it all."""
        ran.append("read")
        return "x" * (MAX_TEXT + 1)

    return read


def commits_nonsense(ran: list[str], effect: Any) -> rp.Tool:
    """A tool that wants a record kept which has no JSON."""

    @rp.tool(effect=effect)
    async def read(context: rp.ToolContext) -> str:
        """Read it all."""
        ran.append("read")
        context.commit([EventLogged(run_id=context.run_id, type="Noted", body={"x": float("nan")}, at=0.0)])
        return "fine"

    return read


def commits_a_run(ran: list[str], effect: Any) -> rp.Tool:
    """A tool that wants the run started which it is called in."""

    @rp.tool(effect=effect)
    async def read(context: rp.ToolContext) -> str:
        """Read it all."""
        ran.append("read")
        context.commit([RunStarted(run_id=context.run_id, agent="clerk", task="t", at=0.0)])
        return "fine"

    return read


def cites_a_number(ran: list[str], effect: Any) -> rp.Tool:
    """A tool whose result has a field of another type than it is declared with."""

    @rp.tool(effect=effect)
    async def read() -> rp.ToolOutput:
        """Read it all."""
        ran.append("read")
        return rp.ToolOutput("fine", url=cast("str", 5))

    return read


@pytest.mark.parametrize("effect", ["pure", "idempotent", "unsafe"])
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (enormous, f"read ran, but its result cannot be shown: ValueError: it has {MAX_TEXT + 1:,} characters"),
        (cites_a_number, "ConfigurationError: ToolOutput.url must be a text, got 5"),
        (commits_a_run, "read ran, but commits a RunStarted, which the runtime alone writes"),
        (commits_nonsense, "read ran, but its result cannot be kept: cannot keep this EventLogged: nan is not"),
    ],
)
async def test_what_cannot_be_kept_is_told_once_and_run_once(
    make: Any, words: str, effect: Any, tmp_path: Path
) -> None:
    """Whatever the effect: a clear error for the model, no second run of the tool, no word of a process that died."""
    ran: list[str] = []
    model = ScriptedModel([call("read"), "I could not read it."])
    async with rp.open_supervisor(tmp_path / "runs.db", model=model) as supervisor:
        run = await supervisor.spawn(rp.Agent("clerk", tools=[make(ran, effect)]), "Read.")
        assert await run.wait_result() == "I could not read it."
        (made,) = await supervisor.journal.read_tool_calls(run.id)
    assert ran == ["read"]
    (result,) = model.requests[1].messages[-1].content
    assert isinstance(result, ToolResult)
    assert result.is_error
    assert text_of(result).startswith(words)
    assert "interrupted" not in text_of(result)
    assert made.finished is not None
    assert made.finished.status == "error"
