"""Scopes: whose memory is read and written.

A scope is (owner, parent, position, mode). ``shared`` is another name for its parent. ``snapshot`` sees its parent
as it was at a position and keeps its own writes to itself, until they are merged back. ``isolated`` begins empty.
Nothing is ever copied: a view is layers over one log, and a snapshot is a number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

import msgspec

from repertory.errors import ItemNotFound, ScopeNotFound
from repertory.memory.items import ItemLog
from repertory.record.records import ItemWritten, ScopeOpened

Prefer: TypeAlias = Literal["neither", "child", "parent"]
_Change: TypeAlias = tuple[ItemWritten, bool]  # what a new version says, and whether it ends the item


class Conflict(msgspec.Struct, frozen=True, kw_only=True):
    """An item that both sides changed since the snapshot, differently.

    Attributes:
        base: What the child began with; None where it did not exist.
        child: The child's version; ``deleted`` where it removed the item.
        parent: The parent's version now; None where the parent removed it.
        taken: Which one the parent has after the merge.
    """

    item_id: str
    base: ItemWritten | None
    child: ItemWritten
    parent: ItemWritten | None
    taken: Literal["child", "parent"]


class MergeReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a merge did.

    Attributes:
        written: Ids of items that the parent got from the child.
        deleted: Ids of items that the child had removed.
        unchanged: How many of the child's changes the parent had already.
        conflicts: What both sides had changed.
    """

    written: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    unchanged: int = 0
    conflicts: tuple[Conflict, ...] = ()


