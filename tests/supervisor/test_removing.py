"""Runs that leave the journal: all of theirs goes, nothing of others, and a kill in between leaves no half of one."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from test_forking import answer, counter

import repertory as rp
from delegating import Company, collect, company, delegate, last
from failing_journals import LateJournal
from killing import kill, play
from repertory.errors import ModelRefused, RunError, RunExists, RunNotFound, ScopeNotFound
from repertory.llm.messages import Text
from repertory.llm.model import ModelRequest
from repertory.memory import ItemQuery, Memory
from repertory.record import Draft, Ledger, open_journal
from repertory.record.records import EventLogged, RunStarted, RunStateChanged
from repertory.testing import FunctionModel, call

PROGRAM = Path(__file__).with_name("removing_runs.py")


@rp.tool(effect="pure")
def read_all() -> str:
    """Read everything."""
    return "a shelf of honey " * 4000


def tables(path: Path) -> dict[str, int]:
    """How many rows each table holds."""
    with closing(sqlite3.connect(path)) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {
            name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
            for name in names
            if "search" not in name
        }


async def test_a_removed_run_leaves_nothing_and_others_all_of_theirs(tmp_path: Path) -> None:
    """Rows, words in the index, memory, bytes: what is left is what a journal has that never had the run."""
    path, agent = tmp_path / "a.db", counter()

    async def look_for(supervisor: rp.Supervisor, run_id: str) -> list[Any]:
        return [hit.excerpt for hit in await supervisor.journal.search_entries(run_id, "honey", limit=99)]

    async with rp.open_supervisor(path, model=FunctionModel(answer), summaries=()) as supervisor:
        kept = await supervisor.spawn(agent, "Count the shelves.", run_id="kept")
        await kept.wait_result()
        found = await look_for(supervisor, "kept")
        before = tables(path)
        gone = await supervisor.spawn(agent, "Count other shelves.", run_id="gone")
        await gone.wait_result()
        await look_for(supervisor, "gone")
        await gone.memory.query(ItemQuery(text="shelf"))
        last_event = await supervisor.journal.last_event()
        await supervisor.remove("gone")
        with pytest.raises(RunNotFound):
            await supervisor.remove("gone")
        with pytest.raises(RunExists, match="has been removed"):
            await supervisor.spawn(agent, "Count.", run_id="gone")
        with pytest.raises(RunNotFound, match="no run has the id 'gone': it was removed, and its id stays taken"):
            await supervisor.resume("gone", agent=agent)  # as a chat does under the id of its user
        assert tables(path) == {**before, "removals": 1}
        assert await look_for(supervisor, "kept") == found
        assert await look_for(supervisor, "gone") == []
        assert await supervisor.journal.check(deep=True) == []  # type: ignore[attr-defined]
    assert b"Count other shelves" not in path.read_bytes()  # nor is it left in free pages
    with closing(sqlite3.connect(path)) as connection:
        for index in ("entry_search", "item_search"):
            connection.execute(f"INSERT INTO {index} ({index}) VALUES ('integrity-check')")
        words = connection.execute("SELECT rowid FROM entry_search WHERE entry_search MATCH 'honey'").fetchall()
        assert len(words) == len(found)
    async with rp.open_supervisor(path, model=FunctionModel(answer), summaries=()) as supervisor:
        later = await supervisor.spawn(agent, "Count again.")
        await later.wait_result()
        numbers = [number for number, _ in await supervisor.journal.read_events(later.id)]
        assert min(numbers) > last_event  # none is given out again: clients go on behind the last that they know
        assert await supervisor.journal.check(deep=True) == []  # type: ignore[attr-defined]


async def test_what_others_stand_on_stays() -> None:
    """A fork has its memory and contents after its origin was removed, and takes them along when it goes itself."""
    agent = counter()
    async with rp.open_supervisor(model=FunctionModel(answer), summaries=()) as supervisor:
        journal = supervisor.journal
        run = await supervisor.spawn(agent, "Count the shelves.")
        await run.wait_result()
        fork = await supervisor.fork(run.id, iteration=4, text="Now say it.", agent=agent)
        await fork.wait_result()
        cited = [content.content_id for content in await journal.read_contents(fork.id)]
        whole = {each: (await supervisor.journal.read_content(each, root=fork.id)) for each in cited}
        await supervisor.remove(run.id)
        assert (await fork.memory.retrieve("shelf-1")).text == "shelf 1"
        for each, stored in whole.items():
            assert await journal.read_content(each, root=fork.id) == stored
        assert len(await journal.read_scopes()) == 2
        other = await supervisor.spawn(agent, "Count.")
        await other.wait_result()
        await supervisor.remove(fork.id)
        assert [scope.owner for scope in await journal.read_scopes()] == [other.id]
        assert {item.item_id for item in await other.memory.query(ItemQuery(limit=50))} >= {"shelf-1"}
        for each in cited:
            assert await journal.read_content(each) is None


@pytest.mark.parametrize("forked", [False, True])
async def test_nothing_is_stored_in_the_memory_of_a_removed_run(*, forked: bool) -> None:
    """A handle on it is told: what it stored was acknowledged, and nobody would ever have seen it."""
    async with rp.open_supervisor(model=FunctionModel(answer)) as supervisor:
        run = await supervisor.spawn(counter(), "Count.", run_id="gone")
        await run.wait_result()
        memory = run.memory
        await memory.store("kept", item_id="kept")
        if forked:  # whose snapshot needs the scope
            fork = await supervisor.fork("gone", agent=counter())
            await fork.wait_result()
        await supervisor.remove("gone")
        with pytest.raises(ScopeNotFound, match="unless its run was removed"):
            await memory.store("lost")
        if forked:
            assert (await fork.memory.retrieve("kept")).content == "kept"
            for late in (memory.clear(), fork.memory.merge(), Memory.open(memory.ref, "", scope_id=memory.scope_id)):
                with pytest.raises(ScopeNotFound):
                    await late


async def test_contents_shared_with_another_tree_stay_there() -> None:
    """They are copies; the removed run's own are gone."""
    agent = counter(tools=[read_all], payload=None)

    def once(request: Any) -> Any:
        return call("read_all") if len(request.messages) == 1 else "Done."

    async with rp.open_supervisor(model=FunctionModel(once), summaries=()) as supervisor:
        run, other = await supervisor.spawn(agent, "Look."), await supervisor.spawn(agent, "Look too.")
        await run.wait_result()
        await other.wait_result()
        (content,) = await supervisor.journal.read_contents(run.id)
        await supervisor.share_content(content.content_id, other.id)
        await supervisor.remove(run.id)
        shared = await supervisor.journal.read_content(content.content_id, root=other.id)
        assert shared is not None
        assert len(shared.body) == content.length
        with pytest.raises(RunNotFound):
            await supervisor.share_content(content.content_id, run.id)


