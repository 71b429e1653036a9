"""Real processes, killed with SIGKILL at random points, and what the next process makes of what they left."""

from __future__ import annotations

import json
import random
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from repertory.llm.messages import ToolResult, ToolUse, decode_content

CHILD = Path(__file__).with_name("kill_child.py")

CORPUS = {
    "pantry.py": '"""The pantry counts its jars."""\n\n'
    + "".join(
        f"def shelf_{n}(jars):\n    # shelf {n} keeps count of its jars in row {n * 7}\n    return jars - {n}\n\n"
        for n in range(60)
    ),
    "refill.py": '"""Who refills the pantry."""\n\n'
    + "".join(
        f"class Refiller{n}:\n    def refill(self, jar):\n        '''The cook refills jar {n} on day {n}.'''\n"
        for n in range(40)
    ),
    "breakage.py": '"""What happens when a jar breaks."""\n\n'
    + "".join(
        f"def on_break_{n}(jar):\n    raise BrokenJar(f'jar {n} breaks: sweep, then count again')\n\n"
        for n in range(50)
    ),
}


def start(kind: str, database: Path, folder: Path) -> subprocess.Popen[str]:
    """Start a process that works on the run."""
    command = [sys.executable, str(CHILD), kind, str(database), str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> str | None:
    """The answer of a process that was let live; None for one that was killed before it had it."""
    out, errors = process.communicate(timeout=60)
    done = [line for line in out.splitlines() if line.startswith("DONE ")]
    if not done and process.returncode != -9:
        raise AssertionError(f"the process ended with {process.returncode}:\n{errors}")
    return json.loads(done[0].removeprefix("DONE ")) if done else None


def run_with_kills(kind: str, database: Path, folder: Path, *, kills: int, seed: int) -> tuple[str, int]:
    """Kill the process at random points, again and again, then let it end; the answer and how often it died."""
    chance = random.Random(seed)
    died = 0
    for _ in range(kills):
        process = start(kind, database, folder)
        assert process.stdout is not None
        process.stdout.readline()  # it is open: from here on the work goes on
        try:
            process.wait(timeout=chance.uniform(0.0, 0.08))
        except subprocess.TimeoutExpired:
            process.kill()
            died += 1
        answer = finish(process)
        if answer is not None:
            return answer, died
    answer = finish(start(kind, database, folder))
    assert answer is not None
    return answer, died


def problems_of(transcript: list[tuple[str, str]]) -> list[str]:
    """What the Messages API would refuse in the entries of one run: calls and results that are not paired."""
    found, asked, seen = [], {}, Counter[str]()
    for position, (role, content) in enumerate(transcript):
        for block in decode_content(json.loads(content)):
            if isinstance(block, ToolUse):
                asked[block.id] = position
            if isinstance(block, ToolResult):
                seen[block.tool_use_id] += 1
                if asked.get(block.tool_use_id, position) >= position:
                    found.append(f"{role} entry {position} answers {block.tool_use_id}, which nobody asked")
    found += [f"{call_id} has {seen[call_id]} results" for call_id in asked if seen[call_id] != 1]
    return found


def transcripts(database: Path) -> dict[str, list[tuple[str, str]]]:
    """Every run's entries, read with nothing of ours."""
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        rows = connection.execute("SELECT run_id, role, content FROM entries ORDER BY run_id, position").fetchall()
    found: dict[str, list[tuple[str, str]]] = {}
    for run_id, role, content in rows:
        found.setdefault(run_id, []).append((role, content))
    return found


def check_effects(tmp_path: Path, *, kills: int, seed: int) -> int:
    """Kill the run with effects; returns how often it died."""
    folder = tmp_path / f"effects-{seed}"
    folder.mkdir()
    answer, died = run_with_kills("effects", folder / "run.db", folder, kills=kills, seed=seed)
    assert answer.startswith("36 results, ")
    lines = Counter((folder / "effects.txt").read_text(encoding="utf-8").splitlines())
    twice = [line for line, count in lines.items() if count > 1 and line.startswith("unsafe")]
    assert twice == []
    assert sum(line.startswith("idempotent") for line in lines) == 12
    assert sum(line.startswith("pure") for line in lines) == 12
    for run_id, entries in transcripts(folder / "run.db").items():
        assert problems_of(entries) == [], run_id
    return died


def check_research(tmp_path: Path, expected: str | None, *, kills: int, seed: int) -> tuple[str, int]:
    """Kill a whole team at work; returns its answer and how often it died."""
    folder = tmp_path / f"research-{seed}"
    corpus = folder / "corpus"
    corpus.mkdir(parents=True)
    for name, text in CORPUS.items():
        (corpus / name).write_text(text, encoding="utf-8")
    answer, died = run_with_kills("research", folder / "run.db", corpus, kills=kills, seed=seed)
    if expected is not None:
        assert answer == expected
    for run_id, entries in transcripts(folder / "run.db").items():
        assert problems_of(entries) == [], run_id
    return answer, died


def test_no_unsafe_tool_runs_twice_and_no_transcript_is_poisoned(tmp_path: Path) -> None:
    """However often the process dies, each call ends with one result, and what must not be repeated is not."""
    assert check_effects(tmp_path, kills=8, seed=1) > 0


def test_a_killed_team_comes_to_the_same_answer(tmp_path: Path) -> None:
    """Delegations, memory and context go on where they were: the answer is the one of an unbroken run."""
    expected, _ = check_research(tmp_path, None, kills=0, seed=0)
    _, died = check_research(tmp_path, expected, kills=6, seed=2)
    assert died > 0


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(10, 30))
def test_many_deaths(tmp_path: Path, seed: int) -> None:
    """The same, for longer."""
    check_effects(tmp_path, kills=30, seed=seed)
    expected, _ = check_research(tmp_path, None, kills=0, seed=0)
    check_research(tmp_path, expected, kills=30, seed=seed)


def test_the_checker_sees_a_poisoned_transcript() -> None:
    """Negative control: a call without a result, two results, and a result without a call are all found."""
    use = '[{"type": "tool_use", "id": "a", "name": "x", "input": {}}]'
    result = '[{"type": "tool_result", "tool_use_id": "a", "content": "y"}]'
    assert problems_of([("assistant", use), ("user", result)]) == []
    assert problems_of([("assistant", use)]) == ["a has 0 results"]
    assert problems_of([("assistant", use), ("user", result), ("user", result)]) == ["a has 2 results"]
    assert problems_of([("user", result)]) == ["user entry 0 answers a, which nobody asked"]
