"""Compactors: one for each kind of result, which describes it in a few lines. Short, general, deterministic."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from html import unescape
from typing import Any, NamedTuple, Protocol

import msgspec

from repertory._counting import counted
from repertory._cutting import LOOKED_AT, clip, first_chars, kind_of_text
from repertory.shortening.lines import MAX_READ, last_verdict, readable_part, source_lines, trouble_lines

_SNIPPET = 200  # at most, in characters: a search result's snippet, and a schema's description of a field
_FIELDS_PER_ENTITY = 5  # of each of several schemas; a single schema shows all that fit


class Compactor(Protocol):
    """Reduces one kind of result to a few lines. It may be called from another thread for a very long result."""

    @property
    def name(self) -> str:
        """The name that ``ResultPolicy.compactor`` takes."""
        ...

    def matches(self, text: str, data: Any) -> bool:
        """Whether a result is of this kind; called even if a policy names the compactor.

        Args:
            text: The whole result.
            data: The same as JSON values; None if it is not JSON.
        """
        ...

    def compact(self, text: str, data: Any, length: int) -> str:
        """Describe the result in about ``length`` characters."""
        ...


class _Description(NamedTuple):
    """What a built-in compactor says: one line about the whole, then as many items as fit."""

    head: str
    items: Sequence[Any] = ()
    write: Callable[[Any], str] = str


class _BuiltIn(msgspec.Struct, frozen=True):
    """A built-in compactor: how it recognizes its kind of result, and how it describes one."""

    name: str
    test: Callable[[str, Any], bool]
    describe: Callable[[str, Any, int], _Description]

    def matches(self, text: str, data: Any) -> bool:
        return self.test(text, data)

    def compact(self, text: str, data: Any, length: int) -> str:
        description = self.describe(text, data, length)
        lines = [description.head]
        length -= len(description.head) + 1
        for at, item in enumerate(description.items):
            line = description.write(item)
            length -= len(line) + 1
            if length < 0:
                return "\n".join([*lines, f"… {len(description.items) - at} more"])
            lines.append(line)
        return "\n".join(lines)


def compact(text: str, length: int, *, tool: str = "", name: str = "") -> str:
    """Describe a result as ``describe`` does, or by its first words if no compactor fits."""
    description = describe(text, length, tool=tool, name=name)
    return first_words(text, length) if description is None else description


def describe(text: str, length: int, *, tool: str = "", name: str = "", requested_only: bool = False) -> str | None:
    """Return a compactor's description of a result, never longer than ``length``; None if no compactor fits.

    The first that matches is used: the one that is named, the one with the tool's name, then every other. One that
    raises is skipped; see ``on_compactor_failure``.

    Args:
        text: The result.
        length: Most characters of the description.
        tool: The tool's name.
        name: Name of the compactor; "" finds one by the content.
        requested_only: Whether to use only a compactor that is named or that the application added for the tool.
    """
    others = () if requested_only else COMPACTORS
    own = "" if requested_only and isinstance(COMPACTORS.get(tool), _BuiltIn) else tool
    candidates = [COMPACTORS[each] for each in dict.fromkeys((name, own, *others)) if each in COMPACTORS]
    views: dict[bool, tuple[str, Any, str]] = {}
    for compactor in candidates:
        try:
            built_in = isinstance(compactor, _BuiltIn)
            if built_in not in views:
                views[built_in] = _readable_view(text) if built_in else (text, _json(text), "")
            readable, data, note = views[built_in]
            if compactor.matches(readable, data):
                return first_chars(note + compactor.compact(readable, data, length - len(note)), length)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - an application's code, and better a result said badly than lost
            _on_failure.get()(compactor.name, error)
    return None


def _readable_view(text: str) -> tuple[str, Any, str]:
    """Return what a terminal shows of a result, if it is very long a part of that, the JSON values in it, and a line
    that says how much of it that is.
    """
    if len(text) <= MAX_READ:
        text = readable_part(text)
        return text, _json(text), ""
    closed = close_json(text[:MAX_READ]) if _may_be_json(text) else ""
    if (data := _json(closed)) is not None:
        return closed, data, f"of its first {len(closed):,} characters:\n"
    return readable_part(text), None, f"of its first {MAX_READ * 2 // 3:,} and last {MAX_READ // 3:,} characters:\n"


def first_words(text: str, length: int) -> str:
    """Describe a text of no known kind by its first words, in half of the room, and how it ended, in the other half."""
    words = first_chars(" ".join(readable_part(text)[: 4 * length].split()), length // 2)
    ending = clip(last_verdict(source_lines(text)), length // 2 - 1)
    return words if ending in words else first_chars(f"{words}\n{ending}", length)


def _ignore_failure(name: str, error: BaseException) -> None:
    """Ignore that a compactor raised."""


_on_failure: ContextVar[Callable[[str, BaseException], None]] = ContextVar(
    "on_compactor_failure", default=_ignore_failure
)


def on_compactor_failure(report: Callable[[str, BaseException], None]) -> None:
    """Report each compactor that raises, with its error, to a function: in this task and in those that it starts."""
    _on_failure.set(report)


def register_compactor(compactor: Compactor) -> None:
    """Add a compactor ahead of all others; it replaces one of the same name."""
    others = {name: other for name, other in COMPACTORS.items() if name != compactor.name}
    COMPACTORS.clear()
    COMPACTORS.update({compactor.name: compactor, **others})


# --- JSON: search results, schemas, rows, anything ------------------------------------------------------------

_SNIPPET_KEYS = ("snippet", "description", "text", "content")
_FIELD_KEYS = ("fields", "columns", "properties", "attributes")


_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[\]{},]', re.S)


def _may_be_json(text: str) -> bool:
    return text[:LOOKED_AT].lstrip()[:1] in ("{", "[")


def close_json(head: str) -> str:
    """Cut truncated JSON after its last whole value, and close the lists and objects that are open there."""
    marks = [token for token in _TOKEN.finditer(head) if len(token[0]) == 1]
    while marks and marks[-1][0] in '[{"':
        marks.pop()
    if not marks:
        return ""
    open_: list[str] = []
    for mark in marks:
        if mark[0] in "[{":
            open_.append("]" if mark[0] == "[" else "}")
        elif open_ and mark[0] in "]}":
            open_.pop()
    end = marks[-1].start() if marks[-1][0] == "," else marks[-1].end()
    return head[:end] + "".join(reversed(open_))


def _json(text: str) -> Any:
    if not _may_be_json(text):
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None


def _rows(data: Any) -> list[dict[str, Any]]:
    """Return the records of a JSON value: a list of objects, or the only such list inside an object."""
    if isinstance(data, dict):
        lists: list[Any] = [value for value in data.values() if isinstance(value, list) and value]
        data = lists[0] if len(lists) == 1 else None
    rows: list[Any] = data if isinstance(data, list) else []
    return rows if all(isinstance(row, dict) for row in rows) else []


def _first_of(row: dict[str, Any], *keys: str) -> Any:
    return next((row[key] for key in keys if row.get(key)), "")


def _scalar(value: Any, width: int) -> str:
    if isinstance(value, dict):
        value = _first_of(value, "name", "target", "table") or value
    return clip(value if isinstance(value, str) else msgspec.json.encode(value).decode(), width)


def _is_search(_: str, data: Any) -> bool:
    rows = _rows(data)
    return bool(rows) and all(
        isinstance(_first_of(row, "url", "link", "href") or None, str) and row.keys() & {"title", *_SNIPPET_KEYS}
        for row in rows
    )


def _search(_: str, data: Any, length: int) -> _Description:
    def write(row: dict[str, Any]) -> str:
        words = clip(str(_first_of(row, *_SNIPPET_KEYS)), min(_SNIPPET, length // 4))
        return f"- {clip(str(_first_of(row, 'title')), 100)} {_first_of(row, 'url', 'link', 'href')} {words}"

    rows = _rows(data)
    return _Description(f"{len(rows)} search results", rows, write)


def _fields_of(entity: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the names of a schema's fields, each with its description."""
    fields = next((entity[key] for key in _FIELD_KEYS if isinstance(entity.get(key), list | dict) and entity[key]), ())
    if isinstance(fields, dict):
        named: dict[str, Any] = fields
        return [(str(name), field if isinstance(field, dict) else {"type": field}) for name, field in named.items()]
    each: list[Any] = list(fields)
    return [(str(f.get("name", f)), f) if isinstance(f, dict) else (str(f), {}) for f in each]


