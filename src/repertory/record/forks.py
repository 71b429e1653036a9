"""Making a journal unusable in forked children, which must not touch their parent's."""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Final, Protocol

from repertory.errors import JournalClosed


class Forkable(Protocol):
    """Something that must not be used in a forked child."""

    def abandon(self) -> None:
        """Become unusable in the child, without touching what the parent still uses."""
        ...


_forkables: Final[weakref.WeakSet[Forkable]] = weakref.WeakSet()
_hooked: Final[list[bool]] = []


def abandon_in_forks(one: Forkable) -> None:
    """Call ``abandon`` in every child that this process forks from now on."""
    if not _hooked:
        _hooked.append(True)
        os.register_at_fork(after_in_child=_abandon_all)
    _forkables.add(one)


def _abandon_all() -> None:
    for one in list(_forkables):
        one.abandon()


def keep_for_ever(thing: object) -> None:
    """Prevent Python from ever freeing an object.

    A forked child must not even close an SQLite connection of its parent: that would roll back the parent's open
    transaction in their shared memory.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def forked_error(path: str) -> JournalClosed:
    """The error for every use of a journal in a forked child."""
    return JournalClosed(
        f"{path} belongs to the process that this one was forked from; open it here with readonly=True, or start "
        "processes by spawning them"
    )
