"""Starting or reaching an MCP server, and reporting its last output if that fails."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio

from repertory._error_texts import leaves_of, telling
from repertory._log import Log
from repertory._version import __version__
from repertory.errors import ConfigurationError
from repertory.mcp.lines import LONGEST_ANSWER, whole_lines
from repertory.mcp.repairs import repaired
from repertory.tools.output import one_line, redact

if TYPE_CHECKING:
    from typing import TextIO

    import httpx2
    from mcp.client.session import ElicitationFnT, MessageHandlerFnT
    from mcp.shared.exceptions import MCPError

    from mcp import Client
    from repertory.mcp.http import Fate

log = Log("repertory.mcp")

MOST_SAID: Final = 500  # characters of one line of a server's log or progress
_LAST_LINES = 20  # last lines of a server process's output that are reported if it does not start
_READING_ON = 1.0  # seconds to read that output to its end: a process that the server has started may hold it open


@asynccontextmanager
async def open_client(
    on_message: MessageHandlerFnT,
    *,
    target: str | tuple[str, ...],
    name: str,
    env: dict[str, str],
    cwd: str | os.PathLike[str] | None,
    headers: dict[str, str],
    auth: httpx2.Auth | None,
    answer: ElicitationFnT,
) -> AsyncGenerator[tuple[Client, anyio.Event]]:
    """Start or reach a server, as ``McpServer`` says, and close the connection at the end of the block.

    Beside the client it gives an event, which is set when the server's process closes its output, mostly as it ended.

    Args:
        target: Its command, or its address.
        name: Its name, for the log.
        env: Environment of the process.
        cwd: Working directory of the process.
        headers: Headers of each request to the address.
        auth: Authenticates these requests; None for nothing but the headers.
        on_message: Called with each notification from the server.
        answer: Answers what the server asks within a call.

    Raises:
        Exception: The server cannot be started or reached. The type of the error varies; it carries the server's last
            output.
        ConfigurationError: The extra ``repertory[mcp]`` is not installed.
    """
    try:
        from mcp.client.stdio import stdio_client
        from mcp.client.streamable_http import streamable_http_client
        from mcp_types import Implementation

        from mcp import Client, StdioServerParameters
    except ImportError as error:
        raise ConfigurationError("an McpServer needs the extra: pip install 'repertory[mcp]'") from error
    async with AsyncExitStack() as stack:
        words: deque[str] = deque(maxlen=_LAST_LINES)
        transport: Callable[[], AbstractAsyncContextManager[Any]]
        output: tuple[TextIO, threading.Thread] | None = None  # what a process writes to its standard error
        if isinstance(target, str):
            from repertory.mcp.http import HttpClient

            http = await stack.enter_async_context(HttpClient(headers, auth))
            transport = partial(streamable_http_client, target, http_client=http, max_sse_event_size=LONGEST_ANSWER)
        else:
            command, *arguments = target
            output = stack.enter_context(keep_last_lines(words))
            parameters = StdioServerParameters(
                command=command,
                args=arguments,
                env=env,
                cwd=cwd,  # type: ignore[arg-type]
                encoding=whole_lines(),
                # Otherwise one byte that is not UTF-8 ends the reading without any report.
                encoding_error_handler="replace",
            )
            transport = partial(stdio_client, parameters, errlog=output[0])

        async def connect(mode: str) -> tuple[Client, anyio.Event]:
            ended = anyio.Event()
            client = Client(
                repaired(transport(), name, ended),
                mode=mode,
                message_handler=on_message,
                elicitation_callback=answer,
                client_info=Implementation(name="repertory", version=__version__),
            )
            return await stack.enter_async_context(client), ended

        try:
            try:
                client, ended = await connect("auto")
            except Exception as error:
                if output is None or not says_lost(leaves_of(error)[0]):
                    raise
                # Some servers of an older protocol end if they are asked for the newest one, as rmcp 1.7 does.
                words.clear()
                client, ended = await connect("legacy")
        except Exception as error:
            if output is not None:
                errlog, reader = output
                errlog.close()  # the process has ended too, so the reader comes to the end of what it said
                await anyio.to_thread.run_sync(reader.join, _READING_ON, abandon_on_cancel=True)
            said = redact("\n".join(words))
            raise (ConnectionError(f"{reason(error)}; it said last:\n{said}") if said else error) from error
        client.session.validate_tool_result = _accept  # type: ignore[method-assign]
        yield client, ended


async def _accept(name: str, result: object) -> None:
    """Check no answer by the schema that its server gives for it.

    The SDK does so on the event loop, where a pattern may take for ever to match, and loses an answer that does not
    fit; the model can read that, too.
    """


@contextmanager
def keep_last_lines(lines: deque[str]) -> Generator[tuple[TextIO, threading.Thread]]:
    """A file whose last lines are kept, and the thread that reads it until all who write to it have closed it.

    A process's error output may be the only explanation of a failure.
    """
    reading, writing = os.pipe()

    def read() -> None:
        with os.fdopen(reading, encoding="utf-8", errors="replace") as stream:
            while line := stream.readline(MOST_SAID):  # a line without an end must not fill the memory
                lines.append(line.rstrip())

    reader = threading.Thread(target=read, name="mcp stderr", daemon=True)
    reader.start()
    with os.fdopen(writing, "w") as stream:
        yield stream, reader


def reason(error: BaseException) -> str:
    """What went wrong, in one line; the first of several errors."""
    error = telling(leaves_of(error)[0])
    return str(error) if isinstance(error, ConnectionError | TimeoutError) else one_line(error)


def says_lost(error: BaseException) -> bool:
    """Whether the SDK says by an error that the connection ended. Servers use its code for errors of their own."""
    from mcp.shared.exceptions import MCPError
    from mcp_types import CONNECTION_CLOSED

    return isinstance(error, MCPError) and error.code == CONNECTION_CLOSED and error.message.startswith("Connection cl")


def fate_of(error: MCPError) -> Fate:
    """What came of a call: the server answered with an error, it heard nothing of the call, or nobody knows."""
    from mcp_types import CONNECTION_CLOSED

    if says_lost(error) or (error.code == CONNECTION_CLOSED and error.message.startswith("SSE stream ")):
        return "unknown"
    fate = error.data.get("repertory/fate") if isinstance(error.data, dict) else None
    return fate if fate in ("none", "unknown") else "answered"
