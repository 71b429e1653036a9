"""Finds the database or the service that a command is for, and the run in it."""

from __future__ import annotations

import os
import secrets
import shlex
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from repertory._postgres_address import PostgresAddress, postgres_address
from repertory.cli.options import At
from repertory.cli.output import NothingThere, count, say
from repertory.errors import ConfigurationError, JournalLocked, RunError, RunNotFound, ServiceUnavailable

if TYPE_CHECKING:
    from repertory.record import Journal, RunRow
    from repertory.record.records import RunState
    from repertory.service.client import ServiceClient
    from repertory.service.places import Place
    from repertory.service.sources import RunSource

VARIABLE = "REPERTORY_DB"
COMPANY = "company.toml"  # the file of a company, unless another is named
_UNFINISHED: Final[tuple[RunState, ...]] = ("queued", "running", "waiting", "paused", "failed", "stopped")

Database: TypeAlias = Path | PostgresAddress
"""A file, or a database of a PostgreSQL server."""

Found = TypeVar("Found")


def data_dir() -> Path:
    """The default folder for databases."""
    import platformdirs

    return Path(platformdirs.user_data_dir("repertory", appauthor=False))


def made_data_dir() -> Path:
    """The same folder, created if it is missing, accessible to its owner alone.

    Raises:
        ConfigurationError: It cannot be created.
    """
    folder = data_dir()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"cannot make the data folder {folder}: {error.strerror}; name a database with --db FILE or ${VARIABLE}"
        ) from error
    return folder


def kept_databases() -> list[Path]:
    """The databases in the data folder, the last written first."""
    written: dict[Path, float] = {}
    for file in data_dir().glob("*.db*"):  # a write goes first to the log beside a database
        with suppress(OSError):  # closing a database removes its log
            path = file.with_name(file.name.removesuffix("-wal"))
            written[path] = max(file.stat().st_mtime, written.get(path, 0.0))
    return sorted(
        (path for path in written if path.suffix == ".db" and path.exists()), key=written.__getitem__, reverse=True
    )


def named_database(db: str | None) -> Database | None:
    """The database that the user named, on the command line or in the environment; None if neither names one."""
    named = os.environ.get(VARIABLE) if db is None else db
    return postgres_address(named) or Path(named) if named else None


def new_database() -> Path:
    """A path for a new database of a demo."""
    return made_data_dir() / f"demo-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}.db"


def runs_database(db: str | None) -> Database:
    """The database that ``repertory run`` writes to."""
    return named_database(db) or made_data_dir() / "runs.db"


def company_served() -> tuple[Database, Place] | None:
    """The database of the company in the current folder, and the address of its service; None if none runs."""
    from repertory.service.places import service_of

    file = Path(COMPANY)
    database = company_database(file)
    place = None if database is None else service_of(database)
    return None if database is None or place is None else (database, place)


def company_database(file: Path) -> Database | None:
    """The database of a company: the file that its running service names, else what the company file says; None if
    that is invalid, or if the libraries of a service are missing.

    ``up`` and ``doctor`` report the details of both.
    """
    from repertory.service.places import anchor_of, file_served

    served = file_served(anchor_of(file.absolute()))
    if served is not None:
        return served
    try:
        from repertory.service.company import database_of, read_service

        return database_of(file.absolute(), read_service(file))
    except (ConfigurationError, ModuleNotFoundError):
        return None


def known_databases() -> list[Database]:
    """First the company's in the current folder, else that of the service at the default socket; then the kept ones."""
    from repertory.service.places import file_served

    here = company_served()
    served = file_served() if here is None else here[0]
    first = [] if served is None else [served]
    seen = {os.path.realpath(str(each)) for each in first}
    return [*first, *(path for path in kept_databases() if os.path.realpath(path) not in seen)]


def databases_to_read(db: str | None) -> Sequence[Database]:
    """The databases that a command may read: the named one, else all that are known, the preferred one first.

    Raises:
        NothingThere: There is none.
    """
    named = named_database(db)
    if named is not None:
        if isinstance(named, Path) and not os.path.exists(named):  # also for names that no file can have
            raise NothingThere(f"no database at {named}; repertory demo{db_option(named)} creates one")
        return [named]
    known = known_databases()
    if not known:
        raise NothingThere(f"no database in {data_dir()} yet; repertory demo creates one, or name one with --db FILE")
    return known


