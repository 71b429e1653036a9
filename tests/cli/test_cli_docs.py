"""docs/cli.md says what the commands do: options as in the help, exit codes and JSON fields as they are."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest
from cli_reference import MARK, reference
from cli_reference import PAGE as FILE
from cli_support import RUN, Result, invoke

from repertory.cli import output

PAGE = FILE.read_text(encoding="utf-8")


def documented(command: str) -> set[str]:
    """The fields that the page names for a command."""
    (passage,) = re.findall(rf"^(?:`[^`]+`, )*`{command}`(?:, `[^`]+`)*\n: ((?:.|\n)+?)\n\n", PAGE, re.MULTILINE)
    return set(re.findall(r"`(\w+)`", passage))


def fields(value: Any) -> set[str]:
    """The fields of an object, and of the objects in its lists of records."""
    found = set(value)
    for name in ("runs", "record", "decisions", "entries", "checks", "scenarios", "contents"):
        for row in value.get(name, ()):
            found |= set(row) | set(row.get("figures") or ())
    return found | set(value.get("citations", ()))


def test_the_reference_is_what_the_help_texts_say() -> None:
    """The page is written from the commands themselves: ``python tests/cli/cli_reference.py``."""
    assert PAGE.partition(MARK)[2] == reference()


def test_every_command_that_writes_json_says_what() -> None:
    """In the list of fields; see the next test for whether that is true."""
    with_json = re.findall(r"^## repertory (.+)\n(?:(?!^## )(?:.|\n))*?^\| `--json`", PAGE, re.MULTILINE)
    assert len(with_json) > 25
    for command in with_json:
        documented(command)


@pytest.mark.parametrize(
    "command", ["ps -a", "inspect", "ledger", "content ls", "content show", "doctor", "stress", "torture"]
)
def test_every_json_field_is_documented(command: str, made: Path, tmp_path: Path) -> None:
    """Neither more nor less than what comes out."""
    words = command.split()
    if command in ("inspect", "ledger", "content ls"):
        words.append(RUN)
    if command == "content show":
        words.append("cite-1")
    if command == "torture":
        words += ["--only", "kills", "--case", "0"]
    elif command == "stress":
        words += ["--writers", "2", "--appends", "2"]
    else:
        words += ["--db", str(made)]
    shown = invoke(*words, "--json", home=tmp_path).json
    verdicts = {"ok", "warning", "problem"} - {"ok"} if command == "doctor" else set()
    state = {"interrupted"} if command == "ps -a" else set()
    marks = {"shaped", "folded", "removed", "expanded", "summarized"} if command == "inspect" else set()
    assert documented(command.removesuffix(" -a")) - verdicts - state - marks == fields(shown)


def test_every_field_of_a_run_is_documented(demo: Result) -> None:
    """The object that demo, run and resume end with."""
    assert documented("demo") - {"plain"} == fields(demo.json)


def test_every_exit_code_is_documented() -> None:
    """The table lists the codes that the program knows, and the help names them too."""
    listed = {int(code) for row in re.findall(r"^\| ([\d, ]+) \|", PAGE, re.MULTILINE) for code in row.split(", ")}
    known = {value for name, value in vars(output).items() if name.isupper() and isinstance(value, int)}
    known.add(128 + signal.SIGTERM)  # which is made of the signal's number, wherever one ends a command
    assert listed == known


def test_the_checker_sees_a_field_that_is_missing() -> None:
    """Negative control: a field that the page does not name would be noticed."""
    assert "tokens_seen" in documented("ps")
    assert "a_new_field" not in documented("ps")
    assert fields({"runs": [{"a_new_field": 1}]}) == {"runs", "a_new_field"}
