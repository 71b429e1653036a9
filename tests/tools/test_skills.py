"""Skills: what they are for is always in view, what they say is had on demand, and nothing in them is run."""

from __future__ import annotations

from pathlib import Path

import pytest

import repertory as rp
from repertory.errors import ConfigurationError, DefinitionError
from repertory.tools import call_tool, skill_tool

SOUP = """\
---
name: soup
description: >
  Cook a soup.
  Use when somebody is cold.
license: MIT
metadata:
  author: cook
allowed-tools: Read Bash(ls)
---
Read [the list](references/list.md).

!`touch hot`
"""


@pytest.fixture
def skills(tmp_path: Path) -> Path:
    """A folder with one skill that has a further file, and a folder that is none."""
    folder = tmp_path / "skills"
    (folder / "soup" / "references").mkdir(parents=True)
    (folder / "soup" / "SKILL.md").write_text(SOUP)
    (folder / "soup" / "references" / "list.md").write_text("Leeks.")
    (folder / "empty").mkdir()
    return folder


def write_skill(skills: Path, name: str, fields: str) -> None:
    """Another skill."""
    (skills / name).mkdir()
    (skills / name / "SKILL.md").write_text(f"---\n{fields}---\nBody of {name}.\n")


async def test_a_skill_is_announced_by_its_description_and_read_on_demand(skills: Path) -> None:
    """First the line that says when to use it, then the body with the names of its files, then a file."""
    tool = skill_tool(skills)
    assert tool.description.endswith("Skills:\n- soup: Cook a soup. Use when somebody is cold.")
    assert "Leeks" not in tool.description
    assert tool.input_schema["properties"]["name"]["enum"] == ["soup"]
    body = await call_tool(tool, {"name": "soup"})
    assert body.text == (
        "Read [the list](references/list.md).\n\n!`touch hot`\n\n[Files of this skill: references/list.md]"
    )
    assert (await call_tool(tool, {"name": "soup", "file": "references/list.md"})).text == "Leeks."


async def test_nothing_in_a_skill_is_run(skills: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Claude Code runs lines of this form; here they are text."""
    monkeypatch.chdir(skills)
    await call_tool(skill_tool(skills), {"name": "soup"})
    assert not list(skills.rglob("hot"))


@pytest.mark.parametrize("file", ["../../secret", "/etc/passwd", "references", "nothing.md", "references/link"])
async def test_only_files_of_the_skill_are_read(file: str, skills: Path) -> None:
    """Not those beside it, not what a link leads to; the model is told which there are."""
    (skills.parent / "secret").write_text("secret")
    (skills / "soup" / "references" / "link").symlink_to(skills.parent / "secret")
    output = await call_tool(skill_tool(skills), {"name": "soup", "file": file})
    assert output.is_error
    assert "secret" not in output.text.replace(file, "")


async def test_a_skill_that_is_gone_is_told(skills: Path) -> None:
    """The folder may change while an agent runs."""
    tool = skill_tool(skills)
    (skills / "soup" / "SKILL.md").unlink()
    output = await call_tool(tool, {"name": "soup"})
    assert output.is_error
    assert "SKILL.md: cannot be read: No such file" in output.text


def test_a_skill_that_models_are_not_to_use_is_left_out(skills: Path) -> None:
    """Its author says so."""
    write_skill(skills, "salad", "name: salad\ndescription: x\ndisable-model-invocation: true\n")
    assert "salad" not in skill_tool(skills).description


@pytest.mark.parametrize(
    ("name", "fields", "words"),
    [
        ("salad", "name: soup\ndescription: x\n", "name: expected that of its folder, 'salad'"),
        ("Salad", "name: Salad\ndescription: x\n", "of a-z, 0-9 and single hyphens, at most 64, got 'Salad'"),
        ("salad", "description: x\n", "name: expected that of its folder, 'salad'"),
        ("salad", "name: salad\n", "description: expected 1 to 1,024 characters, got 0"),
        (
            "salad",
            f"name: salad\ndescription: {'x' * 1_025}\n",
            "description: expected 1 to 1,024 characters, got 1,025",
        ),
    ],
)
def test_a_skill_that_breaks_the_format_is_refused(name: str, fields: str, words: str, skills: Path) -> None:
    """With the file and the field."""
    write_skill(skills, name, fields)
    with pytest.raises(DefinitionError) as caught:
        skill_tool(skills)
    assert words in str(caught.value)
    assert str(skills / name / "SKILL.md") in str(caught.value)


def test_a_folder_without_skills_is_refused(tmp_path: Path) -> None:
    """A tool with nothing to choose from helps nobody."""
    with pytest.raises(ConfigurationError, match=r"no SKILL.md in any folder of"):
        skill_tool(tmp_path)
    with pytest.raises(ConfigurationError, match="there is no folder"):
        skill_tool(tmp_path / "nothing")


def test_odd_skills_are_warned_of(skills: Path) -> None:
    """Fields of Claude Code's own, and a manual without front matter."""
    write_skill(skills, "salad", "name: salad\ndescription: x\nmodel: opus\n")
    with pytest.warns(UserWarning, match=r"'model' \(line 4\) has no effect here"):
        skill_tool(skills)
    (skills / "salad" / "SKILL.md").write_text("# Salad")
    with pytest.warns(UserWarning, match="has no front matter with name and description, and is left out"):
        skill_tool(skills)


def test_agents_from_files_find_the_skills_beside_them(skills: Path) -> None:
    """As in ``.claude``: agents and skills are neighbours. Named in a file, a skill is in its instructions whole."""
    agents = skills.parent / "agents"
    agents.mkdir()
    (agents / "cook.md").write_text("---\nname: cook\ndescription: x\ntools: Skill\n---\nYou cook.\n")
    (agents / "old.md").write_text("---\nname: old\ndescription: x\ntools:\nskills: soup\n---\nYou cook.\n")
    cook, old = rp.load_agents(agents)
    assert [tool.name for tool in cook.tools] == ["skill"]
    assert old.tools == ()
    assert old.instructions.startswith("You cook.\n\n<skill name='soup'>\nRead [the list]")
