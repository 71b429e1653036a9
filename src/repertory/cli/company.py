"""``repertory up``, ``down`` and ``reload``: a company of agents from one file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import anyio

from repertory import service
from repertory._postgres_address import postgres_address
from repertory.cli import output
from repertory.cli.commands import command
from repertory.cli.databases import COMPANY, Database
from repertory.cli.options import BACKEND, Backend, argument, option
from repertory.errors import ConfigurationError, JournalLocked, RepertoryError, ServiceUnavailable
from repertory.record.sqlite_file import owner_of
from repertory.service.client import open_client
from repertory.service.logfile import open_log, with_times
from repertory.service.places import anchor_of, file_served, service_of

_FILE = argument("FILE", "The company file.", Path(COMPANY))
_WAIT = 30.0  # seconds that --detach waits for an answer, and that down waits for a service that answers to end
_FROZEN = 6.0  # seconds that down waits for a service that did not answer: ten in all, with the time for asking it


@command
async def up(
    file: Path = _FILE,
    *,
    detach: bool = option("--detach", "Return once the service answers, and leave it running.", False),
    backend: Backend = BACKEND,
) -> None:
    """Start a company: agents, limits, quotas and models, from its file.

    Runs that an earlier process left unfinished continue. On SIGTERM or Ctrl-C the runs stop at their next boundary.
    """
    _need(file, is_new=True)
    company = service.read_company(file)
    _check_alone(file)
    await company.check_keys()  # rather than that each of its runs fails
    if not detach:
        await service.run_service(company.options(), report=with_times(output.say))
        return
    log = file.with_suffix(".log") if company.is_shared else company.anchor.with_suffix(".log")
    if company.service.log is not None:
        log = file.absolute().parent / company.service.log  # noqa: ASYNC240 - nothing else goes on
    _start_apart(file, company.anchor, log, backend)


@command
def down(
    file: Path = _FILE,
    *,
    now: bool = option("--now", "Kill it at once. Nothing on record is lost, and every run can go on.", False),
) -> None:
    """End a company's service.

    Its runs stop at their next boundary, and continue from there at the next up. Errors in the file do not matter.
    """
    anchor, database = _database(file)
    owner = owner_of(anchor)
    # Beside a file any command may hold the lock; beside the stand-in for a server, only a service that opens it.
    if owner is None or (anchor == database and not owner.words):
        output.say(f"no service runs for {file}" + (f"; process {owner.pid} uses {database}" if owner else ""))
        return
    going = 0 if now else _under_way(anchor, database)
    os.kill(owner.pid, signal.SIGKILL if now else signal.SIGTERM)
    if going is None:
        output.say(f"process {owner.pid} was told to end, but does not answer")
    elif not now:
        then = " and can be resumed" if anchor == database else ", from where any machine continues it"
        output.say(f"process {owner.pid} is ending; runs in progress: {going}; each stops at its next boundary{then}")
    if not _until(lambda: owner_of(anchor) != owner, _FROZEN if going is None else _WAIT):
        raise ServiceUnavailable(
            f"process {owner.pid} has not ended; it may hang or be suspended (kill -CONT {owner.pid}): repertory down "
            f"{file} waits longer, repertory down --now {file} kills it; nothing that was acknowledged is lost"
        )
    output.say("ended")


@command
async def reload(file: Path = _FILE) -> None:
    """Make a running company read its file again. A file with an error changes nothing; the error says where.

    Runs that have begun keep their definitions.
    """
    anchor, database = _database(file)
    place = service_of(anchor)
    if place is None:
        raise ServiceUnavailable(f"no service runs for {file}; repertory up {file} starts it")
    async with open_client(place, database=database) as client:
        notes = await client.reload()
    for line in (*notes, "reloaded"):
        output.say(line)


def _need(file: Path, *, is_new: bool = False) -> None:
    """Check that the company file exists; if it may still have to be written, show an example."""
    _ = service.read_company  # first of all: if libraries are missing, it says what to install
    if os.path.exists(file):  # also for names that no file can have
        return
    if is_new:
        from repertory.service.company import EXAMPLE

        output.say(f"a company file names the agents that can be started. Write {file}, for example:")
        output.remark(f"\n{EXAMPLE}")
    raise ConfigurationError(f"there is no file {str(file)!r}; name the company file")


def _database(file: Path) -> tuple[Path, Database]:
    """The file that a company's service locks, and its database: as the service says, whatever its file says by now;
    if none runs, as the file says.
    """
    serving = _serving(file)
    if serving is not None:
        return serving
    _need(file)
    from repertory.service.company import anchor_of_company, database_of, read_service

    path, settings = file.absolute(), read_service(file)
    return anchor_of_company(path, settings), database_of(path, settings)


def _serving(file: Path) -> tuple[Path, Database] | None:
    """The same, only if the service runs; None if it does not."""
    anchor = anchor_of(file.absolute())
    place = service_of(anchor)
    if place is None:  # the anchor names a file
        database = file_served(anchor)
        return None if database is None else (database, database)
    address = postgres_address(place.server or "")
    return None if address is None else (anchor, address)


def _check_alone(file: Path) -> None:
    anchor, database = _database(file)
    owner, place = owner_of(anchor), service_of(anchor)
    if owner is not None and (anchor != database or place is not None):
        does = "opens its database" if place is None else f"serves it at {place}"
        raise JournalLocked(
            f"{file} is already up: process {owner.pid} {does}; repertory reload {file} makes it read the file again, "
            f"repertory down {file} ends it"
        )


def _under_way(anchor: Path, database: Database) -> int | None:
    """How many runs the service has in progress; None if it does not answer."""
    place = service_of(anchor)

    async def main() -> int:
        assert place is not None
        async with open_client(place, database=database) as client:
            return client.service.going

    try:
        return anyio.run(main) if place is not None else None
    except RepertoryError:  # it hangs, or is ending
        return None


def _start_apart(file: Path, anchor: Path, said: Path, backend: Backend) -> None:
    """Start the service in a process of its own, and wait until it answers."""
    command = [sys.executable, "-m", "repertory", "up", str(file), "--backend", backend]
    descriptor = open_log(said)
    begun = os.fstat(descriptor).st_size
    try:
        process = subprocess.Popen(  # noqa: S603 - this very program
            command, stdin=subprocess.DEVNULL, stdout=descriptor, stderr=descriptor, start_new_session=True
        )
    finally:
        os.close(descriptor)
    came = _until(lambda: process.poll() is not None or service_of(anchor) is not None)
    place = service_of(anchor)
    words = (
        said.read_bytes()[begun:].decode("utf-8", "replace").strip() if said.is_file() else ""
    )  # a device has no end
    if place is not None and process.poll() is None:
        output.say(f"up: process {process.pid} at {place}, its log is {said}")
        output.remark(words)  # includes the link to the page
        process.returncode = 0  # the process is left running on purpose, so no ResourceWarning is wanted
        return
    last = words.removeprefix("repertory: ").splitlines()[-1] if words else f"see {said}"
    if came:
        raise ServiceUnavailable(f"the service ended with exit code {process.returncode}: {last}")
    process.terminate()
    raise ServiceUnavailable(f"the service did not answer in {_WAIT:g} s and was ended: {last}")


def _until(condition: Callable[[], bool], seconds: float = _WAIT) -> bool:
    """Wait until a condition holds that another process brings about; whether it did in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
