"""Finds the database or the service that a command is for, and the run in it."""

from __future__ import annotations

import os
import shlex
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import anyio
import platformdirs

from repertory._postgres_address import PostgresAddress, postgres_address
from repertory.cli.options import At
from repertory.cli.output import NothingThere, say
from repertory.errors import ConfigurationError, JournalLocked, RunError, RunNotFound, ServiceUnavailable
from repertory.record import RunRow
from repertory.record.sqlite_file import owner_of
from repertory.service.places import Place, anchor_of, file_served, service_of, usual_service
from repertory.service.sources import RecordSource, RunSource, open_record

if TYPE_CHECKING:
    from repertory.service.client import ServiceClient

VARIABLE = "REPERTORY_DB"
RUNS = "runs.db"  # the database in the data folder, unless another is named
COMPANY = "company.toml"  # the file of a company, unless another is named

Database: TypeAlias = Path | PostgresAddress
"""A file, or a database of a PostgreSQL server."""


def data_dir() -> Path:
    """The default folder for databases."""
    return Path(platformdirs.user_data_dir("repertory", appauthor=False))


def make_folder(folder: Path, advice: str = "") -> None:
    """Make a folder, accessible to its owner alone, if it is missing. Raises ``ConfigurationError`` if that fails."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"cannot make the folder {folder}: {error.strerror}{advice}") from error


def usual_database(name: str = RUNS) -> Path:
    """A database in the data folder, which is made if it is missing."""
    make_folder(data_dir(), f"; name a database with --db FILE or ${VARIABLE}")
    return data_dir() / name


def named_database(db: str | None) -> Database | None:
    """The database that the user named, on the command line or in the environment; None if neither names one."""
    named = os.environ.get(VARIABLE) if db is None else db
    return postgres_address(named) or Path(named) if named else None


def runs_database(db: str | None) -> Database:
    """The database of a command that starts runs itself."""
    return named_database(db) or usual_database()


def company_database(file: Path) -> Database | None:
    """The database of a company: the file that its running service names, else what the company file says; None if
    that is invalid, or if the libraries of a service are missing.

    ``up`` and ``doctor`` report the details of both. The address of a server is that of the company file, also if a
    service runs: only there it has a password.
    """
    served = file_served(anchor_of(file.absolute()))
    if served is not None:
        return served
    try:
        from repertory.service.company import database_of, read_service

        return database_of(file.absolute(), read_service(file))
    except (ConfigurationError, ModuleNotFoundError):
        return None


def locate(db: str | None) -> tuple[Database, Place | None]:
    """The database that a command is for, which may not exist yet, and the address of its service, if one runs.

    That is the named one, else that of the company in the current folder, up or down, if it was ever up, else that of
    the service at the default socket, else ``runs.db`` in the data folder.
    """
    named = named_database(db)
    if named is not None:
        return named, service_of(named)
    company, runs = company_database(Path(COMPANY)), data_dir() / RUNS
    if company is not None and (isinstance(company, PostgresAddress) or os.path.exists(company)):
        return company, service_of(company)
    return file_served() or runs, usual_service() or service_of(runs)


def database_to_read(db: str | None) -> Database:
    """The database that a command is for. Raises ``NothingThere`` if it does not exist."""
    path, _ = locate(db)
    if isinstance(path, Path) and not os.path.exists(path):  # also for names that no file can have
        raise NothingThere(f"no database at {path}; repertory demo{db_option(named_database(db))} creates it")
    return path


def open_database(db: str | None) -> AbstractAsyncContextManager[RecordSource]:
    """Read a database until the end of the block. Raises ``NothingThere`` if it does not exist."""
    return open_record(database_to_read(db))


def read_row(run_id: str | None, db: str | None, *, unfinished: bool = False) -> tuple[Database, RunRow]:
    """A run and its database; see ``need_run``."""

    async def read() -> tuple[Database, RunRow]:
        async with open_database(db) as source:
            return source.path, await source.journal.read_run(await need_run(source, run_id, db, unfinished=unfinished))

    return anyio.run(read)


async def need_run(source: RunSource, run_id: str | None, db: str | None, *, unfinished: bool = False) -> str:
    """The whole id of a run, by a part of it; without one, of the newest run, or of the newest that did not finish.

    Raises ``NothingThere`` if there is none, and ``RunNotFound`` if several fit. ``db`` is the named database, if any.
    """
    found = await find_id(source, run_id, unfinished=unfinished)
    if found is not None:
        return found
    if run_id is not None:
        raise NothingThere(
            f"there is no run {run_id!r} in {source.database}; repertory ps -a{db_option(db)} lists the runs there"
        )
    if unfinished:
        listed = f"repertory ps -a{db_option(db)} lists them"
        raise NothingThere(f"every run in {source.database} has finished or is in progress; {listed}")
    raise NothingThere(f"there is no run in {source.database} yet")


async def find_id(source: RunSource, run_id: str | None, *, unfinished: bool = False) -> str | None:
    """As ``need_run``; None if there is no such run."""
    if run_id is None:
        return await (source.newest_resumable() if unfinished else source.newest_root())
    # The ids of sub-agents start with the root's, so a part of that fits the whole tree. "" fits nothing.
    fitting = sorted((each for each in await source.ids_with(run_id) if run_id and run_id in each), key=len)
    others = [other for other in fitting if not other.startswith(fitting[0])]
    if others and fitting[0] != run_id:
        listed = ", ".join([fitting[0], *others][:4])
        raise RunNotFound(f"{run_id!r} fits more than one run; give more of the id: {listed}")
    return fitting[0] if fitting else None


# --- a service, or the file -------------------------------------------------------------------------------


@asynccontextmanager
async def open_service(at: At) -> AsyncGenerator[ServiceClient | None]:
    """Connect to the service that a command is for, until the end of the block: the named one, else see ``locate``.

    None if there is none. Raises ``ServiceUnavailable`` if it does not answer.
    """
    if at.socket is not None and at.port is not None:
        raise ConfigurationError("give either --socket or --port, not both")
    if at.is_service_named:
        socket = None if at.socket is None else str(at.socket.absolute())
        place: Place | None = Place(socket=socket, port=at.port)
    else:
        place = locate(at.db)[1]
    if place is None:
        yield None
        return
    from repertory.service.client import open_client  # here, as its libraries take longer to load than a command to run

    async with open_client(place, database=None if at.is_service_named else named_database(at.db)) as client:
        yield client


@asynccontextmanager
async def open_source(at: At, *, record: bool = False) -> AsyncGenerator[RunSource]:
    """Read runs until the end of the block: from the service, or from the database if none answers.

    Args:
        at: The database or the service. One that is named by its socket or port must answer.
        record: Read the database unless a service is named by its socket or port.
    """
    async with AsyncExitStack() as stack:
        client: ServiceClient | None = None
        if at.is_service_named or not record:
            try:
                client = await stack.enter_async_context(open_service(at))
            except ServiceUnavailable as error:
                if at.is_service_named:
                    raise
                say(f"{error}; reading the database file")
        yield await stack.enter_async_context(open_database(at.db)) if client is None else client


@asynccontextmanager
async def ask_service(at: At) -> AsyncGenerator[ServiceClient]:
    """Connect to the service that a command is for, until the end of the block; an error if there is none."""
    async with open_service(at) as client:
        if client is not None:
            yield client
            return
    path = database_to_read(at.db)
    owner = owner_of(path) if isinstance(path, Path) else None
    if owner is not None:
        raise JournalLocked(f"{path} is in use by a process that is not a service", path=str(path), owner=owner.pid)
    where = db_option(named_database(at.db))
    begin = f"serve{where} --resume" if where or path == data_dir() / RUNS else "up"
    raise RunError(
        f"no service runs for {path}: repertory {begin} starts one that continues its runs, repertory resume "
        f"RUN{where} continues one run here"
    )


def db_option(database: Database | str | None) -> str:
    """The ``--db`` option of a suggested command; "" if it needs none."""
    return "" if database is None else f" --db {shlex.quote(str(database))}"


def at_option(at: At) -> str:
    """The options with which a suggested command finds what this one was told of; "" if it needs none."""
    if at.socket is not None:
        return f" --socket {shlex.quote(str(at.socket))}"
    return db_option(named_database(at.db)) if at.port is None else f" --port {at.port}"
