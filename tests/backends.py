"""How a plain test function runs async code on each backend in turn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class RunAsync(Protocol):
    """Runs an async function to its end on one backend; the fixture ``run_async`` is one."""

    backend: str

    def __call__(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Run ``function(*args)``, bounded so that a hang fails instead of hanging the suite."""
        ...
