"""One setting makes plain loops of all agents: their models see everything, always."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import repertory as rp
from context_scenes import Reader, clerk, log_of
from delegating import Company, company, delegate, last
from repertory.errors import ConfigurationError
from repertory.runs.events import ContextEdited

DAYS = 8
WHOLE = [log_of(day) for day in range(1, DAYS + 1)]


@pytest.mark.parametrize(
    ("argument", "variable", "is_plain"),
    [(True, None, True), (None, "1", True), (False, "1", False), (None, "0", False), (None, "", False)],
)
async def test_one_setting_makes_a_plain_loop_of_an_agent(
    argument: bool | None, variable: str | None, is_plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the supervisor, or else of the environment; the agent itself asks for strict rhythm."""
    if variable is not None:
        monkeypatch.setenv("REPERTORY_PLAIN_LOOPS", variable)
    reader = Reader(DAYS, stop_at=0)
    async with rp.open_supervisor(model=reader.model, plain_loops=argument) as supervisor:
        run = await supervisor.spawn(clerk(), "Read.")
        await run.wait_result()
        edits = [event async for event in run.events() if isinstance(event, ContextEdited)]
    assert (reader.shown(DAYS + 1) == WHOLE) == is_plain
    assert bool(edits) != is_plain


async def test_sub_agents_are_plain_loops_too() -> None:
    """Whoever began them."""
    firm = Company(delegate("a"), last)
    async with rp.open_supervisor(model=firm.model, plain_loops=True) as supervisor:
        run = await supervisor.spawn(company(), "Go.")
        await run.wait_result()
        assert [each.agent.context for each in (run, *run.children)] == [None, None]


async def test_a_run_that_goes_on_as_a_plain_loop_is_edited_no_more(tmp_path: Path) -> None:
    """What was edited before stays so, and all that is new is shown whole."""
    path = tmp_path / "c.db"
    reader = Reader(6, stop_at=6)
    async with rp.open_supervisor(path, model=reader.model) as supervisor:
        run = await supervisor.spawn(clerk(), "Read.", run_id="r1")
        await reader.arrived.wait()
        run.stop()
        reader.go()
        await run.wait_ended()
        decisions = len(await supervisor.journal.read_decisions("r1"))
    reader = Reader(4, stop_at=0, first=7)
    async with rp.open_supervisor(path, model=reader.model, plain_loops=True) as supervisor:
        await (await supervisor.resume("r1", agent=clerk())).wait_result()
        assert len(await supervisor.journal.read_decisions("r1")) == decisions > 0
    assert reader.shown(5)[-5:] == [log_of(day) for day in range(6, 11)]


@pytest.mark.parametrize("value", ["yes", "2", " "])
async def test_another_value_is_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything runs; so is an argument of another type."""
    monkeypatch.setenv("REPERTORY_PLAIN_LOOPS", value)
    with pytest.raises(ConfigurationError, match="REPERTORY_PLAIN_LOOPS must be 1 or 0, got"):
        async with rp.open_supervisor():
            pass
    wrong: Any = value
    with pytest.raises(ConfigurationError, match="open_supervisor: plain_loops must be True, False or None"):
        async with rp.open_supervisor(plain_loops=wrong):
            pass
