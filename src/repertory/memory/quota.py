"""How much one scope of memory may hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from repertory._choices import check_number
from repertory.errors import QuotaExceeded
from repertory.record.memory_records import LABELS, ItemWritten
from repertory.record.rows import NOT_KEPT, encode_json


class MemoryQuota(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on what one scope may hold, inherited items not counted; None for no limit.

    Attributes:
        item_bytes: Bytes of the content of one item; see ``ItemInfo.size``.
        label_bytes: Bytes of the data about one item that every listing shows: its type, media type, source, tags,
            relations and metadata.
        items: Number of items that are not deleted.
        scope_bytes: Bytes of the contents of all these items.

    Raises:
        ConfigurationError: A value is not a whole number, or is below 0.
    """

    item_bytes: int | None = 1_000_000
    label_bytes: int | None = 64_000  # has room for an embedding of 3,072 numbers; a tool's own labels take some 200
    items: int | None = 10_000
    scope_bytes: int | None = 64_000_000

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            check_number(f"MemoryQuota: {name}", getattr(self, name), int, least=0, none=True)


def check_room(
    quota: MemoryQuota,
    scope_id: str,
    held: tuple[int, int],
    items: Iterable[ItemWritten],
    seen: Mapping[str, ItemWritten],
) -> tuple[int, int]:
    """How many items and bytes a scope will hold with these items; of those ``seen`` they replace the scope's own.

    Raises:
        QuotaExceeded: It would hold more than now and more than allowed. A scope over its quota may still shrink.
    """
    count, size = held
    for item in items:
        before = seen.get(item.item_id)
        if before is not None and before.scope_id == scope_id:
            count, size = count - 1, size - before.size
        if not item.deleted:
            count, size = count + 1, size + item.size
            _check_limit(scope_id, "bytes in one item", item.size, quota.item_bytes)
            _check_limit(scope_id, "bytes of labels of one item", _label_bytes(item), quota.label_bytes)
    if count > held[0]:
        _check_limit(scope_id, "items", count, quota.items)
    if size > held[1]:
        _check_limit(scope_id, "bytes", size, quota.scope_bytes)
    return count, size


def _label_bytes(item: ItemWritten) -> int:
    """The size in bytes of everything about an item but its content."""
    try:
        return len(encode_json([getattr(item, name) for name in LABELS]).encode())
    except NOT_KEPT:
        return 0  # metadata that is not JSON: the journal refuses it and says where it is wrong


def _check_limit(scope_id: str, what: str, would_be: int, limit: int | None) -> None:
    if limit is not None and would_be > limit:
        raise QuotaExceeded(
            f"scope {scope_id!r} would hold {would_be} {what} and may hold {limit}; delete or shorten something first"
        )
