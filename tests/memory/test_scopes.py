"""Memory items and scopes: what each scope sees, what a change writes, what a merge reports."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import journal_kit as kit
from repertory.errors import ConfigurationError, ItemNotFound, ScopeNotFound
from repertory.memory import ItemQuery, Memory, Transform
from repertory.memory.items import item_info, matches, shape_item, shape_text
from repertory.memory.scopes import ScopeTree
from repertory.record.records import ItemWritten, ScopeMode, ScopeOpened


def scope(name: str, mode: ScopeMode = "root", parent: str | None = None, position: int = 0) -> ScopeOpened:
    """A scope."""
    return ScopeOpened(scope_id=name, owner="run", mode=mode, at=0.0, parent_id=parent, position=position)


class World:
    """A tree with short words for what tests do to it."""

    def __init__(self) -> None:
        self.tree = ScopeTree([scope("root")])

    def write(self, scope_id: str, item_id: str, text: str, **fields: Any) -> int:
        """Store a version; gives the position."""
        target = self.tree.target(scope_id).scope_id
        self.tree.log.add(kit.item(self.tree.log.position + 1, target, item_id, text, **fields))
        return self.tree.log.position

    def fork(self, name: str, mode: ScopeMode, parent: str | None = "root") -> None:
        """Open a scope as of now."""
        self.tree.add_scope(scope(name, mode, parent, self.tree.log.position if mode == "snapshot" else 0))

    def apply(self, versions: list[ItemWritten]) -> None:
        """Take in what a change would write, in order."""
        for version in versions:
            assert version.position == self.tree.log.position + 1
            self.tree.log.add(version)

    def see(self, scope_id: str, upto: int | None = None) -> dict[str, str]:
        """What a scope sees."""
        seen = {item_id: item.content for item_id, item in self.tree.visible(scope_id, upto=upto).items()}
        for item_id, text in seen.items():
            found = self.tree.find(scope_id, item_id, upto=upto)
            assert found is not None
            assert found.content == text
        return seen


def test_a_shared_scope_is_its_parent() -> None:
    """Reads and writes the parent's, however many sharers stand between."""
    world = World()
    world.write("root", "a", "1")
    world.fork("shared", "shared")
    world.fork("deeper", "shared", "shared")
    world.write("deeper", "b", "2")
    assert world.see("root") == world.see("shared") == world.see("deeper") == {"a": "1", "b": "2"}


def test_an_isolated_scope_begins_empty_and_stays_apart() -> None:
    """In both directions."""
    world = World()
    world.write("root", "a", "1")
    world.fork("alone", "isolated", None)
    world.write("alone", "b", "2")
    assert (world.see("root"), world.see("alone")) == ({"a": "1"}, {"b": "2"})


def test_a_snapshot_sees_the_past_and_keeps_its_writes() -> None:
    """Copy on write: neither side sees what the other writes afterwards; removing is a write too."""
    world = World()
    world.write("root", "a", "1")
    world.write("root", "b", "1")
    world.fork("snap", "snapshot")
    world.write("root", "a", "2")
    world.write("root", "c", "late")
    world.write("snap", "b", "own")
    world.write("snap", "d", "own")
    assert world.see("root") == {"a": "2", "b": "1", "c": "late"}
    assert world.see("snap") == {"a": "1", "b": "own", "d": "own"}
    world.apply(world.tree.delete("snap", "a", at=9.0))
    assert world.see("snap") == {"b": "own", "d": "own"}
    assert world.see("root")["a"] == "2"
    with pytest.raises(ItemNotFound, match="'snap' has no item 'a'"):
        world.tree.get("snap", "a")


def test_snapshots_nest() -> None:
    """A snapshot of a snapshot, and one of a sharer, see each layer as it was."""
    world = World()
    world.write("root", "a", "1")
    world.fork("one", "snapshot")
    world.write("one", "b", "1")
    world.fork("two", "snapshot", "one")
    world.write("one", "b", "2")
    world.write("root", "a", "2")
    world.fork("sharer", "shared")
    world.fork("three", "snapshot", "sharer")
    assert world.see("two") == {"a": "1", "b": "1"}
    assert world.see("three") == {"a": "2"}


