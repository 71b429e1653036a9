"""The memory actor: scopes and items as messages, durable before a handle's write returns."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, cast

import anyio
import msgspec
import pytest
import trio
import trio.testing

import journal_kit as kit
import repertory as rp
from backends import RunAsync
from failing_journals import FailingJournal, SlowJournal
from repertory.actors import ActorSystem, open_system
from repertory.errors import (
    ConfigurationError,
    ItemChanged,
    ItemNotFound,
    JournalWriteFailed,
    QuotaExceeded,
    RecordRefused,
    ScopeNotFound,
)
from repertory.memory import ItemQuery, Memory, MemoryActor, MemoryQuota, MemoryRef, Transform
from repertory.memory.messages import (
    ClearScope,
    DeleteItem,
    ForgetOthers,
    ForgetTree,
    MergeScope,
    OpenScope,
    RestoreScope,
)
from repertory.record import Journal, Record, open_journal
from repertory.record.waiting import Ticket
from repertory.testing import ScriptedModel, call


def spawn(system: ActorSystem, journal: Journal, quotas: MemoryQuota | None = None) -> MemoryRef:
    """Start the actor."""
    ticks = iter(range(1, 10_000))
    return system.spawn(lambda: MemoryActor(journal, quota=quotas, clock=lambda: float(next(ticks))), "memory")


def run_with_memory(
    run_async: RunAsync, body: Callable[[MemoryRef], Awaitable[None]], *, quotas: MemoryQuota | None = None
) -> None:
    """Run a test's body with a memory actor over a journal in memory."""

    async def main() -> None:
        async with open_journal() as journal, open_system() as system:
            await body(spawn(system, journal, quotas))

    run_async(main)


def test_items_are_stored_found_and_cleared(run_async: RunAsync) -> None:
    """Store, retrieve, query, delete, clear, snapshot and restore through the handle."""

    async def body(ref: MemoryRef) -> None:
        memory = await Memory.open(ref, "run-1", scope_id="mine")
        page = await memory.store("A page. More.", type="web_content", source="fetch", tags=["a"], metadata={"k": 1})
        note = await memory.store("a note", related_to=[page.item_id], item_id="note")
        assert (page.scope_id, page.size, page.position, note.position) == ("mine", 13, 1, 2)
        item = await memory.retrieve(page.item_id)
        assert (item.content, item.type, item.tags, item.metadata) == ("A page. More.", "web_content", ("a",), {"k": 1})
        assert (await memory.retrieve(page.item_id, Transform(kind="summary"))).content == "A page. A page."[:7]
        assert [info.item_id for info in await memory.query()] == ["note", page.item_id]
        assert await memory.query(ItemQuery(text="page")) == [page]
        assert await memory.query(ItemQuery(limit=1)) == [note]
        assert await memory.query(ItemQuery(limit=0)) == []
        position = await memory.snapshot()
        await memory.store("a better note", item_id="note")
        assert len(await memory.query()) == 2
        await memory.delete(page.item_id)
        with pytest.raises(ItemNotFound):
            await memory.retrieve(page.item_id)
        with pytest.raises(ItemNotFound):
            await memory.delete(page.item_id)
        assert await memory.restore(position) == 2
        assert (await memory.retrieve("note")).content == "a note"
        assert await memory.clear() == 2
        assert await memory.query() == []

    run_with_memory(run_async, body)


def test_a_sub_agent_gets_the_memory_it_should(run_async: RunAsync) -> None:
    """Shared, a snapshot as of now or of then, or none; merged back on demand."""

    async def body(ref: MemoryRef) -> None:
        memory = await Memory.open(ref, "lead")
        await memory.store("one", item_id="a")
        then = await memory.snapshot()
        await memory.store("two", item_id="a")
        shared = await memory.fork("sub", mode="shared")
        snapshot = await memory.fork("sub")
        old = await memory.fork("sub", position=then)
        isolated = await memory.fork("sub", mode="isolated")
        assert (await shared.retrieve("a")).content == (await snapshot.retrieve("a")).content == "two"
        assert (await old.retrieve("a")).content == "one"
        assert await isolated.query() == []
        await snapshot.store("three", item_id="a")
        assert (await memory.retrieve("a")).content == "two"
        report = await snapshot.merge()
        assert report.written == ("a",)
        assert (await shared.retrieve("a")).content == "three"
        await old.store("four", item_id="a")
        assert [c.item_id for c in (await old.merge()).conflicts] == ["a"]
        assert (await old.merge(prefer="child")).conflicts[0].taken == "child"
        assert (await old.merge(prefer="parent")).unchanged == 1
        assert (await memory.retrieve("a")).content == "four"

    run_with_memory(run_async, body)


