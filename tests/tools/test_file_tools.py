"""Listing, searching and viewing files: formats that can be relied on, and bounds that hold."""

from __future__ import annotations

import os
import re
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from patience import PATIENCE
from repertory.errors import ToolRetry
from repertory.tools import Tool, call_tool, file_tools
from repertory.tools.files import PAGE
from repertory.tools.globs import match_glob
from repertory.tools.patterns import Matches, search_lines


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A small project."""
    files = {
        "README.md": "# Project\n\nIt walks.\n",
        "src/walk.py": "def walk():\n    return 'walk'\n\n\ndef run():\n    walk()\n    walk()\n",
        "src/deep/more.py": "import walk\n",
        "tests/test_walk.py": "def test_walk():\n    assert True\n",
        "empty.txt": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "logo.png").write_bytes(b"\x89PNG\0walk")
    (tmp_path / "latin.txt").write_bytes("sch\xf6n walk\r\nzwei\r\n".encode("latin-1"))
    (tmp_path / "run.db").write_bytes(b"walk")
    return tmp_path


def tools_of(root: Path) -> dict[str, Tool]:
    """The file tools by name."""
    return {tool.name: tool for tool in file_tools(root, search_timeout=PATIENCE)}


async def answer(root: Path, name: str, **arguments: object) -> str:
    """What a file tool says."""
    return (await call_tool(tools_of(root)[name], arguments)).text


def test_all_of_them_only_read(root: Path) -> None:
    """They may be run again after a crash, and are never answered from before, as others may write meanwhile."""
    assert [(tool.name, tool.effect, tool.repeatable) for tool in file_tools(root)] == [
        ("list_files", "pure", False),
        ("search_files", "pure", False),
        ("view_file", "pure", False),
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            {},
            "8 files in .\nREADME.md\nempty.txt\nlatin.txt\nlogo.png\nrun.db\n"
            "src/deep/more.py\nsrc/walk.py\ntests/test_walk.py",
        ),
        ({"path": "src"}, "2 files in src\nsrc/deep/more.py\nsrc/walk.py"),
        ({"pattern": "*.py"}, "3 files in .\nsrc/deep/more.py\nsrc/walk.py\ntests/test_walk.py"),
        ({"pattern": "src/*.py"}, "1 file in .\nsrc/walk.py"),
        ({"path": "src", "pattern": "deep/**"}, "1 file in src\nsrc/deep/more.py"),
        ({"pattern": "*.rs"}, "0 files in ."),
        ({"path": "src/walk.py"}, "1 file in src/walk.py\nsrc/walk.py"),
        (
            {"limit": 2},
            "8 files in ., the first 2 shown; narrow path or pattern for the rest. "
            "Where they are: directly here 5, src/ 2, tests/ 1\nREADME.md\nempty.txt",
        ),
    ],
)
async def test_a_listing_is_one_path_a_line(root: Path, arguments: dict[str, object], said: str) -> None:
    """Sorted, with the total first; a limited one says where the rest is."""
    assert await answer(root, "list_files", **arguments) == said


SECRET_FILES = [
    *(".env", ".ENV", ".env.local", "deploy/prod.env", "server.pem", "tls/site.key", "keys/id_rsa", "id_ed25519.bak"),
    *(".netrc", ".npmrc", ".pypirc", ".git/config", ".ssh/config", ".aws/credentials", "home/.aws/sso/cache/x.json"),
    *(".git/modules/lib/config", ".git/worktrees/a/config.worktree"),
    *(".docker/config.json", "infra/main.tfvars", "terraform.tfstate", ".git-credentials", "service-token"),
]


@pytest.mark.parametrize("name", SECRET_FILES)
async def test_a_file_with_the_name_of_a_secret_is_listed_and_not_read(root: Path, name: str) -> None:
    """Neither viewed nor searched, by text or by pattern, unless it is allowed; then like any other."""
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text("TOKEN=canary-7d1f\n")
    path = name if not name.startswith(".git/") else ".git"
    if path == name:  # version control is left out of listings anyway
        assert name in (await answer(root, "list_files")).splitlines()
    refused = await call_tool(tools_of(root)["view_file"], {"path": name})
    assert refused.is_error
    assert "is by its name a place for secrets" in refused.text
    for regex in (False, True):
        found = await answer(root, "search_files", pattern="canary", path=path, regex=regex)
        assert found == "0 matches in 0 files (left out: 1 with the name of a secret)"
    allowing = {tool.name: tool for tool in file_tools(root, allow=[name])}
    assert "canary" in (await call_tool(allowing["view_file"], {"path": name})).text
    assert "1 match" in (await call_tool(allowing["search_files"], {"pattern": "canary", "path": path})).text
    denying = {tool.name: tool for tool in file_tools(root, allow=[name], deny=[name])}
    assert (await call_tool(denying["view_file"], {"path": name})).is_error


@pytest.mark.parametrize("name", [".env.example", "id_rsa.pub", "environment.py", "keyboard.md", "config.json"])
async def test_what_only_looks_like_a_secret_is_read(root: Path, name: str) -> None:
    """Examples, public keys and names that happen to begin alike."""
    (root / name).write_text("harmless\n")
    assert "harmless" in await answer(root, "view_file", path=name)
    assert name in await answer(root, "search_files", pattern="harmless")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            {"pattern": "walk()"},
            "4 matches in 2 files (left out: 1 binary, 1 databases or not files)\n"
            "src/walk.py:1: def walk():\nsrc/walk.py:6:     walk()\nsrc/walk.py:7:     walk()\n"
            "tests/test_walk.py:1: def test_walk():",
        ),
        (
            {"pattern": "WALK", "ignore_case": True, "glob": "*.{md,txt}", "path": "."},
            "2 matches in 2 files\nREADME.md:3: It walks.\nlatin.txt:1: sch�n walk",
        ),
        (
            {"pattern": "WALKS", "ignore_case": True, "glob": "*.md"},
            "1 match in 1 file\nREADME.md:3: It walks.",
        ),
        (
            {"pattern": "walk", "glob": "*.txt"},
            "1 match in 1 file\nlatin.txt:1: sch�n walk",
        ),
        (
            {"pattern": "def run", "path": "src", "context_lines": 1},
            "1 match in 1 file\nsrc/walk.py-4- \nsrc/walk.py:5: def run():\nsrc/walk.py-6-     walk()",
        ),
        (
            {"pattern": "def", "path": "src/walk.py", "context_lines": 1},
            "2 matches in 1 file\nsrc/walk.py:1: def walk():\nsrc/walk.py-2-     return 'walk'\n--\n"
            "src/walk.py-4- \nsrc/walk.py:5: def run():\nsrc/walk.py-6-     walk()",
        ),
        (
            {"pattern": "walk()", "path": "src", "context_lines": 2},
            "3 matches in 1 file\nsrc/walk.py:1: def walk():\nsrc/walk.py-2-     return 'walk'\nsrc/walk.py-3- \n"
            "src/walk.py-4- \nsrc/walk.py-5- def run():\nsrc/walk.py:6:     walk()\nsrc/walk.py:7:     walk()",
        ),
        (
            {"pattern": r"^\s+\w+\(\)$", "path": "src", "regex": True},
            "2 matches in 1 file\nsrc/walk.py:6:     walk()\nsrc/walk.py:7:     walk()",
        ),
        (
            {"pattern": "DEF [rt]", "regex": True, "ignore_case": True, "glob": "*.py"},
            "2 matches in 2 files\nsrc/walk.py:5: def run():\ntests/test_walk.py:1: def test_walk():",
        ),
        (
            {"pattern": "def", "limit": 1, "glob": "*.py"},
            "3 matches in 2 files, the first 1 shown; narrow the pattern, path or glob for the rest\n"
            "src/walk.py:1: def walk():",
        ),
        (
            {"pattern": "walk", "context_lines": 1, "limit": 2, "glob": "*.py", "path": "."},
            None,
        ),
    ],
)
async def test_a_search_is_path_line_text(root: Path, arguments: dict[str, object], said: str | None) -> None:
    """Grouped by file and in order, with totals first and what was left out; context lines are marked otherwise."""
    got = await answer(root, "search_files", **arguments)
    if said is not None:
        assert got == said
    for line in got.split("\n")[1:]:
        assert line == "--" or re.fullmatch(r"[^:]+?([:-])\d+\1 .*", line)


async def test_files_are_separated_where_context_is_shown(root: Path) -> None:
    """A line of two dashes stands between groups of different files too."""
    got = await answer(root, "search_files", pattern="import walk", context_lines=1)
    both = await answer(root, "search_files", pattern="True", context_lines=1)
    assert "--" not in got + both
    assert "\n--\n" in await answer(root, "search_files", pattern="walk", context_lines=1, glob="*.py")


async def test_plain_search_and_regular_expression_agree(root: Path) -> None:
    """A text without special characters is found in the same places both ways."""
    for word in ("walk", "def", "It", "nothing"):
        plain = await answer(root, "search_files", pattern=word)
        assert await answer(root, "search_files", pattern=word, regex=True) == plain


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        ({"pattern": "a\nb"}, "must be within one line"),
        ({"pattern": "(", "regex": True}, "the pattern '(' is wrong: missing )"),
        ({"pattern": "[[a](", "regex": True}, "is wrong: missing )"),  # Python warns of it as well
        ({"pattern": "a{99999999999}", "regex": True}, "is wrong: the repetition number is too large"),
        ({"pattern": "x\ud800", "regex": True}, "characters that are not text"),
        ({"pattern": ""}, "length >= 1"),
        ({"pattern": "x", "path": "nothing"}, "there is no 'nothing'"),
        ({"pattern": "x", "path": "../x"}, "leads out of the folder"),
    ],
)
async def test_a_search_that_cannot_work_says_why(root: Path, arguments: dict[str, object], fact: str) -> None:
    """The model is told how to repair it."""
    assert fact in await answer(root, "search_files", **arguments)


def test_a_pattern_that_runs_away_is_stopped() -> None:
    """Nested repeats would hold the interpreter for hours; the process that runs them is killed."""
    with pytest.raises(ToolRetry, match=r"took longer than 0\.3 seconds"):
        search_lines("(a+)+$", ["a" * 40 + "b"], seconds=0.3)


def test_a_pattern_is_searched_line_by_line() -> None:
    """Offsets are of the first match of each line, or of every one; a pattern does not reach over a line's end."""
    found = search_lines(r"b\s*", ["ab\n\nbb", "", "é b"], seconds=0.02)  # the start of its process does not count
    assert found == (Matches(2, ((0, 1), (2, 0))), Matches(0, ()), Matches(1, ((0, 2),)))
    assert search_lines("b", ["ab\nbb"], every=True) == (Matches(3, ((0, 1), (1, 0), (1, 1))),)
    assert search_lines(r"a\sb", ["a\nb"]) == (Matches(0, ()),)


