"""``repertory content``: what runs have stored whole, one of them, and letting go of what is not wanted any more."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from repertory.cli import output
from repertory.cli.databases import (
    Database,
    databases_to_read,
    read_found,
    read_run,
)
from repertory.cli.options import AS_JSON, DATABASE, RUN, argument, option
from repertory.cli.output import clean, one_line

if TYPE_CHECKING:
    from repertory.llm.messages import Json
    from repertory.record import ContentStored, Journal, RunRow
    from repertory.record.contents import StoredBody

content = typer.Typer(help="Show what runs have stored whole, and let go of it.")


# --- what there is ----------------------------------------------------------------------------------------


@content.command()
def ls(run_id: str | None = RUN, *, db: str | None = DATABASE, as_json: bool = AS_JSON) -> None:
    """List what a run and those below it have stored.

    KEPT says where the whole stands: in the content store, in the ledger (from which it is read), or nowhere any more.
    """
    from repertory.service.reports import read_contents

    async def read(path: Database, journal: Journal, row: RunRow) -> tuple[Database, str, list[Json]]:
        return path, row.started.run_id, await read_contents(journal, row.started.run_id)

    path, found, contents = read_run(run_id, db, read)
    if as_json:
        output.print_json({"database": str(path), "run_id": found, "contents": contents})
    elif contents:
        _print(contents, found)
    else:
        output.say(f"run {found} has stored nothing; results of more than 1,000 characters are")


def _print(contents: Sequence[Json], root: str) -> None:
    rows = [
        (
            one_line(each["content_id"]),
            one_line(each["run_id"].removeprefix(root)) or "·",
            one_line(each["source"], 30),
            one_line(each["format"], 12),
            f"{each['length']:,}",
            each["kept"],
            output.duration(time.time() - each["at"]),
            one_line(each["url"]),
        )
        for each in contents
    ]
    headers = ("CITATION", "RUN", "SOURCE", "FORMAT", "CHARACTERS", "KEPT", "AGE", "URL")
    screen = output.console()
    output.print_table(screen, headers, rows, right="CHARACTERS|AGE")
    held = [each["length"] for each in contents if each["kept"] == "store"]
    output.show(screen, f"{_count(len(contents))}; the store holds {len(held)} of them, {sum(held):,} characters")


def _count(number: int) -> str:
    return f"{number:,} content{'s' * (number != 1)}"


# --- one of them ------------------------------------------------------------------------------------------


@content.command()
def show(
    citation: str = argument("CITATION", "The citation, as content ls and ledger name it.", ...),
    *,
    db: str | None = DATABASE,
    as_json: bool = AS_JSON,
) -> None:
    """Show one stored content whole."""
    import msgspec

    async def find(_path: Database, journal: Journal) -> ContentStored | None:
        return await journal.read_content(citation)

    async def read(path: Database, _journal: Journal, found: ContentStored) -> tuple[Database, ContentStored]:
        return path, found

    def missing(where: str) -> str:
        return f"there is no content {citation!r} in {where}; repertory content ls RUN lists those of a run"

    path, found = read_found(db, find, read, missing)
    if not found.body and found.length:
        raise output.NothingThere(
            f"content {citation!r} ({found.length:,} characters) was cleaned up and is gone; "
            f"repertory ledger {found.run_id} has what was shown of it"
        )
    if as_json:
        output.print_json({"database": str(path), **msgspec.to_builtins(found)})
    else:
        print(clean(found.body))  # noqa: T201 - a command's own answer


# --- letting go -------------------------------------------------------------------------------------------


@content.command()
def gc(
    *,
    retention: float = option(
        "--retention SECONDS", "How long after its run a second copy of what the ledger holds is kept.", 3600.0, min=0
    ),
    run_id: str | None = option(
        "--run RUN", "Let go of all that is stored of this run and those below it, also what is held nowhere else."
    ),
    dry_run: bool = option("--dry-run", "Only say what would go.", False),
    db: str | None = DATABASE,
    as_json: bool = AS_JSON,
) -> None:
    """Let go of stored contents whose time is over.

    A supervisor does that by itself. What is held nowhere else and was given no time stays, and so does what is pinned.
    The file does not shrink; what is free in it is used again.
    """
    path, bodies = _collect(db, retention, run_id, dry_run=dry_run)
    gone = [
        {name: getattr(body.content, name) for name in ("content_id", "run_id", "source", "length")} for body in bodies
    ]
    characters = sum(each["length"] for each in gone)
    if as_json:
        output.print_json({"database": str(path), "dry_run": dry_run, "characters": characters, "contents": gone})
        return
    rows = [
        (one_line(each["content_id"]), one_line(each["source"], 30), f"{each['length']:,}", one_line(each["run_id"]))
        for each in gone
    ]
    screen = output.console()
    output.print_table(screen, ("CITATION", "SOURCE", "CHARACTERS", "RUN"), rows, right="CHARACTERS")
    done = "would go" if dry_run else "let go"
    output.show(screen, f"{path}: {_count(len(gone))} {done}, {characters:,} characters")


def _collect(
    db: str | None, retention: float, run_id: str | None, *, dry_run: bool
) -> tuple[Database, Sequence[StoredBody]]:
    """What goes, or would go, and from which database."""
    import anyio

    from repertory.record import open_journal
    from repertory.supervisor.retention import Retention

    async def where(path: Database, journal: Journal, row: RunRow) -> tuple[Database, str]:
        return path, row.started.run_id

    path, whole_id = (databases_to_read(db)[0], "") if run_id is None else read_run(run_id, db, where)

    async def collect() -> Sequence[StoredBody]:
        async with open_journal(path, readonly=dry_run) as journal:
            store = Retention(journal, seconds=retention, clock=time.time)
            if dry_run:
                return await (store.of_run(whole_id) if whole_id else store.due())
            return await (store.clean_run(whole_id) if whole_id else store.clean())

    with output.read_beside("repertory content gc --dry-run"):
        return path, anyio.run(collect)