def test_mistakes_are_answers_and_the_actor_goes_on(run_async: RunAsync) -> None:
    """Typed errors to whoever asked; nothing is written."""

    async def body(ref: MemoryRef) -> None:
        memory = await Memory.open(ref, "run-1", scope_id="s")
        for message, reason in (
            (OpenScope(owner="r", mode="snapshot"), "needs parent_id"),
            (OpenScope(owner="r", mode="shared"), "needs parent_id"),
            (OpenScope(owner="r", mode="isolated", parent_id="s"), "has no parent"),
            (OpenScope(owner="r", mode="snapshot", parent_id="s", position=99), "position 99 is not within"),
            (OpenScope(owner="run-1", mode="isolated", scope_id="s"), "exists as root"),
        ):
            with pytest.raises(ConfigurationError, match=reason):
                await (await ref.ask(message))()
        with pytest.raises(ScopeNotFound):
            await (await ref.ask(OpenScope(owner="r", mode="snapshot", parent_id="nope")))()
        with pytest.raises(ScopeNotFound):
            await Memory(ref, "nope").store("x")
        with pytest.raises(ScopeNotFound):
            await Memory(ref, "nope").snapshot()
        with pytest.raises(ScopeNotFound):
            await memory.merge()
        with pytest.raises(ConfigurationError):
            await memory.restore(-1)
        with pytest.raises(RecordRefused):
            await memory.store("x", metadata={"x": float("nan")})
        assert await memory.query() == []
        assert (await memory.store("fine")).position == 1

    run_with_memory(run_async, body)


def test_quotas_bound_a_scope(run_async: RunAsync) -> None:
    """Items, bytes of one, bytes of all; a new version counts for the old one; merges count too."""

    async def body(ref: MemoryRef) -> None:
        memory = await Memory.open(ref, "run-1")
        with pytest.raises(QuotaExceeded, match="6 bytes in one item and may hold 5"):
            await memory.store("123456")
        await memory.store("12345", item_id="a")
        child = await memory.fork("sub")
        await child.store("1", item_id="x")
        await child.store("1", item_id="y")
        await memory.store("123", item_id="b")
        with pytest.raises(QuotaExceeded, match="3 items and may hold 2"):
            await memory.store("1")
        with pytest.raises(QuotaExceeded, match="9 bytes and may hold 8"):
            await memory.store("1234", item_id="b")
        await memory.store("1", item_id="b")
        with pytest.raises(QuotaExceeded, match="4 items"):
            await child.merge()
        await memory.delete("a")
        assert (await memory.store("12345")).size == 5

    run_with_memory(run_async, body, quotas=MemoryQuota(item_bytes=5, items=2, scope_bytes=8))


def test_whatever_changes_a_scope_leaves_just_the_room_that_there_is(run_async: RunAsync) -> None:
    """Each kind of change is counted on from the last one, so none may count too little, nor refuse what has room."""

    async def body(ref: MemoryRef) -> None:
        memory = await Memory.open(ref, "run-1")

        async def fill(has: int) -> None:
            for number in range(has, 3):
                await memory.store(str(number), item_id=f"n{number}")
            with pytest.raises(QuotaExceeded, match="4 items and may hold 3"):
                await memory.store("more")
            assert len(await memory.query()) == 3

        await fill(0)
        full = await memory.snapshot()
        await memory.delete("n2")
        await fill(2)
        await memory.move({"n0": "m0", "n2": None})
        await fill(2)
        assert await memory.clear() == 3
        await fill(0)
        await memory.clear()
        await memory.restore(full)
        await fill(3)
        await memory.delete("n1")
        child = await memory.fork("sub")
        await child.store("from below", item_id="n1")
        await child.merge()
        await fill(3)

    run_with_memory(run_async, body, quotas=MemoryQuota(items=3))


