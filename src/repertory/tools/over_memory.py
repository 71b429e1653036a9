"""Tools over the agent's memory: store what should last, list it, read it again."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import msgspec

from repertory.context import ResultPolicy
from repertory.errors import ItemNotFound, MemoryStoreError, RecordRefused, ToolFailed, ToolRetry
from repertory.memory.items import ItemInfo, ItemQuery, Transform, TransformKind
from repertory.tools.context import ToolContext
from repertory.tools.decorator import Tool, tool
from repertory.tools.output import ToolOutput
from repertory.tools.pages import page_note, take_page

if TYPE_CHECKING:
    from repertory.memory import Memory

Positive = Annotated[int, msgspec.Meta(ge=1)]


def memory_tools() -> list[Tool]:
    """Make ``memory_store``, ``memory_query`` and ``memory_retrieve``, over the memory that the run may use."""

    async def memory_store(
        content: Annotated[str, msgspec.Meta(min_length=1)],
        context: ToolContext,
        *,
        type: str = "custom",  # noqa: A002 - the name of the thing
        source: str = "",
        tags: list[str] | None = None,
        related_to: list[str] | None = None,
    ) -> ToolOutput:
        """Keep something for later: a finding, a decision, a fact you will need again. It outlasts this conversation.

        Store one thing at a time, worded so that it can be understood on its own.

        Args:
            content: What to keep.
            type: What kind of thing it is: action_result, web_content, database_result or custom.
            source: Where it comes from, such as path:line or an address.
            tags: Words to find it by.
            related_to: Ids of items it belongs to.
        """
        memory = context.need_memory()
        # The same id for every attempt at this call: made again after a crash, it finds what it wrote before.
        item_id = f"item-{context.idempotency_key[:16]}" if context.idempotency_key else ""
        try:
            item = await _find(memory, item_id) or await memory.store(
                content,
                type=type,
                item_id=item_id,
                source=source,
                tags=tags or (),
                related_to=related_to or (),
                metadata={"run": context.run_id, "agent": context.agent, "iteration": context.iteration},
            )
        except RecordRefused as error:
            raise ToolRetry(str(error)) from error
        except MemoryStoreError as error:
            raise ToolFailed(str(error)) from error
        facts = {"item_id": item.item_id, "size": item.size}
        return ToolOutput(f"stored as {item.item_id}", source_type="memory", facts=facts)

    async def memory_query(
        context: ToolContext,
        *,
        text: str = "",
        type: str | None = None,  # noqa: A002
        source: str | None = None,
        tags: list[str] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: Annotated[int, msgspec.Meta(ge=1, le=200)] = 20,
    ) -> ToolOutput:
        """List what is in memory, newest first: ids and what they are about, not the contents. No filter lists all.

        Args:
            text: Words that must all occur in the content or the tags.
            type: Only items of this type.
            source: Only items from this source.
            tags: Only items with all of these tags.
            since: Only items stored at this time or later (ISO 8601).
            until: Only items stored before this time.
            limit: How many to list at most.
        """
        query = ItemQuery(
            types=() if type is None else (type,),
            sources=() if source is None else (source,),
            tags=tuple(tags or ()),
            since=_seconds(since),
            until=_seconds(until),
            text=text,
        )
        items = await context.need_memory().query(query)
        head = f"{len(items):,} item{'s' * (len(items) != 1)}"
        if len(items) > limit:
            head += f", the newest {limit} listed"
        facts = {"found": len(items), "listed": min(len(items), limit)}
        lines = [head, *(_line(item) for item in items[:limit])]
        return ToolOutput("\n".join(lines), source_type="memory", facts=facts)

    async def memory_retrieve(
        id: str,  # noqa: A002 - what the other two tools call it
        context: ToolContext,
        *,
        transform: TransformKind = "full",
        n: Positive = 500,
        words: str = "",
        page: Positive = 1,
    ) -> ToolOutput:
        """Read an item of memory, whole or in part. Take the id from memory_store or memory_query.

        Args:
            id: The item's id.
            transform: full; excerpt: n characters where words stand together; summary: first sentences, up to
                n characters; first_n and last_n: so many characters; filtered: the lines with any of words.
            n: Characters.
            words: Words to look for.
            page: Which page of a long answer.
        """
        try:
            item = await context.need_memory().retrieve(id, Transform(kind=transform, n=n, words=words))
        except ItemNotFound:
            raise ToolRetry(f"memory has no item {id!r}; memory_query lists what it has") from None
        start, end, pages = take_page(item.content, page)
        shape = "" if transform == "full" else f", {transform}"
        text = f"{_line(item)}{shape}\n\n{item.content[start:end]}{page_note(page, pages)}"
        facts = {"item_id": id, "page": page, "pages": pages}
        return ToolOutput(text, source_type="memory", facts=facts, paged=True)

    as_it_is = ResultPolicy(cite_over=0, cap_tokens=0, cap_chars=0)
    return [
        tool(memory_store, effect="idempotent"),
        tool(memory_query, effect="pure", repeatable=False),
        tool(memory_retrieve, effect="pure", repeatable=False, policy=as_it_is),
    ]


async def _find(memory: Memory, item_id: str) -> ItemInfo | None:
    """An item that an earlier attempt wrote; None where there was none."""
    if not item_id:
        return None
    try:
        return await memory.retrieve(item_id, Transform(kind="first_n", n=0))
    except ItemNotFound:
        return None


def _seconds(time: datetime | None) -> float | None:
    """Seconds since 1970; a time without a zone is UTC."""
    if time is None:
        return None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _line(item: ItemInfo) -> str:
    marks = [item.item_id, item.type, f"{item.size:,} characters"]
    marks += [f"{datetime.fromtimestamp(item.at, UTC):%Y-%m-%d %H:%M} UTC"]
    marks += [f"from {item.source}"] if item.source else []
    marks += [f"tags {', '.join(item.tags)}"] if item.tags else []
    marks += [f"related to {', '.join(item.related_to)}"] if item.related_to else []
    return " · ".join(marks)
