"""Front matter: fields as YAML between two lines of dashes, before the text of a Markdown file.

What people write there is often not valid YAML (``description: Use when: asked``), and valid YAML is often not what
they meant (``name: on`` is true). So every scalar is read as text, and what YAML refuses is read line by line, with a
warning. Anchors, aliases, tags and deep nesting are refused: they have no use here, but hostile files rely on them.
"""

from __future__ import annotations

import os
import re
import stat
import warnings
from pathlib import Path
from typing import Any, Final

import msgspec

from repertory._frozen import freeze_fields
from repertory.errors import ConfigurationError, DefinitionError

MAX_FILE: Final = 256_000  # bytes; the longest agent files in the wild are a tenth of this
_MAX_FIELDS: Final = 32_000  # characters of YAML, for which its reader needs a quarter of a second
_MAX_DEPTH: Final = 8
_MOST_WORDS: Final = 200

_NESTING = ("FlowSequence", "FlowMapping", "BlockSequence", "BlockMapping")
_TOML_TEXT = re.compile(
    r"#[^\n]*+|\"\"\"(?:[^\"\\]|\\.|\"(?!\"\"))*+\"\"\"|'''(?:[^']|'(?!''))*+'''"
    r"|\"(?:[^\"\\\n]|\\.)*+\"|'[^'\n]*+'",
    re.DOTALL,
)
_TOML_DEEP = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{_MAX_DEPTH}}}")
_KEY = re.compile(r"([A-Za-z_][\w-]*):(?:\s(.*))?")
_ITEM = re.compile(r"\s*-\s(.*)")


class DefinitionFile(msgspec.Struct, frozen=True):
    """What a file defines: its fields, their lines, and the text after them.

    Attributes:
        path: The file.
        fields: The fields by name; in a Markdown file every scalar in them is text.
        lines: The line of each field in the file, from 1, as far as known.
        body: The text after the fields.
    """

    path: Path
    fields: dict[str, Any]
    lines: dict[str, int]
    body: str

    def __post_init__(self) -> None:
        freeze_fields(self, "fields", "lines")

    def error(self, field: str, problem: str) -> DefinitionError:
        """An error about a field; "" means the whole file."""
        return DefinitionError(str(self.path), problem, field=field, line=self.lines.get(field))

    def text(self, field: str, default: str = "") -> str:
        """A field that must be text."""
        value = self.fields.get(field, default)
        if not isinstance(value, str):
            raise self.error(field, f"expected text, got {value!r:.100}")
        return value.strip()

    def words(self, field: str) -> list[str] | None:
        """A field that is a list, or words separated by commas; None if it is missing.

        A comma within parentheses does not separate, even if YAML has split a list there.
        """
        value = self.fields.get(field)
        if value is None:
            return None
        if isinstance(value, list) and all(isinstance(word, str) for word in value):
            value = ", ".join(value)
        if not isinstance(value, str):
            raise self.error(field, f"expected names with commas between them, or a list of names, got {value!r:.100}")
        value = value.strip().removeprefix("[").removesuffix("]")
        words = [word.strip().strip("'\"") for word in _split(value)]
        words = [word for word in words if word]
        if len(words) > _MOST_WORDS:
            raise self.error(field, f"names {len(words):,} things; at most {_MOST_WORDS} are read")
        return words

    def warn_of(self, known: set[str], without_effect: frozenset[str]) -> None:
        """Warn about unknown fields, and about those that have no effect here."""
        said = [
            f"{field!r}{f' (line {self.lines[field]})' if field in self.lines else ''} "
            + ("has no effect here" if field in without_effect else "is not known")
            for field in self.fields
            if field not in known
        ]
        if said:
            warn(self.path, "; ".join(said))


def _split(text: str) -> list[str]:
    """Split a text at its commas, except those within parentheses."""
    pieces, depth, begin = [], 0, 0
    for at, character in enumerate(text):
        depth = max(0, depth + (character == "(") - (character == ")"))
        if character == "," and not depth:
            pieces.append(text[begin:at])
            begin = at + 1
    return [*pieces, text[begin:]]


def warn(path: Path, text: str) -> None:
    """Give a ``UserWarning`` about a file that can be used nevertheless."""
    warnings.warn(f"{path}: {text}", UserWarning, stacklevel=2)


def read_text(path: Path) -> str:
    """Read a small regular file as text; no link is followed.

    Raises:
        DefinitionError: It cannot be read, is not text, or is too large.
    """
    try:
        # Without O_NONBLOCK, opening a FIFO would wait for a writer.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise DefinitionError(str(path), "is not a regular file")
            data = file.read(MAX_FILE + 1)
        if len(data) > MAX_FILE:
            raise DefinitionError(str(path), f"has more than {MAX_FILE:,} bytes")
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        reason = "is a symbolic link, and links are not followed" if os.path.islink(path) else error.strerror
        raise DefinitionError(str(path), f"cannot be read: {reason}") from error
    except UnicodeDecodeError as error:
        raise DefinitionError(str(path), f"is no text in UTF-8: {error}") from error


