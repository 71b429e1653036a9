"""Reads tables of a TOML file into structs. Unknown keys are refused; errors name the line, the table and the key."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar, get_args

import msgspec

from repertory._choices import expected
from repertory.errors import ConfigurationError, DefinitionError

T = TypeVar("T", bound=msgspec.Struct)

_HEADER: Final = re.compile(r"\s*\[\[?\s*([^\]]+?)\s*\]\]?")
_ENTRY: Final = re.compile(r"\s*([\w.\"' -]+?)\s*=")
_QUOTES: Final = re.compile(r"[\"'\s]")


class TomlFile:
    """A TOML file, read completely.

    Attributes:
        path: The file's path.
        content: The parsed content.

    Raises:
        DefinitionError: The file cannot be read, or is not valid TOML.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            if path.exists() and not path.is_file():  # a device may have no end
                raise DefinitionError(str(path), "is no regular file")
            self._text = path.read_text(encoding="utf-8-sig")
            self.content: dict[str, Any] = tomllib.loads(self._text)
        except OSError as error:
            raise DefinitionError(str(path), f"cannot be read: {error.strerror}") from error
        except (ValueError, RecursionError) as error:  # ValueError also for a number of thousands of digits
            raise DefinitionError(str(path), f"it is not valid TOML: {error}") from error

    def refuse(self, table: str, key: str, problem: str, *, number: int = 0) -> NoReturn:
        """Raise ``DefinitionError`` for a key of a table; ``number`` counts tables of one name, from 0."""
        field = " ".join(part for part in (f"[{table}]" if table else "", key) if part)
        raise DefinitionError(str(self.path), problem, field=field, line=self._line_of(table, key, number))

    @contextmanager
    def refusing(self, table: str, key: str = "", *, number: int = 0) -> Generator[None]:
        """Turn a ``ConfigurationError`` of the block into a ``DefinitionError`` that names its place in the file."""
        try:
            yield
        except ConfigurationError as error:
            self.refuse(table, key, str(error), number=number)

    def table(self, kind: type[T], given: object, table: str, *, number: int = 0) -> T:
        """Convert the value of a table to a struct.

        Raises ``DefinitionError`` if a key is unknown or missing, or has an invalid value.
        """
        fields = {field.name: field for field in msgspec.structs.fields(kind)}
        self.check_keys(given, fields, table, number=number)
        assert isinstance(given, dict)
        values: dict[str, Any] = {}
        for key, value in given.items():
            if isinstance(value, str) and "\0" in value:
                self.refuse(table, key, f"must have no NUL, got {value!r:.100}", number=number)
            try:
                values[key] = msgspec.convert(number_or_none(value, fields[key].type), fields[key].type)
            except ConfigurationError as error:
                self.refuse(table, key, f"{error}; got {value!r:.100}", number=number)
            except msgspec.ValidationError as error:
                self.refuse(table, key, f"{expected(fields[key].type, error)}; got {value!r:.100}", number=number)
        for name, field in fields.items():
            if field.required and name not in given:
                self.refuse(table, name, "is missing", number=number)
        with self.refusing(table, number=number):
            return kind(**values)

    def check_keys(self, given: object, known: Mapping[str, object], table: str, *, number: int = 0) -> None:
        """Check that the value is a table without unknown keys. Raises ``DefinitionError``."""
        if not isinstance(given, dict):
            self.refuse(table, "", f"expected a table, got {given!r:.100}", number=number)
        for key in given:
            if key not in known:
                close = difflib.get_close_matches(key, known, n=1)
                hint = f"did you mean {close[0]!r}? " if close else ""
                self.refuse(table, key, f"unknown key; {hint}there are {', '.join(known)}", number=number)

    def _line_of(self, table: str, key: str, number: int) -> int | None:
        """The line of a key, or else of its table; None if the file writes it in an unusual way."""
        path = _path(table) if table else []
        wanted = [*path, key] if key else path
        here: list[str] = []
        seen, found = -1, None
        for line, text in enumerate(self._text.splitlines(), 1):
            header, entry = _HEADER.match(text), _ENTRY.match(text)
            if header is not None:
                full = here = _path(header[1])
                seen += here == path
            elif entry is not None:
                full = [*here, *_path(entry[1])]
            else:
                continue
            if wanted and full[: len(wanted)] == wanted and (number == 0 or seen >= number):
                return line
            if found is None and path and full[: len(path)] == path and (number == 0 or seen >= number):
                found = line
        return found


def number_or_none(value: object, kind: object = int | None) -> object:
    """None for "none", since TOML has no null, if the type is a number or None; else the value itself."""
    return None if value == "none" and {type(None)} < {*get_args(kind)} <= {int, float, type(None)} else value


def _path(spelled: str) -> list[str]:
    return _QUOTES.sub("", spelled).split(".")
