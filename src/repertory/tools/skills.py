"""Skills: folders with a SKILL.md, whose instructions a model reads when it needs them.

The format is that of agentskills.io. The description of the tool ``skill`` says what each skill is for. The tool
returns a skill's instructions, or one of the other files in its folder. Nothing in a skill is ever run, and a skill
grants no tools.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Final, Literal

import msgspec

from repertory._choices import check_type
from repertory.errors import ConfigurationError, DefinitionError, ToolFailed, ToolRetry
from repertory.tools.confined import Folder, read_all
from repertory.tools.decorator import Tool, tool
from repertory.tools.front_matter import MAX_FILE, read_markdown, warn
from repertory.tools.output import ToolOutput

_MANUAL: Final = "SKILL.md"
# The limits of agentskills.io/specification.
_NAME = re.compile(r"(?=.{1,64}$)[a-z0-9]+(-[a-z0-9]+)*")
_LONGEST_DESCRIPTION: Final = 1_024
_KNOWN = {"name", "description", "license", "compatibility", "metadata", "allowed-tools", "disable-model-invocation"}
_WITHOUT_EFFECT = frozenset(
    {"when_to_use", "arguments", "argument-hint", "user-invocable", "disallowed-tools", "model", "effort", "context"}
    | {"agent", "background", "hooks", "paths", "shell"}
)
_MOST: Final = 100  # skills of one agent; each costs about 100 tokens in every request

_DESCRIPTION = """\
Read the instructions of a skill before you do what it is for; then follow them. They may name further files of the
skill, which you read with file.

Skills:
"""


class Skill(msgspec.Struct, frozen=True):
    """What a skill is for, and where it is."""

    name: str
    description: str
    folder: Path


def read_skills(folder: str | PathLike[str]) -> dict[str, Skill]:
    """Read the skills in a folder, by name. Each of its folders with a SKILL.md is a skill.

    Raises:
        ConfigurationError: There is no such folder, or it holds more than 100 skills.
        DefinitionError: A SKILL.md cannot be read, or lacks a name or description that the format allows.
    """
    root = Path(folder)
    if not os.path.isdir(root):
        raise ConfigurationError(f"skills: there is no folder {str(root)!r}")
    manuals = sorted(path for path in root.glob(f"*/{_MANUAL}") if not path.parent.is_symlink())
    if len(manuals) > _MOST:
        raise ConfigurationError(f"skills: {str(root)!r} holds {len(manuals)} skills; at most {_MOST} are read")
    found = (_read_skill(manual) for manual in manuals)
    return {skill.name: skill for skill in found if skill is not None}


def _read_skill(manual: Path) -> Skill | None:
    """Read one skill; None if its author does not allow models to use it by themselves."""
    read = read_markdown(manual)
    if read is None:
        warn(manual, "has no front matter with name and description, and is left out")
        return None
    read.warn_of(_KNOWN, _WITHOUT_EFFECT)
    name, description = read.text("name"), " ".join(read.text("description").split())
    if not _NAME.fullmatch(name) or name != manual.parent.name:
        expected = f"expected that of its folder, {manual.parent.name!r}, of a-z, 0-9 and single hyphens, at most 64"
        raise read.error("name", f"{expected}, got {name!r:.100}")
    if not 1 <= len(description) <= _LONGEST_DESCRIPTION:
        bounds = f"expected 1 to {_LONGEST_DESCRIPTION:,} characters"
        raise read.error("description", f"{bounds}, got {len(description):,}")
    if read.text("disable-model-invocation", "false").lower() == "true":
        return None
    return Skill(name, description, manual.parent)


def skill_text(skill: Skill) -> str:
    """Read the current instructions of a skill. Raises ``DefinitionError``."""
    read = read_markdown(skill.folder / _MANUAL)
    return "" if read is None else read.body


def skill_tool(skills: str | PathLike[str] | Mapping[str, Skill]) -> Tool:
    """Make the tool ``skill``, which lists skills and returns the instructions of one.

    Args:
        skills: A folder whose folders each hold a SKILL.md, or the result of ``read_skills``.

    Raises:
        ConfigurationError: There is no such folder, or no skill in it.
        DefinitionError: A SKILL.md cannot be read; see ``read_skills``.
    """
    check_type("skill_tool: skills", skills, str | PathLike | Mapping, "a folder, or what read_skills found")
    found = dict(skills) if isinstance(skills, Mapping) else read_skills(skills)
    if not found:
        raise ConfigurationError(f"skills: there is no SKILL.md in any folder of {skills!r}")

    def skill(name: str, *, file: str = "") -> ToolOutput:
        folder = Folder(found[name].folder)
        files = _files_of(folder)
        if not file:
            try:
                text = skill_text(found[name])
            except DefinitionError as error:
                raise ToolFailed(str(error)) from error
            note = f"\n\n[Files of this skill: {', '.join(files)}]" if files else ""
            # Shown as it is: instructions that are cut are not followed.
            return ToolOutput(text + note, source_type="skill", format="markdown", facts={"skill": name}, as_is=True)
        try:
            with folder.open_file(folder.parts_of(file)) as fd:
                data, more = read_all(fd, MAX_FILE)
        except ToolRetry:
            has = ", ".join(files) or "none"
            raise ToolRetry(f"skill {name!r} has no file {file[:200]!r} that can be read; its files: {has}") from None
        if more or b"\0" in data:
            raise ToolFailed(f"{file!r} is no text of at most {MAX_FILE:,} bytes")
        text, facts = data.decode("utf-8", "replace"), {"skill": name, "file": file}
        return ToolOutput(text, source_type="skill", facts=facts, as_is=True)

    skill.__annotations__["name"] = Literal[tuple(found)]
    listed = "\n".join(f"- {each.name}: {each.description}" for each in found.values())
    return tool(skill, description=_DESCRIPTION + listed, effect="pure")


def _files_of(folder: Folder) -> list[str]:
    """The other files of a skill, for the model to choose from."""
    paths = (found.path for found in folder.walk((), Counter()))
    return list(islice((path for path in paths if path != _MANUAL), _MOST))
