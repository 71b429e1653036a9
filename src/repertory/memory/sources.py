"""The sources of what a run has read, as its payload lists them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from types import UnionType
from typing import Any, Union, get_args, get_origin

from repertory.llm.messages import Json
from repertory.record.memory_records import PayloadChange
from repertory.record.records import ContentStored


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceRecord:
    """The source of something that the run has read. The runtime fills a field ``sources: list[SourceRecord]``.

    Attributes:
        id: The source's id, the same however often its address is read.
        type: ``web``, ``database``, ``file``, ``search``, ``tool``, …
        url: Its address; "" if it has none.
        content_id: The citation id of its latest content in the content store.
        format: ``text``, ``markdown``, ``json``, ``code``, …
        length: Characters of the whole content.
        accessed_at: Seconds since 1970.
    """

    id: str
    type: str = ""
    url: str = ""
    content_id: str = ""
    format: str = "text"
    length: int = 0
    accessed_at: float = 0.0

    @classmethod
    def of(cls, stored: ContentStored) -> SourceRecord:
        """The source of a stored content."""
        digest = blake2b((stored.url or stored.content_id).encode("utf-8", "replace"), digest_size=6).hexdigest()
        return cls(
            id=f"s-{digest}",
            type=stored.source_type,
            url=stored.url,
            content_id=stored.content_id,
            format=stored.format,
            length=stored.length,
            accessed_at=stored.at,
        )


def lists_sources(hint: Any) -> bool:
    """Whether a field is a list of sources, or may be one."""
    if get_origin(hint) in (Union, UnionType):
        return any(map(lists_sources, get_args(hint)))
    return get_origin(hint) in (list, tuple, Sequence) and SourceRecord in get_args(hint)


def without_sources(document: Json, content_ids: set[str] | None) -> Iterator[PayloadChange]:
    """The changes that remove the sources of some contents from a payload; None removes all sources.

    Sources are recognised by their fields, because the payload's type is unknown for a run that ended long ago.
    """
    fields = {field.name for field in dataclasses.fields(SourceRecord)}
    for name, value in document.items():
        if not (isinstance(value, list) and all(isinstance(item, dict) and item.keys() == fields for item in value)):
            continue
        sources: list[Json] = value
        left = [] if content_ids is None else [each for each in sources if each["content_id"] not in content_ids]
        if len(left) < len(sources):
            yield PayloadChange(path=(name,), value=left)
