"""The HTTP server in the supervisor's own nursery: connections that are counted, bounded and ended in time.

It is our own, on h11. No server that runs on trio offers what a process needs that anybody on the machine can connect
to: hypercorn and anycorn shield their sends from cancellation, so that a client that stops reading holds up the
shutdown; they speak HTTP/2, whose flow control lets a client hold streams for ever; and they cannot choose which
connection has to make room.
"""

from __future__ import annotations

import errno
import resource
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import anyio
import anyio.abc
from starlette.types import ASGIApp

from repertory.service.http1 import HEADER_TIMEOUT, SEND_TIMEOUT, Connection
from repertory.service.sockets import peer_is_allowed

MAX_CONNECTIONS: Final = 4096  # one that only follows takes some 30 KiB of memory, see docs/operations.md
MAX_STRANGERS: Final = 64  # connections to a port that have shown no right to ask yet
_SPARE: Final = 256  # file descriptors for everything else: the journal, models, files, what tools start
GRACE: Final = 1.0  # seconds that answers under way have at shutdown
_EXHAUSTED: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


def connection_limit(most: int = MAX_CONNECTIONS) -> int:
    """How many connections this process can have; it allows itself as many open files as that takes, and may have."""
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
        app: What answers them.
        listener: Bound, listening, not blocking. It is closed at the end.
        stopping: Once it is set, no new connection is taken.
        report: Told in one line when a client is dropped.
        max_connections: A further one takes the place of one that has shown no right to ask, else of one on which
            nothing is asked; where there is neither it is closed at once. At most 64 of those at a port have shown no
            right to ask.
        counted: Told of each connection that is opened, with 1, and closed, with -1.
        header_timeout: Seconds until the head of a request must be there; also how long a connection may idle.
        send_timeout: Seconds until a client must have taken a piece of an answer; a slower one is dropped.
        grace: Seconds that answers under way have after ``stopping``.
    """
    connections: list[Connection] = []  # the oldest first
    strangers = max_connections if listener.family == socket.AF_UNIX else MAX_STRANGERS
    make = partial(Connection, app=app, report=report, header_timeout=header_timeout, send_timeout=send_timeout)

    async def answer(stream: anyio.abc.SocketStream) -> None:
        peer = stream.extra(anyio.abc.SocketAttribute.raw_socket)  # noqa: S610 - not Django's
        if not peer_is_allowed(peer) or not _make_room(connections, max_connections, strangers):
            await stream.aclose()
            return
        connection = make(stream)
        connections.append(connection)
        counted(+1)
        try:
            await connection.run()
        finally:
            counted(-1)
            if connection in connections:
                connections.remove(connection)

    accepting = await anyio.abc.SocketListener.from_socket(listener)
    async with accepting, anyio.create_task_group() as serving:
        async with anyio.create_task_group() as taking:
            taking.start_soon(_take, accepting, answer, serving, report)
            await stopping.wait()
            taking.cancel_scope.cancel()
        serving.cancel_scope.deadline = anyio.current_time() + grace
        for connection in connections:
            connection.closing = True
            if not connection.busy:
                connection.drop()


def _make_room(connections: list[Connection], most: int, most_strangers: int) -> bool:
    """Whether there is a place for a new connection, if need be that of another.

    Who has shown no right to ask goes first, the oldest first: so whoever fills all places with connections drives out
    connections of his own.
    """
    strangers = [connection for connection in connections if not connection.admitted]
    if len(connections) < most and len(strangers) < most_strangers:
        return True
    idle = (connection for connection in connections if not connection.busy)
    leaving = strangers[0] if strangers else next(idle, None)
    if leaving is None:
        return False
    connections.remove(leaving)
    leaving.drop()
    return True


async def _take(
    accepting: anyio.abc.SocketListener,
    answer: Callable[[anyio.abc.SocketStream], Any],
    serving: anyio.abc.TaskGroup,
    report: Callable[[str], None],
) -> None:
    while True:
        try:
            stream = await accepting.accept()
        except (OSError, anyio.BrokenResourceError) as error:
            cause = error if isinstance(error, OSError) else error.__cause__  # trio's has it as its cause
            if not isinstance(cause, OSError) or cause.errno not in _EXHAUSTED:
                raise
            report(f"cannot take a connection: {cause.strerror}; trying again")
            await anyio.sleep(0.1)
        else:
            serving.start_soon(answer, stream)
