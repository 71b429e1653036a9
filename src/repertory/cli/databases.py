"""Which database a command is about, and the run in it."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from repertory.cli.output import NothingThere, say
from repertory.errors import ConfigurationError, RunNotFound

if TYPE_CHECKING:
    from repertory.record import Journal, RunRow

VARIABLE = "REPERTORY_DB"


def data_dir() -> Path:
    """The folder that databases are kept in unless told otherwise."""
    import platformdirs

    return Path(platformdirs.user_data_dir("repertory", appauthor=False))


def made_data_dir() -> Path:
    """The same, made if need be, for its owner alone.

    Raises:
        ConfigurationError: It cannot be made.
    """
    folder = data_dir()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"cannot make the data folder {folder}: {error.strerror}; name a database with --db FILE or ${VARIABLE}"
        ) from error
    return folder


def _written_at(path: Path) -> float:
    """When a database was last written to; its write-ahead log counts."""
    return max(_changed_at(path), _changed_at(path.with_name(path.name + "-wal")))


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # whoever closes a database takes its log away
        return 0.0


def kept_databases() -> list[Path]:
    """The databases in the data folder, the newest first."""
    return sorted(data_dir().glob("*.db"), key=_written_at, reverse=True)


def named_database(db: Path | None) -> Path | None:
    """The database that the user named, on the command line or in the environment; None where neither."""
    if db is not None:
        return db
    variable = os.environ.get(VARIABLE)
    return Path(variable) if variable else None


def new_database() -> Path:
    """A path for a demo's own database."""
    return made_data_dir() / f"demo-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}.db"


def runs_database(db: Path | None) -> Path:
    """The database that ``repertory run`` writes to."""
    return named_database(db) or made_data_dir() / "runs.db"


def is_there(path: Path) -> bool:
    """Whether a file stands there; a name that no file can have is not an error."""
    return os.path.exists(path)


def databases_to_read(db: Path | None) -> list[Path]:
    """The databases that a command may look into: the one that was named, else all that are kept, newest first.

    Raises:
        NothingThere: There is none.
    """
    named = named_database(db)
    if named is not None:
        if not is_there(named):
            raise NothingThere(f"no database at {named}; repertory demo --db {named} makes one")
        return [named]
    kept = kept_databases()
    if not kept:
        raise NothingThere(f"no database in {data_dir()} yet; repertory demo makes one, or name one with --db FILE")
    return kept


def is_owned(path: Path) -> bool:
    """Whether a living process may write to a database: it holds the lock on the file beside it."""
    import fcntl

    try:
        with open(f"{os.path.realpath(path)}.lock", "rb") as lock:
            owner = lock.read(32).strip()
            # Only where the owner seems alive is the lock tried, so that looking never gets in an opener's way.
            if not owner.isdigit() or not _is_alive(int(owner)):
                return False
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # no lock file, or not ours to read
    return False


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


@asynccontextmanager
async def open_to_read(path: Path) -> AsyncGenerator[Journal]:
    """Open a database beside whoever is writing to it."""
    from repertory.record import open_journal

    async with open_journal(path, readonly=True) as journal:
        yield journal


@asynccontextmanager
async def open_run(run_id: str | None, db: Path | None) -> AsyncGenerator[tuple[Path, Journal, RunRow]]:
    """Find a run, in the named database or in those that are kept, and open its database to read.

    Raises:
        NothingThere: There is no database, or no run in it.
        RunNotFound: No run, or more than one, has such an id.
    """
    paths = databases_to_read(db)
    for path in paths:
        async with open_to_read(path) as journal:
            row = find_run(await journal.read_runs(), run_id)
            if row is None:
                continue
            if named_database(db) is None:
                say(f"reading {path}")
            yield path, journal, row
            return
    where = str(paths[0]) if len(paths) == 1 else f"any of the {len(paths)} databases in {data_dir()}"
    what = "no run" if run_id is None else f"no run {run_id!r}"
    raise RunNotFound(f"there is {what} in {where}; repertory ps -a lists what there is")


@asynccontextmanager
async def open_unfinished(db: Path | None) -> AsyncGenerator[tuple[Path, Journal, RunRow]]:
    """Find the newest run that did not finish and that no process works on, and open its database to read.

    Raises:
        NothingThere: There is no database.
        RunNotFound: Every run has finished, or is under way.
    """
    paths = databases_to_read(db)
    for path in paths:
        if is_owned(path) and len(paths) > 1:
            continue
        async with open_to_read(path) as journal:
            rows = [row for row in await journal.read_runs() if row.started.parent_id is None and row.state != "done"]
            if rows:
                if named_database(db) is None:
                    say(f"reading {path}")
                yield path, journal, rows[-1]
                return
    where = str(paths[0]) if len(paths) == 1 else f"the {len(paths)} databases in {data_dir()}"
    raise RunNotFound(f"every run in {where} has finished or is under way; repertory ps -a lists them")


def find_run(rows: Sequence[RunRow], run_id: str | None) -> RunRow | None:
    """The run that an id, or a part of one, stands for; None where there is none.

    Args:
        rows: The runs.
        run_id: The id; None stands for the newest root.

    Raises:
        RunNotFound: Several fit that are not one tree.
    """
    if run_id is None:
        return next((row for row in reversed(rows) if row.started.parent_id is None), None)
    fitting = [row for row in rows if run_id in row.started.run_id]
    exact = [row for row in fitting if row.started.run_id == run_id]
    if exact:
        return exact[0]
    # A root's id is the beginning of the ids below it, so a part of it fits its whole tree.
    first = min(fitting, key=lambda row: len(row.started.run_id), default=None)
    if first is None:
        return None
    others = [row.started.run_id for row in fitting if not row.started.run_id.startswith(first.started.run_id)]
    if others:
        listed = ", ".join([first.started.run_id, *others][:4])
        raise RunNotFound(f"{run_id!r} fits more than one run, say more of it: {listed}")
    return first
