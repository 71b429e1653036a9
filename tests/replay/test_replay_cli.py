"""``repertory replay`` as a person or a script runs it: a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from replay_stories import CHAT, MESSAGES, as_messages, long_run, session, write

from patience import PATIENCE
from repertory.replay import PRESETS

PAGE = Path(__file__).parents[2] / "docs" / "replay.md"


class Result(msgspec.Struct, frozen=True):
    """What a command left behind."""

    code: int
    out: str
    err: str


def replay(*words: str | Path, cwd: Path, **env: str) -> Result:
    """Run the command with nothing of this machine's settings."""
    kept = {name: value for name, value in os.environ.items() if name == "PATH" or name.startswith("COVERAGE_")}
    done = subprocess.run(
        [sys.executable, "-m", "repertory", "replay", *map(str, words)],
        capture_output=True,
        env={**kept, "HOME": str(cwd), "LANG": "C.UTF-8", **env},
        cwd=cwd,
        timeout=PATIENCE,
        check=False,
    )
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


def fields(value: Any) -> set[str]:
    """The names in an object and in the objects within it, apart from those of models, tokenizers and ages."""
    if isinstance(value, list):
        return set().union(*map(fields, value)) if value else set()
    if not isinstance(value, dict):
        return set()
    named = {"models", "recall", "recall_over_10", "recall_by_age", "decisions"}
    inner = [
        set().union(*(fields(model) for model in part.values()))
        if name == "models" and isinstance(part, dict)
        else set()
        if name in named
        else fields(part)
        for name, part in value.items()
    ]
    return set(value).union(*inner)


