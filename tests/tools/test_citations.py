"""Citations are looked up for real."""

from __future__ import annotations

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
        ("It waits (a.py:9).", "the file has 4 lines"),
        ("It waits (a.py:0).", "the file has 4 lines"),
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


def test_a_file_that_cannot_be_read_is_a_problem_and_no_crash(root: Path) -> None:
    """A link in a circle stands for whatever the operating system may refuse."""
    (root / "loop.py").symlink_to("loop.py")
    for path in ("loop.py", f"{'x' * 300}.py"):
        (citation,) = check_citations(f"{path}:1", root)
        assert not citation.resolved
