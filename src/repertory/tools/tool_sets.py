"""Tools that have to be opened before they can be called: a connection, a process, a browser."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from repertory.tools.decorator import Tool

Lifetime: TypeAlias = Literal["run", "supervisor"]


@runtime_checkable
class ToolSet(Protocol):
    """Tools with something behind them that is opened first and closed last. It stands among an agent's ``tools``."""

    @property
    def name(self) -> str:
        """What it is called; it stands before the name of a tool that another tool has as well."""
        ...

    @property
    def lifetime(self) -> Lifetime:
        """``run``: every run opens its own. ``supervisor``: all runs share one, opened by the first that needs it."""
        ...

    def open(self) -> AbstractAsyncContextManager[Sequence[Tool]]:
        """Open it for as long as the block lasts; the block is entered and left in one task.

        The sequence may change while it is open. A run takes what is there when it begins, so that the tools it
        shows its model stay the same.
        """
        ...
