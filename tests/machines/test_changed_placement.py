"""Open delegations find their run where meanwhile its agent was, or was not, to work elsewhere."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from placed_team import REF, Script, alone, make, words

import repertory as rp
from patience import PATIENCE
from postgres_server import PostgresServer
from repertory.llm.model import ModelRequest
from repertory.machines import open_machines
from repertory.record import RunStarted, open_journal
from repertory.record.moving import move_journal
from repertory.record.postgres_journal import PostgresJournal
from repertory.record.records import RunStateChanged
from repertory.supervisor import Supervisor

ALONE = "placed_team:alone"


@pytest.fixture(autouse=True)
def script() -> Iterator[None]:
    """The models as they are without a test."""
    Script.reset()
    yield
    Script.reset()


@asynccontextmanager
async def opened(place: str | Path, *labels: str) -> AsyncGenerator[Supervisor]:
    """A supervisor that hands its runs over at once; with labels, on a server, it takes those from the queue, too."""
    offered = labels if isinstance(place, str) and labels else None
    async with rp.open_supervisor(place, labels=offered, drain_timeout=0) as supervisor:
        yield supervisor


class Work:
    """A worker that was asked once, in whichever process, and answers in a later one."""

    def __init__(self) -> None:
        self.asked = anyio.Event()
        self.shown: list[str] = []
        self.ready = False
        Script.worker = self.answer

    async def answer(self, request: ModelRequest) -> str:
        """One answer."""
        self.shown.append(words(request))
        self.asked.set()
        if not self.ready:
            await anyio.sleep_forever()
        return "42"


async def endless(_: ModelRequest) -> str:
    """No answer."""
    await anyio.sleep_forever()


async def begun(place: str | Path, work: Work) -> str:
    """Begin a run, and leave it while its worker works."""
    async with opened(place, "gpu") as supervisor:
        run = await supervisor.spawn(make(), "What is it?", agent_ref=REF)
        with anyio.fail_after(PATIENCE):
            await work.asked.wait()
    work.ready = True
    return run.id


async def finished(place: str | Path, run_id: str) -> list[str]:
    """Go on with it as its agent is now; the ids of its sub-agents' runs."""
    async with opened(place) as supervisor:
        run = await supervisor.resume(run_id, agent=make())
        with anyio.fail_after(PATIENCE):
            assert await run.wait_result() == "It is 42"
        rows = await supervisor.journal.read_runs(below=run_id)
        assert {row.state for row in rows} == {"done"}
        return [row.started.run_id for row in rows if row.started.run_id != run_id]


@pytest.mark.parametrize(("before", "then"), [(["gpu"], []), ([], ["gpu"])], ids=["taken away", "added"])
async def test_a_placement_that_was_changed(before: list[str], then: list[str], postgres: PostgresServer) -> None:
    """One run of the worker, which goes on: where it was placed at any machine now, else beside its lead."""
    uri, work = postgres.emptied_journal(), Work()
    Script.placement = before
    run_id = await begun(uri, work)
    Script.placement = then
    (child,) = await finished(uri, run_id)
    assert (".@" in child) == bool(before)
    assert len(work.shown) == 2


async def test_a_run_that_may_work_anywhere_now_is_found_behind_many_of_other_leads(postgres: PostgresServer) -> None:
    """They wait for their own machine, and more of them than are looked at at once."""
    uri, work = postgres.emptied_journal(), Work()
    run_id = await begun(uri, work)
    Script.placement = []
    async with open_journal(uri) as journal:
        assert isinstance(journal, PostgresJournal)
        async with open_machines(journal, name=None, labels=(), lease=30.0):
            for number in range(60):
                waiting = RunStarted(run_id=f"other.@{number}", agent="a", task="t", at=0.0, agent_ref="m:a")
                await journal.write([waiting, RunStateChanged(run_id=waiting.run_id, state="queued", at=0.0)])
    (child,) = await finished(uri, run_id)
    assert ".@" in child


async def test_a_journal_that_was_moved_to_a_file(tmp_path: Path, postgres: PostgresServer) -> None:
    """There everything works beside its lead, also what was placed."""
    uri, file, work = postgres.emptied_journal(), tmp_path / "runs.db", Work()
    run_id = await begun(uri, work)
    await anyio.to_thread.run_sync(move_journal, uri, file)
    (child,) = await finished(file, run_id)
    assert ".@" in child
    assert len(work.shown) == 2


async def test_a_journal_that_was_moved_to_a_server(tmp_path: Path, postgres: PostgresServer) -> None:
    """Its machines take what had not ended: what was at work, and what waited for its turn."""
    uri, file, work = postgres.emptied_journal(), tmp_path / "runs.db", Work()
    async with rp.open_supervisor(file, max_runs=1, drain_timeout=0) as supervisor:
        runs = [await supervisor.spawn(make(), "What is it?", agent_ref=REF) for _ in range(2)]
        with anyio.fail_after(PATIENCE):
            await work.asked.wait()
        assert runs[1].state == "queued"
    work.ready = True
    await anyio.to_thread.run_sync(move_journal, file, uri)
    async with opened(uri, "gpu") as supervisor:
        with anyio.fail_after(PATIENCE):
            while {row.state for row in await supervisor.runs()} != {"done"}:
                await anyio.sleep(0.01)


async def test_a_placed_run_goes_on_as_its_lead_does_with_another_definition(postgres: PostgresServer) -> None:
    """Nobody has the one that it was begun with, and its lead would wait for ever."""
    uri, work = postgres.emptied_journal(), Work()
    run_id = await begun(uri, work)
    Script.instructions = "Be quick."
    async with opened(uri, "gpu"):
        (child,) = await finished(uri, run_id)
    assert ".@" in child
    assert len(work.shown) == 2


async def test_a_lead_of_plain_loops_leaves_the_definition_of_what_waits_as_it_is(postgres: PostgresServer) -> None:
    """It shows its own models everything; another machine finds the worker by what its agent says."""
    uri, Script.context = postgres.emptied_journal(), rp.ContextPolicy()
    async with rp.open_supervisor(uri, plain_loops=True) as plain:
        run, placement = await plain.spawn(make(), "What is it?", agent_ref=REF), plain._runtime.placement
        assert placement is not None
        with anyio.fail_after(PATIENCE):
            while not placement._stand_ins:
                await anyio.sleep(0.01)
            async with anyio.create_task_group() as tasks:
                await placement._follow(tasks)
            async with opened(uri, "gpu"):
                assert await run.wait_result() == "It is 42"


async def test_a_run_goes_on_with_the_definition_that_it_is_claimed_with(postgres: PostgresServer) -> None:
    """Not with the one that it had when the queue was read."""
    uri = postgres.emptied_journal()
    Script.lead = endless
    async with opened(uri) as desk, rp.open_supervisor(uri, max_runs=1, drain_timeout=0) as other:
        await other.spawn(make(), "Have no room, and read the queue no more.", agent_ref=REF)
        await desk.drain()
        run, claims = await desk.spawn(alone(), "What is it?", agent_ref=ALONE), other._runtime.claims
        assert claims is not None
        (waits,) = await claims.machines.candidates(["gpu"])
        assert await claims._fits(waits)
        Script.instructions = "Be quick."
        await claims.machines.redefine(run.id, alone().digest, ["gpu"])
        claim, _ = await claims.machines.claim([run.id])
        assert claim is not None
        await claims.continue_run(claim)
        live = other._runtime.runs.find(run.id)
        assert live is not None
        assert live.agent.instructions == "Be quick."
