"""Work on many or large items, in a thread, so that the event loop goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from anyio import to_thread

T = TypeVar("T")

_MOST_ITEMS: Final = 200  # to encode one takes some 30 µs
_MOST_BYTES: Final = 100_000  # an excerpt of a million takes up to 0.6 s


async def off_loop(work: Callable[[], T], *, items: int = 1, size: int = 0) -> T:
    """Do something with this many items of this many bytes in all: at once if they are few, else in a thread.

    A cancelled call still waits for the thread, so that nothing goes on behind its back.
    """
    if items <= _MOST_ITEMS and size <= _MOST_BYTES:
        return work()
    return await to_thread.run_sync(work)
