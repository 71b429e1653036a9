"""Commands that keep agents running for others: a service, a company, an MCP server, and the units of systemd."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import platformdirs
import typer

import repertory.service
from repertory._postgres_address import postgres_address
from repertory.cli import output
from repertory.cli.commands import command
from repertory.cli.databases import COMPANY, Database, runs_database
from repertory.cli.options import BACKEND, CONTEXT, OWN_DATABASE, Backend, HowServed, Offered, argument, option
from repertory.cli.running import find_object
from repertory.errors import ConfigurationError, JournalLocked, RepertoryError, ServiceUnavailable
from repertory.mcp.server import serve_over_stdio
from repertory.record.sqlite_file import owner_of
from repertory.service.client import open_client
from repertory.service.control import Control
from repertory.service.logfile import open_log, showing_warnings, with_times
from repertory.service.offers import Offers
from repertory.service.places import anchor_of, file_served, service_of
from repertory.service.run_tools import ABOUT, run_tools
from repertory.service.systemd import SOCKET_UNIT, service_unit
from repertory.supervisor import open_supervisor


@command
async def serve(
    *,
    db: str | None = OWN_DATABASE,
    socket: Path | None = option("--socket PATH", "The unix socket. Default: ctl.sock in the runtime folder."),
    port: int | None = option("--port N", "A port of 127.0.0.1 instead; 0 for any.", min=0, max=65535),
    offered: Offered,
    context: str | None = CONTEXT,
    how: HowServed,
    resume: bool = option("--resume", "Continue what an earlier process left unfinished.", False),
    read_only: bool = option("--read-only", "Refuse everything that changes something.", False),
    keep_finished: float | None = option(
        "--keep-finished DAYS", "Remove runs for good once they ended so many days ago. Default: keep all.", min=0
    ),
    label: list[str] = option(
        "--label LABEL", "On PostgreSQL: what this machine offers to runs that ask for it. May be repeated.", ()
    ),
    name: str | None = option("--name NAME", "On PostgreSQL: what this machine is called. Default: host and pid."),
    lease: float | None = option(
        "--lease SECONDS",
        "On PostgreSQL: if it is silent for so long, others take over its runs. Default: 30.",
        min=0.5,
    ),
    telemetry: str | None = option(
        "--telemetry MODULE:NAME", "What makes traces and metrics: a Telemetry, or a function that makes one."
    ),
    log: Path | None = option("--log FILE", "Write the log to this file instead of standard error."),
) -> None:
    """Keep a supervisor running, with an HTTP interface and a page.

    On SIGTERM or Ctrl-C the runs stop at their next boundary and can be resumed; a second one kills them. SIGHUP
    reopens the log file. Sockets that systemd passes replace --socket and --port.
    """
    options = repertory.service.Options(
        database=runs_database(db),
        socket=socket,
        port=port,
        agents=offered.agent,
        context=find_object(context, "context"),
        root=offered.root,
        read_only=read_only,
        resume=resume,
        model=how.model,
        limits=how.limits,
        summaries=how.summaries,
        redact=offered.redact,
        keep_finished=keep_finished,
        telemetry=find_object(telemetry, "telemetry"),
        log=log,
        name=name,
        labels=label,
        lease=lease,
    )
    await repertory.service.run_service(options, report=with_times(output.say))


@command
async def mcp(
    *,
    db: str | None = OWN_DATABASE,
    offered: Offered,
    context: str | None = CONTEXT,
    how: HowServed,
) -> None:
    """Serve agents and their runs over MCP, to a client such as an editor.

    The client starts this command and talks to it over standard input and output. Each agent is a tool that takes a
    task and gives the answer; other tools start, follow and steer runs. When the client leaves, its runs stop at their
    next boundary and can be resumed.
    """
    if not offered.agent and offered.root is None:
        raise ConfigurationError(
            "nothing to serve: name an agent with --agent module:name, or a folder with --root DIR"
        )
    # Before the database is opened: a mistake in these leaves none behind.
    handed, offers = find_object(context, "context"), Offers(offered.agent, root=offered.root, limits=how.limits)
    opened = open_supervisor(runs_database(db), model=how.model, summaries=how.summaries, redact=offered.redact)
    with showing_warnings():
        async with opened as supervisor:
            await serve_over_stdio(run_tools(Control(supervisor, offers, context=handed)), instructions=ABOUT)


# --- a company -----------------------------------------------------------------------------------------


_FILE = argument("FILE", "The company file.", Path(COMPANY))
_WAIT = 30.0  # seconds that --detach waits for an answer, and that down waits for a service that answers to end
_WRITING = 1.0  # seconds that --detach waits for the line with the link to the page, which a full disk does not take
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
    company = repertory.service.read_company(file)
    anchor, database = _database(file)
    owner, place = owner_of(anchor), service_of(anchor)
    if owner is not None and (anchor != database or place is not None):
        does = "opens its database" if place is None else f"serves it at {place}"
        raise JournalLocked(
            f"{file} is already up: process {owner.pid} {does}; repertory reload {file} makes it read the file again, "
            f"repertory down {file} ends it"
        )
    await company.check_keys()  # rather than that each of its runs fails
    if not detach:
        await repertory.service.run_service(company.options(), report=with_times(output.say))
        return
    log = file.with_suffix(".log") if company.is_shared else company.anchor.with_suffix(".log")
    if company.service.log is not None:
        log = file.absolute().parent / company.service.log  # noqa: ASYNC240 - nothing else goes on
    _start_apart(file, company.anchor, log, backend)


@command
async def down(
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
    going, place = None, service_of(anchor)
    if place is not None and not now:
        with suppress(RepertoryError):  # it hangs, or is ending
            async with open_client(place, database=database) as client:
                going = client.service.going
    os.kill(owner.pid, signal.SIGKILL if now else signal.SIGTERM)
    if going is None and not now:
        output.say(f"process {owner.pid} was told to end, but does not answer")
    elif not now:
        then = " and can be resumed" if anchor == database else ", from where any machine continues it"
        output.say(f"process {owner.pid} is ending; runs in progress: {going}; each stops at its next boundary{then}")
    if not _until(lambda: owner_of(anchor) != owner, _WAIT if now or going is not None else _FROZEN):
        raise ServiceUnavailable(
            f"process {owner.pid} has not ended; it may wait for its database, hang, or be suspended (kill -CONT "
            f"{owner.pid}): repertory down {file} waits longer, repertory down --now {file} kills it; nothing that was "
            "acknowledged is lost"
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
    _ = repertory.service.read_company  # first of all: if libraries are missing, it says what to install
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
    path = file.absolute()
    anchor = anchor_of(path)
    place = service_of(anchor)
    served = file_served(anchor) if place is None else postgres_address(place.server or "")
    if served is not None:
        return served if isinstance(served, Path) else anchor, served
    _need(file)
    from repertory.service.company import anchor_of_company, database_of, read_service

    settings = read_service(file)
    return anchor_of_company(path, settings), database_of(path, settings)


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

    def written() -> str:
        if not said.is_file():
            return ""  # a device has no end
        return said.read_bytes()[begun:].decode("utf-8", "replace").strip()

    came = _until(lambda: process.poll() is not None or service_of(anchor) is not None)
    place = service_of(anchor)
    if place is not None:
        _until(lambda: "serving " in written(), _WRITING)
    words = written()
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


# --- units of systemd ----------------------------------------------------------------------------------


service = typer.Typer(help="Write the systemd units of a service that your user runs.")

_WORDS = argument("COMMAND...", "What the unit runs: serve or up, with their options. Default: serve --resume.", ())
_NAME = option("--name NAME", "The name of the unit, without .service.", "repertory")
_ACTIVATED = option(
    "--socket-activation",
    "Let systemd hold the socket: clients wait while the service starts, and the first of them starts it.",
    False,
)
# Options after the name of the command belong to that command: serve has options that print has not.
_PASSED_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False}


@service.command("print", context_settings=_PASSED_ON)
def print_units(words: list[str] = _WORDS, *, name: str = _NAME, socket_activation: bool = _ACTIVATED) -> None:
    """Show the units.

    Options of the unit come before the command, the command's own after it, as in
    service print --name clerks serve --agent my_agents:clerk --resume.
    """
    for file, text in _units(words, name, activated=socket_activation).items():
        output.write(f"# {file}\n{text}")


@service.command(context_settings=_PASSED_ON)
def install(
    words: list[str] = _WORDS,
    *,
    name: str = _NAME,
    socket_activation: bool = _ACTIVATED,
    force: bool = option("--force", "Replace existing units that differ.", False),
) -> None:
    """Write the units into your systemd folder.

    They are for your own user and run in this folder. Nothing is started.
    """
    folder = platformdirs.user_config_path("systemd", appauthor=False) / "user"  # see systemd.unit(5)
    units = {folder / file: text for file, text in _units(words, name, activated=socket_activation).items()}
    for path, text in units.items():
        if not force and path.exists() and path.read_text(encoding="utf-8") != text:
            raise ConfigurationError(f"{path} exists and differs; --force replaces it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in units.items():
            beside = path.with_name(f".{path.name}.new")
            beside.write_text(text, encoding="utf-8")
            beside.replace(path)
            output.say(f"wrote {path}")
    except OSError as error:
        raise ConfigurationError(f"cannot write {error.filename}: {error.strerror}") from error
    started = f"{name}.socket" if socket_activation else f"{name}.service"
    output.say("start it, and keep it running while you are logged out, with:")
    # To be copied: without a prefix.
    output.remark(
        f"  systemctl --user daemon-reload\n  systemctl --user enable --now {started}\n  loginctl enable-linger"
    )


def _units(words: list[str], name: str, *, activated: bool) -> dict[str, str]:
    words = list(words) or ["serve", "--resume"]
    if words[0] not in ("serve", "up"):
        raise ConfigurationError(f"a unit runs serve or up, not {words[0]!r}; as in: service print serve --resume")
    if "--detach" in words:
        raise ConfigurationError("systemd itself keeps the service in the background; leave --detach out")
    if not name or not all(letter.isalnum() or letter in "-_.@" for letter in name):
        raise ConfigurationError(f"a unit's name has letters, digits and any of -_.@, got {name!r}")
    command = [sys.executable, "-m", "repertory", *words]
    units = {f"{name}.service": service_unit(command, folder=os.getcwd(), name=name, activated=activated)}
    return units | ({f"{name}.socket": SOCKET_UNIT} if activated else {})
