"""The records of what agents keep: the items and scopes of memory, and the payload of a run."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final, Literal, TypeAlias

import msgspec

from repertory._frozen import EMPTY_DICT, Frozen
from repertory.llm.messages import Json

ScopeMode: TypeAlias = Literal["root", "shared", "shared-read-only", "snapshot", "snapshot-read-only", "isolated"]
ItemFormat: TypeAlias = Literal["text", "json", "bytes"]
PayloadAuthor: TypeAlias = Literal["spawn", "caller", "tool", "sub-agent", "cleaning", "resume"]
PathParts: TypeAlias = tuple[str | int, ...]
LABELS: Final = ("type", "media_type", "source", "tags", "related_to", "metadata")
"""The fields of an item that its writer chooses beside its content."""


class ScopeOpened(msgspec.Struct, frozen=True, kw_only=True):
    """A memory scope exists.

    Attributes:
        owner: The run that it was opened for.
        mode: Whose items it sees, and whether it may be written to; see ``repertory.memory``.
        parent_id: The scope that it sees (``snapshot``) or stands for (``shared``); None for a root or isolated scope.
        position: For ``snapshot``, the position in the item log up to which it sees its parent.
    """

    scope_id: str
    owner: str
    mode: ScopeMode
    at: float
    parent_id: str | None = None
    position: int = 0


class ScopeMerged(Frozen, frozen=True, kw_only=True):
    """A snapshot scope's changes were merged into its parent.

    Attributes:
        position: The end of the item log after the merge. All changes of the scope up to there are settled, except
            those in ``open``.
        open: Conflicts that were left open: for each item id, the position at which both sides last agreed.
    """

    scope_id: str
    at: float
    position: int
    open: Json = EMPTY_DICT


class ItemInfo(Frozen, frozen=True, kw_only=True, gc=False):
    """An item of memory without its content.

    There may be 100,000 of them in memory at once. They never form a cycle, so the garbage collector need not look at
    them, which halved the pauses of the event loop.

    Attributes:
        scope_id: The scope that this version was written in; for an inherited item, the ancestor.
        position: This version's place in the log of all items of the journal, from 1. A snapshot of memory is such a
            position.
        type: ``action_result``, ``web_content``, ``database_result``, ``custom``, or the application's own word.
        format: Whether the content is text, a value, or bytes.
        media_type: The type of bytes, such as ``image/png``; "" if none was given.
        size: Size of the content in bytes; of text, and of the JSON of a value, as UTF-8.
        at: When this version was written, in seconds since 1970.
    """

    item_id: str
    scope_id: str
    position: int
    type: str
    at: float
    size: int = 0
    format: ItemFormat = "text"
    media_type: str = ""
    source: str = ""
    tags: tuple[str, ...] = ()
    related_to: tuple[str, ...] = ()
    metadata: Json = EMPTY_DICT


class ItemWritten(ItemInfo, frozen=True, kw_only=True, gc=False):
    """One version of a memory item; with ``deleted``, the item was deleted.

    Attributes:
        content: Depending on ``format``: text, JSON text of a value, or bytes in base 64. "" in listings.
        size: Computed from the content.
        digest: BLAKE2b-128 of the content, by which versions are compared. Computed from the content.
    """

    content: str
    digest: str = ""
    deleted: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.content and not self.digest:
            data = self.content.encode("utf-8", "surrogatepass")
            size = len(data) // 4 * 3 - self.content[-2:].count("=") if self.format == "bytes" else len(data)
            msgspec.structs.force_setattr(self, "size", size)
            msgspec.structs.force_setattr(self, "digest", blake2b(data, digest_size=16).hexdigest())


class PayloadChange(Frozen, frozen=True, kw_only=True):
    """One change of a payload.

    Attributes:
        path: The place: field names, and list indexes from 0; () for the whole.
        op: ``set`` puts the value there, ``append`` adds its items to the list there, ``remove`` removes a key.
        value: The value as JSON; None for ``remove``.
    """

    path: PathParts
    op: Literal["set", "append", "remove"] = "set"
    value: Any = None


class PayloadConflict(msgspec.Struct, frozen=True, kw_only=True):
    """A change that was not made because somebody else had changed the same place first.

    Attributes:
        change: The change; its value is recorded only here.
        version: The version that changed the place; 0 if the change itself no longer fits the payload.
        reason: Why the change was not made, if ``version`` is 0.
    """

    change: PayloadChange
    version: int = 0
    reason: str = ""


class PayloadChanged(Frozen, frozen=True, kw_only=True):
    """A new version of a run's payload; the first is written when the run begins.

    Attributes:
        version: The number of the version, from 1, without gaps.
        author: Who made the changes; ``resume`` for the defaults of fields that the type has got since the run began.
        base: The version that the changes were made to; for ``spawn`` that of the parent's payload, 0 for a root.
        changes: The changes that were made, in order.
        conflicts: The changes that were not made.
        call_id: The tool call with whose outcome it was committed; "" for other authors.
        source: The name of the tool, or the id of the sub-agent's run.
    """

    run_id: str
    version: int
    author: PayloadAuthor
    at: float
    base: int = 0
    changes: tuple[PayloadChange, ...] = ()
    conflicts: tuple[PayloadConflict, ...] = ()
    call_id: str = ""
    source: str = ""