def test_a_pattern_that_fits_everywhere_is_counted_and_not_kept() -> None:
    """A text of nothing but ends of lines has a million places; the first 20,000 of them are told."""
    (found,) = search_lines("^", ["\n" * 50_000])
    assert (found.total, len(found.places), found.places[-1]) == (50_001, 20_000, (19_999, 0))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not keep a process to its memory")
def test_a_pattern_cannot_use_up_the_memory() -> None:
    """A group that repeats keeps its place at each character: of a file of one line that is two gigabytes."""
    with pytest.raises(ToolRetry, match="needs too much memory"):
        search_lines("((a)|(b))*c", ["ab" * 2_000_000], seconds=60)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
async def test_text_that_names_its_encoding_is_read_in_it(root: Path, encoding: str) -> None:
    """Windows writes UTF-16 with a mark at the beginning; what only begins with such a mark is binary."""
    mark = "" if encoding in ("utf-16", "utf-8-sig") else "\ufeff"
    (root / "notes.txt").write_bytes(f"{mark}schön 🦉\r\nzwei\r\n".encode(encoding))
    assert (
        await answer(root, "view_file", path="notes.txt")
        == "notes.txt (lines 1-2 of 2)\n     1\tschön 🦉\n     2\tzwei"
    )
    for regex in (False, True):
        found = await answer(root, "search_files", pattern="schön 🦉", regex=regex, path="notes.txt")
        assert found == "1 match in 1 file\nnotes.txt:1: schön 🦉"
    (root / "song.mp3").write_bytes(b"\xff\xfe\x00\xd8\x00\x00")
    assert "is a binary file" in await answer(root, "view_file", path="song.mp3")


