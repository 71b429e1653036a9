"""The rooms import one way only, as the table in docs/design.md says."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import repertory

PACKAGE = Path(repertory.__file__).parent
# Lowest first: a room may import the rooms before it, and nothing after.
ROOMS = [
    "errors",
    "actors",
    "llm",
    "record",
    "memory",
    "context",
    "summarizer",
    "tools",
    "agents",
    "service",
    "replay",
    "torture",
    "cli",
]
NOT_EVEN = {
    "llm": {"actors"},
    "record": {"actors"},
    "context": {"actors", "memory"},  # pure functions have no business with the runtime
}
ALSO = {"torture": {"testing"}}  # its teams are played by scripted models
ANYWHERE = {"_choices", "_frozen", "_ids", "_version", "__version__"}
UNBOUND = {"testing", "__init__", "__main__"}  # may import every room


def imports_of(source: str, package: str = "repertory") -> Iterator[str]:
    """The rooms that a module imports, at module level or inside functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""] if node.module != package else [f"{package}.{a.name}" for a in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            if name.startswith(package + "."):
                yield name.split(".")[1]


def violations(room: str, source: str) -> list[str]:
    """The rooms that a module of ``room`` imports although it may not."""
    allowed = set(ROOMS[: ROOMS.index(room) + 1]) - NOT_EVEN.get(room, set()) | ALSO.get(room, set()) | ANYWHERE
    return [imported for imported in imports_of(source) if imported not in allowed]


def modules() -> list[tuple[str, Path]]:
    """Every module of the package that the rule binds, with its room."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if room not in UNBOUND | ANYWHERE:
            found.append((room, path))
    return found


@pytest.mark.parametrize(
    ("room", "path"), modules(), ids=lambda value: value.stem if isinstance(value, Path) else value
)
def test_a_room_imports_only_the_rooms_before_it(room: str, path: Path) -> None:
    """Imports point one way, so that each room can be read, tested and replaced without those above it."""
    assert violations(room, path.read_text(encoding="utf-8")) == []


def test_the_rule_sees_an_import_that_points_the_wrong_way() -> None:
    """Negative control: the checker fails where it should, also inside a function."""
    assert violations("llm", "def f():\n    from repertory.agents import Agent\n") == ["agents"]
    assert violations("context", "import repertory.actors\n") == ["actors"]
    assert violations("agents", "from repertory import context\n") == []
