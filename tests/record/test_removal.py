"""Trees that leave a journal, of every kind: slice by slice, to the end, and nothing of others with them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

import journal_kit as kit
from patience import PATIENCE
from repertory.record import MemoryJournal, Record, open_journal
from repertory.record.items import ItemQuery
from repertory.record.journal import Journal
from repertory.record.memory_records import ItemWritten, ScopeOpened
from repertory.record.records import ContentStored, EventLogged, RunStarted, RunStateChanged
from repertory.record.removal import remove_slice

KINDS = pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"], indirect=True)


async def fill(journal: Journal, run_id: str, first: int) -> None:
    """A tree of two runs with something of most kinds, whose items stand from a position on in the log."""
    for each, parent in ((run_id, None), (f"{run_id}.a", run_id)):
        started = RunStarted(run_id=each, agent="a", task="t", at=1.0, parent_id=parent, scope_id=f"s-{run_id}")
        entries = [kit.appended(each, position, f"honey {each} {position}") for position in range(600)]
        content = ContentStored(content_id=f"c-{each}", run_id=each, source_type="t", source="t", body="jar", at=1.0)
        event = EventLogged(run_id=each, type="X", body={}, at=1.0)
        done = RunStateChanged(run_id=each, state="done", at=2.0)
        await journal.write([started, *entries, content, event, done])
    scope = ScopeOpened(scope_id=f"s-{run_id}", owner=run_id, mode="root", at=1.0)
    items = [
        ItemWritten(scope_id=f"s-{run_id}", item_id=f"i{n}", position=first + n, type="x", content="jar of wax", at=1.0)
        for n in range(3)
    ]
    await journal.write([scope, *items])


async def found(journal: Journal, run_id: str) -> list[Any]:
    """What is there of a tree, by everything that finds it."""
    layers = [(f"s-{run_id}", 10**9)]
    return [
        [row.started.run_id for row in await journal.read_runs(below=run_id)],
        await journal.read_entries(f"{run_id}.a"),
        await journal.search_entries(run_id, "honey", limit=5),
        await journal.read_content(f"c-{run_id}"),
        await journal.read_events(run_id),
        await journal.find_items(layers, ItemQuery(text="wax")),
        await journal.read_scope(f"s-{run_id}"),
    ]


@KINDS
async def test_a_tree_goes_whole_and_others_stay_as_they_were(kind: str, tmp_path: Path) -> None:
    """Whatever finds it finds nothing; whatever finds the other finds the same as before."""
    async with kit.opened(kind, tmp_path) as journal:
        await fill(journal, "one", 1)
        await fill(journal, "one2", 4)  # whose id begins with the other's
        before = await found(journal, "one2")
        assert all(await found(journal, "one"))
        await journal.remove_run("one", at=5.0)
        assert not any(await found(journal, "one"))
        assert await found(journal, "one2") == before
        assert all(before)
        assert await journal.read_removals() == []
        assert await journal.was_removed("one")
        assert not await journal.was_removed("one2")
        await journal.remove_run("one", at=6.0)  # safe to repeat


@KINDS
async def test_a_removal_that_was_begun_is_in_no_list_and_can_be_finished(kind: str, tmp_path: Path) -> None:
    """The first slice takes the runs; the rest is found among what was not finished."""
    async with kit.opened(kind, tmp_path) as journal:
        await fill(journal, "one", 1)
        assert not await journal._change("remove", partial(remove_slice, run_id="one", at=5.0))
        assert await journal.read_runs() == []
        assert await journal.read_entries("one") != []
        assert await journal.read_removals() == ["one"]
        await journal.remove_run("one", at=6.0)
        assert await journal.read_removals() == []
        assert await journal.read_entries("one") == []


@KINDS
async def test_the_log_of_items_never_goes_back(kind: str, tmp_path: Path) -> None:
    """A snapshot is a position in it, so a position is never given out again, also in the next process."""
    async with kit.opened(kind, tmp_path) as journal:
        await fill(journal, "one", 7)
        await journal.remove_run("one", at=5.0)
        assert await journal.last_item_position() >= 9
        assert await journal.item_position_at(10**12, "s-one") == 0
        await fill(journal, "two", 1_000)
        await fill(journal, "three", 20)  # of a machine with a lower block of positions
        await journal.remove_run("two", at=5.0)
        assert await journal.last_item_position() >= 1_002


@KINDS
async def test_memory_that_another_tree_sees_goes_with_the_last_tree_that_sees_it(kind: str, tmp_path: Path) -> None:
    """A fork's memory is a snapshot of the memory of the run that it was forked from, and so on."""
    async with kit.opened(kind, tmp_path) as journal:
        parent = None
        for number, run_id in enumerate(("one", "two", "three")):
            scopes = [
                ScopeOpened(scope_id=f"s-{run_id}", owner=run_id, mode="snapshot", at=1.0, parent_id=parent),
                ScopeOpened(
                    scope_id=f"shared-{run_id}", owner=f"{run_id}.a", mode="shared", at=1.0, parent_id=f"s-{run_id}"
                ),
            ]
            await journal.write([kit.started(run_id), *scopes, kit.item(number + 1, f"s-{run_id}")])
            parent = f"shared-{run_id}"

        async def left() -> list[str]:
            return [scope.scope_id for scope in await journal.read_scopes()]

        everything = await left()
        await journal.remove_run("one", at=1.0)
        await journal.remove_run("two", at=1.0)
        assert await left() == everything
        assert len(await journal.read_items(["s-one", "s-two", "s-three"])) == 3
        await journal.remove_run("three", at=1.0)
        assert await left() == []
        assert await journal.read_items(["s-one", "s-two", "s-three"]) == []


