"""Child processes to be killed: forked from a server that has imported everything, so that one takes milliseconds.

The server has one thread and no event loop, so it is safe to fork.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from repertory.errors import RepertoryError

_WORKLOADS: Final = "repertory.torture.workloads"
_LATE: Final = ("aiosqlite", "trio")  # otherwise imported on first use, which is after the fork
_MOST: Final = 65536  # bytes of one request


class ChildServer:
    """Starts children. Only one thread at a time may use it; leaving the block ends it with all its children."""

    def __init__(self, *, preload: Path | None = None) -> None:
        """Start the server.

        Args:
            preload: A library that is loaded before all others; None for none.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket = ours
        environment = {**os.environ, "REPERTORY_MODEL": "offline"}
        if preload is not None:
            environment["LD_PRELOAD"] = str(preload)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"from {__name__} import serve; serve({theirs.fileno()})"],
                pass_fds=[theirs.fileno()],
                env=environment,
                stdin=subprocess.DEVNULL,
            )

    def __enter__(self) -> ChildServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server and all its children. Safe to call twice."""
        self._socket.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def start(self, function: str, **arguments: Any) -> Child:
        """Fork a child that calls a function of ``repertory.torture.workloads`` with JSON arguments."""
        reading, writing = os.pipe()
        try:
            request = json.dumps({"function": function, "arguments": arguments}).encode()
            socket.send_fds(self._socket, [request], [writing])
        finally:
            os.close(writing)
        return Child(int(self._answer()), reading, self._wait)

    def _wait(self, pid: int) -> int:
        self._socket.send(json.dumps({"wait": pid}).encode())
        return int(self._answer())

    def _answer(self) -> bytes:
        answer = self._socket.recv(_MOST)
        if not answer:
            raise RepertoryError(f"the server of child processes ended with {self._process.wait()}")
        return answer


_servers: Final[dict[Path | None, ChildServer]] = {}


def server(preload: Path | None = None) -> ChildServer:
    """The server of this process with that library; there is one of each."""
    if preload not in _servers:
        _servers[preload] = ChildServer(preload=preload)
    return _servers[preload]


def close_servers() -> None:
    """End all servers that ``server`` started."""
    while _servers:
        _servers.popitem()[1].close()


class Child:
    """One forked process. Leaving the block kills it if it is still running."""

    def __init__(self, pid: int, output: int, wait: Callable[[int], int]) -> None:
        self.pid = pid
        self.status: int | None = None  # as of os.waitstatus_to_exitcode; None until waited for
        self._wait = wait
        self._output = output
        self._read = b""
        self._open = True

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        if self.status is None:
            self.signal(signal.SIGKILL)
            self.wait()
        os.close(self._output)

    def signal(self, number: int) -> None:
        """Send a signal; nothing happens if the child has ended already."""
        os.kill(self.pid, number)  # it is not reaped before wait(), so the id is still its own

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
            part = os.read(self._output, 65536)
            self._open = bool(part)
            self._read += part
        return until is None or until in self._read

    def wait(self) -> int:
        """Wait for its end; returns its exit code, or minus the signal that killed it."""
        if self.status is None:
            self.status = self._wait(self.pid)
        return self.status

    @property
    def output(self) -> str:
        """Its output so far."""
        return self._read.decode("utf-8", "replace")


def serve(descriptor: int) -> None:
    """Run the server: fork and wait as requested, until the requests end."""
    module = importlib.import_module(_WORKLOADS)
    for name in _LATE:
        importlib.import_module(name)
    channel = socket.socket(fileno=descriptor)
    living: set[int] = set()
    with contextlib.suppress(BrokenPipeError):  # the other side is gone
        while True:
            request, descriptors, _, _ = socket.recv_fds(channel, _MOST, 1)
            if not request:
                break
            told = json.loads(request)
            if "wait" in told:
                status = 0
                with contextlib.suppress(ChildProcessError):  # requested twice, by a worker that was ended meanwhile
                    _, status = os.waitpid(told["wait"], 0)
                living.discard(told["wait"])
                channel.send(str(os.waitstatus_to_exitcode(status)).encode())
                continue
            pid = os.fork()
            if pid == 0:
                channel.close()
                _live(getattr(module, told["function"]), told["arguments"], descriptors[0])
            os.close(descriptors[0])
            living.add(pid)
            channel.send(str(pid).encode())
    for pid in living:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    os._exit(0)


def _live(function: Any, arguments: dict[str, Any], output: int) -> None:
    """Run in the child: call the function and exit, without the server's own cleanup."""
    code = 1
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        function(**arguments)
        code = 0
    except BaseException:  # noqa: BLE001 - the outermost frame of a process
        os.write(2, traceback.format_exc().encode("utf-8", "backslashreplace"))
    finally:
        os._exit(code)
