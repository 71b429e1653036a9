"""A tool that was written for another event loop: the model is told in a sentence, the developer what to do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
import trio

from repertory.tools import call_tool, tool


async def sleep() -> None:
    """Wait for the clock."""
    await asyncio.sleep(0.1)


async def give_way() -> None:
    """Yield."""
    await asyncio.sleep(0)


async def queue() -> None:
    """Wait for another task."""
    await asyncio.Queue[int]().get()


async def tasks() -> None:
    """Start tasks."""
    async with asyncio.TaskGroup():
        pass


async def to_thread() -> None:
    """Start a thread."""
    await asyncio.to_thread(print)


@pytest.mark.parametrize("function", [sleep, give_way, queue, tasks, to_thread])
async def test_a_tool_that_needs_asyncio_says_so_under_trio(
    function: Callable[[], Awaitable[None]], caplog: pytest.LogCaptureFixture
) -> None:
    """In whichever way asyncio fails there; the way out stands in the log and in the error that the journal keeps."""
    with caplog.at_level(logging.WARNING, "repertory.tools"):
        output = await call_tool(tool(function, name="fetch", description="Fetch."))
    assert output.text == "fetch needs asyncio, and this program runs on trio. Go on without it."
    assert output.error is not None
    assert output.error.cause == "crash"
    for told in (output.error.traceback, caplog.text):
        assert 'run the program with backend="asyncio", or write fetch with anyio, which runs on both' in told


def test_a_tool_that_needs_trio_says_so_under_asyncio(run_async: Any) -> None:
    """The other way round; the same tool does its work on trio."""

    @tool
    async def wait() -> str:
        """Wait."""
        await trio.sleep(0)
        return "waited"

    async def call() -> str:
        return (await call_tool(wait)).text

    told = "waited" if run_async.backend == "trio" else "wait needs trio, and this program runs on asyncio."
    assert run_async(call).startswith(told)


async def test_a_plain_function_that_needs_an_event_loop_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """It has none in its thread, on either backend."""

    @tool
    def fetch() -> None:
        """Fetch."""
        asyncio.get_running_loop()

    @tool
    def fetch_by_itself() -> str:
        """Fetch, in a loop of its own."""
        return asyncio.run(asyncio.sleep(0, "fetched"))

    with caplog.at_level(logging.WARNING, "repertory.tools"):
        output = await call_tool(fetch)
    assert output.text == (
        "fetch needs asyncio, and a plain function runs in a thread, where no event loop is. Go on without it."
    )
    assert "make fetch an async function, or call asyncio.run(…) in it" in caplog.text
    assert (await call_tool(fetch_by_itself)).text == "fetched"


@pytest.mark.parametrize("inner", ["trio", "asyncio"])
def test_a_plain_function_may_run_an_event_loop_of_its_own(run_async: Any, inner: str) -> None:
    """The program's own loop runs in another thread, whichever library either is of."""

    @tool
    def fetch() -> str:
        """Fetch."""
        anyio.run(anyio.sleep, 0, backend=inner)
        asyncio.run(anyio.sleep(0))
        return "fetched"

    async def call() -> str:
        return (await call_tool(fetch)).text

    assert run_async(call) == "fetched"


async def test_other_errors_of_the_same_types_stay_what_they_are() -> None:
    """Only the signs of a wrong event loop count."""

    @tool
    async def wrong() -> None:
        """Go wrong."""
        raise AttributeError("'NoneType' object has no attribute 'create_future'")

    assert (await call_tool(wrong)).text.startswith("AttributeError: 'NoneType' object")
