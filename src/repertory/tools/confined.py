"""A confined folder: walking and opening files below it, without any path or link leading out of it.

Every step opens one name relative to the folder before it, without following links, so there is no moment between
checking and opening in which a link could be inserted. A hard link is treated like any other file: whoever can make one
inside the folder could have copied the file.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import os
import re
import stat
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias
from unicodedata import category, normalize

import msgspec

from repertory._choices import check_type, show
from repertory.errors import ConfigurationError, ToolFailed, ToolRetry
from repertory.tools.globs import match_glob
from repertory.tools.output import clean_text
from repertory.tools.secret_names import may_hold_secrets
from repertory.tools.threads import is_left_behind

Parts: TypeAlias = tuple[str, ...]

MAX_DEPTH: Final = 64
SKIPPED_FOLDERS: Final = frozenset(
    {".git", ".hg", ".svn", "__pycache__", "node_modules", ".venv", ".tox"}
    | {".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis"}
)
# SQLite's locks on a file are dropped when *anything* in the process closes it, so a database is never opened here,
# not even to see what it is: https://www.sqlite.org/howtocorrupt.html, section 2.2. It is recognised by its name, or,
# as a journal of ours may have any, by the log that SQLite keeps beside it while it is open.
_DATABASE: Final = re.compile(r"\.(db|db3|sqlite|sqlite3)(-wal|-shm|-journal)?", re.IGNORECASE)
_SIDE_FILE: Final = re.compile(r"-(wal|shm)$")

_UNREADABLE: Final = "unreadable folders"
_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a FIFO that somebody put in the file's place would wait for a writer.
_FILE_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class FoundFile(msgspec.Struct, frozen=True, eq=False):
    """A regular file found on a walk; it can be opened only until the walk continues.

    Attributes:
        parts: The names on its path from the root.
        folder: Descriptor of the folder that holds it.
    """

    parts: Parts
    folder: int

    @property
    def path(self) -> str:
        """Its path from the root, safe to print."""
        return printable(self.parts)


class Folder:
    """A folder and everything below it that may be read."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        deny: Iterable[str | os.PathLike[str]] = (),
        allow: Iterable[str] = (),
    ) -> None:
        """Look up a folder.

        Args:
            root: The folder; a link to it is resolved now and never again.
            deny: What may not be read: names (``.env``, ``*.pem``) at any depth and paths from the root
                (``config/keys/``), with the wildcards of ``match_glob`` and ignoring case; and absolute paths, whose
                files are recognised under any name.
            allow: Files that may be read although they have the name of a secret (see ``SECRET_NAMES``), as names or
                paths from the root. It does not allow anything in ``deny``.

        Raises:
            ConfigurationError: There is no such folder, or a rule is neither a name nor a path.
        """
        check_type("file tools: the folder", root, str | os.PathLike, "a path")
        if not os.path.isdir(root):  # unlike Path.is_dir, it does not raise if the name is too long
            raise ConfigurationError(f"file tools need a folder, got {str(root)!r:.500}, which is none")
        self.root = Path(root).resolve()
        rules = _rules("deny", deny)
        self._places = tuple(rule for rule in rules if os.path.isabs(rule))
        self._patterns = _patterns("deny", (rule for rule in rules if not os.path.isabs(rule)))
        self._allowed = _patterns("allow", _rules("allow", allow))

    def parts_of(self, path: str) -> Parts:
        """Split a path that the model gave.

        Raises:
            ToolRetry: It is absolute, leads out of the folder, or is not a path.
        """
        if path.startswith("/"):
            raise ToolRetry(f"{path[:200]!r} is absolute; give a path relative to the folder, such as 'src/main.py'")
        try:
            encoded = os.fsencode(path)
        except UnicodeEncodeError:
            encoded = b"\0"
        if b"\0" in encoded or len(encoded) > 4096:
            raise ToolRetry(f"{clean_text(path)[0][:200]!r} is not a path")
        parts: list[str] = []
        for name in path.split("/"):
            if name == "..":
                if not parts:
                    raise ToolRetry(f"{path[:200]!r} leads out of the folder")
                parts.pop()
            elif name not in ("", "."):
                parts.append(name)
        for end in range(1, len(parts) + 1):
            if self._is_denied(tuple(parts[:end])):
                raise ToolFailed(f"{printable(parts)!r} may not be read")
        return tuple(parts)

    @contextlib.contextmanager
    def open_file(self, parts: Parts) -> Generator[int]:
        """Open a regular file for reading, as a descriptor.

        Raises:
            ToolRetry: There is no such file, or it is a folder.
            ToolFailed: It may not be read, or is a link or anything else but a file.
        """
        if not parts:
            raise ToolRetry("'.' is a folder; list_files shows what is in it")
        with self._locate(parts) as found:
            try:
                with self.open_found(found) as fd:
                    yield fd
            except OSError as error:
                raise _explain(error, found.parts, found.folder) from error

    @contextlib.contextmanager
    def open_found(self, found: FoundFile) -> Generator[int]:
        """Open a file that a walk has found.

        Raises:
            OSError: The system refuses.
            ToolFailed: It is not, or is no longer, a regular file that may be read.
        """
        name = found.parts[-1]
        # Checked before it is opened: just opening a device or a locked database can do harm.
        self._check_file(found, os.stat(name, dir_fd=found.folder, follow_symlinks=False))
        fd = os.open(name, _FILE_FLAGS, dir_fd=found.folder)
        try:
            self._check_file(found, os.fstat(fd))
            yield fd
        finally:
            os.close(fd)

    def is_guarded(self, parts: Parts) -> bool:
        """Whether a file may not be read because it has the name of a secret. The name itself may be shown."""
        folded = tuple(_fold(name) for name in parts)
        return may_hold_secrets(folded) and not any(match_glob(rule, folded) for rule in self._allowed)

    def walk(self, parts: Parts, skipped: Counter[str]) -> Iterator[FoundFile]:
        """Every readable regular file below a folder, by path.

        The folders of version control, environments and caches are left out.

        Args:
            parts: Where to begin; if it is a file, only that file is found.
            skipped: Counts what was left out, by reason.

        Raises:
            ToolRetry: There is no such folder.
        """
        if parts:
            with self._locate(parts) as found:
                parts = found.parts
                facts = _facts_of(parts[-1], found.folder)
                if facts is not None and stat.S_ISREG(facts.st_mode):
                    yield found
                    return
        folder, parts = self._open_folder(parts)
        yield from self._walk(folder, parts, skipped)

    def _walk(self, folder: int, parts: Parts, skipped: Counter[str]) -> Iterator[FoundFile]:
        try:
            for name, is_file, is_folder in _entries(folder, skipped):
                if is_left_behind():
                    return
                path = (*parts, name)
                if self._is_denied(path):
                    continue
                if is_file:
                    yield FoundFile(path, folder)
                elif is_folder and name not in SKIPPED_FOLDERS:
                    try:
                        if len(path) > MAX_DEPTH:
                            raise OSError(errno.ENAMETOOLONG, "too deep")
                        inner = self._step(folder, name)
                    except OSError:
                        skipped[_UNREADABLE] += 1
                        continue
                    yield from self._walk(inner, path, skipped)
        finally:
            os.close(folder)

    @contextlib.contextmanager
    def _locate(self, parts: Parts) -> Generator[FoundFile]:
        """What a path means, with the folder that holds it open; it need not be a file, nor be there."""
        folder, above = self._open_folder(parts[:-1])
        try:
            yield FoundFile((*above, self._meant(folder, above, parts[-1])), folder)
        finally:
            os.close(folder)

    def _open_folder(self, parts: Parts) -> tuple[int, Parts]:
        """Descriptor of a folder below the root, which the caller closes, and the names that lead there."""
        try:
            folder = os.open(self.root, _FOLDER_FLAGS)
        except OSError as error:
            raise ToolFailed(f"the folder that this tool reads cannot be opened: {error.strerror}") from error
        found: Parts = ()
        for name in parts:
            try:
                found = (*found, self._meant(folder, found, name))
                inner = self._step(folder, found[-1])
            except OSError as error:
                raise _explain(error, found, folder) from error
            finally:
                os.close(folder)
            folder = inner
        return folder, found

    def _meant(self, folder: int, above: Parts, name: str) -> str:
        """The name in a folder that a model means: this very name, or else the only one that looks the same.

        What cannot be printed is shown in another way, and models write a space for any space and é in one form only.
        """
        with contextlib.suppress(OSError):
            if _facts_of(name, folder) is None:
                looks = _look(name)
                with os.scandir(folder) as scan:
                    same = [each.name for each in scan if _look(each.name) == looks]
                if len(same) == 1 and not self._is_denied((*above, same[0])):
                    return same[0]
        return name

    def _step(self, folder: int, name: str) -> int:
        inner = os.open(name, _FOLDER_FLAGS, dir_fd=folder)
        if self._is_denied_place(os.fstat(inner)):
            os.close(inner)
            raise PermissionError(errno.EACCES, "denied", name)
        return inner

    def _check_file(self, found: FoundFile, facts: os.stat_result) -> None:
        if stat.S_ISDIR(facts.st_mode):
            raise ToolRetry(f"{found.path!r} is a folder; list_files shows what is in it")
        if stat.S_ISLNK(facts.st_mode):
            raise ToolFailed(f"{found.path!r} is a symbolic link, and links are not followed")
        if not stat.S_ISREG(facts.st_mode):
            raise ToolFailed(f"{found.path!r} is not a regular file")
        if self.is_guarded(found.parts):
            raise ToolFailed(
                f"{found.path!r} is by its name a place for secrets and is not read; the user can allow it"
            )
        if _is_database(found):
            raise ToolFailed(f"{found.path!r} is a database, not text")
        if self._is_denied_place(facts):
            raise ToolFailed(f"{found.path!r} may not be read")

    def _is_denied(self, parts: Parts) -> bool:
        if not self._patterns:
            return False
        folded = tuple(_fold(name) for name in parts)
        return any(match_glob(pattern.rstrip("/"), folded) for pattern in self._patterns)

    def _is_denied_place(self, facts: os.stat_result) -> bool:
        """Whether this is one of the absolute paths in ``deny``, whatever the name by which it was reached."""
        for place in self._places:
            try:
                denied = os.stat(place)
            except OSError:
                continue  # what does not exist cannot be reached
            if os.path.samestat(facts, denied):
                return True
        return False


