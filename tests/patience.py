"""How tests wait for what has to come."""

from typing import IO

PATIENCE = 280.0
"""Seconds. It only turns a hang into a failure: six processes of tests on one core have taken half as long, and a test
that waits twice still ends before the suite's own limit, which ends everything."""


def hear(stream: IO[str] | None, words: str) -> str:
    """Read what a process writes up to a line with these words; fails where it ends before."""
    assert stream is not None
    heard: list[str] = []
    for line in iter(stream.readline, ""):
        heard.append(line)
        if words in line:
            return line
    raise AssertionError(f"no {words!r} in {heard}")