async def test_a_scope_that_holds_more_than_it_may_can_be_made_to_hold_less() -> None:
    """As after a start with a smaller quota: what is there is ended or shortened one by one, and nothing is added."""
    async with open_journal() as journal:
        async with open_system() as system:
            memory = await Memory.open(spawn(system, journal), "run-1")
            for name in "abcd":
                await memory.store("12345", item_id=name)
        async with open_system() as system:
            quota = MemoryQuota(items=2, scope_bytes=8)
            memory = await Memory.open(spawn(system, journal, quota), "run-1", scope_id=memory.scope_id)
            with pytest.raises(QuotaExceeded, match="5 items and may hold 2"):
                await memory.store("1")
            with pytest.raises(QuotaExceeded, match="21 bytes and may hold 8"):
                await memory.store("123456", item_id="a")
            await memory.store("1", item_id="a")
            await memory.delete("b")
            assert {item.item_id: item.size for item in await memory.query()} == {"a": 1, "c": 5, "d": 5}


def test_memory_of_a_tree_that_has_ended_is_read_and_counted_as_before(run_async: RunAsync) -> None:
    """The actor lets go of what it knew of a tree, of that one alone, and what is asked for later it reads again."""

    async def body(ref: MemoryRef) -> None:
        ended, other = await Memory.open(ref, "run-1"), await Memory.open(ref, "run-2")
        below = await ended.fork("run-1.a")
        for memory in (ended, below, other):
            await memory.store("1", item_id="a")
        await (await ref.ask(OpenScope(owner="run-1", mode="isolated", scope_id="named")))()
        ref.tell(ForgetTree("run-1"))
        with pytest.raises(ConfigurationError, match="exists as isolated"):
            await (await ref.ask(OpenScope(owner="run-1", mode="root", scope_id="named")))()
        for memory in (ended, below, other):
            await memory.store("2", item_id="a", if_position=(await memory.retrieve("a")).position)
            await memory.store("3", item_id="b")
            with pytest.raises(QuotaExceeded, match="items and may hold 2"):
                await memory.store("4", item_id="c")
            assert [item.item_id for item in await memory.query()] == ["b", "a"]

    run_with_memory(run_async, body, quotas=MemoryQuota(items=2))


@pytest.mark.parametrize(
    "labels",
    [{"tags": ["x" * 70_000]}, {"source": "x" * 70_000}, {"type": "x" * 70_000}, {"metadata": {"a": ["é" * 35_000]}}],
)
async def test_what_is_said_about_an_item_is_bounded_too(labels: dict[str, Any]) -> None:
    """It stands in every listing, whatever the size of the content."""
    async with rp.open_journal() as journal, open_system() as system:
        memory = await Memory.open(spawn(system, journal), "run-1")
        with pytest.raises(QuotaExceeded, match=r"70\d{3} bytes of labels of one item and may hold 64000"):
            await memory.store("small", **labels)
        assert await memory.query() == []


@pytest.mark.parametrize("bound", [{"items": -1}, {"item_bytes": 1.5}, {"scope_bytes": True}])
def test_a_bound_that_is_none_is_refused(bound: dict[str, Any]) -> None:
    """By its name."""
    with pytest.raises(ConfigurationError, match=f"MemoryQuota: {next(iter(bound))} must be a whole number"):
        MemoryQuota(**bound)


async def test_a_supervisor_bounds_the_memory_of_its_runs() -> None:
    """Each scope by itself; a run that may keep no more goes on."""

    @rp.tool(effect="idempotent")
    async def keep(text: str, context: rp.ToolContext) -> str:
        """Keep a text."""
        return (await context.need_memory().store(text)).item_id

    model = ScriptedModel([call("keep", text="one"), call("keep", text="two"), "Done."])
    async with rp.open_supervisor(model=model, memory_quota=MemoryQuota(items=1)) as supervisor:
        run = await supervisor.spawn(rp.Agent("keeper", tools=[keep]), "Keep both.")
        await run.wait_result()
        assert len(await run.memory.query()) == 1
        calls = await supervisor.journal.read_tool_calls(run.id)
    assert [row.finished.status for row in calls if row.finished is not None] == ["ok", "error"]


def test_without_quotas_there_is_no_bound(run_async: RunAsync) -> None:
    """None means none."""

    async def body(ref: MemoryRef) -> None:
        memory = await Memory.open(ref, "run-1")
        assert (await memory.store("x" * 2_000_000)).size == 2_000_000

    run_with_memory(run_async, body, quotas=MemoryQuota(item_bytes=None, items=None, scope_bytes=None))


