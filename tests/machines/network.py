"""Computers that are namespaces of the Linux kernel's network: a server's, and others with a link to it each.

Nothing leaves them: they have no route to anywhere else. A link is cut, and healed, at the server's end.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_NEW_NETWORK = 0x40000000  # CLONE_NEWNET of setns(2), which Python has from 3.12 on
_NAMED = Path("/run/netns")
_PREFIX = "rptr"


class NoNetwork(Exception):
    """Namespaces cannot be made here."""


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], check=False, capture_output=True, text=True)
    if done.returncode:
        raise NoNetwork(f"ip {' '.join(words)}: {done.stderr.strip()}")


class Network:
    """A server's namespace, number 0, and those of computers, from 1 on."""

    def __init__(self, computers: int) -> None:
        self._names = [f"{_PREFIX}-{os.getpid()}-{number}" for number in range(computers + 1)]

    def make(self) -> None:
        """Make it."""
        for name in self._names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        server, *others = self._names
        for number, name in enumerate(others, start=1):
            _ip("-n", server, "link", "add", f"to{number}", "type", "veth", "peer", "name", "out", "netns", name)
            _ip("-n", server, "address", "add", f"{self.server_for(number)}/30", "dev", f"to{number}")
            _ip("-n", name, "address", "add", f"10.77.{number}.2/30", "dev", "out")
            _ip("-n", name, "link", "set", "out", "up")
            self.heal(number)

    def remove(self) -> None:
        """Remove it, as far as it is there."""
        for name in self._names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)

    def server_for(self, number: int) -> str:
        """The server's address, as a computer sees it."""
        return f"10.77.{number}.1"

    def cut(self, number: int) -> None:
        """Cut the link of a computer: what is under way is lost, and nobody is told."""
        _ip("-n", self._names[0], "link", "set", f"to{number}", "down")

    def heal(self, number: int) -> None:
        """Have the link of a computer work again."""
        _ip("-n", self._names[0], "link", "set", f"to{number}", "up")

    @contextlib.contextmanager
    def inside(self, number: int) -> Iterator[None]:
        """Processes that this thread starts in the block are in a namespace."""
        with Path("/proc/self/ns/net").open() as own, (_NAMED / self._names[number]).open() as there:
            _enter(there.fileno())
            try:
                yield
            finally:
                _enter(own.fileno())


def _enter(namespace: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.setns(namespace, _NEW_NETWORK):
        raise OSError(ctypes.get_errno(), "setns")


def _remove_left() -> None:
    """Remove what a process left that was killed."""
    for path in _NAMED.glob(f"{_PREFIX}-*-*") if _NAMED.exists() else ():
        pid = path.name.split("-")[1]
        if pid.isdecimal() and not Path("/proc", pid).exists():
            subprocess.run(["ip", "netns", "delete", path.name], check=False, capture_output=True)


@contextlib.contextmanager
def network(computers: int) -> Iterator[Network]:
    """A network until the end of the block.

    Raises:
        NoNetwork: This machine or user cannot make one.
    """
    if sys.platform != "linux" or os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("unshare"):
        raise NoNetwork("it takes Linux, root, and the commands ip and unshare")
    _remove_left()
    made = Network(computers)
    try:
        made.make()
        yield made
    finally:
        made.remove()
