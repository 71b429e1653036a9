"""The HTTP server in the supervisor's own nursery: connections that are counted, bounded and ended in time.

The accept loop is ours and the protocol is anycorn's. Its own ``serve`` cannot do what a process that keeps running
needs: it shields each send from cancellation, so that one client that stops reading would hold up the shutdown for
ever, and an error in one connection would end all of them.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import anyio
import anyio.abc
from anycorn import Config
from anycorn.app_wrappers import ASGIWrapper
from anycorn.tcp_server import TCPServer
from anycorn.typing import ConnectionState
from anycorn.worker_context import AnyioSingleTask, WorkerContext
from starlette.types import ASGIApp

from repertory.service.sockets import peer_is_allowed

MAX_CONNECTIONS: Final = 64
HEADER_TIMEOUT: Final = 10  # seconds until the headers of a request must be there; also how long a connection may idle
SEND_TIMEOUT: Final = 10.0  # seconds until a client must have taken one piece of an answer
GRACE: Final = 1.0  # seconds that answers under way have at shutdown
_EXHAUSTED: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class _IdleTask(AnyioSingleTask):
    """Closes a connection on which nothing is asked. Without this, anycorn waits for it when the client is gone."""

    def __init__(self) -> None:
        super().__init__()
        self._ended = False

    async def restart(self, task_group: Any, action: Callable[..., Any]) -> None:
        if not self._ended:
            await super().restart(task_group, action)

    async def end(self) -> None:
        """The client is gone: wait for nothing any more."""
        self._ended = True
        await self.stop()


class _Connection(anyio.abc.ByteStream):
    """A client's stream, whose sends end in time whoever shields them."""

    def __init__(self, stream: anyio.abc.SocketStream, send_timeout: float, report: Callable[[str], None]) -> None:
        self._stream = stream
        self._send_timeout = send_timeout
        self._report = report
        self._sending: anyio.CancelScope | None = None
        self.idle_task = _IdleTask()

    async def send(self, item: bytes) -> None:
        try:
            with anyio.fail_after(self._send_timeout) as self._sending:
                await self._stream.send(item)
        except TimeoutError:
            self._report(
                f"dropped a client that took nothing for {self._send_timeout:g} s; it can go on from the last id"
            )
            await self._stream.aclose()
            raise
        finally:
            self._sending = None

    def hurry(self, seconds: float) -> None:
        """The service ends: let no send take longer than this."""
        self._send_timeout = min(self._send_timeout, seconds)
        if self._sending is not None:
            self._sending.deadline = min(self._sending.deadline, anyio.current_time() + seconds)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        try:
            return await self._stream.receive(max_bytes)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self.idle_task.end()
            raise

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        return self._stream.extra_attributes


async def serve_http(
    app: ASGIApp,
    listener: socket.socket,
    *,
    stopping: anyio.Event,
    report: Callable[[str], None],
    max_connections: int = MAX_CONNECTIONS,
    send_timeout: float = SEND_TIMEOUT,
    grace: float = GRACE,
) -> None:
    """Answer HTTP requests at a listening socket until ``stopping`` is set.

    Args:
        app: What answers them.
        listener: Bound, listening, not blocking. It is closed at the end.
        stopping: Once it is set, no new connection is taken.
        report: Told in one line when a client is dropped.
        max_connections: Further ones are closed at once.
        send_timeout: Seconds until a client must have taken a piece of an answer; a slower one is dropped.
        grace: Seconds that answers under way have after ``stopping``.
    """
    config = Config()
    config.keep_alive_timeout = HEADER_TIMEOUT
    config.include_server_header = False
    config.loglevel = "ERROR"  # what goes wrong in the app is written to standard error
    context = WorkerContext(None)
    connections: set[_Connection] = set()
    wrapped = ASGIWrapper(cast(Any, app))

    async def answer(stream: anyio.abc.SocketStream) -> None:
        peer = stream.extra(anyio.abc.SocketAttribute.raw_socket)  # noqa: S610 - not Django's
        if len(connections) >= max_connections or not peer_is_allowed(peer):
            await stream.aclose()
            return
        connection = _Connection(stream, send_timeout, report)
        connections.add(connection)
        try:
            server = TCPServer(wrapped, config, context, ConnectionState({}), cast(Any, connection))
            server.idle_task = connection.idle_task
            await server.run()
        except Exception:  # noqa: BLE001 - supervises: one connection's error must not end the runs
            await config.log.exception("a connection ended with an error")
        finally:
            connections.discard(connection)

    accepting = await anyio.abc.SocketListener.from_socket(listener)
    async with config.log, accepting, anyio.create_task_group() as serving:
        async with anyio.create_task_group() as taking:
            taking.start_soon(_take, accepting, answer, serving, report)
            await stopping.wait()
            taking.cancel_scope.cancel()
        await context.terminated.set()
        serving.cancel_scope.deadline = anyio.current_time() + grace
        for connection in connections:
            connection.hurry(grace)


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
