"""Sends Ctrl-C and SIGTERM at random instants to real processes on a real terminal, and judges what a person sees."""

from __future__ import annotations

import fcntl
import os
import pty
import random
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import anyio
import msgspec

from patience import PATIENCE
from repertory.errors import RepertoryError
from repertory.record import open_journal
from screen import Screen

WIDTH, HEIGHT = 80, 24
_NOISE = ("Traceback", "Exception ignored", "Fatal Python error", "KeyboardInterrupt", "Error in", "never awaited")
_PICTURE = "VIEW / RECORD"  # appears above the live picture, once

# The commands to interrupt; {root} is a small folder, {db} a database with a run in it, {new} one that is new.
COMMANDS: tuple[str, ...] = (
    "run Where-are-locks --root {root} --db {new} --model offline",
    "run Where-are-locks --root {root} --db {new} --model offline --backend asyncio",
    "demo Where-are-locks --root {root} --db {new} --model offline",
    "resume --db {new}",
    "ps -a --db {db}",
    "stats --tree --db {db}",
    "ledger --full --db {db}",
    "inspect --db {db}",
    "doctor --db {db}",
    "--help",
    "stress --writers 4 --appends 300 --threads 2",
    "serve --db {new} --socket {socket} --root {root}",
    "serve --db {new} --socket {socket} --root {root} --backend asyncio",
)


class Shot(msgspec.Struct, frozen=True):
    """One process and the signals that it got.

    Attributes:
        words: The arguments of the command line.
        signals: The signals, each with the seconds before it; 0 stands for Ctrl-C typed at the terminal.
        code: The exit code; negative if a signal ended the process before or after its own handlers could.
        text: All its output.
        hung: Whether it had to be killed.
    """

    words: str
    signals: tuple[tuple[float, int], ...]
    code: int
    text: str
    hung: bool = False


def interrupt_storm(seed: int, count: int) -> list[str]:
    """Start commands on a terminal, send each of them one to three signals, and check what is left.

    Args:
        seed: The same seed makes the same choices; at which point they meet the processes depends on the machine.
        count: How many processes.

    Returns:
        What was wrong, one line for each process; empty if nothing was.
    """
    choose = random.Random(seed)
    failures: list[str] = []
    with tempfile.TemporaryDirectory(prefix="repertory-storm-") as name:
        folder = Path(name)
        places = _prepare(folder)
        for number in range(count):
            new = folder / f"{choose.randrange(3)}.db"  # some are used again, with what an interrupted run left in them
            command = choose.choice(COMMANDS).format(**places, new=new)
            first = choose.choice((0.0, choose.random() * 0.1, choose.random(), choose.random() * 3))
            gaps = [first, *(choose.choice((0.0, 0.3)) * choose.random() for _ in range(choose.choice((0, 0, 1, 2))))]
            plan = [(gap, choose.choice((0, signal.SIGINT, signal.SIGTERM))) for gap in gaps]
            shot = shoot(command.split(), plan, home=folder)
            left = _left_behind(folder / "tmp")
            problems = [*judge(shot), *(anyio.run(_unreadable, new) if new.exists() else [])]
            if left and len(plan) < 3:  # the third signal ends a process unconditionally
                problems.append(f"it leaves {', '.join(left)} behind")
            sent = ", ".join(f"{number or '^C'} after {gap:.4f} s" for gap, number in plan)
            failures += [f"seed {seed}, {number}: {command} ({sent}): {problem}" for problem in problems]
    return failures


def _prepare(folder: Path) -> Mapping[str, Path]:
    (folder / "tmp").mkdir()
    root = folder / "root"
    root.mkdir()
    for number in range(12):
        text = f'"""Locks, part {number}."""\n\nlock = {number}  # where locks are\n'
        (root / f"part_{number}.py").write_text(text * 30)
    places = {"root": root, "db": folder / "read.db", "socket": folder / "ctl.sock"}
    words = f"run Where-are-locks --root {root} --db {places['db']} --model offline".split()
    made = shoot(words, [], home=folder)
    if made.code:
        raise RepertoryError(f"the run that others are to look at ended with {made.code}: {made.text}")
    return places