def test_every_format_at_once_gives_one_json_object(tmp_path: Path) -> None:
    """Three price levels, two models that bind, four runs, no error line; a run of the same words is the same run."""
    files = [
        write(tmp_path / "messages.json", MESSAGES),
        write(tmp_path / "chat.jsonl.gz", {"messages": CHAT}, packed=True),
        write(tmp_path / "session.jsonl", *session()),
    ]
    done = replay(*files, "--json", cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert found["models"] == ["r=0.1", "r=0.05", "r=0.025", "r=0.05+binding", "r=0.025+binding"]
    assert [run["iterations"] for run in found["runs"]] == [3, 3, 3, 1]
    assert found["total"]["models"]["r=0.1"]["invalid_requests"] == 0
    assert found["long_runs"]["runs"] == 0
    assert found["long_runs"]["models"]["r=0.1"]["cost_ratio"] is None  # the fields are there, whatever was played


def test_a_broken_line_is_named_and_the_others_are_played(tmp_path: Path) -> None:
    """One line on standard error for each problem, exit code 1, and the figures of the rest."""
    path = tmp_path / "set.jsonl"
    path.write_text(json.dumps(MESSAGES) + "\n{half\n", encoding="utf-8")
    done = replay("set.jsonl", "missing.jsonl", "--json", "--model", "r=0.1", cwd=tmp_path)
    assert done.code == 1
    assert re.fullmatch(
        r"repertory: set\.jsonl: line 2: it is not JSON: .*\n"
        r"repertory: missing\.jsonl: expected a readable file of recorded runs, got: No such file or directory\n",
        done.err,
    )
    found = json.loads(done.out)
    assert (len(found["runs"]), len(found["problems"])) == (1, 2)


def test_a_person_sees_tables_and_a_chart(tmp_path: Path) -> None:
    """Runs, totals, and the longest run's context; no progress bar and no colour where there is no terminal."""
    write(tmp_path / "a.json", MESSAGES)
    done = replay("a.json", "--policy", "plain", "--model", "r=0.1", "--plot", "a.svg", cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    assert "\x1b" not in done.out
    for words in (
        "RUN  ITER  r=0.1",
        "All runs: 1, 3 iterations, policy plain",
        "cost relative to append-only",
        "1.000",
        "100.0%",
        "█",
    ):
        assert words in done.out
    assert "<polyline" in (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert "iterations and more" not in done.out


def test_a_chart_that_cannot_be_written_costs_no_figures(tmp_path: Path) -> None:
    """They are written before the error is, which is one line."""
    write(tmp_path / "a.json", MESSAGES)
    (tmp_path / "a.svg").symlink_to("/dev/full")
    done = replay("a.json", "--model", "r=0.1", "--json", "--plot", "a.svg", cwd=tmp_path)
    assert (done.code, len(json.loads(done.out)["runs"])) == (2, 1)
    assert done.err == "repertory: 'a.svg' cannot be written: No space left on device\n"


SESSION = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"


@pytest.mark.parametrize("columns", [80, 60])
@pytest.mark.parametrize("models", [[], ["claude-opus-4-6", "claude-haiku-4-5", "claude-sonnet-4-5", "r=0.1"]])
def test_a_narrow_terminal_shows_every_figure(columns: int, models: list[str], tmp_path: Path) -> None:
    """No line is too long, no header and no figure is cut; only ids are, so that runs can still be told apart."""
    ids = [SESSION, f"{SESSION}/agent-a1b2c3d4", f"{SESSION}/agent-ff00ff00"]
    write(tmp_path / "a.jsonl", *({"id": run_id, "messages": as_messages(long_run(12))} for run_id in ids))
    words = ["a.jsonl", "--policy", "strict", *(word for name in models for word in ("--model", name))]
    done = replay(*words, cwd=tmp_path, COLUMNS=str(columns))
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert max(map(len, lines)) <= columns
    end = next(number for number, line in enumerate(lines) if line.startswith("by model"))
    runs, below = lines[:end], lines[end:]
    names = models or PRESETS
    shown = {line.split()[0] for line in runs if line.startswith(("…", "1b4e"))}
    assert {cut[-4:] for cut in shown} == {"a427", "c3d4", "ff00"}
    assert len(shown) == 3
    figures = json.loads(replay(*words, "--json", cwd=tmp_path).out)["runs"][0]["models"]
    words_of_tables = set(" ".join(runs).split())
    assert {"RUN", "ITER", "RECALL", "PEAK", "PLAIN", *names} <= words_of_tables
    assert {f"{figures[name]['cost_ratio']:.3f}" for name in names} <= words_of_tables
    assert not any("…" in line for line in below if not line.startswith("Context of"))
    assert all(any(name in line.split() for line in below) for name in names)
    assert "decisions" in done.out


def test_why_a_run_failed_is_said_below_the_table(tmp_path: Path) -> None:
    """Whole, however narrow the terminal is, with the run's whole id."""
    long = [{"role": "user", "content": "Read."}]
    for number in range(3):
        use = {"type": "tool_use", "id": f"c{number}", "name": "read", "input": {}}
        long.append({"role": "assistant", "content": [use]})
        result = {"type": "tool_result", "tool_use_id": f"c{number}", "content": f"{number} " * 200_000}
        long.append({"role": "user", "content": [result]})
    long.append({"role": "assistant", "content": "Read."})
    write(tmp_path / "a.jsonl", {"id": SESSION, "messages": long})
    done = replay("a.jsonl", "--policy", "plain", "--model", "claude-haiku-4-5", cwd=tmp_path, COLUMNS="60")
    assert done.code == 1
    said = " ".join(done.out.split())
    assert re.search(rf"{SESSION}, claude-haiku-4-5: the prompt has .* of claude-haiku-4-5", said)


def test_what_a_file_says_cannot_steer_the_terminal(tmp_path: Path) -> None:
    """Ids come from strangers."""
    write(tmp_path / "a.json", {"id": "\x1b]0;evil\x07", "messages": MESSAGES})
    done = replay("a.json", "--model", "r=0.1", cwd=tmp_path, FORCE_COLOR="1")
    assert "\\x1b]0;evil" in done.out
    assert "\x1b]0;" not in done.out


def test_a_policy_of_ones_own_is_judged(tmp_path: Path) -> None:
    """From the current folder; what it does shows in the figures."""
    (tmp_path / "mine.py").write_text(
        "from repertory import ContextPolicy\npolicy = ContextPolicy(rhythm='strict', strict_chars=20)\n",
        encoding="utf-8",
    )
    write(tmp_path / "a.json", MESSAGES)
    whole = {}
    for name in ("plain", "mine:policy"):
        done = replay("a.json", "--policy", name, "--model", "claude-opus-4-6", "--json", cwd=tmp_path)
        assert (done.code, done.err) == (0, "")
        whole[name] = json.loads(done.out)["total"]["models"]["claude-opus-4-6"]["whole_on_arrival"]
    assert whole["plain"] == 1.0
    assert whole["mine:policy"] < 0.5


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["a.json", "--policy", "lavish"], "expected a policy as thrifty, strict, plain or module:name, got 'lavish'"),
        (
            ["a.json", "--policy", "bad_policy:policy"],
            "module 'bad_policy' cannot be imported: ZeroDivisionError",
        ),
        (["a.json", "--model", "gpt-4o"], "nobody knows the prices of model 'gpt-4o'"),
        (["a.json", "--plot", "a.pdf"], "expected a chart's file to end in .svg or .png, got 'a.pdf'"),
        (["a.json", "--plot", "none/a.svg"], "'none/a.svg' cannot be written: there is no folder 'none'"),
        ([], "missing argument"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(words: list[str], line: str, tmp_path: Path) -> None:
    """Before anything is read."""
    (tmp_path / "bad_policy.py").write_text("policy = 1 / 0\n", encoding="utf-8")
    done = replay(*words, cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert line in done.err
    assert done.err.count("\n") == 1


def test_a_run_that_does_not_fit_fails_alone(tmp_path: Path) -> None:
    """A plain loop cannot play more than the window holds; the report says so, and the exit code."""
    long = [{"role": "user", "content": "Read."}]
    for number in range(12):
        use = {"type": "tool_use", "id": f"c{number}", "name": "read", "input": {}}
        long.append({"role": "assistant", "content": [use]})
        result = {"type": "tool_result", "tool_use_id": f"c{number}", "content": f"{number} " * 40_000}
        long.append({"role": "user", "content": [result]})
    long.append({"role": "assistant", "content": "Read."})
    write(tmp_path / "a.jsonl", {"id": "long", "messages": long}, {"id": "short", "messages": MESSAGES})
    done = replay("a.jsonl", "--policy", "plain", "--model", "claude-haiku-4-5", "--json", cwd=tmp_path)
    assert done.code == 1
    found = {run["id"]: run["models"]["claude-haiku-4-5"]["error"] for run in json.loads(done.out)["runs"]}
    assert "more than the 200,000 of claude-haiku-4-5" in found["long"]
    assert found["short"] is None


def test_every_field_is_documented(tmp_path: Path) -> None:
    """docs/replay.md names what comes out; negative control: a name that does not come out is not found."""
    write(tmp_path / "a.json", MESSAGES)
    done = replay("a.json", "--json", "--model", "r=0.1", cwd=tmp_path)
    named = set(re.findall(r"`(\w+)`", PAGE.read_text(encoding="utf-8")))
    assert fields(json.loads(done.out)) - named == set()
    assert "no_such_field" not in named
    assert {"cost_ratio", "recall_over_10", "context"} <= fields(json.loads(done.out))


# --- asking a model ---------------------------------------------------------------------------------------


def folded(path: Path) -> Path:
    """A recording in which the policy has something to take away."""
    return write(path / "long.json", as_messages(long_run(40)))


def test_agreement_is_asked_of_a_model_that_is_named(tmp_path: Path) -> None:
    """The price first, on standard error; the same seed gives the same figures."""
    words = [folded(tmp_path), "--policy", "strict", "--agree", "3", "--model", "offline", "--yes"]
    done = replay(*words, "--json", cwd=tmp_path)
    assert done.code == 0
    assert re.fullmatch(r"repertory: 9 requests to offline cost at most \$\d.*\n", done.err)
    found = json.loads(done.out)
    assert (found["model"], found["seed"], found["samples"], found["failed"]) == ("offline", 0, 3, [])
    assert found["tools_record"] == 1.0
    assert set(found) - set(re.findall(r"`(\w+)`", PAGE.read_text(encoding="utf-8"))) == set()
    assert json.loads(replay(*words, "--json", cwd=tmp_path).out) == found
    table = replay(*words, cwd=tmp_path).out
    assert re.search(r"^3 turns, offline, seed 0, cost \$\d\S*:$", table, re.MULTILINE)
    assert re.search(r"the same tools +\d+\.\d% +100\.0%", table)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--model", "offline"], "9 requests to offline cost at most $"),
        ([], "--agree asks one real model: name it with --model NAME"),
        (["--model", "offline", "--plot", "chart.svg"], "--agree draws no chart"),
        (["--model", "offline", "--model", "r=0.1"], "--agree asks one real model"),
        (["--model", "r=0.1"], "malformed model name 'r=0.1'"),
        (["--model", "claude-opus-4-6", "--policy", "plain", "--yes"], "no turn was shown anything but"),
    ],
)
def test_nothing_is_spent_by_mistake(words: list[str], line: str, tmp_path: Path) -> None:
    """Nobody is there to say yes, or it is not clear what is to be asked: one line, and exit code 2."""
    done = replay(folded(tmp_path), "--policy", "strict", "--agree", "3", *words, cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert line in done.err
    assert done.err.count("\n") == 1