async def test_long_lines_and_many_matches_stay_within_a_page(root: Path) -> None:
    """A line is shown around its match, and the answer has its bound whatever the limit."""
    (root / "long.txt").write_text("x" * 5_000 + "needle" + "y" * 5_000 + "\n")
    line = (await answer(root, "search_files", pattern="needle")).split("\n")[1]
    assert "needle" in line
    assert len(line) < 350
    assert line.startswith("long.txt:1: …")
    assert line.endswith("…")
    (root / "many.txt").write_text(("needle " * 100 + "\n") * 2_000)
    flood = await answer(root, "search_files", pattern="needle", limit=1_000)
    assert flood.startswith("2,001 matches in 2 files, the first ")
    assert len(flood) <= PAGE + 500


async def test_a_folder_cannot_forge_a_line_of_a_listing(tmp_path: Path) -> None:
    """Neither where it counts what is not shown, nor where it repeats what was asked for."""
    (tmp_path / "a\nb.txt").mkdir()
    for name in ("1", "2"):
        (tmp_path / "a\nb.txt" / name).touch()
    got = await answer(tmp_path, "list_files", limit=1)
    rest = "the first 1 shown; narrow path or pattern for the rest. Where they are: "
    assert got == f"2 files in ., {rest}a�b.txt/ 2\na�b.txt/1"
    got = await answer(tmp_path, "list_files", path="a\nb.txt", limit=1)
    assert got == f"2 files in a�b.txt, {rest}directly here 2\na�b.txt/1"


