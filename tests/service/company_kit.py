"""A company in a folder, as processes: its commands, and what they answer."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, chdir
from pathlib import Path
from typing import Any

from command_line import command
from patience import PATIENCE
from repertory.record.sqlite_file import owner_of

DESK = """
import os
import anyio
import repertory as rp
from repertory.llm.messages import text_of
from repertory.testing import FunctionModel

async def answer(request):
    task = text_of(request.messages[0].content)
    with open("began", "a") as file:
        file.write(f"{task}\\n")
    while not os.path.exists("go"):
        await anyio.sleep(0.01)
    return f"Done: {task}"

clerk = rp.Agent("clerk", model=FunctionModel(answer), context=None)
"""
COMPANY = '[service]\nsocket = "s"\nmax_runs = 1\n[agents.clerk]\nref = "desk:clerk"\n'


class Company:
    """A folder with a company, and its commands."""

    def __init__(self, folder: Path, text: str = COMPANY, *, runtime: Path | None = None) -> None:
        self.folder = folder
        self.database = folder / "company.db"
        self.variables = {"XDG_RUNTIME_DIR": str(runtime or folder), "REPERTORY_MODEL": "offline"}
        (folder / "desk.py").write_text(DESK)
        self.write(text)

    def write(self, text: str) -> None:
        """Write its file."""
        (self.folder / "company.toml").write_text(text)

    def command(self, *words: str) -> tuple[int, str]:
        """Run a command to its end; its exit code and what it said."""
        done = self.run(*words)
        return done.returncode, done.stderr

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; only ``up`` needs a process of its own."""
        if words[0] != "up":
            with chdir(self.folder):
                return command(*words, **self.variables)
        with self.begin(*words) as process, ExitStack() as stack:
            stack.callback(process.kill)  # if it is not at its end in time
            said = process.communicate(timeout=PATIENCE)
        return subprocess.CompletedProcess(process.args, process.returncode, *said)

    def begin(self, *words: str) -> subprocess.Popen[str]:
        """Begin a command."""
        command, environment = [sys.executable, "-m", "repertory", *words], {**os.environ, **self.variables}
        pipe = subprocess.PIPE
        return subprocess.Popen(command, cwd=self.folder, env=environment, stdout=pipe, stderr=pipe, text=True)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Ask the service."""
        connection = http.client.HTTPConnection("localhost", timeout=PATIENCE)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(PATIENCE)
        connection.sock.connect(str(self.folder / "s"))
        headers = {"content-type": "application/json"}
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        answer = connection.getresponse()
        value = json.loads(answer.read())
        connection.close()
        assert answer.status < 300, value
        return value

    def start(self, task: str, **fields: Any) -> str:
        """Start a run; its id."""
        return str(self.ask("POST", "/runs", {"agent": "clerk", "task": task, **fields})["id"])

    @property
    def pid(self) -> int:
        """The process that serves."""
        owner = owner_of(self.database)
        assert owner is not None
        return owner.pid


def until(condition: Callable[[], Any]) -> Any:
    """Wait for what another process is to do."""
    deadline = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)
    return value
