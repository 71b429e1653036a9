"""Scopes: whose memory is read and written.

A scope is (owner, parent, position, mode). A ``shared`` scope is another name for its parent. A ``snapshot`` sees its
parent as it was at a position, and keeps its own writes to itself until they are merged. An ``isolated`` scope begins
empty. Nothing is ever copied: a view is a list of layers over one log, and a snapshot is a position in that log.
"""

from __future__ import annotations

from typing import Final

import msgspec

from repertory.errors import ScopeNotFound
from repertory.record.items import Layer
from repertory.record.journal import Journal
from repertory.record.memory_records import ScopeOpened

LONGEST_ID: Final = 1_000
"""Characters that the id of a scope or an item may have; ids are in every listing and in an index."""


class Scope(msgspec.Struct, frozen=True):
    """An open scope. All of this is decided when it is opened.

    Attributes:
        opened: Its record.
        target: The scope that its writes go to: for a shared scope, its nearest ancestor that is not shared.
        layers: The scopes that it sees, nearest first, each with the last position that it sees; None for no limit.
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
    """Work out what a scope sees and writes from its parent."""
    read_only = opened.mode.endswith("read-only")
    if parent is not None and opened.mode.startswith("shared"):
        return Scope(opened, parent.target, parent.layers, read_only or parent.read_only)
    inherited = parent.view(opened.position) if parent is not None else []
    return Scope(opened, opened.scope_id, ((opened.scope_id, None), *inherited), read_only)


async def read_lineage(journal: Journal, scope_id: str) -> list[Scope]:
    """Read a scope and its ancestors, the scope itself last; [] if there is no scope with this id."""
    lineage: list[Scope] = []
    for opened in reversed(await journal.read_scope(scope_id)):
        lineage.append(resolve(opened, lineage[-1] if lineage else None))
    return lineage


async def read_scope(journal: Journal, scope_id: str) -> Scope:
    """Read a scope. Raises ``ScopeNotFound``."""
    lineage = await read_lineage(journal, scope_id)
    if not lineage:
        raise ScopeNotFound(f"there is no memory scope {scope_id!r}")
    return lineage[-1]
