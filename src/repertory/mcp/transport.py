"""Starting or reaching an MCP server, and reporting its last output if that fails."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio

from repertory._error_texts import leaves_of
from repertory._json_text import decode_received, json_text
from repertory._log import Log
from repertory._version import __version__
from repertory.errors import ConfigurationError
from repertory.tools.output import one_line, redact

if TYPE_CHECKING:
    from typing import TextIO

    import httpx2
    from anyio.streams.memory import MemoryObjectSendStream
    from mcp.client._transport import ReadStream, TransportStreams
    from mcp.client.session import ElicitationFnT, MessageHandlerFnT
    from mcp.shared.exceptions import MCPError
    from mcp.shared.message import SessionMessage
    from pydantic import ValidationError

    from mcp import Client
    from repertory.mcp.http import Fate

log = Log("repertory.mcp")

MOST_SAID: Final = 500  # characters of one line of a server's log or progress
_LAST_LINES = 20  # last lines of a server process's output that are reported if it does not start
_READING_ON = 1.0  # seconds to read that output to its end: a process that the server has started may hold it open
_USED: Final = ("name", "title", "description", "inputSchema", "annotations")  # of a tool; anything else is not used


@asynccontextmanager
async def open_client(
    target: str | tuple[str, ...],
    *,
    name: str,
    env: dict[str, str],
    cwd: str | os.PathLike[str] | None,
    headers: dict[str, str],
    auth: httpx2.Auth | None,
    on_message: MessageHandlerFnT,
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
            from repertory.mcp.http import LONGEST_ANSWER, HttpClient

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
                # Otherwise one byte that is not UTF-8 ends the reading without any report.
                encoding_error_handler="replace",
            )
            transport = partial(stdio_client, parameters, errlog=output[0])

        async def connect(mode: str) -> tuple[Client, anyio.Event]:
            repaired = _repaired(transport(), name, ended := anyio.Event())
            client = Client(
                repaired,
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


@asynccontextmanager
async def _repaired(
    transport: AbstractAsyncContextManager[TransportStreams], server: str, ended: anyio.Event
) -> AsyncGenerator[TransportStreams]:
    """A transport that does not lose unreadable answers, nor what stands beside something unreadable.

    At the end of what the server says it sets ``ended``.
    """
    async with transport as (incoming, writing), anyio.create_task_group() as tasks:
        passing, heard = anyio.create_memory_object_stream["SessionMessage | Exception"](0)
        tasks.start_soon(_pass_on, incoming, passing, server, ended)
        try:
            yield heard, writing
        finally:
            heard.close()
            tasks.cancel_scope.cancel()


async def _pass_on(
    incoming: ReadStream[SessionMessage | Exception],
    passing: MemoryObjectSendStream[SessionMessage | Exception],
    server: str,
    ended: anyio.Event,
) -> None:
    from pydantic import ValidationError

    async with passing:
        async for message in incoming:
            said = _repair_message(message) if isinstance(message, ValidationError) else message
            result = None if isinstance(said, Exception) else getattr(said.message, "result", None)
            if isinstance(result, dict):
                _leave_out_unreadable(result, server)
            await passing.send(said)
    ended.set()


def _leave_out_unreadable(result: dict[str, Any], server: str) -> None:
    """Repair a list of tools, or the content of an answer, in place. For one member, the SDK refuses all of them."""
    for name in [name for name, value in result.items() if value is None]:
        del result[name]  # some write null for what is not there
    if "structuredContent" in result:
        result.setdefault("content", [])
    tools, blocks = result.get("tools"), result.get("content")
    if isinstance(tools, list):
        tools = result["tools"] = [_plain_tool(tool) for tool in tools]
        for index, why in sorted(_unreadable("tools/list", "tools", tools).items(), reverse=True):
            tool = tools.pop(index)
            title = tool.get("name") if isinstance(tool, dict) else None
            log(logging.WARNING, "mcp.tool.dropped", server=server, tool=title, error=why)
    if isinstance(blocks, list):
        for index in _unreadable("tools/call", "content", blocks):
            blocks[index] = {"type": "text", "text": json_text(blocks[index])}


def _plain_tool(tool: Any) -> Any:
    """A tool with the fields that are used; its arguments are an object, also if its server does not say so."""
    if not isinstance(tool, dict):
        return tool
    plain: dict[str, Any] = {name: tool[name] for name in _USED if tool.get(name) is not None}
    schema = plain.setdefault("inputSchema", {})
    return {**plain, "inputSchema": {"type": "object", **schema}} if isinstance(schema, dict) else plain


def _unreadable(method: str, name: str, members: list[Any]) -> dict[int, str]:
    """The members of a list in a result that the SDK cannot read, by index, and why."""
    if not _fault(method, name, members):
        return {}
    return {index: why for index, member in enumerate(members) if (why := _fault(method, name, [member]))}


def _fault(method: str, name: str, members: list[Any]) -> str:
    """Why the SDK cannot read a result with this list; "" if it can."""
    from mcp_types.methods import validate_server_result
    from mcp_types.version import LATEST_HANDSHAKE_VERSION
    from pydantic import ValidationError

    try:  # the newer protocol is laxer only in fields that are not used
        validate_server_result(method, LATEST_HANDSHAKE_VERSION, {name: members})
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, fault['loc'][2:])) or 'it'}: {fault['msg']}"
    except (ValueError, RecursionError) as error:  # it is nested too deep
        return one_line(error)
    return ""


def _repair_message(error: ValidationError) -> SessionMessage | Exception:
    """Read again what the SDK could not read. The SDK drops it, and its call would wait until the deadline.

    Half a surrogate pair becomes U+FFFD. If the answer to a call still cannot be read, it becomes an error of that
    call. Anything but JSON is the server's own output and stays as it is.
    """
    import mcp_types as types
    from mcp.shared.message import SessionMessage

    raw: Any = error.errors(include_url=False)[0]["input"]
    try:
        message: Any = decode_received(raw) if isinstance(raw, str) else raw
    except ValueError:
        return error
    try:
        return SessionMessage(types.jsonrpc_message_adapter.validate_python(message, by_name=False))
    except ValueError:
        if not isinstance(message, dict) or "method" in message or not isinstance(message.get("id"), int | str):
            return error
        told = types.ErrorData(code=types.PARSE_ERROR, message=one_line(error))
        return SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=message["id"], error=told))


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
    error = leaves_of(error)[0]
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
