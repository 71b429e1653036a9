"""The protocols between systemd and a service: notifications that it is ready, alive or stopping, and passed sockets.

Both are plain protocols of environment variables, see sd_notify(3) and sd_listen_fds(3). The variables are removed
from the environment when they are read: they are meant for this process and not for those that its tools start.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import MutableMapping, Sequence
from contextlib import suppress
from ipaddress import ip_address
from typing import Final

from repertory.errors import ConfigurationError

_FIRST: Final = 3  # the first passed descriptor; SD_LISTEN_FDS_START


class Notifier:
    """Tells systemd the state of the service. Sends nothing if there is no address.

    A message that cannot be delivered is dropped: the service works as well without it.

    Args:
        address: A datagram socket, by its path or, with ``@`` before it, its abstract name; "" for none.
        watchdog: Seconds within which systemd expects a sign of life; None for no watchdog.
    """

    def __init__(self, address: str = "", *, watchdog: float | None = None) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self.watchdog = watchdog
        self._status = ""

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str] = os.environ) -> Notifier:
        """Make a notifier from ``NOTIFY_SOCKET``, ``WATCHDOG_USEC`` and ``WATCHDOG_PID``.

        Raises:
            ConfigurationError: One of them is invalid.
        """
        address = environment.pop("NOTIFY_SOCKET", "")
        every, pid = environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", "")
        if address and address[0] not in "/@":
            raise ConfigurationError(f"NOTIFY_SOCKET must be a path or an abstract name, got {address[:100]!r}")
        if every and not every.isdecimal():
            raise ConfigurationError(f"WATCHDOG_USEC must be a number of microseconds, got {every[:100]!r}")
        ours = bool(every) and pid in ("", str(os.getpid()))
        return cls(address, watchdog=int(every) / 1e6 if ours else None)

    def ready(self, status: str) -> None:
        """The service is ready: units that wait for it may start."""
        self._status = status
        self._send("READY=1", f"STATUS={status}")

    def status(self, status: str) -> None:
        """Set the line that ``systemctl status`` shows; it is sent only if it has changed."""
        if status != self._status:
            self._status = status
            self._send(f"STATUS={status}")

    def reloading(self) -> None:
        """The service reloads its configuration; ``ready`` ends that."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, status: str) -> None:
        """The service is stopping."""
        self._send("STOPPING=1", f"STATUS={status}")

    def alive(self) -> None:
        """The service works, as just proved. Without this for ``watchdog`` seconds, systemd kills and restarts it."""
        if self.watchdog is not None:
            self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        message = "\n".join(line.replace("\n", " ") for line in lines).encode(errors="backslashreplace")
        # Without a free descriptor there is no socket either.
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
            connection.setblocking(False)
            connection.sendto(message, self._address)


def passed_sockets(environment: MutableMapping[str, str] = os.environ) -> list[socket.socket]:
    """The sockets that systemd listens at for this process; [] if it passed none.

    Each is checked to be a unix socket, or a port of one of this machine's own addresses.

    Raises:
        ConfigurationError: One of them is something else.
    """
    pid, count = environment.pop("LISTEN_PID", ""), environment.pop("LISTEN_FDS", "")
    environment.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()) or not count.isdecimal():  # meant for another process; we have inherited it
        return []
    return [_checked(descriptor) for descriptor in range(_FIRST, _FIRST + int(count))]


def _checked(descriptor: int) -> socket.socket:
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFD, fcntl.FD_CLOEXEC)  # not for processes that tools start
        passed = socket.socket(fileno=descriptor)
        listening = passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise ConfigurationError(
            f"systemd passed descriptor {descriptor}, which is not a socket: {error.strerror}"
        ) from error
    where = f"systemd passed descriptor {descriptor}, which"
    if passed.type != socket.SOCK_STREAM or not listening:
        raise ConfigurationError(f"{where} does not listen for connections; use ListenStream= in the socket unit")
    is_inet = passed.family in (socket.AF_INET, socket.AF_INET6)
    if passed.family != socket.AF_UNIX and not (is_inet and ip_address(passed.getsockname()[0]).is_loopback):
        raise ConfigurationError(
            f"{where} listens at {passed.getsockname()[0]}; a service is for its own machine: "
            "ListenStream=127.0.0.1:PORT, or a path"
        )
    passed.setblocking(False)
    return passed


# --- units ------------------------------------------------------------------------------------------------

# After these exit codes a restart does not help: 2 wrong usage, 75 in use, 78 damaged. It may take 70 seconds to stop
# while the database takes nothing: 10 for its runs and answers, 30 to leave the other machines, 30 for what is queued.
_SERVICE: Final = """\
[Unit]
Description=repertory: agents that keep running
StartLimitIntervalSec=300
StartLimitBurst=5
{requires}
[Service]
Type=notify
WorkingDirectory={folder}
# Keys go into this file, mode 0600, as ANTHROPIC_API_KEY=...
EnvironmentFile=-%E/repertory/environment
ExecStart={command}
ExecReload=/bin/kill -HUP $MAINPID
WatchdogSec=60
Restart=on-failure
RestartSec=2
RestartPreventExitStatus=2 75 78
TimeoutStopSec=90
KillMode=mixed
LimitNOFILE=8192
UMask=0077
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native

[Install]
WantedBy=default.target
"""

# The unit of the service's socket: connections wait there while the service starts or restarts.
SOCKET_UNIT: Final = """\
[Unit]
Description=The socket of repertory

[Socket]
ListenStream=%t/repertory/ctl.sock
SocketMode=0600
DirectoryMode=0700
Backlog=1024

[Install]
WantedBy=sockets.target
"""


def service_unit(command: Sequence[str], *, folder: str, name: str, activated: bool) -> str:
    """The unit of a service that a user runs, called ``name`` without ``.service``.

    With ``activated`` systemd listens for it, by ``SOCKET_UNIT``. Raises ``ConfigurationError`` if a word has a line
    break.
    """
    words = " ".join(map(_quoted, command))
    requires = f"Requires={name}.socket\nAfter={name}.socket\n" if activated else ""
    # The folder is written unquoted: only command lines know quotes.
    return _SERVICE.format(requires=requires, folder=_printable(folder).replace("%", "%%"), command=words)


def _quoted(word: str) -> str:
    """Quote a word for a command line as systemd.syntax(7) requires: systemd itself expands ``%`` and ``$``."""
    doubled = _printable(word).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return doubled if word and not any(letter in " \t'\";" for letter in word) else f'"{doubled}"'


def _printable(word: str) -> str:
    if not word.isprintable():
        raise ConfigurationError(f"a unit cannot contain line breaks or control characters, got {word[:100]!r}")
    return word
