"""What can be imported is what ``__all__`` says: all of it, documented, and nothing else by accident."""

from __future__ import annotations

import inspect
import pydoc
import re
import subprocess
import sys
import types
from importlib import import_module
from pathlib import Path

import pytest

import repertory
from patience import PATIENCE

PACKAGE = Path(repertory.__file__).parent
ROOMS = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
SURFACES = ["repertory", *(f"repertory.{room}" for room in ROOMS)]
LISTS = [
    *SURFACES,
    "repertory.llm.features",
    "repertory.llm.messages",
    "repertory.llm.model",
    "repertory.mcp.server",
    "repertory.runs.events",
    "repertory.runs.streaming",
    "repertory.testing.faults",
    "repertory.tools.context",
    "repertory.tools.media",
]  # modules that are public as they are
HEAVY = ["anthropic", "aiosqlite", "structlog", "typer", "rich", "starlette", "trio"]


def is_documented(value: object) -> bool:
    """Whether a public thing says what it is. Type aliases and constants cannot carry a docstring of their own."""
    if not (inspect.isclass(value) or inspect.isroutine(value)):
        return True
    return bool((value.__doc__ or "").strip())


def accidents(module: types.ModuleType) -> list[str]:
    """Public names in a module that its ``__all__`` does not list, submodules, errors and typing helpers apart."""
    listed = set(module.__all__)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and name not in listed
        and not isinstance(value, types.ModuleType)
        and getattr(value, "__module__", "") not in ("typing", "importlib", "__future__", "repertory.errors")
        and name not in ("TYPE_CHECKING", "annotations")
    ]


@pytest.mark.parametrize("surface", LISTS)
def test_every_listed_name_exists_once_and_in_order(surface: str) -> None:
    """``__all__`` is the list that people read, so it is complete, sorted and without repeats."""
    names = list(import_module(surface).__all__)
    missing = [name for name in names if not hasattr(import_module(surface), name)]
    assert missing == []
    assert len(names) == len(set(names))
    assert names == sorted(names, key=_sort_key)


def _sort_key(name: str) -> tuple[int, str]:
    """The order that the linter keeps: constants, then classes, then functions."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


@pytest.mark.parametrize("surface", LISTS)
def test_every_public_thing_has_a_docstring(surface: str) -> None:
    """The reference is made of docstrings, so none is missing."""
    module = import_module(surface)
    assert (module.__doc__ or "").strip()
    assert [name for name in module.__all__ if not is_documented(getattr(module, name))] == []


@pytest.mark.parametrize("surface", LISTS)
def test_help_can_be_shown_of_every_public_thing(surface: str) -> None:
    """``help()`` and editors evaluate annotations, so they name nothing that only type checkers know."""
    module = import_module(surface)
    for name in set(module.__all__) - {"__version__"}:
        assert pydoc.render_doc(getattr(module, name)), name


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_has_few_public_names(room: str) -> None:
    """A newcomer reads them all. What only other rooms of the package need is imported from where it is defined."""
    assert len(import_module(f"repertory.{room}").__all__) <= 20


@pytest.mark.parametrize("surface", SURFACES)
def test_nothing_else_is_exported(surface: str) -> None:
    """What is not listed is not there to be relied on."""
    module = import_module(surface)
    for name in module.__all__:
        getattr(module, name)  # what is imported late must not bring more names along
    assert accidents(module) == []


@pytest.mark.parametrize("surface", SURFACES)
def test_an_unknown_name_is_refused(surface: str) -> None:
    """Names that are imported late give the usual error, so that ``hasattr`` and typos behave."""
    with pytest.raises(AttributeError, match="nothing_of_this_name"):
        import_module(surface).nothing_of_this_name  # noqa: B018


def test_the_root_lists_what_it_says_about_types() -> None:
    """The names for type checkers and the names at run time are the same."""
    source = (PACKAGE / "__init__.py").read_text(encoding="utf-8")
    block = source[source.index("if TYPE_CHECKING:") : source.index("_HOMES = {")]
    typed = {name.strip(" ,()") for line in block.splitlines()[1:] for name in line.split("import")[-1].split(",")}
    assert {name for name in typed if name} == set(repertory.__all__) - {"__version__"}
    assert set(repertory.__all__) <= set(dir(repertory))


def test_importing_the_package_loads_nothing_heavy() -> None:
    """A program pays for what it uses: naming the package, or an agent, starts no SDK and no terminal library."""
    program = (
        "import sys, repertory\n"
        "early = set(sys.modules)\n"
        "repertory.Agent, repertory.tool, repertory.ContextPolicy, repertory.open_supervisor\n"
        f"print(sorted(set({HEAVY}) & early), sorted(set({HEAVY}) & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout.strip() == "[] []"


def test_rooms_are_there_without_being_imported_one_by_one() -> None:
    """``except repertory.errors.RunFailed`` works whatever was imported before it, and for type checkers too."""
    source = (PACKAGE / "__init__.py").read_text(encoding="utf-8")
    rooms = re.findall(r"^        (\w+) as \1,$", source, re.MULTILINE)
    used = {room for room in ROOMS if import_module(f"repertory.{room}").__all__} - {"cli", "torture"}
    assert {*rooms} == {"errors", *used}
    program = f"import repertory\nfor room in {rooms}: assert getattr(repertory, room).__doc__\n"
    subprocess.run([sys.executable, "-c", program], timeout=PATIENCE, check=True)


def test_the_checks_can_fail() -> None:
    """Negative control: an undocumented function, and a helper that was forgotten in a module, are found."""
    module = types.ModuleType("sample")
    module.__all__ = ["shown"]  # type: ignore[attr-defined]
    exec("def shown(): pass\ndef forgotten(): pass\n", vars(module))
    assert not is_documented(vars(module)["shown"])
    assert accidents(module) == ["forgotten"]
