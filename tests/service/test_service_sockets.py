"""The socket: its modes, whose it is, and who may remove it."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from ast import literal_eval
from pathlib import Path

import pytest

from repertory.errors import AddressInUse, ConfigurationError
from repertory.service.sockets import default_socket, private_folder, tcp_listener, unix_listener


def test_only_its_user_can_reach_the_socket(short: Path) -> None:
    """Mode 0600 in a folder of mode 0700, from its first moment and whatever the umask; gone at the end."""
    before = os.umask(0)
    try:
        with unix_listener(short / "run" / "s") as listener:
            path = Path(listener.getsockname())
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
            assert os.umask(0) == 0
        assert not path.exists()
    finally:
        os.umask(before)


def test_what_a_killed_process_left_is_removed(short: Path) -> None:
    """A socket that nobody listens at is in nobody's way."""
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(short / "s"))
    dead.close()
    with unix_listener(short / "s"), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(short / "s"))


def test_another_that_listens_is_left_alone(short: Path) -> None:
    """Ours by the lock, a foreign program by its answer; neither loses its socket."""
    with unix_listener(short / "s"):
        with pytest.raises(AddressInUse, match="another service"), unix_listener(short / "s"):
            pass
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(short / "s"))
    with socket.socket(socket.AF_UNIX) as foreign:
        foreign.bind(str(short / "f"))
        foreign.listen()
        with pytest.raises(AddressInUse, match="another program"), unix_listener(short / "f"):
            pass
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(short / "f"))


@pytest.mark.parametrize("where", ["unix_listener(Path(sys.argv[1]))", "tcp_listener(0)"])
def test_a_forked_child_does_not_keep_the_address_of_a_killed_process(short: Path, where: str) -> None:
    """A pool of processes that a tool has forked may outlive the service; the next one begins all the same."""
    code = (
        "import os, signal, sys\nfrom pathlib import Path\n"
        "from repertory.service.sockets import tcp_listener, unix_listener\n"
        f"with {where} as listener:\n    print(listener.getsockname(), flush=True)\n"
        "    if os.fork():\n        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    print('forked', flush=True)\n    sys.stdin.read()\n    os._exit(0)\n"
    )
    command = [sys.executable, "-c", code, str(short / "s")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        address, forked = killed.stdout.readline(), killed.stdout.readline()
        assert forked == "forked\n"
        assert killed.wait() == -signal.SIGKILL
        with unix_listener(short / "s") if where.startswith("unix") else tcp_listener(literal_eval(address)[1]):
            pass


def test_a_successor_keeps_its_socket(short: Path) -> None:
    """At the end only our own socket is removed, not one that took its place."""
    with socket.socket(socket.AF_UNIX) as successor:
        with unix_listener(short / "s"):
            (short / "s").rename(short / "moved")
            successor.bind(str(short / "s"))
        assert (short / "s").exists()
    with unix_listener(short / "t"):
        (short / "t").unlink()  # somebody tidied up: that is no error either


def test_what_is_no_socket_is_never_removed(short: Path) -> None:
    """A mistyped path costs nobody a file."""
    (short / "diary").write_text("Dear diary")
    with pytest.raises(ConfigurationError, match="not a socket of this user"), unix_listener(short / "diary"):
        pass
    assert (short / "diary").read_text() == "Dear diary"
    (short / "target.lock").write_text("")
    (short / "link.lock").symlink_to(short / "target.lock")
    with pytest.raises(ConfigurationError, match="cannot lock"), unix_listener(short / "link"):
        pass


def test_a_folder_that_others_can_change_is_refused(short: Path) -> None:
    """Whoever may replace the socket could answer in our place; a sticky folder is no danger."""
    shared = short / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(ConfigurationError, match="changed by other users"):
        private_folder(shared / "below")
    shared.chmod(0o1777)
    assert private_folder(shared / "below") == shared / "below"
    with pytest.raises(ConfigurationError, match="cannot use the folder"):
        private_folder(Path("/proc/nothing"))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a folder away")
def test_a_folder_of_another_user_is_refused(short: Path) -> None:
    """Its owner could change it whenever he likes."""
    (short / "his").mkdir()
    os.chown(short / "his", 65534, -1)
    with pytest.raises(ConfigurationError, match="owner 65534"):
        private_folder(short / "his" / "below")


def test_a_path_that_is_too_long_is_told(short: Path) -> None:
    """The system allows about a hundred characters."""
    with pytest.raises(ConfigurationError, match="too long"), unix_listener(short / ("x" * 120)):
        pass


def test_the_default_is_in_the_runtime_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system says, and silently elsewhere where it says nothing."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1234")
    assert default_socket() == Path("/run/user/1234/repertory/ctl.sock")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert default_socket().name == "ctl.sock"


def test_a_port_is_this_machines_alone_and_taken_once() -> None:
    """127.0.0.1 and nothing else; the second who wants it is told."""
    with tcp_listener(0) as listener:
        host, port = listener.getsockname()
        assert host == "127.0.0.1"
        with pytest.raises(AddressInUse, match=f"port {port} is taken"), tcp_listener(port):
            pass
    with pytest.raises(OverflowError), tcp_listener(70000):
        pass
