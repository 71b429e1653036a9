"""An agent file or folder is as good as ``module:name``, also for a resume from another folder."""

from __future__ import annotations

from pathlib import Path

from cli_support import invoke

LEAD = "---\nname: boss\ndescription: x\ncolor: red\n---\nYou lead.\n"
READER = (
    "---\nname: reader\ndescription: Reads files.\ntools: Read, Grep, Glob, memory_store\nmodel: haiku\n---\nRead.\n"
)


def test_a_folder_of_agents_runs_and_is_found_again(tmp_path: Path) -> None:
    """Offline too, where its models' names mean the offline model; odd fields are said in a line."""
    (tmp_path / "team").mkdir()
    (tmp_path / "team" / "lead.md").write_text(LEAD)
    (tmp_path / "team" / "reader.md").write_text(READER)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "mill.txt").write_text("The mill is closed on Wednesdays.\n")
    ran = invoke(
        *("run", "When is the mill closed?", "--agent", str(tmp_path / "team"), "--root", str(tmp_path / "files")),
        *("--db", str(tmp_path / "runs.db"), "--json"),
        home=tmp_path,
    )
    assert ran.code == 0, ran.err
    assert (ran.json["agent"], ran.json["model"], ran.json["state"]) == ("boss", "offline", "done")
    assert ran.json["agents"] > 1
    assert "lead.md: 'color' (line 4) has no effect here\n" in ran.err

    again = invoke("resume", ran.json["run_id"], "--db", str(tmp_path / "runs.db"), "--json", home=tmp_path)
    assert again.code == 0, again.err
    assert again.json["answer"] == ran.json["answer"]


def test_a_wrong_file_is_one_line_with_its_place(tmp_path: Path) -> None:
    """Exit code 2, like all wrong usage; nothing was begun."""
    (tmp_path / "a.md").write_text("---\nname: a\ndescription: x\ntools: Bash\n---\nx\n")
    result = invoke("run", "x", "--agent", str(tmp_path / "a.md"), home=tmp_path)
    assert (result.code, result.out) == (2, "")
    assert "a.md, line 4: tools: nobody defines 'Bash'; there are context_retrieve, list_files" in result.err
    assert result.err.count("\n") == 1
