"""A connection to an MCP server that stays open: it is opened again when a call needs it, and hears of changes."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import anyio
import anyio.abc
import anyio.lowlevel

from repertory._counting import counted
from repertory._error_texts import leaves_of
from repertory.errors import ConfigurationError, ToolSetUnavailable
from repertory.mcp.transport import log, reason, says_lost

if TYPE_CHECKING:
    from mcp.client.session import MessageHandlerFnT

    from mcp import Client

Opener: TypeAlias = "Callable[[MessageHandlerFnT], AbstractAsyncContextManager[tuple[Client, anyio.Event]]]"

_BETWEEN_LISTS: Final = 1.0  # seconds between two lists, if a server reports changes again and again
_LISTENING_AGAIN = (0.0, 1.0, 5.0, 30.0, 60.0)  # seconds before listening for changes again; the last one repeats
_GOODBYE = 2.0  # seconds for telling a server that its session is over
_BACKOFF = (0.0, 0.5, 2.0, 8.0)  # seconds before reconnecting, by failures in a row


class Connection:
    """The connection to one server. One task opens and holds it; any task may call through it.

    Args:
        name: The server's name.
        timeout: Seconds for opening it, and for reading the list of tools.
        opener: Opens it, with a function that is called with each notification of the server.
        read_tools: Reads the list of tools: before the connection counts as open, and when that list has changed.
    """

    def __init__(
        self, name: str, *, timeout: float, opener: Opener, read_tools: Callable[[Client], Awaitable[None]]
    ) -> None:
        self._name = name
        self._timeout = timeout
        self._opener = opener
        self._read_tools = read_tools
        self._client: Client | None = None
        self._lost = anyio.Event()  # the current connection is lost
        self._stale = anyio.Event()  # the list of tools is out of date
        self._settled = anyio.Event()  # no attempt to connect is in progress
        self._settled.set()
        self._wanted = anyio.Event()
        self._failure = ""
        self._closing = False
        self._closed = anyio.Event()

    @asynccontextmanager
    async def opened(self, shown: str) -> AsyncGenerator[None]:
        """Connect, stay connected for the block, and close.

        Args:
            shown: How the server is named if it cannot be reached.

        Raises:
            ToolSetUnavailable: The server cannot be started or reached.
            ConfigurationError: What ``opener`` or ``read_tools`` raises.
        """
        failures: list[BaseException] = []
        async with anyio.create_task_group() as tasks:
            try:
                await tasks.start(self._keep, failures)
            except RuntimeError:  # the task ended before it had started; ``failures`` says why
                if not failures:
                    raise
            if not failures:
                try:
                    yield
                finally:
                    await self._close()
                    tasks.cancel_scope.cancel()
        for failure in failures:
            if isinstance(failure, ConfigurationError):
                raise failure
            raise ToolSetUnavailable(f"{shown} cannot be opened: {reason(failure)}")

    async def client(self) -> Client:
        """The open connection; it is opened again if it was lost.

        Raises:
            ToolSetUnavailable: The server cannot be reached now. The next call tries again.
        """
        if self._client is None or self._lost.is_set():
            if self._settled.is_set():  # no attempt is in progress
                self._settled = anyio.Event()
                self._wanted.set()
            await self._settled.wait()
        if self._client is None:
            told = "cannot be reached now; the next call tries again"
            raise ToolSetUnavailable(f"server {self._name} {told}: {self._failure}")
        return self._client

    def mark_lost(self, client: Client) -> None:
        """Give up a dead connection."""
        if self._client is client:
            self._lost.set()

    async def _close(self) -> None:
        """Close the connection. A server over HTTP is told that its session is over, if it hears that soon."""
        if self._client is not None:
            self._closing = True
            self._lost.set()
            await self._closed.wait()

    async def _keep(self, failures: list[BaseException], *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Connect, and reconnect when a call needs a connection that was lost, until cancelled."""
        failure = await self._connect(task_status.started)
        if failure is not None:
            failures.append(failure)
            return
        in_a_row = 0
        while True:
            await self._wanted.wait()
            self._wanted = anyio.Event()
            await anyio.sleep(_BACKOFF[min(in_a_row, len(_BACKOFF) - 1)])
            failure = await self._connect(self._settled.set)
            in_a_row = in_a_row + 1 if failure is not None else 0
            if failure is not None:
                self._failure = reason(failure)
                self._settled.set()

    async def _connect(self, connected: Callable[[], None]) -> BaseException | None:
        """Connect, call ``connected``, and hold the connection until it is lost. Return why it could not connect."""
        is_connected, self._closed = False, anyio.Event()
        failure: BaseException | None = None
        try:
            with anyio.CancelScope(deadline=anyio.current_time() + self._timeout) as scope:
                async with self._opener(self._on_message) as (client, lost):
                    await self._read_tools(client)
                    await anyio.lowlevel.checkpoint_if_cancelled()  # its thread went on when the time was over
                    scope.deadline = math.inf
                    self._client, self._lost, is_connected = client, lost, True
                    connected()
                    await self._hold(client)
                    # A lost server is told nothing: it may never answer, and calls wait for the next connection.
                    scope.deadline = anyio.current_time() + (_GOODBYE if self._closing else 0)
        except Exception as error:  # noqa: BLE001 - from the server, its process or the network: the server is gone
            failure = leaves_of(error)[0]
        finally:
            self._client = None
            self._closed.set()
        if not is_connected:
            return failure or TimeoutError(f"no answer within {counted(self._timeout, 'second')}")
        if not self._closing:
            why = None if failure is None else reason(failure)
            log(logging.WARNING, "mcp.connection.lost", server=self._name, error=why)
        return None

    async def _hold(self, client: Client) -> None:
        """Keep the list of tools up to date until the connection is lost."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._listen, client)
            tasks.start_soon(self._reread, client)
            await self._lost.wait()
            tasks.cancel_scope.cancel()

    async def _listen(self, client: Client) -> None:
        """Listen for changes of the tool list, if the protocol has that, and again if the server stops telling."""
        from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
        from mcp.shared.exceptions import MCPError
        from mcp_types import METHOD_NOT_FOUND

        for pause in chain(_LISTENING_AGAIN, repeat(_LISTENING_AGAIN[-1])):
            try:
                async with client.listen(tools_list_changed=True) as changes:
                    self._stale.set()  # changes since the last list are not reported
                    async for _ in changes:
                        self._stale.set()
                    if not changes.honored.tools_list_changed:
                        return
            except ListenNotSupportedError:
                return
            except SubscriptionLost:
                pass
            except MCPError as error:
                if error.code == METHOD_NOT_FOUND:
                    return
                if says_lost(error):
                    self.mark_lost(client)
            await anyio.sleep(pause)

    async def _on_message(self, message: Any) -> None:
        """Handle a notification from the server; older protocols report a changed list this way."""
        if getattr(message, "method", "") == "notifications/tools/list_changed":
            self._stale.set()

    async def _reread(self, client: Client) -> None:
        while True:
            await self._stale.wait()
            self._stale = anyio.Event()
            try:
                with anyio.fail_after(self._timeout):
                    await self._read_tools(client)
            except Exception as error:  # noqa: BLE001 - the known tools can still be called
                log(logging.WARNING, "mcp.list.failed", server=self._name, error=reason(error))
            await anyio.sleep(_BETWEEN_LISTS)
