"""The content store: whole results on disk, citations in the conversation."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import anyio.to_thread
import msgspec

from repertory._ids import new_id
from repertory.errors import ContentNotFound
from repertory.llm.messages import Json, text_of
from repertory.memory.patterns import SEARCH_TIMEOUT, find_pattern
from repertory.record.excerpts import EXCERPT, Excerpt, Lines, cut_end, excerpts_around, find_words, locate_beginning
from repertory.record.journal import Journal
from repertory.record.records import ContentStored

RETENTION: Final = 3600.0  # seconds after the end of the run


class Citation(msgspec.Struct, frozen=True, kw_only=True):
    """What stands for a content in a conversation.

    Attributes:
        content_id: Under which the whole is stored.
        excerpt: Its beginning, at most 500 characters.
        location: Which part the excerpt is: ``lines 1-12 of 340``.
        length: Characters of the whole.
        source: The tool or other origin.
        url: Where it came from; "" where it has no address.
    """

    content_id: str
    excerpt: str
    location: str
    length: int
    source: str
    source_type: str
    url: str = ""
    format: str = "text"


class Passage(msgspec.Struct, frozen=True, kw_only=True):
    """Some lines of a content."""

    content_id: str
    text: str
    location: str
    first: int
    last: int
    lines: int


async def read_whole(journal: Journal, content_id: str) -> ContentStored | None:
    """One stored content; where it was cleaned up, from the ledger, if that holds all of it.

    Returns:
        The content; with an empty body, though its length is not 0, where it cannot be brought back; None where there
        never was one of this id.
    """
    stored = await journal.read_content(content_id)
    if stored is None or stored.body or not stored.length:
        return stored
    for entry in await journal.read_entries(stored.run_id):
        # A repeated call shows the same result under a note of its own.
        if entry.content_id == content_id and not entry.original_length and not entry.deduplicated_from:
            return msgspec.structs.replace(stored, body=text_of(entry.content))
    return stored


class ContentStore:
    """Stores whole results in the journal and finds things in them."""

    def __init__(
        self, journal: Journal, *, retention: float | None = RETENTION, clock: Callable[[], float] = time.time
    ) -> None:
        """Use a journal as a content store.

        Args:
            journal: Where contents are kept.
            retention: Seconds that a content is kept after the end of its run; None keeps it for good. Deleting
                is up to ``Journal.delete_expired_contents``.
            clock: Seconds since 1970.
        """
        self._journal = journal
        self._retention = retention
        self._clock = clock

    def prepare(
        self,
        body: str,
        *,
        run_id: str,
        source: str,
        source_type: str = "tool",
        url: str = "",
        format: str = "text",  # noqa: A002 - the name of the thing
        metadata: Json | None = None,
    ) -> tuple[Citation, ContentStored]:
        """Make a citation at once, and the record that must become durable with what cites it.

        Waits for nothing: give the record to ``Ledger.append(..., also=[record])``.

        Args:
            body: The whole, untouched.
            run_id: The run it belongs to.
            source: The tool or other origin.
            source_type: ``web``, ``database``, ``file``, ``search``, ``tool``, …
            url: Where it came from.
            format: ``text``, ``markdown``, ``json``, ``code``, …
            metadata: The caller's own.
        """
        record = ContentStored(
            content_id=new_id("content"),
            run_id=run_id,
            source_type=source_type,
            source=source,
            url=url,
            format=format,
            body=body,
            length=len(body),
            at=self._clock(),
            retention=self._retention,
            metadata=metadata or {},
        )
        end = cut_end(body, EXCERPT)
        citation = Citation(
            content_id=record.content_id,
            excerpt=body[:end],
            location=locate_beginning(body, end),
            length=len(body),
            source=source,
            source_type=source_type,
            url=url,
            format=format,
        )
        return citation, record

    async def store(
        self,
        body: str,
        *,
        run_id: str,
        source: str,
        source_type: str = "tool",
        url: str = "",
        format: str = "text",  # noqa: A002
        metadata: Json | None = None,
    ) -> Citation:
        """Store a content by itself and wait until it is durable; arguments as for ``prepare``."""
        citation, record = self.prepare(
            body, run_id=run_id, source=source, source_type=source_type, url=url, format=format, metadata=metadata
        )
        await self._journal.write([record])
        return citation

    async def sources(self, run_id: str) -> list[ContentStored]:
        """What a run has stored, in order, without the bodies."""
        return await self._journal.read_contents(run_id)

    async def read(self, content_id: str) -> ContentStored:
        """A whole content.

        Raises:
            ContentNotFound: There is none of this id, or it was cleaned up and no ledger holds it.
        """
        content = await read_whole(self._journal, content_id)
        if content is None:
            raise ContentNotFound(f"there is no content {content_id!r}")
        if not content.body and content.length:
            raise ContentNotFound(f"content {content_id!r} ({content.length:,} characters) was cleaned up and is gone")
        return content

    async def read_lines(self, content_id: str, first: int = 1, last: int | None = None) -> Passage:
        """Lines of a content.

        Args:
            content_id: Which one.
            first: The first line, from 1; taken as the nearest that there is.
            last: The last line, included; None or too large means the content's last.
        """
        body = (await self.read(content_id)).body
        lines = Lines(body)
        first = min(max(1, first), lines.count)
        last = lines.count if last is None else min(max(first, last), lines.count)
        start, end = lines.slice(first, last)
        return Passage(
            content_id=content_id,
            text=body[start:end],
            location=f"lines {first}-{last} of {lines.count}",
            first=first,
            last=last,
            lines=lines.count,
        )

    async def search(self, content_id: str, words: str, *, limit: int = 5) -> list[Excerpt]:
        """The places where most of the words stand together, best first."""
        return find_words((await self.read(content_id)).body, words, limit=limit)

    async def search_pattern(
        self, content_id: str, pattern: str, *, limit: int = 5, search_timeout: float = SEARCH_TIMEOUT
    ) -> list[Excerpt]:
        """The places where a regular expression matches, in order.

        Raises:
            PatternRefused: It is no regular expression, or took more than ``search_timeout`` seconds.
        """
        body = (await self.read(content_id)).body
        # A thread that waits for the process: its time limit is real also where the event loop's clock is not.
        places = await anyio.to_thread.run_sync(lambda: find_pattern(body, pattern, timeout=search_timeout))
        return excerpts_around(body, places, limit=limit)