def shoot(words: Sequence[str], plan: Sequence[tuple[float, int]], *, home: Path, program: Sequence[str] = ()) -> Shot:
    """Start the command line on a terminal of 80 columns and send it signals, once it handles them.

    Args:
        words: The arguments of the command line.
        plan: Pairs of seconds and signal, in order; see ``Shot.signals``.
        home: The home folder of the process.
        program: The program to start instead of the command line.
    """
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name == "PATH" or name.startswith("COVERAGE_")}
    homes = {"HOME": str(home), "XDG_DATA_HOME": str(home / "data"), "TMPDIR": str(home / "tmp")}

    def take_the_terminal() -> None:
        os.login_tty(slave)  # Ctrl-C needs one
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a parent in the background passes on that it is ignored

    process = subprocess.Popen(
        [*(program or (sys.executable, "-m", "repertory")), *words],
        preexec_fn=take_the_terminal,  # noqa: PLW1509 - there are no threads here
        env={**kept, **homes, "TERM": "xterm", "LANG": "C.UTF-8"},
        cwd=home,
    )
    os.close(slave)
    heard: list[bytes] = []
    try:
        _hear(master, heard, PATIENCE, until=lambda: _listens(process.pid) or process.poll() is not None)
        for gap, number in plan:
            _hear(master, heard, gap)
            if process.poll() is None:
                if number:
                    process.send_signal(number)
                else:
                    os.write(master, b"\x03")
        hung = not _hear(master, heard, PATIENCE, until=lambda: process.poll() is not None)
        if hung:
            process.kill()
            process.wait()
        _hear(master, heard, 0.0)
    finally:
        os.close(master)
    text = b"".join(heard).decode(errors="replace")
    return Shot(" ".join(words), tuple(plan), process.returncode, text, hung)


def _left_behind(folder: Path) -> list[str]:
    left = sorted(folder.glob("repertory-*"))
    for path in left:
        shutil.rmtree(path)
    return [path.name for path in left]


def _hear(master: int, heard: list[bytes], seconds: float, *, until: Callable[[], bool] = lambda: False) -> bool:
    """Read output for this long, or until a condition holds; returns whether it did."""
    end = time.monotonic() + seconds
    while True:
        left = end - time.monotonic()
        if select.select([master], [], [], max(0.0, min(left, 0.01)))[0]:
            try:
                heard.append(os.read(master, 65536))
                continue
            except OSError:  # Linux: no process has the terminal open any more
                time.sleep(max(0.0, min(left, 0.01)))
        if until():
            return True
        if left <= 0:
            return False


def _listens(pid: int) -> bool:
    """Whether a process handles SIGTERM, which Python does not by default: before that no code of ours runs."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:  # gone, or no /proc: then signals may also meet Python's startup
        return not Path("/proc/self/status").exists()
    (caught,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def judge(shot: Shot) -> list[str]:
    """List what a person would complain about; empty if there is nothing."""
    screen = Screen(WIDTH, HEIGHT)
    screen.write(shot.text)
    problems = [f"it shows {noise!r}: {shot.text[-2000:]!r}" for noise in _NOISE if noise in shot.text][:1]
    if shot.hung:
        problems.append(f"it does not end within {PATIENCE:g} s: {screen.lines[-5:]}")
    elif shot.code not in _codes(shot):
        problems.append(f"it ends with {shot.code}: {screen.lines[-5:]}")
    if not screen.cursor_shown:
        problems.append("the cursor is hidden")
    pictures = sum(_PICTURE in line for line in screen.lines)
    if pictures > 1:
        problems.append(f"{pictures} pictures stand on the terminal")
    return problems


def _codes(shot: Shot) -> set[int]:
    """The exit codes that a process may have: it was done before the signal, or ended by it.

    Just before it exits, Python restores the default handlers, so that the signal itself may end the process; a shell
    shows the same number for both.
    """
    sent = {number or signal.SIGINT for _, number in shot.signals}
    codes = {0} | {128 + number for number in sent} | {-number for number in sent}
    # There may be nothing to resume yet, or the run may be done: databases of other shots are used as they are.
    return codes | ({1, 2, 4} if shot.words.startswith("resume") else set())


async def _unreadable(path: Path) -> list[str]:
    try:
        async with open_journal(path) as journal:  # for writing, as the next run does: it may be incomplete
            await journal.read_runs()
    except RepertoryError as error:
        return [f"its database cannot be read: {error}"]
    return []
