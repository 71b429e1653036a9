"""The process itself: it opens the supervisor, serves until a signal comes, and ends so that every run can go on."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.abc
import msgspec

from repertory.agents import open_supervisor
from repertory.errors import ConfigurationError, RepertoryError
from repertory.llm.model import Model
from repertory.record.records import RunRow
from repertory.service.access import Access, default_token_file, read_or_make_token
from repertory.service.app import create_app
from repertory.service.control import Control
from repertory.service.server import serve_http
from repertory.service.sockets import default_socket, tcp_listener, unix_listener

_CLOSING: Final = 5.0  # seconds for everything but the runs: open answers, the journal's queue


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How a service runs.

    Attributes:
        database: The journal's file.
        socket: The unix socket to listen at; None means ``ctl.sock`` in the user's runtime folder.
        port: The port of 127.0.0.1 to listen at instead, 0 for any; None means the unix socket.
        token_file: Where the token for the port is kept; None means ``service-token`` in the user's state folder.
        agents: What runs can be started with, as ``module:name``.
        context: What the tools of its runs find in ``ToolContext.context``; None for nothing.
        root: The folder that the research team may read; None offers no research team.
        resume: Go on with the runs that an earlier process left unfinished, but not with those that were paused.
        model: For agents that name none; None takes what the environment offers.
        limits: Fields of ``Limits`` that are to be others for every run that is started here.
        summaries: The models that write summaries; see ``open_supervisor``.
        redact: Environment variables whose values are neither recorded nor shown to a model.
        drain_timeout: Seconds that runs have at the end to come to their next boundary.
    """

    database: Path
    socket: Path | None = None
    port: int | None = None
    token_file: Path | None = None
    agents: Sequence[str] = ()
    context: Any = None
    root: Path | None = None
    resume: bool = False
    model: Model | str | None = None
    limits: Mapping[str, float | None] = msgspec.field(default_factory=dict[str, float | None])
    summaries: Model | str | Sequence[Model | str] | None = None
    redact: Sequence[str] = ()
    drain_timeout: float = 5.0


def _to_stderr(line: str) -> None:
    sys.stderr.write(f"repertory: {line}\n")
    sys.stderr.flush()


async def run_service(options: Options, *, report: Callable[[str], None] = _to_stderr) -> None:
    """Serve until SIGTERM or SIGINT. Runs then go to their next boundary and can be resumed; a second signal kills.

    Args:
        options: How.
        report: Told in single lines what a person at the terminal wants to know.

    Raises:
        JournalLocked: Another process has the database.
        AddressInUse: Another process has the socket or port.
        ConfigurationError: An option cannot be met.
    """
    if options.socket is not None and options.port is not None:
        raise ConfigurationError("either a socket or a port can be served at, got both")
    asked_to_end = anyio.Event()
    async with anyio.create_task_group() as process:
        await process.start(_listen_for_signals, asked_to_end)
        async with open_supervisor(
            options.database,
            model=options.model,
            summaries=options.summaries,
            drain_timeout=options.drain_timeout,
            redact=options.redact,
        ) as supervisor:
            control = Control(
                supervisor, agents=options.agents, root=options.root, context=options.context, limits=options.limits
            )
            stopping = anyio.Event()
            with ExitStack() as stack:
                listener, access, address = _open(options, stack)
                app = create_app(control, access)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(control.feed.run)
                    tasks.start_soon(partial(serve_http, app, listener, stopping=stopping, report=report))
                    report(f"serving {options.database} at {address}")
                    await _take_up(control, resume=options.resume, report=report)
                    await asked_to_end.wait()
                    control.feed.close()
                    stopping.set()
            going = sum(view.live for view in (await control.list_runs(sys.maxsize)).runs)
            if going:
                report(f"ending; {going} runs go to their next boundary and can be resumed; once more kills")
            process.cancel_scope.deadline = anyio.current_time() + options.drain_timeout + _CLOSING
        process.cancel_scope.cancel()


async def _listen_for_signals(
    asked_to_end: anyio.Event, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            break
    # The second one must work however badly the loop hangs. The record survives that as it survives kill -9.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    asked_to_end.set()


def _open(options: Options, stack: ExitStack) -> tuple[socket.socket, Access, str]:
    """Listen where the options say; also who may ask, and the address to show."""
    if options.port is None:
        path = options.socket or default_socket()
        return stack.enter_context(unix_listener(path)), Access(), f"unix:{path}"
    token_file = options.token_file or default_token_file()
    token = read_or_make_token(token_file)
    listener = stack.enter_context(tcp_listener(options.port))
    port = listener.getsockname()[1]
    access = Access(port=port, token=token)
    # The code is good for one browser only, so that a log that keeps this line gives nobody a way in.
    link = f"http://127.0.0.1:{port}/#{access.new_code()}"
    return listener, access, f"{link} (opens once; the token is in {token_file})"


async def _take_up(control: Control, *, resume: bool, report: Callable[[str], None]) -> None:
    """Resume what an earlier process left, or say that it is there."""
    for row in await control.unfinished():
        name = _describe(row)
        if not resume:
            report(f"unfinished: {name}; --resume goes on with it, or a POST to /runs/{row.started.run_id}/resume")
        elif row.state == "paused":
            report(f"paused: {name}; a POST to /runs/{row.started.run_id}/resume goes on with it")
        else:
            try:
                await control.resume(row.started.run_id)
            except RepertoryError as error:
                report(f"not resumed: {name}: {error}")
            else:
                report(f"resumed: {name}")


def _describe(row: RunRow) -> str:
    return f"{row.started.run_id} of {row.started.agent}, {row.iteration} iterations"