async def test_a_tree_goes_as_one_and_only_once_it_has_ended() -> None:
    """A sub-agent's run cannot be removed alone, nor one that goes on."""
    firm = Company(delegate("a", "b", tool="delegate_start"), collect, last)
    firm.hold("a")
    async with rp.open_supervisor(model=firm.model) as supervisor:
        run = await supervisor.spawn(company(), "Go.")
        await others_begun(run)
        with pytest.raises(RunError, match="has not ended"):
            await supervisor.remove(run.id)
        firm.release("a")
        await run.wait_result()
        child = run.children[0].id
        with pytest.raises(RunError, match=f"belongs to {run.id}; remove that one"):
            await supervisor.remove(child)
        await supervisor.remove(run.id)
        assert await supervisor.runs() == []
        assert await supervisor.journal.last_event() == 0
        with pytest.raises(RunNotFound):
            await run.send("Go on.")


async def test_a_run_that_nobody_continues_can_be_removed(tmp_path: Path) -> None:
    """Its agent may be gone, so it could neither go on nor be stopped; its sub-agents go with it."""
    firm = Company(delegate("a", "b", tool="delegate_start"), collect, last)
    firm.hold("a")
    async with rp.open_supervisor(tmp_path / "a.db", model=firm.model) as supervisor:
        run = await supervisor.spawn(company(), "Go.", run_id="one", agent_ref="no_such_module:boss")
        await others_begun(run)
    async with rp.open_supervisor(tmp_path / "a.db", model=firm.model) as supervisor:
        with pytest.raises(rp.RepertoryError, match="no_such_module"):
            await supervisor.resume("one")
        await supervisor.remove("one")
        assert await supervisor.runs() == []


