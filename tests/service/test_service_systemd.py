"""A service under systemd, which the tests play: a real socket for what it says, real descriptors that it is passed."""

from __future__ import annotations

import inspect
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from test_service_process import Served

from patience import PATIENCE
from repertory.errors import ConfigurationError
from repertory.machines.machine import LEASE
from repertory.record.opening import open_journal
from repertory.service.process import _CLOSING, Options
from repertory.service.systemd import SOCKET_UNIT, Notifier, passed_sockets, service_unit

# Takes its descriptors as systemd passes them: from 3 on, and under its own process id.
STARTER = """
import os, sys
count = int(sys.argv[1])
for number, descriptor in enumerate(map(int, sys.argv[2:2 + count])):
    os.dup2(descriptor, 3 + number)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(count), LISTEN_FDNAMES="a")
os.execv(sys.executable, [sys.executable, *sys.argv[2 + count:]])
"""


class Systemd:
    """Hears what services say, and starts them."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._stack = stack
        self.address = str(folder / "notify")
        self._socket = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        self._socket.bind(self.address)
        self._socket.settimeout(PATIENCE)
        self.heard: list[str] = []

    def start(self, *options: str, passed: tuple[socket.socket, ...] = (), watchdog: float | None = None) -> Served:
        """Start a service, with sockets that it is passed."""
        environment = {"NOTIFY_SOCKET": self.address}
        if watchdog is not None:
            environment["WATCHDOG_USEC"] = str(round(watchdog * 1e6))
        # Numbers that the starter does not overwrite before it has moved them.
        high = [os.dup(each.fileno()) for each in passed]
        starter = [sys.executable, "-c", STARTER, str(len(high)), *map(str, high)] if high else []
        served = Served(self.folder, *options, environment=environment, starter=starter, passed=high)
        for descriptor in high:
            os.close(descriptor)
        self._stack.callback(served.kill)
        return served

    def hear(self, words: str) -> str:
        """Wait for a message with these words in it."""
        while True:
            message = self._socket.recv(4096).decode()
            self.heard.append(message)
            if words in message:
                return message


@pytest.fixture
def systemd(short: Path) -> Iterator[Systemd]:
    """One of a test's own."""
    with ExitStack() as stack:
        yield Systemd(short, stack)


def test_it_says_when_it_serves_reloads_and_ends(short: Path, systemd: Systemd) -> None:
    """READY comes when it can be asked; a reload is announced and done; STOPPING comes before the end."""
    log = short / "log"
    served = systemd.start("--log", str(log))
    assert systemd.hear("READY=1") == "READY=1\nSTATUS=0 runs under way"
    assert served.ask("GET", "/healthz")["status"] == "ok"
    log.rename(short / "log.1")
    served.process.send_signal(signal.SIGHUP)
    assert systemd.hear("RELOADING=1").startswith("RELOADING=1\nMONOTONIC_USEC=")
    assert "READY=1" in systemd.hear("READY=1")
    assert "serving" in (short / "log.1").read_text()
    served.process.terminate()
    systemd.hear("STOPPING=1")
    assert served.end()[0] == 0
    time = r"repertory: \d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    assert re.fullmatch(rf"{time} reloaded\n{time} SIGTERM came, so it ends\n{time} ended\n", log.read_text())
    assert not any("WATCHDOG" in message for message in systemd.heard)  # nobody asked for it


def test_the_watchdog_hears_of_round_trips_alone(short: Path, systemd: Systemd) -> None:
    """It is told that the service lives only as long as the journal answers."""
    served = systemd.start(watchdog=60.0)
    systemd.hear("WATCHDOG=1")
    systemd.hear("WATCHDOG=1")
    served.process.send_signal(signal.SIGSTOP)  # hangs, as far as anybody can see
    systemd._socket.settimeout(2.5)
    with pytest.raises(TimeoutError):
        while True:
            systemd.hear("WATCHDOG=1")  # what was on its way
    served.process.send_signal(signal.SIGCONT)
    systemd._socket.settimeout(PATIENCE)
    systemd.hear("WATCHDOG=1")


