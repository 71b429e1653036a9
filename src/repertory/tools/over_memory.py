"""Tools for the agent's memory: store, list, read and delete items, return to a snapshot, merge sub-agents' changes."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import msgspec

from repertory._choices import Positive, check_type
from repertory._counting import counted
from repertory._cutting import clip
from repertory.errors import (
    ConfigurationError,
    ItemChanged,
    ItemNotFound,
    MemoryStoreError,
    RecordRefused,
    ToolFailed,
    ToolRetry,
)
from repertory.llm.messages import Text
from repertory.memory.handle import Memory
from repertory.memory.items import Item, Transform, TransformKind
from repertory.memory.merging import Conflict, MergeReport, Prefer
from repertory.record.items import ItemQuery
from repertory.record.memory_records import ItemInfo
from repertory.tools.context import ToolContext
from repertory.tools.decorator import Tool, tool
from repertory.tools.media import media_block
from repertory.tools.output import ToolOutput
from repertory.tools.pages import page_note, take_page

_LABEL: Final = 1_000  # characters shown of a source, of the tags, …; room for any address
_SIDE: Final = 300  # characters of each side of a conflict: enough to choose by, and memory_retrieve gives the rest


def memory_tools(*, read_only: bool = False) -> list[Tool]:
    """Make the tools for the memory that the run may use.

    ``memory_query`` and ``memory_retrieve`` read. Unless ``read_only``, there are also ``memory_store``,
    ``memory_clear``, ``memory_snapshot`` and ``memory_restore``, and ``memory_merge`` for an agent whose sub-agents
    have snapshots of its memory.

    Raises:
        ConfigurationError: ``read_only`` is neither True nor False.
    """
    check_type("memory_tools: read_only", read_only, bool, "True or False")
    reading: list[Tool] = [
        tool(_query, name="memory_query", effect="pure", repeatable=False),
        tool(_retrieve, name="memory_retrieve", effect="pure", repeatable=False),
    ]
    if read_only:
        return reading
    return [
        tool(_store, name="memory_store", effect="idempotent"),
        *reading,
        tool(_clear, name="memory_clear", effect="unsafe"),
        tool(_snapshot, name="memory_snapshot", effect="pure", repeatable=False),
        tool(_restore, name="memory_restore", effect="unsafe"),
        tool(_merge, name="memory_merge", effect="idempotent"),
    ]


@contextmanager
def _memory_of(context: ToolContext) -> Generator[Memory]:
    """The run's memory; its errors become errors for the model: those that it can fix itself, and those it cannot."""
    memory = context.need_memory()
    try:
        yield memory
    except (ItemNotFound, RecordRefused, ConfigurationError) as error:
        raise ToolRetry(str(error)) from error
    except MemoryStoreError as error:
        raise ToolFailed(str(error)) from error


