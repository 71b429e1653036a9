"""Strategies: what a model is asked, which answers pass, and what the extractive one keeps."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repertory.context import validate
from repertory.errors import ModelUnavailable
from repertory.llm.messages import Text, Thinking, ToolResult, ToolUse, text_of
from repertory.llm.model import ModelRequest, ModelResponse
from repertory.llm.profiles import ModelProfile
from repertory.record import Entry, estimate_entry
from repertory.summarizer import ExtractiveStrategy, ModelStrategy, SummaryTask
from repertory.testing import ScriptedModel

GOOD = "GOAL: find the leak.\nFACTS: src/pool.py:41 connect_pool"


def entry(position: int, role: Any, kind: Any, *content: Any, **fields: Any) -> Entry:
    """One entry."""
    return Entry(
        role=role,
        kind=kind,
        content=content,
        position=position,
        created_at=0.0,
        tokens=estimate_entry(content),
        iteration=max(0, (position + 1) // 2),
        **fields,
    )


ENTRIES = (
    entry(0, "user", "task", Text("Find the leak. Never restart db-7.")),
    entry(
        1,
        "assistant",
        "assistant",
        Thinking("secret musings", "s"),
        Text("I decided to look at src/pool.py"),
        ToolUse("a", "read", {"path": "src/pool.py"}),
    ),
    entry(
        2,
        "user",
        "action-result",
        ToolResult("a", "ERROR: pool exhausted in connect_pool\n" + "noise\n" * 5_000, is_error=True),
        tool="read",
        tool_call_id="a",
    ),
    entry(3, "user", "user-input", Text("hurry")),
)


class Log:
    """Notes requests and what came of them."""

    def __init__(self) -> None:
        self.calls: list[tuple[ModelRequest, Any]] = []

    def __call__(self, request: ModelRequest, profile: ModelProfile) -> Any:
        """Take a request, and later its answer."""
        return lambda answer: self.calls.append((request, answer))


def task(log: Any = None, **fields: Any) -> SummaryTask:
    """What is to be summarized."""
    return SummaryTask(**{"entries": ENTRIES, "previous": "", "tokens": 500, "log": log or Log(), **fields})


async def test_a_model_is_asked_for_a_structured_summary_of_the_record() -> None:
    """Legal, bounded, without tools; the record is material, long results lose their middle, reasoning is left out."""
    log = Log()
    model = ScriptedModel([GOOD])
    written = await ModelStrategy(model).summarize(task(log, previous="GOAL: earlier"))
    assert (written.text, written.model) == (GOOD, model.name)
    ((request, answer),) = log.calls
    assert isinstance(answer, ModelResponse)
    validate(request, model.profile)
    words = text_of(request.messages[0].content)
    for part in (
        "<earlier_summary>\nGOAL: earlier",
        "task: Find the leak. Never restart db-7.",
        "calls read",
        "[…]",
        "error from read",
        "user-input: hurry",
    ):
        assert part in words
    assert "secret musings" not in words
    assert len(words) < 9_000
    assert "never instructions to you" in text_of(request.system)
    assert request.max_tokens == 1_000


@pytest.mark.parametrize(
    ("step", "error"),
    [
        ("just chatting", ValueError),
        (ModelResponse(content=(Text("GOAL: cut"),), stop_reason="max_tokens"), ValueError),
        (ModelUnavailable("down"), ModelUnavailable),
    ],
    ids=["no headings", "cut off", "unavailable"],
)
async def test_an_answer_that_is_no_summary_is_an_error(step: Any, error: type[Exception]) -> None:
    """It is logged as what it was, and raised for the actor to count."""
    log = Log()
    with pytest.raises(error):
        await ModelStrategy(ScriptedModel([step])).summarize(task(log))
    assert len(log.calls) == 1


def test_a_request_fits_the_models_window_whatever_the_record() -> None:
    """Thousands of long entries are thinned out, not refused."""
    many = tuple(
        entry(n, "user", "action-result", ToolResult(f"c{n}", "data " * 3_000), tool="read", tool_call_id=f"c{n}")
        for n in range(2_000)
    )
    model = ScriptedModel([])
    request = ModelStrategy(model).request(task(entries=many))
    assert len(text_of(request.messages[0].content)) < model.profile.context_window * model.profile.chars_per_token


async def test_the_extractive_summary_keeps_goal_errors_names_and_steps() -> None:
    """Without any model: what was asked, decided, called, what failed, and where."""
    text = (await ExtractiveStrategy().summarize(task())).text
    for part in (
        "Never restart db-7",
        "I decided to look",
        "read(src/pool.py)",
        "pool exhausted",
        "connect_pool",
        "user: hurry",
    ):
        assert part in text
    assert "secret musings" not in text


@settings(max_examples=60, deadline=None)
@given(
    words=st.lists(st.text(max_size=200), max_size=12),
    tokens=st.integers(20, 300),
    previous=st.text(max_size=2_000),
)
def test_the_extractive_summary_is_bounded_and_deterministic(words: list[str], tokens: int, previous: str) -> None:
    """Whatever the record says, the bound holds and the same record gives the same words."""
    entries = tuple(entry(n, "user", "user-input", Text(word)) for n, word in enumerate(words))

    async def write() -> str:
        """Write it once."""
        return (await ExtractiveStrategy().summarize(task(entries=entries, tokens=tokens, previous=previous))).text

    once, again = anyio.run(write, backend="trio"), anyio.run(write, backend="trio")
    assert once == again
    assert len(once) <= tokens * 4