async def test_large_files_are_left_out_of_a_search_and_counted(root: Path) -> None:
    """What can be viewed is searched, such as a log of some megabytes."""
    (root / "huge.txt").write_bytes(b"needle\n" * 1_500_000)
    (root / "long.log").write_bytes(b"line\n" * 1_900_000 + b"needle\n")
    for regex in (False, True):
        got = await answer(root, "search_files", pattern="needle", regex=regex)
        head = "1 match in 1 file (left out: 1 binary, 1 databases or not files, 1 larger than 10 MB)"
        assert got == f"{head}\nlong.log:1900001: needle"


async def test_a_search_without_time_says_what_it_left_out(root: Path) -> None:
    """What is found is not passed off as all there is, and nobody waits until the rest is counted."""
    listing, search, _ = file_tools(root, search_timeout=0)
    for each, arguments, found in (
        (listing, {}, "0 files in ."),
        (search, {"pattern": "walk", "glob": "*.py"}, "0 matches in 0 files"),
    ):
        output = await call_tool(each, arguments)
        assert output.text == f"{found} (left out: 1 or more for lack of time: narrow the path)"
        assert output.facts["complete"] is False


async def test_many_files_go_to_the_pattern_in_batches(tmp_path: Path) -> None:
    """More text than one process is given is searched all the same, in order."""
    for number in range(6):
        (tmp_path / f"f{number}").write_text("x\n" * 900_000 + f"needle {number}\n")
    got = await answer(tmp_path, "search_files", pattern=r"needle \d", regex=True)
    assert got.split("\n") == [
        "6 matches in 6 files",
        *(f"f{number}:900001: needle {number}" for number in range(6)),
    ]