@asynccontextmanager
async def open_with(
    db: str | None, find: Callable[[Database, Journal], Awaitable[Found | None]], missing: Callable[[str], str]
) -> AsyncGenerator[tuple[Database, Journal, Found]]:
    """Find something in the named database or in the known ones, and read that database until the end of the block.

    Args:
        db: The named database, if any.
        find: Gets a database's path and its journal; returns None if it finds nothing there.
        missing: Makes the message if nothing is found, from a description of the databases that were searched.

    Raises:
        NothingThere: There is no database, or none has it.
    """
    from repertory.record import open_journal

    paths = databases_to_read(db)
    for path in paths:
        async with open_journal(path, readonly=True) as journal:
            found = await find(path, journal)
            if found is not None:
                if named_database(db) is None:
                    say(f"reading {path}")
                yield path, journal, found
                return
    raise NothingThere(missing(str(paths[0]) if len(paths) == 1 else f"the {len(paths)} databases in {data_dir()}"))


@asynccontextmanager
async def open_run(
    run_id: str | None, db: str | None, *, unfinished: bool = False
) -> AsyncGenerator[tuple[Database, Journal, RunRow]]:
    """Find a run in the named database or in the known ones, and read that database until the end of the block.

    Args:
        run_id: Its id, or a part of it; None for the newest.
        db: The named database, if any.
        unfinished: Without an id, find the newest run that did not finish and that no process works on.

    Raises:
        NothingThere: There is no database, or no such run.
        RunNotFound: Several runs fit.
    """
    from repertory.record.opening import is_owned

    newest = run_id is None and unfinished

    async def find(path: Database, journal: Journal) -> RunRow | None:
        if newest and len(databases_to_read(db)) > 1 and is_owned(path):
            return None
        if newest:
            left = await journal.read_runs(states=_UNFINISHED)
            return next((row for row in reversed(left) if row.started.parent_id is None), None)
        return await find_run(journal, run_id)

    def missing(where: str) -> str:
        if newest:
            return f"every run in {where} has finished or is in progress; repertory ps -a{db_option(db)} lists them"
        return str(no_run(run_id, where, db))

    async with open_with(db, find, missing) as found:
        yield found


def read_row(run_id: str | None, db: str | None, *, unfinished: bool = False) -> tuple[Database, RunRow]:
    """A run and its database; see ``open_run``."""
    import anyio

    async def read() -> tuple[Database, RunRow]:
        async with open_run(run_id, db, unfinished=unfinished) as (path, _, row):
            return path, row

    return anyio.run(read)


async def find_run(journal: Journal, run_id: str | None) -> RunRow | None:
    """The run with an id, or with a part of it; without one the newest root. None if there is none.

    Raises:
        RunNotFound: Several runs fit that are not in one tree.
    """
    from repertory.record.run_lists import RootFilter

    if run_id is None:
        roots, _ = await journal.read_roots(RootFilter(), 1)
        return await journal.read_run(roots[0]) if roots else None
    found = _find_id(await journal.read_ids(run_id), run_id)
    return None if found is None else await journal.read_run(found)


def _find_id(ids: Iterable[str], part: str) -> str | None:
    """The whole id for a part of one; None if there is none. Raises as ``find_run``."""
    # The ids of sub-agents start with the root's, so a part of that fits the whole tree. "" fits nothing.
    fitting = sorted((run_id for run_id in ids if part and part in run_id), key=len)
    others = [other for other in fitting if not other.startswith(fitting[0])]
    if others and fitting[0] != part:
        listed = ", ".join([fitting[0], *others][:4])
        raise RunNotFound(f"{part!r} fits more than one run; give more of the id: {listed}")
    return fitting[0] if fitting else None


# --- a service, or the file -------------------------------------------------------------------------------


def find_service(at: At) -> Place | None:
    """The address of the service that a command is for: the named one, else the one that owns the named database,
    else that of the company in the current folder, else one of this user's. None if there is none.
    """
    from repertory.service.places import Place, service_of, usual_service

    if at.is_service_named:
        if at.socket is not None and at.port is not None:
            raise ConfigurationError("give either --socket or --port, not both")
        return Place(socket=None if at.socket is None else os.path.abspath(at.socket), port=at.port)
    named = named_database(at.db)
    if named is not None:
        return service_of(named)
    here = company_served()
    if here is not None:
        return here[1]
    return usual_service() or next((place for path in kept_databases() if (place := service_of(path))), None)


@asynccontextmanager
async def open_service(at: At) -> AsyncGenerator[ServiceClient | None]:
    """Connect to the service that a command is for, until the end of the block; None if there is none.

    Raises:
        ServiceUnavailable: It does not answer.
    """
    from repertory.service.client import open_client

    place = find_service(at)
    if place is None:
        yield None
        return
    async with open_client(place, database=None if at.is_service_named else named_database(at.db)) as client:
        yield client


