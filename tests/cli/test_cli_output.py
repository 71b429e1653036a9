"""What leaves the process: nothing that steers a terminal, and one exit code for each kind of trouble."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from cli_support import EVIL, EVIL_SHOWN
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from patience import PATIENCE
from repertory import errors
from repertory.cli import output
from repertory.cli.output import status_line


def test_escape_sequences_become_visible_and_harmless() -> None:
    """Golden: the clipboard, the screen, a C1 colour, bidi marks and a null are all spelled out."""
    assert output.clean(EVIL) == EVIL_SHOWN


def test_the_page_names_the_same_characters() -> None:
    """All but control characters and halves of pairs, which do nothing in a browser."""
    script = files("repertory.service").joinpath("page/dom.js").read_text(encoding="utf-8")
    (named,) = re.findall(r"replace\((\[.*\])/gu", script.replace("(/[", "(["))
    pattern = re.compile(re.sub(r"\\u\{(\w+)\}", lambda found: f"\\U{found[1]:0>8}", named))
    characters = [chr(code) for code in range(0xA0, sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    assert [c for c in characters if pattern.match(c)] == [c for c in characters if output.clean(c) != c]


FULL = """
from resource import RLIMIT_FSIZE, getrlimit, setrlimit
from repertory.cli import output
_, most = getrlimit(RLIMIT_FSIZE)
setrlimit(RLIMIT_FSIZE, (0, most))
output.say("while it is full")
setrlimit(RLIMIT_FSIZE, (most, most))
output.say("with room again")
"""


def test_a_log_on_a_full_disk_goes_on_once_there_is_room(tmp_path: Path) -> None:
    """A service writes for weeks to the file that its shell opened: no moment without room may silence it for good."""
    log = tmp_path / "log"
    with log.open("w") as file:
        subprocess.run([sys.executable, "-c", FULL], stderr=file, timeout=PATIENCE, check=True)
    assert log.read_text().endswith("repertory: with room again\n")


def test_line_breaks_and_tabs_stay() -> None:
    """Text keeps its form; Windows line ends become plain ones, a lone carriage return cannot overwrite a line."""
    assert output.clean("a\r\n\tb\rc") == "a\n\tb\\rc"
    assert output.one_line("a\n\n\tb  c") == "a b c"


def test_one_line_is_cut_to_its_width() -> None:
    """A cut is marked, and a line that fits is left alone."""
    assert output.one_line("abcdef", 4) == "abc…"
    assert output.one_line("abcd", 4) == "abcd"


@given(st.text(st.characters(codec=None, exclude_categories=())))
def test_no_text_at_all_gets_a_control_character_through(text: str) -> None:
    """Whatever a model writes, the terminal sees printable characters, line breaks and tabs, and can encode them."""
    shown = output.clean(text)
    assert not any(ord(char) < 32 and char not in "\n\t" for char in shown)
    assert not any(0x7F <= ord(char) < 0xA0 or 0xD800 <= ord(char) < 0xE000 for char in shown)
    assert not set(shown) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c")
    shown.encode("utf-8")


def _all_errors(kind: type[errors.RepertoryError]) -> list[type[errors.RepertoryError]]:
    return [kind, *(found for below in kind.__subclasses__() for found in _all_errors(below))]


@pytest.mark.parametrize("kind", _all_errors(errors.RepertoryError), ids=lambda kind: kind.__name__)
def test_every_error_has_an_exit_code(kind: type[errors.RepertoryError]) -> None:
    """No error of the tree ends as success."""
    arguments: dict[type[errors.RepertoryError], tuple[Any, ...]] = {
        output.Interrupted: ("x", 130),
        errors.DefinitionError: ("a.md", "x"),
    }
    named = {"retry_after": 1.0} if kind is errors.QueueFull else {}
    error = kind(*arguments.get(kind, ("x",)), **named)
    assert output.exit_code_of(error) in {1, 2, 4, 75, 78, 130}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.RunNotFound("x"), 4),
        (errors.ConfigurationError("x"), 2),
        (errors.JournalLocked("x"), 75),
        (errors.JournalUnreadable("x"), 78),
        (errors.JournalSchemaTooNew("x"), 78),
        (errors.JournalWriteFailed("x"), 1),  # the disk may have room again: systemd restarts the service
        (errors.RunFailed("x"), 1),
        (errors.UnknownModel("x"), 1),
    ],
)
def test_exit_codes_are_as_documented(error: errors.RepertoryError, code: int) -> None:
    """The numbers that scripts rely on."""
    assert output.exit_code_of(error) == code


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (output.tokens(950), "950"),
        (output.tokens(12_345), "12.3k"),
        (output.tokens(999_960), "1.00M"),
        (output.dollars(0.01234), "$0.0123"),
        (output.dollars(1234.5), "$1,234.50"),
        (output.duration(-1), "0s"),
        (output.duration(59), "59s"),
        (output.duration(7300), "2h"),
        (output.duration(200_000), "2d"),
        (output.ratio(100, 320), "3.2 times less"),
        (output.ratio(200, 100), "2.0 times more"),
        (output.ratio(100, 130), "23.1% less"),
        (output.ratio(104.3, 100), "4.3% more"),
        (output.ratio(149, 100), "49.0% more"),
        (output.ratio(100, 101), "1.0% less"),
        (output.ratio(10_000, 10_001), "the same"),
        (output.ratio(100, 100), "the same"),
        (output.cost(0.0, 900), "unknown"),
        (output.cost(0.0, 0), "$0.0000"),
        (output.cost(0.25, 900), "$0.2500"),
        (output.ratio(0, 100), "–"),
    ],
)
def test_figures_read_well(shown: str, expected: str) -> None:
    """Units are short and say what they mean."""
    assert shown == expected


def test_a_line_of_progress_is_gone_before_an_error_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its rest would stand behind what went wrong."""
    ours, theirs = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    with os.fdopen(theirs, "w") as terminal, pytest.raises(OSError, match="full"):
        monkeypatch.setattr(sys, "stderr", terminal)
        with status_line() as show:
            show("copied a half")
            raise OSError("full")
    seen, expected = "", f"{'copied a half':<39}\r{'':<39}\r"
    while len(seen) < len(expected):
        seen += os.read(ours, 1000).decode()
    assert seen == expected
    os.close(ours)


def test_a_cell_of_a_table_keeps_its_colour() -> None:
    """Also one that is cut."""
    screen = Console(file=(written := io.StringIO()), width=12, force_terminal=True, color_system="standard")
    output.show(screen, output.Columns((">N", "STATE"), [("7", Text("interrupted", style="red"))]))
    assert written.getvalue().splitlines()[1] == "7  \x1b[31minterrup…\x1b[0m"


def test_only_the_last_column_of_a_table_gives_way() -> None:
    """It is cut where there is little room, and left out where there is too little; so are others then."""
    rows = [("run-01m8", "12,345", "a task of several words")]
    for width, shown in (
        (80, "run-01m8  12,345  a task of several words"),
        (30, "run-01m8  12,345  a task of s…"),
        (24, "run-01m8  12,345"),
        (15, "run-01m8"),
    ):
        written = io.StringIO()
        screen = Console(file=written, width=width)
        output.show(screen, output.Columns(("RUN", ">TOKENS", "TASK"), rows))
        assert written.getvalue().splitlines()[1] == shown
