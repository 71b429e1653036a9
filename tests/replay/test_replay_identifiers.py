"""Tokenizers on what results really hold: long runs of base64, of hexadecimal digits, of marks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from replay_stories import write

from patience import PATIENCE
from repertory.replay.words import paths

PLAIN_PATH = re.compile(r"(?:[\w.\-@~]*/)+[\w.\-@]+")  # what a path is; it takes the square of the time

UNBROKEN = """
from repertory.replay.bare_names import BareNames
from repertory.replay.words import TOKENIZERS
from repertory.replay.words import lines_of
units = ["a1B_-", "A", "a1", "/", "/a", "~/", "~", ".", "a.", "-", "_", "1", '"', '"ab', "http", "https://",
         "12345678-1234-", "a1b2c3d4-", "\\u00e9", "@", ":", "a(", "AA", "t ", "a-", "1-"]
for unit in units:
    for end in ("", " ", "z", "-", "~"):
        text = unit * (100_000 // len(unit)) + end
        for tokenize in TOKENIZERS.values():
            tokenize(text)
        lines_of(text)
        BareNames([], ["t"]).count(text)
print("read", len(units))
"""


def test_a_text_without_a_space_is_read_in_one_go() -> None:
    """Where a pattern looks again from each character, one of these texts takes minutes, and the process is ended."""
    done = subprocess.run(
        [sys.executable, "-c", UNBROKEN], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (done.stdout, done.stderr) == ("read 26\n", "")


@given(st.text(alphabet="ab1/~.-@ :é\n", max_size=60))
def test_a_path_is_what_the_plain_pattern_finds(text: str) -> None:
    """Read run by run, or searched from every character: the same paths."""
    plain = {path.rstrip("./-:@") for path in PLAIN_PATH.findall(text)}
    named = {path for path in plain if "/" in path[1:] and path[:2] != "//" and any(c.isalpha() for c in path)}
    assert paths(text) == {path for path in named if len(path) >= 5}


def test_a_result_of_three_megabytes_is_played(tmp_path: Path) -> None:
    """The whole command, not the patterns alone: reading, planning, billing and looking for what was needed."""
    messages = [
        {"role": "user", "content": "Fetch it."},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "fetch", "input": {}}]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "c", "content": "aB3_-x9Q" * 375_000 + " key_777"}],
        },
        {"role": "assistant", "content": "It says key_777."},
    ]
    path = write(tmp_path / "blob.json", messages)
    done = subprocess.run(
        [sys.executable, "-m", "repertory", "replay", str(path)], capture_output=True, timeout=PATIENCE, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