def _rules(option: str, given: Any) -> list[str]:
    """Names and paths as texts. A single text would be taken for its characters, and a ``*`` among them matches all."""
    where = f"file tools: {option}"
    if isinstance(given, str | bytes | os.PathLike):
        raise ConfigurationError(f"{where} must be a list of names and paths, got {show(given)}")
    check_type(where, given, Iterable, "a list of names and paths")
    rules = list(given)
    for rule in rules:
        check_type(f"{where}: each", rule, str | os.PathLike, "a name or a path")
    return [os.fsdecode(rule) for rule in rules]


def _patterns(option: str, rules: Iterable[str]) -> tuple[str, ...]:
    """Names and paths from the root, ready to compare. One without any name, such as "", would match every file."""
    made = tuple(map(_fold, rules))
    for rule in made:
        names = rule.split("/")
        if os.path.isabs(rule) or ".." in names or not any(name not in ("", ".") for name in names):
            raise ConfigurationError(
                f"file tools: {option}: {rule!r:.200} is neither a name nor a path from the folder"
            )
    return made


def read_all(fd: int, limit: int) -> tuple[bytes, bool]:
    """Read a file up to ``limit`` bytes; the second value says whether there is more.

    Text marked as UTF-16, as programs on Windows write it, becomes UTF-8.
    """
    chunks: list[bytes] = []
    left = limit + 1
    while left > 0 and not is_left_behind():
        chunk = os.read(fd, min(left, 1 << 20))  # the size that the system reports may be wrong, as in /proc
        if not chunk:
            break
        chunks.append(chunk)
        left -= len(chunk)
    data = b"".join(chunks)
    more, data = len(data) > limit, data[:limit]
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        with contextlib.suppress(UnicodeDecodeError):  # it only begins like such a text
            data = codecs.getincrementaldecoder("utf-16")().decode(data).encode()
    return data, more


