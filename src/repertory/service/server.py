"""The HTTP server, in the supervisor's own nursery: it counts and limits connections and ends them in time.

It is our own, on h11, because anybody on the machine can connect to the process and no server for trio is safe enough
for that. hypercorn and anycorn shield their sends from cancellation, so that a client that stops reading delays the
shutdown; they speak HTTP/2, whose flow control lets a client hold streams forever; and they cannot choose which
connection has to make room.
"""

from __future__ import annotations

import logging
import math
import resource
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import anyio
import anyio.abc
from starlette.types import ASGIApp

from repertory._log import Log
from repertory.service.http1 import HEADER_TIMEOUT, SEND_TIMEOUT, Connection
from repertory.service.sockets import hang_up, peer_is_allowed

MAX_CONNECTIONS: Final = 4096  # one that only follows takes some 30 KiB of memory, see docs/operations.md
MAX_UNAUTHENTICATED: Final = 64  # connections to a port that are not authenticated yet
_SPARE: Final = 256  # file descriptors for everything else: the journal, models, files, what tools start
_QUIET: Final = 60.0  # seconds between two reports that no connection can be taken; it may stay so for long
GRACE: Final = 1.0  # seconds that answers under way have at shutdown

_log = Log("repertory.service")


def connection_limit(most: int = MAX_CONNECTIONS) -> int:
    """How many connections this process can have; raises its limit of open files as far as needed and allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most + _SPARE
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return most if soft == resource.RLIM_INFINITY else min(most, max(16, soft - _SPARE))


async def serve_http(
    app: ASGIApp,
    listener: socket.socket,
    *,
    stopping: anyio.Event,
    report: Callable[[str], None],
    max_connections: int = MAX_CONNECTIONS,
    counted: Callable[[int], object] = lambda _: None,
    header_timeout: float = HEADER_TIMEOUT,
    send_timeout: float = SEND_TIMEOUT,
    grace: float = GRACE,
) -> None:
    """Answer HTTP requests at a listening socket until ``stopping`` is set.

    Args:
        app: The ASGI app that answers them.
        listener: Bound, listening and non-blocking. It is closed at the end.
        stopping: Once it is set, no new connection is accepted.
        report: Called with one line when a client is dropped.
        max_connections: One more connection replaces one that is not authenticated, or else an idle one; if there is
            neither, it is closed at once. At a port at most 64 connections may be unauthenticated.
        counted: Called with 1 for each connection that is opened, and with -1 for each that is closed.
        header_timeout: Seconds until the head of a request must have arrived; also how long a connection may idle.
        send_timeout: Seconds until a client must have taken a piece of an answer; a slower client is dropped.
        grace: Seconds that answers under way have after ``stopping``.
    """
    connections: list[Connection] = []  # the oldest first
    max_unauthenticated = max_connections if listener.family == socket.AF_UNIX else MAX_UNAUTHENTICATED
    make = partial(Connection, app=app, report=report, header_timeout=header_timeout, send_timeout=send_timeout)

    async def answer(stream: anyio.abc.SocketStream) -> None:
        peer = stream.extra(anyio.abc.SocketAttribute.raw_socket)  # noqa: S610 - not Django's
        async with stream:
            if not peer_is_allowed(peer) or not _make_room(connections, max_connections, max_unauthenticated):
                return
            connection = make(stream)
            connections.append(connection)
            counted(+1)
            try:
                await connection.run()
            except Exception as error:  # noqa: BLE001 - supervises: one connection's error must not end the runs
                _log(logging.ERROR, "connection.failed", exc_info=error)
            finally:
                hang_up(peer)
                counted(-1)
                if connection in connections:
                    connections.remove(connection)

    accepting = await anyio.abc.SocketListener.from_socket(listener)
    async with accepting, anyio.create_task_group() as serving:
        async with anyio.create_task_group() as acceptors:
            acceptors.start_soon(_accept, accepting, answer, serving, report)
            await stopping.wait()
            acceptors.cancel_scope.cancel()
        serving.cancel_scope.deadline = anyio.current_time() + grace
        for connection in connections:
            connection.closing = True
            if not connection.busy:
                connection.drop()


def _make_room(connections: list[Connection], most: int, max_unauthenticated: int) -> bool:
    """Whether there is room for a new connection, if necessary by dropping another.

    Unauthenticated connections are dropped first, the oldest first, so a client that opens too many displaces its own.
    """
    unauthenticated = [connection for connection in connections if not connection.authenticated]
    if len(connections) < most and len(unauthenticated) < max_unauthenticated:
        return True
    idle = (connection for connection in connections if not connection.busy)
    leaving = unauthenticated[0] if unauthenticated else next(idle, None)
    if leaving is None:
        return False
    connections.remove(leaving)
    leaving.drop()
    return True


async def _accept(
    accepting: anyio.abc.SocketListener,
    answer: Callable[[anyio.abc.SocketStream], Any],
    serving: anyio.abc.TaskGroup,
    report: Callable[[str], None],
) -> None:
    quiet_until = -math.inf
    while True:
        try:
            stream = await accepting.accept()
        except (OSError, anyio.BrokenResourceError) as error:  # trio's error has the system's as its cause
            # No descriptor is left, or this client has gone already: neither may end the runs.
            if anyio.current_time() >= quiet_until:
                report(f"cannot take a connection: {error.__cause__ or error}; trying again")
                quiet_until = anyio.current_time() + _QUIET
            await anyio.sleep(0.1)
        else:
            serving.start_soon(answer, stream)