def test_a_new_process_finds_everything_again(tmp_path: Path, run_async: RunAsync) -> None:
    """Scopes, versions and positions are loaded from the file; opening a scope again gives the same one."""

    async def main() -> None:
        async with kit.opened("sqlite", tmp_path) as journal, open_system() as system:
            memory = await Memory.open(spawn(system, journal), "run-1", scope_id="s")
            await memory.store("one", item_id="a")
            child = await memory.fork("run-2", scope_id="c")
            await memory.store("two", item_id="a")
            await child.store("own", item_id="b")
        async with kit.opened("sqlite", tmp_path) as journal, open_system() as system:
            ref = spawn(system, journal)
            memory = await Memory.open(ref, "run-1", scope_id="s")
            child = await memory.fork("run-2", scope_id="c")
            assert (await memory.retrieve("a")).content == "two"
            assert [(await child.retrieve(i)).content for i in "ab"] == ["one", "own"]
            assert (await memory.store("x")).position == 4
            with pytest.raises(ConfigurationError, match="position 99 is not within"):
                await memory.restore(99)
            assert len(await journal.read_scopes()) == 2

    run_async(main)


async def test_a_write_returns_when_it_is_durable() -> None:
    """The actor answers at once and goes on; the handles wait for the disk, and so does who reads what is not there."""
    journal = SlowJournal()
    async with open_system() as system:
        memory = await Memory.open(spawn(system, journal), "run-1")
        journal.hold()
        stored: list[str] = []

        async def store(name: str) -> None:
            stored.append((await memory.store(name, item_id=name)).item_id)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(store, "a")
            nursery.start_soon(store, "b")
            await trio.testing.wait_all_tasks_blocked()
            assert (journal.waiting, stored) == (2, [])
            found: list[int] = []

            async def look() -> None:
                found.append(len(await memory.query()))

            nursery.start_soon(look)
            await trio.testing.wait_all_tasks_blocked()
            assert found == []
            journal.release()
        assert found == [2]
        assert sorted(stored) == ["a", "b"]


async def test_a_restarted_actor_waits_for_what_its_predecessor_queued() -> None:
    """Or both would give out the same position."""
    journal = SlowJournal()
    async with open_system() as system:
        ref = spawn(system, journal)
        memory = await Memory.open(ref, "run-1", scope_id="s")
        journal.hold()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(memory.store, "on its way")
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        ref.kill()
        await ref.wait_stopped()
        again = Memory(spawn(system, journal), "s")
        async with trio.open_nursery() as nursery:

            async def store() -> None:
                assert (await again.store("next")).position == 2

            nursery.start_soon(store)
            await trio.testing.wait_all_tasks_blocked()
            journal.release()


async def test_a_failed_write_reaches_the_caller_and_so_does_every_later_one() -> None:
    """Nobody goes on as if it had been written."""
    journal = FailingJournal()
    async with open_system() as system:
        memory = await Memory.open(spawn(system, journal), "run-1")
        journal.fail()
        for words in ("lost", "refused"):
            with pytest.raises(JournalWriteFailed):
                await memory.store(words)


MISTAKES: list[Callable[[Any], Awaitable[object]]] = [
    lambda memory: memory.store("x", type=None),
    lambda memory: memory.store("A page.", tags=[1]),
    lambda memory: memory.retrieve([]),
    lambda memory: memory.retrieve("item", "summary"),
    lambda memory: memory.retrieve("item", {"kind": "summary"}),
    lambda memory: memory.query("page"),
    lambda memory: memory.query({"text": "page"}),
    lambda memory: memory.query(range(3)),
    lambda memory: memory.query(ItemQuery(text=cast("str", 5))),
    lambda memory: memory.delete(None),
    lambda memory: memory.restore("then"),
    lambda memory: memory.fork(None),
]


@pytest.mark.parametrize("ask", MISTAKES)
async def test_an_argument_of_another_type_is_refused_to_its_caller_and_costs_nobody_else_the_memory(
    ask: Callable[[Any], Awaitable[object]],
) -> None:
    """All runs of a process share the actor; its restarts are bounded, so a few such calls would end it for all."""
    async with open_journal() as journal, open_system() as system:
        memory = await Memory.open(spawn(system, journal), "run-1")
        for _ in range(5):
            with pytest.raises(ConfigurationError, match=r"[Ee]xpected"):
                await ask(memory)
        assert await memory.query() == []


