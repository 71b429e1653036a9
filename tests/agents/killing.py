"""Starts a program of the tests that is made to be killed, and kills it."""

from __future__ import annotations

import select
import subprocess
import sys
from pathlib import Path


def play(program: Path, path: Path, after: float | None) -> list[str]:
    """Start it, or let it go on, and kill it so many seconds after it began; what it answered, if it came so far.

    With None it is left to come to its end.
    """
    with subprocess.Popen([sys.executable, str(program), str(path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "OPEN\n"
        if after is not None:
            select.select([process.stdout], [], [], after)
            process.kill()
        return process.stdout.read().splitlines()
