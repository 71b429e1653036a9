"""Which machine runs a run, in what a service and the commands show."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from typer.testing import CliRunner

import repertory as rp
from backends import RunAsync
from patience import PATIENCE
from postgres_server import PostgresServer
from repertory.cli.app import app
from repertory.llm.messages import text_of
from repertory.llm.model import ModelRequest
from repertory.machines import Machine
from repertory.service.control import Control
from repertory.service.metrics import Metrics
from repertory.service.requests import RunsQuery
from repertory.testing import FunctionModel, call

HELPER = rp.Agent("helper", context=None)
LEAD = rp.Agent("lead", team=[HELPER], context=None)


class Busy:
    """A model whose lead delegates, and whose helper is at work until it is let go."""

    def __init__(self) -> None:
        self.helping = anyio.Event()
        self.open = anyio.Event()

    async def answer(self, request: ModelRequest) -> Any:
        """One answer."""
        if text_of(request.messages[0].content).startswith("Help."):
            self.helping.set()
            await self.open.wait()
        elif len(request.messages) == 1:
            return call("delegate", agent="helper", task="Help.")
        return "Done."


@asynccontextmanager
async def two(uri: str, busy: Busy) -> AsyncGenerator[tuple[rp.Supervisor, rp.Supervisor]]:
    """The owner of what is started, and another one."""
    model = FunctionModel(busy.answer)
    async with (
        rp.open_supervisor(uri, name="owner", labels=("gpu",), model=model) as owner,
        rp.open_supervisor(uri, name="other", model=model) as other,
    ):
        yield owner, other


def repertory(*words: str) -> str:
    """What a command writes."""
    return CliRunner().invoke(app, list(words)).output


def test_every_machine_shows_which_one_runs_a_run(
    postgres: PostgresServer, run_async: RunAsync, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In lists, in detail, for those below it, and in a list of those of one machine; no more once it has ended."""
    uri = postgres.emptied_journal()
    monkeypatch.setenv("REPERTORY_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")

    async def main() -> None:
        busy = Busy()
        async with two(uri, busy) as (owner, other), anyio.create_task_group() as tasks:
            assert (owner.machine, other.machine) == ("owner", "other")
            run = await owner.spawn(LEAD, "Work.")
            with anyio.fail_after(PATIENCE):
                await busy.helping.wait()
            for supervisor in (owner, other):
                control = Control(supervisor)
                tasks.start_soon(control.run)
                await control.unfinished()  # has it look who owns what
                assert [view.machine for view in (await control.runs.list_runs(RunsQuery(limit=9))).runs] == [
                    "owner",
                    "owner",
                ]
                detail = await control.read_run(run.id)
                assert detail.run.machine == detail.tree.children[0].run.machine == "owner"
                assert len((await control.runs.list_runs(RunsQuery(limit=9, machine="owner"))).runs) == 2
                assert (await control.runs.list_runs(RunsQuery(limit=9, machine="other"))).runs == []
                overview = await control.runs.read_overview(
                    9, since=1, read_only=False, machines=await supervisor.machines()
                )
                assert [line["machine"] for line in overview.runs] == ["owner", "owner"]
                assert [(each["name"], each["runs"]) for each in overview.machines] == [("owner", 1), ("other", 0)]
                control.close()
            listed = json.loads(await anyio.to_thread.run_sync(repertory, "ps", "--json", "--db", uri))
            assert [each["machine"] for each in listed["runs"]] == ["owner", "owner"]
            for words in (("ps",), ("inspect", run.id)):
                assert "on owner" in await anyio.to_thread.run_sync(repertory, *words, "--db", uri)
            busy.open.set()
            with anyio.fail_after(PATIENCE):
                assert await run.wait_result() == "Done."
            assert [view.machine for view in (await Control(owner).runs.list_runs(RunsQuery(limit=9))).runs] == ["", ""]

    run_async(main)


def test_metrics_have_every_machine(postgres: PostgresServer, run_async: RunAsync) -> None:
    """Its runs and the age of its lease, by its name, its id and its labels; not those that were lost."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        busy = Busy()
        async with two(uri, busy) as (owner, _):
            run = await owner.spawn(LEAD, "Work.")
            with anyio.fail_after(PATIENCE):
                await busy.helping.wait()
            there, other = await owner.machines()
            lost = msgspec.structs.replace(other, lost_at=1.0)
            text = (await Metrics(owner.journal).read([_aged(there, 7.0), lost])).decode()
            names = f'labels="gpu",machine="owner",machine_id="{there.machine_id}"'
            assert f"repertory_machine_runs{{{names}}} 1.0" in text
            assert f"repertory_machine_lease_age_seconds{{{names}}} 23.0" in text
            assert f"repertory_machine_lease_left_seconds{{{names}}} 7.0" in text
            assert f"repertory_machine_draining{{{names}}} 0.0" in text
            assert "other" not in text
            assert b"repertory_machine" not in await Metrics(owner.journal).read()
            busy.open.set()
            await run.wait_result()

    run_async(main)


def _aged(machine: Machine, left: float) -> Machine:
    return msgspec.structs.replace(machine, lease=30.0, left=left)
