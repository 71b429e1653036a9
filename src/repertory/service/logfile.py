"""The log of a service: everything on standard error, including tracebacks and warnings of libraries.

Under systemd there is no file for it: journald keeps and rotates the output of a service.
"""

from __future__ import annotations

import logging
import os
import stat
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from repertory.errors import ConfigurationError

_STDERR: Final = 2
_TIME: Final = "%Y-%m-%d %H:%M:%S"


class LogFile:
    """The file that standard error goes to. It follows the file's name, so that any program may move the file away.

    Raises ``ConfigurationError`` if it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.reopen()

    def reopen(self) -> None:
        """Continue in the file that has the name now, or in a new one. Raises ``ConfigurationError``."""
        descriptor = open_log(self.path)
        _flush()
        os.dup2(descriptor, _STDERR)  # atomic: what another thread writes meanwhile is in one of the two files
        os.close(descriptor)

    def follow(self) -> None:
        """Reopen the file if it was moved or deleted; if that fails, keep the open one, as a full disk may recover."""
        try:
            there, ours = os.stat(self.path), os.fstat(_STDERR)
            moved = (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino)
        except FileNotFoundError:
            moved = True
        except OSError:
            moved = False
        if moved:
            try:
                self.reopen()
            except ConfigurationError as error:
                with suppress(OSError):
                    sys.stderr.write(f"repertory: {error}\n")


def open_log(path: Path) -> int:
    """Open a log file for appending. A new one, and a new folder for it, are this user's only.

    Raises ``ConfigurationError`` if that cannot be done.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigurationError(f"cannot write the log {path}: {error.strerror} ({error.filename})") from error


def _flush() -> None:
    """Write what is buffered for standard error; on a full disk it stays in the buffer, which ends nothing."""
    with suppress(OSError):
        sys.stderr.flush()


@contextmanager
def logging_to(path: Path | None) -> Generator[LogFile | None]:
    """Send standard error to a file until the end of the block; None leaves it where it is."""
    if path is None:
        yield None
        return
    _flush()
    before = os.dup(_STDERR)
    try:
        yield LogFile(path)
    finally:
        _flush()
        os.dup2(before, _STDERR)
        os.close(before)


def with_times(report: Callable[[str], None]) -> Callable[[str], None]:
    """A function that puts the time before a line if standard error is a file; journald and containers note it."""

    def tell(line: str) -> None:
        with suppress(OSError):  # it was closed
            if stat.S_ISREG(os.fstat(_STDERR).st_mode):
                line = f"{time.strftime(_TIME)} {line}"
        report(line)

    return tell


@contextmanager
def showing_warnings() -> Generator[None]:
    """Write what repertory's loggers warn of to standard error, unless the program has handlers of its own."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.setFormatter(_Formatter("repertory: %(asctime)s %(levelname)s %(message)s", _TIME))
    handler.addFilter(lambda record: not logging.getLogger().handlers)
    logger = logging.getLogger("repertory")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Formatter(logging.Formatter):
    """Writes what could control a terminal as an escape: errors repeat what models and tools wrote."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, with a traceback below it."""
        text = super().format(record)
        return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)
