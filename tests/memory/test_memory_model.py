"""Fifty agents that write, fork, merge, go back and are killed, against a model that copies a dict at every fork."""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import anyio
import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from patience import PATIENCE
from repertory.actors import open_system
from repertory.errors import ActorStopped, ItemChanged, ItemNotFound, ScopeNotFound, ScopeReadOnly
from repertory.memory import ItemQuery, Memory, MemoryActor, MemoryMode, MemoryRef
from repertory.record import open_journal

T = TypeVar("T")
Values = dict[str, str]

AGENTS = 50
TREES = ("red", "blue")
ITEMS = ("a", "b", "c")
MODES: tuple[MemoryMode, ...] = ("shared", "snapshot", "isolated", "snapshot", "shared-read-only", "snapshot-read-only")
agents = st.integers(0, AGENTS - 1)


class ModelScope:
    """What a scope shows, as a plain dict, and what its parent showed when the two were last settled."""

    def __init__(self, name: str, tree: str, mode: str, parent: ModelScope | None) -> None:
        self.name, self.tree, self.mode, self.parent = name, tree, mode, parent
        self.shared = parent is not None and mode.startswith("shared")
        self.read_only = mode.endswith("read-only") or (self.shared and parent is not None and parent.read_only)
        inherits = parent is not None and not mode.startswith("isolated")
        self.own: Values = dict(parent.values) if parent is not None and inherits else {}
        self.base: Values = dict(self.own)
        self.touched: set[str] = set()

    @property
    def target(self) -> ModelScope:
        """The scope that is written to."""
        return self.parent.target if self.shared and self.parent is not None else self

    @property
    def values(self) -> Values:
        """What it shows."""
        return self.target.own

    def write(self, item: str, value: str | None) -> None:
        """Store a value; None ends the item."""
        self.target.touched.add(item)
        if value is None:
            self.values.pop(item, None)
        else:
            self.values[item] = value

    def merge(self, prefer: str) -> None:
        """Bring what was changed into the parent; with ``neither`` a conflict stays open."""
        assert self.parent is not None
        still_open: set[str] = set()
        for item in self.touched:
            mine, theirs, base = self.own.get(item), self.parent.values.get(item), self.base.get(item)
            if mine == theirs:
                continue
            if theirs == base or prefer == "child" or (prefer == "both" and theirs is None):
                self.parent.write(item, mine)
            elif prefer == "both" and mine is not None:
                self.parent.write(f"{item}@{self.name}", mine)
            elif prefer == "neither":
                still_open.add(item)
        if self.touched:
            kept = {item: self.base[item] for item in still_open if item in self.base}
            settled = {item: value for item, value in self.parent.values.items() if item not in still_open}
            self.base = settled | kept
            self.touched = still_open


