"""Merging: comparing a snapshot scope with its parent, and deciding what the parent takes over."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import msgspec

from repertory.errors import ScopeNotFound
from repertory.memory.items import Item, off_loop, shape_item
from repertory.memory.scopes import LONGEST_ID, Scope
from repertory.record.items import Layer
from repertory.record.journal import Journal
from repertory.record.memory_records import LABELS, ItemWritten

Prefer: TypeAlias = Literal["neither", "child", "parent", "both"]


class Conflict(msgspec.Struct, frozen=True, kw_only=True):
    """An item that both sides have changed in different ways since they last agreed.

    Attributes:
        base: The version on which they last agreed; None if the item did not exist then.
        child: The child's version; None if it removed the item.
        parent: The parent's version; None if it removed the item.
        taken: What the parent has after the merge. ``neither`` leaves the conflict open: the parent keeps its own, and
            the next merge reports the conflict again.
    """

    item_id: str
    base: Item | None
    child: Item | None
    parent: Item | None
    taken: Prefer


class MergeReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a merge did. What one merge has settled, later merges leave alone: merging twice changes nothing.

    Attributes:
        written: Ids of items that the parent took from the child; for a conflict in which both versions were kept, the
            id of the copy.
        deleted: Ids of items that were removed because the child had removed them.
        unchanged: How many of the child's items needed nothing: merged before, or the same on both sides.
        conflicts: The items that both sides had changed in different ways.
    """

    written: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    unchanged: int = 0
    conflicts: tuple[Conflict, ...] = ()


@dataclass
class MergePlan:
    """What a merge of a snapshot scope into its parent will do, by item ids.

    Attributes:
        take: Items that the parent takes from the child, including deleted ones.
        copy: Items whose child version the parent gets as a copy beside its own.
        taken: Items in conflict, with what is taken.
        since: For each item that no merge has settled, the position at which both sides last agreed.
        unchanged, conflicts: As in ``MergeReport``.
    """

    take: list[str] = field(default_factory=list[str])
    copy: list[str] = field(default_factory=list[str])
    taken: dict[str, Prefer] = field(default_factory=dict[str, Prefer])
    since: dict[str, int] = field(default_factory=dict[str, int])
    unchanged: int = 0
    conflicts: tuple[Conflict, ...] = ()


def plan_merge(
    changed: Sequence[ItemWritten],
    theirs: Mapping[str, ItemWritten],
    base: Mapping[str, ItemWritten],
    prefer: Prefer,
) -> MergePlan:
    """Compare the child's changes with the parent's current versions and those on which both last agreed.

    An item that only the child changed is taken. An item that both changed to the same value is left alone. An item
    that both changed in different ways is a conflict. Keeping both of a change and a removal keeps the change.
    """
    plan = MergePlan()
    for mine in changed:
        now = theirs.get(mine.item_id)
        if same_content(mine, now):
            continue
        if same_content(now, base.get(mine.item_id)):
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


def same_content(one: ItemWritten | None, other: ItemWritten | None) -> bool:
    """Whether two versions have the same contents; None and a deleted version both mean that there is no item."""
    return _content_key(one) == _content_key(other)


def _content_key(version: ItemWritten | None) -> tuple[object, ...] | None:
    if version is None or version.deleted:
        return None
    return tuple(getattr(version, name) for name in ("format", "size", "digest", *LABELS))


# --- read from a journal ----------------------------------------------------------------------------------


def parent_of(scope: Scope) -> str:
    """The id of the scope that a snapshot is merged into. Raises ``ScopeNotFound`` if there is none."""
    opened = scope.opened
    if not scope.is_snapshot or opened.parent_id is None:
        raise ScopeNotFound(f"scope {opened.scope_id!r} is {opened.mode}, so it has no parent to merge into")
    return opened.parent_id


