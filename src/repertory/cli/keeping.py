"""``repertory backup``, ``restore``, ``vacuum`` and ``migrate``: what keeps a database safe and small, and moves it."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from repertory._postgres_address import postgres_address
from repertory.cli import output
from repertory.cli.databases import At, databases_to_read, open_service, runs_database
from repertory.cli.options import AS_JSON, DATABASE, OWN_DATABASE, PORT, SOCKET, argument
from repertory.errors import ConfigurationError

if TYPE_CHECKING:
    from repertory.cli.databases import Database

NOTE = ".backup"  # beside a database: what the last backup of it was


def backup(
    file: str = argument("FILE", "Where to; in a folder the file is named after the database and the time.", ...),
    *,
    db: str | None = DATABASE,
    as_json: bool = AS_JSON,
) -> None:
    """Copy a database into one file, also while it is written to.

    The copy is the database as it was at one instant. It is read back whole, each record compared with its checksum,
    and synced, before it gets its name; nothing is ever written over.
    """
    from repertory.record.backup import back_up

    source = _file(databases_to_read(db)[0])
    target = Path(file)
    if file.endswith(os.sep) or target.is_dir():
        _make_folder(target)
        target = target / f"{source.stem}-{time.strftime('%Y%m%d-%H%M%S')}.db"
    with _progress("copied", quiet=as_json) as progress:
        copied = back_up(source, target, progress=progress)
    _leave_note(source, target)
    if as_json:
        output.print_json({"database": str(source), "file": copied.path, **_fields(copied)})
    else:
        output.say(
            f"{source} is backed up in {target}: {copied.records:,} records, {_mib(copied.size)}, read back whole"
        )


def restore(
    file: Path = argument("FILE", "The backup.", ...),
    *,
    db: str | None = OWN_DATABASE,
    as_json: bool = AS_JSON,
) -> None:
    """Make a database of a backup, where there is none yet.

    The backup is read whole before, and the database after. To put it in the place of one that is there, end what uses
    that and move it away first, its -wal and -shm files with it.
    """
    from repertory.record.backup import restore as restore_file

    if not os.path.exists(file):
        raise output.NothingThere(f"there is no backup at {file}")
    target = _file(runs_database(db))
    with _progress("restored", quiet=as_json) as progress:
        copied = restore_file(file, target, progress=progress)
    if as_json:
        output.print_json({"database": copied.path, "file": str(file), **_fields(copied)})
    else:
        output.say(f"{target} is there again: {copied.records:,} records, {_mib(copied.size)}")


def vacuum(
    *, db: str | None = DATABASE, socket: Path | None = SOCKET, port: int | None = PORT, as_json: bool = AS_JSON
) -> None:
    """Give the space of removed runs and contents back to the disk.

    A running service does it bit by bit beside its work. Without one the file is written anew, which takes as much room
    again meanwhile.
    """
    import anyio

    before, after = anyio.run(_vacuum, At(db, socket, port), as_json)
    if as_json:
        output.print_json({"before": before, "after": after})
    else:
        output.say(f"{_mib(before)} before, {_mib(after)} after")


def migrate(
    source: str = argument("FROM", "The database to move: a file, or postgresql://….", ...),
    target: str = argument("TO", "Where to: a file or a database that holds no records yet.", ...),
    *,
    as_json: bool = AS_JSON,
) -> None:
    """Move a database from a file to PostgreSQL, or back.

    All of it or nothing: every row is compared with its checksum, and read again from where it was written, before it
    is kept there. The old database stays as it is. No service and no run may use either meanwhile; after an
    interruption begin again.
    """
    from repertory.cli.live import status_line
    from repertory.record.moving import move_journal

    old, new = (postgres_address(place) or Path(place) for place in (source, target))
    if isinstance(old, Path) and not os.path.exists(old):
        raise output.NothingThere(f"no database at {old}; nothing was moved")
    with status_line() as show:
        moved = move_journal(
            old,
            new,
            progress=lambda doing, done, rows: None if as_json else show(f"{doing}: {done:,} of {rows:,} rows"),
        )
    if as_json:
        fields = {"rows": moved.rows, "newest": moved.newest, "tables": moved.tables, "verified": True}
        output.print_json({"from": str(old), "to": str(new), **fields})
    else:
        output.say(f"{old} is in {new} now: {moved.rows:,} rows, each read back and compared; the old one is as it was")


async def _vacuum(at: At, quiet: bool) -> tuple[int, int]:
    from repertory.record.backup import vacuum_file

    async with open_service(at) as client:
        if client is None:
            return vacuum_file(_file(databases_to_read(at.db)[0]))
        space = await client.vacuum()
        before, free = space.size, space.free
        with _progress("given back", quiet=quiet) as progress:
            while space.free:
                space, last = await client.vacuum(), space
                progress(before - space.size, before - space.size + space.free)
                if space.free >= last.free:  # a file that was made without this, or others free as fast
                    break
        if space.free and space.size == before:
            output.say(f"{_mib(free)} stay in the file: end the service, and repertory vacuum writes it anew")
        return before, space.size


def _file(database: Database) -> Path:
    if isinstance(database, Path):
        return database
    raise ConfigurationError(f"{database} is not a file; keep it with the tools of PostgreSQL, such as pg_dump")


def _fields(copied: object) -> dict[str, int]:
    return {name: getattr(copied, name) for name in ("size", "records", "seq")}


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"cannot make the folder {folder}: {error.strerror}") from error


def _leave_note(source: Path, file: Path) -> None:
    """Say beside a database when it was backed up, for ``doctor``; without it doctor knows less, and nothing else."""
    note = {"file": os.path.abspath(file), "at": time.time()}
    beside = f"{os.path.realpath(source)}{NOTE}"
    try:
        with open(f"{beside}.new", "w", encoding="utf-8", opener=_private) as new:
            json.dump(note, new)
        os.replace(f"{beside}.new", beside)
    except OSError as error:
        output.say(f"cannot note the backup beside {source}: {error.strerror}; doctor will not know of it")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


@contextmanager
def _progress(verb: str, *, quiet: bool) -> Generator[Callable[[int, int], None]]:
    """Show how far it is, on a terminal."""
    shown = not quiet and sys.stderr.isatty()

    def progress(done: int, whole: int) -> None:
        if shown and whole:
            sys.stderr.write(f"\r{verb} {_mib(done)} of {_mib(whole)} ({done / whole:.0%}) ")
            sys.stderr.flush()

    try:
        yield progress
    finally:
        if shown:
            sys.stderr.write("\r\x1b[K")
