"""What the pages say is so: their Python runs and prints what they show, their commands exist, their links lead on."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import typer
from msgspec import Struct
from msgspec.structs import fields

import repertory
from offline_environment import offline_environment
from pages import END_OF_BLOCK, Block, blocks_of
from patience import PATIENCE
from repertory.cli.app import app
from repertory.context.policy import ContextPolicy
from repertory.shortening.rules import ResultRules

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "AGENTS.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
COMMAND = typer.main.get_command(app)


def names(path: Path) -> str:
    """A page's path from the root, as the id of a test."""
    return str(path.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    """The code blocks of a page."""
    return blocks_of(page.read_text(encoding="utf-8"))


def has_python(page: Path) -> bool:
    """Whether there is anything to run."""
    return any(block.language == "python" for block in blocks(page))


def run_page(page: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a page's Python in a folder of its own, with no key and warnings as errors."""
    return subprocess.run(
        [sys.executable, "-W", "error", str(Path(__file__).parent / "pages.py"), str(page)],
        cwd=folder,
        env=offline_environment(folder),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def is_like(shown: str, printed: str) -> bool:
    """Whether a page shows all that was printed; ``…`` stands for anything in a line, alone for any lines."""
    lines = [line.strip() for line in filter(str.strip, shown.splitlines())]
    pattern = "".join(
        r"(.*\n)*" if line == "…" else ".*".join(map(re.escape, line.split("…"))) + r"\n" for line in lines
    )
    real = "".join(f"{line.strip()}\n" for line in filter(str.strip, printed.splitlines()))
    return re.fullmatch(pattern, real) is not None


def commands(block: Block) -> list[list[str]]:
    """The command lines of a shell block, without comments; of a console only what stands behind a prompt."""
    lines = block.source.replace("\\\n", " ").splitlines()
    if block.language == "console":
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    found = [shlex.split(line, comments=True) for line in lines]
    return [words for words in found if words]


def check_command(words: list[str]) -> None:
    """Refuse a call of ``repertory`` or ``make`` that could not be made."""
    words = [word for word in words if not re.fullmatch(r"[A-Z_]+=.*", word)]
    words = words[: words.index("|")] if "|" in words else words
    if words[:1] == ["repertory"]:
        _check_repertory([word for word in words[1:] if word != "--debug"])
    elif words[:1] == ["make"]:
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        for target in words[1:]:
            assert "=" in target or re.search(rf"^{re.escape(target)}:", makefile, re.M), f"no target {target!r}"


def _check_repertory(words: list[str]) -> None:
    context = COMMAND.make_context("repertory", list(words), resilient_parsing=True)
    if not words or words[0].startswith("-"):
        assert set(words) <= {"--help", "-h", "--version"}
        return
    name, command, rest = COMMAND.resolve_command(context, list(words))  # type: ignore[attr-defined]
    if not {"-h", "--help"} & set(rest):
        command.make_context(name, rest, parent=context)


@pytest.mark.parametrize("page", [page for page in PAGES if has_python(page)], ids=names)
def test_the_python_of_a_page_runs_and_prints_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    """A page is a program that is read aloud: its blocks run in order, and shown output is the real one."""
    finished = run_page(page, tmp_path)
    assert (finished.returncode, finished.stderr) == (0, "")
    outputs = iter(finished.stdout.split(END_OF_BLOCK + "\n"))
    printed = ""
    for block in blocks(page):
        if block.language == "python":
            printed = next(outputs)
        elif block.language == "text" and block.follows:
            assert is_like(block.source, printed), f"line {block.line} is not what was printed:\n{printed}"


@pytest.mark.nightly
def test_the_python_of_the_pages_has_types(tmp_path: Path) -> None:
    """Who copies a program into a house that checks types strictly has nothing to mend."""
    pytest.importorskip("mypy")
    for page in filter(has_python, PAGES):
        joined = [""]  # a page is one program, unless one of its files or a second ``import repertory`` begins another
        for block in blocks(page):
            if block.title and block.language in ("python", "py"):
                (tmp_path / block.title).write_text(block.source, encoding="utf-8")
            elif block.language == "python":
                joined.extend([""] if block.source.startswith("import repertory") else [])
                joined[-1] += block.source + "\n\n"
        for number, source in enumerate(joined):
            (tmp_path / f"{page.stem}_{number}.py").write_text(source, encoding="utf-8")
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / ".cache"), str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_the_commands_of_a_page_exist(page: Path) -> None:
    """Nobody copies a command line that is refused for how it is written."""
    for block in blocks(page):
        if block.language in ("sh", "console"):
            for words in commands(block):
                check_command(words)


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_the_links_of_a_page_lead_to_files(page: Path) -> None:
    """Links between the files of this repository hold, on the site and in the repository."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.S)
    targets = [target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text)]
    here = [target for target in targets if target and "://" not in target and not target.startswith("mailto:")]
    assert [target for target in here if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", [ROOT / "AGENTS.md", ROOT / "CONTRIBUTING.md", ROOT / "docs/design.md"], ids=names)
def test_the_paths_that_a_page_names_exist(page: Path) -> None:
    """Maps of the code stay true when the code moves."""
    named = re.findall(
        r"`((?:src|docs|tests|examples|benchmarks|agents|actors|memory)/[\w./-]*)`", page.read_text("utf-8")
    )
    assert named
    assert [path for path in named if not any((base / path).exists() for base in (ROOT, ROOT / "src/repertory"))] == []


def test_every_page_is_in_the_navigation() -> None:
    """No page is left out of the site, and the site promises no page that is not there."""
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    named = set(re.findall(r"[\w/-]+\.md", navigation[navigation.index("nav:") : navigation.index("extensions:")]))
    assert named == {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}


def test_every_room_has_a_reference_page() -> None:
    """A new room cannot stay undocumented."""
    rooms = {path.parent.name for path in (ROOT / "src/repertory").glob("*/__init__.py")} - {"cli"}
    folder = ROOT / "docs/reference"
    assert {path.stem for path in folder.glob("*.md")} == rooms | {"index", "errors"}
    for room in rooms | {"errors"}:
        assert re.search(rf"^::: repertory\.{room}$", (folder / f"{room}.md").read_text("utf-8"), re.M), room


def test_the_reference_says_from_which_room_each_name_of_the_root_comes() -> None:
    """The first table of the reference lists every room, and every name of the root package once."""
    table = (ROOT / "docs/reference/index.md").read_text("utf-8")
    rows = re.findall(r"^\| \[`(\w+)`\]\(\1\.md\) \|(.*)\|$", table, re.M)
    said = {room: re.findall(r"`(\w+)`", names) for room, names in rows}
    assert said.keys() | {"index"} == {path.stem for path in (ROOT / "docs/reference").glob("*.md")}
    assert sorted(name for names in said.values() for name in names) == sorted(set(repertory.__all__) - {"__version__"})
    for room, names in said.items():
        assert all(hasattr(import_module(f"repertory.{room}"), name) for name in names), room


def test_a_name_that_a_module_shadows_has_an_entry_of_its_own() -> None:
    """The reference reads the source, where such a name is a module first; the function is named apart."""
    shadowed = [
        (path.parent.name, path.stem)
        for path in (ROOT / "src/repertory").glob("*/*.py")
        if path.stem in getattr(import_module(f"repertory.{path.parent.name}"), "__all__", ())
    ]
    for room, name in shadowed:
        page = (ROOT / f"docs/reference/{room}.md").read_text(encoding="utf-8")
        assert re.search(rf"^::: repertory\.{room}\.(\w+\.)?{name}$", page, re.M), f"{room}.{name}"


def test_a_page_that_lies_is_found(tmp_path: Path) -> None:
    """Negative control: a block that fails, output that differs, commands and options that are not there."""
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n\n```python\nprint(1)\n```\n\n```text\n2\n```\n\n```python\n1 / 0\n```\n", encoding="utf-8"
    )
    finished = run_page(page, tmp_path)
    assert finished.returncode == 1
    assert 'page.md", line 12' in finished.stderr
    assert not is_like("2", finished.stdout)
    assert is_like("a … c\n\n b\n…\nz", "a b c\nb\nx\n\ny\nz\n")
    for shown, printed in (("b\na", "a\nb"), ("a", "a\nb"), ("a…", "a\nb"), ("a\nb\nc", "a\nc")):
        assert not is_like(shown, printed)
    for line in ("repertory nothing", "repertory ps --nothing", "repertory run", "make nothing"):
        with pytest.raises(BaseException, match=r"."):
            check_command(line.split())
    check_command(["repertory", "run", "a task", "--db", "runs.db"])


@pytest.mark.parametrize(
    ("policy", "heads"), [(ContextPolicy, "| field | default |"), (ResultRules, "| field | last default |")]
)
def test_the_page_on_context_has_every_field_of_a_policy_with_its_default(policy: type[Struct], heads: str) -> None:
    """No field is missing, none is there that is not, and no default is another."""
    table = (ROOT / "docs/context.md").read_text(encoding="utf-8").partition(heads)[2].partition("\n\n")[0]
    said = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", table, re.M))
    defaults = {field.name: field.default for field in fields(policy)}
    if policy is ResultRules:
        del defaults["retrieval"]  # said of the agent as a whole
    assert said.keys() == defaults.keys()
    written = {name: value.strip("`").replace(",", "").replace('"', "") for name, value in said.items()}
    assert {name: value for name, value in written.items() if value not in (str(defaults[name]), "–")} == {}
