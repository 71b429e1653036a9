"""The way in from code that is not asynchronous."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from os import PathLike
from typing import Any, Literal, TypeAlias, TypeVar

import anyio

from repertory.agents.agent import Agent
from repertory.agents.supervisor import open_supervisor

T = TypeVar("T")
Backend: TypeAlias = Literal["trio", "asyncio"]


def run(main: Callable[..., Awaitable[T]], *args: Any, backend: Backend = "trio", uvloop: bool = False) -> T:
    """Run an async function to its end, as ``anyio.run`` does, on trio unless told otherwise.

    Args:
        main: The function.
        args: Its arguments.
        backend: The event loop.
        uvloop: Use uvloop; it needs ``backend="asyncio"`` and the extra ``repertory[uvloop]``.
    """
    options = {"use_uvloop": True} if uvloop else {}
    return anyio.run(main, *args, backend=backend, backend_options=options)


def run_sync(
    agent: Agent,
    task: str,
    *,
    path: str | PathLike[str] | None = None,
    backend: Backend = "trio",
    **options: Any,
) -> str:
    """Run one agent on one task and return its answer.

    Args:
        agent: What runs.
        task: What it is asked to do.
        path: Where the record is kept; None keeps it in memory only.
        backend: The event loop.
        options: For ``open_supervisor``.

    Raises:
        RunFailed: The run ended with an error; ``__cause__`` holds it.
    """

    async def main() -> str:
        async with open_supervisor(path, **options) as supervisor:
            started = await supervisor.spawn(agent, task)
            return await started.wait_result()

    return run(main, backend=backend)