def test_it_serves_at_the_sockets_that_it_is_passed(short: Path, systemd: Systemd) -> None:
    """A unix socket and a port at once: connections that came before it are answered, and the socket stays."""
    with ExitStack() as stack:
        unix = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        unix.bind(str(short / "s"))
        unix.listen()
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        early = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        early.settimeout(PATIENCE)
        early.connect(str(short / "s"))
        early.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        served = systemd.start(passed=(unix, tcp))
        said = served.hear("serving")
        assert f"unix:{short}/s and http://127.0.0.1:{tcp.getsockname()[1]}/" in said
        assert early.recv(4096).startswith(b"HTTP/1.1 200")
        assert served.ask("GET", "/runs")["runs"] == []
        stranger = stack.enter_context(socket.create_connection(tcp.getsockname(), timeout=PATIENCE))
        stranger.sendall(b"GET /runs HTTP/1.1\r\nhost: localhost:%d\r\n\r\n" % tcp.getsockname()[1])
        assert stranger.recv(4096).startswith(b"HTTP/1.1 401")
        served.process.terminate()
        assert served.end()[0] == 0
        assert (short / "s").exists()
        again = systemd.start(passed=(unix,))
        again.hear("serving")
        assert served.ask("GET", "/runs")["runs"] == []


def test_a_log_that_was_moved_is_begun_anew(short: Path) -> None:
    """Also by who does not say so with a signal."""
    from repertory.service.logfile import logging_to

    path = short / "log"
    with logging_to(path) as log:
        assert log is not None
        os.write(2, b"one\n")
        log.follow()
        path.rename(short / "old")
        log.follow()
        os.write(2, b"two\n")
        path.unlink()
        path.mkdir()
        log.follow()  # cannot be written: what is open stays
        path.rmdir()
        log.follow()
        os.write(2, b"three\n")
    assert (short / "old").read_text() == "one\n"
    assert path.read_text() == "three\n"
    assert path.stat().st_mode & 0o777 == 0o600
    with (
        pytest.raises(ConfigurationError, match=r"cannot write the log .*/old/log: .*\(.*/old\)"),
        logging_to(short / "old" / "log"),
    ):
        pass


FULL_DISK = """
import os, signal, sys
from pathlib import Path
import repertory as rp
from repertory.service import Options, run_service

def start(control):
    control.on_reload = reload
    os.kill(os.getpid(), signal.SIGHUP)

def reload():
    os.kill(os.getpid(), signal.SIGTERM)
    return ["a line"]

rp.run(run_service, Options(database="a.db", socket=Path("s"), log=Path("/dev/full"), on_start=start))
"""


def test_a_log_on_a_full_disk_ends_nothing(short: Path) -> None:
    """The service starts, reopens its log and ends as usual; only the lines are lost."""
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK], cwd=short, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_what_a_reload_raises_ends_nothing(short: Path) -> None:
    """An application's own reload may fail in any way: that is reported, and the service serves on to its end."""
    code = FULL_DISK.replace('return ["a line"]', 'raise KeyError("a line")').replace('log=Path("/dev/full"), ', "")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=short, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "not reloaded, continuing as before: KeyError: 'a line'" in done.stderr
    assert "ended" in done.stderr


def test_sockets_for_another_process_are_not_taken() -> None:
    """A tool that is started by a service inherits the variables, but not what they mean."""
    environment = {"LISTEN_PID": "1", "LISTEN_FDS": "3", "LISTEN_FDNAMES": "a:b:c", "HOME": "/"}
    assert passed_sockets(environment) == []
    assert environment == {"HOME": "/"}
    assert passed_sockets({"LISTEN_FDS": "3"}) == []


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: os.open("/dev/null", os.O_RDONLY), "not a socket"),
        (lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).detach(), "does not listen"),
        (lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).detach(), "does not listen"),
        (lambda: socket.create_server(("0.0.0.0", 0)).detach(), "for its own machine"),
    ],
)
def test_what_no_service_can_listen_at_is_refused(make: object, words: str, short: Path) -> None:
    """Before anything is served: another address than this machine's own above all."""
    code = (
        "import sys, os, socket; from repertory.service.systemd import passed_sockets\n"
        "os.dup2(int(sys.argv[1]), 3); os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1')\n"
        "try: passed_sockets()\nexcept Exception as error: print(error)"
    )
    descriptor = make()  # type: ignore[operator]
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, str(descriptor)],
            pass_fds=[descriptor],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=True,
        )
    finally:
        os.close(descriptor)
    assert words in done.stdout, done


