"""The command reference of the documentation: ``python tests/cli/cli_reference.py`` writes it into docs/cli.md."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from repertory.cli.app import app, load
from repertory.cli.sections import COMMANDS

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
MARK = "<!-- from here on written by tests/cli/cli_reference.py -->\n\n"


def reference() -> str:
    """Write every command with its arguments and options as Markdown."""
    group: Any = typer.main.get_command(app)
    parts = ["## Options of every command\n", *_options(group)]
    for name, command in _commands({name: load(name) for name in COMMANDS}):
        parts.append(f"## repertory {name}\n")
        parts.append(f"{_prose(command.help)}\n")
        parts.extend(_options(command))
    return "\n".join(parts).rstrip() + "\n"


def _commands(commands: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Every command with its name, those of groups with the group's before it."""
    for name, command in commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command.commands, f"{above}{name} ")
        else:
            yield f"{above}{name}", command


def _prose(text: str) -> str:
    """Paragraphs, each on one line."""
    return "\n\n".join(" ".join(part.split()) for part in inspect.cleandoc(text).split("\n\n"))


def _options(command: Any) -> Iterator[str]:
    rows = [(_spelled(parameter), parameter.help) for parameter in command.params if "completion" not in parameter.name]
    if rows:
        yield "| | |\n|---|---|"
        yield "\n".join(f"| `{spelled}` | {text} |" for spelled, text in rows) + "\n"


def _spelled(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"{parameter.metavar}" if parameter.required else f"[{parameter.metavar}]"
    names = ", ".join(sorted(parameter.opts, key=len))
    if parameter.is_flag:
        return names
    return f"{names} {parameter.metavar}".replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(PAGE.read_text(encoding="utf-8").partition(MARK)[0] + MARK + reference(), encoding="utf-8")
