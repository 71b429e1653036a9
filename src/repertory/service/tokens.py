"""The service's token: in a file that only its owner may read. Clients read it without the service's libraries."""

from __future__ import annotations

import os
import re
import secrets
import stat
import tempfile
from pathlib import Path
from typing import Final

from repertory.errors import ConfigurationError

_TOKEN: Final = re.compile("[!-~]{43,}")  # 256 bits in base 64, without what no header can have


def default_token_file() -> Path:
    """The default file of the token."""
    import platformdirs

    return Path(platformdirs.user_state_dir("repertory", appauthor=False)) / "service-token"


def read_or_make_token(path: Path) -> str:
    """Read the token from a file; if there is none, make one of 256 random bits in a new file of mode 0600.

    Raises:
        ConfigurationError: The file cannot be written, belongs to another user, others may read it, or it holds no
            token.
    """
    if os.path.lexists(path):
        return read_token(path)
    token = secrets.token_urlsafe(32)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Under another name first: of two services that begin at once, neither then reads half a token.
        with tempfile.NamedTemporaryFile("w", dir=path.parent, encoding="ascii") as file:  # of mode 0600
            file.write(token + "\n")
            file.flush()
            os.link(file.name, path)
    except FileExistsError:
        return read_token(path)
    except OSError as error:
        raise ConfigurationError(f"cannot keep the token in {path}: {error.strerror}") from error
    return token


def read_token(path: Path) -> str:
    """Read the token from a file.

    Raises:
        ConfigurationError: There is none, the file belongs to another user, or others may read it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
                raise ConfigurationError(
                    f"{path} must be a file of yours that nobody else can read (mode 0600, not "
                    f"{status.st_mode & 0o7777:04o}); delete it, and the next start makes a new token"
                )
            token = file.read(1000).decode("latin-1").strip()
    except OSError as error:
        raise ConfigurationError(f"cannot read the token in {path}: {error.strerror}") from error
    try:
        return check_token(token)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}; delete it, and the next start makes a new one") from None


def check_token(token: str) -> str:
    """Return a token that nobody can guess. Raises ``ConfigurationError`` for any other, without showing it."""
    if not _TOKEN.fullmatch(token):
        raise ConfigurationError(
            "a token must have 43 or more printable ASCII characters and no space; secrets.token_urlsafe(32) makes one"
        )
    return token