def _entities(data: Any) -> list[dict[str, Any]]:
    return [data] if isinstance(data, dict) and _fields_of(data) else _rows(data)


def _is_schema(_: str, data: Any) -> bool:
    entities = _entities(data)
    return bool(entities) and all(_fields_of(entity) for entity in entities)


def _schema(_: str, data: Any, __: int) -> _Description:
    entities = _entities(data)
    lines: list[str] = []
    for entity in entities:
        fields = _fields_of(entity)
        name = _scalar(_first_of(entity, "name", "title", "table") or "entity", 80)
        parts = [f"{name}: {counted(len(fields), 'field')}"]
        if key := _first_of(entity, "primary_key", "primaryKey", "key", "id"):
            parts.append(f"key {_scalar(key, 60)}")
        related = _first_of(entity, "relations", "relationships", "foreign_keys")
        if isinstance(related, list | dict):
            parts.append("relations " + ", ".join(_scalar(each, 60) for each in list(related)[:_FIELDS_PER_ENTITY]))
        lines.append("; ".join(parts))
        for name, field in fields if len(entities) == 1 else fields[:_FIELDS_PER_ENTITY]:
            kind = _first_of(field, "type", "data_type", "dataType")
            about = _first_of(field, "description", "comment")
            what = f"- {clip(name, 80)} {_scalar(kind, 40) if kind else ''}".rstrip()
            lines.append(f"{what}: {_scalar(about, _SNIPPET)}" if about else what)
    return _Description(lines[0], lines[1:])


