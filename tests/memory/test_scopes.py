"""Scopes: what each one sees, what a query finds in it, who may use it, what a merge does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import journal_kit as kit
from repertory.actors import open_system
from repertory.errors import ConfigurationError, ItemChanged, ItemNotFound, QuotaExceeded, ScopeNotFound, ScopeReadOnly
from repertory.memory import ItemQuery, Memory, MemoryActor, MemoryMode, MemoryQuota, MemoryRef, Transform
from repertory.memory.messages import OpenScope
from repertory.record import open_journal


@asynccontextmanager
async def memories(quotas: MemoryQuota | None = None) -> AsyncIterator[tuple[MemoryRef, Memory]]:
    """An actor, and a scope of its own; every clock tick is a second."""
    ticks = iter(range(1, 10_000))
    async with open_journal() as journal, open_system() as system:
        ref = system.spawn(lambda: MemoryActor(journal, quota=quotas, clock=lambda: float(next(ticks))), "memory")
        yield ref, await Memory.open(ref, "run-1", scope_id="root")


async def see(memory: Memory) -> dict[str, object]:
    """What a scope sees."""
    return {info.item_id: (await memory.retrieve(info.item_id)).content for info in await memory.query()}


async def put(memory: Memory, **items: str) -> int:
    """Store items; gives the position behind them."""
    for name, text in items.items():
        await memory.store(text, item_id=name)
    return await memory.snapshot()


async def test_a_shared_scope_is_its_parent() -> None:
    """Reads and writes the parent's, however many sharers stand between."""
    async with memories() as (_, root):
        await put(root, a="1")
        shared = await root.fork("run-1.a", mode="shared")
        deeper = await shared.fork("run-1.a.b", mode="shared")
        await put(deeper, b="2")
        assert await see(root) == await see(shared) == await see(deeper) == {"a": "1", "b": "2"}


async def test_an_isolated_scope_begins_empty_and_stays_apart() -> None:
    """In both directions."""
    async with memories() as (_, root):
        await put(root, a="1")
        alone = await root.fork("run-1.a", mode="isolated")
        await put(alone, b="2")
        assert (await see(root), await see(alone)) == ({"a": "1"}, {"b": "2"})


async def test_a_snapshot_sees_the_past_and_keeps_its_writes() -> None:
    """Copy on write: neither side sees what the other writes afterwards; removing is a write too."""
    async with memories() as (_, root):
        await put(root, a="1", b="1")
        snap = await root.fork("run-1.a")
        await put(root, a="2", c="late")
        await put(snap, b="own", d="own")
        assert await see(root) == {"a": "2", "b": "1", "c": "late"}
        assert await see(snap) == {"a": "1", "b": "own", "d": "own"}
        await snap.delete("a")
        assert await see(snap) == {"b": "own", "d": "own"}
        assert (await see(root))["a"] == "2"
        with pytest.raises(ItemNotFound, match="has no item 'a'"):
            await snap.retrieve("a")


async def test_snapshots_nest() -> None:
    """A snapshot of a snapshot, and one of a sharer, see each layer as it was."""
    async with memories() as (_, root):
        await put(root, a="1")
        one = await root.fork("run-1.a")
        await put(one, b="1")
        two = await one.fork("run-1.a.b")
        await put(one, b="2")
        await put(root, a="2")
        three = await (await root.fork("run-1.b", mode="shared")).fork("run-1.b.c")
        assert await see(two) == {"a": "1", "b": "1"}
        assert await see(three) == {"a": "2"}


async def test_clearing_ends_what_is_seen_and_restoring_brings_it_back() -> None:
    """Both only add versions; a snapshot scope cleared leaves its parent alone."""
    async with memories() as (_, root):
        await put(root, a="1")
        snap = await root.fork("run-1.a")
        before = await put(snap, b="2")
        assert (await snap.clear(), await snap.clear()) == (2, 0)
        assert await see(snap) == {}
        await put(snap, c="3")
        assert (await snap.restore(before), await snap.restore(before)) == (3, 0)
        assert await see(snap) == {"a": "1", "b": "2"}
        assert await see(root) == {"a": "1"}


