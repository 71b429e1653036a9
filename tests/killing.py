"""Starts a program of the tests that is made to be killed, and kills it.

It prints ``OPEN`` once it begins, calls ``asked`` whenever it asks its model, and prints its answers at its end.
"""

from __future__ import annotations

import itertools
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from random import Random

_ASKED = "ASKED"
_HOLD = "REPERTORY_TEST_HOLD"  # how often the program may ask; then it stands still, so that no kill comes too late
_questions = itertools.count(1)


def asked() -> None:
    """Say, in the program, that it asks its model."""
    print(_ASKED, flush=True)
    if next(_questions) > int(os.environ.get(_HOLD, sys.maxsize)):
        threading.Event().wait()


def kill(program: Path, path: Path, *, after: int, chance: Random) -> bool:
    """Start it, or let it go on, and kill it while it works on what it asked at last; whether it came so far.

    Args:
        after: How often it has asked its model by then: a number, so that a kill falls on a slow machine as well.
        chance: Says at which instant up to the next question.
    """
    with _start(program, path, **{_HOLD: str(after)}) as process:
        assert process.stdout is not None
        if any(process.stdout.readline() != f"{_ASKED}\n" for _ in range(after)):
            process.stdout.read()
            return False
        select.select([process.stdout], [], [], chance.uniform(0.0, 0.02))
        process.kill()
    return process.returncode == -signal.SIGKILL


def play(program: Path, path: Path) -> list[str]:
    """Start it, or let it go on, to its end; what it answered."""
    with _start(program, path) as process:
        assert process.stdout is not None
        return [line for line in process.stdout.read().splitlines() if line != _ASKED]


def _start(program: Path, path: Path, **variables: str) -> subprocess.Popen[str]:
    """Start it, with what tests share at hand, and wait until it has opened its journal."""
    process = subprocess.Popen(
        [sys.executable, str(program), str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent), **variables},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "OPEN\n"
    return process
