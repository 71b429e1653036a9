"""``repertory serve`` as a process: killed, ended, started twice."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


class _Unix(http.client.HTTPConnection):
    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.host)


class Served:
    """A ``repertory serve`` process and a client of it."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.socket = folder / "s"
        command = [sys.executable, "-m", "repertory", "serve", "--db", str(folder / "a.db"), *options]
        if "--port" not in options and "--socket" not in options:
            command += ["--socket", str(self.socket)]
        environment = {
            **os.environ,
            "SERVE_FOLDER": str(folder),
            "PYTHONPATH": str(HERE),
            "XDG_STATE_HOME": str(folder / "state"),
        }
        self.process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        self.heard: list[str] = []

    def hear(self, words: str) -> str:
        """Read what it says up to a line with these words."""
        assert self.process.stderr is not None
        while line := self.process.stderr.readline():
            self.heard.append(line.rstrip())
            if words in line:
                return line.rstrip()
        raise AssertionError(f"it never said {words!r} but {self.heard}")

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Ask over the unix socket."""
        connection = _Unix(str(self.socket), timeout=10)
        headers = {"host": "localhost", "content-type": "application/json"}
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        answer = connection.getresponse()
        value = json.loads(answer.read())
        connection.close()
        assert answer.status < 300, value
        return value

    def end(self) -> tuple[int, list[str]]:
        """Wait for its end; its exit code and all it said."""
        _, rest = self.process.communicate(timeout=20)
        self.heard += rest.splitlines()
        return self.process.returncode, self.heard


Start = Callable[..., Served]


@pytest.fixture
def serve(short: Path) -> Iterator[Start]:
    """Starts services in one folder, and ends them."""
    started: list[Served] = []

    def start(*options: str) -> Served:
        served = Served(short, *options)
        started.append(served)
        return served

    yield start
    for served in started:
        if served.process.poll() is None:
            served.process.kill()
        served.process.communicate()


def until(condition: Callable[[], Any]) -> Any:
    """Wait for what another process is to do."""
    deadline = time.monotonic() + 20
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)
    return value


def steps(folder: Path) -> list[str]:
    """The lines that the agent's tool left."""
    try:
        return (folder / "steps").read_text().splitlines()
    except FileNotFoundError:
        return []


def result_of(served: Served, run_id: str) -> str:
    """The answer of a run, once it is there."""
    detail = until(lambda: (found := served.ask("GET", f"/runs/{run_id}"))["run"]["state"] == "done" and found)
    return str(detail["result"])


WALKER = ("--agent", "serve_agents:walker")
START = {"agent": "walker", "task": "Walk."}


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_a_service_killed_in_the_middle_of_a_tool_goes_on(short: Path, serve: Start, backend: str) -> None:
    """kill -9: the next process finds the socket and the lock free, and with --resume the run comes to its answer."""
    served = serve(*WALKER, "--backend", backend)
    served.hear("serving")
    run_id = served.ask("POST", "/runs", START)["id"]
    until(lambda: len(steps(short)) == 4)
    served.process.kill()
    assert served.end()[0] == -signal.SIGKILL

    (short / "go").touch()
    served = serve(*WALKER, "--backend", backend, "--resume")
    assert run_id in served.hear("resumed")
    assert result_of(served, run_id) == "6 steps"
    lines = steps(short)
    assert [line.split()[0] for line in lines] == ["0", "1", "2", "3", "3", "4", "5"]
    assert lines[3] == lines[4]  # the step that was cut off ran again under its own key


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_sigterm_brings_a_run_to_its_next_boundary(short: Path, serve: Start, backend: str) -> None:
    """The tool that is under way finishes, nothing new begins, and the run goes on when it is asked to."""
    served = serve(*WALKER, "--backend", backend)
    served.hear("serving")
    run_id = served.ask("POST", "/runs", START)["id"]
    until(lambda: len(steps(short)) == 4)
    served.process.terminate()
    served.hear("1 runs go to their next boundary")
    (short / "go").touch()
    assert served.end()[0] == 0
    assert len(steps(short)) == 4
    assert not served.socket.exists()

    served = serve(*WALKER, "--backend", backend)
    assert "--resume goes on with it" in served.hear(f"unfinished: {run_id}")
    assert served.ask("GET", f"/runs/{run_id}")["run"]["state"] == "interrupted"
    assert len(steps(short)) == 4
    served.ask("POST", f"/runs/{run_id}/resume", {})
    assert result_of(served, run_id) == "6 steps"
    assert [line.split()[0] for line in steps(short)] == ["0", "1", "2", "3", "4", "5"]


def test_a_second_sigterm_ends_it_at_once(short: Path, serve: Start) -> None:
    """Whoever cannot wait for the boundary need not, and loses nothing by that."""
    served = serve(*WALKER)
    served.hear("serving")
    run_id = served.ask("POST", "/runs", START)["id"]
    until(lambda: len(steps(short)) == 4)
    served.process.terminate()
    served.hear("once more kills")
    served.process.terminate()
    assert served.end()[0] == -signal.SIGTERM
    (short / "go").touch()
    served = serve(*WALKER, "--resume")
    served.hear("resumed")
    assert result_of(served, run_id) == "6 steps"