def test_a_scope_can_be_seen_as_it_was() -> None:
    """At any position, its layers included."""
    world = World()
    first = world.write("root", "a", "1")
    world.fork("snap", "snapshot")
    second = world.write("snap", "a", "2")
    third = world.write("snap", "b", "3")
    assert [world.see("snap", upto) for upto in (0, first, second, third)] == [
        {},
        {"a": "1"},
        {"a": "2"},
        {"a": "2", "b": "3"},
    ]


def test_clearing_ends_what_is_seen_and_restoring_brings_it_back() -> None:
    """Both only add versions; a snapshot scope cleared leaves its parent alone."""
    world = World()
    world.write("root", "a", "1")
    world.fork("snap", "snapshot")
    before = world.write("snap", "b", "2")
    world.apply(world.tree.clear("snap", at=5.0))
    assert world.see("snap") == {}
    assert world.tree.clear("snap", at=5.0) == []
    world.write("snap", "c", "3")
    world.apply(world.tree.restore("snap", before, at=6.0))
    assert world.see("snap") == {"a": "1", "b": "2"}
    assert world.tree.restore("snap", before, at=7.0) == []
    assert world.see("root") == {"a": "1"}


def test_a_merge_takes_what_only_the_child_changed() -> None:
    """New, changed and removed items; what only the parent changed stays."""
    world = World()
    for name in ("kept", "changed", "removed", "parents"):
        world.write("root", name, "1")
    world.fork("snap", "snapshot")
    world.write("root", "parents", "2")
    world.write("snap", "changed", "2")
    world.write("snap", "new", "1")
    world.apply(world.tree.delete("snap", "removed", at=1.0))
    versions, report = world.tree.merge("snap", at=2.0)
    world.apply(versions)
    assert world.see("root") == {"kept": "1", "changed": "2", "new": "1", "parents": "2"}
    assert (set(report.written), report.deleted, report.conflicts) == ({"changed", "new"}, ("removed",), ())
    again, report = world.tree.merge("snap", at=3.0)
    assert (again, report.unchanged) == ([], 3)


def test_a_merge_reports_what_both_changed() -> None:
    """The parent keeps its own unless the child is preferred; the report names all three versions."""
    world = World()
    world.write("root", "a", "base")
    world.fork("snap", "snapshot")
    world.write("root", "a", "theirs")
    world.write("root", "same", "equal")
    world.write("snap", "a", "mine")
    world.write("snap", "same", "equal")
    versions, report = world.tree.merge("snap", at=1.0)
    assert versions == []
    (conflict,) = report.conflicts
    assert conflict.base is not None
    assert conflict.parent is not None
    assert [conflict.base.content, conflict.child.content, conflict.parent.content] == ["base", "mine", "theirs"]
    assert (conflict.taken, report.unchanged) == ("parent", 1)
    assert world.tree.merge("snap", at=1.0, prefer="parent")[0] == []
    versions, report = world.tree.merge("snap", at=1.0, prefer="child")
    world.apply(versions)
    assert report.conflicts[0].taken == "child"
    assert world.see("root")["a"] == "mine"


def test_removing_and_changing_the_same_is_a_conflict() -> None:
    """In both directions, and an item that the parent removed is None in the report."""
    world = World()
    world.write("root", "a", "1")
    world.write("root", "b", "1")
    world.fork("snap", "snapshot")
    world.apply(world.tree.delete("root", "a", at=1.0))
    world.write("root", "b", "2")
    world.write("snap", "a", "2")
    world.apply(world.tree.delete("snap", "b", at=1.0))
    _, report = world.tree.merge("snap", at=2.0)
    first, second = report.conflicts
    assert (first.item_id, first.parent, second.item_id, second.child.deleted) == ("a", None, "b", True)
    versions, report = world.tree.merge("snap", at=2.0, prefer="child")
    world.apply(versions)
    assert world.see("root") == {"a": "2"}
    assert report.deleted == ("b",)


