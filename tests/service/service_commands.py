"""Commands about the database of a service, at a terminal and without one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from subprocess import CompletedProcess
from typing import Protocol

import pytest
from test_service_process import HERE, Served

from command_line import command
from terminal import Terminal


def environment(folder: Path) -> dict[str, str]:
    """That of the agents."""
    own = {"XDG_RUNTIME_DIR": folder / "run", "XDG_DATA_HOME": folder / "data", "SERVE_FOLDER": folder}
    return {**{name: str(path) for name, path in own.items()}, "COLUMNS": "200"}


def about(served: Served, *words: str) -> CompletedProcess[str]:
    """A command about the database of the service, where there is no terminal."""
    return command(*words, "--db", str(served.folder / "a.db"), **environment(served.folder))


class AtTerminal(Protocol):
    """Begins a command about the database of a folder, at a terminal of its own; the fixture is one."""

    def __call__(self, folder: Path, *words: str, **env: str) -> Terminal:
        """Begin it."""
        ...


@pytest.fixture
def at_terminal() -> Iterator[AtTerminal]:
    """Terminals that are there until the end of the test."""
    with ExitStack() as stack:

        def begin(folder: Path, *words: str, **env: str) -> Terminal:
            path = os.pathsep.join(map(str, (HERE, HERE.parent)))
            kept = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": path}
            words = (*words, "--db", str(folder / "a.db"))
            return stack.enter_context(Terminal(*words, folder=folder, env={**kept, **environment(folder), **env}))

        yield begin
