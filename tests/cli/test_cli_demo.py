"""The demo: real agents, a real record, citations that hold; on a terminal, in a pipe, and for a program."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import sysconfig
from functools import partial
from pathlib import Path

import anyio
import pytest
from cli_support import Result, in_a_process, invoke, settings

from repertory.record import open_journal

SGR = re.compile(r"\x1b\[[\d;]*m")


def test_the_demo_gives_one_object_with_what_was_promised(demo: Result) -> None:
    """A lead and at least three researchers answered, and the models saw less than a plain loop would send."""
    assert demo.code == 0, demo.err
    found = demo.json
    assert found["state"] == "done"
    assert found["agents"] >= 4
    assert found["iterations"] >= found["agents"]
    assert 0 < found["tokens_seen"] < found["tokens_plain"]
    assert 0 < found["cost_seen"] < found["cost_plain"]
    assert found["retrievals"] >= 1
    assert {"dedup_hits", "seconds", "run_id", "answer", "database"} <= set(found)


def test_every_citation_of_the_demo_holds(demo: Result) -> None:
    """Checked again by other means: each file and line exists in this Python's standard library."""
    found = demo.json
    assert found["citations"]["total"] >= 3
    assert found["citations"]["resolved"] == found["citations"]["total"]
    root = Path(sysconfig.get_paths()["stdlib"])
    places = re.findall(r"([\w/]+\.py):(\d+)", found["answer"])
    assert places
    for path, line in places:
        assert len((root / path).read_text(errors="replace").split("\n")) >= int(line)


def test_the_demo_makes_a_private_database_that_the_other_commands_find(demo: Result, demo_home: Path) -> None:
    """Without any option ps, inspect and ledger look at what the demo just did."""
    path = Path(demo.json["database"])
    assert path.parent == demo_home / "data" / "repertory"
    assert path.stat().st_mode & 0o077 == 0
    assert path.parent.stat().st_mode & 0o077 == 0
    listed = invoke("ps", "-a", home=demo_home)
    assert demo.json["run_id"] in listed.out
    assert listed.err == ""
    in_json = invoke("ps", "-a", "--json", home=demo_home)
    assert in_json.err == ""
    runs = in_json.json["runs"]
    assert len(runs) == demo.json["agents"]
    assert sum(run["figures"]["iterations"] for run in runs) == demo.json["iterations"]
    assert invoke("ps", home=demo_home).out == "No runs in progress. 1 run ended: repertory ps -a lists all.\n"


def test_what_the_researchers_saw_was_edited(demo: Result, demo_home: Path) -> None:
    """The newest request of a researcher shows stubs or a summary, each explained by a decision."""
    runs = invoke("ps", "-a", "--json", home=demo_home).json["runs"]
    child = next(run["id"] for run in runs if run["parent_id"] == demo.json["run_id"])
    shown = invoke("inspect", child, "--json", home=demo_home).json
    assert {entry["shown"] for entry in shown["record"]} & {"stub", "covered"}
    assert shown["decisions"]
    step = invoke("stats", child, "--json", home=demo_home).json["runs"][0]["iterations"][-1]
    assert shown["prompt_tokens"] == step["prompt_tokens"] < step["plain_tokens"] == shown["record_tokens"]
    assert all(len(entry["what"]) < 120 or entry["what"].endswith("…") for entry in shown["record"])


def test_a_run_that_is_done_is_resumed_to_its_answer(demo: Result, demo_home: Path) -> None:
    """Resuming what has ended makes no model call; it gives the answer again."""
    again = invoke("resume", demo.json["run_id"], "--json", home=demo_home)
    assert again.code == 0, again.err
    assert again.json["answer"] == demo.json["answer"]
    listed = invoke("ps", "-a", "--json", home=demo_home).json["runs"]
    assert sum(run["figures"]["iterations"] for run in listed) == demo.json["iterations"]


def test_in_a_pipe_the_demo_writes_plain_lines(tmp_path: Path) -> None:
    """The real entry point, on asyncio: what happens goes to standard error, and then the answer comes with figures."""
    result = in_a_process("demo", "--backend", "asyncio", "--db", str(tmp_path / "demo.db"), home=tmp_path)
    assert result.code == 0, result.err
    assert "\x1b" not in result.out + result.err
    assert re.search(r"^ +\d+\.\ds  researcher 3 +starts: ", result.err, re.MULTILINE)
    assert "iteration 1: saw" in result.err
    assert "iteration 1: saw" not in result.out
    for said in (
        "answered by the offline model",
        f"recorded in {tmp_path}",
        "prompt tokens",
        "citations",
        "The offline model costs nothing",
        f"repertory ps -a --db {tmp_path / 'demo.db'}",
    ):
        assert said in result.out
    assert not any(line.endswith(" ") for line in result.out.split("\n"))
    advice = result.out[result.out.index("Look at what happened") :].splitlines()[1:]
    assert len({line.rindex("   ") for line in advice}) == 1  # what each command shows stands in one column


def test_beside_a_service_the_demo_has_a_database_of_its_own(tmp_path: Path) -> None:
    """Nobody who keeps a service running has to name one, and what it suggests names it."""
    usual = tmp_path / "data" / "repertory" / "runs.db"
    usual.parent.mkdir(parents=True)

    async def main() -> Result:
        async with open_journal(usual):
            return await anyio.to_thread.run_sync(
                partial(in_a_process, "demo", "What is here?", "--root", ".", home=tmp_path)
            )

    (tmp_path / "a.md").write_text("Here is a lamp.")
    result = anyio.run(main)
    assert result.code == 0, result.err
    assert f"repertory ps -a --db {usual.with_name('demo.db')}" in result.out