@KINDS
async def test_what_no_fork_sees_of_memory_goes_at_once(kind: str, tmp_path: Path) -> None:
    """Of the scope that forks are based on, what was written after the last of them; with that one what only it saw."""

    def snapshot(run_id: str, position: int) -> list[Record]:
        scope = ScopeOpened(
            scope_id=f"s-{run_id}", owner=run_id, mode="snapshot", at=1.0, parent_id="s-one", position=position
        )
        return [kit.started(run_id), scope]

    async with kit.opened(kind, tmp_path) as journal:
        items = [kit.item(position, "s-one", f"i{position}", "wax") for position in range(1, 5)]
        root = ScopeOpened(scope_id="s-one", owner="one", mode="root", at=1.0)
        await journal.write([kit.started("one"), root, *items, *snapshot("two", 2), *snapshot("three", 3)])

        async def left() -> list[int]:
            found = await journal.find_items([("s-one", 9)], ItemQuery(text="wax"))
            assert len(found) == len(await journal.read_items(["s-one"]))
            return sorted(item.position for item in found)

        assert await left() == [1, 2, 3, 4]
        await journal.remove_run("two", at=5.0)
        assert await left() == [1, 2, 3, 4]  # the run itself is still there
        await journal.write(snapshot("four", 1))
        await journal.remove_run("one", at=5.0)
        assert await left() == [1, 2, 3]
        await journal.remove_run("three", at=5.0)
        assert await left() == [1]
        await journal.remove_run("four", at=5.0)
        assert await left() == []
        assert await journal.read_scopes() == []


async def test_removing_takes_as_long_among_many_scopes_as_among_few() -> None:
    """Writers wait for each slice: SQLite takes as many steps beside the memory of 500 other runs as of 50."""
    steps: list[int] = []
    for count in (50, 500):
        async with open_journal() as journal:
            assert isinstance(journal, MemoryJournal)
            for number in range(count):
                scope = ScopeOpened(scope_id=f"s{number}", owner=f"r{number}", mode="root", at=1.0)
                await journal.write([kit.started(f"r{number}"), scope])
            taken = [0]

            def step(taken: list[int] = taken) -> None:
                taken[0] += 1

            journal._connection.set_progress_handler(step, 1)  # pyright: ignore[reportPrivateUsage]
            await journal.remove_run("r20", at=1.0)
            steps.append(taken[0])
    assert steps[1] < 1.1 * steps[0]


@KINDS
async def test_the_memory_of_a_large_team_goes_in_few_slices(kind: str, tmp_path: Path) -> None:
    """A slice deletes the records of many scopes: one for each scope would take as many times longer as there are."""
    async with kit.opened(kind, tmp_path) as journal:
        records: list[Record] = [kit.started("one")]
        for number in range(1, 251):
            records.append(ScopeOpened(scope_id=f"s{number}", owner=f"one.{number}", mode="isolated", at=1.0))
            records.append(kit.item(number, f"s{number}"))
        await journal.write(records)
        slices = 1
        while not await journal._change("remove", partial(remove_slice, run_id="one", at=5.0)):
            slices += 1
        assert slices < 12
        assert await journal.read_scopes() == []
        assert await journal.read_items([f"s{number}" for number in range(1, 251)]) == []


async def test_removing_a_team_takes_little_more_than_in_proportion_to_its_size() -> None:
    """For each scope SQLite takes hardly more steps in a team that is four times as large."""
    steps: list[float] = []
    for count in (250, 1_000):
        async with open_journal() as journal:
            assert isinstance(journal, MemoryJournal)
            records: list[Record] = [kit.started("one"), ScopeOpened(scope_id="s", owner="one", mode="root", at=1.0)]
            for number in range(count):
                owner = f"one.{number}"
                records += [
                    ScopeOpened(scope_id=f"s{number}", owner=owner, mode="snapshot", at=1.0, parent_id="s"),
                    kit.item(number, f"s{number}"),
                ]
            await journal.write(records)
            taken = [0]

            def step(taken: list[int] = taken) -> None:
                taken[0] += 1

            journal._connection.set_progress_handler(step, 1)  # pyright: ignore[reportPrivateUsage]
            await journal.remove_run("one", at=1.0)
            assert await journal.read_scopes() == []
            steps.append(taken[0] / count)
    assert steps[1] < 1.6 * steps[0]


async def test_a_search_ends_although_what_it_waits_for_is_removed_meanwhile() -> None:
    """The last records that were to be indexed are gone before it comes to them."""
    async with kit.opened("memory", Path()) as journal:
        await journal.write([kit.started("one")])
        await journal.write([kit.appended("one", position, "honey") for position in range(3_000)])
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(journal.search_entries, "one", "honey")
                tasks.start_soon(partial(journal.remove_run, "one", at=5.0))
        assert await journal.search_entries("one", "honey") == []