def test_nobody_listening_harms_nothing(short: Path) -> None:
    """A message that finds no systemd is dropped; an abstract name works as a path does."""
    Notifier(str(short / "gone")).ready("x")
    Notifier().ready("x")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0{short}")
        notifier = Notifier.from_environment(
            {"NOTIFY_SOCKET": f"@{short}", "WATCHDOG_USEC": "5000000", "WATCHDOG_PID": str(os.getpid())}
        )
        assert notifier.watchdog == 5.0
        notifier.ready("two\nlines")
        notifier.status("two\nlines")  # the same: not said again
        notifier.alive()
        assert [listener.recv(100), listener.recv(100)] == [b"READY=1\nSTATUS=two lines", b"WATCHDOG=1"]
    other = {"WATCHDOG_USEC": "5000000", "WATCHDOG_PID": "1"}
    assert Notifier.from_environment(other).watchdog is None
    for wrong in ({"NOTIFY_SOCKET": "vsock:2:1"}, {"WATCHDOG_USEC": "soon"}):
        with pytest.raises(ConfigurationError):
            Notifier.from_environment(dict(wrong))


def test_a_process_without_free_descriptors_goes_on(short: Path) -> None:
    """What cannot be said to systemd is dropped, also without a descriptor to say it with; any letter can be said."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(short / "n"))
        notifier = Notifier(str(short / "n"))
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            notifier.status("lost")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        notifier.status("a file \udcff")
        assert listener.recv(100) == b"STATUS=a file \\udcff"


def test_systemd_waits_for_as_long_as_a_service_may_take_to_stop() -> None:
    """Also one whose database takes nothing: it says so, and how much is not written, before it would be killed."""
    queued = inspect.signature(open_journal).parameters["close_timeout"].default
    longest = Options(database="runs.db").drain_timeout + _CLOSING + LEASE + queued
    recipes = Path(__file__).parents[2] / "docs" / "recipes.md"
    units = service_unit(["/bin/true"], folder="/", name="x", activated=False) + recipes.read_text(encoding="utf-8")
    waits = re.findall(r"(?:TimeoutStopSec=|--stop-timeout )(\d+)", units)
    assert len(waits) == 3
    assert all(int(seconds) > longest for seconds in waits)


def test_systemd_takes_the_units(tmp_path: Path) -> None:
    """Every line of them, also with a folder and arguments that have to be quoted."""
    if (verifier := shutil.which("systemd-analyze")) is None:
        pytest.skip("there is no systemd here")
    folder = tmp_path / "my 100% folder"
    folder.mkdir()
    command = ["/bin/true", "serve", "--agent", "it's; $HOME 5%", 'a "quoted" one', ""]
    unit = service_unit(command, folder=str(folder), name="x", activated=True)
    assert '"it\'s; $$HOME 5%%" "a \\"quoted\\" one" ""' in unit
    (tmp_path / "x.service").write_text(unit)
    (tmp_path / "x.socket").write_text(SOCKET_UNIT)
    paths = [str(tmp_path / "x.service"), str(tmp_path / "x.socket")]
    checked = subprocess.run(
        [verifier, "verify", "--user", *paths], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert [line for line in checked.stderr.splitlines() if str(tmp_path) in line or line.startswith("x.")] == []
    with pytest.raises(ConfigurationError, match="line breaks"):
        service_unit(["/bin/true", "a\nb"], folder="/", name="x", activated=False)
