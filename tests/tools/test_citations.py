"""Citations are looked up for real."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from repertory.tools.citations import check_citations


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with two files in it, and one beside it."""
    folder = tmp_path / "root"
    (folder / "pkg").mkdir(parents=True)
    (folder / "a.py").write_text("def wait(timeout):\n    return lock.acquire(timeout=timeout)\n\n")
    (folder / "pkg" / "__init__.py").write_text("x = 1\n")
    (tmp_path / "secret.py").write_text("key = 1\n")
    return folder


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("It waits (a.py:1).", ""),
        ("It waits (a.py:1-2), see pkg/__init__.py:1", ""),
        ('It says "return lock.acquire(timeout=timeout)" (a.py:2)', ""),
        ("It says “def wait(timeout)… lock.acquire” (a.py:1–2)", ""),
        ("`wait`: waits. (a.py:3)", ""),
        ("It waits (a.py:9).", "the file has 3 lines"),
        ("It waits (a.py:0).", "the file has 3 lines"),
        ("It waits (b.py:1).", "no such file"),
        ("It waits (../secret.py:1).", "outside of the folder"),
        ("It waits (/etc/passwd:1).", "outside of the folder"),
        ('It says "return something else" (a.py:2)', "the quoted text is not there"),
        ('It says "return lock.acquire(timeout=timeout)" (a.py:1)', "the quoted text is not there"),
    ],
)
def test_a_citation_holds_or_says_why_not(answer: str, problem: str, root: Path) -> None:
    """File, line and quote must all be there; nothing outside of the folder counts."""
    found = check_citations(answer, root)
    assert found
    assert [citation.problem for citation in found if not citation.resolved] == ([problem] if problem else [])


def test_each_place_counts_once(root: Path) -> None:
    """An answer that repeats itself has no more citations for it."""
    assert len(check_citations("a.py:1, a.py:1\na.py:1 and a.py:2", root)) == 2


@pytest.mark.parametrize("text", ["at 12:30", "localhost:8080", "http://example.com:80/x", "x:y", "a.py:1:2", ""])
def test_what_is_no_citation_is_not_counted(text: str, root: Path) -> None:
    """Times, ports and addresses are left alone."""
    assert check_citations(text, root) == []


@pytest.mark.parametrize("piece", ["~", "+", ".", "a+", "a:", "“", '"', "`", ":1"])
def test_no_answer_keeps_the_search_busy(piece: str, root: Path) -> None:
    """A path is looked for once in a run of letters: from each letter again, it would not end within the test."""
    assert check_citations(piece * 300_000, root) == []


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("loop.py", "'loop.py' is a symbolic link, and links are not followed"),
        ("link.py", "'link.py' is a symbolic link, and links are not followed"),
        ("linked/__init__.py", "'linked' is a symbolic link, and links are not followed"),
        (".env", "'.env' is by its name a place for secrets and is not read; the user can allow it"),
        ("runs.db", "'runs.db' is a database, not text"),
        ("./pkg", "no such file"),
        ("queue.py", "'queue.py' is not a regular file"),
        (f"{'x' * 300}.py", "no such file"),
    ],
)
def test_a_file_that_is_not_read_is_a_problem_and_no_crash(path: str, problem: str, root: Path) -> None:
    """What the tools that look at files would not show is no proof, and is not opened for an answer's sake."""
    (root / "loop.py").symlink_to("loop.py")
    (root / "link.py").symlink_to("a.py")
    (root / "linked").symlink_to("pkg")
    (root / ".env").write_text("KEY=1\n")
    (root / "runs.db").write_text("1\n")
    os.mkfifo(root / "queue.py")
    assert _problem(f"{path}:1", root) == problem


def test_a_large_file_is_read_as_far_as_it_can_be_viewed(root: Path) -> None:
    """An answer that names a file without an end does not fill the memory."""
    with (root / "large.py").open("wb") as file:
        file.write(b"x = 1\n")
        file.truncate(1 << 36)  # takes no room on the disk
    assert _problem("large.py:1", root) == ""
    assert _problem("large.py:2", root) == "the file has more than 10,000,000 bytes, and is not looked at beyond these"


def test_lines_are_counted_as_they_are_shown(root: Path) -> None:
    """The number that an answer gives is the one that the tools gave it."""
    (root / "lines.py").write_bytes(b"\xef\xbb\xbfone\r\ntwo\rthree\r\n")
    assert _problem("lines.py:2", root) == ""
    assert _problem("lines.py:3", root) == "the file has 2 lines"


def test_a_folder_that_is_gone_is_a_problem_and_no_crash(root: Path) -> None:
    """An answer that cost an hour is shown all the same."""
    assert _problem("a.py:1", root / "gone") == "there is no such folder any more"


def _problem(answer: str, root: Path) -> str:
    (citation,) = check_citations(answer, root)
    return citation.problem