def _is_rows(text: str, data: Any) -> bool:
    return bool(_rows(data)) or (data is None and kind_of_text(text) == "table")


def _table(text: str, data: Any, _: int) -> _Description:
    if rows := _rows(data):
        columns = ", ".join(dict.fromkeys(name for row in rows[:50] for name in row))
        return _Description(f"{counted(len(rows), 'row')}; columns {columns}", rows, _row)
    lines = [line for line in text.split("\n") if line.strip(" |-+:\t")]  # a horizontal rule is not a row
    return _Description(f"table of {counted(max(0, len(lines) - 1), 'row')}", lines, _clip_row)


def _clip_row(line: str) -> str:
    return clip(line, 160)


def _row(row: dict[str, Any]) -> str:
    return ", ".join(f"{name}={_scalar(value, 40)}" for name, value in row.items())


def _skeleton(_: str, data: Any, __: int) -> _Description:
    def walk(value: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
        if isinstance(value, dict) and value and depth < 3:
            inside: dict[str, Any] = value
            for name, inner in inside.items():
                yield from walk(inner, f"{path}.{name}" if path else str(name), depth + 1)
        else:
            yield path, value

    def write(leaf: tuple[str, Any]) -> str:
        path, value = leaf
        if isinstance(value, list):
            items: list[Any] = value
            return f"{path or 'list'}: {counted(len(items), 'item')}, first {_scalar(items[0], 80) if items else '–'}"
        return f"{path}: {_scalar(value, 80)}"

    first, *leaves = walk(data, "", 0)
    return _Description(write(first), leaves, write)


# --- text: listings, logs, pages, files -----------------------------------------------------------------------

_TAG = re.compile(r"<(?:!doctype html|html|head|body|title|h1|div|p)\b", re.I)
# Each of these reads a hostile text once. A tag has no other tag in it, and what no end tag closes ends with the text.
_TITLE = re.compile(r"<title[^<>]*>([^<]*)</title>|^#[ \t]+([^\n]+)|^title:[ \t]*([^\n]+)", re.I | re.M)
_HEADING = re.compile(r"<h[1-3]\b[^<>]*>((?:[^<]|<(?!/?h[1-3]\b))*+)</h[1-3]>|^#{1,3}[ \t]+([^\n]+)", re.I | re.M)
_MARKUP = re.compile(r"(?is)<(script|style)\b.*?(?:</\1>|\Z)|<!--.*?(?:-->|\Z)|</?[a-z!][^<>]*>")
_PAGE_HEADING = re.compile(r"^#{2,3} \S|^# \S.*(?=\n\n)", re.M)  # what follows a comment is its code
_LINK = re.compile(r"https?://[^\s\"'<>)\]]+")
_PATH_LINE = re.compile(r"^[\s│├└─|`*+-]*(?:[-dl][rwx-]{9}\S*\s.*\s)?([\w@.~ -]*/?[\w@.~/-]*[\w@.~/-])/?\s*$")
_ENDING = re.compile(r"\.([^./\s]++)[ \t\r]*+$", re.M)
_PATH_MARK = re.compile(r"/\w|\.[A-Za-z][\w.-]*\s*$|^[-dl]r")  # a number ends no path, such as that of a version
_DEFINITION = re.compile(
    r"^\s*+(?:(\d+) *+[\t|:→])?\s*+((?:export |pub |async |static |public |private |default )*"
    r"(?:def|class|func|function|fn|interface|struct|enum|impl|trait|type)\s+[\w.<>()\[\]:*&, ]+)"
)


def _is_listing(text: str, data: Any) -> bool:
    if data is not None:
        paths: list[Any] = data if isinstance(data, list) else []
        return bool(paths) and all(isinstance(path, str) and len(path) < 200 for path in paths)
    lines = [line for line in text.split("\n", 60)[:60] if line.strip()]
    others = 0
    for line in lines:
        if not (len(line) < 200 and _PATH_MARK.search(line) and _PATH_LINE.match(line)):
            others += 1
            if 10 * others > 3 * len(lines):
                return False
    return len(lines) >= 3


def _listing(text: str, data: Any, _: int) -> _Description:
    every: list[str] = data if isinstance(data, list) else list(filter(str.strip, text.split("\n")))
    listed = text if data is None else "\n".join(every)
    kinds = Counter(_ENDING.findall(listed, 0, 4 * LOOKED_AT))
    whole = len(listed) <= 4 * LOOKED_AT
    endings = ", ".join(f"{count} .{kind}" if whole else f".{kind}" for kind, count in kinds.most_common(4))
    return _Description(f"{counted(len(every), 'entry', 'entries')}{': ' * bool(endings)}{endings}", every, _clip_path)


def _clip_path(path: str) -> str:
    return clip(path, 120)


def _log(text: str, _: Any, length: int) -> _Description:
    text = text.strip("\n")
    first, last = text.partition("\n")[0], text.rpartition("\n")[2]
    trouble = trouble_lines(text, most=4, width=max(80, length // 4))
    lines = list(dict.fromkeys([clip(first, 120), *trouble, clip(last, 120)]))
    return _Description(f"log of {counted(text.count(chr(10)) + 1, 'line')}", lines)


def _is_page(text: str, data: Any) -> bool:
    headings = _PAGE_HEADING.findall(text, 0, LOOKED_AT)
    return data is None and (len(headings) >= 2 or bool(_TAG.search(text[:LOOKED_AT])))


def _page(text: str, _: Any, length: int) -> _Description:
    title_match = _TITLE.search(text, 0, 4 * LOOKED_AT)
    title = next((group for group in title_match.groups() if group), "") if title_match else ""
    max_chars = max(80, length // 2)
    lines = [clip(_without_markup(text[: 40 * length]), max(80, length // 3))]
    headings: dict[str, None] = {}
    for match in _HEADING.finditer(text):
        if heading := next((group for group in match.groups() if group), ""):
            headings[clip(_without_markup(heading), 60)] = None
            if sum(map(len, headings)) > max_chars:
                break
    if headings:
        lines.append(clip(f"sections: {'; '.join(headings)}", max_chars))
    if links := list(dict.fromkeys(_LINK.findall(text))):
        lines.append(clip(f"{len(links)} links: " + " ".join(links[:3]), max_chars))
    head = f"page: {_without_markup(title)}" if title else "page"
    return _Description(clip(head, min(106, max_chars)), lines)


def _without_markup(text: str) -> str:
    return unescape(_MARKUP.sub(" ", text))


def _file(text: str, _: Any, length: int) -> _Description:
    lines = text.split("\n")
    first = next((clip(line, 100) for line in lines if line.strip()), "")
    definitions: list[str] = []
    for number, line in enumerate(lines, 1):
        if match := _DEFINITION.match(line):
            definitions.append(f"{match[1] or number}: {clip(match[2], 80)}")
            length -= len(definitions[-1])
            if length < 0:
                break  # the rest of a long file need not be looked at
    return _Description(f"{counted(len(lines), 'line')}; begins: {first}", definitions)


def _is_text(kind: str) -> Callable[[str, Any], bool]:
    return lambda text, data: data is None and kind_of_text(text) == kind


COMPACTORS: dict[str, Compactor] = {
    kind.name: kind
    for kind in (
        _BuiltIn("search", _is_search, _search),
        _BuiltIn("schema", _is_schema, _schema),
        _BuiltIn("listing", _is_listing, _listing),
        _BuiltIn("rows", _is_rows, _table),
        _BuiltIn("json", lambda _, data: isinstance(data, dict | list), _skeleton),
        _BuiltIn("log", _is_text("log"), _log),
        _BuiltIn("page", _is_page, _page),
        _BuiltIn("file", _is_text("code"), _file),
    )
}
"""Every compactor by name, in the order in which they are tried."""
