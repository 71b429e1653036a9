"""The rooms import one way only, as the table in docs/design.md says."""

from __future__ import annotations

import ast
import re
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
    "offline",
    "record",
    "machines",
    "memory",
    "shortening",
    "context",
    "summarizer",
    "tools",
    "agents",
    "runs",
    "views",
    "loop",
    "supervisor",
    "mcp",
    "service",
    "otel",
    "testing",
    "replay",
    "torture",
    "cli",
]
NOT_EVEN = {
    "llm": {"actors"},
    "offline": {"actors"},
    "record": {"actors"},
    "shortening": {"actors", "memory"},
    "context": {"actors", "memory"},  # pure functions have no business with the runtime
    "testing": {*ROOMS} - {"errors", "llm", "testing"},  # to play a model takes no more
}
ANYWHERE = {
    "_cancelling",
    "_choices",
    "_constraints",
    "_counting",
    "_cutting",
    "_excerpts",
    "_error_texts",
    "_frozen",
    "_held_signal",
    "_ids",
    "_json_text",
    "_json_types",
    "_json_values",
    "_log",
    "_pdf",
    "_postgres_address",
    "_repeated_event",
    "_version",
    "_web_address",
    "__version__",
}
UNBOUND = {"__init__", "__main__"}  # may import every room


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
    allowed = set(ROOMS[: ROOMS.index(room) + 1]) - NOT_EVEN.get(room, set()) | ANYWHERE
    return [imported for imported in imports_of(source) if imported not in allowed]


def modules() -> list[tuple[str, Path]]:
    """Every module of the package that the rule binds, with its room."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if room not in UNBOUND | ANYWHERE:
            found.append((room, path))
    return found


def circles(sources: dict[str, str]) -> set[str]:
    """The modules that import each other in a circle, or stand between two circles; by dotted name.

    An import counts wherever it stands: inside a function, or for type checkers only, it ties the readers of one
    module to the other just the same.
    """
    edges = {name: set(_imported(source, set(sources))) for name, source in sources.items()}
    while True:
        imported = set[str]().union(*edges.values())
        rest = {name for name, others in edges.items() if others and name in imported}
        if len(rest) == len(edges):
            return rest
        edges = {name: edges[name] & rest for name in rest}


def _imported(source: str, modules: set[str]) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            names = [(f"{node.module}.{alias.name}", node.module or "") for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [(alias.name, "") for alias in node.names]
        else:
            continue
        for module, package in names:
            if module in modules or package in modules:
                yield module if module in modules else package


@pytest.mark.parametrize(
    ("room", "path"), modules(), ids=lambda value: value.stem if isinstance(value, Path) else value
)
def test_a_room_imports_only_the_rooms_before_it(room: str, path: Path) -> None:
    """Imports point one way, so that each room can be read, tested and replaced without those above it."""
    assert violations(room, path.read_text(encoding="utf-8")) == []


def test_two_maps_name_every_room_in_this_order() -> None:
    """The comment that the package begins with, a newcomer's first minute, and the table of the design."""
    root = (PACKAGE / "__init__.py").read_text(encoding="utf-8")
    assert re.findall(r"^#   (\w+) ", root, re.M) == ROOMS
    design = (PACKAGE.parent.parent / "docs/design.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)(?:/|\.py)` \|", design, re.M)) == {*ROOMS}


def test_the_rule_sees_an_import_that_points_the_wrong_way() -> None:
    """Negative control: the checker fails where it should, also inside a function."""
    assert violations("llm", "def f():\n    from repertory.agents import Agent\n") == ["agents"]
    assert violations("context", "import repertory.actors\n") == ["actors"]
    assert violations("agents", "from repertory import context\n") == []


@pytest.mark.parametrize("room", [room for room in ROOMS if (PACKAGE / room).is_dir()])
def test_no_module_of_a_room_imports_another_in_a_circle(room: str) -> None:
    """A file that needs one that needs it cannot be read alone, whatever hides the import."""
    sources = {}
    for path in (PACKAGE / room).rglob("*.py"):
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        sources[name.removesuffix(".__init__")] = path.read_text(encoding="utf-8")
    assert circles(sources) == set()


def test_a_hidden_circle_is_seen() -> None:
    """Negative control: through a third module, for type checkers only, inside a function, through the package."""
    first = "from r.second import B\n"
    second = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from r import third\n"
    third = "def f():\n    import r.first\n"
    alone = {"r.top": "from r.first import A\n", "r.bottom": ""}
    ring = {"r.first": first, "r.second": second, "r.third": third}
    assert circles({**ring, **alone}) == set(ring)
    assert circles({**ring, **alone, "r.third": "import r.bottom\n"}) == set()
    assert circles({"r": "from r.part import A\n", "r.part": "from r import B\n"}) == {"r", "r.part"}
