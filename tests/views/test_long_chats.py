"""Chats of many turns: what was asked stays in view, every request is legal, and every question has its own answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import repertory as rp
from repertory.llm import AnthropicModel, ModelRequest, RetryPolicy, text_of
from repertory.llm.messages import ToolResult
from repertory.testing import call
from repertory.testing.server import open_messages_server

TURNS = 60


@rp.tool(effect="pure")
async def measure(pier: int) -> str:
    """Measure at a pier.

    Args:
        pier: Its number.
    """
    return f"pier {pier}: " + " ".join(f"{pier * 97 + i}mm" for i in range(400))


def question(turn: int) -> str:
    """What is asked in a turn; with a name that no other turn has."""
    return f"How high is the water at pier {turn}? My name for it is Kay-{turn * 7919}."


def clerk_answers() -> Callable[[ModelRequest], Any]:
    """A model that measures twice for each question, then answers; it counts by itself, as its view shrinks."""
    made = 0

    def respond(request: ModelRequest) -> Any:
        nonlocal made
        turn, step = divmod(made, 3)
        made += 1
        assert isinstance(request.messages[-1].content[0], ToolResult) == bool(step)
        if step == 0:
            assert question(turn) in text_of(request.messages[-1].content)
        return call("measure", pier=turn * 2 + step) if step < 2 else f"Answer {turn}: {turn * 97} mm, at noon."

    return respond


@pytest.mark.parametrize("name", ["claude-sonnet-4-5", "claude-sonnet-5-5"], ids=["free", "binding"])
async def test_a_long_chat_keeps_every_question_in_view(name: str, tmp_path: Path) -> None:
    """On a model that may be edited and on one that binds its thinking, over HTTP, with a restart in the middle."""
    policy = rp.ContextPolicy(budget_tokens=30_000)
    agent = rp.Agent("clerk", "You are a clerk.", tools=[measure], limits=rp.Limits(iterations=3), context=policy)
    answers: list[str] = []
    async with open_messages_server(
        clerk_answers(), thinks=True, summarizer=lambda _: "GOAL: measure.\nOPEN: the next pier."
    ) as server:
        model = AnthropicModel(name, base_url=server.url, api_key="none", retry=RetryPolicy(attempts=1))
        try:
            for first in range(0, TURNS, TURNS // 2):
                async with rp.open_supervisor(tmp_path / "a.db", model=model, durability="process") as supervisor:
                    run = await supervisor.spawn(agent, question(0), run_id="talk")
                    if first == 0:
                        answers.append(await run.wait_result())
                    for turn in range(max(first, 1), first + TURNS // 2):
                        answers.append(await run.ask(question(turn)))
                    figures = run.statistics()
        finally:
            await model.aclose()
    assert answers == [f"Answer {turn}: {turn * 97} mm, at noon." for turn in range(TURNS)]
    assert {exchange.status for exchange in server.exchanges} == {200}
    shown = str(server.exchanges[-1].body["messages"])
    assert [turn for turn in range(TURNS) if question(turn) not in shown] == []
    assert figures.tokens_seen < figures.tokens_plain / 2, "or nothing was ever shortened"
    if name.endswith("4-5"):  # else they are in the provider's summary
        assert [turn for turn in range(TURNS - 1) if f"Answer {turn}:" not in shown] == []
