"""What is logged: dotted names with key-values, for those who listen, and nothing for those who do not."""

from __future__ import annotations

import logging

import pytest
import trio.testing

import repertory as rp
from repertory.testing import FunctionModel, ScriptedModel


async def test_a_run_is_logged_once_somebody_listens(caplog: pytest.LogCaptureFixture) -> None:
    """Events come under the logger ``repertory``, with the facts as fields of the record."""
    caplog.set_level(logging.INFO, logger="repertory")
    async with rp.open_supervisor(model=ScriptedModel(["Done."])) as supervisor:
        run = await supervisor.spawn(rp.Agent("clerk"), "Go.")
        await run.wait_result()
    records = [record for record in caplog.records if record.name == "repertory"]
    assert [record.message for record in records] == ["run.spawned", "iteration.started", "state.changed"]
    assert (vars(records[0])["run"], vars(records[0])["agent"]) == (run.id, "clerk")
    assert vars(records[-1])["state"] == "done"


async def test_nothing_is_logged_by_default(caplog: pytest.LogCaptureFixture) -> None:
    """A library keeps quiet until the application asks."""
    async with rp.open_supervisor(model=ScriptedModel(["Done."])) as supervisor:
        run = await supervisor.spawn(rp.Agent("clerk"), "Go.")
        await run.wait_result()
    assert caplog.records == []


async def test_a_crash_is_logged_with_its_error(
    caplog: pytest.LogCaptureFixture, autojump_clock: trio.testing.MockClock
) -> None:
    """Whoever runs agents for days finds the traceback, though the run only says that it failed."""

    def crash(request: object) -> str:
        raise RuntimeError("a bug")

    async with rp.open_supervisor(model=FunctionModel(crash)) as supervisor:
        run = await supervisor.spawn(rp.Agent("clerk"), "Go.")
        with pytest.raises(rp.RepertoryError):
            await run.wait_result()
    crashes = [record for record in caplog.records if record.message == "run.crashed"]
    assert len(crashes) == 1
    assert crashes[0].exc_info
    assert "a bug" in str(crashes[0].exc_info[1])
