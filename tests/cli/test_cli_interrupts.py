"""Ctrl-C and SIGTERM at any instant: one picture, the cursor, no traceback, an exit code that says what happened."""

from __future__ import annotations

import contextlib
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_support import at_a_terminal
from interrupts import interrupt_storm, judge, shoot

from patience import PATIENCE
from screen import Screen
from seeds import seeds


@pytest.mark.parametrize("seed", seeds(1, at_night=35))
def test_a_signal_at_any_instant_leaves_a_clean_terminal(seed: int) -> None:
    """Real processes on a real terminal, one to three signals each, from the first import to the last line."""
    assert interrupt_storm(seed, 10) == []


def test_a_terminal_that_takes_no_more_does_not_hold_the_process(tmp_path: Path) -> None:
    """Stopped with Ctrl-S, even the line that shows the cursor cannot be written, and further signals still end it."""
    with at_a_terminal("demo", home=tmp_path) as terminal:
        terminal.expect("VIEW / RECORD")
        terminal.type("\x13")
        while select.select([], [terminal.theirs], [], 0)[1]:
            pass
        end = time.monotonic() + PATIENCE
        while terminal.process.poll() is None and time.monotonic() < end:  # signals that come too quickly count once
            terminal.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                terminal.process.wait(0.2)
        code = terminal.process.poll()
    assert code == 128 + signal.SIGTERM


CARELESS = """
import signal, sys, time
sys.stdout.write({text!r}); sys.stdout.flush()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # from here on it is interrupted
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("text", "number", "complaint"),
    [
        ("\x1b[?25l", signal.SIGTERM, "the cursor is hidden"),
        ("", 0, "it shows 'Traceback'"),
        ("VIEW / RECORD\r\nVIEW / RECORD\r\n", signal.SIGTERM, "2 pictures"),
        ("", signal.SIGKILL, "it ends with -9"),
    ],
)
def test_the_storm_sees_what_a_careless_program_leaves(text: str, number: int, complaint: str, tmp_path: Path) -> None:
    """Negative control: a hidden cursor, a traceback, two pictures, an undocumented code."""
    program = (sys.executable, "-c", CARELESS.format(text=text))
    shot = shoot([], [(0.1, number)], home=tmp_path, program=program)
    if number == signal.SIGKILL:
        shot = type(shot)(shot.words, ((0.1, signal.SIGTERM),), shot.code, shot.text)
    assert complaint in " ".join(judge(shot))
    careful = shoot(
        [], [(0.1, signal.SIGTERM)], home=tmp_path, program=(sys.executable, "-c", CARELESS.format(text=""))
    )
    assert judge(careful) == []


def test_the_screen_shows_what_a_terminal_would() -> None:
    """Lines that were drawn over are gone, as a picture is that is drawn again."""
    screen = Screen(10, 5)
    screen.write("\x1b[?25lone\r\n\x1b[31mtwo\x1b[0m\r\x1b[2K\x1b[1A\x1b[2KONE\r\nTWO, and wrapped")
    assert screen.lines == ["ONE", "TWO, and w", "rapped"]
    assert not screen.cursor_shown
    screen.write("\x1b[?25h\x1b[2D\bX\x1b[K\x1b[3G-\x1b[1B\x1b[1C!")
    assert screen.lines == ["ONE", "TWO, and w", "ra-X!"]
    assert screen.cursor_shown
