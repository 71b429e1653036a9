"""Agents from files: Markdown with front matter, as in Claude Code's ``.claude/agents``, or TOML.

A file defines an agent; the program decides which tools exist. A folder is a team, led by its file ``lead``. Fields are
named as in Claude Code. If a file asks for something unsupported, that is an error if ignoring it would give the agent
more than its author intended, and a ``UserWarning`` otherwise.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from os.path import exists, isdir
from pathlib import Path
from typing import Any, Final, get_args

import msgspec

from repertory.agents.agent import Agent, Limits
from repertory.errors import ConfigurationError, DefinitionError
from repertory.llm.messages import Json
from repertory.memory import MemoryMode
from repertory.tools import Tool, context_tools, file_tools, memory_files_tool, memory_tools
from repertory.tools.decorator import made_tools
from repertory.tools.front_matter import DefinitionFile, check_toml, read_markdown, read_text, warn
from repertory.tools.skills import Skill, read_skills, skill_text, skill_tool

LEAD: Final = "lead"
_SUFFIXES: Final = (".md", ".toml")
_MAX_FILES: Final = 200  # files of one folder
_MAX_AGENTS: Final = 1_000  # in one tree of teams, where a member of two teams counts twice

_KNOWN = {"name", "description", "tools", "disallowedTools", "model", "maxTurns", "skills", "memory"}
_OURS = {"instructions", "team", "max_tokens", "limits", "options", "placement"}
_WITHOUT_EFFECT = frozenset(
    {"permissionMode", "mcpServers", "hooks", "background", "omitClaudeMd", "effort", "isolation", "color"}
    | {"initialPrompt"}
)
# Claude Code's names for tools that do the same here.
_CLAUDE_TOOLS: Final = {"Read": "view_file", "Grep": "search_files", "Glob": "list_files", "Skill": "skill"}
_DELEGATION: Final = ("Agent", "Task")  # Claude Code's tools for starting sub-agents; the second is the old name
_CLAUDE_MEMORY: Final = ("user", "project", "local")  # folders of Claude Code's that do not exist elsewhere
_WITH_RULE = re.compile(r"([^()]+)\((.*)\)", re.DOTALL)


def is_definition(reference: str) -> bool:
    """Whether a reference to an agent is the path of a file or folder, and not ``module:name``."""
    return reference.endswith(_SUFFIXES) or "/" in reference or (":" not in reference and os.path.isdir(reference))


def load_agents(
    path: str | PathLike[str],
    *,
    tools: Iterable[Tool | Callable[..., Any]] = (),
    skills: str | PathLike[str] | None = None,
) -> tuple[Agent[Any], ...]:
    """Read all agents of a folder, for use as a team, or the agent of one file.

    Args:
        path: A folder of ``.md`` and ``.toml`` files (subfolders are not read), or one such file.
        tools: Tools that the files may name; functions are turned into tools. An agent whose file names no tools gets
            all of them.
        skills: A folder of skills. None uses ``skills`` in the folder, or beside it if the folder is named ``agents``.

    Raises:
        DefinitionError: A file is wrong; the message names the file, the line and the field.
        ConfigurationError: There is no such file or folder, a file is Markdown and PyYAML is missing, or one of the
            tools is not a tool.
    """
    place = Path(path)
    folder = _Folder(place if os.path.isdir(place) else place.parent, made_tools(tools, "tools"), skills=skills)
    return tuple(folder.agent(each) for each in (folder.files() if os.path.isdir(place) else [place]))


def load_definition(reference: str, *, root: str | PathLike[str] | None = None, **_others: Any) -> Agent[Any]:
    """The agent of a file, or the lead of a folder, with the built-in tools.

    Args:
        reference: The path. The lead of a folder is its file ``lead.md`` or ``lead.toml``, or its only file; unless it
            names its team, the team is all other agents of the folder.
        root: The folder that its file tools read; None for no file tools.

    Raises:
        DefinitionError: A file is wrong.
        ConfigurationError: There is no such file or folder, or the folder has no lead.
    """
    place = Path(reference)
    tools = [*(file_tools(root) if root is not None else ()), *memory_tools(), *context_tools()]
    # Two kinds of memory tools are one too many: only agents that name it get memory as files.
    if not isdir(place):  # unlike Path.is_dir, it does not raise if a name is too long
        return _Folder(place.parent, tools, by_name=[memory_files_tool()]).agent(place)
    folder = _Folder(place, tools, by_name=[memory_files_tool()])
    files = folder.files()
    leads = [file for file in files if file.stem == LEAD] or files
    if len(leads) != 1:
        there = ", ".join(file.name for file in files) or "no .md or .toml file"
        raise ConfigurationError(
            f"folder {reference!r} has no lead: call one file lead.md or lead.toml; it has {there}"
        )
    return folder.agent(leads[0], leads=len(files) > 1)


class _Folder:
    """The files of a folder, and the agents that they become."""

    def __init__(
        self,
        path: Path,
        tools: Sequence[Tool],
        *,
        by_name: Sequence[Tool] = (),
        skills: str | PathLike[str] | None = None,
    ) -> None:
        self._path = path
        beside = [path / "skills", *([path.parent / "skills"] if path.name == "agents" else [])]
        places = [Path(skills)] if skills is not None else [place for place in beside if os.path.isdir(place)]
        self._skills: Mapping[str, Skill] = read_skills(places[0]) if places else {}
        self._tools = {tool.name: tool for tool in [*tools, *([skill_tool(self._skills)] if self._skills else [])]}
        self._by_name = {tool.name: tool for tool in by_name}
        self._read: dict[Path, DefinitionFile | None] = {}
        self._made: dict[Path, tuple[Agent[Any], int]] = {}  # with the number of agents in its tree
        self._making: list[Path] = []  # a member of a team may have a team, but not those above it

    def files(self) -> list[Path]:
        """The files that define an agent, sorted by name."""
        found = sorted(path for path in self._path.iterdir() if path.suffix in _SUFFIXES and not path.is_dir())
        if len(found) > _MAX_FILES:
            raise ConfigurationError(
                f"folder {str(self._path)!r} has {len(found)} agent files; at most {_MAX_FILES} are read"
            )
        for path in found:
            if self._definition(path) is None:
                warn(path, "has no front matter, and is left out")
        kept = [path for path in found if self._definition(path) is not None]
        by_name: dict[str, Path] = {}
        for path in kept:
            name = self._read_required(path).text("name")
            if by_name.setdefault(name, path) != path:
                raise self._read_required(path).error("name", f"{name!r} is the name in {by_name[name]} already")
        return kept

    def _definition(self, path: Path) -> DefinitionFile | None:
        if path not in self._read:
            self._read[path] = _read_toml(path) if path.suffix == ".toml" else read_markdown(path)
        return self._read[path]

    def _read_required(self, path: Path) -> DefinitionFile:
        if path.suffix not in _SUFFIXES or not exists(path):
            how = "" if path.suffix in _SUFFIXES else "; its name ends in .md or .toml"
            how += ", and an agent in Python is module:name" if path.suffix.startswith(".py") else ""
            raise ConfigurationError(f"there is no agent file {str(path)!r:.500}{how}")
        read = self._definition(path)
        if read is None:
            raise DefinitionError(str(path), "has no front matter: begin with ---, name: …, description: …, ---")
        return read

    def agent(self, path: Path, *, leads: bool = False) -> Agent[Any]:
        """The agent of a file; with ``leads`` all others are its team, unless the file names one."""
        read = self._read_required(path)
        if path in self._making:
            circle = " -> ".join(place.name for place in [*self._making[self._making.index(path) :], path])
            raise read.error("team", f"an agent cannot be below itself: {circle}")
        if path not in self._made:
            self._making.append(path)
            try:
                self._made[path] = self._make(read, leads=leads)
            finally:
                self._making.pop()
        return self._made[path][0]

    def _make(self, read: DefinitionFile, *, leads: bool) -> tuple[Agent[Any], int]:
        read.warn_of(_KNOWN | _OURS, _WITHOUT_EFFECT)
        tools, members = self._tools_of(read, leads=leads)
        description = " ".join(read.text("description").split())
        if not description:
            raise read.error("description", "is missing: say when to hand work to this agent")
        team = [self.agent(member) for member in members]
        size = 1 + sum(self._made[member][1] for member in members)
        if size > _MAX_AGENTS:
            raise read.error("team", f"there are {size:,} agents below it; at most {_MAX_AGENTS:,} are made")
        try:
            agent = Agent(
                read.text("name"),
                instructions=self._instructions_of(read),
                tools=tools,
                team=team,
                model=_model_of(read),
                memory=_memory_of(read),
                limits=_limits_of(read),
                description=description,
                **_others_of(read),
            )
        except DefinitionError:
            raise
        except ConfigurationError as error:
            raise DefinitionError(str(read.path), str(error)) from error
        return agent, size

    def _instructions_of(self, read: DefinitionFile) -> str:
        """The text of the file, and the skills that it includes from the start."""
        parts = [read.body or read.text("instructions")]
        for name in read.words("skills") or ():
            if name not in self._skills:
                raise read.error("skills", f"there is no skill {name!r:.100}; {_list_known(name, self._skills)}")
            parts.append(f"<skill name={name!r}>\n{skill_text(self._skills[name])}\n</skill>")
        return "\n\n".join(part for part in parts if part)

    def _tools_of(self, read: DefinitionFile, *, leads: bool) -> tuple[list[Tool], list[Path]]:
        """The tools that a file names, and the files of its team."""
        names, team = read.words("tools"), read.words("team")
        chosen = dict(self._tools) if names is None else {}
        for name in names or ():
            rule = _WITH_RULE.fullmatch(name)
            if (rule[1].strip() if rule else name) in _DELEGATION:
                if rule is not None:
                    team = [*(team or ()), *(member.strip() for member in rule[2].split(","))]
                elif len(self._making) > 1:
                    warn(read.path, f"{name!r} has no effect below another agent; name the team, as in Agent(reviewer)")
                leads = leads or len(self._making) == 1
                continue
            if rule is not None:
                raise read.error(
                    "tools", f"{name!r:.100}: rules in parentheses are not known; name a tool that is as narrow"
                )
            tool = self._tool(name)
            if tool is None:
                known = {**self._tools, **self._by_name}
                meant = _CLAUDE_TOOLS.get(name)
                needs = "" if meant is None else f", which means {meant!r} and needs a folder to read, such as a root"
                raise read.error("tools", f"nobody defines {name!r:.100}{needs}; {_list_known(name, known)}")
            chosen[tool.name] = tool
        for name in read.words("disallowedTools") or ():
            rule = _WITH_RULE.fullmatch(name)
            tool = self._tool(rule[1].strip() if rule else name)
            if rule is not None and tool is not None and tool.name in chosen:
                raise read.error(
                    "disallowedTools", f"{name!r:.100}: rules in parentheses are not known; leave the tool out"
                )
            if tool is not None:
                chosen.pop(tool.name, None)
        others = [path for path in (self.files() if leads or team else []) if path != read.path]
        if team is None:
            return list(chosen.values()), others if leads else []
        by_name = {self._read_required(path).text("name"): path for path in others}
        for member in team:
            if member not in by_name:
                raise read.error(
                    "team", f"there is no agent {member!r:.100} in this folder; {_list_known(member, by_name)}"
                )
        return list(chosen.values()), [by_name[member] for member in team]

    def _tool(self, name: str) -> Tool | None:
        for spelled in (name, _CLAUDE_TOOLS.get(name, name)):
            tool = self._tools.get(spelled) or self._by_name.get(spelled)
            if tool is not None:
                return tool
        return None


def _read_toml(path: Path) -> DefinitionFile:
    text = read_text(path)
    check_toml(path, text)
    try:
        fields = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also of a number of thousands of digits
        raise DefinitionError(str(path), f"is not TOML: {error}") from error
    keys = re.finditer(r"^[ \t]*\[?([A-Za-z_][\w-]*)[ \t]*[=\].]", text, re.MULTILINE)
    lines: dict[str, int] = {}
    for key in keys:
        if key[1] in fields:
            lines.setdefault(key[1], text.count("\n", 0, key.start()) + 1)
    return DefinitionFile(path, fields, lines, "")


def _model_of(read: DefinitionFile) -> str | None:
    name = read.text("model", "inherit")
    return None if name in ("", "inherit") else name


def _memory_of(read: DefinitionFile) -> Any:
    mode = read.text("memory", "shared")
    if mode in _CLAUDE_MEMORY:
        warn(read.path, f"'memory': {mode!r} is a folder of Claude Code's and has no effect here")
        return "shared"
    if mode not in get_args(MemoryMode):
        raise read.error("memory", f"expected {', '.join(get_args(MemoryMode))}, got {mode!r:.100}")
    return mode


def _limits_of(read: DefinitionFile) -> Limits:
    given = read.fields.get("limits", {})
    if not isinstance(given, dict):
        raise read.error("limits", f"expected a table of {', '.join(Limits.__struct_fields__)}, got {given!r:.100}")
    unknown = sorted(set(given) - set(Limits.__struct_fields__))
    if unknown:  # a misspelt limit would bound nothing
        raise read.error("limits", f"{unknown[0]!r} is no limit; {_list_known(unknown[0], Limits.__struct_fields__)}")
    given = {**({"iterations": read.fields["maxTurns"]} if "maxTurns" in read.fields else {}), **given}
    try:
        return msgspec.convert(given, Limits, strict=False)
    except (msgspec.ValidationError, ConfigurationError) as error:
        raise read.error("limits" if "limits" in read.fields else "maxTurns", str(error)) from error


def _others_of(read: DefinitionFile) -> Json:
    """Fields that are passed on only if a file has them, so that an agent's defaults are written once."""
    others: Json = {}
    if "max_tokens" in read.fields:
        try:
            others["max_tokens"] = msgspec.convert(read.fields["max_tokens"], int, strict=False)
        except msgspec.ValidationError as error:
            raise read.error("max_tokens", str(error)) from error
    if "placement" in read.fields:
        others["placement"] = read.words("placement") or ()
    if "options" in read.fields:
        if read.path.suffix != ".toml":  # every scalar of front matter is text, and the API wants numbers
            raise read.error("options", "can be said in TOML only")
        others["options"] = read.fields["options"]
    return others


def _list_known(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}there are {', '.join(names)}" if names else "there are none"
