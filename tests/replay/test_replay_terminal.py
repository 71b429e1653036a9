"""``repertory replay`` at a terminal: a count while it works, and Ctrl-C."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from replay_stories import as_messages, long_run, write

from patience import PATIENCE

TURNS = 200
MODELS = [word for name in ("r=0.1", "r=0.05", "r=0.025") for word in ("--model", name)]


def watch(path: Path, *, ctrl_c_at: int | None, runs: int = 1) -> tuple[int, bytes, list[int]]:
    """Replay so many runs at a terminal; press Ctrl-C when the count has come that far.

    Returns:
        The exit code, what came out, and the counts that were shown.
    """
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "repertory", "replay", str(path), "--json", "--jobs", "2", *MODELS],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "NO_COLOR": "1", "COLUMNS": "80"},
        cwd=path.parent,
    )
    os.close(theirs)
    shown = b""
    counts: list[int] = []
    sent = False
    pattern = rb"\b([\d,]+) of %b requests" % f"{3 * runs * TURNS:,}".encode()
    try:
        while part := _read(ours):
            shown += part
            counts = [int(count.replace(b",", b"")) for count in re.findall(pattern, shown)]
            if not sent and ctrl_c_at is not None and counts and counts[-1] >= ctrl_c_at:
                process.send_signal(signal.SIGINT)
                sent = True
        out, _ = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        os.close(ours)
    assert b"Traceback" not in shown
    assert b"unexpected" not in shown
    return process.returncode, out, counts


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # its other end is closed
        return b""


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run of many turns."""
    return write(tmp_path_factory.mktemp("long") / "long.json", as_messages(long_run(TURNS, parallel=3)))


@pytest.mark.parametrize("count", [0, TURNS + 1], ids=["searched", "played"])
def test_ctrl_c_ends_a_replay(count: int, recording: Path) -> None:
    """The count stands there before anything is searched; each turn is a request to each of three models."""
    code, out, counts = watch(recording, ctrl_c_at=count)
    assert (code, out) == (130, b"")
    assert counts[0] == 0
    assert counts[-1] < 3 * TURNS


@pytest.mark.parametrize("count", [0, TURNS])
def test_ctrl_c_ends_the_processes_of_a_replay(count: int, tmp_path: Path) -> None:
    """Ours alone gets the signal; that the terminal closes says that the others have ended too."""
    runs = [{"id": str(number), "messages": as_messages(long_run(TURNS))} for number in range(2)]
    code, out, counts = watch(write(tmp_path / "two.jsonl", *runs), ctrl_c_at=count, runs=2)
    assert (code, out) == (130, b"")
    assert counts[-1] < 6 * TURNS


def test_without_ctrl_c_it_comes_to_its_end(recording: Path) -> None:
    """Negative control: the same, with nothing pressed."""
    code, out, counts = watch(recording, ctrl_c_at=None)
    assert (code, out[:1]) == (0, b"{")
    assert counts[-1] > TURNS


@pytest.mark.parametrize(("typed", "asked"), [(b"n\n", False), (b"\x04", False), (b"y\n", True)])
def test_a_person_is_asked_before_anything_is_spent(typed: bytes, asked: bool, tmp_path: Path) -> None:
    """The price stands in the question; no and Ctrl-D ask nothing, and yes asks."""
    path = write(tmp_path / "long.json", as_messages(long_run(40)))
    ours, theirs = pty.openpty()
    words = ["replay", str(path), "--policy", "strict", "--agree", "2", "--model", "offline"]
    process = subprocess.Popen(
        [sys.executable, "-m", "repertory", *words],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "TERM": "dumb", "NO_COLOR": "1"},
        cwd=tmp_path,
    )
    os.close(theirs)
    shown = b""
    try:
        while b"?" not in shown and (part := _read(ours)):
            shown += part
        os.write(ours, typed)
        out, _ = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        os.close(ours)
    assert re.search(rb"6 requests to offline cost at most \$\d\S*\. Send them\? \[y/N\]", shown)
    assert (process.returncode, b"the same tools" in out) == (0, asked)