def test_a_second_merge_of_later_work_is_no_conflict() -> None:
    """What the parent has from this child counts as the child's own."""
    world = World()
    world.write("root", "a", "1")
    world.fork("snap", "snapshot")
    world.write("snap", "a", "2")
    world.apply(world.tree.merge("snap", at=1.0)[0])
    world.write("snap", "a", "3")
    versions, report = world.tree.merge("snap", at=2.0)
    world.apply(versions)
    assert report.conflicts == ()
    assert world.see("root") == {"a": "3"}


@pytest.mark.parametrize("name", ["root", "alone", "shared"])
def test_only_a_snapshot_has_something_to_merge(name: str) -> None:
    """Everything else has no parent of its own, or is its parent."""
    world = World()
    world.fork("alone", "isolated", None)
    world.fork("shared", "shared")
    with pytest.raises(ScopeNotFound, match="no parent to merge into"):
        world.tree.merge(name, at=1.0)


def test_an_unknown_scope_is_told() -> None:
    """By its name."""
    with pytest.raises(ScopeNotFound, match="no memory scope 'nope'"):
        World().tree.visible("nope")
    assert World().tree.find_scope("nope") is None


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["write", "delete", "clear", "fork", "restore", "merge"]), st.integers(0, 9), st.integers(0, 3)
    ),
    max_size=25,
)


@given(OPERATIONS)
def test_scopes_agree_with_copied_dictionaries(operations: list[tuple[str, int, int]]) -> None:
    """The layers over one log say the same as a model that copies a whole dict at every fork."""
    world = World()
    model: dict[str, dict[str, str]] = {"root": {}}
    bases: dict[str, str] = {}  # child -> parent
    # What each scope saw at the positions that a snapshot may have: between changes, never inside one.
    history: dict[int, dict[str, dict[str, str]]] = {0: {"root": {}}}

    for number, (what, which, item) in enumerate(operations):
        name = sorted(model)[which % len(model)]
        key = f"i{item}"
        if what == "write":
            world.write(name, key, str(number))
            model[name][key] = str(number)
        elif what == "delete" and key in model[name]:
            world.apply(world.tree.delete(name, key, at=0.0))
            del model[name][key]
        elif what == "clear":
            world.apply(world.tree.clear(name, at=0.0))
            model[name].clear()
        elif what == "fork":
            child = f"fork{number}"
            world.fork(child, "snapshot", name)
            model[child] = dict(model[name])
            bases[child] = name
        elif what == "restore":
            known = [position for position, then in history.items() if name in then]
            position = known[-1 - item % len(known)]
            world.apply(world.tree.restore(name, position, at=0.0))
            model[name] = dict(history[position][name])
        elif what == "merge" and name in bases:
            parent = bases[name]
            versions, report = world.tree.merge(name, at=0.0, prefer="child")
            own = set(world.tree.log.item_ids(name))
            world.apply(versions)
            for each in own:
                if each in model[name]:
                    model[parent][each] = model[name][each]
                else:
                    model[parent].pop(each, None)
            assert set(report.written) | set(report.deleted) <= own
        history[world.tree.log.position] = {each: dict(seen) for each, seen in model.items()}
        for each, seen in model.items():
            assert world.see(each) == seen


# --- items ------------------------------------------------------------------------------------------------

PAGE = """A first sentence. And a second one.

The next paragraph begins. It goes on.
keep: this line about Cafés

A last one!"""


