"""The offline model's tables: which facts a question asks for, how a sentence says them, which rows are shown."""

from __future__ import annotations

import pytest

from repertory.offline.facts import by_place, columns, table, telling, topic
from repertory.offline.parts import split
from repertory.offline.quoting import messages, quotable

QUESTION = "What is deprecated in alpha, since when, when is it removed, and what takes its place?"


@pytest.mark.parametrize(
    ("question", "heads"),
    [
        (QUESTION, ["since", "removed", "instead"]),
        ("Which settings are obsolete, and what should be used instead?", ["instead"]),
        ("How does a lock wake a waiting task?", []),
        ("What has been slow since the last release?", []),
    ],
)
def test_the_columns_are_what_is_asked_for(question: str, heads: list[str]) -> None:
    """A question that asks for no such fact gets no table."""
    assert columns(question) == heads


def test_a_question_about_places_is_asked_of_each() -> None:
    """Places are what stands behind "in"; a clause that follows is none."""
    assert by_place("What is old in a.b, in cd and in ef, since when?") == [
        "What is old in a.b, since when?",
        "What is old in cd, since when?",
        "What is old in ef, since when?",
    ]
    assert by_place("What is old in alpha, and what takes its place?") == []
    assert split(QUESTION) == [QUESTION]  # and is not cut into its clauses
    assert (found := topic(QUESTION)) is not None
    assert found.word == "deprecated"


@pytest.mark.parametrize(
    ("said", "row"),
    [
        ("old() is deprecated since Python 3.4 in favor of new.thing()", "| old | 3.4 | – | new.thing() |"),
        ("old is deprecated and slated for removal in Python 3.12; use new() instead", "| old | – | 3.12 | new() |"),
        ("`K.old`: This method is deprecated, use the name attribute instead.", "| K.old | – | – | name attribute |"),
        ("This module is deprecated since version 2.", "| a/b.py | 2 | – | – |"),
        ("The 'warn' method is deprecated, use the 'warning' method instead", "| warn | – | – | warning method |"),
    ],
)
def test_facts_are_quoted_from_the_sentence(said: str, row: str) -> None:
    """Who is deprecated, since when, until when and what instead; where it is not said, the cell is empty."""
    lines = telling([f"{said} (a/b.py:7)"], QUESTION, limit=9)
    assert table(lines, columns(QUESTION)).splitlines()[2] == f"{row} a/b.py:7 |"


def test_what_says_no_fact_or_is_about_something_else_is_no_row() -> None:
    """Half a sentence of code, a name that the program fills in, and another topic are left out."""
    lines = [
        "old() is deprecated (a.py:1)",
        '"is deprecated, use new() instead" (a.py:2)',
        "Deprecated: use {name} instead (a.py:3)",
        "Use new() instead of doing it by hand (a.py:4)",
    ]
    assert telling(lines, QUESTION, limit=9) == []
    assert table([], columns(QUESTION)) == ""


def test_of_two_lines_about_the_same_the_fuller_is_shown() -> None:
    """And a bare name gives way to the same name with its class."""
    lines = [
        "C.old() is deprecated, use new() instead (a.py:1)",
        "C.old() is deprecated since 3.1, use new() instead (a.py:2)",
        "old() is deprecated, use new() instead (a.py:3)",
    ]
    rows = table(lines, columns(QUESTION)).splitlines()[2:]
    assert rows == ["| C.old | 3.1 | – | new() | a.py:2 |"]


def test_no_place_crowds_out_another() -> None:
    """Where there are too many rows, each place keeps those that say most, and the rest are counted."""
    many = [f"name{number} is deprecated since 3.{number}, use x instead (a.py:{number})" for number in range(40)]
    shown = table([*many, "only is deprecated, use y instead (b.py:1)"], columns(QUESTION))
    assert "| only | – | – | y | b.py:1 |" in shown
    assert shown.endswith("\n21 more say less.")


def test_sentences_that_code_says_are_read_whole() -> None:
    """A string that goes on over lines is one sentence; one that points gets the name of what it stands in."""
    code = [
        "class Old:",
        "    def load(self):",
        '        warnings.warn("Old.load() is deprecated since Python "',
        '                      "3.4 and slated for removal in 3.12",',
        "                      DeprecationWarning)",
        "        raise ValueError('Use something newer than this here')",
        '        name = "x"',
    ]
    assert list(messages("m.py", list(enumerate(code, 1)))) == [
        "Old.load() is deprecated since Python 3.4 and slated for removal in 3.12 (m.py:3)",
        "`Old.load`: Use something newer than this here (m.py:6)",
    ]
    documented = ["def old():", '    """Do it.', "", "    This function is deprecated.", '    """']
    assert "`old`: This function is deprecated. (m.py:4)" in list(quotable("m.py", enumerate(documented, 1)))
