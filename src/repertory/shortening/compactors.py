"""Compactors: one for each kind of result, which describes it in a few lines. Short, general, deterministic."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

import msgspec

from repertory._cutting import LOOKED_AT, clip, first_chars, kind_of_text
from repertory.shortening.lines import MOST_READ, looked_at, trouble_lines

_SNIPPET = 200  # at most, in characters: a search result's snippet, and a schema's description of a field
_FIRST_FIELDS = 5  # of each of several schemas; a single schema shows all that fit


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


class _Said(NamedTuple):
    """What a built-in compactor says: one line about the whole, then as many items as fit."""

    head: str
    items: Sequence[Any] = ()
    write: Callable[[Any], str] = str


class _Kind(msgspec.Struct, frozen=True):
    """A built-in compactor: how it recognizes its kind of result, and how it describes one."""

    name: str
    test: Callable[[str, Any], bool]
    say: Callable[[str, Any, int], _Said]

    def matches(self, text: str, data: Any) -> bool:
        return self.test(text, data)

    def compact(self, text: str, data: Any, length: int) -> str:
        said = self.say(text, data, length)
        lines = [said.head]
        length -= len(said.head) + 1
        for at, item in enumerate(said.items):
            line = said.write(item)
            length -= len(line) + 1
            if length < 0:
                return "\n".join([*lines, f"… {len(said.items) - at} more"])
            lines.append(line)
        return "\n".join(lines)


def compact(text: str, length: int, *, tool: str = "", name: str = "") -> str:
    """Describe a result as ``said_of`` does, or by its first words if no compactor fits."""
    said = said_of(text, length, tool=tool, name=name)
    return beginning(text, length) if said is None else said


def said_of(text: str, length: int, *, tool: str = "", name: str = "", asked_for: bool = False) -> str | None:
    """Return a compactor's description of a result, never longer than ``length``; None if no compactor fits.

    The first that matches is used: the one that is named, the one with the tool's name, then every other. One that
    raises is skipped; see ``on_compactor_failure``.

    Args:
        text: The result.
        length: Most characters of the description.
        tool: The tool's name.
        name: Name of the compactor; "" finds one by the content.
        asked_for: Whether to use only a compactor that is named or that the application added for the tool.
    """
    others = () if asked_for else COMPACTORS
    own = "" if asked_for and isinstance(COMPACTORS.get(tool), _Kind) else tool
    known = [COMPACTORS[each] for each in dict.fromkeys((name, own, *others)) if each in COMPACTORS]
    views: dict[bool, tuple[str, Any, str]] = {}
    for compactor in known:
        try:
            built_in = isinstance(compactor, _Kind)
            if built_in not in views:
                views[built_in] = _glance(text) if built_in else (text, _json(text), "")
            seen, data, note = views[built_in]
            if compactor.matches(seen, data):
                return first_chars(note + compactor.compact(seen, data, length - len(note)), length)
        except Exception as error:  # noqa: BLE001 - an application's code, and its result is better said badly than lost
            _on_failure.get()(compactor.name, error)
    return None


def _glance(text: str) -> tuple[str, Any, str]:
    """Return a part of a result that is quick to read, its JSON values, and a line that says how much of it that is."""
    if len(text) <= MOST_READ:
        return text, _json(text), ""
    closed = close_json(text[:MOST_READ]) if _may_be_json(text) else ""
    if (data := _json(closed)) is not None:
        return closed, data, f"of its first {len(closed):,} characters:\n"
    return looked_at(text), None, f"of its first {MOST_READ * 2 // 3:,} and last {MOST_READ // 3:,} characters:\n"


def beginning(text: str, length: int) -> str:
    """Describe a text of no known kind by its first words, in half of the room."""
    return first_chars(" ".join(text[: 4 * length].split()), length // 2)


def _nobody(name: str, error: Exception) -> None:
    """Ignore that a compactor raised."""


_on_failure: ContextVar[Callable[[str, Exception], None]] = ContextVar("on_compactor_failure", default=_nobody)


def on_compactor_failure(tell: Callable[[str, Exception], None]) -> None:
    """Report each compactor that raises, with its error, to a function: in this task and in those that it starts."""
    _on_failure.set(tell)


def register_compactor(compactor: Compactor) -> None:
    """Add a compactor ahead of all others; it replaces one of the same name."""
    others = {name: other for name, other in COMPACTORS.items() if name != compactor.name}
    COMPACTORS.clear()
    COMPACTORS.update({compactor.name: compactor, **others})


# --- JSON: search results, schemas, rows, anything ------------------------------------------------------------

_TELLING = ("snippet", "description", "text", "content")
_FIELDS = ("fields", "columns", "properties", "attributes")


_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[\]{},]', re.S)


def _may_be_json(text: str) -> bool:
    return text[:LOOKED_AT].lstrip()[:1] in ("{", "[")


def close_json(head: str) -> str:
    """Cut truncated JSON after its last whole value, and close the lists and objects that are open there."""
    end, closed, open_ = 0, "", ""
    for token in _TOKEN.finditer(head):
        match token[0]:
            case "[":
                open_ = "]" + open_
            case "{":
                open_ = "}" + open_
            case "]" | "}":
                open_ = open_[1:]
                end, closed = token.end(), open_
            case ",":
                end, closed = token.start(), open_
            case _:
                pass
    return head[:end] + closed


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


def _first(row: dict[str, Any], *keys: str) -> Any:
    return next((row[key] for key in keys if row.get(key)), "")


def _scalar(value: Any, width: int) -> str:
    if isinstance(value, dict):
        value = _first(value, "name", "target", "table") or value
    return clip(value if isinstance(value, str) else msgspec.json.encode(value).decode(), width)


def _is_search(_: str, data: Any) -> bool:
    rows = _rows(data)
    return bool(rows) and all(
        isinstance(_first(row, "url", "link", "href") or None, str) and row.keys() & {"title", *_TELLING}
        for row in rows
    )


def _search(_: str, data: Any, length: int) -> _Said:
    def write(row: dict[str, Any]) -> str:
        words = clip(str(_first(row, *_TELLING)), min(_SNIPPET, length // 4))
        return f"- {clip(str(_first(row, 'title')), 100)} {_first(row, 'url', 'link', 'href')} {words}"

    rows = _rows(data)
    return _Said(f"{len(rows)} search results", rows, write)


def _fields_of(entity: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the names of a schema's fields, each with its description."""
    fields = next((entity[key] for key in _FIELDS if isinstance(entity.get(key), list | dict) and entity[key]), ())
    if isinstance(fields, dict):
        named: dict[str, Any] = fields
        return [(str(name), said if isinstance(said, dict) else {"type": said}) for name, said in named.items()]
    each: list[Any] = list(fields)
    return [(str(f.get("name", f)), f) if isinstance(f, dict) else (str(f), {}) for f in each]


