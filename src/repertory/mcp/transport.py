"""How a server of the Model Context Protocol is started or reached, and what it said last where that failed."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import AsyncGenerator, Generator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from repertory._error_texts import leaves_of
from repertory.errors import ConfigurationError
from repertory.tools.output import one_line

if TYPE_CHECKING:
    from typing import TextIO

    from mcp.client.session import ElicitationFnT, MessageHandlerFnT

    from mcp import Client

MOST_SAID: Final = 500  # characters of a line that a server says beside its answers
_LAST_WORDS = 20  # lines that a server process said last, told where it does not start


@asynccontextmanager
async def open_client(
    target: str | tuple[str, ...],
    *,
    env: dict[str, str],
    cwd: str | os.PathLike[str] | None,
    headers: dict[str, str],
    heard: MessageHandlerFnT,
    answer: ElicitationFnT,
) -> AsyncGenerator[Client]:
    """Start or reach a server, as ``McpServer`` says, and end the connection with the block.

    Args:
        target: Its command, or its address.
        env: Of the process.
        cwd: Of the process.
        headers: Of each request to the address.
        heard: Called with what it says by itself.
        answer: Answers what it asks within a call.

    Raises:
        Exception: It cannot be started or reached. What it said last is told with that, and nothing else is certain.
        ConfigurationError: The extra ``repertory[mcp]`` is not installed.
    """
    try:
        from mcp.client.stdio import stdio_client
        from mcp.client.streamable_http import streamable_http_client

        from mcp import Client, StdioServerParameters
    except ImportError as error:
        raise ConfigurationError("an McpServer needs the extra: pip install 'repertory[mcp]'") from error
    async with AsyncExitStack() as stack:
        words: deque[str] = deque(maxlen=_LAST_WORDS)
        transport: AbstractAsyncContextManager[Any]
        if isinstance(target, str):
            import httpx2

            http = await stack.enter_async_context(
                httpx2.AsyncClient(
                    headers=headers,
                    timeout=httpx2.Timeout(30.0, read=300.0),
                    event_hooks={"response": [partial(_note_refusal, words)]},
                )
            )
            transport = streamable_http_client(target, http_client=http)
        else:
            command, *arguments = target
            errlog = stack.enter_context(last_words(words))
            parameters = StdioServerParameters(
                command=command,
                args=arguments,
                env=env,
                cwd=cwd,  # type: ignore[arg-type]
                # Else one byte that is no UTF-8 ends the reading, and nobody hears of it.
                encoding_error_handler="replace",
            )
            transport = stdio_client(parameters, errlog=errlog)
        try:
            client = await stack.enter_async_context(
                Client(transport, message_handler=heard, elicitation_callback=answer)
            )
        except Exception as error:
            said = "\n".join(words)
            raise (ConnectionError(f"{say(error)}; it said last:\n{said}") if said else error) from error
        yield client


async def _note_refusal(words: deque[str], response: Any) -> None:
    """Remember the status of an answer that is an error, which the SDK does not tell."""
    if response.is_error:
        words.append(f"HTTP {response.status_code} {response.reason_phrase}")


@contextmanager
def last_words(lines: deque[str]) -> Generator[TextIO]:
    """A file to write to of which the last lines are kept, as what a process complains of may be all that tells why."""
    reading, writing = os.pipe()

    def read() -> None:
        with os.fdopen(reading, encoding="utf-8", errors="replace") as stream:
            while line := stream.readline(MOST_SAID):  # one without an end must not fill the memory
                lines.append(line.rstrip())

    threading.Thread(target=read, name="mcp stderr", daemon=True).start()
    with os.fdopen(writing, "w") as stream:
        yield stream


def say(error: BaseException) -> str:
    """What went wrong, in a line; of several errors the first."""
    error = leaves_of(error)[0]
    return str(error) if isinstance(error, ConnectionError | TimeoutError) else one_line(error)
