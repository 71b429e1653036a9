"""Digests: a text that stands for a stretch of the record, made without a model. Pure and deterministic.

It keeps what the user asked for, what the agent said it found or decided, which calls it made, what failed, and
the names (paths, identifiers, numbers) that a later turn is likely to need; newest first when room is short.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from repertory.context.cutting import first_chars
from repertory.context.names import TROUBLE, best_names, clip, names_in, trouble_lines
from repertory.context.shaping import own_words
from repertory.llm.messages import Json, Text, ToolUse, canonical_json, text_of
from repertory.record.entries import Entry

_CHARS_PER_TOKEN = 4
_SAID_CHARS = 240
_CALL_CHARS = 140
_PREVIOUS_SHARE = 0.4  # of the room, at most, for what an earlier summary says


def digest(
    entries: Sequence[Entry],
    *,
    tokens: int,
    previous: str = "",
    kept: Iterable[int] = (),
    used: Iterable[str] = (),
    retrieval: bool = True,
) -> str:
    """Make the text that stands for some entries.

    Args:
        entries: What it stands for, in order.
        tokens: Bound on the text, at four characters a token.
        previous: What stood for everything before them, if this text is to replace that too.
        kept: Positions that stay in view verbatim, so that the text need not repeat them.
        used: Names that are kept first.
        retrieval: Whether to name the tool that shows the originals.
    """
    room = tokens * _CHARS_PER_TOKEN
    head = digest_head(_span(entries, previous), retrieval=retrieval)
    room -= len(head) + 1
    out = [head]
    if previous:
        body = _merged(previous, int(room * _PREVIOUS_SHARE), used)
        room -= len(body) + 1
        out.append(body)
    skip = set(kept)
    lines = [line for entry in entries if entry.position not in skip for line in _lines(entry)]
    names_room = room // 3
    chosen = _newest_that_fit(lines, room - names_room)
    out.extend(chosen)
    standing = "\n".join(out)
    results = ["\n".join(own_words(entry)) for entry in entries if entry.tool_call_id and entry.position not in skip]
    room = tokens * _CHARS_PER_TOKEN - len(standing) - len("\nnames: ") - 1
    names = best_names(results, room, without=standing, also=used) if room > 20 else []
    if names:
        out.append("names: " + " ".join(names))
    return first_chars("\n".join(out), tokens * _CHARS_PER_TOKEN)


def names_used(entries: Iterable[Entry]) -> set[str]:
    """The names in what the agent said and asked for: those it is likely to use again."""
    found: set[str] = set()
    for entry in entries:
        if entry.role == "assistant":
            for block in entry.content:
                if isinstance(block, Text):
                    found.update(names_in(block.text))
                elif isinstance(block, ToolUse):
                    found.update(names_in(_plain(block.input)))
    return found


def digest_head(span: str, *, retrieval: bool) -> str:
    """The first line of a digest: what it stands for, and where the agent has a tool for that, how to get at it."""
    return f"[digest of {span}; context_retrieve shows the originals]" if retrieval else f"[digest of {span}]"


def _span(entries: Sequence[Entry], previous: str) -> str:
    iterations = [entry.iteration for entry in entries if entry.iteration]
    if previous and iterations:
        return f"iterations 1–{iterations[-1]}"
    return f"iterations {iterations[0]}–{iterations[-1]}" if iterations else "the beginning"


def _merged(previous: str, room: int, used: Iterable[str]) -> str:
    """What an earlier summary says, its head line dropped, made to fit: first lines, then the best names."""
    lines = previous.split("\n")
    lines = [line for line in lines if not line.startswith(("[digest of ", "(older lines"))]
    text = "\n".join(lines)
    if len(text) <= room:
        return text
    short = _newest_that_fit([line for line in lines if not line.startswith("names: ")], room * 2 // 3)
    body = "\n".join(short)
    names = best_names([text], room - len(body) - 8, without=body, also=used)
    return f"{body}\nnames: {' '.join(names)}" if names else body


def _lines(entry: Entry) -> list[str]:
    if entry.role == "assistant":
        lines: list[str] = []
        for block in entry.content:
            if isinstance(block, Text) and block.text.strip():
                lines.append(f"{entry.iteration}. {clip(block.text, _SAID_CHARS)}")
            elif isinstance(block, ToolUse):
                lines.append(f"{entry.iteration}. {call_line(block.name, block.input)}")
        return lines
    if entry.tool_call_id is None:
        words = clip(text_of(entry.content), 2 * _SAID_CHARS)
        return [f"{'user' if entry.kind in ('task', 'user-input') else entry.kind}: {words}"] if words else []
    text = text_of(entry.content)
    if TROUBLE.search(text[:2_000]) or TROUBLE.search(text[-2_000:]):
        return [f"  ! {line}" for line in trouble_lines(text, most=2, width=120)]
    return []


def call_line(name: str, arguments: Json) -> str:
    """One line for a tool call: its name and the beginnings of its arguments."""
    room = _CALL_CHARS
    shown: list[str] = []
    for value in arguments.values():
        piece = clip(value if isinstance(value, str) else canonical_json(value).decode(), max(24, room))
        room -= len(piece)
        shown.append(piece)
    return clip(f"{name}({', '.join(shown)})", 2 * _CALL_CHARS)


def _newest_that_fit(lines: Sequence[str], room: int) -> list[str]:
    """The newest lines that fit, in order, told where older ones are missing."""
    out: list[str] = []
    for line in reversed(lines):
        room -= len(line) + 1
        if room < 30:
            out.append("(older lines left out)")
            break
        out.append(line)
    return out[::-1]


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return "\n".join(_plain(inner) for inner in value.values())
    if isinstance(value, list):
        return "\n".join(_plain(inner) for inner in value)
    return str(value)