class ScopeTree:
    """All scopes and all items: what each scope sees, and which versions a change would write.

    The methods that change something return the versions to write and apply nothing, so that they can be made
    durable first; ``add_scope`` and ``log.add`` apply. The versions' positions are in order from the next one on.
    """

    def __init__(self, scopes: Iterable[ScopeOpened] = (), items: Iterable[ItemWritten] = ()) -> None:
        self.log = ItemLog()
        self._scopes: dict[str, ScopeOpened] = {}
        for scope in scopes:
            self.add_scope(scope)
        for item in items:
            self.log.add(item)

    def add_scope(self, scope: ScopeOpened) -> None:
        """Take in a scope."""
        self._scopes[scope.scope_id] = scope

    def find_scope(self, scope_id: str) -> ScopeOpened | None:
        """A scope, if there is one of this id."""
        return self._scopes.get(scope_id)

    def scope(self, scope_id: str) -> ScopeOpened:
        """A scope.

        Raises:
            ScopeNotFound: There is none of this id.
        """
        scope = self._scopes.get(scope_id)
        if scope is None:
            raise ScopeNotFound(f"there is no memory scope {scope_id!r}; open it first")
        return scope

    def target(self, scope_id: str) -> ScopeOpened:
        """The scope that is written to: for a shared one its nearest ancestor that is not."""
        scope = self.scope(scope_id)
        while scope.mode == "shared" and scope.parent_id is not None:
            scope = self.scope(scope.parent_id)
        return scope

    # --- reading ------------------------------------------------------------------------------------------

    def _layers(self, scope_id: str, upto: int | None) -> Iterator[tuple[str, int | None]]:
        """The scopes that a scope sees, nearest first, each with the position up to which it is seen."""
        limit = upto
        scope = self.target(scope_id)
        while True:
            yield scope.scope_id, limit
            if scope.mode != "snapshot" or scope.parent_id is None:
                return
            limit = scope.position if limit is None else min(limit, scope.position)
            scope = self.target(scope.parent_id)

    def find(self, scope_id: str, item_id: str, *, upto: int | None = None) -> ItemWritten | None:
        """The version of an item that a scope sees now, or saw at a position; None where it sees none."""
        for layer, limit in self._layers(scope_id, upto):
            version = self.log.version_at(layer, item_id, limit)
            if version is not None:
                return None if version.deleted else version
        return None

    def get(self, scope_id: str, item_id: str) -> ItemWritten:
        """The version of an item that a scope sees.

        Raises:
            ItemNotFound: It sees none.
        """
        version = self.find(scope_id, item_id)
        if version is None:
            raise ItemNotFound(f"scope {scope_id!r} has no item {item_id!r}; query lists what it has")
        return version

    def visible(self, scope_id: str, *, upto: int | None = None) -> dict[str, ItemWritten]:
        """Every item that a scope sees now, or saw at a position, by id."""
        seen: dict[str, ItemWritten] = {}
        decided: set[str] = set()
        for layer, limit in self._layers(scope_id, upto):
            for item_id in self.log.item_ids(layer):
                if item_id in decided:
                    continue
                version = self.log.version_at(layer, item_id, limit)
                if version is not None:
                    decided.add(item_id)
                    if not version.deleted:
                        seen[item_id] = version
        return seen

    # --- changing -----------------------------------------------------------------------------------------

    def _versions(self, scope_id: str, changes: Iterable[_Change], at: float) -> list[ItemWritten]:
        target = self.target(scope_id).scope_id
        return [
            msgspec.structs.replace(
                version,
                scope_id=target,
                position=position,
                at=at,
                deleted=deleted,
                content="" if deleted else version.content,
            )
            for position, (version, deleted) in enumerate(changes, self.log.position + 1)
        ]

    def clear(self, scope_id: str, *, at: float) -> list[ItemWritten]:
        """The versions that end every item a scope sees."""
        return self._versions(scope_id, [(version, True) for version in self.visible(scope_id).values()], at)

    def delete(self, scope_id: str, item_id: str, *, at: float) -> list[ItemWritten]:
        """The version that ends one item. Raises ``ItemNotFound``."""
        return self._versions(scope_id, [(self.get(scope_id, item_id), True)], at)

    def restore(self, scope_id: str, position: int, *, at: float) -> list[ItemWritten]:
        """The versions that make a scope see again what it saw at a position."""
        now, then = self.visible(scope_id), self.visible(scope_id, upto=position)
        back = [(version, False) for item_id, version in then.items() if not _same(now.get(item_id), version)]
        gone = [(version, True) for item_id, version in now.items() if item_id not in then]
        return self._versions(scope_id, [*back, *gone], at)

    def merge(self, scope_id: str, *, at: float, prefer: Prefer = "neither") -> tuple[list[ItemWritten], MergeReport]:
        """The versions that bring a snapshot scope's own changes into its parent, and the report.

        An item that only the child changed is taken. One that both changed to the same thing is left. One that
        both changed differently is a conflict: it is reported, and the parent keeps its own unless the child is
        preferred. What the parent already took from this child in an earlier merge counts as the child's.

        Raises:
            ScopeNotFound: The scope is no snapshot of a parent.
        """
        scope = self.scope(scope_id)
        if scope.mode != "snapshot" or scope.parent_id is None:
            raise ScopeNotFound(f"scope {scope_id!r} is {scope.mode}, so it has no parent to merge into")
        changes: list[_Change] = []
        conflicts: list[Conflict] = []
        unchanged = 0
        for item_id in self.log.item_ids(scope_id):
            own = self.log.versions(scope_id, item_id)
            mine = own[-1]
            base = self.find(scope.parent_id, item_id, upto=scope.position)
            theirs = self.find(scope.parent_id, item_id)
            if _same(mine, theirs):
                unchanged += 1
                continue
            if not (_same(theirs, base) or any(_same(theirs, version) for version in own)):
                taken: Literal["child", "parent"] = "child" if prefer == "child" else "parent"
                conflicts.append(Conflict(item_id=item_id, base=base, child=mine, parent=theirs, taken=taken))
                if taken == "parent":
                    continue
            changes.append((mine, mine.deleted))
        report = MergeReport(
            written=tuple(version.item_id for version, deleted in changes if not deleted),
            deleted=tuple(version.item_id for version, deleted in changes if deleted),
            unchanged=unchanged,
            conflicts=tuple(conflicts),
        )
        return self._versions(scope.parent_id, changes, at), report


def _same(one: ItemWritten | None, other: ItemWritten | None) -> bool:
    """Whether two versions say the same; None and a deleted one both say that there is nothing."""
    return _said(one) == _said(other)


def _said(version: ItemWritten | None) -> tuple[object, ...] | None:
    if version is None or version.deleted:
        return None
    return version.type, version.content, version.source, version.tags, version.related_to, version.metadata
