"""The service process: it opens the supervisor, serves until a signal, and ends so that every run can be resumed."""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.abc
import msgspec

from repertory._counting import counted
from repertory._error_texts import leaves_of
from repertory._held_signal import HeldSignal
from repertory._postgres_address import PostgresAddress, postgres_address
from repertory._repeated_event import RepeatedEvent
from repertory.errors import ConfigurationError, JournalUnavailable, RepertoryError
from repertory.llm.model import Model
from repertory.runs import AlertThresholds, Telemetry
from repertory.service.access import Access
from repertory.service.app import RESERVED, create_app
from repertory.service.cleaning import run_retention
from repertory.service.control import Control
from repertory.service.logfile import LogFile, logging_to, showing_warnings, with_times
from repertory.service.offers import Offers
from repertory.service.places import anchor_of, announce_service, file_announced, holding, naming, place_of_listener
from repertory.service.server import connection_limit, serve_http
from repertory.service.sockets import default_socket, tcp_listener, unix_listener
from repertory.service.systemd import Notifier, passed_sockets
from repertory.service.tokens import default_token_file, read_or_make_token
from repertory.service.webhooks import Webhook
from repertory.supervisor import Supervisor, open_supervisor

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_CLOSING: Final = 5.0  # seconds for everything but the runs: open answers, the journal's queue
_MAINTENANCE_INTERVAL: Final = 10.0  # seconds between two looks at the log file, and two lines of status for systemd
_DATABASE_RETRY: Final = 5.0  # seconds between two attempts to reach the database server at the start


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a service.

    Attributes:
        database: The journal's file, or the address of a PostgreSQL database.
        socket: The unix socket to listen at; None means ``ctl.sock`` in the user's runtime folder.
        port: The port of 127.0.0.1 to listen at instead, 0 for any; None means the unix socket. Sockets passed by
            systemd replace both.
        token_file: The file that keeps the token for the port; None means ``service-token`` in the user's state folder.
        agents: The agents that runs can be started with, as ``module:name``.
        context: The object that tools of its runs find in ``ToolContext.context``; None for none.
        root: The folder that the research team may read; None offers no research team.
        read_only: Refuse every request that changes something.
        resume: Resume the runs that an earlier process left unfinished, but not those that were paused. On PostgreSQL
            it resumes them in any case.
        model: The model of agents that name none; None takes what the environment offers.
        limits: Fields of ``Limits`` to override for every run that is started here.
        summaries: The models that write summaries; see ``open_supervisor``.
        redact: Environment variables whose values are neither recorded nor shown to a model.
        drain_timeout: Seconds that runs have at shutdown to reach their next boundary.
        keep_finished: Days after which a tree of runs that has ended is removed from the database, for good; None keeps
            them all.
        webhooks: The addresses that are told of changes of state.
        alerts: The thresholds of alerts; None for no alerts.
        telemetry: Makes traces and metrics, such as ``repertory.otel.OpenTelemetry()``; None for none.
        log: The log file of the process; None for standard error.
        name: The machine's name, if several share a journal on PostgreSQL; None for the host and the process id.
        labels: Labels that the machine offers there to runs that ask for them.
        lease: Seconds after which other machines take over its runs if it stops responding; None for the default.
        company: The company file that the service follows; commands find the service by it if its database is on a
            server. None for none.
        on_start: Called once before the first request; None for nothing. It may set ``Control.on_reload``, which is
            called at SIGHUP, after the log file was reopened, and at ``POST /reload``, and returns lines about what it
            could not change. What it raises is reported, and the service continues unchanged.
    """

    database: str | os.PathLike[str] | PostgresAddress
    socket: Path | None = None
    port: int | None = None
    token_file: Path | None = None
    agents: Sequence[str] = ()
    context: Any = None
    root: Path | None = None
    read_only: bool = False
    resume: bool = False
    model: Model | str | None = None
    limits: Mapping[str, float | None] = msgspec.field(default_factory=dict[str, float | None])
    summaries: Model | str | Sequence[Model | str] | None = None
    redact: Sequence[str] = ()
    drain_timeout: float = 5.0
    keep_finished: float | None = None
    alerts: AlertThresholds | None = AlertThresholds()
    telemetry: Telemetry | None = None
    log: Path | None = None
    name: str | None = None
    labels: Sequence[str] = ()
    lease: float | None = None
    company: Path | None = None
    on_start: Callable[[Control], None] | None = None
    webhooks: Sequence[Webhook] = ()


@with_times
def _to_stderr(line: str) -> None:
    with suppress(OSError):  # the disk is full, or nobody reads any more: no reason to end
        sys.stderr.write(f"repertory: {line}\n")
        sys.stderr.flush()


async def run_service(options: Options, *, report: Callable[[str], None] = _to_stderr) -> None:
    """Serve until SIGTERM or SIGINT. Runs then stop at their next boundary and can be resumed; a second signal kills.

    SIGHUP reopens the log file and reloads; if the service runs at a terminal, it ends the service like SIGTERM. Once
    the service has ended, signals are handled as before.

    Args:
        options: The options of the service.
        report: Called with single lines for a person at the terminal.

    Raises:
        JournalLocked: Another process uses the database.
        AddressInUse: Another process uses the socket or port.
        JournalUnavailable: The database server did not answer before a signal came.
        ConfigurationError: An option cannot be met.
    """
    if options.socket is not None and options.port is not None:
        raise ConfigurationError("either a socket or a port can be served at, got both")
    database = postgres_address(options.database) or options.database
    # Before the database is opened: a mistake in these leaves none behind, and takes no run from another machine.
    offers = Offers(options.agents, root=options.root, limits=options.limits)
    for name in options.redact:
        if not os.environ.get(name, "").strip():
            report(f"--redact {name}: no such variable is set, so nothing is redacted; is the name right?")
    systemd = Notifier.from_environment()
    with ExitStack() as sockets, showing_warnings(), logging_to(options.log) as log:
        if isinstance(database, PostgresAddress):  # there is no file with a lock beside it
            server, anchor = str(database), anchor_of(options.company)
            sockets.enter_context(holding(anchor))
        else:
            server, anchor = None, Path(database)
        passed = [sockets.enter_context(each) for each in passed_sockets()]
        asked_to_end, reload = anyio.Event(), RepeatedEvent()
        async with (
            _listening_for_signals(asked_to_end, reload, report) as process,
            _open_patiently(options, database, asked_to_end, report) as supervisor,
        ):
            control = Control(supervisor, offers, context=options.context)
            control.monitor.on_round.append(systemd.alive)
            control.deliveries.set_webhooks(options.webhooks)
            control.has_resumed = False
            if options.on_start is not None:
                options.on_start(control)
            if server is None and options.company is not None:  # until the end it is found, if its file is wrong
                sockets.enter_context(naming(anchor, anchor_of(options.company)))
            stopping = anyio.Event()
            with ExitStack() as stack:
                listeners = _listeners(options, passed, stack)
                for listener, _, _ in listeners:
                    stack.enter_context(file_announced(listener, database))
                async with anyio.create_task_group() as tasks, anyio.create_task_group() as maintenance:
                    tasks.start_soon(control.run)
                    control.monitor.most_connections = connection_limit()
                    most = control.monitor.most_connections // len(listeners)
                    for listener, access, _ in listeners:
                        app = create_app(control, access, max_followers=max(most // 2, most - RESERVED))
                        serve = partial(serve_http, max_connections=most, stopping=stopping, report=report)
                        tasks.start_soon(partial(serve, app, listener, counted=control.monitor.count_connection))
                    # Of several announce the socket: it needs no token.
                    reached = [place_of_listener(each, token_file=options.token_file) for each, _, _ in listeners]
                    place = min(reached, key=lambda place: place.port is not None)
                    announce_service(anchor, msgspec.structs.replace(place, server=server))
                    # Last, because whoever reads this may look for the service at once.
                    report(f"serving {database} at {' and '.join(address for _, _, address in listeners)}")
                    systemd.ready(_status(control))
                    # All objects loaded by now stay. To scan them again took the collector 130 ms each time.
                    gc.collect()
                    gc.freeze()
                    maintenance.start_soon(_maintain, control, systemd, log)
                    if options.keep_finished is not None:
                        clean = partial(run_retention, supervisor, control.duties, days=options.keep_finished)
                        tell = control.feed.tell_removed
                        maintenance.start_soon(partial(clean, clock=time.time, report=report, tell=tell))
                    maintenance.start_soon(partial(_reload, control, systemd, log, reload, report=report))
                    maintenance.start_soon(partial(_resume_runs, control, resume=options.resume, report=report))
                    await asked_to_end.wait()
                    # Before the first wait: a journal that takes nothing now would hold up the last event, too.
                    process.deadline = anyio.current_time() + options.drain_timeout + _CLOSING
                    systemd.stopping("ending")
                    maintenance.cancel_scope.cancel()
                    control.close()
                    stopping.set()
            going = supervisor.going()
            if going:
                report(
                    f"ending; runs in progress: {going}; each stops at its next boundary and can be resumed; a "
                    "second signal kills them"
                )
                systemd.status(f"ending; runs in progress: {going}")
        report("ended")


@asynccontextmanager
async def _listening_for_signals(
    asked_to_end: anyio.Event, reload: RepeatedEvent, report: Callable[[str], None]
) -> AsyncGenerator[anyio.CancelScope]:
    """Listen for signals during the block; it gets the block's scope. A single error is raised without a group."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        async with anyio.create_task_group() as tasks:
            await tasks.start(_listen_for_signals, asked_to_end, reload, report)
            yield tasks.cancel_scope
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        leaf, *others = leaves_of(group)
        if others:
            raise
        raise leaf from leaf.__cause__
    finally:
        for number, handler in before.items():
            if handler is not None:  # else it is none of Python's
                signal.signal(number, handler)


