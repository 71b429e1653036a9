"""Every example runs as it is, with nothing but the public names, no key and no network."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from offline_environment import offline_environment
from pages import blocks_of
from patience import PATIENCE

EXAMPLES = Path(__file__).parent.parent / "examples"
PAGES = [EXAMPLES.parent / "README.md", *sorted(EXAMPLES.parent.glob("docs/*.md"))]
LONGEST = 60
# Programs that people write every day: so many lines of code, without blank ones, comments and docstrings.
EVERYDAY = ["approval", "budget_and_stream", "chat", "custom_compactor", "images", "long_lived"]
EVERYDAY += ["mcp_client", "mcp_server", "team_after_a_crash", "traces"]
LONGEST_EVERYDAY = 30
LONGEST_COMPANY = 130  # a whole team with its tools, types and policies

# What each example must print, whatever else it says.
EXPECTED = {
    "approval": ["may it? refund {'order': 'A7', 'euros': 90}", "They get 40 euros back."],
    "budget_and_stream": ["I hold the cheap one.", "Lund: 19.00 euros"],
    "chat": ["At 06:12.", "'At 09:40.'", "Lagos."],
    "coding_agent": ["edit_file {'path': 'prices.py'", "It adds the tax now."],
    "custom_compactor": ["1 receipt whole, 4 totals"],
    "images": ["The second bar is the highest.", "a result of 1,6"],
    "long_lived": ["order-0: done at call 1", "order-1: done at call 2"],
    "mcp_client": ["Tuesday: dal with rice, 4.80 euros"],
    "mcp_server": [],
    "memory_scopes": ["isolated begins with 0 items", "snapshot begins with 1 item", "the lead ends with 2 items"],
    "messages_server": ["day 399: 3 ships", "2 requests"],
    "own_loop": ["tokens on record", "Twenty days, no accident."],
    "policies_compared": ["plain loop", "thrifty", "strict"],
    "research_company": ["**What the check says**", "fact_checker: ", " sources, ", "prompt tokens instead of"],
    "resume_after_a_crash": ["ended with -9", "[interrupted; effect unknown]", "book: R2 is booked"],
    "review_company": ["not approved", "accounts.py:6: high", "bugs: 1 taken, 0 in conflict", "  both are kept: "],
    "scripted_model": ["both hold"],
    "team_after_a_crash": ["ended with -9", "bay: 3 metres", "pier: 4 metres", "(3 runs)"],
    "traces": ["execute_tool search_dictionary: ", "invoke_agent librarian: ", "the rise and fall of the sea"],
    "typed_result": ["Tuesday, 4.80 euros: On Tuesday there is dal"],
    "watching": ["paused", "measure: ok", "done: Harbour"],
}


def run_example(path: Path, folder: Path, *, backend: str = "trio") -> subprocess.CompletedProcess[str]:
    """Run a program in a folder of its own, warnings as errors."""
    return subprocess.run(
        [sys.executable, "-W", "error", str(path)],
        cwd=folder,
        env={**offline_environment(folder), "REPERTORY_BACKEND": backend},
        input="y\n",  # for one that asks
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def private_names(source: str) -> list[str]:
    """What a program takes from the package that is no part of its public surface; all errors are."""
    found = []
    for module, name in _taken(source):
        if module != "repertory.errors" and name not in getattr(import_module(module), "__all__", ()):
            found.append(f"{module}.{name}")
    return found


def _taken(source: str) -> Iterator[tuple[str, str]]:
    """Every (module, name) that a program imports from the package, or reaches through a name of it."""
    tree = ast.parse(source)
    aliases = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "repertory":
                    aliases[alias.asname or alias.name] = alias.name
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "repertory":
            for alias in node.names:
                yield node.module or "", alias.name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in aliases:
            yield aliases[node.value.id], node.attr
        elif isinstance(node, ast.Attribute) and re.match("_[^_]", node.attr) and ast.unparse(node) != "os._exit":
            yield "repertory", node.attr


@pytest.fixture(scope="module")
def outputs() -> dict[str, str]:
    """What the examples have printed, once they were run, for tests that look closer."""
    return {}


@pytest.mark.parametrize(
    ("name", "backend"),
    [  # by turns on one backend; on the other at night
        pytest.param(name, backend, marks=[] if number % 2 == turn else pytest.mark.nightly)
        for number, name in enumerate(sorted(EXPECTED))
        for turn, backend in enumerate(["trio", "asyncio"])
    ],
)
def test_an_example_runs_and_prints_what_it_promises(
    name: str, backend: str, outputs: dict[str, str], tmp_path: Path
) -> None:
    """Examples are the first thing that people copy, so each runs as it is, in silence but for its answer."""
    finished = run_example(EXAMPLES / f"{name}.py", tmp_path, backend=backend)
    assert (finished.returncode, finished.stderr) == (0, "")
    outputs[name] = finished.stdout
    missing = [words for words in EXPECTED[name] if words not in finished.stdout]
    assert missing == [], finished.stdout


def test_every_example_is_run() -> None:
    """No example is forgotten, and none is listed that is gone."""
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(EXPECTED)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_is_short_and_uses_public_names_only(path: Path) -> None:
    """What an example shows must still be there in the next version."""
    source = path.read_text(encoding="utf-8")
    assert private_names(source) == []
    assert len(source.splitlines()) <= (LONGEST_COMPANY if path.stem.endswith("_company") else LONGEST)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_uses_public_names_only(path: Path) -> None:
    """What people copy from a page must still be there in the next version, too."""
    blocks = [block for block in blocks_of(path.read_text(encoding="utf-8")) if block.language == "python"]
    assert [name for block in blocks for name in private_names(block.source)] == []


def code_lines(source: str) -> int:
    """Lines that are neither blank, nor a comment, nor of a docstring."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    said = set[int]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            said.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines = enumerate(map(str.strip, source.splitlines()), 1)
    return sum(bool(line) and not line.startswith("#") and number not in said for number, line in lines)