def _entities(data: Any) -> list[dict[str, Any]]:
    return [data] if isinstance(data, dict) and _fields_of(data) else _rows(data)


def _is_schema(_: str, data: Any) -> bool:
    entities = _entities(data)
    return bool(entities) and all(_fields_of(entity) for entity in entities)


def _schema(_: str, data: Any, __: int) -> _Said:
    entities = _entities(data)
    lines: list[str] = []
    for entity in entities:
        fields = _fields_of(entity)
        told = [f"{_scalar(_first(entity, 'name', 'title', 'table') or 'entity', 80)}: {len(fields)} fields"]
        if key := _first(entity, "primary_key", "primaryKey", "key", "id"):
            told.append(f"key {_scalar(key, 60)}")
        related = _first(entity, "relations", "relationships", "foreign_keys")
        if isinstance(related, list | dict):
            told.append("relations " + ", ".join(_scalar(each, 60) for each in list(related)[:_FIRST_FIELDS]))
        lines.append("; ".join(told))
        for name, said in fields if len(entities) == 1 else fields[:_FIRST_FIELDS]:
            kind, about = _first(said, "type", "data_type", "dataType"), _first(said, "description", "comment")
            what = f"- {clip(name, 80)} {_scalar(kind, 40) if kind else ''}".rstrip()
            lines.append(f"{what}: {_scalar(about, _SNIPPET)}" if about else what)
    return _Said(lines[0], lines[1:])


def _is_rows(text: str, data: Any) -> bool:
    return bool(_rows(data)) or (data is None and kind_of_text(text) == "table")


def _table(text: str, data: Any, _: int) -> _Said:
    if rows := _rows(data):
        columns = ", ".join(dict.fromkeys(name for row in rows[:50] for name in row))
        return _Said(f"{len(rows)} rows; columns {columns}", rows, _row)
    lines = [line for line in text.split("\n") if line.strip(" |-+:\t")]  # a horizontal rule is not a row
    return _Said(f"table of {max(0, len(lines) - 1)} rows", lines, _table_line)


def _table_line(line: str) -> str:
    return clip(line, 160)


def _row(row: dict[str, Any]) -> str:
    return ", ".join(f"{name}={_scalar(value, 40)}" for name, value in row.items())


def _skeleton(_: str, data: Any, __: int) -> _Said:
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
            return f"{path or 'list'}: {len(items)} items, first {_scalar(items[0], 80) if items else '–'}"
        return f"{path}: {_scalar(value, 80)}"

    first, *leaves = walk(data, "", 0)
    return _Said(write(first), leaves, write)


# --- text: listings, logs, pages, files -----------------------------------------------------------------------

