"""Tools that bring back what is no longer in view: earlier messages of the run, and stored contents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Annotated, TypeAlias

import msgspec

from repertory._choices import Natural, Positive, check_number, show
from repertory._counting import counted
from repertory._excerpts import Lines, excerpts_around, find_words
from repertory.errors import ToolFailed, ToolRetry
from repertory.llm.messages import Json, Text, ToolUse
from repertory.record.entries import Entry, Part, Retrieved
from repertory.record.records import ContentStored
from repertory.tools.context import RunRecord, ToolContext
from repertory.tools.decorator import Tool, tool
from repertory.tools.output import ToolOutput
from repertory.tools.pages import page_note, take_page
from repertory.tools.patterns import search_lines
from repertory.tools.retrieval_guard import RETRIEVALS, check_calls, check_parts
from repertory.tools.retrieval_text import hint_of, line_range, media_of, parts_of, render, words_in
from repertory.tools.threads import compute_limiter, run_in_thread

_Found: TypeAlias = tuple[str, list[Part], Json]  # what is shown, which part that is, and facts of it


def context_tools(*, max_repeats: int = 5) -> list[Tool]:
    """Make the tools ``context_retrieve`` and ``retrieve_content``. They keep no state and serve any number of runs.

    Args:
        max_repeats: How often the very same retrieval may be repeated before it is refused. Also how often, within 20
            iterations, the same text may be brought back again by other arguments.

    Raises:
        ConfigurationError: ``max_repeats`` is not a whole number of at least 0.
    """
    check_number("context_tools: max_repeats", max_repeats, int, least=0)

    async def context_retrieve(
        context: ToolContext,
        *,
        run: str = "",
        iteration: Natural | None = None,
        position: Natural | None = None,
        tool_call_id: str | None = None,
        tool_name: str | None = None,
        topic: str | None = None,
        start_line: Positive = 1,
        end_line: Natural = 0,
        hint: bool = False,
        limit: Annotated[int, msgspec.Meta(ge=1, le=50)] = 5,
        page: Positive = 1,
    ) -> ToolOutput:
        """Get earlier messages of this conversation back, word for word: whole, or some lines of one.

        Use it when a result above is shortened, left out or summarised and you need its exact words again. Give at
        least one of iteration, position, tool_call_id, tool_name and topic; together they narrow each other down.

        Args:
            run: Look into this sub-agent's run instead; an unknown id lists them.
            iteration: Everything said and done in this iteration.
            position: The message at this position.
            tool_call_id: The result of this call.
            tool_name: Results of this tool, the newest first to be kept.
            topic: Messages about these words, the best first to be kept.
            start_line: First line wanted of a single message.
            end_line: Last line; 0 for its end.
            hint: Only tell positions, lengths and the gist.
            limit: How many messages at most.
            page: Which page of a long answer.
        """
        repeated = check_calls(context, max_repeats)
        if iteration is None and position is None and not (tool_call_id or tool_name or topic or run):
            raise ToolRetry("give at least one of iteration, position, tool_call_id, tool_name and topic")
        record = await _record_of(context, run)
        entries = record.snapshot() if run else _earlier(context)
        matching = [
            entry
            for entry in entries
            if (iteration is None or entry.iteration == iteration)
            and (position is None or entry.position == position)
            and (not tool_call_id or _is_about_call(entry, tool_call_id))
            and (not tool_name or entry.tool == tool_name)
            # what a retrieval brought back is also in the record at the place where it came from
            and (entry.tool not in RETRIEVALS or entry.tool == tool_name or bool(tool_call_id) or position is not None)
        ]
        lines = (start_line, end_line) if start_line > 1 or end_line else None
        if lines is not None and len(matching) > 1:
            matching = [entry for entry in matching if entry.tool_call_id is not None]
            if len(matching) != 1:
                raise ToolRetry(f"lines are those of one message, and {len(matching)} results fit; give its position")
        if topic:
            hits = await record.search(topic, limit=max(200, limit))
            rank = {hit.position: place for place, hit in enumerate(hits)}
            about = [entry for entry in matching if entry.position in rank and not _only_asks(entry, topic)]
            matching = sorted(about, key=lambda entry: rank[entry.position])
        else:
            matching.reverse()
        if not matching:
            text = f"{repeated}no earlier message fits. {_contents_of(entries)}"
            return ToolOutput(text, source_type="retrieval", facts={"found": 0}, retrieved=Retrieved())
        chosen = sorted(matching[:limit], key=lambda entry: entry.position)
        render_each = hint_of if hint else partial(render, lines=lines)
        shown = [await render_each(entry, context.contents) for entry in chosen]
        if run:  # the positions are those of that run's ledger
            shown = [
                piece if piece.source == entry.content_id else piece._replace(source=f"{run} {piece.source}")
                for piece, entry in zip(shown, chosen, strict=True)
            ]
        text = "\n\n".join(piece.text for piece in shown)
        start, end, pages = take_page(text, page)
        head = f"{repeated}{counted(len(matching), 'message')} found"
        if len(chosen) < len(matching):
            head += f", {'the best' if topic else 'the newest'} {len(chosen)} here"
        parts = parts_of(shown, start, end, at=len(head) + 2)
        check_parts(context, parts, max_repeats)
        told = f"{head}\n\n{text[start:end]}{page_note(page, pages)}"
        media = [] if hint or lines is not None or page > 1 else [part for each in chosen for part in media_of(each)]
        return ToolOutput(
            (Text(told), *media) if media else told,
            source_type="retrieval",
            facts={"found": len(matching), "page": page, "pages": pages, **({"run": run} if run else {})},
            retrieved=Retrieved(
                positions=() if run else tuple(entry.position for entry in chosen), parts=tuple(parts), hint=hint
            ),
        )

    async def retrieve_content(
        content_id: str,
        context: ToolContext,
        *,
        start_line: Positive = 1,
        end_line: Positive | None = None,
        search: str | None = None,
        regex: bool = False,
        limit: Annotated[int, msgspec.Meta(ge=1, le=20)] = 5,
        page: Positive = 1,
    ) -> ToolOutput:
        """Read a stored content by its citation id: all of it, some lines, or the passages about some words.

        Search first: it costs a fraction of reading everything.

        Args:
            content_id: The citation id, as the shortened result names it.
            start_line: First line to read.
            end_line: Last line to read; by default the last there is.
            search: Words to look for; the answer is the passages where most of them stand together.
            regex: Whether search is one regular expression (Python syntax), matched line by line.
            limit: How many passages at most.
            page: Which page of a long answer.
        """
        repeated = check_calls(context, max_repeats)
        if regex and not search:
            raise ToolRetry("regex says how to read search, and search is empty; give the expression to look for")
        stored = await context.need_contents().read_content(content_id)
        if stored is None:
            raise ToolRetry(f"there is no content {show(content_id)}; take the citation id from a result above")
        if not stored.body and stored.length:
            raise ToolFailed(f"content {content_id!r} ({stored.length:,} characters) was cleaned up and is gone")
        if search:
            text, parts, facts = await _passages(stored, search, regex, limit, repeated)
        else:
            text, parts, facts = _lines(stored, start_line, end_line, page, repeated)
        # searches that share a common word also share the passages after the best one
        check_parts(context, parts[:1] if search and not regex else parts, max_repeats)
        return ToolOutput(
            text,
            source_type="retrieval",
            url=stored.url,
            format=stored.format,
            facts=facts,
            retrieved=Retrieved(content_id=content_id, parts=tuple(parts)),
        )

    make = tool(effect="pure", repeatable=False)
    return [make(context_retrieve), make(retrieve_content)]


async def _record_of(context: ToolContext, run_id: str) -> RunRecord:
    """The record to search: the run's own, or that of another run which it may read."""
    record = context.need_record()
    found = await record.of_run(run_id) if run_id else record
    if found is None:
        others = ", ".join(record.others()) or "none"
        raise ToolRetry(f"there is no run {show(run_id)} that you may look into; there are {others}")
    return found


