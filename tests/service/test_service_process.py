"""``repertory serve`` as a process: killed, ended, started twice."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from patience import PATIENCE
from postgres_server import PostgresServer

HERE = Path(__file__).parent


class _Unix(http.client.HTTPConnection):
    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.host)


class Served:
    """A ``repertory serve`` process and a client of it."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        environment: Mapping[str, str] | None = None,
        starter: Sequence[str] = (),
        passed: Sequence[int] = (),
    ) -> None:
        self.folder = folder
        self.socket = folder / "s"
        python = [*starter] or [sys.executable]
        command = [*python, "-m", "repertory", "serve", "--db", str(folder / "a.db"), *options]
        if "--port" not in options and "--socket" not in options:
            command += ["--socket", str(self.socket)]
        environment = {
            **os.environ,
            **(environment or {}),
            "SERVE_FOLDER": str(folder),
            "PYTHONPATH": os.pathsep.join(map(str, (HERE, HERE.parent))),
            "XDG_STATE_HOME": str(folder / "state"),
        }
        self.process = subprocess.Popen(
            command, env=environment, stderr=subprocess.PIPE, text=True, pass_fds=tuple(passed)
        )
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
        connection = _Unix(str(self.socket), timeout=PATIENCE)
        headers = {"host": "localhost", "content-type": "application/json"}
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        answer = connection.getresponse()
        value = json.loads(answer.read())
        connection.close()
        assert answer.status < 300, value
        return value

    def kill(self) -> None:
        """End it, if it has not ended. Safe to call twice."""
        self.process.kill()
        if self.process.stderr is not None and not self.process.stderr.closed:
            self.process.communicate()

    def end(self) -> tuple[int, list[str]]:
        """Wait for its end; its exit code and all it said."""
        _, rest = self.process.communicate(timeout=PATIENCE)
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
        served.kill()


def until(condition: Callable[[], Any]) -> Any:
    """Wait for what another process is to do."""
    deadline = time.monotonic() + PATIENCE
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


def test_a_killed_service_on_postgresql_goes_on(short: Path, serve: Start, postgres: PostgresServer) -> None:
    """The same, with the record on a server that asks nobody for the password; nothing it says shows that."""
    where = ("--db", postgres.emptied_journal().replace("postgres@", "postgres:hunter22@"))
    served = serve(*WALKER, *where)
    assert "hunter22" not in served.hear("serving postgresql://postgres@/")
    run_id = served.ask("POST", "/runs", START)["id"]
    until(lambda: len(steps(short)) == 4)
    served.process.kill()
    assert served.end()[0] == -signal.SIGKILL

    (short / "go").touch()
    served = serve(*WALKER, *where, "--backend", "asyncio")
    served.hear("serving")
    assert result_of(served, run_id) == "6 steps"
    assert "hunter22" not in json.dumps(served.ask("GET", "/service"))
    assert [line.split()[0] for line in steps(short)] == ["0", "1", "2", "3", "3", "4", "5"]


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_sigterm_brings_a_run_to_its_next_boundary(short: Path, serve: Start, backend: str) -> None:
    """The tool that is under way finishes, nothing new begins, and the run goes on when it is asked to."""
    served = serve(*WALKER, "--backend", backend)
    served.hear("serving")
    run_id = served.ask("POST", "/runs", START)["id"]
    until(lambda: len(steps(short)) == 4)
    served.process.terminate()
    served.hear("runs in progress: 1; each stops at its next boundary")
    (short / "go").touch()
    assert served.end()[0] == 0
    assert len(steps(short)) == 4
    assert not served.socket.exists()

    served = serve(*WALKER, "--backend", backend)
    assert "--resume continues it" in served.hear(f"unfinished: {run_id}")
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
    served.hear("a second signal kills them")
    served.process.terminate()
    assert served.end()[0] == -signal.SIGTERM
    (short / "go").touch()
    served = serve(*WALKER, "--resume")
    served.hear("resumed")
    assert result_of(served, run_id) == "6 steps"


def test_a_database_has_one_process(short: Path, serve: Start) -> None:
    """The second ends with 75 and says who has it; so does one that wants the same socket."""
    first = serve()
    first.hear("serving")
    code, said = serve("--socket", str(short / "other")).end()
    assert code == 75
    assert len(said) == 1
    assert f"{short}/a.db is served by process {first.process.pid} at unix:{short}/s: use it" in said[0]
    assert not (short / "other").exists()
    code, said = serve("--db", str(short / "b.db"), "--socket", str(first.socket)).end()
    assert code == 75
    assert "another service listens" in said[0]
    assert first.ask("GET", "/healthz")["status"] == "ok"
    assert first.socket.stat().st_mode & 0o7777 == 0o600