async def test_what_cannot_be_kept_exactly_is_refused_and_named() -> None:
    """A content that JSON does not have, an id by which nothing would be found again; the next one is stored."""
    async with open_journal() as journal, open_system() as system:
        memory = await Memory.open(spawn(system, journal), "run-1")
        refused: list[Callable[[Any], Awaitable[object]]] = [
            lambda memory: memory.store(object()),
            lambda memory: memory.store([float("nan")]),
            lambda memory: memory.store("x", item_id="x" * 1_001),
            lambda memory: memory.store("x", item_id="a\ud800"),
            lambda memory: memory.fork("run-1.a", scope_id="a\ud800"),
            lambda memory: memory.fork("run-1.a", scope_id="x" * 1_001),
            lambda memory: memory.fork("run-1.\ud800"),
            lambda memory: Memory.open(memory.ref, "run-1", scope_id="a\0b"),
            lambda memory: Memory.open(memory.ref, "\ud800"),
        ]
        for store in refused:
            with pytest.raises(RecordRefused, match=r"(content|item_id|scope_id|owner) must be"):
                await store(memory)
        assert (await memory.store("x", item_id="/a/b.md")).position == 1


async def test_no_value_that_a_caller_passes_crashes_the_actor(tmp_path: Path) -> None:
    """It serves everybody: what is too large, or not as it seems, is stored as it is, or refused to its caller."""

    class Word(str):
        """A text of a subclass, as libraries return them."""

    huge = 10**5_000  # more digits than Python writes
    parts = memoryview(b"a-b-c")[::2]  # bytes that are not beside each other
    refused: list[Callable[[Memory], Awaitable[object]]] = [
        lambda memory: memory.store("x", metadata={"part": parts}),
        lambda memory: memory.store(huge),
        lambda memory: memory.store("x", metadata={"huge": huge}),
        lambda memory: memory.store("x", item_id="new", if_position=huge),
        lambda memory: memory.restore(huge),
        lambda memory: memory.fork("run-1.a", mode="snapshot", position=huge),
        lambda memory: memory.merge(prefer=cast("Any", huge)),
        lambda memory: memory.delete(Word("missing")),
    ]
    async with open_journal(tmp_path / "journal.db") as journal, open_system() as system:
        memory = await Memory.open(spawn(system, journal), "run-1")
        for each in refused:
            with pytest.raises((ConfigurationError, RecordRefused, ItemNotFound, ItemChanged)):
                await each(memory)
        await memory.store(parts, item_id=Word("parts"))
        assert (await memory.retrieve(Word("parts"))).content == b"abc"
        await memory.delete(Word("parts"))


async def test_what_is_nested_deep_is_kept_or_refused_and_costs_nobody_else_the_memory() -> None:
    """What is kept can be read again on a stack that has grown; its limit leaves the writers of JSON room for that."""

    def nested(levels: int) -> dict[str, Any]:
        return reduce(lambda inner, _: {"in": inner}, range(levels - 1), {})

    async with open_journal() as journal, open_system() as system:
        memory = await Memory.open(spawn(system, journal), "run-1")
        for levels in (501, 800, 990, 5_000):
            for refused in ({"content": nested(levels)}, {"content": "x", "metadata": nested(levels)}):
                with pytest.raises(RecordRefused, match="more than 500 levels"):
                    await memory.store(**cast("Any", refused))
        item = await memory.store(nested(500), metadata=nested(500))
        found = await memory.retrieve(item.item_id)
        assert (found.content, found.metadata) == (nested(500), nested(500))
        assert (await memory.retrieve(item.item_id, Transform(kind="last_n", n=1))).content == "}"


async def test_a_write_may_be_bound_to_what_was_read() -> None:
    """Two that edit the same item do not lose each other's work."""
    async with open_journal() as journal, open_system() as system:
        memory = await Memory.open(spawn(system, journal), "run-1")
        first = await memory.store("one", item_id="a", if_position=0)
        with pytest.raises(ItemChanged, match="at position 1, not 0"):
            await memory.store("two", item_id="a", if_position=0)
        second = await memory.store("two", item_id="a", if_position=first.position)
        await memory.delete("a")
        with pytest.raises(ItemChanged, match="at position 0, not 2"):
            await memory.store("three", item_id="a", if_position=second.position)