@asynccontextmanager
async def _open_patiently(
    options: Options,
    database: str | os.PathLike[str] | PostgresAddress,
    asked_to_end: anyio.Event,
    report: Callable[[str], None],
) -> AsyncGenerator[Supervisor]:
    """Open the supervisor; if the database server does not answer, as when the machine starts, wait until it does.

    Raises:
        JournalUnavailable: A signal asked the service to end before the server answered.
    """
    waits = False
    while True:
        async with AsyncExitStack() as stack:
            try:
                supervisor = await stack.enter_async_context(
                    open_supervisor(
                        database,
                        model=options.model,
                        summaries=options.summaries,
                        drain_timeout=options.drain_timeout,
                        redact=options.redact,
                        alerts=options.alerts,
                        telemetry=options.telemetry,
                        name=options.name,
                        # With labels, even none, it takes runs that other machines left; with None it does not.
                        labels=options.labels or (() if isinstance(database, PostgresAddress) else None),
                        lease=options.lease,
                    )
                )
            except JournalUnavailable as error:
                if not waits:
                    report(f"waiting for the database server, trying again every {_DATABASE_RETRY:g} s: {error}")
                waits = True
                with anyio.move_on_after(_DATABASE_RETRY):
                    await asked_to_end.wait()
                    raise
            else:
                yield supervisor
                return


