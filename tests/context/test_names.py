"""Names: which tokens of a text are worth keeping, and which of them when room is short."""

from __future__ import annotations

import pytest

from repertory.context.names import (
    LINE_NUMBER,
    MOST_SCANNED,
    TOKEN,
    best_names,
    clip,
    kind_of_name,
    names_in,
    trouble_lines,
)


@pytest.mark.parametrize(
    ("token", "kind"),
    [
        ("https://sea.example/x", "url"),
        ("src/app/main.py", "path"),
        ("404", "number"),
        ("1048576", "long_number"),
        ("9fceb02d", "hex"),
        ("os.path", "dotted"),
        ("connect_pool", "snake"),
        ("getUser", "camel"),
        ("utf16", "alnum"),
        ("built-in", "hyphen"),
        ("harbour", None),
        ("ab", None),
        ("x_" * 200, None),
    ],
)
def test_names_are_told_from_words(token: str, kind: str | None) -> None:
    """What looks made is a name; plain words, crumbs and monsters are not."""
    assert kind_of_name(token) == kind


def test_a_name_weighs_more_where_it_is_defined_or_fails() -> None:
    """A definition beats a mention, trouble lies between, and repetition counts."""
    found = names_in("def alpha_one(): pass\nuse alpha_two\nERROR in alpha_six\nplain words only")
    assert list(found) == ["alpha_one", "alpha_two", "alpha_six"]
    assert found["alpha_one"] > found["alpha_six"] > found["alpha_two"]
    assert names_in("use alpha_two twice: alpha_two")["alpha_two"] > found["alpha_two"]


def test_the_best_names_fit_the_room_and_keep_their_order() -> None:
    """Later ones win a tie, what stands elsewhere is not repeated, several texts count together."""
    texts = [" ".join(f"value_{n}" for n in range(10, 100)), "value_17 again"]
    chosen = best_names(texts, 40, without="value_99 is said already")
    assert len(" ".join(chosen)) <= 40
    assert "value_17" in chosen
    assert chosen == sorted(chosen, key=lambda name: int(name.split("_")[1]))
    assert "value_98" in chosen
    assert "value_99" not in chosen


def test_a_very_long_text_is_looked_at_from_both_ends() -> None:
    """The cost is bounded; beginning and end are what counts."""
    text = "first_name " + "x " * MOST_SCANNED + " middle_name " + "y " * MOST_SCANNED + "error: last_name"
    assert list(names_in(text)) == ["first_name", "last_name"]
    assert trouble_lines("ok\n" * MOST_SCANNED + "error: late\n") == ["error: late"]


def test_lines_of_trouble_are_the_first_and_the_last() -> None:
    """Of many, those at both ends, each once, each on one line."""
    text = "\n".join(f"error {n}" for n in range(9)) + "\nfine\nerror 8"
    assert trouble_lines(text, most=3) == ["error 0", "error 7", "error 8"]
    assert clip("a  b\nc" * 50, 10) == "a b ca b…"


@pytest.mark.parametrize(
    "row", ["/", ".", "-", "~", "@", ":", "/.", "a/", "a.", "a::", "A1", "é", " ", "\n", " \n", "1\n"]
)
def test_a_row_of_marks_is_passed_over_once(row: str) -> None:
    """A pattern that tried such a row at each of its characters would not come to an end here."""
    text = row * 1_000_000
    assert len(TOKEN.findall(text)) <= 1_000_000
    assert names_in(text[: MOST_SCANNED // 2] + "\n" + text) is not None
    assert LINE_NUMBER.sub("", text).count("1") <= text.count("1")
