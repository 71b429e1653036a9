"""Sub-agents that work on another machine than their lead."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from placed_team import LEAD, REF, Script

import repertory as rp
from backends import RunAsync
from postgres_server import PostgresServer
from repertory.supervisor import Supervisor

PATIENCE = 60.0


@pytest.fixture(autouse=True)
def script() -> Iterator[None]:
    """The models as they are without a test."""
    Script.reset()
    yield
    Script.reset()


@asynccontextmanager
async def machine(uri: str, name: str, *labels: str, **options: Any) -> AsyncGenerator[Supervisor]:
    """A machine that offers labels."""
    async with rp.open_supervisor(uri, name=name, labels=labels, **options) as supervisor:
        yield supervisor


async def owners(supervisor: Supervisor, run_id: str) -> list[str]:
    """The machines that owned a run, one after the other."""
    return [record.body["name"] for _, record in await supervisor.journal.read_events(run_id, types=["RunClaimed"])]


async def below(supervisor: Supervisor, run_id: str) -> list[str]:
    """The runs below another."""
    rows = await supervisor.journal.read_runs()
    return [row.started.run_id for row in rows if row.started.run_id.startswith(f"{run_id}.")]


def test_a_placed_sub_agent_works_where_its_label_is_offered(postgres: PostgresServer, run_async: RunAsync) -> None:
    """And its lead, elsewhere, gets its report."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        async with machine(uri, "plain") as plain, machine(uri, "gpu", "gpu") as gpu:
            run = await plain.spawn(LEAD, "What is it?", agent_ref=REF)
            with anyio.fail_after(PATIENCE):
                assert "42" in await run.wait_result()
            (worker,) = await below(plain, run.id)
            assert await owners(plain, run.id) == ["plain"]
            assert await owners(plain, worker) == ["gpu"]
            assert (await gpu.journal.read_run(worker)).state == "done"
            assert run.statistics(tree=True).model_calls == 3

    run_async(main)
