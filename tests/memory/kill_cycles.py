"""Kill a writing process again and again, and look at the file with nothing but the standard library's sqlite3.

``python tests/memory/kill_cycles.py 300`` runs 300 cycles and prints what it found.
"""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CHILD = Path(__file__).with_name("append_child.py")


def run_and_kill(path: Path, delay: float) -> dict[int, str]:
    """Start the child, kill it ``delay`` seconds after its first acknowledgement, give what it acknowledged."""
    with subprocess.Popen([sys.executable, str(CHILD), str(path)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        first = child.stdout.readline()
        time.sleep(delay)
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read()
        assert child.wait() == -signal.SIGKILL, "the child ended by itself"
    lines = (first + rest).decode().split("\n")[:-1]  # what follows the last newline was cut off by the kill
    return {int(position): text for word in " ".join(lines).split() for position, text in [word.split("=")]}


def read_file(path: Path) -> list[tuple[int, str, int]]:
    """Position, text and sequence number of every entry, and proof that the file is sound."""
    with sqlite3.connect(path) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        rows = database.execute(
            "SELECT position, json_extract(content, '$[0].text'), seq FROM entries ORDER BY seq"
        ).fetchall()
    database.close()
    return rows


def violations(rows: list[tuple[int, str, int]], acknowledged: dict[int, str]) -> list[str]:
    """What is wrong with a file: acknowledged appends lost or changed, duplicates, gaps, torn batches."""
    found: list[str] = []
    kept = {position: text for position, text, _ in rows}
    found += [f"lost {text} at {position}" for position, text in acknowledged.items() if kept.get(position) != text]
    texts = [text for _, text, _ in rows]
    if len(set(texts)) != len(texts):
        found.append(f"{len(texts) - len(set(texts))} duplicates")
    if [position for position, _, _ in rows] != list(range(len(rows))):
        found.append("positions have gaps or are out of the file's order")
    if [seq for _, _, seq in rows] != list(range(1, len(rows) + 1)):
        found.append("sequence numbers have gaps")
    batches: dict[str, set[int]] = {}
    for text in texts:
        batch, _, part = text.rpartition(".")
        batches.setdefault(batch, set()).add(int(part))
    for batch, parts in batches.items():
        if parts != set(range(1 + int(batch.rpartition(".")[2]) % 3)):
            found.append(f"batch {batch} is torn: {parts}")
    return found


def kill_cycles(count: int, *, seed: int = 0) -> tuple[int, list[str]]:
    """Run cycles over one file; gives how many appends were acknowledged, and every violation."""
    rng = random.Random(seed)
    acknowledged: dict[int, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.db"
        found: list[str] = []
        for cycle in range(count):
            acknowledged |= run_and_kill(path, rng.uniform(0.0, 0.03))
            found += [f"cycle {cycle}: {each}" for each in violations(read_file(path), acknowledged)]
            if found:
                break
    return len(acknowledged), found


if __name__ == "__main__":
    cycles = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    started = time.monotonic()
    total, problems = kill_cycles(cycles, seed=int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    print(
        f"{cycles} kills in {time.monotonic() - started:.0f} s: "
        f"{total} appends acknowledged, {len(problems)} violations"
    )
    print(*problems, sep="\n")
    sys.exit(bool(problems))