async def _store(
    content: Annotated[str, msgspec.Meta(min_length=1)] | dict[str, Any] | list[Any],
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
        content: What to keep: text, or structured data.
        type: What kind of thing it is: action_result, web_content, database_result or custom.
        source: Where it comes from, such as path:line or an address.
        tags: Words to find it by.
        related_to: Ids of items it belongs to.
    """
    # The same id for every attempt at this call, so that a repetition after a crash finds what it wrote before.
    item_id = f"item-{context.idempotency_key[:16]}" if context.idempotency_key else ""
    metadata = {"run": context.run_id, "agent": context.agent, "iteration": context.iteration}
    with _memory_of(context) as memory:
        try:
            item = await memory.store(
                content,
                type=type,
                item_id=item_id,
                source=source,
                tags=tags or (),
                related_to=related_to or (),
                metadata=metadata,
                if_position=0 if item_id else None,
            )
        except ItemChanged:
            item = await memory.retrieve(item_id)
    facts = {"item_id": item.item_id, "size": item.size}
    return ToolOutput(f"stored as {item.item_id}", source_type="memory", facts=facts)


async def _query(
    context: ToolContext,
    *,
    text: str = "",
    type: str | None = None,  # noqa: A002
    source: str | None = None,
    tags: list[str] | None = None,
    related_to: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: Annotated[int, msgspec.Meta(ge=1, le=200)] = 20,
) -> ToolOutput:
    """List what is in memory, the newest or best first: ids and what they are about, not the contents.

    Args:
        text: Words that must all occur in the content or the tags; the best matches come first.
        type: Only items of this type.
        source: Only items from this source.
        tags: Only items with all of these tags.
        related_to: Only items that belong to the item with this id.
        since: Only items stored at this time or later (ISO 8601).
        until: Only items stored before this time.
        limit: How many to list at most.
    """
    query = ItemQuery(
        types=() if type is None else (type,),
        sources=() if source is None else (source,),
        tags=tuple(tags or ()),
        related_to=() if related_to is None else (related_to,),
        since=_seconds(since),
        until=_seconds(until),
        text=text,
        limit=limit + 1,
    )
    with _memory_of(context) as memory:
        found = await memory.query(query)
    items = found[:limit]
    more = len(found) > limit
    head = counted(len(items), "item")
    if more:
        head = f"the {'best' if text else 'newest'} {head}; there are more"
    facts = {"listed": len(items), "more": more}
    return ToolOutput("\n".join([head, *map(_line, items)]), source_type="memory", facts=facts)


async def _retrieve(
    id: str,  # noqa: A002 - what the other tools call it
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
            n characters; first_n and last_n: so many characters; filtered: the lines with any of words. Of
            structured data they shape its JSON; of images and files there is only full.
        n: Characters.
        words: Words to look for.
        page: Which page of a long answer.
    """
    with _memory_of(context) as memory:
        item = await memory.retrieve(id, Transform(kind=transform, n=n, words=words))
    line = _line(item) + ("" if transform == "full" else f", {transform}")
    if isinstance(item.content, bytes):
        return _show_bytes(item, item.content, line)
    text = item.text
    start, end, pages = take_page(text, page)
    facts = {"item_id": id, "page": page, "pages": pages}
    return ToolOutput(
        f"{line}\n\n{text[start:end]}{page_note(page, pages)}",
        source_type="memory",
        format="json" if item.format == "json" and transform == "full" and pages == 1 else "text",
        facts=facts,
        as_is=True,
    )


def _show_bytes(item: Item, content: bytes, line: str) -> ToolOutput:
    facts = {"item_id": item.item_id, "media_type": item.media_type}
    try:  # a block that the API refuses would spoil this request and every later one
        block = media_block(content, item.media_type)
    except ValueError as error:
        return ToolOutput(f"{line}\n\n{item.text} It cannot be shown here: {error}", source_type="memory", facts=facts)
    return ToolOutput((Text(line), block), source_type="memory", facts=facts)


async def _clear(context: ToolContext, *, ids: list[str] | None = None) -> ToolOutput:
    """End items of memory that are wrong or done with. Without ids: all of them.

    Args:
        ids: The items to end.
    """
    with _memory_of(context) as memory:
        if ids is None:
            return ToolOutput(f"ended all of memory, {counted(await memory.clear(), 'item')}", source_type="memory")
        ended = await memory.move(dict.fromkeys(ids))
    missing = [item_id for item_id in dict.fromkeys(ids) if item_id not in ended]
    no_item = f"memory has no item {', '.join(map(repr, missing))}" if missing else ""
    if not ended:
        raise ToolRetry(f"{no_item or 'ids names nothing'}; memory_query lists what there is")
    said = f"ended {', '.join(ended)}"
    return ToolOutput(f"{said}; {no_item}" if missing else said, source_type="memory")


async def _snapshot(context: ToolContext) -> ToolOutput:
    """Note how memory is now, to come back to it with memory_restore."""
    with _memory_of(context) as memory:
        position = await memory.snapshot()
    text = f"memory is at position {position}; memory_restore with this position brings back what it holds now"
    return ToolOutput(text, source_type="memory", facts={"position": position})


async def _restore(position: int, context: ToolContext) -> ToolOutput:
    """Make memory again what it was at a position; what was stored since is ended.

    Args:
        position: What memory_snapshot answered.
    """
    with _memory_of(context) as memory:
        changed = await memory.restore(position)
    said = f"memory is as it was at position {position}; {counted(changed, 'item')} changed"
    return ToolOutput(said, source_type="memory")


async def _merge(context: ToolContext, *, scope: str = "", prefer: Prefer = "neither") -> ToolOutput:
    """Take over what a sub-agent changed in its snapshot of your memory. Without a scope: list those there are.

    Args:
        scope: The scope, or the run that it belongs to.
        prefer: Whose version to keep where both of you changed an item: child (the sub-agent's), parent (yours),
            both (the sub-agent's as an item of its own beside yours), or neither, which only reports it.
    """
    with _memory_of(context) as memory:
        snapshots = await memory.snapshots()
        listed = "\n".join(f"{each.scope_id} · of run {each.owner}" for each in snapshots)
        if not scope:
            return ToolOutput(listed or "no sub-agent has a snapshot of this memory", source_type="memory")
        child = next((each for each in snapshots if scope in (each.scope_id, each.owner)), None)
        if child is None:
            raise ToolRetry(f"no snapshot of this memory is {scope!r}; there are: {listed or 'none'}")
        report = await child.merge(prefer=prefer)
    facts = {"written": len(report.written), "conflicts": len(report.conflicts)}
    return ToolOutput(_merged(child.scope_id, report), source_type="memory", facts=facts)


def _merged(scope_id: str, report: MergeReport) -> str:
    if not (report.written or report.deleted or report.conflicts):
        changed = counted(report.unchanged, "item")
        return f"nothing to take over from {scope_id}: what it changed ({changed}) is here already"
    lines = [f"merged {scope_id}: {counted(len(report.conflicts), 'conflict')}"]
    lines += [f"written: {', '.join(report.written)}"] if report.written else []
    lines += [f"ended: {', '.join(report.deleted)}"] if report.deleted else []
    lines += [f"here already: {report.unchanged:,}"] if report.unchanged else []
    return "\n".join([*lines, *map(_conflict, report.conflicts)])


def _conflict(conflict: Conflict) -> str:
    sides = {"before": conflict.base, "yours": conflict.parent, "the sub-agent's": conflict.child}
    kept = {"child": "took the sub-agent's", "parent": "kept yours", "both": "kept both", "neither": "left open"}
    said = [f"  {side}: {'(none)' if item is None else item.text[:_SIDE]}" for side, item in sides.items()]
    return "\n".join([f"conflict about {conflict.item_id}: {kept[conflict.taken]}", *said])


def _seconds(time: datetime | None) -> float | None:
    """Seconds since 1970; a time without a zone is UTC."""
    if time is None:
        return None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _line(item: ItemInfo) -> str:
    """One line about an item, whatever its writer made of its labels: no label can pass for a line about another."""
    kind = {"json": ["JSON"], "bytes": [item.media_type or "bytes"]}.get(item.format, [])
    at = f"{datetime.fromtimestamp(item.at, UTC):%Y-%m-%d %H:%M} UTC"
    labels = [item.type, *kind, counted(item.size, "byte"), at]
    labels += [f"from {item.source}"] if item.source else []
    labels += [f"tags {', '.join(item.tags)}"] if item.tags else []
    labels += [f"related to {', '.join(item.related_to)}"] if item.related_to else []
    return " · ".join([item.item_id, *(clip(label, _LABEL) for label in labels)])
