"""Offering tools as an MCP server: over the standard streams, or request by request over HTTP."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from repertory._error_texts import safe_str
from repertory._version import __version__
from repertory.errors import ConfigurationError, ToolAbort
from repertory.llm.messages import Image, Json, Text, is_media
from repertory.mcp.repairs import repaired
from repertory.tools import Tool, ToolContext, ToolOutput
from repertory.tools.execution import execute, unknown_tool
from repertory.tools.threads import from_any_thread

if TYPE_CHECKING:
    import mcp_types as types
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.server import Server
    from mcp.server.session import ServerSession
    from starlette.types import Receive, Scope, Send

__all__ = ["answer_http", "serve_over_stdio", "serve_tools"]


def serve_tools(tools: Iterable[Tool], *, instructions: str = "") -> Server[Any]:
    """Make a server that offers tools. Its ``run`` and its app are the SDK's.

    Args:
        tools: The tools to offer; their effects become the protocol's hints.
        instructions: What a client's model is told about the tools as a whole.

    Raises:
        ConfigurationError: The extra ``repertory[mcp]`` is not installed.
    """
    try:
        import mcp_types as types
        from mcp.server import Server, ServerRequestContext
    except ImportError as error:
        raise ConfigurationError("to serve MCP needs the extra: pip install 'repertory[mcp]'") from error
    by_name = {tool.name: tool for tool in tools}

    async def list_tools(_: object, __: object) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_described(tool) for tool in by_name.values()])

    async def call_tool(request: ServerRequestContext[Any], call: types.CallToolRequestParams) -> types.CallToolResult:
        found = by_name.get(call.name)
        if found is None:
            return _result(unknown_tool(call.name, by_name))
        output: ToolOutput | None = None
        sender, receiver = anyio.create_memory_object_stream[str](64)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_pass_on, receiver, request.session)
            context = ToolContext(progress=from_any_thread(partial(_report, sender)))
            with sender:
                try:
                    output = await execute(found, call.arguments or {}, context)
                except ToolAbort as error:  # there is no run that it could end
                    output = ToolOutput(safe_str(error), status="error")
        assert output is not None  # the group would have raised any error
        return _result(output)

    return Server(
        "repertory", version=__version__, instructions=instructions, on_list_tools=list_tools, on_call_tool=call_tool
    )


async def serve_over_stdio(tools: Iterable[Tool], *, instructions: str = "") -> None:
    """Offer tools over this process's standard streams, until the client closes them."""
    server = serve_tools(tools, instructions=instructions)
    from mcp.server.stdio import stdio_server

    # A request with half of a surrogate pair, as a client writes that has cut a text, would never be answered.
    async with repaired(stdio_server(), "stdio", anyio.Event()) as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


async def answer_http(server: Server[Any], scope: Scope, receive: Receive, send: Send) -> None:
    """Answer one HTTP request of an MCP client, with the streamable transport and without sessions.

    Everything that the request starts ends with it, also if the client disconnects first. The caller must check who
    may call, and how long a body may be.
    """
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    manager = StreamableHTTPSessionManager(server, stateless=True)
    async with manager.run():
        await manager.handle_request(scope, receive, send)


async def _pass_on(texts: MemoryObjectReceiveStream[str], session: ServerSession) -> None:
    """Report a call's progress for as long as it lasts."""
    with texts:
        count = 0
        async for text in texts:
            count += 1
            await session.report_progress(count, None, text)


def _report(sender: MemoryObjectSendStream[str], text: str) -> None:
    """Pass on a progress text; it is dropped if the connection is too slow for it."""
    with suppress(anyio.WouldBlock, anyio.BrokenResourceError, anyio.ClosedResourceError):
        sender.send_nowait(text)


def _described(tool: Tool) -> types.Tool:
    import mcp_types as types

    hints = types.ToolAnnotations(
        read_only_hint=tool.effect == "pure", idempotent_hint=tool.effect in ("pure", "idempotent")
    )
    return types.Tool(
        name=tool.name,
        description=tool.description,
        input_schema=msgspec.to_builtins(tool.input_schema),
        annotations=hints,
    )


def _result(output: ToolOutput) -> types.CallToolResult:
    import mcp_types as types

    if output.later is not None:
        output = ToolOutput(f"its result comes later, and nothing here can wait for it: {output.text}", status="error")
    blocks = (Text(output.content),) if isinstance(output.content, str) else output.content
    content: list[Any] = []
    for block in blocks:
        if isinstance(block, Text):
            content.append(types.TextContent(text=block.text))
            continue
        source: Json = block.source if isinstance(block, Image) else block.raw.get("source") or {}
        if not is_media(block) or source.get("type") != "base64":
            content.append(types.TextContent(text="[a block that this protocol has no form for]"))
        elif isinstance(block, Image):
            content.append(types.ImageContent(data=source["data"], mime_type=source["media_type"]))
        else:
            uri = f"result:document-{len(content)}"
            blob = types.BlobResourceContents(uri=uri, blob=source["data"], mime_type=source["media_type"])
            content.append(types.EmbeddedResource(resource=blob))
    return types.CallToolResult(content=content, is_error=output.is_error)
