"""A status line on a terminal that shows progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console

from repertory.cli import output
from repertory.cli.signals import drawn_on

REFRESH = 8  # times a second; more would not be noticed, and each redraw costs a millisecond


def has_picture(screen: Console) -> bool:
    """Whether the console can show a live display. FORCE_COLOR colours a pipe, but makes no terminal of it."""
    return screen.file.isatty() and not screen.is_dumb_terminal


@contextmanager
def status_line() -> Generator[Callable[[str], None]]:
    """Show a line that replaces itself, on standard error; nothing without a terminal."""
    screen = output.console(stderr=True)
    width = screen.width - 1
    if not has_picture(screen):
        yield lambda _: None
        return
    with drawn_on(screen.file.fileno()):
        try:
            yield lambda text: screen.print(f"{output.one_line(text, width):<{width}}", end="\r")
        finally:
            screen.print(" " * width, end="\r")


@contextmanager
def count_up(total: int, what: str) -> Generator[Callable[[], None]]:
    """Count on a status line how many of a total are done; the yielded function counts one."""
    with status_line() as show:
        done, shown_at = 0, 0.0

        def count() -> None:
            nonlocal done, shown_at
            done += 1
            if time.monotonic() - shown_at > 1 / REFRESH:
                shown_at = time.monotonic()
                show(f"{done:,} of {total:,} {what}")

        show(f"0 of {total:,} {what}")
        yield count
