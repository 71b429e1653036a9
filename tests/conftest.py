"""What every test may use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio
import pytest

from backends import RunAsync

T = TypeVar("T")


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