def test_a_run_that_hangs_does_not_hold_up_the_end(short: Path, serve: Start) -> None:
    """After the drain time it is cancelled where it is, and stays resumable."""
    (short / "hang").touch()
    served = serve(*WALKER)
    served.hear("serving")
    run_id = served.ask("POST", "/runs", START)["id"]
    until((short / "hanging").exists)
    served.process.terminate()
    assert served.end()[0] == 0
    (short / "hang").unlink()
    (short / "go").touch()
    served = serve(*WALKER, "--resume")
    served.hear("resumed")
    assert result_of(served, run_id) == "6 steps"


def test_what_was_paused_stays_paused(short: Path, serve: Start) -> None:
    """--resume goes on with what the end of a process interrupted, not with what somebody held on purpose."""
    served = serve(*WALKER)
    served.hear("serving")
    run_id = served.ask("POST", "/runs", START)["id"]
    until(lambda: len(steps(short)) == 4)
    served.ask("POST", f"/runs/{run_id}/pause", {})
    (short / "go").touch()
    until(lambda: served.ask("GET", f"/runs/{run_id}")["run"]["state"] == "paused")
    served.process.kill()
    served.end()
    served = serve(*WALKER, "--resume")
    assert run_id in served.hear("paused: ")
    served.ask("POST", f"/runs/{run_id}/resume", {})
    assert result_of(served, run_id) == "6 steps"


def test_a_run_whose_agent_is_gone_keeps_nobody_else_from_going_on(short: Path, serve: Start) -> None:
    """It is named with the reason, and the service serves."""
    served = serve(*WALKER)
    served.hear("serving")
    served.ask("POST", "/runs", START)
    until(lambda: len(steps(short)) == 4)
    served.process.kill()
    served.end()
    command = [sys.executable, "-m", "repertory", "serve", "--db", str(short / "a.db"), "--socket", str(short / "s")]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = subprocess.Popen([*command, "--resume"], env=environment, stderr=subprocess.PIPE, text=True, cwd=short)
    assert process.stderr is not None
    assert "serving" in process.stderr.readline()
    refused = process.stderr.readline()
    assert "not resumed" in refused
    assert "no module named 'serve_agents'" in refused
    process.terminate()
    process.communicate(timeout=20)
    assert process.returncode == 0


def test_a_database_has_one_process(short: Path, serve: Start) -> None:
    """The second ends with 75 and says who has it; so does one that wants the same socket."""
    first = serve()
    first.hear("serving")
    code, said = serve("--socket", str(short / "other")).end()
    assert code == 75
    assert said == [f"repertory: {short}/a.db is owned by process {first.process.pid}; " + said[0].split("; ")[1]]
    assert not (short / "other").exists()
    code, said = serve("--db", str(short / "b.db"), "--socket", str(first.socket)).end()
    assert code == 75
    assert "another service listens" in said[0]
    assert first.ask("GET", "/healthz")["status"] == "ok"
    assert first.socket.stat().st_mode & 0o7777 == 0o600


def test_a_port_is_served_with_a_token_that_is_in_no_line(short: Path, serve: Start) -> None:
    """The link works once, the token stays in its file."""
    served = serve("--port", "0")
    line = served.hear("serving")
    found = re.search(r"http://127\.0\.0\.1:(\d+)/#(\S+)", line)
    assert found is not None
    port, code = found.groups()
    token = (short / "state" / "repertory" / "service-token").read_text().strip()
    assert token not in line
    assert token not in Path(f"/proc/{served.process.pid}/cmdline").read_text()

    def ask(method: str, path: str, secret: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=10)
        headers = {"content-type": "application/json", "authorization": f"Bearer {secret}"}
        connection.request(method, path, headers=headers)
        status = connection.getresponse().status
        connection.close()
        return status

    assert ask("GET", "/runs", token) == 200
    assert ask("GET", "/runs", code) == 401
    assert ask("POST", "/session", code) == 204
    assert ask("POST", "/session", code) == 401
    served.process.send_signal(signal.SIGINT)
    code_, said = served.end()
    assert code_ == 0
    assert token not in "".join(said)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--port", "0", "--socket", "/tmp/x"], "either a socket or a port"),
        (["--root", "/nowhere"], "there is no folder '/nowhere'"),
        (["--agent", "walker"], "module:name"),
        (["--agent", "serve_agents:walker", "--agent", "serve_agents:walker"], "already"),
    ],
)
def test_wrong_options_are_told_in_one_line(serve: Start, options: list[str], words: str) -> None:
    """Exit code 2, no traceback, and no service."""
    code, said = serve(*options).end()
    assert code == 2
    assert len(said) == 1
    assert words in said[0]


def test_without_the_extra_it_says_what_to_install(short: Path) -> None:
    """The libraries of the service are needed by nobody else."""
    (short / "starlette.py").write_text("raise ModuleNotFoundError('gone', name='starlette')\n")
    command = [sys.executable, "-m", "repertory", "serve", "--db", str(short / "a.db")]
    environment = {**os.environ, "PYTHONPATH": str(short)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=20, check=False)
    assert ended.returncode == 2
    assert ended.stderr == 'repertory: starlette is not installed; pip install "repertory[service]"\n'
    loads = "import sys, repertory.service, repertory.cli.app; print('starlette' in sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", loads], capture_output=True, text=True, timeout=20, check=True)
    assert loaded.stdout == "False\n"