@asynccontextmanager
async def open_source(at: At, *, quiet: bool = False) -> AsyncGenerator[RunSource]:
    """Read runs until the end of the block: from the service, or from the database if none answers.

    Args:
        at: The database or the service.
        quiet: Do not say which database is read.

    Raises:
        NothingThere: There is no database.
        ServiceUnavailable: The service that was named by its socket or port does not answer.
    """
    from repertory.service.sources import open_record

    async with AsyncExitStack() as stack:
        client = await _answering(at, stack)
        if client is not None:
            yield client
            return
        path, *others = databases_to_read(at.db)
        if named_database(at.db) is None and not quiet:
            more = f"; {count(len(others), 'older database')} beside it, --db FILE selects one" if others else ""
            say(f"reading {path}{more}")
        yield await stack.enter_async_context(open_record(path))


async def _answering(at: At, stack: AsyncExitStack) -> ServiceClient | None:
    """The service that a command is for; None if there is none, or if it does not answer and was not named."""
    try:
        return await stack.enter_async_context(open_service(at))
    except ServiceUnavailable as error:
        if at.is_service_named:
            raise
        say(f"{error}; reading the database file")
        return None


@asynccontextmanager
async def open_source_of(run_id: str | None, at: At) -> AsyncGenerator[tuple[RunSource, str]]:
    """Find a run by its id, or a part of it, and read it until the end of the block.

    Args:
        run_id: The id; None for the newest root.
        at: The database or the service.

    Raises:
        NothingThere: There is no database, or no such run.
        RunNotFound: Several runs fit.
    """
    from repertory.record.opening import is_owned
    from repertory.service.sources import RecordSource

    async with AsyncExitStack() as stack:
        client = await _answering(at, stack)
        if client is not None:
            found = await find_in_service(client, run_id)
            if found is not None:
                yield client, found
                return
            if at.is_service_named or named_database(at.db) is not None:
                raise no_run(run_id, client.database, at.db)
    async with open_run(run_id, at.db) as (path, journal, row):
        yield RecordSource(journal, path, owned=is_owned(path)), row.started.run_id


@asynccontextmanager
async def ask_service(at: At) -> AsyncGenerator[ServiceClient]:
    """Connect to the service that a command is for, until the end of the block.

    Raises:
        NothingThere: There is no database.
        JournalLocked: A process that is not a service owns the database.
        RunError: No process owns it.
        ServiceUnavailable: The service does not answer.
    """
    from repertory.record.sqlite_file import owner_of

    async with open_service(at) as client:
        if client is not None:
            yield client
            return
    path = databases_to_read(at.db)[0]
    owner = owner_of(path) if isinstance(path, Path) else None
    if owner is not None:
        raise JournalLocked(f"{path} is in use by a process that is not a service", path=str(path), owner=owner.pid)
    where = db_option(named_database(at.db))
    raise RunError(
        f"no service runs for {path}: repertory serve{where} --resume starts one that continues its runs, repertory "
        f"resume RUN{where} continues one run here"
    )


@asynccontextmanager
async def ask_service_of(run_id: str, at: At) -> AsyncGenerator[tuple[ServiceClient, str]]:
    """The same, with the whole id of a run. Raises ``NothingThere`` also if there is no such run."""
    async with ask_service(at) as client:
        found = await find_in_service(client, run_id)
        if found is None:
            raise no_run(run_id, client.database, None)
        yield client, found


async def find_in_service(client: ServiceClient, run_id: str | None) -> str | None:
    """The whole id of a run of a service; None if there is none. Raises ``RunNotFound`` if several fit."""
    if run_id is None:
        return await client.newest_root()
    if await client.find_id(run_id) == run_id:  # otherwise it is a part, which may fit others, too
        return run_id
    return _find_id(await client.list_ids(), run_id)


def no_run(run_id: str | None, where: str, db: str | None) -> NothingThere:
    """The error for a run that does not exist; ``db`` is the named database, if any."""
    if run_id is None:
        return NothingThere(f"there is no run in {where} yet")
    return NothingThere(f"there is no run {run_id!r} in {where}; repertory ps -a{db_option(db)} lists the runs there")


def db_option(database: Database | str | None) -> str:
    """The ``--db`` option of a suggested command; "" if it needs none."""
    return "" if database is None else f" --db {shlex.quote(str(database))}"