def printable(parts: Iterable[str]) -> str:
    """A path to show to people and models; a name in it cannot forge a line of output."""
    path = "/".join(parts)
    if path.isprintable():
        return path or "."
    return "".join(c if c.isprintable() or category(c) == "Zs" else "\N{REPLACEMENT CHARACTER}" for c in path)


def _look(name: str) -> str:
    """A text that is the same for all names that look the same where they are printed."""
    return printable([normalize("NFKC", name)])


def _entries(folder: int, skipped: Counter[str]) -> list[tuple[str, bool, bool]]:
    """What is in a folder, by name: whether it is a file, and whether it is a folder; links are neither."""
    try:
        with os.scandir(folder) as scan:
            return sorted((e.name, e.is_file(follow_symlinks=False), e.is_dir(follow_symlinks=False)) for e in scan)
    except OSError:  # some may be opened but not listed, such as those of other users' processes in /proc
        skipped[_UNREADABLE] += 1
        return []


def _facts_of(name: str, folder: int) -> os.stat_result | None:
    """What the system says of a name in a folder; None if it says nothing, mostly as there is no such name."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return None


def _is_database(found: FoundFile) -> bool:
    name = found.parts[-1]
    is_called_so = _DATABASE.fullmatch(os.path.splitext(name)[1]) is not None
    return is_called_so or _facts_of(f"{_SIDE_FILE.sub('', name)}-wal", found.folder) is not None


def _fold(name: str) -> str:
    """A text that is the same for all names that some file system treats as the same."""
    return normalize("NFC", normalize("NFC", name).casefold())


def _explain(error: OSError, parts: Parts, folder: int) -> ToolRetry | ToolFailed:
    """Explain why the last name of a path, in this folder, could not be opened."""
    path = printable(parts)
    if isinstance(error, FileNotFoundError):
        return ToolRetry(f"there is no {path!r}; list_files shows what there is")
    facts = _facts_of(parts[-1], folder)
    if facts is not None and stat.S_ISLNK(facts.st_mode):
        return ToolFailed(f"{path!r} is a symbolic link, and links are not followed")
    if isinstance(error, NotADirectoryError):
        return ToolRetry(f"{path!r} is not a folder")
    if error.errno == errno.ENAMETOOLONG:
        return ToolRetry(f"{path[:200]!r} is not a path: a name in it is too long")
    return ToolFailed(f"{path!r} cannot be read: {error.strerror}")