@pytest.mark.parametrize(
    ("transform", "left"),
    [
        (Transform(), PAGE),
        (Transform(kind="first_n", n=10), "A first"),
        (Transform(kind="last_n", n=4), "one!"),
        (Transform(kind="last_n", n=10_000), PAGE),
        (Transform(kind="summary"), "A first sentence. The next paragraph begins. A last one!"),
        (Transform(kind="summary", n=20), "A first sentence."),
        (Transform(kind="summary", n=9), "A first"),
        (Transform(kind="filtered", words="cafe"), "keep: this line about Cafés"),
        (Transform(kind="filtered", words="last keep"), "keep: this line about Cafés\nA last one!"),
        (Transform(kind="filtered"), ""),
        (Transform(kind="excerpt", n=12), "A first sent"),
        (Transform(kind="first_n", n=0), ""),
        (Transform(kind="first_n", n=-5), ""),
        (Transform(kind="last_n", n=0), ""),
    ],
)
def test_a_transform_leaves_what_it_says(transform: Transform, left: str) -> None:
    """Each kind, and nothing beyond its limit."""
    assert shape_text(PAGE, transform).rstrip() == left


@given(st.integers(6, 700), st.integers(0, 200), st.integers(0, 200))
def test_an_excerpt_holds_the_words_that_were_asked_for(n: int, before: int, after: int) -> None:
    """However short it is to be, and wherever they stand; all of them where there is room for all."""
    text = "padding words " * before + "the needle in the haystack is here " + "more words " * after
    for words in ("needle", "haystack needle"):
        excerpt = shape_text(text, Transform(kind="excerpt", n=n, words=words))
        assert len(excerpt) <= n
        assert "needle" in excerpt or "haystack" in excerpt
        assert n < 50 or all(word in excerpt for word in words.split())


async def test_a_word_that_there_is_none_of_is_refused_with_the_choices() -> None:
    """Where it is written; not by a result of None, nor by a scope that nobody asked for."""
    with pytest.raises(ConfigurationError, match="kind is 'gist'; expected 'full' or 'excerpt' or"):
        Transform(kind="gist")  # type: ignore[arg-type]
    memory = Memory(None, "s")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="mode is 'root'; expected 'shared' or 'snapshot' or 'isolated'"):
        await memory.fork("b", mode="root")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="prefer is 'me'; expected 'neither' or 'child' or 'parent'"):
        await memory.merge(prefer="me")  # type: ignore[arg-type]


def test_an_excerpt_without_the_words_is_the_beginning() -> None:
    """Nothing else would be nearer to what was asked for."""
    assert shape_text("one two three", Transform(kind="excerpt", n=8, words="four")) == "one two"


def test_an_item_given_out_keeps_its_facts() -> None:
    """The size is that of the whole, whatever was cut."""
    version = kit.item(3, "s", "i", PAGE, source="me", tags=("t",), related_to=("j",), metadata={"k": 1})
    item = shape_item(version, Transform(kind="last_n", n=4))
    assert (item.content, item.size, item.position, item.tags) == ("one!", len(PAGE), 3, ("t",))
    info = item_info(version)
    assert (info.source, info.related_to, info.metadata, info.scope_id) == ("me", ("j",), {"k": 1}, "s")


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        (ItemQuery(), True),
        (ItemQuery(types=("custom", "x")), True),
        (ItemQuery(types=("x",)), False),
        (ItemQuery(sources=("fetch",)), True),
        (ItemQuery(sources=("x",)), False),
        (ItemQuery(tags=("a", "b")), True),
        (ItemQuery(tags=("a", "x")), False),
        (ItemQuery(since=5.0, until=5.1), True),
        (ItemQuery(since=5.1), False),
        (ItemQuery(until=5.0), False),
        (ItemQuery(text="CAFE para"), True),
        (ItemQuery(text="cafe missing"), False),
        (ItemQuery(text="afe"), False),
        (ItemQuery(text="a"), True),
    ],
)
def test_a_query_finds_what_it_asks_for(query: ItemQuery, wanted: bool) -> None:
    """Each condition alone; all must hold."""
    assert matches(kit.item(5, text=PAGE, source="fetch", tags=("a", "b", "c")), query) is wanted