@pytest.mark.parametrize("regex", [False, True])
async def test_a_search_holds_one_file_at_a_time(tmp_path: Path, regex: bool) -> None:
    """A hundred large files with a match each would otherwise fill the memory, though little of them is shown."""

    async def peak() -> int:
        tracemalloc.start()
        try:
            assert "large/" in await answer(tmp_path, "search_files", pattern="needle", regex=regex, limit=1_000)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    (tmp_path / "large").mkdir()
    for number in range(2):
        (tmp_path / "large" / f"{number}").write_text("word\n" * 50_000 + "needle\n")
    few = await peak()
    for number in range(2, 12):
        (tmp_path / "large" / f"{number}").write_text("word\n" * 50_000 + "needle\n")
    assert await peak() < 2 * few


async def test_what_cannot_be_read_is_counted() -> None:
    """One file that the system refuses does not end a search."""
    thread = Path(f"/proc/{os.getpid()}/task/{os.getpid()}")  # others may end, and their folders with them
    got = await answer(thread, "search_files", pattern="x", glob="/mem")
    assert got == "0 matches in 0 files (left out: 1 unreadable files)"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"path": "README.md"}, "README.md (lines 1-3 of 3)\n     1\t# Project\n     2\t\n     3\tIt walks."),
        ({"path": "README.md", "start_line": 3}, "README.md (lines 3-3 of 3)\n     3\tIt walks."),
        (
            {"path": "src/walk.py", "start_line": 5, "end_line": 6},
            "src/walk.py (lines 5-6 of 7)\n     5\tdef run():\n     6\t    walk()",
        ),
        (
            {"path": "README.md", "end_line": 99},
            "README.md (lines 1-3 of 3)\n     1\t# Project\n     2\t\n     3\tIt walks.",
        ),
        ({"path": "empty.txt"}, "empty.txt (empty)"),
        ({"path": "latin.txt"}, "latin.txt (lines 1-2 of 2)\n     1\tsch�n walk\n     2\tzwei"),
    ],
)
async def test_a_view_is_numbered_lines(root: Path, arguments: dict[str, object], said: str) -> None:
    """A header with the range, then each line behind its number and a tab."""
    assert await answer(root, "view_file", **arguments) == said


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        ({"path": "logo.png"}, "is a binary file of 9 bytes, not text"),
        ({"path": "README.md", "start_line": 4}, "has 3 lines; start_line 4 is beyond them"),
        ({"path": "README.md", "start_line": 3, "end_line": 2}, "end_line 2 is before start_line 3"),
        ({"path": "README.md", "start_line": 0}, "`int` >= 1 - at `$.start_line`"),
        ({"path": "empty.txt", "start_line": 2}, "has 0 lines"),
        ({"path": "run.db"}, "is a database"),
        ({"path": "missing.md"}, "there is no 'missing.md'; list_files shows what there is"),
        ({"path": "src"}, "'src' is a folder; list_files shows what is in it"),
    ],
)
async def test_a_view_that_cannot_work_says_why(root: Path, arguments: dict[str, object], fact: str) -> None:
    """The model is told how to repair it."""
    assert fact in await answer(root, "view_file", **arguments)


