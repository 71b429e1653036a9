"""What systemd and a service say to each other: that it is ready or ends, that it lives, and where it listens.

Both are plain protocols of environment variables, see sd_notify(3) and sd_listen_fds(3). The variables are taken out
of the environment when they are read: they are meant for this process and not for what its tools start.
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import time
from collections.abc import MutableMapping, Sequence
from typing import Final

from repertory.errors import ConfigurationError

_FIRST: Final = 3  # the first passed descriptor; SD_LISTEN_FDS_START


class Notifier:
    """Tells systemd how the service is. Says nothing where nobody asked for it.

    A message that cannot be delivered is dropped: whether systemd hears it is systemd's trouble, and a service that ran
    on without it would be no worse.

    Args:
        address: A datagram socket, by its path or, with ``@`` before it, its abstract name; "" for none.
        watchdog: Seconds within which systemd wants to hear that the service lives; None where it does not.
    """

    def __init__(self, address: str = "", *, watchdog: float | None = None) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self.watchdog = watchdog
        self._status = ""

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str] = os.environ) -> Notifier:
        """As ``NOTIFY_SOCKET``, ``WATCHDOG_USEC`` and ``WATCHDOG_PID`` say.

        Raises:
            ConfigurationError: One of them makes no sense.
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
        """It serves: what waited for it may begin."""
        self._status = status
        self._send("READY=1", f"STATUS={status}")

    def status(self, status: str) -> None:
        """What ``systemctl status`` shows, in one line; only a change of it is sent."""
        if status != self._status:
            self._status = status
            self._send(f"STATUS={status}")

    def reloading(self) -> None:
        """It reads its configuration again; ``ready`` says that it has."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, status: str) -> None:
        """It ends."""
        self._send("STOPPING=1", f"STATUS={status}")

    def alive(self) -> None:
        """It has just proved that it works. Without it for ``watchdog`` seconds systemd kills and restarts it."""
        if self.watchdog is not None:
            self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
            connection.setblocking(False)
            try:
                connection.sendto("\n".join(line.replace("\n", " ") for line in lines).encode(), self._address)
            except OSError:
                return


def passed_sockets(environment: MutableMapping[str, str] = os.environ) -> list[socket.socket]:
    """The sockets that systemd listens at for this process; [] where it passed none.

    Each is a unix socket, or a port of this machine's own addresses: it is asked, not believed.

    Raises:
        ConfigurationError: One of them is something else.
    """
    pid, count = environment.pop("LISTEN_PID", ""), environment.pop("LISTEN_FDS", "")
    environment.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()) or not count.isdecimal():  # meant for another process, from which we have inherited it
        return []
    return [_checked(descriptor) for descriptor in range(_FIRST, _FIRST + int(count))]


def _checked(descriptor: int) -> socket.socket:
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFD, fcntl.FD_CLOEXEC)  # not for what the tools start
        passed = socket.socket(fileno=descriptor)
        listening = passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise ConfigurationError(
            f"systemd passed descriptor {descriptor}, which is no socket: {error.strerror}"
        ) from error
    where = f"systemd passed descriptor {descriptor}, which"
    if passed.type != socket.SOCK_STREAM or not listening:
        raise ConfigurationError(f"{where} does not listen for connections; use ListenStream= in the socket unit")
    if passed.family != socket.AF_UNIX and not _is_loopback(passed):
        raise ConfigurationError(
            f"{where} listens at {passed.getsockname()[0]}; a service is for its own machine: "
            "ListenStream=127.0.0.1:PORT, or a path"
        )
    passed.setblocking(False)
    return passed


def _is_loopback(passed: socket.socket) -> bool:
    return (
        passed.family in (socket.AF_INET, socket.AF_INET6) and ipaddress.ip_address(passed.getsockname()[0]).is_loopback
    )


# --- units ------------------------------------------------------------------------------------------------

# A service that lost its way must not be restarted for ever: 2 wrong usage, 75 in use, 78 damaged.
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
TimeoutStopSec=30
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

_SOCKET: Final = """\
[Unit]
Description=The socket of repertory

[Socket]
ListenStream={address}
SocketMode=0600
DirectoryMode=0700
Backlog=1024

[Install]
WantedBy=sockets.target
"""


def service_unit(command: Sequence[str], *, folder: str, name: str, activated: bool) -> str:
    """The unit of a service that a user runs.

    Args:
        command: The program with its arguments.
        folder: Where it runs.
        name: Of the unit, without ``.service``.
        activated: Whether systemd listens for it, by the unit that ``socket_unit`` makes.

    Raises:
        ConfigurationError: A word has a line break in it.
    """
    words = " ".join(map(_quoted, command))
    requires = f"Requires={name}.socket\nAfter={name}.socket\n" if activated else ""
    # A folder stands there as it is: only command lines know quotes.
    return _SERVICE.format(requires=requires, folder=_printable(folder).replace("%", "%%"), command=words)


def socket_unit(address: str = "%t/repertory/ctl.sock") -> str:
    """The unit of its socket: connections wait there while the service starts, or starts again."""
    return _SOCKET.format(address=address)


def _quoted(word: str) -> str:
    """A word as systemd.syntax(7) wants it in a command line: it expands ``%`` and ``$`` itself."""
    doubled = _printable(word).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return doubled if word and not any(letter in " \t'\";" for letter in word) else f'"{doubled}"'


def _printable(word: str) -> str:
    if not word.isprintable():
        raise ConfigurationError(f"a unit has no room for line breaks and control characters, got {word[:100]!r}")
    return word