MODES: list[tuple[MemoryMode, dict[str, object]]] = [
    ("shared-read-only", {"a": "2"}),
    ("snapshot-read-only", {"a": "1"}),
]


@pytest.mark.parametrize(("mode", "seen"), MODES)
async def test_nothing_is_written_through_a_read_only_scope(mode: MemoryMode, seen: dict[str, object]) -> None:
    """By no verb, nor through a scope that shares it; reading and forking go on."""
    async with memories() as (_, root):
        await put(root, a="1")
        view = await root.fork("run-1.a", mode=mode, scope_id="view")
        await put(root, a="2")
        sharer = await view.fork("run-1.a.b", mode="shared")
        for write in (
            lambda: view.store("x"),
            lambda: view.delete("a"),
            view.clear,
            lambda: view.restore(0),
            lambda: sharer.store("x"),
        ):
            with pytest.raises(ScopeReadOnly, match="so nothing can be written there"):
                await write()
        assert await see(view) == await see(sharer) == seen
        own = await view.fork("run-1.a.c")
        await put(own, a="3")
        assert await see(own) == {"a": "3"}
        with pytest.raises(ScopeReadOnly):
            await own.merge()


async def test_a_scope_of_another_tree_is_not_found() -> None:
    """Whatever is asked of it, in the same words as for one that does not exist; sharing opens a door on purpose."""
    async with memories() as (ref, root):
        await put(root, a="1")
        below, stranger = Memory(ref, "root", "run-1.a"), Memory(ref, "root", "run-2")
        assert await see(below) == {"a": "1"}
        for use in (
            lambda: stranger.retrieve("a"),
            stranger.query,
            lambda: stranger.store("x"),
            lambda: stranger.store("x", item_id="a", if_position=0),
            stranger.clear,
            stranger.snapshot,
            lambda: stranger.restore(0),
            stranger.merge,
            stranger.snapshots,
            lambda: stranger.fork("run-2"),
        ):
            with pytest.raises(ScopeNotFound, match="there is no memory scope 'root'"):
                await use()
        with pytest.raises(ScopeNotFound, match="not for 'run-2'; choose another id"):
            await Memory.open(ref, "run-2", scope_id="root")
        with pytest.raises(ScopeNotFound):
            await (await ref.ask(OpenScope(owner="run-2", mode="shared", parent_id="root", by="run-2")))()
        shared = await root.fork("run-2", mode="shared-read-only")
        assert await see(shared) == {"a": "1"}


async def test_a_scope_may_be_based_on_hundreds() -> None:
    """As after a run that was rewound again and again: more than SQLite takes in one UNION, each as it stood."""
    async with memories() as (_, root):
        await put(root, first="alpha", changed="alpha 1")
        memory = root
        for number in range(505):
            memory = await memory.fork("run-1.a")
            if number == 250:
                await put(memory, changed="alpha 2", middle="alpha")
        await put(memory, last="alpha")
        assert [item.item_id for item in await memory.query()] == ["last", "middle", "changed", "first"]
        assert len(await memory.query(ItemQuery(text="alpha"))) == 4
        assert (await memory.retrieve("changed")).content == "alpha 2"
        assert (await root.retrieve("changed")).content == "alpha 1"


