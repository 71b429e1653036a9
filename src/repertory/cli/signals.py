"""What Ctrl-C and SIGTERM do, from the first line of the program to its last.

One handler stays for the whole life of the process. Nothing is ever raised from it, so a signal shows no traceback,
wherever it comes: it either tells the command that is under way, which then comes to an orderly end, or ends the
process at once with the terminal as it was. Every import here comes before the handler and must be quick.
"""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager

TYPE_CHECKING = False  # typing's own takes longer to import than everything else here
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import FrameType
    from typing import NoReturn

_SHOW_CURSOR = b"\n\x1b[?25h"  # below what was being drawn


class _Process:
    """What the handler needs to know.

    Attributes:
        pid: The process that the handler was made for: a child that was forked from it has nothing to end in order.
        listener: Who is told of a signal; None ends the process.
        terminals: Where something is being drawn, maybe with the cursor hidden.
    """

    pid = 0
    listener: Callable[[int], None] | None = None
    terminals: tuple[int, ...] = ()


def install() -> None:
    """Take over Ctrl-C and SIGTERM. Only for the main thread, and for the command line's own process."""
    _Process.pid = os.getpid()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _handle)


def _handle(number: int, _frame: FrameType | None) -> None:
    if _Process.listener is not None and _Process.pid == os.getpid():
        _Process.listener(number)
    else:
        leave(number)


def leave(number: int) -> NoReturn:
    """End the process at once, with the exit code of a signal and the cursor shown.

    Nothing is closed or flushed: the record survives this as it survives a kill.
    """
    if _Process.pid == os.getpid():
        for terminal in _Process.terminals:
            try:
                os.write(terminal, _SHOW_CURSOR)
            except OSError:  # the terminal is gone
                continue
    os._exit(128 + number)


@contextmanager
def told_to(listener: Callable[[int], None]) -> Generator[None]:
    """Tell a function about signals, instead of ending the process, until the block is left.

    It is called in the main thread between any two instructions: it must only leave a note or post to an event loop.
    """
    before, _Process.listener = _Process.listener, listener
    try:
        yield
    finally:
        _Process.listener = before


@contextmanager
def drawn_on(terminal: int) -> Generator[None]:
    """Where a new line has to be begun and the cursor shown again if the process ends inside the block."""
    _Process.terminals += (terminal,)
    try:
        yield
    finally:
        _Process.terminals = _Process.terminals[:-1]
