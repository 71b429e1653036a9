"""The memory actor: it decides on all requests about the scopes and items of a journal, and holds no items itself.

The file is the truth. The actor keeps in memory only the scopes in use, their sizes, and the last position of the log.
What else it needs to decide it reads, and no other request comes in between. The answer is a ``Pending``, with which
the asker, not the actor, waits for the file: many writers wait together for one group commit, and readers read in
parallel. A reader gets layers with positions, so it reads exactly what memory was when it asked, whatever is written
meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
from anyio.lowlevel import checkpoint

from repertory._choices import show
from repertory._ids import new_id, root_of
from repertory.actors import Accepts, ActorContext, handler
from repertory.errors import (
    ConfigurationError,
    ItemChanged,
    ItemNotFound,
    JournalError,
    MemoryStoreError,
    QuotaExceeded,
    RecordRefused,
    ScopeNotFound,
    ScopeReadOnly,
)
from repertory.memory.items import Item, encode_content, item_info, off_loop, shape_item
from repertory.memory.merging import MergeReport, compare, parent_of, read_by_id, same_content, with_copies
from repertory.memory.messages import (
    Change,
    ClearScope,
    DeleteItem,
    ForgetOthers,
    ForgetTree,
    ListSnapshots,
    MemoryMessage,
    MergeScope,
    MoveItems,
    OpenScope,
    Pending,
    QueryItems,
    RestoreScope,
    RetrieveItem,
    SnapshotScope,
    StoreItem,
)
from repertory.memory.quota import MemoryQuota, check_room
from repertory.memory.scopes import LONGEST_ID, Scope, read_lineage, resolve
from repertory.record.items import ItemQuery, Layer
from repertory.record.journal import Journal
from repertory.record.memory_records import LABELS, ItemInfo, ItemWritten, ScopeMerged, ScopeOpened
from repertory.record.records import Record
from repertory.record.waiting import Ticket

T = TypeVar("T")

_EXPECTED = (MemoryStoreError, ConfigurationError, JournalError)
_MOST_SCOPES: Final = 1_000  # kept in memory, some 500 bytes each; others are read again when they are used


class MemoryActor:
    """Owns the scopes and items of a journal. There must be only one for each journal."""

    receives: Accepts[MemoryMessage]

    def __init__(
        self, journal: Journal, *, quota: MemoryQuota | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._journal = journal
        self._quota = quota or MemoryQuota()
        self._clock = clock
        self._position = 0  # the last position in the log that was assigned
        self._scopes: dict[str, Scope] = {}  # those in use
        self._sizes: dict[str, tuple[int, int]] = {}  # upper bounds of their numbers of items and bytes

    async def started(self, _ctx: ActorContext) -> None:
        """Find the end of the log, including what a crashed predecessor had submitted."""
        self._position = await self._journal.take_item_positions()

    @handler
    async def forget(self, _message: ForgetOthers) -> None:
        """Forget everything that another process may have changed, and continue after its positions."""
        self._scopes.clear()
        self._sizes.clear()
        self._position = await self._journal.take_item_positions()

    @handler
    def forget_tree(self, message: ForgetTree) -> None:
        """Forget the scopes of a tree: a service keeps none for runs that have ended, or are being removed."""
        for scope_id, scope in [*self._scopes.items()]:
            if root_of(scope.opened.owner) == message.root:
                del self._scopes[scope_id]
                self._sizes.pop(scope_id, None)

    # --- scopes -------------------------------------------------------------------------------------------

    async def _scope(self, scope_id: str, by: str) -> Scope:
        if scope_id not in self._scopes:
            for scope in await read_lineage(self._journal, scope_id):
                # What a fork sees of a removed tree is still there, but nobody uses that tree's scopes themselves.
                if not await self._journal.was_removed(root_of(scope.opened.owner)):
                    self._remember(scope)
        found = self._scopes.get(scope_id)
        if found is None or (by and root_of(by) != root_of(found.opened.owner)):
            raise ScopeNotFound(f"there is no memory scope {scope_id!r}; open it first, unless its run was removed")
        return found

    def _remember(self, scope: Scope) -> None:
        while len(self._scopes) >= _MOST_SCOPES:
            del self._scopes[next(iter(self._scopes))]
        if len(self._sizes) >= _MOST_SCOPES:
            self._sizes.clear()
        self._scopes[scope.opened.scope_id] = scope

    async def _writable(self, scope_id: str, by: str) -> Scope:
        scope = await self._scope(scope_id, by)
        if scope.read_only:
            raise ScopeReadOnly(
                f"scope {scope_id!r} is {scope.opened.mode}, so nothing can be written there; write in a scope of "
                "another mode"
            )
        return scope

    @handler(expected=_EXPECTED)
    async def open_scope(self, message: OpenScope) -> Pending[ScopeOpened]:
        """Open a scope, or find it."""
        _check_id("scope_id", message.scope_id)
        _check_id("owner", message.owner)
        named = message.scope_id
        if named and (named in self._scopes or await self._journal.read_scope(named)):
            known = (await self._scope(named, "")).opened
            if root_of(known.owner) != root_of(message.owner):
                raise ScopeNotFound(f"scope {named!r} is not for {message.owner!r}; choose another id")
            if (known.mode, known.parent_id) != (message.mode, message.parent_id):
                raise ConfigurationError(
                    f"scope {named!r} exists as {known.mode} of {known.parent_id}, not as {message.mode} of "
                    f"{message.parent_id}"
                )
            return partial(_when_durable, self._journal.submit(()), known)
        parent: Scope | None = None
        position = 0
        if message.mode not in ("root", "isolated"):
            if message.parent_id is None:
                raise ConfigurationError(f"a {message.mode} scope needs parent_id, got None")
            parent = await self._scope(message.parent_id, message.by)
            if message.mode.startswith("snapshot"):
                position = self._check_position(message.position)
        elif message.parent_id is not None:
            raise ConfigurationError(f"a {message.mode} scope has no parent, got parent_id={message.parent_id!r}")
        opened = ScopeOpened(
            scope_id=named or new_id("scope"),
            owner=message.owner,
            mode=message.mode,
            at=self._clock(),
            parent_id=message.parent_id,
            position=position,
        )
        ticket = self._journal.submit([opened])
        self._remember(resolve(opened, parent))
        return partial(_when_durable, ticket, opened)

    def _check_position(self, position: int | None) -> int:
        if position is None:
            return self._position
        if not 0 <= position <= self._position:
            raise ConfigurationError(
                f"position {show(position)} is not within the item log, which is at {self._position}"
            )
        return position

    # --- items --------------------------------------------------------------------------------------------

    @handler(expected=_EXPECTED)
    async def retrieve_item(self, message: RetrieveItem) -> Pending[Item]:
        """Find an item."""
        scope = await self._scope(message.scope_id, message.by)
        return partial(self._read_item, message, scope.view(self._position))

    @handler(expected=_EXPECTED)
    async def query_items(self, message: QueryItems) -> Pending[list[ItemInfo]]:
        """Find items."""
        scope = await self._scope(message.scope_id, message.by)
        return partial(self._read_list, scope.view(self._position), message.query)

    @handler(expected=_EXPECTED)
    async def snapshot_scope(self, message: SnapshotScope) -> Pending[int]:
        """Say where the log ends."""
        await self._scope(message.scope_id, message.by)
        return partial(_ready, self._position)

    async def _read_item(self, message: RetrieveItem, layers: Sequence[Layer]) -> Item:
        found = await self._journal.find_items(layers, ids=[message.item_id], bodies=True)
        version = _require_item(found, message.scope_id, message.item_id)
        return await off_loop(partial(shape_item, version, message.transform), size=version.size)

    async def _read_list(self, layers: Sequence[Layer], query: ItemQuery) -> list[ItemInfo]:
        found = await self._journal.find_items(layers, query)
        return await off_loop(lambda: [*map(item_info, found)], items=len(found))

    @handler(expected=_EXPECTED)
    async def store_item(self, message: StoreItem) -> Pending[ItemInfo]:
        """Write an item."""
        scope = await self._writable(message.scope_id, message.by)
        _check_id("item_id", message.item_id)
        seen: dict[str, ItemWritten] | None = None
        if message.if_position is not None:
            seen = await read_by_id(self._journal, scope.view(self._position), [message.item_id])
            current = seen.get(message.item_id)
            _check_unchanged(message.item_id, 0 if current is None else current.position, message.if_position)
        shape, content = encode_content(self._journal.redact(message.content))
        item = ItemWritten(
            scope_id=scope.target,
            item_id=message.item_id or new_id("item"),
            position=0,
            content=content,
            at=0.0,
            format=shape,
            **{name: getattr(message, name) for name in LABELS},
        )
        version = self._journal.redact(item)
        return await self._write_next(message, scope, [version], seen, lambda items: (item_info(items[0]), []))

    @handler(expected=_EXPECTED)
    async def delete_item(self, message: DeleteItem) -> Pending[int]:
        """Delete one item."""
        scope = await self._writable(message.scope_id, message.by)
        seen = await read_by_id(self._journal, scope.view(self._position), [message.item_id])
        version = _require_item([*seen.values()], message.scope_id, message.item_id)
        if message.if_position is not None:
            _check_unchanged(message.item_id, version.position, message.if_position)
        return await self._change(message, scope, [_ended(version)], seen)

    @handler(expected=_EXPECTED)
    async def clear_scope(self, message: ClearScope) -> Pending[int]:
        """Delete every item."""
        scope = await self._writable(message.scope_id, message.by)
        seen = await read_by_id(self._journal, scope.view(self._position))
        ended = await off_loop(lambda: [*map(_ended, seen.values())], items=len(seen))
        return await self._change(message, scope, ended, seen)

    @handler(expected=_EXPECTED)
    async def move_items(self, message: MoveItems) -> Pending[list[str]]:
        """Give items other ids."""
        scope, moves = await self._writable(message.scope_id, message.by), message.moves
        kept = {item_id: place for item_id, place in moves.items() if place is not None}
        if len({*kept.values()}) < len(kept):
            raise ConfigurationError(f"moves must give each item an id of its own, got {show(moves)}")
        view = scope.view(self._position)
        for place, item in (await read_by_id(self._journal, view, kept.values())).items():
            _check_unchanged(place, item.position, 0)
        for place in kept.values():
            _check_id("item_id", place)
        seen = await read_by_id(self._journal, view, moves)
        whole = await self._journal.find_items(view, ids=kept, bodies=True)

        def moved(item: ItemWritten) -> ItemWritten:
            metadata = {**item.metadata, **message.metadata}
            return msgspec.structs.replace(item, item_id=kept[item.item_id], metadata=metadata)

        versions = await off_loop(lambda: [*map(moved, whole), *map(_ended, seen.values())], items=len(seen))
        there = [item_id for item_id in moves if item_id in seen]
        return await self._write_next(message, scope, versions, seen, lambda _: (there, []))

    @handler(expected=_EXPECTED)
    async def restore_scope(self, message: RestoreScope) -> Pending[int]:
        """Go back to a position."""
        scope = await self._writable(message.scope_id, message.by)
        before = scope.view(self._check_position(message.position))
        now = await read_by_id(self._journal, scope.view(self._position))
        then = await read_by_id(self._journal, before)

        def differences() -> tuple[list[str], list[ItemWritten]]:
            back = [item_id for item_id, item in then.items() if not same_content(now.get(item_id), item)]
            return back, [_ended(item) for item_id, item in now.items() if item_id not in then]

        back, gone = await off_loop(differences, items=len(then) + len(now))
        versions = [*await self._journal.find_items(before, ids=back, bodies=True), *gone]
        return await self._change(message, scope, versions, now)

    @handler(expected=_EXPECTED)
    async def list_snapshots(self, message: ListSnapshots) -> Pending[list[ScopeOpened]]:
        """Find the snapshots that may be merged into a scope."""
        target = (await self._scope(message.scope_id, message.by)).target
        return partial(self._read_snapshots, target, message.by)

    async def _read_snapshots(self, target: str, by: str) -> list[ScopeOpened]:
        found = await self._journal.read_snapshot_scopes(target)
        # A snapshot that was opened for another tree belongs to that tree.
        return [opened for opened in found if not by or root_of(opened.owner) == root_of(by)]

    async def _change(
        self, message: Change[Any], scope: Scope, versions: Sequence[ItemWritten], seen: Mapping[str, ItemWritten]
    ) -> Pending[int]:
        return await self._write_next(message, scope, versions, seen, lambda items: (len(items), []))

    async def _write_next(
        self,
        message: Change[Pending[T]],
        scope: Scope,
        versions: Sequence[ItemWritten],
        seen: Mapping[str, ItemWritten] | None,
        finish: Callable[[Sequence[ItemWritten]], tuple[T, Sequence[Record]]],
    ) -> Pending[T]:
        """Write versions as the next ones of a scope, if it has room for them: with new positions, times and scope.

        ``seen`` has the items that the scope shows and that these may hide, by id; None if they were not read.
        ``finish`` makes the answer and further records from the items that are written.
        """
        target, at = scope.target, self._clock()

        def write(held: tuple[int, int], hidden: Mapping[str, ItemWritten]) -> tuple[int, tuple[int, int], T, Ticket]:
            items = [
                msgspec.structs.replace(version, scope_id=target, position=position, at=at)
                for position, version in enumerate(versions, self._position + 1)
            ]
            room = check_room(self._quota, target, held, items, hidden)
            answer, more = finish(items)
            records = [*items, *more]
            ticket = self._journal.submit(records) if message.write is None else message.write(answer, records)
            return len(items), room, answer, ticket

        within = {"items": len(versions), "size": sum(version.size for version in versions)}
        held = self._sizes.get(target) or await self._journal.scope_size(target)
        try:
            written = await off_loop(partial(write, held, seen or {}), **within)
        except QuotaExceeded:  # these may replace items, and earlier ones may have, though all were counted
            held = await self._journal.scope_size(target)
            if seen is None:
                ids = [version.item_id for version in versions]
                seen = await read_by_id(self._journal, scope.view(self._position), ids)
            written = await off_loop(partial(write, held, seen), **within)
        count, self._sizes[target], answer, ticket = written
        self._position += count
        return partial(_when_durable, ticket, answer)

    @handler(expected=_EXPECTED)
    async def merge_scope(self, message: MergeScope) -> Pending[MergeReport]:
        """Merge a snapshot scope's changes into its parent, and record what is settled."""
        scope = await self._scope(message.scope_id, message.by)
        opened, journal, now = scope.opened, self._journal, self._position
        parent = await self._writable(parent_of(scope), "")
        plan = await compare(journal, scope, parent, now, message.prefer)
        wanted = [*plan.take, *plan.copy]
        whole = await journal.find_items([(opened.scope_id, now)], ids=wanted, bodies=True, ended=True)
        versions = await with_copies(journal, whole, plan.copy, parent.view(now))
        seen = await read_by_id(journal, parent.view(now), [version.item_id for version in versions])

        def finish(items: Sequence[ItemWritten]) -> tuple[MergeReport, list[Record]]:
            report = MergeReport(
                written=tuple(item.item_id for item in items if not item.deleted),
                deleted=tuple(item.item_id for item in items if item.deleted),
                unchanged=plan.unchanged,
                conflicts=plan.conflicts,
            )
            if not plan.since:
                return report, []
            still_open = {item_id: plan.since[item_id] for item_id, taken in plan.taken.items() if taken == "neither"}
            end = now + len(items)
            return report, [ScopeMerged(scope_id=opened.scope_id, at=self._clock(), position=end, open=still_open)]

        return await self._write_next(message, parent, versions, seen, finish)


# --- run by the asker -----------------------------------------------------------------------------------------


async def _ready(value: T) -> T:
    await checkpoint()
    return value


async def _when_durable(ticket: Ticket, value: T) -> T:
    await ticket.wait()
    return value


# --- small helpers --------------------------------------------------------------------------------------------


def _check_id(name: str, value: str) -> None:
    if len(value) > LONGEST_ID:
        raise RecordRefused(f"{name} must be at most {LONGEST_ID:,} characters, got {show(value)}; nothing was written")


def _require_item(found: Sequence[ItemWritten], scope_id: str, item_id: str) -> ItemWritten:
    if not found:
        raise ItemNotFound(f"scope {scope_id!r} has no item {item_id!r}; a query lists what it has")
    return found[0]


def _check_unchanged(item_id: str, actual: int, expected: int) -> None:
    if actual != expected:
        raise ItemChanged(
            f"item {item_id!r} is at position {actual}, not {show(expected)}: somebody else has written it; read it "
            "again and decide anew"
        )


def _ended(version: ItemWritten) -> ItemWritten:
    return msgspec.structs.replace(version, deleted=True, content="", size=0, digest="")