async def test_a_query_finds_what_it_asks_for() -> None:
    """Each condition by itself and all together, in the layers that a scope sees, and nothing that was replaced."""
    async with memories() as (_, root):
        await root.store("Cafés about herons", item_id="/n/a", tags=["x", "y"], source="s1", type="t1")
        await root.store("kestrels", item_id="/n/b", tags=["x"], source="s2", related_to=["/n/a"])
        await root.store({"bird": "a heron, an old one"}, item_id="c", tags=["y", "wader"])
        snap = await root.fork("run-1.a")
        await snap.store("herons, herons, herons", item_id="d")
        await snap.store("a vole", item_id="c")
        await root.store("late herons", item_id="e", tags=["x"])

        async def found(memory: Memory, **query: object) -> list[str]:
            return [item.item_id for item in await memory.query(ItemQuery(**query))]  # type: ignore[arg-type]

        assert await found(root) == ["e", "c", "/n/b", "/n/a"]
        assert await found(root, tags=("x",)) == ["e", "/n/b", "/n/a"]
        assert await found(root, tags=("x", "y")) == ["/n/a"]
        assert await found(root, types=("t1", "none")) == ["/n/a"]
        assert await found(root, sources=("s1", "s2")) == ["/n/b", "/n/a"]
        assert await found(root, related_to=("/n/a", "q")) == ["/n/b"]
        assert await found(root, id_prefix="/n/") == ["/n/b", "/n/a"]
        at = (await root.retrieve("/n/b")).at
        assert await found(root, since=at, until=at + 1) == ["/n/b"]
        assert await found(root, since=2**63) == await found(root, until=-(2**63) - 1) == []
        assert await found(root, text="CAFE heron") == ["/n/a"]
        assert await found(root, text="wader") == ["c"]
        assert await found(root, text='"herons cafes"') == await found(root, text="...") == []
        assert await found(root, text="heron", tags=("x",), since=at) == ["e"]
        assert await found(root, limit=2) == ["e", "c"]
        assert await found(root, limit=0) == []
        assert await found(snap) == ["c", "d", "/n/b", "/n/a"]
        assert await found(snap, text="heron") == ["d", "/n/a"]
        assert await found(snap, tags=("y",)) == ["/n/a"]
        assert await found(snap, tags=("x",), limit=1) == ["/n/b"]


@pytest.mark.parametrize(
    ("text", "words"),
    [("漢字かな交じり文を検索する", "検索"), ("API検索の方法", "api"), ("한국에서", "한국"), ("ภาษาไทยง่าย", "ไทย")],
)
async def test_words_are_found_where_no_space_stands_between_them(text: str, words: str) -> None:
    """In scripts that have none, also by a query and within an excerpt; other characters of the text do not do."""
    async with memories() as (_, root):
        await root.store("無関係な索検 ไยท 국한", item_id="other")
        await root.store("。\n" * 400 + text, item_id="it")
        assert [item.item_id for item in await root.query(ItemQuery(text=words))] == ["it"]
        excerpt = await root.retrieve("it", Transform(kind="excerpt", n=60, words=words))
        assert words in excerpt.text.lower()
        filtered = await root.retrieve("it", Transform(kind="filtered", words=words))
        assert filtered.text == text
        assert await root.query(ItemQuery(text="\u0e34 ・")) == []  # marks alone are no words


async def test_a_file_that_may_only_be_looked_at_is_searched_too(tmp_path: Path) -> None:
    """Where the index lags and nobody may bring it up to date."""
    async with kit.opened("sqlite", tmp_path) as journal, open_system() as system:
        root = await Memory.open(system.spawn(lambda: MemoryActor(journal), "memory"), "run-1", scope_id="s")
        await root.store("herons stand", tags=["bird"], item_id="a")
        await root.store("voles run", item_id="b")
    async with kit.opened("sqlite", tmp_path, readonly=True) as journal:
        for query in (ItemQuery(text="heron"), ItemQuery(tags=("bird",)), ItemQuery(until=9e9, text="stand")):
            assert [item.item_id for item in await journal.find_items([("s", 9)], query)] == ["a"]
        assert len(await journal.find_items([("s", 9)])) == 2


# --- merging ----------------------------------------------------------------------------------------------


