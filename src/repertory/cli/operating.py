"""Commands that operate a database: copy, move and shrink it, its machines, and its deliveries to webhooks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from repertory._counting import counted
from repertory._postgres_address import PostgresAddress, postgres_address
from repertory.cli import output
from repertory.cli.commands import Answer, command
from repertory.cli.databases import (
    VARIABLE,
    Database,
    ask_service,
    database_to_read,
    locate,
    make_folder,
    open_database,
    open_service,
    runs_database,
)
from repertory.cli.options import DATABASE, OWN_DATABASE, At, argument, option
from repertory.cli.signals import leave, told_to
from repertory.errors import ConfigurationError
from repertory.machines import Machine
from repertory.machines.operating import drain_machine, list_machines
from repertory.record.backup import Copied, back_up, vacuum_file
from repertory.record.backup import restore as restore_file
from repertory.record.moving import move_journal
from repertory.service.views import attempt_view

if TYPE_CHECKING:
    from repertory.service.client import ServiceClient

webhooks = typer.Typer(help="Look at deliveries to webhooks, and repeat them.")


@command
def backup(
    file: str = argument(
        "FILE", "The file to write; in a folder, FOLDER/, it is named after the database and the time.", ...
    ),
    *,
    db: str | None = DATABASE,
) -> Answer:
    """Copy a database into one file, even while it is written to.

    The copy is the database as it was at one instant. Before it gets its name it is read back, every record checked
    against its checksum, and synced; nothing is ever overwritten.
    """
    source = _file(database_to_read(db))
    target = Path(file)
    if file.endswith(os.sep) or os.path.isdir(target):
        make_folder(target)
        target = target / f"{source.stem}-{time.strftime('%Y%m%d-%H%M%S')}.db"
    with _progress("copied") as progress:
        copied = back_up(source, target, progress=progress)
    size = f"{counted(copied.records, 'record')}, {_mib(copied.size)}"
    words = f"{source} is backed up to {target}: {size}, read back and checked"
    return _copied({"database": str(source), "file": copied.path}, copied, words)


@command
def restore(file: Path = argument("FILE", "The backup.", ...), *, db: str | None = OWN_DATABASE) -> Answer:
    """Make a database from a backup, where there is none yet.

    The database is read back before it gets its name. To replace an existing one, first end what uses it and move it
    away, with its -wal and -shm files.
    """
    if not os.path.exists(file):
        raise output.NothingThere(f"there is no backup at {file}")
    target = _file(runs_database(db))
    with _progress("restored") as progress:
        copied = restore_file(file, target, progress=progress)
    words = f"{target} is restored: {counted(copied.records, 'record')}, {_mib(copied.size)}"
    return _copied({"database": copied.path, "file": str(file)}, copied, words)


def _copied(places: dict[str, str], copied: Copied, words: str) -> Answer:
    figures = {name: getattr(copied, name) for name in ("size", "records", "seq")}
    return Answer({**places, **figures}, lambda _: output.say(words))


@command
async def vacuum(*, at: At) -> Answer:
    """Give the space of removed runs and contents back to the disk.

    A running service does it in small steps beside its work. Without one the file is rewritten, which needs as much
    free space again.
    """
    async with open_service(at) as client:
        if client is None:
            before, after = vacuum_file(_file(database_to_read(at.db)))
        else:
            before, after = await _vacuum(client)
    words = f"{_mib(before)} before, {_mib(after)} after"
    return Answer({"before": before, "after": after}, lambda _: output.say(words))


async def _vacuum(client: ServiceClient) -> tuple[int, int]:
    """Let a service free all the space that it can; the size before and after."""
    space = await client.vacuum()
    before, free = space.size, space.free
    with _progress("freed") as progress:
        while space.free:
            space, last = await client.vacuum(), space
            progress(before - space.size, before - space.size + space.free)
            if space.free >= last.free:  # the file was made without this feature, or others free space as fast
                break
    if space.free and space.size == before:
        output.say(f"{_mib(free)} of free space stay in the file: end the service, then repertory vacuum rewrites it")
    return before, space.size


@command
def migrate(
    source: str = argument("FROM", "The database to move: a file, or postgresql://….", ...),
    target: str = argument("TO", "Where to: a file or a database that holds no records yet.", ...),
) -> Answer:
    """Move a database from a file to PostgreSQL, or back.

    All or nothing: every row is compared with its checksum and read back before the new database is kept. The old one
    stays as it is. No service and no run may use either meanwhile; after an interruption start again.
    """
    old, new = (postgres_address(place) or Path(place) for place in (source, target))
    if isinstance(old, Path) and not os.path.exists(old):
        raise output.NothingThere(f"no database at {old}; nothing was moved")
    with _showing() as show:
        moved = move_journal(old, new, progress=lambda doing, done, rows: show(f"{doing}: {done:,} of {rows:,} rows"))
    fields = {"rows": moved.rows, "newest": moved.newest, "tables": moved.tables, "verified": True}
    rows = counted(moved.rows, "row")
    words = f"{old} is now in {new}: {rows}, each read back and compared; the old database is unchanged"
    return Answer({"from": str(old), "to": str(new), **fields}, lambda _: output.say(words))


def _file(database: Database) -> Path:
    if isinstance(database, Path):
        return database
    raise ConfigurationError(f"{database} is not a file; use the tools of PostgreSQL, such as pg_dump")


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"


@contextmanager
def _progress(verb: str) -> Generator[Callable[[int, int], None]]:
    """Show how much of a file is done; see ``_showing``."""
    with _showing() as show:
        yield lambda done, whole: show(f"{verb} {_mib(done)} of {_mib(whole)} ({done / max(1, whole):.0%})")


@contextmanager
def _showing() -> Generator[Callable[[str], None]]:
    """Show the progress on a terminal. A signal is raised at the next step, so that nothing half done stays."""
    heard: list[int] = []

    def hear(number: int) -> None:
        heard.append(number)
        if len(heard) > 1:
            leave(number)

    def step(words: str) -> None:
        if heard:
            raise output.Interrupted("interrupted before it was done", 128 + heard[0])
        show(words)

    with told_to(hear), output.status_line() as show:
        yield step


# --- machines ---------------------------------------------------------------------------------------------


@command
def machines(*, db: str | None = DATABASE) -> Answer:
    """List the machines that share a database, and their runs."""
    database = _shared(db)
    found = list_machines(database)

    def show(screen: Console) -> None:
        if not found:
            output.say("no machine shares this database; start one with repertory serve --db postgresql://…")
        output.print_table(screen, machines_table(found))

    return Answer({"database": str(database), "machines": found}, show)


def machines_table(found: Sequence[Machine]) -> output.Columns:
    """Make a table of machines."""

    def state(machine: Machine) -> str:
        up = "draining" if machine.draining else "up"
        return "lost" if machine.lost_at is not None else "silent" if machine.left < 0 else up

    def left(machine: Machine) -> str:
        return "" if machine.lost_at is not None else f"{max(machine.left, 0):.0f} of {machine.lease:g} s"

    columns = "NAME STATE LABELS >RUNS LEASE_LEFT=left VERSION ID=machine_id"
    return output.table(columns, found, state=state, left=left)


@command
def drain(
    machine: str = argument("MACHINE", "The name or id of a machine, as repertory machines shows it.", ...),
    *,
    db: str | None = DATABASE,
) -> None:
    """Make a machine take no more runs and hand its own over to others.

    Each run moves at its next boundary. End the process when repertory machines shows that it has no runs any more.
    """
    drain_machine(_shared(db), machine)
    output.say(f"{machine} is draining; repertory machines shows when it has no runs left")


def _shared(db: str | None) -> PostgresAddress:
    found, _ = locate(db)
    if isinstance(found, PostgresAddress):
        return found
    raise ConfigurationError(
        f"only a database on PostgreSQL is shared by several machines, and {found} is a file; name one with --db "
        f"postgresql://… or ${VARIABLE}"
    )


# --- webhooks ---------------------------------------------------------------------------------------------


@webhooks.command("ls")
@command
async def list_attempts(
    *, limit: int = option("--limit N", "How many at most.", 50, min=1, max=100_000), db: str | None = DATABASE
) -> Answer:
    """List the newest deliveries of changes of state to webhooks."""
    async with open_database(db) as source:
        attempts = [attempt_view(*found) for found in await source.journal.read_webhooks(limit=limit)]

    def show(screen: Console) -> None:
        table = output.table(
            "CHANGE RUN=run_id OUTCOME ATTEMPT STATUS >AGE=at WEBHOOK=url",
            attempts,
            status=lambda tried: str(tried.status or ""),
            url=lambda tried: output.one_line(f"{tried.error} {tried.url}", 300),
        )
        output.print_table(screen, table, gap=False)
        if not attempts:
            output.write("No deliveries to webhooks yet.")

    return Answer({"database": source.database, "attempts": attempts}, show)


@webhooks.command()
@command
async def redeliver(
    change: int = argument("CHANGE", "The number of a change of state, as webhooks ls shows it.", ...),
    *,
    url: str | None = option("--url URL", "The webhook. May be left out if there is only one."),
    at: At,
) -> Answer:
    """Deliver a change to a webhook again, now. Fails if the webhook does not take it."""
    async with ask_service(at) as client:
        tried = await client.redeliver(change, url)
    words = f"{tried.outcome}: {tried.url} answered {tried.status or tried.error}"
    error = None if tried.outcome == "delivered" else typer.Exit(output.FAILED)
    return Answer(tried, lambda _: output.say(words), error)