@pytest.mark.parametrize("verb", ["remove", "retry"])
async def test_a_run_that_has_just_ended_on_record_has_ended(verb: str) -> None:
    """Whoever read that may remove it or try it again, also before this process knows that it was written."""
    journal = LateJournal()

    def answer(_: ModelRequest) -> str:
        if not journal.ended.is_set():
            raise ModelRefused("no")
        return "Done."

    async with rp.open_supervisor(journal=journal, model=FunctionModel(answer)) as supervisor:
        agent = rp.Agent("clerk", context=None)
        run = await supervisor.spawn(agent, "Go.")
        await journal.ended.wait()
        assert (await journal.read_run(run.id)).state == "failed"
        async with trio.open_nursery() as nursery:
            if verb == "remove":
                nursery.start_soon(supervisor.remove, run.id)
            else:
                nursery.start_soon(partial(supervisor.retry, run.id, agent=agent))
            await trio.testing.wait_all_tasks_blocked()
            journal.acknowledge.set()
        if verb == "remove":
            assert await supervisor.runs() == []
        else:
            assert await run.wait_result() == "Done."


async def others_begun(run: rp.Run[Any]) -> None:
    """Wait until a run has begun others."""
    async for event in run.events(tree=True):
        if event.run_id != run.id:
            return


async def make_large(path: Path) -> None:
    """A journal with a run of some 10,000 records, and a small one."""
    async with open_journal(path, durability="process") as journal:
        for run_id, size in (("large", 5000), ("small", 5)):
            started = RunStarted(run_id=run_id, agent="a", task="t", at=1.0, scope_id="")
            ledger = Ledger(journal, run_id)
            drafts = [
                Draft(role="user", kind="task", content=(Text(f"{run_id} jar {number}"),), iteration=number)
                for number in range(size)
            ]
            events = [EventLogged(run_id=run_id, type="X", body={"n": number}, at=1.0) for number in range(size)]
            done = RunStateChanged(run_id=run_id, state="done", at=2.0, result="x")
            await ledger.append(*drafts, also=[started, *events, done])
        await journal.search_entries("large", "jar")


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 21))])
async def test_a_killed_removal_is_finished_by_the_next_process(seed: int, tmp_path: Path) -> None:
    """Whenever it is killed, the run is there whole or in no list, the file is sound, and the rest goes at last."""
    path = tmp_path / "a.db"
    await make_large(path)
    chance = random.Random(seed)
    for _ in range(2):
        kill(PROGRAM, path, after=0, chance=chance)
        async with open_journal(path, readonly=True) as journal:
            there = [row.started.run_id for row in await journal.read_runs()]
            assert await journal.check(deep=True) == []  # type: ignore[attr-defined]
            assert there == (["small"] if "large" not in there else ["large", "small"])
            if "large" in there:
                assert len(await journal.read_entries("large")) == 5000
    assert play(PROGRAM, path) == ["DONE"]
    async with open_journal(path) as journal:
        assert await journal.read_removals() == []
        assert await journal.read_entries("large") == []
        assert await journal.read_events("large") == []
        assert len(await journal.read_entries("small")) == 5
        assert len(await journal.search_entries("small", "jar")) == 5
        assert await journal.check(deep=True) == []  # type: ignore[attr-defined]
