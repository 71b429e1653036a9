"""Child processes to be killed: forked from a server that has imported everything, so that one takes milliseconds.

The server is that of ``multiprocessing``, one for each process that starts children. It has one thread and no event
loop, so it is safe to fork. Where power cuts can be played, the shim is loaded into it before the C library.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import signal
import time
import traceback
from collections.abc import Callable
from functools import cache
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any, Final

from repertory.torture import shim

_PRELOADED: Final = ("repertory.torture.workloads", "aiosqlite", "trio")  # the last two are imported on first use


def start(function: Callable[..., None], **arguments: Any) -> Child:
    """Fork a child that calls a function of ``repertory.torture.workloads``."""
    context = _context()
    reading, writing = context.Pipe(duplex=False)
    process = context.Process(target=_live, args=(function, arguments, writing))
    process.start()
    writing.close()
    return Child(process, reading)


def end_children() -> None:
    """Kill all children of this process."""
    for child in multiprocessing.active_children():
        child.kill()
        child.join()


class Child:
    """One forked process. Leaving the block kills it if it is still running."""

    def __init__(self, process: ForkServerProcess, output: Connection) -> None:
        assert process.pid is not None  # it has been started
        self.pid = process.pid
        self._process = process
        self._output = output
        self._read = b""
        self._open = True

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.signal(signal.SIGKILL)
        self.wait()
        self._output.close()

    def signal(self, number: int) -> None:
        """Send a signal; nothing happens if the child has ended already."""
        if self._process.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def read(self, timeout: float, *, until: bytes | None = None) -> bool:
        """Read the child's output, until it contains ``until`` or the child ends.

        Args:
            timeout: Seconds.
            until: The text to wait for; None waits for the end.

        Returns:
            Whether that happened in time.
        """
        deadline = time.monotonic() + timeout
        while self._open and (until is None or until not in self._read):
            ready, _, _ = select.select([self._output], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return False
            part = os.read(self._output.fileno(), 65536)
            self._open = bool(part)
            self._read += part
        return until is None or until in self._read

    def wait(self) -> int:
        """Wait for its end; returns its exit code, or minus the signal that killed it."""
        self._process.join()
        assert self._process.exitcode is not None
        return self._process.exitcode

    @property
    def output(self) -> str:
        """Its output so far."""
        return self._read.decode("utf-8", "replace")


@cache
def _context() -> ForkServerContext:
    """What starts children; their server is running, with an environment of its own."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*_PRELOADED])
    wanted = {"REPERTORY_MODEL": "offline", **({} if shim.missing() else {"LD_PRELOAD": str(shim.library())})}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        forkserver.ensure_running()
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
    return context


def _live(function: Callable[..., None], arguments: dict[str, Any], output: Connection) -> None:
    """Run in the child: call the function and exit, without the server's own cleanup."""
    code = 1
    try:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        output.close()
        function(**arguments)
        code = 0
    except BaseException:  # noqa: BLE001 - the outermost frame of a process
        os.write(2, traceback.format_exc().encode("utf-8", "backslashreplace"))
    finally:
        os._exit(code)