async def test_a_long_file_is_viewed_page_by_page_without_a_gap(root: Path) -> None:
    """Each answer says where to go on, and following that shows every line once."""
    wanted = [f"line {number} " + "x" * (number % 90) for number in range(3_000)]
    (root / "long.txt").write_text("\n".join(wanted))
    seen: list[str] = []
    start: int | None = 1
    while start is not None:
        got = await answer(root, "view_file", path="long.txt", start_line=start)
        assert len(got) <= PAGE + 300
        seen += [line.split("\t", 1)[1] for line in got.split("\n") if "\t" in line]
        more = re.search(r"go on with start_line=(\d+)\]$", got)
        start = int(more[1]) if more else None
    assert seen == wanted


async def test_huge_lines_and_files_are_cut_and_said_to_be(root: Path) -> None:
    """One line of megabytes is no way to flood the view."""
    (root / "one.json").write_text("x" * 3_000_000)
    got = await answer(root, "view_file", path="one.json")
    assert got.endswith(" [… 2,998,000 more characters; start_line=1, end_line=1 shows more]")
    assert len(got) < 2_200
    got = await answer(root, "view_file", path="one.json", start_line=1, end_line=1)
    assert got.endswith(f"{'x' * PAGE} [… 2,970,000 more characters]")
    (root / "huge.txt").write_text("line\n" * 2_500_000)
    got = await answer(root, "view_file", path="huge.txt", start_line=1_999_999, end_line=2_000_000)
    head = got.split("\n")[0]
    assert head == "huge.txt (lines 1999999-2000000 of 2000000, and more that are too many to view)"
    told = "'huge.txt' has 2,000,000 lines, and more that are too many to view; start_line 2000001 is beyond them"
    assert told in await answer(root, "view_file", path="huge.txt", start_line=2_000_001)


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("*", "a/b/c.py", True),
        ("*.py", "a/b/c.py", True),
        ("c.py", "a/b/c.py", True),
        ("b", "a/b/c.py", False),
        ("*.py", "c.pyc", False),
        ("/c.py", "c.py", True),
        ("/c.py", "a/c.py", False),
        ("a/*", "a/c.py", True),
        ("a/*", "a/b/c.py", False),
        ("a/**", "a/b/c.py", True),
        ("a/", "a/b/c.py", True),
        ("a/**/c.py", "a/c.py", True),
        ("a/**/c.py", "a/x/y/c.py", True),
        ("**/b/*", "a/b/c.py", True),
        ("**", "a", True),
        ("./a/*.py", "a/c.py", True),
        ("[ab].py", "b.py", True),
        ("[!ab].py", "b.py", False),
        ("?.py", "bb.py", False),
        ("*.{py,pyi}", "a/b.pyi", True),
        ("*.{py,pyi}", "a/b.pyc", False),
        ("{src,lib/x}/**/*.{h,c{c,pp}}", "lib/x/y/z.cpp", True),
        ("{a,b}", "{a,b}", True),
        ("{a}", "{a}", True),
    ],
)
def test_globs_mean_what_models_expect(pattern: str, path: str, fits: bool) -> None:
    """Without a slash a pattern is about names anywhere, with one about the path."""
    assert match_glob(pattern, path.split("/")) is fits


def test_a_hostile_glob_costs_nothing() -> None:
    """Stars upon stars are matched without trying every way."""
    assert not match_glob("a*" * 300 + "b", ["a" * 250])
    assert not match_glob("**/" * 300 + "b", ["a"] * 60)
    assert not match_glob("{a,b}" * 200, ["a" * 200])


_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=200)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(_text)
def test_any_text_is_viewed_line_for_line(tmp_path: Path, text: str) -> None:
    """Only newlines end a line; a carriage return before one is not shown, a byte order mark neither."""
    (tmp_path / "f").write_bytes(text.encode())
    view = tools_of(tmp_path)["view_file"]
    lines = text.removeprefix("\ufeff").removesuffix("\n").split("\n") if text.removeprefix("\ufeff") else []
    shown = [line.split("\t", 1)[1] for line in view(path="f").text.split("\n")[1:]]
    assert shown == [line.removesuffix("\r") for line in lines]
