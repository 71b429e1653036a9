"""Runs that ended long ago go from the disk; what goes on, or ended lately, stays."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import anyio

import repertory as rp
from repertory.service.cleaning import remove_finished, run_retention
from repertory.service.duties import Duties
from repertory.testing import ScriptedModel

DAY = 86_400.0


def test_only_what_ended_long_ago_is_removed(tmp_path: Path, run_async: Any) -> None:
    """By the time at which it ended last, whole trees at once; the file is as sound as before."""

    async def main() -> None:
        now, told = [1000 * DAY], list[str]()
        model = ScriptedModel(["One.", "Two.", "Three.", "Again."])
        clerk = rp.Agent("clerk", model=model, context=None)
        async with rp.open_supervisor(tmp_path / "a.db", clock=lambda: now[0]) as supervisor:
            ids = []
            for _ in range(3):
                run = await supervisor.spawn(clerk, "Say something.")
                await run.wait_result()
                ids.append(run.id)
                now[0] += 10 * DAY
            await run.send("And again.")  # the third has ended later than it began
            assert await remove_finished(supervisor, days=30, now=now[0] - 1, tell=told.append) == []
            assert await remove_finished(supervisor, days=15, now=now[0], tell=told.append) == ids[:2]
            assert [row.started.run_id for row in await supervisor.runs()] == ids[2:]
            assert await remove_finished(supervisor, days=15, now=now[0], tell=told.append) == []
            assert told == ids[:2]

    run_async(main)


async def test_it_looks_at_once_and_says_what_it_did(tmp_path: Path, autojump_clock: object) -> None:
    """Then once an hour; not by a clock that was set forward, before it was right for an hour."""
    said: list[str] = []
    now = [1000 * DAY]
    async with rp.open_supervisor(clock=lambda: now[0]) as supervisor:
        clerk = rp.Agent("clerk", model=ScriptedModel(["One.", "Two."]), context=None)
        await (await supervisor.spawn(clerk, "Say something.")).wait_result()
        now[0] += 8 * DAY
        async with anyio.create_task_group() as tasks:
            clean = partial(run_retention, days=7, clock=lambda: now[0], report=said.append, tell=len)
            tasks.start_soon(clean, supervisor, Duties(supervisor))
            await anyio.sleep(1)
            assert said == ["removed 1 run that ended more than 7 days ago"]
            await (await supervisor.spawn(clerk, "Say something.")).wait_result()
            now[0] += 8 * DAY
            await anyio.sleep(3600)
            assert said[1:] == ["the clock was set forward by 8 days: old runs stay for another hour"]
            assert len(await supervisor.runs()) == 1
            now[0] -= 8 * DAY
            await anyio.sleep(3600)
            assert len(said) == 2
            now[0] += 8 * DAY
            await anyio.sleep(7200)
            assert len(said) == 4
            tasks.cancel_scope.cancel()
        assert await supervisor.runs() == []
