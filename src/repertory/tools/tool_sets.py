"""Tools that have to be opened before they can be called: a connection, a process, a browser."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from repertory.tools.decorator import Tool

Lifetime: TypeAlias = Literal["run", "supervisor"]


@runtime_checkable
class ToolSet(Protocol):
    """Tools that share something to be opened before use and closed afterwards. List it in an agent's ``tools``."""

    @property
    def name(self) -> str:
        """Its name. If another tool has the same name as one of its tools, this is put in front of the tool's name."""
        ...

    @property
    def lifetime(self) -> Lifetime:
        """``run``: each run opens its own. ``supervisor``: all runs share one; the first run that needs it opens it."""
        ...

    def open(self) -> AbstractAsyncContextManager[Sequence[Tool]]:
        """Open it for the duration of the ``async with`` block, which is entered and left in the same task.

        The sequence may change while it is open. A run uses the tools that are there when it begins, so that the tools
        it shows its model stay the same. What opening raises ends the run as ``ToolSetUnavailable``, unless it is of
        ``repertory.errors``; the run can be resumed.
        """
        ...