async def compare(
    journal: Journal, scope: Scope, parent: Scope, position: int, prefer: Prefer = "neither"
) -> MergePlan:
    """Compare a snapshot scope with its parent, both as of a position in the item log."""
    scope_id = scope.opened.scope_id
    child: list[Layer] = [(scope_id, position)]
    merged = await journal.read_merge(scope_id)
    settled, left_open = (merged.position, merged.open) if merged is not None else (scope.opened.position, {})
    own = await journal.find_items(child, ended=True)
    changed = [item for item in own if item.position > settled or item.item_id in left_open]
    since = {item.item_id: int(left_open.get(item.item_id, settled)) for item in changed}

    async def base(ids: Collection[str], *, bodies: bool = False) -> dict[str, ItemWritten]:
        found: dict[str, ItemWritten] = {}
        for then in {since[item_id] for item_id in ids}:
            of_then = [item_id for item_id in ids if since[item_id] == then]
            found |= await read_by_id(journal, parent.view(then), of_then, bodies=bodies)
        return found

    theirs = await read_by_id(journal, parent.view(position), since)
    agreed = await base(since)
    plan = await off_loop(lambda: plan_merge(changed, theirs, agreed, prefer), items=len(changed))
    sides = [
        await read_by_id(journal, child, plan.taken, bodies=True),
        await read_by_id(journal, parent.view(position), plan.taken, bodies=True),
        await base(plan.taken, bodies=True),
    ]
    size = sum(item.size for side in sides for item in side.values())
    plan.conflicts = await off_loop(lambda: _conflicts(plan, *sides), items=len(plan.taken), size=size)
    plan.since, plan.unchanged = since, len(own) - len({*plan.taken, *plan.take})
    return plan


def _conflicts(
    plan: MergePlan,
    child: Mapping[str, ItemWritten],
    parent: Mapping[str, ItemWritten],
    base: Mapping[str, ItemWritten],
) -> tuple[Conflict, ...]:
    def shaped(side: Mapping[str, ItemWritten], item_id: str) -> Item | None:
        return shape_item(side[item_id]) if item_id in side else None

    return tuple(
        Conflict(
            item_id=item_id,
            base=shaped(base, item_id),
            child=shaped(child, item_id),
            parent=shaped(parent, item_id),
            taken=taken,
        )
        for item_id, taken in plan.taken.items()
    )


async def read_by_id(
    journal: Journal, layers: Sequence[Layer], ids: Collection[str] | None = None, *, bodies: bool = False
) -> dict[str, ItemWritten]:
    """The versions of some items that layers show, or of all, by item id."""
    return {item.item_id: item for item in await journal.find_items(layers, ids=ids, bodies=bodies)}


# --- copies ---------------------------------------------------------------------------------------------


async def with_copies(
    journal: Journal, versions: Sequence[ItemWritten], copied: Collection[str], parent: Sequence[Layer]
) -> Sequence[ItemWritten]:
    """A child's versions; instead of those to be ``copied``, copies to be written beside the parent's own.

    Each copy replaces an earlier copy of it. If the parent has changed that since, it stays, and the new copy gets
    another id.
    """
    if not copied:
        return versions
    wanted = {*copied}
    copies = {version.item_id: _copy(version) for version in versions if version.item_id in wanted}
    found = await read_by_id(journal, parent, [copy.item_id for copy in copies.values()])
    earlier = await journal.read_items([versions[0].scope_id]) if found else []

    def choose() -> list[ItemWritten]:
        made = defaultdict[str, list[ItemWritten]](list)
        for copy in map(_copy, earlier):
            made[copy.item_id].append(copy)
        chosen: list[ItemWritten] = []
        for version in versions:
            copy = copies.get(version.item_id, version)
            own = found.get(copy.item_id) if copy is not version else None
            if own is not None and not any(same_content(each, own) for each in made[own.item_id]):
                item_id = _id_beside(version.item_id, version.scope_id, str(version.position))
                copy = msgspec.structs.replace(copy, item_id=item_id)
            chosen.append(copy)
        return chosen

    return await off_loop(choose, items=len(versions) + len(earlier))


def _copy(version: ItemWritten) -> ItemWritten:
    """A version to be kept beside the parent's own."""
    related = (*version.related_to, version.item_id)
    return msgspec.structs.replace(version, item_id=_id_beside(version.item_id, version.scope_id), related_to=related)


def _id_beside(item_id: str, *marks: str) -> str:
    """The id of a copy; if it would be too long, its end is replaced by a hash."""
    mark = "".join(f"@{each}" for each in marks)
    if len(item_id) + len(mark) <= LONGEST_ID:
        return item_id + mark
    mark = f"~{hashlib.blake2b(item_id.encode(), digest_size=8).hexdigest()}{mark}"
    return item_id[: LONGEST_ID - len(mark)] + mark
