"""``repertory content``: lists, shows and deletes the contents that runs have stored."""

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
from repertory.cli.databases import database_to_read, open_database, open_run
from repertory.cli.options import DATABASE, RUN, argument, option

if TYPE_CHECKING:
    from repertory.cli.databases import Database
    from repertory.llm.messages import Json
    from repertory.record.contents import StoredBody

content = typer.Typer(help="Show what runs have stored whole, and delete it.")


@content.command()
@command
async def ls(run_id: str | None = RUN, *, db: str | None = DATABASE) -> Answer:
    """List what a run and its sub-agents have stored.

    KEPT says where the whole is: in the content store, in the ledger (from which it is read), or gone.
    """
    from repertory.service.reports import read_contents

    async with open_run(run_id, db) as (path, journal, row):
        found = row.started.run_id
        contents = await read_contents(journal, found)
    fields = {"database": str(path), "run_id": found, "contents": contents}
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
    async with open_database(db) as (path, journal):
        found = await journal.read_content(citation)
    if found is None:
        raise output.NothingThere(
            f"there is no content {citation!r} in {path}; repertory content ls RUN lists those of a run"
        )
    if not found.body and found.length:
        raise output.NothingThere(
            f"content {citation!r} ({found.length:,} characters) was cleaned up and is gone; "
            f"repertory ledger {found.run_id} has what was shown of it"
        )
    return Answer({"database": str(path), **msgspec.to_builtins(found)}, lambda _: output.write(found.body))


@content.command()
@command
async def gc(
    *,
    retention: float = option(
        "--retention SECONDS", "How long after its run a second copy of what the ledger holds is kept.", 3600.0, min=0
    ),
    run_id: str | None = option(
        "--run RUN", "Delete all that is stored of this run and its sub-agents, also what is kept nowhere else."
    ),
    dry_run: bool = option("--dry-run", "Only say what would be deleted.", False),
    db: str | None = DATABASE,
) -> Answer:
    """Delete stored contents whose time is over.

    A supervisor does this by itself. What is kept nowhere else and was given no time stays, and so does what is pinned.
    The file does not shrink; its free space is used again.
    """
    path, bodies = await _collect(db, retention, run_id, dry_run=dry_run)
    names = ("content_id", "run_id", "source", "length")
    gone = [{name: getattr(body.content, name) for name in names} for body in bodies]
    characters = sum(each["length"] for each in gone)

    def show(screen: Console) -> None:
        rows = [
            (each["content_id"], output.one_line(each["source"], 30), f"{each['length']:,}", each["run_id"])
            for each in gone
        ]
        output.print_table(screen, ("CITATION", "SOURCE", ">CHARACTERS", "RUN"), rows)
        done = "would be deleted" if dry_run else "deleted"
        output.show(screen, f"{path}: {output.count(len(gone), 'content')} {done}, {characters:,} characters")

    return Answer({"database": str(path), "dry_run": dry_run, "characters": characters, "contents": gone}, show)


async def _collect(
    db: str | None, retention: float, run_id: str | None, *, dry_run: bool
) -> tuple[Database, Sequence[StoredBody]]:
    """Delete what is due, or find it in a dry run; the database and the contents."""
    from repertory.record import open_journal
    from repertory.supervisor.retention import Retention

    path, whole_id = database_to_read(db), ""
    if run_id is not None:
        async with open_run(run_id, db) as (path, _, row):
            whole_id = row.started.run_id
    async with open_journal(path, readonly=dry_run) as journal:
        store = Retention(journal, seconds=retention, clock=time.time)
        if dry_run:
            return path, await (store.of_run(whole_id) if whole_id else store.due())
        return path, await (store.clean_run(whole_id) if whole_id else store.clean())