def test_without_the_extra_it_says_what_to_install(short: Path) -> None:
    """The libraries of the service are needed by nobody else."""
    (short / "starlette.py").write_text("raise ModuleNotFoundError('gone', name='starlette')\n")
    (short / "company.toml").write_text("")
    folders = {"XDG_DATA_HOME": str(short), "XDG_RUNTIME_DIR": str(short)}
    environment = {**os.environ, "PYTHONPATH": str(short), "NO_COLOR": "1", **folders}
    for words, code, said in (
        (["serve", "--db", "a.db"], 2, 'repertory: starlette is not installed; pip install "repertory[service]"\n'),
        (["down"], 2, 'repertory: starlette is not installed; pip install "repertory[service]"\n'),
        (["ps", "--json"], 0, ""),  # though there is the file of a company, which nobody can serve
    ):
        command = [sys.executable, "-m", "repertory", *words]
        ended = subprocess.run(
            command, cwd=short, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert (ended.returncode, ended.stderr) == (code, said), words
    loads = "import sys, repertory.service, repertory.cli.app; print('starlette' in sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", loads], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert loaded.stdout == "False\n"


ANNOUNCED = """
import os, signal
from functools import partial
from pathlib import Path
import repertory as rp
from repertory.service import Options, run_service

def report(line):
    if line.startswith("serving"):
        print(Path("a.db.lock").read_text())
        os.kill(os.getpid(), signal.SIGTERM)

rp.run(partial(run_service, Options(database="a.db", socket=Path("s")), report=report))
"""


def test_a_service_that_says_that_it_serves_can_be_found(short: Path) -> None:
    """A command that looks for it right then finds the service, and not a database that some process has."""
    done = subprocess.run(
        [sys.executable, "-c", ANNOUNCED], cwd=short, capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert f'"socket": "{os.path.realpath(short)}/s"' in done.stdout, done.stdout


@pytest.mark.parametrize(("options", "models"), [([], set()), (["--summary-model", "offline"], {"offline"})])
def test_a_model_writes_summaries_if_it_is_named(
    options: list[str], models: set[str], short: Path, serve: Start
) -> None:
    """In the runs of a service, as in those of the command line; without the option they are extracted."""
    served = serve("--agent", "serve_agents:reader", *options)
    served.hear("serving")
    assert result_of(served, served.ask("POST", "/runs", {"agent": "reader", "task": "Read."})["id"]) == "All read."
    served.process.send_signal(signal.SIGTERM)
    assert served.end()[0] == 0
    connection = sqlite3.connect(short / "a.db")
    found = connection.execute("SELECT model FROM context_growth WHERE purpose = 'summary'").fetchall()
    connection.close()
    assert {model for (model,) in found} == models


def test_what_goes_wrong_in_a_run_is_in_the_log_of_the_service(serve: Start) -> None:
    """With the time and the traceback, and nothing in it controls a terminal; its program turns its loggers on."""
    served = serve("--agent", "serve_agents:clumsy")
    served.hear("serving")
    run_id = served.ask("POST", "/runs", {"agent": "clumsy", "task": "Fall."})["id"]
    assert result_of(served, run_id) == "It fell."
    served.process.send_signal(signal.SIGTERM)
    code, said = served.end()
    warned = rf"repertory: \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d WARNING tool.crashed tool=fall_over .*{run_id}"
    assert (code, sum(re.match(warned, line) is not None for line in said)) == (0, 1), said
    assert "RuntimeError: a mistake, \\x1b[31min red" in said


def test_a_service_is_traced_by_what_its_operator_names(serve: Start, short: Path) -> None:
    """By a function of theirs, which knows where spans go."""
    served = serve("--agent", "serve_agents:talker", "--telemetry", "serve_agents:telemetry")
    served.hear("serving")
    assert result_of(served, served.ask("POST", "/runs", {"agent": "talker", "task": "Hello."})["id"])
    spans = until(lambda: (found := (short / "spans").read_text().splitlines()) and len(found) == 2 and found)
    assert spans == ["chat function", "invoke_agent talker"]


def test_a_start_that_a_kill_cut_off_is_repeated_as_one_run(serve: Start, short: Path) -> None:
    """Killed while clients ask: whether or not they had an answer, the same request leads to one run each."""
    for number in range(3):
        served = serve("--agent", "serve_agents:walker")
        served.hear("serving")
        wanted = [{"agent": "walker", "task": "Walk.", "run_id": f"walk-{each}"} for each in range(number + 2)]
        for body in wanted[: number + 1]:
            served.ask("POST", "/runs", body)
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as cut_off:
            cut_off.connect(str(served.socket))
            sent = json.dumps(wanted[-1]).encode()
            head = "POST /runs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: "
            cut_off.sendall(f"{head}{len(sent)}\r\n\r\n".encode() + sent)
            served.process.kill()
        served.end()
    served = serve("--agent", "serve_agents:walker")
    served.hear("serving")
    for body in wanted * 2:
        assert served.ask("POST", "/runs", body) == {"id": body["run_id"]}
    listed = served.ask("GET", "/runs?limit=100")["runs"]
    assert sorted(run["id"] for run in listed) == [body["run_id"] for body in wanted]