@pytest.mark.parametrize("name", EVERYDAY)
def test_an_everyday_program_has_at_most_thirty_lines_of_code(name: str) -> None:
    """What people do first takes no page of plumbing."""
    assert code_lines((EXAMPLES / f"{name}.py").read_text(encoding="utf-8")) <= LONGEST_EVERYDAY


def test_lines_of_code_are_counted() -> None:
    """Negative control: text in an expression counts, a docstring does not."""
    assert code_lines('"""Said.\n\nMore."""\n\n# a\nx = """b\nc"""\n\ndef f():\n    """Said."""\n    return 1\n') == 4


def test_editing_what_the_model_sees_makes_the_prompts_smaller(outputs: dict[str, str], tmp_path: Path) -> None:
    """The comparison of policies compares something: both edited runs show their models less than the plain one."""
    name = "policies_compared"
    printed = outputs.get(name) or run_example(EXAMPLES / f"{name}.py", tmp_path).stdout
    lines = printed.splitlines()[1:]
    tokens = {line[:12].strip(): int(line[12:].split()[1].replace(",", "")) for line in lines}
    assert tokens["thrifty"] < tokens["plain loop"]
    assert tokens["strict"] < tokens["plain loop"]


def test_a_private_name_is_found() -> None:
    """Negative control: each way to reach behind the public surface is seen."""
    assert private_names("from repertory.loop.loop import Loop\n") == ["repertory.loop.loop.Loop"]
    assert private_names("import repertory as rp\nrp.Planner\n") == ["repertory.Planner"]
    assert private_names("supervisor._live\n") == ["repertory._live"]
    assert private_names("import repertory as rp\nrp.Agent\nself.name\n") == []


def test_an_example_that_warns_or_fails_is_found(tmp_path: Path) -> None:
    """Negative control: neither a warning nor an error can hide."""
    program = tmp_path / "program.py"
    program.write_text("import warnings\nwarnings.warn('old')\n", encoding="utf-8")
    assert run_example(program, tmp_path).returncode == 1
