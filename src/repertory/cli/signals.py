"""Handles Ctrl-C and SIGTERM, from the first line of the program to its last.

One handler stays for the whole life of the process. It never raises an exception, so a signal shows no traceback at
any time: the handler either notifies the current command, which then ends in order, or ends the process at once and
restores the terminal. The imports here run before the handler is installed and must be quick.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from contextlib import contextmanager

from repertory._held_signal import HeldSignal

TYPE_CHECKING = False  # importing typing takes longer than everything else here
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from contextlib import AbstractContextManager
    from types import FrameType
    from typing import NoReturn

_SHOW_CURSOR = b"\n\x1b[?25h"  # starts on a new line below the live display


class _Process:
    """The state of the handler.

    Attributes:
        pid: The process that the handler was installed in: a forked child has nothing to end in order.
        listener: Called for each signal; None ends the process.
        last: Called before it ends the process, to restore the terminal.
    """

    pid = 0
    listener: Callable[[int], None] | None = None
    last: tuple[Callable[[], object], ...] = ()


def install() -> None:
    """Install the handler for Ctrl-C and SIGTERM. Only for the main thread of the command line's own process.

    Where there is no terminal, SIGHUP asks a service to reload; one that comes too early waits until it can.
    """
    _Process.pid = os.getpid()
    is_service = sys.argv[1:2] in (["serve"], ["up"]) and not os.isatty(2)
    if is_service and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, HeldSignal())
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
        for act in _Process.last:
            act()
    os._exit(128 + number)


@contextmanager
def told_to(listener: Callable[[int], None]) -> Generator[None]:
    """Call a function for signals, instead of ending the process, until the block is left.

    It is called in the main thread between any two instructions: it may only set a variable or post to an event loop.
    """
    before, _Process.listener = _Process.listener, listener
    try:
        yield
    finally:
        _Process.listener = before


@contextmanager
def at_last(act: Callable[[], object]) -> Generator[None]:
    """Call a function, which must not raise, if the process ends inside the block."""
    before, _Process.last = _Process.last, (*_Process.last, act)
    try:
        yield
    finally:
        _Process.last = before


def drawn_on(terminal: int) -> AbstractContextManager[None]:
    """Start a new line and show the cursor on a terminal if the process ends inside the block."""

    def show_cursor() -> None:
        poll = select.poll()
        poll.register(terminal, select.POLLOUT)
        try:
            if poll.poll(0):  # one that was stopped with Ctrl-S, or that nobody reads, takes no output
                os.write(terminal, _SHOW_CURSOR)
        except OSError:  # the terminal is gone
            pass

    return at_last(show_cursor)
