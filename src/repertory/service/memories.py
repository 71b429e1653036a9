"""Memory as the service and the command line show it: scopes, what they see, and what a merge would do."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from repertory.errors import ItemNotFound
from repertory.memory.items import FULL, Item, Transform, item_info, shape_item
from repertory.memory.merging import compare, parent_of, read_by_id
from repertory.memory.scopes import Scope, read_scope
from repertory.record.items import ItemQuery, Layer
from repertory.record.journal import Journal
from repertory.record.memory_records import ItemInfo, ItemWritten, ScopeOpened

ChangeKind: TypeAlias = Literal["added", "changed", "ended", "conflict"]

_PREVIEW: Final = 300  # characters: some four lines of a terminal
# Larger items are read one by one for their previews, so that a list of the largest holds one of them in memory.
_READ_TOGETHER: Final = 20_000  # bytes


class ScopeView(ScopeOpened, frozen=True, kw_only=True):
    """A memory scope.

    Attributes:
        owner: The run it was opened for.
        position: For a snapshot, the position in its parent's item log up to which it sees items.
        at: When it was opened.
        items: How many live items were written in it; items that it sees of other scopes do not count.
        bytes: The size of those items.
    """

    items: int
    bytes: int


class ItemLine(ItemInfo, frozen=True, kw_only=True):
    """An item in a list.

    Attributes:
        preview: Its beginning, or the passage with the searched words; for bytes a description of them.
    """

    preview: str


class MemoryView(msgspec.Struct, frozen=True, kw_only=True):
    """What a scope sees.

    Attributes:
        items: The newest first; for a search, the best first.
        more: Whether there are more than were asked for.
    """

    scope: ScopeView
    items: list[ItemLine]
    more: bool


class ItemChange(msgspec.Struct, frozen=True, kw_only=True):
    """What a merge would do about one item.

    Attributes:
        change: Whether a merge would add the item, replace it, end it, or report a conflict.
        base: What both sides had before a conflict; None if there was nothing, or if there is no conflict.
        parent: What the parent has; None for nothing.
        child: What the child has; None if it ended the item.
    """

    item_id: str
    change: ChangeKind
    base: Item | None
    parent: Item | None
    child: Item | None


class ScopeChanges(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot scope compared with its parent.

    Attributes:
        unchanged: How many of the child's items need no merge: merged before, or the same on both sides.
    """

    scope: ScopeView
    parent: ScopeView
    changes: list[ItemChange]
    unchanged: int


# --- scopes -----------------------------------------------------------------------------------------------


async def read_scopes(journal: Journal, owner: str | None = None) -> list[ScopeView]:
    """Read the scopes of a run and those below it, or all, in the order they were opened."""
    return [await _scope_view(journal, opened) for opened in await journal.read_scopes(owner)]


async def _scope_view(journal: Journal, opened: ScopeOpened) -> ScopeView:
    items, size = await journal.scope_size(opened.scope_id)
    return ScopeView(**msgspec.structs.asdict(opened), items=items, bytes=size)


# --- what one sees ----------------------------------------------------------------------------------------


async def read_memory(journal: Journal, scope_id: str, *, text: str = "", skip: int = 0, limit: int = 50) -> MemoryView:
    """Read what a scope sees: items with all these words, best first, or with "" the newest.

    Raises ``ScopeNotFound`` if there is no such scope.
    """
    scope = await read_scope(journal, scope_id)
    layers = await _layers(journal, scope)
    found = await journal.find_items(layers, ItemQuery(text=text, limit=skip + limit + 1))
    shown = found[skip : skip + limit]
    previews = await _previews(journal, layers, shown, text)
    lines = [
        ItemLine(**msgspec.structs.asdict(item_info(version)), preview=previews.get(version.item_id, ""))
        for version in shown
    ]
    view = await _scope_view(journal, scope.opened)
    return MemoryView(scope=view, items=lines, more=len(found) > skip + limit)


async def read_item(journal: Journal, scope_id: str, item_id: str) -> Item:
    """Read an item that a scope sees, whole. Raises ``ScopeNotFound`` and ``ItemNotFound``."""
    scope = await read_scope(journal, scope_id)
    found = await journal.find_items(await _layers(journal, scope), ids=[item_id], bodies=True)
    if not found:
        raise ItemNotFound(f"scope {scope_id!r} has no item {item_id[:100]!r}")
    return shape_item(found[0])


async def _layers(journal: Journal, scope: Scope) -> list[Layer]:
    return scope.view(await journal.last_item_position())


async def _previews(
    journal: Journal, layers: Sequence[Layer], versions: Sequence[ItemWritten], text: str
) -> dict[str, str]:
    together = [version.item_id for version in versions if version.size <= _READ_TOGETHER]
    alone = [version.item_id for version in versions if version.size > _READ_TOGETHER]
    wanted: list[Collection[str]] = [together, *([item_id] for item_id in alone)]
    previews: dict[str, str] = {}
    for ids in wanted:
        for version in await journal.find_items(layers, ids=ids, bodies=True):
            previews[version.item_id] = _preview(version, text)
    return previews


def _preview(version: ItemWritten, text: str) -> str:
    kind: Literal["excerpt", "first_n"] = "excerpt" if text else "first_n"
    transform = FULL if version.format == "bytes" else Transform(kind=kind, n=_PREVIEW, words=text)
    return shape_item(version, transform).text


# --- against its parent -----------------------------------------------------------------------------------


async def read_changes(journal: Journal, scope_id: str) -> ScopeChanges:
    """Read what a merge of a snapshot scope into its parent would do. Raises ``ScopeNotFound`` if it has none."""
    scope = await read_scope(journal, scope_id)
    parent = await read_scope(journal, parent_of(scope))
    position = await journal.last_item_position()
    plan = await compare(journal, scope, parent, position)
    taken = plan.take
    mine = await journal.find_items([(scope_id, position)], ids=taken, bodies=True, ended=True)
    theirs = await read_by_id(journal, parent.view(position), taken, bodies=True)
    changes = [_change(version, theirs.get(version.item_id)) for version in mine]
    changes += [
        ItemChange(item_id=each.item_id, change="conflict", base=each.base, parent=each.parent, child=each.child)
        for each in plan.conflicts
    ]
    return ScopeChanges(
        scope=await _scope_view(journal, scope.opened),
        parent=await _scope_view(journal, parent.opened),
        changes=changes,
        unchanged=plan.unchanged,
    )


def _change(mine: ItemWritten, theirs: ItemWritten | None) -> ItemChange:
    change: ChangeKind = "ended" if mine.deleted else "added" if theirs is None else "changed"
    return ItemChange(
        item_id=mine.item_id,
        change=change,
        base=None,
        parent=None if theirs is None else shape_item(theirs),
        child=None if mine.deleted else shape_item(mine),
    )