async def _listen_for_signals(
    asked_to_end: anyio.Event,
    reload: RepeatedEvent,
    report: Callable[[str], None],
    *,
    task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    at_terminal = sys.stderr.isatty()  # then SIGHUP means that the terminal is gone, with everybody who reads it
    held = signal.getsignal(signal.SIGHUP)
    with anyio.open_signal_receiver(*_SIGNALS) as signals:
        if isinstance(held, HeldSignal) and held.came:  # while the command line loaded libraries and agents
            reload.set()
        task_status.started()
        async for number in signals:
            if number != signal.SIGHUP or at_terminal:
                break
            reload.set()
    # The second signal must work even if the loop hangs. The journal survives it as it survives kill -9.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    asked_to_end.set()
    report(f"{signal.Signals(number).name} came, so it ends")


async def _maintain(control: Control, systemd: Notifier, log: LogFile | None) -> None:
    """Do the regular maintenance."""
    while True:
        await anyio.sleep(_MAINTENANCE_INTERVAL)
        systemd.status(_status(control))
        if log is not None:
            log.follow()


async def _reload(
    control: Control,
    systemd: Notifier,
    log: LogFile | None,
    asked: RepeatedEvent,
    *,
    report: Callable[[str], None],
) -> None:
    seen = 0
    while True:
        await asked.wait(seen)
        seen = asked.count  # asked again while it works, it reloads once more
        systemd.reloading()
        try:
            if log is not None:
                log.reopen()
            for line in control.reload() if control.on_reload is not None else ():
                report(line)
            report("reloaded")
        except Exception as error:  # noqa: BLE001 - what an application's reload raises must not end the runs
            words = error if isinstance(error, RepertoryError) else f"{type(error).__name__}: {error}"
            report(f"not reloaded, continuing as before: {words}")
        systemd.ready(_status(control))


def _status(control: Control) -> str:
    """The service in one line."""
    wrong = [f"{check.name}: {check.fact}" for check in control.monitor.checks() if check.state == "fail"]
    going = f"{counted(control.supervisor.going(), 'run')} under way"
    return "; ".join([going, *wrong])


def _listeners(
    options: Options, passed: Sequence[socket.socket], stack: ExitStack
) -> list[tuple[socket.socket, Access, str]]:
    """Listen where systemd or else the options say; returns for each listener its access and the address to show."""
    if not passed:
        own = unix_listener(options.socket or default_socket()) if options.port is None else tcp_listener(options.port)
        passed = [stack.enter_context(own)]
    return [_with_access(options, listener) for listener in passed]


def _with_access(options: Options, listener: socket.socket) -> tuple[socket.socket, Access, str]:
    if listener.family == socket.AF_UNIX:
        return listener, Access(read_only=options.read_only), f"unix:{listener.getsockname()}"
    token_file = options.token_file or default_token_file()
    token = read_or_make_token(token_file)
    host, port = listener.getsockname()[:2]
    access = Access(port=port, token=token, read_only=options.read_only)
    # The code works for one browser only, so nobody can get in with a log that has this line.
    link = f"http://{'[::1]' if ':' in host else '127.0.0.1'}:{port}/#{access.new_code()}"
    return listener, access, f"{link} (opens once; the token is in {token_file})"


async def _resume_runs(control: Control, *, resume: bool, report: Callable[[str], None]) -> None:
    """Resume the runs that an earlier process left, or report them. Runs that had not begun wait in the queue again.

    If several machines share the journal, any of them may take those runs, and nothing is reported here.
    """
    if not control.journal.is_shared:
        for row in await control.unfinished():
            name = f"{row.started.run_id} of {row.started.agent}, {counted(row.iteration, 'iteration')}"
            if not resume and row.state != "queued":
                report(f"unfinished: {name}; --resume continues it, or a POST to /runs/{row.started.run_id}/resume")
            elif row.state == "paused":
                report(f"paused: {name}; a POST to /runs/{row.started.run_id}/resume continues it")
            else:
                try:
                    await control.resume(row.started.run_id)
                except RepertoryError as error:
                    report(f"not resumed: {name}: {error}")
                else:
                    report(f"resumed: {name}")
    control.has_resumed = True
