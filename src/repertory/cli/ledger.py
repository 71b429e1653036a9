"""``repertory ledger``: the full record of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from repertory.cli import output
from repertory.cli.databases import databases_to_read, open_to_read, read_run
from repertory.cli.entries import preview, whole_entry
from repertory.cli.options import AsJson, Database, RunId
from repertory.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.console import Console

    from repertory.record import ContentStored, Entry, Journal, RunRow

_POLL = 0.5  # seconds between two looks at a record that is being written by another process


def ledger(
    run_id: RunId = None,
    *,
    content: Annotated[
        str | None, typer.Option("--content", metavar="CITATION", help="Show one stored content whole, instead.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Show every entry whole.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new entries until the run ends.")] = False,
    db: Database = None,
    as_json: AsJson = False,
) -> None:
    """Show the full record of a run."""
    if content is not None:
        _show_content(content, db, as_json=as_json)
        return
    if follow and as_json:
        raise ConfigurationError("--follow has no end to make one JSON object of; leave one of them out")

    async def read(path: Path, journal: Journal, row: RunRow) -> None:
        if as_json:
            entries = await journal.read_entries(row.started.run_id)
            head = {name: getattr(row.started, name) for name in ("run_id", "agent", "model", "task")}
            listed = [entry_json(entry) for entry in entries]
            output.print_json({"database": str(path), **head, "state": row.state, "entries": listed})
        else:
            await print_ledger(journal, row, full=full, follow=follow)

    read_run(run_id, db, read)


def entry_json(entry: Entry) -> dict[str, Any]:
    """The object that ``--json`` gives for an entry; its content is as the Messages API writes it."""
    from repertory.llm.messages import encode_block

    fields = {name: getattr(entry, name) for name in entry.__struct_fields__ if name != "content"}
    return {**fields, "content": [encode_block(block) for block in entry.content]}


async def print_ledger(journal: Journal, row: RunRow, *, full: bool, follow: bool) -> None:
    """Print the entries of a run, and those that come until it ends, if it is to be followed."""
    import anyio
    from rich.text import Text

    from repertory.record import FINAL_STATES

    started, shown = row.started, 0
    screen = output.console()
    facts = f" {output.one_line(started.run_id)}, {output.one_line(started.model)}\n"
    screen.print(Text.assemble((output.one_line(started.agent), "bold"), facts))
    while True:
        row = await journal.read_run(started.run_id)  # before its entries: those of a run that has ended are all
        for entry in await journal.read_entries(started.run_id, start=shown):
            _print_entry(screen, entry, full=full)
            shown += 1
        if not follow or row.state in FINAL_STATES:
            break
        await anyio.sleep(_POLL)
    if row.error is not None:
        output.say(f"the run failed: {row.error}")


def _print_entry(screen: Console, entry: Entry, *, full: bool) -> None:
    from rich.text import Text

    who = entry.kind if entry.tool is None else f"{entry.tool} → result"
    facts = f"  {output.tokens(entry.tokens)} tokens"
    if entry.original_length:
        facts += f", shortened from {entry.original_length:,} characters"
    if entry.content_id is not None:
        facts += f", whole: --content {output.one_line(entry.content_id)}"
    line = Text.assemble(
        (f"#{entry.position:<4}", "bold"),
        (f"it {entry.iteration:<3} {output.one_line(who)}", "cyan" if entry.role == "user" else "green"),
        (facts, "dim"),
    )
    text = whole_entry(entry)
    screen.print(line, Text(text if full else preview(text)), "", sep="\n", soft_wrap=True)


def _show_content(citation: str, db: Path | None, *, as_json: bool) -> None:
    import anyio
    import msgspec

    found = anyio.run(_find_content, citation, db)
    if as_json:
        fields: dict[str, Any] = msgspec.to_builtins(found)
        fields.pop("record")  # the journal's name for this kind of record
        output.print_json(fields)
    else:
        print(output.clean(found.body))  # noqa: T201 - a command's own answer


async def _find_content(citation: str, db: Path | None) -> ContentStored:

    paths = databases_to_read(db)
    for path in paths:
        async with open_to_read(path) as journal:
            found = await journal.read_content(citation)
        if found is not None and (found.body or not found.length):
            return found
        if found is not None:
            raise output.NothingThere(f"content {citation!r} ({found.length:,} characters) was cleaned up and is gone")
    where = str(paths[0]) if len(paths) == 1 else f"any of {len(paths)} databases"
    raise output.NothingThere(f"no content {citation!r} in {where}; repertory ledger RUN lists those of a run")
