"""Choosing lines: what counts as a name."""

from __future__ import annotations

import pytest

from repertory.context.lines import names_in


@pytest.mark.parametrize("row", [".", "-", "/", "~", ".-", "./", "1-", "-/", "~."])
def test_a_long_row_of_marks_is_read_through_once(row: str) -> None:
    """Rulers and progress dots: a pattern that tries every cut of them would not come to its end."""
    names_in(row * 20_000)


def test_paths_identifiers_and_long_numbers_are_names() -> None:
    """Words of prose are not; a path keeps its dots and its root."""
    line = "see ../lib/tides_7.py and ~/src/main.c or /etc/hosts: readAll failed 404 times at 12"
    assert names_in(line) == {"../lib/tides_7.py", "~/src/main.c", "/etc/hosts", "readAll", "404"}
