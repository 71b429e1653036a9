"""``repertory ledger``: the full record of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from repertory.cli import output
from repertory.cli.databases import databases_to_read, open_run, open_to_read
from repertory.cli.entries import preview, whole_entry

if TYPE_CHECKING:
    from rich.console import Console

    from repertory.record import ContentStored, Entry, RunRow

_POLL = 0.5  # seconds between two looks at a record that is being written by another process


def show_ledger(run_id: str | None, *, full: bool, follow: bool, db: Path | None, as_json: bool) -> None:
    """See ``repertory ledger``."""
    if follow and as_json:
        from repertory.errors import ConfigurationError

        raise ConfigurationError("--follow has no end to make one JSON object of; leave one of them out")
    anyio.run(_show_ledger, run_id, full, follow, db, as_json)


async def _show_ledger(run_id: str | None, full: bool, follow: bool, db: Path | None, as_json: bool) -> None:
    from repertory.record import FINAL_STATES

    async with open_run(run_id, db) as (path, journal, found):
        run_id, row = found.started.run_id, found
        entries = await journal.read_entries(run_id)
        if as_json:
            output.print_json({**_head(path, row), "entries": [entry_json(entry) for entry in entries]})
            return
        screen = output.console()
        _print_head(screen, row, len(entries))
        shown = 0
        while True:
            for entry in entries:
                _print_entry(screen, entry, full=full)
            shown += len(entries)
            latest = await journal.read_run(run_id)
            if not follow or latest.state in FINAL_STATES:
                break
            await anyio.sleep(_POLL)
            entries = await journal.read_entries(run_id, start=shown)
        if latest.error is not None:
            output.say(f"the run failed: {latest.error}")


def _head(path: Path, row: RunRow) -> dict[str, Any]:
    return {
        "database": str(path),
        "run_id": row.started.run_id,
        "agent": row.started.agent,
        "model": row.started.model,
        "task": row.started.task,
        "state": row.state,
    }


def entry_json(entry: Entry) -> dict[str, Any]:
    """The object that ``--json`` gives for an entry; its content is as the Messages API writes it."""
    from repertory.llm.messages import encode_block

    fields = {name: getattr(entry, name) for name in entry.__struct_fields__ if name != "content"}
    return {**fields, "content": [encode_block(block) for block in entry.content]}


def _print_head(screen: Console, row: RunRow, entries: int) -> None:
    from rich.text import Text

    head = Text()
    head.append(f"{output.one_line(row.started.agent)} ", style="bold")
    head.append(f"{output.one_line(row.started.run_id)}, {entries} entries\n")
    screen.print(head)


def _print_entry(screen: Console, entry: Entry, *, full: bool) -> None:
    from rich.text import Text

    line = Text()
    line.append(f"#{entry.position:<4}", style="bold")
    who = entry.kind if entry.tool is None else f"{entry.tool} → result"
    line.append(f"it {entry.iteration:<3} {output.one_line(who)}", style="cyan" if entry.role == "user" else "green")
    facts = f"  {output.tokens(entry.tokens)} tokens"
    if entry.original_length:
        facts += f", shortened from {entry.original_length:,} characters"
    if entry.content_id is not None:
        facts += f", whole: --content {output.one_line(entry.content_id)}"
    line.append(facts, style="dim")
    screen.print(line, soft_wrap=True)
    text = whole_entry(entry)
    screen.print(Text(text if full else preview(text)), soft_wrap=True)
    screen.print()


def show_content(citation: str, *, db: Path | None, as_json: bool) -> None:
    """See ``repertory ledger --content``."""
    found = anyio.run(_find_content, citation, db)
    if as_json:
        fields: dict[str, Any] = msgspec.to_builtins(found)
        fields.pop("record")  # the journal's name for this kind of record
        output.print_json(fields)
    else:
        print(output.clean(found.body))  # noqa: T201 - a command's own answer


async def _find_content(citation: str, db: Path | None) -> ContentStored:
    from repertory.memory.contents import read_whole

    paths = databases_to_read(db)
    for path in paths:
        async with open_to_read(path) as journal:
            found = await read_whole(journal, citation)
        if found is not None and (found.body or not found.length):
            return found
        if found is not None:
            raise output.NothingThere(f"content {citation!r} ({found.length:,} characters) was cleaned up and is gone")
    where = str(paths[0]) if len(paths) == 1 else f"any of {len(paths)} databases"
    raise output.NothingThere(f"no content {citation!r} in {where}; repertory ledger RUN lists those of a run")
