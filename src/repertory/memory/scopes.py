"""Scopes: whose memory is read and written, and how one is merged into another.

A scope is (owner, parent, position, mode). ``shared`` is another name for its parent. ``snapshot`` sees its parent
as it was at a position and keeps its own writes to itself, until they are merged back. ``isolated`` begins empty.
Nothing is ever copied: a view is layers over one log, and a snapshot is a number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from repertory.memory.items import Item
from repertory.record.items import Layer
from repertory.record.records import ItemWritten, ScopeOpened

Prefer: TypeAlias = Literal["neither", "child", "parent", "both"]


class Scope(msgspec.Struct, frozen=True):
    """A scope as it is used; all of it is settled when it is opened.

    Attributes:
        opened: Its record.
        target: The scope that is written to: for a shared one its nearest ancestor that is not.
        layers: The scopes that it sees, nearest first, each with the position up to which, None for no bound.
        read_only: Whether nothing may be written through it.
    """

    opened: ScopeOpened
    target: str
    layers: tuple[tuple[str, int | None], ...]
    read_only: bool

    def view(self, position: int) -> list[Layer]:
        """Its layers as they were at a position."""
        return [(scope_id, position if upto is None else min(upto, position)) for scope_id, upto in self.layers]

    @property
    def is_snapshot(self) -> bool:
        """Whether it has changes of its own that can be merged into its parent."""
        return self.opened.mode.startswith("snapshot")


def resolve(opened: ScopeOpened, parent: Scope | None) -> Scope:
    """What a scope sees and writes, by what its parent does."""
    read_only = opened.mode.endswith("read-only")
    if parent is not None and opened.mode.startswith("shared"):
        return Scope(opened, parent.target, parent.layers, read_only or parent.read_only)
    inherited = parent.view(opened.position) if parent is not None else []
    return Scope(opened, opened.scope_id, ((opened.scope_id, None), *inherited), read_only)


class Conflict(msgspec.Struct, frozen=True, kw_only=True):
    """An item that both sides changed, differently, since they last said the same.

    Attributes:
        base: What both had then; None where it did not exist.
        child: The child's version; None where it removed the item.
        parent: The parent's version; None where it removed the item.
        taken: What the parent has after the merge; ``neither`` leaves the conflict open: the parent keeps its own, and
            the next merge reports it again.
    """

    item_id: str
    base: Item | None
    child: Item | None
    parent: Item | None
    taken: Prefer


class MergeReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a merge did. What a merge has settled, later ones leave alone: merging twice changes nothing.

    Attributes:
        written: Ids of items that the parent got from the child; for a conflict of which both were kept, the id of
            the copy.
        deleted: Ids of items that the child had removed.
        unchanged: How many items of the child's needed nothing: merged before, or the same on both sides.
        conflicts: What both sides had changed.
    """

    written: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    unchanged: int = 0
    conflicts: tuple[Conflict, ...] = ()


class MergePlan(msgspec.Struct):
    """What a merge comes to, by item ids.

    Attributes:
        take: Those that the parent gets from the child, ended ones too.
        copy: Those that it gets beside its own.
        taken: Those in conflict, and what is taken.
    """

    take: list[str] = msgspec.field(default_factory=list[str])
    copy: list[str] = msgspec.field(default_factory=list[str])
    taken: dict[str, Prefer] = msgspec.field(default_factory=dict[str, Prefer])


def plan_merge(
    changed: Sequence[ItemWritten],
    theirs: Mapping[str, ItemWritten],
    base: Mapping[str, ItemWritten],
    prefer: Prefer,
) -> MergePlan:
    """Compare what the child changed with what the parent has now and had when both said the same.

    An item that only the child changed is taken. One that both changed to the same is left. One that both changed
    differently is a conflict. To keep both of a change and a removal is to keep the change.
    """
    plan = MergePlan()
    for mine in changed:
        now = theirs.get(mine.item_id)
        if says_same(mine, now):
            continue
        if says_same(now, base.get(mine.item_id)):
            plan.take.append(mine.item_id)
            continue
        taken: Prefer = prefer
        if prefer == "both" and (mine.deleted or now is None):
            taken = "parent" if mine.deleted else "child"
        plan.taken[mine.item_id] = taken
        if taken == "child":
            plan.take.append(mine.item_id)
        elif taken == "both":
            plan.copy.append(mine.item_id)
    return plan


def says_same(one: ItemWritten | None, other: ItemWritten | None) -> bool:
    """Whether two versions say the same; None and a deleted one both say that there is nothing."""
    return _said(one) == _said(other)


def _said(version: ItemWritten | None) -> tuple[object, ...] | None:
    if version is None or version.deleted:
        return None
    fields = ("type", "format", "media_type", "size", "digest", "source", "tags", "related_to", "metadata")
    return tuple(getattr(version, field) for field in fields)
