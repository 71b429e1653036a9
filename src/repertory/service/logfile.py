"""The log file of a service: all that it says on standard error, tracebacks and warnings of libraries included.

Under systemd there is none: journald keeps and rotates what a service says.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from repertory.errors import ConfigurationError

_STDERR = 2


class LogFile:
    """Where standard error goes. It follows the file's name, so that any program may move the file away.

    Args:
        path: The file; it is made for this user alone where it is not there, and appended to where it is.

    Raises:
        ConfigurationError: It cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.reopen()

    def reopen(self) -> None:
        """Go on in the file that has the name now, or in a new one. Raises ``ConfigurationError``."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        try:
            descriptor = os.open(self.path, flags, 0o600)
        except OSError as error:
            raise ConfigurationError(f"cannot write the log {self.path}: {error.strerror}") from error
        sys.stderr.flush()
        os.dup2(descriptor, _STDERR)  # in one step: what another thread says meanwhile is in one of the two
        os.close(descriptor)

    def follow(self) -> None:
        """Reopen it if it was moved or deleted; keep what is open where that fails, as a full disk passes."""
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
                sys.stderr.write(f"repertory: {error}\n")


@contextmanager
def logging_to(path: Path | None) -> Generator[LogFile | None]:
    """Send standard error to a file until the end of the block; None leaves it where it is."""
    if path is None:
        yield None
        return
    sys.stderr.flush()
    before = os.dup(_STDERR)
    try:
        yield LogFile(path)
    finally:
        sys.stderr.flush()
        os.dup2(before, _STDERR)
        os.close(before)