def _earlier(context: ToolContext) -> Sequence[Entry]:
    """The record without the turn that makes this call."""
    entries = context.need_record().snapshot()
    end = len(entries)
    while end and entries[end - 1].iteration >= context.iteration > 0:
        end -= 1
    return entries[:end]


def _only_asks(entry: Entry, topic: str) -> bool:
    """Whether a turn mentions a topic only because it looks it up."""
    calls = [block for block in entry.content if isinstance(block, ToolUse) and block.name in RETRIEVALS]
    others = [block for block in entry.content if block not in calls]
    return bool(calls) and not find_words("\n".join(words_in(others)), topic, limit=1)


def _is_about_call(entry: Entry, call_id: str) -> bool:
    if entry.tool_call_id is not None:
        return entry.tool_call_id == call_id
    return any(isinstance(block, ToolUse) and block.id == call_id for block in entry.content)


def _contents_of(entries: Sequence[Entry]) -> str:
    """A list of what could be asked for instead."""
    if not entries:
        return "There is none yet."
    tools = Counter(entry.tool for entry in entries if entry.tool)
    named = ", ".join(f"{name} ({count})" for name, count in sorted(tools.items())) or "none"
    return f"There are iterations {entries[0].iteration} to {entries[-1].iteration}; results by tool: {named}."


def _lines(stored: ContentStored, start_line: int, end_line: int | None, page: int, repeated: str) -> _Found:
    lines = Lines(stored.body)
    first, last = line_range(f"content {stored.content_id!r}", lines.count, start_line, end_line or 0)
    begin, finish = lines.slice(first, last)
    start, end, pages = take_page(stored.body[begin:finish], page)
    text = stored.body[begin + start : begin + end]
    head = f"{repeated}{_about(stored)}: {lines.locate(begin + start, begin + end)}\n\n"
    parts = [Part(stored.content_id, begin + start, begin + end, len(head))]
    return f"{head}{text}{page_note(page, pages)}", parts, {"page": page, "pages": pages}


async def _passages(stored: ContentStored, search: str, regex: bool, limit: int, repeated: str) -> _Found:
    total = 0
    async with compute_limiter():
        if regex:
            find = partial(search_lines, search, [stored.body], every=True)
            (matches,) = await run_in_thread(find, name="tool retrieve_content")
            total, starts = matches.total, Lines(stored.body).starts
            places = [starts[line] + offset for line, offset in matches.places]
            found = excerpts_around(stored.body, places, limit=limit)
        else:  # in two million characters this takes from 0.05 to 0.5 s
            find_all = partial(find_words, stored.body, search, limit=limit)
            found = await run_in_thread(find_all, name="tool retrieve_content")
    shown = f"{repeated}{_about(stored)}: {len(found) or 'no'} passage{'s' * (len(found) != 1)} for {show(search)}"
    parts: list[Part] = []
    for piece in found:
        # a pattern matches or does not; only of words can some be missing
        times = f"matches {piece.matches}"
        how = f"{times} of {total}" if regex else f"relevance {piece.relevance:.2f}, {times}"
        shown += f"\n\n--- {piece.location} · {how}\n"
        parts.append(Part(stored.content_id, piece.start, piece.start + len(piece.text), len(shown)))
        shown += piece.text
    return shown, parts, {"shown": len(found)}


def _about(stored: ContentStored) -> str:
    marks = [mark for mark in (stored.source_type, stored.source, stored.url) if mark]
    return f"{stored.content_id} ({', '.join(marks)}; {len(stored.body):,} characters)"