_TAG = re.compile(r"<(?:!doctype html|html|head|body|title|h1|div|p)\b", re.I)
_TITLE = re.compile(r"<title[^>]*>([^<]*)</title>|^#[ \t]+([^\n]+)|^title:[ \t]*([^\n]+)", re.I | re.M)
_HEADING = re.compile(r"<h[1-3][^>]*>([^<]*)</h[1-3]>|^#{1,3}[ \t]+([^\n]+)", re.I | re.M)
_MARKUP = re.compile(r"(?s)<(?:script|style)\b.*?</(?:script|style)>|<[^>]+>")
_LINK = re.compile(r"https?://[^\s\"'<>)\]]+")
_PATH_LINE = re.compile(r"^[\s│├└─|`*+-]*(?:[-dl][rwx-]{9}\S*\s.*\s)?([\w@.~ -]*/?[\w@.~/-]*[\w@.~/-])/?\s*$")
_ENDING = re.compile(r"\.([^./\s]++)[ \t\r]*+$", re.M)
_PATH_MARK = re.compile(r"[./]\w|^[-dl]r")
_DEFINITION = re.compile(
    r"^\s*(?:(\d+)\s*[\t|:→]\s?)?\s*((?:export |pub |async |static |public |private |default )*"
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


def _listing(text: str, data: Any, _: int) -> _Said:
    every: list[str] = data if isinstance(data, list) else list(filter(str.strip, text.split("\n")))
    listed = text if data is None else "\n".join(every)
    kinds = Counter(_ENDING.findall(listed, 0, 4 * LOOKED_AT))
    whole = len(listed) <= 4 * LOOKED_AT
    counted = ", ".join(f"{count} .{kind}" if whole else f".{kind}" for kind, count in kinds.most_common(4))
    return _Said(f"{len(every)} entries{': ' * bool(counted)}{counted}", every, _listed)


def _listed(path: str) -> str:
    return clip(path, 120)


def _log(text: str, _: Any, length: int) -> _Said:
    text = text.strip("\n")
    first, last = text.partition("\n")[0], text.rpartition("\n")[2]
    trouble = trouble_lines(text, most=4, width=max(80, length // 4))
    lines = list(dict.fromkeys([clip(first, 120), *trouble, clip(last, 120)]))
    return _Said(f"log of {text.count(chr(10)) + 1} lines", lines)


def _is_page(text: str, data: Any) -> bool:
    headings = len(re.findall(r"(?m)^#{1,3} \S", text[:LOOKED_AT]))
    return data is None and (headings >= 2 or bool(_TAG.search(text[:LOOKED_AT])))


def _page(text: str, _: Any, length: int) -> _Said:
    titled = _TITLE.search(text, 0, 4 * LOOKED_AT)
    title = next((group for group in titled.groups() if group), "") if titled else ""
    most = max(80, length // 2)
    lines = [clip(_MARKUP.sub(" ", text[: 40 * length]), max(80, length // 3))]
    headings: dict[str, None] = {}
    for match in _HEADING.finditer(text):
        if heading := next((group for group in match.groups() if group), ""):
            headings[clip(_MARKUP.sub(" ", heading), 60)] = None
            if sum(map(len, headings)) > most:
                break
    if headings:
        lines.append(clip(f"sections: {'; '.join(headings)}", most))
    if links := list(dict.fromkeys(_LINK.findall(text))):
        lines.append(clip(f"{len(links)} links: " + " ".join(links[:3]), most))
    return _Said(clip(f"page: {title}" if title else "page", min(106, most)), lines)


def _file(text: str, _: Any, length: int) -> _Said:
    lines = text.split("\n")
    first = next((clip(line, 100) for line in lines if line.strip()), "")
    told: list[str] = []
    for number, line in enumerate(lines, 1):
        if match := _DEFINITION.match(line):
            told.append(f"{match[1] or number}: {clip(match[2], 80)}")
            length -= len(told[-1])
            if length < 0:
                break  # the rest of a long file need not be looked at
    return _Said(f"{len(lines)} lines; begins: {first}", told)


def _is_text(kind: str) -> Callable[[str, Any], bool]:
    return lambda text, data: data is None and kind_of_text(text) == kind


COMPACTORS: dict[str, Compactor] = {
    kind.name: kind
    for kind in (
        _Kind("search", _is_search, _search),
        _Kind("schema", _is_schema, _schema),
        _Kind("listing", _is_listing, _listing),
        _Kind("rows", _is_rows, _table),
        _Kind("json", lambda _, data: isinstance(data, dict | list), _skeleton),
        _Kind("log", _is_text("log"), _log),
        _Kind("page", _is_page, _page),
        _Kind("file", _is_text("code"), _file),
    )
}
"""Every compactor by name, in the order in which they are tried."""
