"""Calls of an MCP server's tools, and what came of each: a result, a question, an error, or nobody knows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from repertory.errors import ToolSetUnavailable
from repertory.llm.messages import Json
from repertory.mcp.asking import responses, result_later
from repertory.mcp.connection import Connection
from repertory.mcp.resources import list_resources
from repertory.mcp.results import resource_output, tool_output
from repertory.mcp.transport import MOST_SAID, fate_of, says_lost
from repertory.record.records import Effect
from repertory.tools import ToolContext, ToolOutput
from repertory.tools.context import GivenAnswer
from repertory.tools.output import ResultLater, one_line

if TYPE_CHECKING:
    import mcp_types as types

    from mcp import Client

_POLLS = (0.05, 0.25, 1.0, 5.0)  # seconds before calling again a server that is not ready; the last one repeats


class Calls:
    """Makes the calls of one server's tools.

    Args:
        server: The server's name.
        connection: The connection to it.
        input_timeout: Seconds for which a call waits for a person's answer; None waits without limit.
    """

    def __init__(self, server: str, connection: Connection, *, input_timeout: float | None) -> None:
        self._server = server
        self._connection = connection
        self._input_timeout = input_timeout

    async def call(
        self, tool: str | None, effect: Effect, arguments: Json, context: ToolContext
    ) -> ToolOutput | ResultLater:
        """Call a tool; None reads a resource instead. Do so once more if the result was lost and it may be repeated, or
        if nobody heard the call.

        Raises:
            ToolFailed: The server asks for what it cannot be given.
        """
        from mcp.shared.exceptions import MCPError
        from mcp_types import INVALID_PARAMS, PARSE_ERROR

        name, answer, may_repeat = self._server, context.answer, effect in ("pure", "idempotent")
        why = ""
        for first in (True, False):
            try:
                client = await self._connection.client()
            except ToolSetUnavailable as error:
                return self._refused(str(error))
            try:
                result = await self._ask(client, tool, arguments, context, answer)
                if answer is not None and answer.expired and isinstance(result, ResultLater):
                    return self._unanswered()
                return result
            except (ValueError, RecursionError) as error:  # of pydantic, in the SDK
                return self._unreadable(one_line(error))
            except MCPError as error:
                if error.code == PARSE_ERROR:  # here, not at the server: what the SDK sends can be read
                    return self._unreadable(error.message)
                if answer is not None and error.code == INVALID_PARAMS:
                    if answer.expired:
                        return self._unanswered()
                    # The state that the server gave us may be valid only for one process, or for some minutes.
                    if may_repeat:
                        return await self.call(tool, effect, arguments, msgspec.structs.replace(context, answer=None))
                    return self._interrupted(
                        f"A person answered what server {name} had asked, but the server does not know of its question "
                        f"any more: {error.message}."
                    )
                fate = fate_of(error)
                if fate == "none" or says_lost(error):
                    self._connection.mark_lost(client)
                if fate == "answered" or (fate == "none" and not first):
                    return self._refused(f"server {name}: {error.message}")
                why = error.message.rstrip(".")
                if fate == "unknown" and not may_repeat:
                    break
        return self._interrupted(f"Server {name} gave no answer to this call: {why}.")

    def _refused(self, why: str) -> ToolOutput:
        """Tell the model that the call failed. Whether to make it again is for the model to judge."""
        return ToolOutput(why, status="error", source_type="mcp")

    def _unreadable(self, why: str) -> ToolOutput:
        return self._interrupted(f"Server {self._server} gave an answer that cannot be read: {why}.")

    def _unanswered(self) -> ToolOutput:
        """End a call whose server asks again after nobody answered in time. Otherwise it could ask for ever."""
        name = self._server
        return self._interrupted(
            f"Server {name} asked a person, nobody answered in time, and it gives no result without."
        )

    def _interrupted(self, why: str) -> ToolOutput:
        """Tell the model that nobody knows what came of the call."""
        told = f"{why} The call may have had its effect, or part of it: find out before you make it again."
        return ToolOutput(told, status="interrupted", source_type="mcp")

    async def _ask(
        self, client: Client, tool: str | None, arguments: Json, context: ToolContext, answer: GivenAnswer | None
    ) -> ToolOutput | ResultLater:
        from mcp_types import CallToolResult, ReadResourceResult

        server, session = self._server, client.session

        async def tell(progress: float, total: float | None, message: str | None) -> None:
            of = f" of {total:g}" if total is not None else ""
            context.progress((message or f"{progress:g}{of}")[:MOST_SAID])

        send: Callable[..., Awaitable[types.CallToolResult | types.ReadResourceResult | types.InputRequiredResult]]
        if tool is not None:
            send = partial(session.call_tool, tool, arguments, progress_callback=tell)
        elif uri := arguments.get("uri"):
            send = partial(session.read_resource, str(uri))
        else:
            return await list_resources(client, server=server)
        meta: Any = {"repertory/idempotencyKey": context.idempotency_key} if context.idempotency_key else None
        given = None if answer is None else responses(answer)
        state = None if answer is None else answer.state["request_state"]
        for pause in chain(_POLLS, repeat(_POLLS[-1])):
            result = await send(meta=meta, input_responses=given, request_state=state, allow_input_required=True)
            if isinstance(result, CallToolResult):
                return tool_output(result, server=server)
            if isinstance(result, ReadResourceResult):
                return resource_output(result, server=server)
            if result.input_requests:
                return result_later(result, server=server, timeout=self._input_timeout)
            given, state = None, result.request_state  # the server asks nothing, and wants to be called again
            await anyio.sleep(pause)
        raise AssertionError("the pauses have no end")