async def test_a_merge_takes_what_only_the_child_changed() -> None:
    """New, changed and removed items; what only the parent changed stays."""
    async with memories() as (_, root):
        await put(root, kept="1", changed="1", removed="1", parents="1")
        snap = await root.fork("run-1.a")
        await put(root, parents="2")
        await put(snap, changed="2", new="1")
        await snap.delete("removed")
        report = await snap.merge()
        assert await see(root) == {"kept": "1", "changed": "2", "new": "1", "parents": "2"}
        assert (set(report.written), report.deleted, report.conflicts) == ({"changed", "new"}, ("removed",), ())


async def test_merging_twice_changes_nothing_that_the_first_has_settled() -> None:
    """Also where the parent has gone on since: what it took back or removed on purpose stays so."""
    async with memories() as (_, root):
        await put(root, a="1", b="1")
        snap = await root.fork("run-1.a")
        await put(snap, a="2", b="2", new="1")
        await snap.merge()
        await put(root, a="1")
        await root.delete("new")
        position = await root.snapshot()
        report = await snap.merge(prefer="child")
        assert (report.written, report.deleted, report.conflicts, report.unchanged) == ((), (), (), 3)
        assert await root.snapshot() == position
        assert await see(root) == {"a": "1", "b": "2"}
        await put(snap, b="3")
        assert (await snap.merge()).written == ("b",)
        assert (await see(root))["b"] == "3"


async def test_a_conflict_is_settled_as_it_was_said() -> None:
    """Left open until somebody decides; with all three sides in the report."""
    for prefer, kept in (("parent", "theirs"), ("child", "mine"), ("both", "theirs")):
        async with memories() as (_, root):
            await put(root, a="base")
            snap = await root.fork("run-1.a", scope_id="snap")
            await put(root, a="theirs", same="equal")
            await put(snap, a="mine", same="equal")
            for _ in range(2):
                report = await snap.merge()
                (conflict,) = report.conflicts
                sides = (conflict.base, conflict.child, conflict.parent)
                assert [item and item.content for item in sides] == ["base", "mine", "theirs"]
                assert (conflict.taken, report.written, report.unchanged) == ("neither", (), 1)
            report = await snap.merge(prefer=prefer)  # type: ignore[arg-type]
            assert report.conflicts[0].taken == prefer
            seen = await see(root)
            assert seen.pop("a@snap", "mine") == "mine"
            assert seen == {"a": kept, "same": "equal"}
            assert ("a@snap" in await see(root)) is (prefer == "both")
            assert (await snap.merge()).conflicts == ()


async def test_a_copy_that_the_parent_has_changed_is_not_written_over() -> None:
    """One that it left alone is replaced by the child's newer version."""
    async with memories() as (_, root):
        await put(root, a="base")
        snap = await root.fork("run-1.a", scope_id="snap")
        for turn in ("1", "2"):
            await put(root, a=f"theirs {turn}")
            await put(snap, a=f"mine {turn}")
            assert (await snap.merge(prefer="both")).written == ("a@snap",)
        assert await see(root) == {"a": "theirs 2", "a@snap": "mine 2"}
        await put(root, a="theirs 3", **{"a@snap": "edited"})
        await put(snap, a="mine 3")
        (copy,) = (await snap.merge(prefer="both")).written
        assert await see(root) == {"a": "theirs 3", "a@snap": "edited", copy: "mine 3"}
        assert (await snap.merge(prefer="both")).written == ()


async def test_a_copy_of_an_item_with_the_longest_id_has_one_that_may_be_written() -> None:
    """Ids that differ only at their end stay apart, also where a copy of the copy is made."""
    async with memories() as (_, root):
        names = ["x" * 999 + end for end in "ab"]
        await put(root, **dict.fromkeys(names, "base"))
        snap = await root.fork("run-1.a", scope_id="snap")
        for turn in "12":
            await put(root, **dict.fromkeys(names, f"theirs {turn}"))
            await put(snap, **{name: f"mine {turn} {name[-1]}" for name in names})
            written = (await snap.merge(prefer="both")).written
            assert [len(item_id) for item_id in written] == [1_000, 1_000]
            seen = await see(root)
            assert sorted(seen[item_id] for item_id in written) == [f"mine {turn} a", f"mine {turn} b"]
            await put(root, **dict.fromkeys(written, "edited"))


