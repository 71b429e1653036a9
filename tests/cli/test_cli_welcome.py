"""Bare ``repertory``: it says what to do next, by what there is."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from cli_support import CHILD, OTHER, Result, at_a_terminal, invoke, settings

import repertory as rp
from repertory.cli.app import load
from repertory.cli.sections import COMMANDS
from repertory.record import open_journal
from repertory.testing import ScriptedModel


def kept(home: Path) -> Path:
    """The data folder of a home."""
    folder = home / "data" / "repertory"
    folder.mkdir(parents=True)
    return folder


def test_a_newcomer_is_told_how_to_begin(tmp_path: Path) -> None:
    """Nothing is recorded yet, and asking makes no file."""
    result = invoke(home=tmp_path)
    assert (result.code, result.err) == (0, "")
    assert "repertory demo" in result.out
    assert 'repertory run "TASK" --root DIR' in result.out
    assert not (tmp_path / "data").exists()
    missing = invoke(home=tmp_path, env={"REPERTORY_DB": str(tmp_path / "none.db")})
    assert f"No runs yet in {tmp_path / 'none.db'}" in missing.out


def test_what_a_command_does_stays_beside_it(tmp_path: Path) -> None:
    """Also what is longer than a line of the terminal: it goes on below its own beginning."""
    with at_a_terminal(home=tmp_path) as terminal:
        assert terminal.end() == 0
        shown = terminal.seen.replace("\r", "").partition("Start with:")[2]
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in shown.strip().split("\n")]
    assert max(map(len, lines)) <= 80
    (company,) = (at for at, line in enumerate(lines) if "repertory up company.toml" in line)
    assert lines[company + 1].index("from its file.") >= lines[company].index("Start a company")


def test_who_answers_is_said_before_anything_is_spent(tmp_path: Path) -> None:
    """Without a key the offline model, with one Claude and that it may cost money; a wrong name is named."""
    nothing = {"REPERTORY_MODEL": "", "ANTHROPIC_API_KEY": "", "ANTHROPIC_AUTH_TOKEN": "", "ANTHROPIC_BASE_URL": ""}
    for env, said in (
        ({}, "Model: offline, rules that search and quote; nothing is sent. Set ANTHROPIC_API_KEY to use Claude."),
        ({"ANTHROPIC_API_KEY": "x"}, "Model: claude-sonnet-5-5, whose calls may cost money; --model offline costs"),
        ({"REPERTORY_MODEL": "a b"}, "No model: malformed model name 'a b'"),
    ):
        result = invoke(home=tmp_path, env=nothing | env)
        assert result.code == 0
        assert said in result.out


def test_help_lists_each_command_by_what_it_is_for(tmp_path: Path) -> None:
    """No command is left out, groups of commands stand among the others, and each has one whole line of 80 columns."""
    text = invoke("--help", home=tmp_path, env={"COLUMNS": "80"}).out.partition("Show this message and exit.\n")[2]
    lines = [line.split(maxsplit=1) for line in text.partition("  Exit codes")[0].splitlines() if line[:1] == " "]
    listed = {name: said for name, (_, said) in COMMANDS.items()}
    assert lines == [[name, said] for name, said in listed.items()]
    for name, said in listed.items():
        whole = " ".join(load(name).help.split("\n\n")[0].split())
        assert f"{whole} ".startswith(f"{said} ")


def test_completing_a_word_imports_no_command(tmp_path: Path) -> None:
    """A shell asks for the names at each press of a key; they are known without what they stand for."""
    code = (
        "import sys\nfrom repertory.cli.app import app\n"
        "try: app([], prog_name='repertory')\nexcept SystemExit: pass\n"
        "print([name for name in sys.modules if name.startswith('repertory.record')])"
    )
    shell = {"_REPERTORY_COMPLETE": "complete_bash", "COMP_WORDS": "repertory re", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=settings(tmp_path, shell), capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["resume", "replay", "reload", "rewind", "restore", "[]"]


def test_runs_that_did_not_finish_come_first(made: Path, tmp_path: Path) -> None:
    """Those that ps shows, with what to type to go on."""
    shutil.copy(made, kept(tmp_path) / "runs.db")
    result = invoke(home=tmp_path)
    assert result.code == 0
    assert invoke("ps", home=tmp_path).out in result.out
    assert f"Continue with: repertory resume {OTHER}" in result.out
    assert CHILD not in result.out


def test_runs_under_way_are_to_be_looked_at(made: Path, tmp_path: Path) -> None:
    """A living process has the database: nothing there is to be resumed by another."""
    path = kept(tmp_path) / "runs.db"
    shutil.copy(made, path)

    async def main() -> Result:
        async with open_journal(path):
            return await anyio.to_thread.run_sync(lambda: invoke(home=tmp_path))

    result = anyio.run(main)
    assert result.code == 0
    assert "running" in result.out
    assert "repertory ps " in result.out
    assert "repertory resume" not in result.out


def test_finished_runs_are_to_be_looked_at_or_followed_by_another(tmp_path: Path) -> None:
    """What was done can be seen in three ways."""
    rp.run_sync(rp.Agent("a"), "task", path=kept(tmp_path) / "runs.db", model=ScriptedModel(["done"]))
    result = invoke(home=tmp_path)
    assert (result.code, result.err) == (0, "")
    assert "No runs in progress. 1 run ended: repertory ps -a lists all." in result.out
    for command in ("ps -a", "stats --tree", "inspect", "demo", "doctor"):
        assert f"repertory {command}" in result.out


@pytest.mark.parametrize("content", [b"Dear reader, ", b"\0"], ids=["letter", "zeros"])
def test_what_cannot_be_read_is_said_and_no_error(content: bytes, tmp_path: Path) -> None:
    """It is the first thing that a person types: it answers, whatever there is."""
    (kept(tmp_path) / "runs.db").write_bytes(content * 1000)
    result = invoke(home=tmp_path)
    assert (result.code, result.err) == (0, "")
    assert "cannot be read" in result.out
    assert "repertory doctor" in result.out