class Fleet(RuleBasedStateMachine):
    """The real actor over a real file beside the model. An item's value stands in its source, too, to be listed."""

    backend: ClassVar[str] = "trio"
    actor: ClassVar[type[MemoryActor]] = MemoryActor

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.path = Path(self.stack.enter_context(tempfile.TemporaryDirectory())) / "journal.db"
        self.portal = self.stack.enter_context(start_blocking_portal(self.backend))
        self.life = ExitStack()
        self.scopes: list[ModelScope] = [ModelScope(tree, tree, "root", None) for tree in TREES]
        self.past: list[tuple[int, list[Values]]] = []
        self.counter = 0
        self.begin()

    def begin(self) -> None:
        """A process begins."""
        self.journal = self.life.enter_context(
            self.portal.wrap_async_context_manager(open_journal(self.path, durability="process"))
        )
        self.system = self.life.enter_context(self.portal.wrap_async_context_manager(open_system()))
        self.spawn()

    def spawn(self) -> None:
        """The actor begins."""

        async def spawn() -> MemoryRef:
            return self.system.spawn(lambda: self.actor(self.journal))

        self.ref: MemoryRef = self.portal.call(spawn)

    def teardown(self) -> None:
        """Close everything."""
        self.life.close()
        self.stack.close()

    def do(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do something on the backend, within a minute."""

        async def bounded() -> T:
            with anyio.fail_after(PATIENCE):
                return await work()

        return self.portal.call(bounded)

    def handle(self, scope: ModelScope, tree: str = "") -> Memory:
        """The handle of an agent of its tree, or of another one."""
        return Memory(self.ref, scope.name, f"{tree or scope.tree}.agent")

    def pick(self, agent: int) -> ModelScope:
        """An agent's scope."""
        return self.scopes[agent % len(self.scopes)]

    def value(self) -> str:
        """A value that there was none of before."""
        self.counter += 1
        return f"value{self.counter}"

    @initialize(hires=st.lists(st.tuples(agents, st.sampled_from(MODES)), min_size=AGENTS - 2, max_size=AGENTS - 2))
    def hire(self, hires: list[tuple[int, MemoryMode]]) -> None:
        """Two trees of runs, fifty agents."""
        for tree in TREES:
            self.do(lambda tree=tree: Memory.open(self.ref, tree, scope_id=tree))  # type: ignore[misc]
        for parent, mode in hires:
            self.fork(parent, mode)

    def fork(self, parent: int, mode: MemoryMode) -> None:
        """An agent of its own scope below another's."""
        above = self.pick(parent)
        made = ModelScope(f"s{len(self.scopes)}", above.tree, mode, None if mode == "isolated" else above)
        owner = f"{above.tree}.{made.name}"
        self.do(lambda: self.handle(above).fork(owner, mode=mode, scope_id=made.name))
        self.scopes.append(made)

    @rule(agent=agents, mode=st.sampled_from(MODES), other=agents)
    def replace(self, agent: int, mode: MemoryMode, other: int) -> None:
        """One more agent, with a scope below another's."""
        if len(self.scopes) < 2 * AGENTS:
            self.fork(agent + other, mode)

    @rule(agent=agents, item=st.sampled_from(ITEMS))
    def store(self, agent: int, item: str) -> None:
        """One writes."""
        scope, value = self.pick(agent), self.value()
        write = lambda: self.handle(scope).store(value, item_id=item, source=value, tags=["t"])  # noqa: E731
        self.changed(scope, write, {item: value})

    @rule(agent=agents, item=st.sampled_from(ITEMS))
    def delete(self, agent: int, item: str) -> None:
        """One ends an item."""
        scope = self.pick(agent)
        if item in scope.values or scope.read_only:
            self.changed(scope, lambda: self.handle(scope).delete(item), {item: None})
        else:
            with pytest.raises(ItemNotFound):
                self.do(lambda: self.handle(scope).delete(item))

    @rule(agent=agents, item=st.sampled_from(ITEMS), place=st.sampled_from(ITEMS) | st.none())
    def move(self, agent: int, item: str, place: str | None) -> None:
        """One gives an item another id, or ends it."""
        scope = self.pick(agent)
        move = lambda: self.handle(scope).move({item: place})  # noqa: E731
        if place in scope.values and not scope.read_only:
            with pytest.raises(ItemChanged):
                self.do(move)
            return
        changes = {item: None} | ({} if place is None else {place: scope.values.get(item)})
        self.changed(scope, move, changes if item in scope.values else {})

    @rule(agent=agents)
    def clear(self, agent: int) -> None:
        """One ends everything it sees."""
        scope = self.pick(agent)
        self.changed(scope, lambda: self.handle(scope).clear(), dict.fromkeys(scope.values))

    @rule()
    def remember(self) -> None:
        """A snapshot of everything."""
        position = self.do(lambda: self.handle(self.scopes[0]).snapshot())
        self.past.append((position, [dict(scope.values) for scope in self.scopes]))

    @rule(agent=agents, which=st.integers(0, 5))
    def restore(self, agent: int, which: int) -> None:
        """One goes back to what it saw."""
        scope = self.pick(agent)
        known = [(at, then) for at, then in self.past if self.scopes.index(scope) < len(then)]
        if known:
            position, seen = known[which % len(known)]
            then = seen[self.scopes.index(scope)]
            items = {item: then.get(item) for item in {*then, *scope.values}}
            changes = {item: value for item, value in items.items() if value != scope.values.get(item)}
            self.changed(scope, lambda: self.handle(scope).restore(position), changes)

    def changed(self, scope: ModelScope, change: Callable[[], Awaitable[Any]], changes: dict[str, str | None]) -> None:
        """Do a change to both; or neither takes it."""
        if scope.read_only:
            with pytest.raises(ScopeReadOnly):
                self.do(change)
            return
        self.do(change)
        for item, value in changes.items():
            scope.write(item, value)

    @rule(agent=agents, prefer=st.sampled_from(["neither", "child", "parent", "both"]))
    def merge(self, agent: int, prefer: Literal["neither", "child", "parent", "both"]) -> None:
        """One is merged, perhaps again."""
        scope = self.pick(agent)
        error = (
            ScopeNotFound
            if not scope.mode.startswith("snapshot")
            else ScopeReadOnly
            if scope.parent is not None and scope.parent.read_only
            else None
        )
        if error is not None:
            with pytest.raises(error):
                self.do(lambda: self.handle(scope).merge(prefer=prefer))
            return
        self.do(lambda: self.handle(scope).merge(prefer=prefer))
        scope.merge(prefer)

    @rule(kill=st.booleans(), after=st.integers(0, 60))
    def write_together(self, kill: bool, after: int) -> None:
        """All of them write at once, each its own item; perhaps the actor is killed when so many are done.

        What was acknowledged is there; of what was not, each is there as a whole or not at all.
        """
        wanted = [(scope, f"own{number}", self.value()) for number, scope in enumerate(self.scopes)]
        wanted = [each for each in wanted if not each[0].read_only]
        done: set[str] = set()

        async def write(scope: ModelScope, item: str, value: str) -> None:
            try:
                await self.handle(scope).store(value, item_id=item, source=value, tags=["t"])
            except ActorStopped:
                return
            done.add(item)
            if kill and len(done) == after:
                self.ref.kill()

        async def together() -> None:
            async with anyio.create_task_group() as group:
                for each in wanted:
                    group.start_soon(write, *each)
            if kill:
                self.ref.kill()
                await self.ref.wait_stopped()

        self.do(together)
        if kill:
            self.spawn()
        for scope, item, value in wanted:
            seen = self.look(scope)
            assert seen.get(item) in ((value,) if item in done else (value, scope.values.get(item)))
            if seen.get(item) == value:
                scope.write(item, value)

    @rule()
    def restart(self) -> None:
        """The process ends, and another one begins."""
        self.life.close()
        self.begin()

    @rule(agent=agents)
    def trespass(self, agent: int) -> None:
        """One of the other tree knows the scope's name, and finds nothing."""
        scope = self.pick(agent)
        stranger = self.handle(scope, next(tree for tree in TREES if tree != scope.tree))
        for use in (stranger.query, stranger.clear, lambda: stranger.store("x"), lambda: stranger.fork("x")):
            with pytest.raises(ScopeNotFound):
                self.do(use)

    def look(self, scope: ModelScope) -> Values:
        """What a scope shows."""
        return {item.item_id: item.source for item in self.do(lambda: self.handle(scope).query())}

    @invariant()
    def every_scope_is_as_the_model_says(self) -> None:
        """Also when it is asked by words or by tags."""

        async def see() -> list[Values]:
            return [
                {item.item_id: item.source for item in await self.handle(scope).query(ItemQuery(tags=tags))}
                for tags in ((), ("t",))
                for scope in self.scopes
            ]

        if len(self.scopes) > len(TREES):
            for scope, seen in zip(self.scopes * 2, self.do(see), strict=True):
                assert seen == scope.values, scope.name


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_fifty_agents_agree_with_a_plain_model(backend: str) -> None:
    """Every scope equals its model after every step, kills and restarts included, on both backends."""

    class OnBackend(Fleet):
        pass

    OnBackend.backend = backend
    limits = settings(max_examples=3, stateful_step_count=15, deadline=None, database=None)
    run_state_machine_as_test(OnBackend, settings=limits)


@pytest.mark.nightly
@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_fifty_agents_agree_for_long(backend: str) -> None:
    """The same with many more examples."""

    class OnBackend(Fleet):
        pass

    OnBackend.backend = backend
    run_state_machine_as_test(OnBackend, settings=settings(max_examples=200, stateful_step_count=40, deadline=None))


def test_the_comparison_sees_a_leak() -> None:
    """Negative control: where a snapshot moves with its parent, the model does not agree."""

    class Leaking(MemoryActor):
        def _check_position(self, position: int | None) -> int:
            return super()._check_position(position) + 1

    class Broken(Fleet):
        actor = Leaking

    limits = settings(
        max_examples=20, stateful_step_count=15, deadline=None, database=None, phases=[Phase.generate], derandomize=True
    )
    # Which of those that write together is the first to leak differs each time, and hypothesis may say so.
    with pytest.raises((AssertionError, Flaky)):
        run_state_machine_as_test(Broken, settings=limits)