def read_markdown(path: Path) -> DefinitionFile | None:
    """Read a Markdown file with front matter; None if it has none.

    Raises:
        DefinitionError: It cannot be read, or its front matter does not end, is too large or hostile.
        ConfigurationError: PyYAML is not installed.
    """
    text = read_text(path)
    first, *lines = text.split("\n")
    if first.rstrip() != "---":
        return None
    end = next((index for index, line in enumerate(lines) if line.rstrip() in ("---", "...")), None)
    if end is None:
        raise DefinitionError(str(path), "the front matter that begins in line 1 has no closing ---")
    written = "\n".join(lines[:end]) + "\n"
    if len(written) > _MAX_FIELDS:
        raise DefinitionError(str(path), f"the front matter has more than {_MAX_FIELDS:,} characters")
    fields, at = _read_fields(path, written)
    return DefinitionFile(path, fields, at, "\n".join(lines[end + 1 :]).strip())


def check_toml(path: Path, text: str) -> None:
    """Refuse, before it is parsed, TOML for which the parser would need hours or all memory.

    Raises:
        DefinitionError: There is too much besides texts, or it is nested too deep.
    """
    bare = _TOML_TEXT.sub("s", text)
    if len(bare) > _MAX_FIELDS:
        raise DefinitionError(str(path), f"has more than {_MAX_FIELDS:,} characters besides its texts")
    depth = 0
    for character in bare:
        depth += (character in "[{") - (character in "]}")
        if depth > _MAX_DEPTH:
            break
    if depth > _MAX_DEPTH or _TOML_DEEP.search(bare):
        raise DefinitionError(str(path), f"fields are nested deeper than {_MAX_DEPTH}")


def _read_fields(path: Path, written: str) -> tuple[dict[str, Any], dict[str, int]]:
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError as error:
        raise ConfigurationError(
            f"{path}: reading front matter needs PyYAML: pip install 'repertory[definitions]'; TOML needs nothing"
        ) from error
    try:
        _refuse_hostile(yaml, path, written)
        root = yaml.compose(written, Loader=yaml.BaseLoader)
        if root is None:
            return {}, {}
        if not isinstance(root, yaml.MappingNode):
            raise DefinitionError(str(path), "the front matter holds no fields, as in name: reviewer", line=2)
        return _fields_of(yaml, path, root, written.split("\n"))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 2}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "it holds a character that YAML does not allow"
        warn(
            path, f"the front matter is no YAML{line} ({problem}) and is read line by line: put quotes around the text"
        )
        return _read_lines(path, written)


def _refuse_hostile(yaml: Any, path: Path, written: str) -> None:
    """Raise ``DefinitionError`` for YAML that could expand a small file or slow down its reader."""
    begins = tuple(getattr(yaml, f"{kind}StartToken") for kind in _NESTING)
    ends = (yaml.FlowSequenceEndToken, yaml.FlowMappingEndToken, yaml.BlockEndToken)
    depth = 0
    for token in yaml.scan(written, Loader=yaml.BaseLoader):
        line = token.start_mark.line + 2
        if isinstance(token, yaml.AnchorToken | yaml.AliasToken | yaml.TagToken | yaml.DirectiveToken):
            raise DefinitionError(str(path), "anchors (&), aliases (*), tags (!) and directives are refused", line=line)
        if isinstance(token, begins):
            depth += 1
        elif isinstance(token, ends):
            depth -= 1
        if depth > _MAX_DEPTH:
            raise DefinitionError(str(path), f"fields are nested deeper than {_MAX_DEPTH}", line=line)


def _fields_of(yaml: Any, path: Path, root: Any, lines: list[str]) -> tuple[dict[str, Any], dict[str, int]]:
    def plain(node: Any) -> Any:
        if isinstance(node, yaml.SequenceNode):
            return [plain(item) for item in node.value]
        if isinstance(node, yaml.MappingNode):
            return {str(plain(key)): plain(value) for key, value in node.value}
        return node.value

    fields: dict[str, Any] = {}
    at: dict[str, int] = {}
    for key, value in root.value:
        name, line = str(plain(key)), key.start_mark.line + 2
        if name in fields:
            raise DefinitionError(str(path), f"is there twice, first in line {at[name]}", field=name, line=line)
        fields[name], at[name] = plain(value), line
        end = value.end_mark
        if isinstance(value, yaml.ScalarNode) and value.style is None and "#" in lines[end.line][end.column :]:
            warn(path, f"{name!r} (line {line}): what follows # is a comment; put quotes around the text to keep it")
    return fields, at


def _read_lines(path: Path, written: str) -> tuple[dict[str, Any], dict[str, int]]:
    """Read fields from invalid YAML: ``name: value`` and the lines below that begin no other field, or a list."""
    fields: dict[str, Any] = {}
    at: dict[str, int] = {}
    name = ""
    for number, line in enumerate(written.split("\n"), 2):
        key, item = _KEY.fullmatch(line), _ITEM.fullmatch(line)
        if key:
            name = key[1]
            if name in fields:
                raise DefinitionError(str(path), f"is there twice, first in line {at[name]}", field=name, line=number)
            value = (key[2] or "").strip()
            fields[name], at[name] = "" if value in ("|", ">", "|-", ">-") else value, number
        elif name and item and not (isinstance(fields[name], str) and fields[name]):
            fields[name] = [*fields[name], item[1].strip()]
        elif name and line.strip() and isinstance(fields[name], str):
            fields[name] = f"{fields[name]}\n{line.strip()}".strip()
    for name, value in fields.items():
        if isinstance(value, str) and len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
            fields[name] = value[1:-1]
    return fields, at