async def test_an_item_can_be_written_in_one_transaction_with_more() -> None:
    """Whoever stores hands in how it is written; the actor gives the position."""
    async with open_journal() as journal, open_system() as system:
        memory = await Memory.open(spawn(system, journal), "run-1")
        more = kit.content("c-1")
        item = await memory.store("x", write=lambda _, items: journal.submit([*items, more]))
        assert (await memory.retrieve(item.item_id)).content == "x"
        assert await journal.read_content("c-1") == more


async def test_secrets_are_in_no_content(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its type: text, a part of a value, or bytes; what is left can still be read."""
    monkeypatch.setenv("KEY", "correct horse")
    async with open_journal(redact=["KEY"]) as journal, open_system() as system:
        memory = await Memory.open(spawn(system, journal), "run-1")
        for content in ("a correct horse", {"x": ["a correct horse"]}, b"a correct horse"):
            item = await memory.retrieve((await memory.store(content)).item_id)
            assert "correct horse" not in str(item.content)
            assert "[redacted: KEY]" in str(item.content)


async def test_a_scope_that_was_forgotten_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few scopes are remembered; those above it and what it holds are found in the file."""
    monkeypatch.setattr("repertory.memory.actor._MOST_SCOPES", 2)
    async with open_journal() as journal, open_system() as system:
        memory = await Memory.open(spawn(system, journal, MemoryQuota(items=2)), "run-1")
        child = await memory.fork("run-1.a", mode="shared")
        others = [await memory.fork(f"run-1.{number}") for number in range(5)]
        await child.store("x", item_id="a")
        assert await others[0].query() == []
        await memory.store("y", item_id="b")
        with pytest.raises(QuotaExceeded):
            await child.store("z")


def test_a_snapshot_is_exact_while_fifty_write(run_async: RunAsync, tmp_path: Path) -> None:
    """What was acknowledged before it is in it, nothing that was begun after it, and it never changes again."""

    async def main() -> None:
        async with kit.opened("sqlite", tmp_path, f"{run_async.backend}.db") as journal, open_system() as system:
            memory = await Memory.open(spawn(system, journal), "run-1")
            begun: set[str] = set()
            stored: set[str] = set()
            seen: list[tuple[Memory, set[str], set[str], list[Any]]] = []

            async def write(writer: int) -> None:
                for number in range(8):
                    name = f"{writer}-{number}"
                    begun.add(name)
                    await memory.store(name, item_id=name)
                    stored.add(name)
                    if number == 4 and writer % 10 == 0:
                        before = set(stored)
                        fork = await memory.fork("run-1.a")
                        seen.append((fork, before, set(begun), await fork.query()))

            async with anyio.create_task_group() as group:
                for writer in range(50):
                    group.start_soon(write, writer)
            assert len(await memory.query()) == 400
            for fork, before, after, then in seen:
                names = {item.item_id for item in then}
                assert before <= names <= after
                assert await fork.query() == then
                assert [item.position for item in then] == list(range(len(then), 0, -1))  # a beginning of the log

    run_async(main)


def test_a_change_of_many_items_is_made_in_a_thread(run_async: RunAsync) -> None:
    """The event loop goes on while a large restore, clear or merge is checked and encoded."""

    async def body(ref: MemoryRef, journal: Journal) -> None:
        threads: list[bool] = []

        def write(_answer: object, records: Sequence[Record]) -> Ticket:
            threads.append(threading.current_thread() is threading.main_thread())
            return journal.submit(records)

        async def change(message: Any) -> Any:
            return await (await ref.ask(msgspec.structs.replace(message, write=write)))()

        memory = await Memory.open(ref, "run-1", scope_id="mine")
        items = [kit.item(number, "mine", f"item-{number}") for number in range(1, 1_001)]
        await journal.write(items)
        await ref.ask(ForgetOthers())
        position = await memory.snapshot()
        child = await memory.fork("run-1.a", mode="snapshot", scope_id="child")
        assert await change(DeleteItem(scope_id="mine", item_id="item-1")) == 1
        assert await change(ClearScope(scope_id="mine")) == 999
        assert await change(RestoreScope(scope_id="mine", position=position)) == 1_000
        assert await change(ClearScope(scope_id="child")) == 1_000
        assert len((await change(MergeScope(scope_id=child.scope_id, prefer="both"))).conflicts) == 0
        assert threads == [True, False, False, False, False]
        assert await memory.query() == []

    async def main() -> None:
        async with open_journal() as journal, open_system() as system:
            await body(spawn(system, journal), journal)

    run_async(main)
