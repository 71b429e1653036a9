"""``repertory content``: lists and shows the contents that runs have stored."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import typer
from rich.console import Console

from repertory.cli import output
from repertory.cli.commands import Answer, command
from repertory.cli.databases import open_database, open_run
from repertory.cli.options import DATABASE, RUN, argument

if TYPE_CHECKING:
    from repertory.llm.messages import Json

content = typer.Typer(help="Show what runs have stored whole.")


@content.command()
@command
async def ls(run_id: str | None = RUN, *, db: str | None = DATABASE) -> Answer:
    """List what a run and its sub-agents have stored.

    KEPT says where the whole is: in the content store, in the ledger (from which it is read), or gone.
    """
    from repertory.service.reports import read_contents

    async with open_run(run_id, db) as (source, row):
        found = row.started.run_id
        contents = await read_contents(source.journal, found)
    fields = {"database": source.database, "run_id": found, "contents": contents}
    return Answer(fields, partial(_print, contents=contents, root=found))


def _print(screen: Console, contents: Sequence[Json], root: str) -> None:
    if not contents:
        output.say(f"run {root} has stored nothing; only results of more than 1,000 characters are stored")
        return
    rows = [
        (
            each["content_id"],
            each["run_id"].removeprefix(root) or "·",
            output.one_line(each["source"], 30),
            output.one_line(each["format"], 12),
            f"{each['length']:,}",
            each["kept"],
            output.duration(time.time() - each["at"]),
            each["url"],
        )
        for each in contents
    ]
    headers = ("CITATION", "RUN", "SOURCE", "FORMAT", ">CHARACTERS", "KEPT", ">AGE", "URL")
    output.print_table(screen, headers, rows)
    held = [each["length"] for each in contents if each["kept"] == "store"]
    whole = f"the store holds {len(held)} of them, {sum(held):,} characters"
    output.show(screen, f"{output.count(len(contents), 'content')}; {whole}")


@content.command()
@command
async def show(
    citation: str = argument("CITATION", "The citation, as content ls and ledger name it.", ...),
    *,
    db: str | None = DATABASE,
) -> Answer:
    """Show one stored content whole."""
    async with open_database(db) as source:
        found = await source.journal.read_content(citation)
    if found is None:
        raise output.NothingThere(
            f"there is no content {citation!r} in {source.database}; repertory content ls RUN lists those of a run"
        )
    if not found.body and found.length:
        raise output.NothingThere(
            f"content {citation!r} ({found.length:,} characters) was cleaned up and is gone; "
            f"repertory ledger {found.run_id} has what was shown of it"
        )
    return Answer({"database": source.database, **msgspec.to_builtins(found)}, lambda _: output.write(found.body))
