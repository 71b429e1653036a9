"""A command at a terminal of its own, as a person has it."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from codecs import getincrementaldecoder
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from patience import PATIENCE
from screen import Screen


class Terminal:
    """``repertory`` with these words, at a terminal of so many columns and 24 lines; killed at the end of the block.

    Attributes:
        seen: What was written since the last text that was expected.
        theirs: The command's end of the line.
    """

    def __init__(self, *words: str, folder: Path, env: Mapping[str, str], columns: int = 80) -> None:
        self._ours, self.theirs = pty.openpty()
        self._decode = getincrementaldecoder("utf-8")().decode
        self._screen = Screen(columns, 24)
        self.seen = ""
        size = {"COLUMNS": str(columns), "LINES": "24"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "repertory", *words],
            preexec_fn=lambda: os.login_tty(self.theirs),  # noqa: PLW1509 - there are no threads here
            env={"TERM": "xterm", **size, **env},
            cwd=folder,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.theirs)
        os.close(self._ours)

    def _take(self, timeout: float) -> bool:
        """Take in what was written; whether there was anything."""
        if not select.select([self._ours], [], [], timeout)[0]:
            return False
        text = self._decode(os.read(self._ours, 65_536))
        self.seen += text
        self._screen.write(text)
        return True

    def expect(self, text: str) -> str:
        """What is written up to a text, which has to come."""
        end = time.monotonic() + PATIENCE
        while text not in self.seen:
            assert time.monotonic() < end, f"no {text!r} in {self.seen!r}"
            self._take(0.05)
        before, _, self.seen = self.seen.partition(text)
        return before

    def see(self, is_so: Callable[[str], bool]) -> str:
        """Wait until what stands on the screen is so; what it is."""
        end = time.monotonic() + PATIENCE
        while not is_so(shown := "\n".join(self._screen.lines)):
            assert time.monotonic() < end, shown
            self._take(0.05)
        return shown

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._ours, text.encode())

    def end(self) -> int:
        """Wait for the end, and take in what is left; its exit code."""
        end = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            assert time.monotonic() < end, f"it did not end: {self.seen!r}"
            self._take(0.05)
        while self._take(0):
            pass
        return self.process.returncode
