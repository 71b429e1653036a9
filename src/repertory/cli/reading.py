"""``repertory inspect`` and ``repertory ledger``: what the model saw, and the record that it was made from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from repertory.cli import output
from repertory.cli.databases import (
    Database,
    read_run,
)
from repertory.cli.options import AS_JSON, DATABASE, FULL, RUN, option
from repertory.cli.output import clean, one_line, tokens
from repertory.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from repertory.llm.messages import Json
    from repertory.record import Entry, Journal, RunRow

_WIDE = 120  # columns from which the record and the view stand side by side
_POLL = 0.5  # seconds between two looks at a record that is being written by another process
_PREVIEW = (8, 800)  # lines and characters of a text that is not shown whole
_COLOURS = {"shaped": "cyan", "stub": "yellow", "covered": "blue", "removed": "red", "expanded": "green"}


def inspect(
    run_id: str | None = RUN,
    *,
    iteration: int | None = option("-i, --iteration N", "Which one. Default: the newest.", min=1),
    full: bool = FULL,
    db: str | None = DATABASE,
    as_json: bool = AS_JSON,
) -> None:
    """Show what the model saw at an iteration.

    Beside it stands the record: how each entry was shown, and the decisions that made it so.
    """

    from repertory.service.reports import read_inspection

    async def read(path: Database, journal: Journal, row: RunRow) -> Json:
        return await read_inspection(journal, row, iteration)

    shown = read_run(run_id, db, read)
    if as_json:
        output.print_json(shown)
    else:
        _print(shown, full=full)


def _print(shown: Json, *, full: bool) -> None:
    from rich.console import Group
    from rich.table import Table

    screen = output.console()
    output.show(screen, _heading(shown))
    two_columns = screen.is_terminal and screen.width >= _WIDE
    record = list(_record_part(shown, screen.width * 2 // 5 - 4 if two_columns else screen.width))
    view = list(_view_part(shown["request"], full=full))
    if two_columns:
        side_by_side = Table(box=None, expand=True, pad_edge=False, padding=(0, 3, 0, 0), show_header=False)
        side_by_side.add_column(ratio=2)
        side_by_side.add_column(ratio=3)
        side_by_side.add_row(Group(*record), Group(*view))
        output.show(screen, side_by_side)
    else:
        output.show(screen, *record, "", *view)


def _heading(shown: Json) -> RenderableType:
    from rich.text import Text

    heading = Text.assemble(
        (one_line(shown["agent"]), "bold"),
        f" {one_line(shown['run_id'])}\n",
        (f"iteration {shown['iteration']} of {shown['iterations']}", "bold"),
        f", {one_line(shown['model'])}, {output.timestamp(shown['at'])}\n",
    )
    usage = shown["usage"]
    if usage is None:
        heading.append(f"no answer yet; about {tokens(shown['prompt_estimate'])} tokens were sent\n")
    elif shown["error"] is not None:
        heading.append(f"failed: {one_line(shown['error'])}\n", style="red")
    else:
        heading.append(
            f"saw {tokens(shown['prompt_tokens'])} tokens ({tokens(usage['cache_read_tokens'])} from the "
            f"cache), wrote {tokens(usage['output_tokens'])}, {output.dollars(shown['cost'])}, "
            f"{shown['duration']:.1f} s; the record held about {tokens(shown['record_tokens'])}\n"
        )
    return heading


def _record_part(shown: Json, width: int) -> Iterator[RenderableType]:
    from rich.text import Text

    yield Text("THE RECORD, and how each entry was shown", style="bold")
    rows = [
        (
            str(entry["position"]),
            str(entry["iteration"]),
            Text(entry["shown"], style=_COLOURS.get(entry["shown"], "")),
            tokens(entry["tokens"]),
            one_line(entry["what"]),
        )
        for entry in shown["record"]
    ]
    yield output.table(("#", "IT", "SHOWN", "TOKENS", "WHAT"), rows, width=width, right="#|IT|TOKENS")
    decided = "DECISIONS so far" if shown["decisions"] else "No decision has changed the view so far."
    yield Text(f"\n{decided}", style="bold")
    for decision in shown["decisions"]:
        yield Text(f"it {decision['iteration']:<3} {decision['kind']}: {one_line(decision['sentence'])}")


def _view_part(request: Json, *, full: bool) -> Iterator[RenderableType]:
    from rich.text import Text

    yield Text("WHAT THE MODEL SAW", style="bold")
    tools = [tool.get("name", "?") for tool in request.get("tools", ())]
    yield Text(f"tools: {one_line(', '.join(tools)) or 'none'}", style="dim")
    for where, content in (
        ("system", request.get("system", ())),
        *((m["role"], m["content"]) for m in request["messages"]),
    ):
        blocks: list[dict[str, Any]] = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for block in blocks:
            label, text = describe_wire_block(block)
            marked = "  ⟵ cached up to here" if "cache_control" in block else ""
            yield Text(f"{where} {label}{marked}", style="magenta" if where == "system" else "cyan")
            yield Text(_preview(text, full=full), overflow="fold")
    if not full:
        yield Text("--full shows every message whole, --json the whole request", style="dim")


# --- the record -------------------------------------------------------------------------------------------


def ledger(
    run_id: str | None = RUN,
    *,
    full: bool = FULL,
    follow: bool = option("-f, --follow", "Wait for new entries until the run ends.", False),
    db: str | None = DATABASE,
    as_json: bool = AS_JSON,
) -> None:
    """Show the full record of a run."""
    from repertory.service.reports import read_record

    if follow and as_json:
        raise ConfigurationError("--follow has no end to make one JSON object of; leave one of them out")

    async def read(path: Database, journal: Journal, row: RunRow) -> None:
        if as_json:
            output.print_json({"database": str(path), **await read_record(journal, row)})
        else:
            await print_ledger(journal, row, full=full, follow=follow)

    read_run(run_id, db, read)


async def print_ledger(journal: Journal, row: RunRow, *, full: bool, follow: bool) -> None:
    """Print the entries of a run, and those that come until it ends, if it is to be followed."""
    import anyio
    from rich.text import Text

    from repertory.record import FINAL_STATES
    from repertory.service.reports import read_crashes

    started, shown = row.started, 0
    screen = output.console()
    facts = f" {one_line(started.run_id)}, {one_line(started.model)}\n"
    screen.print(Text.assemble((one_line(started.agent), "bold"), facts))
    while True:
        row = await journal.read_run(started.run_id)  # before its entries: those of a run that has ended are all
        entries = await journal.read_entries(started.run_id, start=shown)
        crashes = await read_crashes(journal, started.run_id) if full and entries else {}
        for entry in entries:
            _print_entry(screen, entry, full=full, trace=crashes.get(entry.tool_call_id, ""))
            shown += 1
        if not follow or row.state in FINAL_STATES:
            break
        await anyio.sleep(_POLL)
    if row.error is not None:
        output.say(f"the run failed: {row.error}")


def _print_entry(screen: Console, entry: Entry, *, full: bool, trace: str) -> None:
    from rich.text import Text

    who = entry.kind if entry.tool is None else f"{entry.tool} → result"
    facts = f"  {tokens(entry.tokens)} tokens"
    if entry.original_length:
        facts += f", shortened from {entry.original_length:,} characters"
    if entry.content_id is not None:
        facts += f", whole: repertory content show {one_line(entry.content_id)}"
    line = Text.assemble(
        (f"#{entry.position:<4}", "bold"),
        (f"it {entry.iteration:<3} {one_line(who)}", "cyan" if entry.role == "user" else "green"),
        (facts, "dim"),
    )
    text = whole_entry(entry)
    parts = [line, Text(_preview(text, full=full))]
    if trace:
        parts.append(Text(_preview(f"what the tool raised:\n{trace.rstrip()}", full=True), style="dim"))
    screen.print(*parts, "", sep="\n", soft_wrap=True)


# --- entries and blocks -----------------------------------------------------------------------------------


def _preview(text: str, *, full: bool) -> str:
    """The beginning of a text, with how much is left out; all of it if it is to be full."""
    if full:
        return text
    lines, characters = _PREVIEW
    kept = "\n".join(text[:characters].split("\n")[:lines])
    left = len(text) - len(kept)
    return kept if left <= 0 else f"{kept}… ({left:,} more characters)"


def describe_wire_block(block: dict[str, Any]) -> tuple[str, str]:
    """A label and the text of a content block as it is sent."""
    kind = block.get("type")
    if kind == "text":
        return "", clean(block["text"])
    if kind == "tool_use":
        return "calls", call_line(block["name"], block["input"])
    if kind == "tool_result":
        content: Any = block.get("content", "")
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        words = "\n".join(part["text"] if part.get("type") == "text" else f"({part.get('type')})" for part in parts)
        return "result" + (", an error" if block.get("is_error") else ""), clean(words)
    if kind == "thinking":
        return "thinks", clean(block["thinking"])
    return f"({one_line(kind)})", ""


def call_line(tool: str, arguments: dict[str, Any], width: int = 0) -> str:
    """A tool call on one line: ``search_files text="lock", folder="asyncio"``."""
    named = (f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in arguments.items())
    return one_line(f"{tool} {', '.join(named)}", width)


def whole_entry(entry: Entry) -> str:
    """All that an entry says."""
    from repertory.llm.messages import encode_block

    parts: list[str] = []
    for block in entry.content:
        label, text = describe_wire_block(encode_block(block))
        parts.append(f"{label}: {text}" if label and label != "result" else text)
    return "\n".join(part for part in parts if part)
