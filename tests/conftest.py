"""What every test may use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

import anyio
import pytest

T = TypeVar("T")


class RunAsync(Protocol):
    """Runs an async function to its end on one backend."""

    backend: str

    def __call__(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Run ``function(*args)``, bounded by a minute so that a hang fails instead of hanging the suite."""
        ...


@pytest.fixture(params=["trio", "asyncio"])
def run_async(request: pytest.FixtureRequest) -> RunAsync:
    """Run the test once on each backend: ``run_async(main)``. For tests that are plain functions."""

    def run(function: Callable[..., Awaitable[T]], *args: Any) -> T:
        async def bounded() -> T:
            with anyio.fail_after(60):
                return await function(*args)

        return anyio.run(bounded, backend=request.param)

    run.backend = request.param  # type: ignore[attr-defined]
    return run  # type: ignore[return-value]