def _on_a_terminal(home: Path, *words: str, **env: str) -> str:
    """What a command writes to a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "repertory", *words],
        stdout=theirs,
        stderr=theirs,
        env={**settings(home), "TERM": "xterm-256color", "COLUMNS": "80", **env},
    )
    os.close(theirs)
    seen = bytearray()
    while True:
        try:
            piece = os.read(ours, 65_536)
        except OSError:  # how Linux says that the other end is closed
            break
        if not piece:
            break
        seen += piece
    os.close(ours)
    assert process.wait() == 0, seen.decode()
    return seen.decode()


def _painted(seen: str) -> bool:
    """Whether any colour is in it; bold and dim are none."""
    return any(30 <= int(code) <= 37 for codes in SGR.findall(seen) for code in re.findall(r"\d+", codes))


def test_on_a_terminal_the_demo_is_a_live_picture(tmp_path: Path) -> None:
    """The tree is redrawn in place, in colour, and what follows it stays readable."""
    seen = _on_a_terminal(tmp_path, "demo")
    assert "\x1b[1A" in seen  # one line up, to draw over it
    assert "VIEW / RECORD" in seen
    assert _painted(seen)
    assert "repertory ledger run-" in seen
    assert "threading.py:" in seen[seen.rindex("since") : seen.rindex("iterations ")]  # a table, and no Markdown
    assert "| ---" not in seen


@pytest.mark.parametrize(
    ("env", "moves", "painted"),
    [({}, True, True), ({"NO_COLOR": "1"}, True, False), ({"TERM": "dumb"}, False, False)],
    ids=["terminal", "NO_COLOR", "dumb"],
)
def test_the_terminal_and_its_owner_are_heeded(env: dict[str, str], moves: bool, painted: bool, tmp_path: Path) -> None:
    """NO_COLOR takes the colours away, a dumb terminal gets lines."""
    seen = _on_a_terminal(tmp_path, "run", "x", "--model", "offline", "--db", str(tmp_path / "r.db"), **env)
    assert ("VIEW / RECORD" in seen) == moves
    assert ("\x1b[?25l" in seen) == moves  # the cursor, hidden while the picture is drawn
    assert _painted(seen) == painted


def _printed(answer: str, home: Path, columns: int) -> list[str]:
    """The lines of an answer on a terminal."""
    program = f"from repertory.cli.running import print_answer; print_answer({answer!r})"
    ours, theirs = pty.openpty()
    environment = {**settings(home), "COLUMNS": str(columns)}
    process = subprocess.Popen([sys.executable, "-c", program], stdout=theirs, env=environment)
    assert process.wait() == 0
    os.close(theirs)
    lines = [line.rstrip() for line in SGR.sub("", os.read(ours, 65_536).decode()).splitlines()]
    os.close(ours)
    return lines


def test_a_table_in_an_answer_is_one_on_a_terminal(tmp_path: Path) -> None:
    """Wherever it stands in the text, with what is around it; rows that are too short are filled up."""
    answer = "See:\n\n| name | place |\n|:---|---:|\n| one | a.py:1 |\n| two\n\n- a point"
    assert _printed(answer, tmp_path, 80) == ["See:", "", "name  place", "one   a.py:1", "two", "", "• a point"]


def test_a_list_in_an_answer_is_shown_whole_on_a_terminal(tmp_path: Path) -> None:
    """Also where a line ends with a wide letter in the last column."""
    lines = _printed("- 東京 大阪 京都 名古屋\n- one", tmp_path, 16)
    assert lines == ["• 東京 大阪 京都", "  名古屋", "• one"]


def test_only_a_line_that_is_bold_as_a_whole_is_shown_so_on_a_terminal(tmp_path: Path) -> None:
    """Of any other line no sign is lost."""
    lines = ["**What is left**", "**Note**: `a**b` is `pow(a, b)`", "**one** and **two**"]
    assert _printed("\n".join(lines), tmp_path, 80) == ["What is left", *lines[1:]]


def test_without_the_source_of_the_standard_library_the_demo_asks_for_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some Pythons have it in a zip archive, or compiled alone; there would be nothing to find."""
    (tmp_path / "threading.pyc").write_bytes(b"compiled")
    for library in (tmp_path, tmp_path / "python311.zip"):
        monkeypatch.setattr(sysconfig, "get_paths", lambda where=library: {"stdlib": str(where)})
        result = invoke("demo", home=tmp_path)
        assert (result.code, result.out) == (2, "")
        assert f"no source of its library in {library}; name a folder: --root DIR" in result.err


def test_of_another_folder_the_demo_asks_what_is_in_it(tmp_path: Path) -> None:
    """Not about modules of the standard library, which are not there."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "a.py").write_text("def first():\n    return 1\n")
    shown = invoke("demo", "--root", folder, "--json", "--db", tmp_path / "a.db", home=tmp_path).json
    assert shown["task"].startswith("What is in this folder")


def test_a_quiet_demo_is_its_answer_alone(tmp_path: Path) -> None:
    """No heading, no figures, no advice, as with any run."""
    (tmp_path / "ships.md").write_text("# Ships\nA ship carries cargo.\n")
    result = invoke("demo", "What does a ship carry?", "--root", str(tmp_path), "--quiet", home=tmp_path)
    assert (result.code, result.err) == (0, "")
    assert "A ship carries cargo." in result.out
    assert not any(word in result.out for word in ("recorded in", "prompt tokens", "Look at what happened"))