async def test_an_item_is_ended_only_as_it_was_read() -> None:
    """Where somebody has written it since, it stays."""
    async with memories() as (_, root):
        await put(root, a="1")
        read = await root.retrieve("a")
        await put(root, a="2")
        with pytest.raises(ItemChanged, match=f"not {read.position}: somebody else has written it"):
            await root.delete("a", if_position=read.position)
        assert await see(root) == {"a": "2"}
        await root.delete("a", if_position=(await root.retrieve("a")).position)
        assert await see(root) == {}


async def test_removing_and_changing_the_same_is_a_conflict() -> None:
    """In both directions; to keep both is to keep the change."""
    async with memories() as (_, root):
        await put(root, a="1", b="1")
        snap = await root.fork("run-1.a")
        await root.delete("a")
        await put(root, b="2")
        await put(snap, a="2")
        await snap.delete("b")
        conflicts = {conflict.item_id: conflict for conflict in (await snap.merge()).conflicts}
        assert conflicts["a"].parent is None
        assert conflicts["b"].child is None
        report = await snap.merge(prefer="both")
        assert {conflict.item_id: conflict.taken for conflict in report.conflicts} == {"a": "child", "b": "parent"}
        assert await see(root) == {"a": "2", "b": "2"}


async def test_only_a_snapshot_has_something_to_merge() -> None:
    """Everything else has no parent of its own, or is its parent."""
    async with memories() as (_, root):
        for memory in (root, await root.fork("run-1.a", mode="isolated"), await root.fork("run-1.a", mode="shared")):
            with pytest.raises(ScopeNotFound, match="no parent to merge into"):
                await memory.merge()


async def test_a_merge_that_the_parent_has_no_room_for_changes_nothing() -> None:
    """And can be made again when there is."""
    async with memories(MemoryQuota(items=2)) as (_, root):
        await put(root, a="1")
        snap = await root.fork("run-1.a")
        await put(snap, b="1", c="1")
        with pytest.raises(QuotaExceeded, match="would hold 3 items and may hold 2"):
            await snap.merge()
        assert await see(root) == {"a": "1"}
        await root.delete("a")
        assert set((await snap.merge()).written) == {"b", "c"}


async def test_the_snapshots_of_a_scope_are_listed() -> None:
    """Those of scopes that share it, too; not what is isolated, nor what is below another snapshot."""
    async with memories() as (_, root):
        one = await root.fork("run-1.a", scope_id="one")
        await one.fork("run-1.a.b")
        await root.fork("run-1.c", mode="isolated")
        sharer = await root.fork("run-1.d", mode="shared")
        await sharer.fork("run-1.d.e", scope_id="two")
        assert [(each.scope_id, each.owner) for each in await root.snapshots()] == [
            ("one", "run-1.a"),
            ("two", "run-1.d.e"),
        ]
        assert len(await sharer.snapshots()) == 2


async def test_a_snapshot_for_another_tree_is_not_merged_into_this_one() -> None:
    """What that tree writes in it is its own; the application, which gave it away, still finds it."""
    async with memories() as (ref, root):
        mine, theirs = await root.fork("run-1.a"), await root.fork("run-2", scope_id="given-away")
        await put(theirs, secret="theirs")
        assert [each.scope_id for each in await root.snapshots()] == [mine.scope_id]
        assert "given-away" in [each.scope_id for each in await Memory(ref, "root").snapshots()]


async def test_an_unknown_position_is_told() -> None:
    """Neither a snapshot nor a restore of what is not there yet."""
    async with memories() as (_, root):
        for use in (lambda: root.restore(1), lambda: root.fork("run-1.a", position=1)):
            with pytest.raises(ConfigurationError, match="position 1 is not within the item log, which is at 0"):
                await use()
