"""Tools that bring back what is no longer in view: earlier messages of the run, and stored contents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Final

import msgspec

from repertory.context import ResultPolicy, compact
from repertory.errors import PatternRefused, ToolFailed, ToolRetry
from repertory.llm.messages import Image, RawBlock, ToolUse, text_of
from repertory.memory.entries import Entry
from repertory.memory.excerpts import Lines, excerpts_around, find_words
from repertory.memory.patterns import find_pattern
from repertory.memory.records import ContentStored
from repertory.tools.context import ContentReader, ToolContext
from repertory.tools.decorator import Tool, tool
from repertory.tools.output import ToolOutput
from repertory.tools.pages import page_note, take_page
from repertory.tools.repeats import arguments_digest
from repertory.tools.threads import run_in_thread

Positive = Annotated[int, msgspec.Meta(ge=1)]
Natural = Annotated[int, msgspec.Meta(ge=0)]

CONTEXT_RETRIEVE: Final = "context_retrieve"
RETRIEVE_CONTENT: Final = "retrieve_content"
RETRIEVALS: Final = frozenset({CONTEXT_RETRIEVE, RETRIEVE_CONTENT})

# A page has its bound already, and storing what comes out of the store would only double it.
_HINT_CHARS: Final = 200
_AS_IT_IS: Final = ResultPolicy(cite_over=0, cap_tokens=0, cap_chars=0)


def context_tools(*, max_repeats: int = 5) -> list[Tool]:
    """Make ``context_retrieve`` and ``retrieve_content``. They keep no state and serve any number of runs.

    Args:
        max_repeats: How often the very same retrieval is answered again before it is refused.
    """

    async def context_retrieve(
        context: ToolContext,
        *,
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
        repeated = _check_repeats(context, max_repeats)
        if iteration is None and position is None and not tool_call_id and not tool_name and not topic:
            raise ToolRetry("give at least one of iteration, position, tool_call_id, tool_name and topic")
        entries = _earlier(context)
        matching = [
            entry
            for entry in entries
            if (iteration is None or entry.iteration == iteration)
            and (position is None or entry.position == position)
            and (not tool_call_id or _is_about_call(entry, tool_call_id))
            and (not tool_name or entry.tool == tool_name)
            # what a retrieval brought back stands in the record once more, where it came from
            and (entry.tool not in RETRIEVALS or entry.tool == tool_name or bool(tool_call_id) or position is not None)
        ]
        lines = (start_line, end_line) if start_line > 1 or end_line else None
        if lines is not None and len(matching) > 1:
            matching = [entry for entry in matching if entry.tool_call_id is not None]
            if len(matching) != 1:
                raise ToolRetry(f"lines are those of one message, and {len(matching)} results fit; give its position")
        if topic:
            hits = await context.need_record().search(topic, limit=max(200, limit))
            rank = {hit.position: place for place, hit in enumerate(hits)}
            matching = sorted((e for e in matching if e.position in rank), key=lambda e: rank[e.position])
        else:
            matching.reverse()
        if not matching:
            return _retrieved(f"{repeated}no earlier message fits. {_contents_of(entries)}", {"found": 0})
        chosen = sorted(matching[:limit], key=lambda entry: entry.position)
        show = _hint_of if hint else partial(_render, lines=lines)
        text = "\n\n".join([await show(entry, context.contents) for entry in chosen])
        start, end, pages = take_page(text, page)
        head = f"{repeated}{len(matching)} message{'s' * (len(matching) != 1)} found"
        if len(chosen) < len(matching):
            head += f", {'the best' if topic else 'the newest'} {len(chosen)} here"
        facts = {
            "found": len(matching),
            "hinted" if hint else "positions": [entry.position for entry in chosen],
            "page": page,
            "pages": pages,
        }
        return _retrieved(f"{head}\n\n{text[start:end]}{page_note(page, pages)}", facts)

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
        repeated = _check_repeats(context, max_repeats)
        stored = await context.need_contents().read_content(content_id)
        if stored is None:
            raise ToolRetry(f"there is no content {content_id!r}; take the citation id from a result above")
        if not stored.body and stored.length:
            raise ToolFailed(f"content {content_id!r} ({stored.length:,} characters) was cleaned up and is gone")
        if search:
            text, facts = await _passages(stored, search, regex, limit)
        else:
            text, facts = _lines(stored, start_line, end_line, page)
        return _retrieved(repeated + text, {"content_id": content_id, **facts}, stored)

    functions = (context_retrieve, retrieve_content)
    return [tool(function, effect="pure", repeatable=False, policy=_AS_IT_IS) for function in functions]


def _retrieved(text: str, facts: Mapping[str, object], stored: ContentStored | None = None) -> ToolOutput:
    metadata = {"retrieval": True, **facts}
    if stored is None:
        return ToolOutput(text, source_type="retrieval", metadata=metadata)
    return ToolOutput(text, source_type="retrieval", url=stored.url, format=stored.format, metadata=metadata)


def _check_repeats(context: ToolContext, max_repeats: int) -> str:
    """Say how often the very same retrieval was made before; "" for never.

    The record itself is asked, so that the answer is right after a restart too.

    Raises:
        ToolFailed: More than ``max_repeats`` times.
    """
    iterations: list[int] = []
    for entry in () if context.record is None else context.record.snapshot():
        for block in entry.content if entry.role == "assistant" else ():
            if not isinstance(block, ToolUse) or block.name not in RETRIEVALS:
                continue
            if block.id == context.call_id:
                break
            if arguments_digest(block.name, block.input) == context.arguments_digest:
                iterations.append(entry.iteration)
    if not iterations:
        return ""
    times, when = len(iterations), ", ".join(str(number) for number in iterations[-5:])
    if times > max_repeats:
        raise ToolFailed(f"the very same was retrieved {times} times already (iterations {when}), and has not changed")
    return f"[retrieved {times} time{'s' * (times != 1)} before, in iteration {when}: the same answer again]\n"


def _earlier(context: ToolContext) -> Sequence[Entry]:
    """The record without the turn that is asking."""
    entries = context.need_record().snapshot()
    end = len(entries)
    while end and entries[end - 1].iteration >= context.iteration > 0:
        end -= 1
    return entries[:end]


def _is_about_call(entry: Entry, call_id: str) -> bool:
    if entry.tool_call_id is not None:
        return entry.tool_call_id == call_id
    return any(isinstance(block, ToolUse) and block.id == call_id for block in entry.content)


def _contents_of(entries: Sequence[Entry]) -> str:
    """What could be asked for instead."""
    if not entries:
        return "There is none yet."
    tools = Counter(entry.tool for entry in entries if entry.tool)
    named = ", ".join(f"{name} ({count})" for name, count in sorted(tools.items())) or "none"
    return f"There are iterations {entries[0].iteration} to {entries[-1].iteration}; results by tool: {named}."


async def _render(entry: Entry, contents: ContentReader | None, *, lines: tuple[int, int] | None = None) -> str:
    """One message, or some of its lines, from 1; 0 for the last."""
    body, note = await _body(entry, contents)
    length = f"{len(body):,} characters{note}"
    if lines is not None:
        each = body.splitlines(keepends=True)
        first, last = lines[0], min(lines[1] or len(each), len(each))
        if first > last:
            wanted = f"{first} to {lines[1] or last}"
            raise ToolRetry(f"the message at position {entry.position} has {len(each)} lines; {wanted} are none")
        body, length = "".join(each[first - 1 : last]), f"lines {first}-{last} of {len(each)}{note}"
    return f"{_head(entry, length)}\n{body}"


async def _hint_of(entry: Entry, contents: ContentReader | None) -> str:
    """What a message is about, and how long it is."""
    body, note = await _body(entry, contents)
    count = len(body.splitlines())
    head = _head(entry, f"{count} line{'s' * (count != 1)}", f"{len(body):,} characters{note}")
    return f"{head}\n{compact(body, _HINT_CHARS, tool=entry.tool or '')}"


async def _body(entry: Entry, contents: ContentReader | None) -> tuple[str, str]:
    """The whole of a message, and what is missing of it."""
    body = "\n".join(_words(entry))
    if entry.content_id is not None:
        stored = None if contents is None else await contents.read_content(entry.content_id)
        if stored is not None and stored.body:
            return stored.body, ""
        if entry.original_length > len(body):
            return body, f", all that is left of {entry.original_length:,}"
    return body, ""


def _head(entry: Entry, *lengths: str) -> str:
    marks = [f"position {entry.position}", f"iteration {entry.iteration}", entry.kind]
    marks += [mark for mark in (entry.tool, entry.tool_call_id, entry.content_id) if mark]
    return f"--- {' · '.join([*marks, *lengths])}"


def _words(entry: Entry) -> list[str]:
    """The words of an entry, its calls spelled out; reasoning is not among them."""
    lines: list[str] = []
    for block in entry.content:
        if isinstance(block, ToolUse):
            lines.append(f"[call {block.id}] {block.name} {msgspec.json.encode(block.input).decode()}")
        elif isinstance(block, Image | RawBlock):
            lines.append(f"[{'image' if isinstance(block, Image) else block.raw.get('type', 'block')}]")
        elif text := text_of(block):
            lines.append(text)
    return lines


def _lines(stored: ContentStored, start_line: int, end_line: int | None, page: int) -> tuple[str, dict[str, object]]:
    lines = Lines(stored.body)
    last = min(lines.count, end_line or lines.count)
    if start_line > last:
        raise ToolRetry(f"content {stored.content_id!r} has {lines.count} lines; {start_line} to {last} are none")
    begin, finish = lines.slice(start_line, last)
    start, end, pages = take_page(stored.body[begin:finish], page)
    text = stored.body[begin + start : begin + end]
    where = lines.locate(begin + start, begin + end)
    facts: dict[str, object] = {"location": where, "page": page, "pages": pages}
    return f"{_about(stored)}: {where}\n\n{text}{page_note(page, pages)}", facts


async def _passages(stored: ContentStored, search: str, regex: bool, limit: int) -> tuple[str, dict[str, object]]:
    if regex:
        try:
            places = await run_in_thread(lambda: find_pattern(stored.body, search), name="tool retrieve_content")
        except PatternRefused as error:
            raise ToolRetry(str(error)) from error
        found = excerpts_around(stored.body, places, limit=limit)
    else:
        found = find_words(stored.body, search, limit=limit)
    head = f"{_about(stored)}: {len(found) or 'no'} passage{'s' * (len(found) != 1)} for {search!r}"
    parts = [head]
    for piece in found:
        parts.append(f"--- {piece.location} · relevance {piece.relevance:.2f}, matches {piece.matches}\n{piece.text}")
    return "\n\n".join(parts), {"shown": len(found)}


def _about(stored: ContentStored) -> str:
    marks = [mark for mark in (stored.source_type, stored.source, stored.url) if mark]
    return f"{stored.content_id} ({', '.join(marks)}; {len(stored.body):,} characters)"
