"""Reading what the SDK cannot read of a server's messages: for one fault in it, the SDK drops all of a message."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import anyio

from repertory._json_text import decode_received, json_text
from repertory._log import Log
from repertory.mcp.lines import ANSWERED
from repertory.tools.output import one_line

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectSendStream
    from mcp.client._transport import ReadStream, TransportStreams
    from mcp.shared.message import SessionMessage
    from pydantic import ValidationError

log = Log("repertory.mcp")

_USED: Final = ("name", "title", "description", "inputSchema", "annotations")  # of a tool; anything else is not used
_BEGINNING = re.compile(r'\{\s*"(?:jsonrpc|id|method|result|error)"\s*:')  # of a message
_WITHIN = re.compile(r"\s*[]},]")  # what follows it
_DECODER: Final = json.JSONDecoder()


@asynccontextmanager
async def repaired(
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

    async with passing, incoming:  # nobody else closes what comes from standard input
        async for message in incoming:
            for said in _read_again(message) if isinstance(message, ValidationError) else [message]:
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
        if not isinstance(value := result["structuredContent"], dict):  # before 2026-07-28 the SDK reads nothing else
            result["structuredContent"] = {"result": value}
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


def _read_again(error: ValidationError) -> Sequence[SessionMessage | Exception]:
    """The messages in what the SDK could not read; the error itself if there are none.

    The SDK drops it, and a call whose answer it was would wait until the deadline. What a server prints may stand
    before a message and behind it, as what ends in no newline does. Half a surrogate pair becomes U+FFFD. If the answer
    to a call still cannot be read, it becomes an error of that call.
    """
    inputs = [each["input"] for each in error.errors(include_url=False)]
    line, at = str(inputs[0]), 0
    read: Any = next((each for each in inputs if isinstance(each, dict)), None)
    if read is None:
        with suppress(ValueError):
            read = decode_received(line)
    if isinstance(read, dict):
        return _messages_of(read, error) or [error]
    found: list[SessionMessage] = []
    while beginning := _BEGINNING.search(line, at):
        try:
            _, at = _DECODER.raw_decode(line, beginning.start())
            read = decode_received(line[beginning.start() : at])
            # A request may be our own, as a server logs what it receives; what is within something else is its content.
            if "jsonrpc" in read and not read.keys() >= {"id", "method"} and not _WITHIN.match(line, at):
                found += _messages_of(read, error)
        except (ValueError, RecursionError):
            if answered := ANSWERED.match(line, beginning.start()):
                found += _unread(json.loads(answered[1]), error)
            break
    return found or [error]


def _messages_of(message: dict[str, Any], error: ValidationError) -> list[SessionMessage]:
    """A JSON object as a message, or as the error of the call that it answers; nothing if it is anything else."""
    import mcp_types as types
    from mcp.shared.message import SessionMessage

    try:
        return [SessionMessage(types.jsonrpc_message_adapter.validate_python(message, by_name=False))]
    except ValueError:
        is_answer = "jsonrpc" in message and "method" not in message
        return _unread(message.get("id"), error) if is_answer else []


def _unread(call_id: Any, error: ValidationError) -> list[SessionMessage]:
    """The error of a call whose answer cannot be read; nothing if it cannot be the id of a call."""
    import mcp_types as types
    from mcp.shared.message import SessionMessage

    told = types.ErrorData(code=types.PARSE_ERROR, message=one_line(error))
    try:
        return [SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=call_id, error=told))]
    except ValueError:
        return []
