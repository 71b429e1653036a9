"""Compactors: one for each kind of result, to say in a few lines what it was. Short, general, deterministic."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any, Protocol

import msgspec

from repertory.context.cutting import LOOKED_AT, clip, first_chars, kind_of_text
from repertory.context.lines import trouble_lines

_SNIPPET = 200  # characters of a search result's snippet, and of what a schema says of a field, at most
_FIRST_FIELDS = 5  # of each of several schemas; of a single one all, as far as there is room


class Compactor(Protocol):
    """Makes a few lines out of one kind of result."""

    @property
    def name(self) -> str:
        """The name that ``ResultPolicy.compactor`` takes."""
        ...

    def matches(self, text: str, data: Any) -> bool:
        """Whether a result is of this kind; asked even where the compactor is named.

        Args:
            text: The whole result.
            data: The same as JSON values; None where it is not JSON.
        """
        ...

    def compact(self, text: str, data: Any, length: int) -> str:
        """Say what the result was, in about ``length`` characters."""
        ...


class _Kind(msgspec.Struct, frozen=True):
    """A built-in compactor: what tells its kind, and the lines that say what a result was; as many as fit are shown."""

    name: str
    test: Callable[[str, Any], bool]
    lines: Callable[[str, Any, int], Iterable[str]]

    def matches(self, text: str, data: Any) -> bool:
        return self.test(text, data)

    def compact(self, text: str, data: Any, length: int) -> str:
        lines = list(self.lines(text, data, length))
        for at, line in enumerate(lines):
            length -= len(line) + 1
            if length < 0 and at:
                return "\n".join([*lines[:at], f"… {len(lines) - at} more"])
        return "\n".join(lines)


def compact(text: str, length: int, *, tool: str = "", name: str = "") -> str:
    """Say what a result was: as ``said_of`` does, or by its first words where no compactor fits."""
    said = said_of(text, length, tool=tool, name=name)
    return beginning(text, length) if said is None else said


def said_of(text: str, length: int, *, tool: str = "", name: str = "", asked_for: bool = False) -> str | None:
    """What a compactor says of a result, never longer than ``length``; None where none fits.

    The first that matches speaks: the one that is named, the one that has the tool's name, then every other. One that
    raises does not; see ``on_compactor_failure``.

    Args:
        text: The result.
        length: Characters that the answer may take.
        tool: The tool's name.
        name: Name of the compactor; "" finds one by the content.
        asked_for: Whether only those may speak that are named or that the application added for the tool.
    """
    others = () if asked_for else COMPACTORS
    own = "" if asked_for and isinstance(COMPACTORS.get(tool), _Kind) else tool
    known = [COMPACTORS[each] for each in dict.fromkeys((name, own, *others)) if each in COMPACTORS]
    data = _json(text) if known else None
    for compactor in known:
        try:
            if compactor.matches(text, data):
                return first_chars(compactor.compact(text, data, length), length)
        except Exception as error:  # noqa: BLE001 - an application's code, and its result is better said badly than lost
            _on_failure.get()(compactor.name, error)
    return None


def beginning(text: str, length: int) -> str:
    """What stands for a text of no known kind: its first words, in half of the room."""
    return first_chars(" ".join(text[: 4 * length].split()), length // 2)


def _nobody(name: str, error: Exception) -> None:
    """Tell nobody that a compactor raised."""


_on_failure: ContextVar[Callable[[str, Exception], None]] = ContextVar("on_compactor_failure", default=_nobody)


def on_compactor_failure(tell: Callable[[str, Exception], None]) -> None:
    """From now on, in this task and those that it starts, tell a function which compactor raised what."""
    _on_failure.set(tell)


def register_compactor(compactor: Compactor) -> None:
    """Add a compactor, before all others of other names; one of the same name is replaced."""
    others = {name: other for name, other in COMPACTORS.items() if name != compactor.name}
    COMPACTORS.clear()
    COMPACTORS.update({compactor.name: compactor, **others})


# --- JSON: search results, schemas, rows, anything ------------------------------------------------------------

_TELLING = ("snippet", "description", "text", "content")
_FIELDS = ("fields", "columns", "properties", "attributes")


def _json(text: str) -> Any:
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None


def _rows(data: Any) -> list[dict[str, Any]]:
    """The records of a JSON value: a list of objects, or the one such list inside an object."""
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


def _search(_: str, data: Any, length: int) -> Iterator[str]:
    rows = _rows(data)
    yield f"{len(rows)} search results"
    for row in rows:
        words = clip(str(_first(row, *_TELLING)), min(_SNIPPET, length // 4))
        yield f"- {clip(str(_first(row, 'title')), 100)} {_first(row, 'url', 'link', 'href')} {words}"


def _fields_of(entity: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The names of a schema's fields, each with what is said of it."""
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


def _schema(_: str, data: Any, length: int) -> Iterator[str]:
    entities = _entities(data)
    for entity in entities:
        fields = _fields_of(entity)
        told = [f"{_scalar(_first(entity, 'name', 'title', 'table') or 'entity', 80)}: {len(fields)} fields"]
        if key := _first(entity, "primary_key", "primaryKey", "key", "id"):
            told.append(f"key {_scalar(key, 60)}")
        related = _first(entity, "relations", "relationships", "foreign_keys")
        if isinstance(related, list | dict):
            told.append("relations " + ", ".join(_scalar(each, 60) for each in list(related)[:_FIRST_FIELDS]))
        yield "; ".join(told)
        for name, said in fields if len(entities) == 1 else fields[:_FIRST_FIELDS]:
            kind, about = _first(said, "type", "data_type", "dataType"), _first(said, "description", "comment")
            what = f"- {clip(name, 80)} {_scalar(kind, 40) if kind else ''}".rstrip()
            yield f"{what}: {_scalar(about, _SNIPPET)}" if about else what


def _is_rows(text: str, data: Any) -> bool:
    return bool(_rows(data)) or (data is None and kind_of_text(text) == "table")


def _table(text: str, data: Any, _: int) -> Iterator[str]:
    if rows := _rows(data):
        yield f"{len(rows)} rows; columns {', '.join(dict.fromkeys(name for row in rows[:50] for name in row))}"
        for row in rows:
            yield ", ".join(f"{name}={_scalar(value, 40)}" for name, value in row.items())
        return
    lines = [line for line in text.split("\n") if line.strip(" |-+:\t")]
    yield f"table of {max(0, len(lines) - 1)} rows"
    yield from (clip(line, 160) for line in lines)


def _skeleton(_: str, data: Any, __: int) -> Iterator[str]:
    def lines(value: Any, path: str, depth: int) -> Iterator[str]:
        if isinstance(value, dict) and value and depth < 3:
            inside: dict[str, Any] = value
            for name, inner in inside.items():
                yield from lines(inner, f"{path}.{name}" if path else str(name), depth + 1)
        elif isinstance(value, list):
            items: list[Any] = value
            yield f"{path or 'list'}: {len(items)} items, first {_scalar(items[0], 80) if items else '–'}"
        else:
            yield f"{path}: {_scalar(value, 80)}"

    return lines(data, "", 0)


# --- text: listings, logs, pages, files -----------------------------------------------------------------------

_TAG = re.compile(r"<(?:!doctype html|html|head|body|title|h1|div|p)\b", re.I)
_TITLE = re.compile(r"<title[^>]*>([^<]*)</title>|^#[ \t]+([^\n]+)|^title:[ \t]*([^\n]+)", re.I | re.M)
_HEADING = re.compile(r"<h[1-3][^>]*>([^<]*)</h[1-3]>|^#{1,3}[ \t]+([^\n]+)", re.I | re.M)
_MARKUP = re.compile(r"(?s)<(?:script|style)\b.*?</(?:script|style)>|<[^>]+>")
_LINK = re.compile(r"https?://[^\s\"'<>)\]]+")
_PATH_LINE = re.compile(r"^[\s│├└─|`*+-]*(?:[-dl][rwx-]{9}\S*\s.*\s)?([\w@.~ -]*/?[\w@.~/-]*[\w@.~/-])/?\s*$")
_PATH_MARK = re.compile(r"[./]\w|^[-dl]r")
_DEFINITION = re.compile(
    r"^\s*(?:(\d+)\s*[\t|:→]\s?)?\s*((?:export |pub |async |static |public |private |default )*"
    r"(?:def|class|func|function|fn|interface|struct|enum|impl|trait|type)\s+[\w.<>()\[\]:*&, ]+)"
)


def _is_listing(text: str, data: Any) -> bool:
    if data is not None:
        paths: list[Any] = data if isinstance(data, list) else []
        return bool(paths) and all(isinstance(path, str) and len(path) < 200 for path in paths)
    lines = [line for line in text.split("\n")[:60] if line.strip()]
    found = [line for line in lines if len(line) < 200 and _PATH_LINE.match(line) and _PATH_MARK.search(line)]
    return len(lines) >= 3 and 10 * len(found) >= 7 * len(lines)


def _listing(text: str, data: Any, _: int) -> Iterator[str]:
    every: list[str] = data if isinstance(data, list) else [line.strip() for line in text.split("\n") if line.strip()]
    kinds = Counter(path.rpartition(".")[2] for path in every if "." in path.rpartition("/")[2])
    counted = ", ".join(f"{count} .{kind}" for kind, count in kinds.most_common(4))
    yield f"{len(every)} entries{': ' * bool(counted)}{counted}"
    yield from (clip(path, 120) for path in every)


def _log(text: str, _: Any, length: int) -> Iterator[str]:
    lines = [line for line in text.split("\n") if line.strip()]
    yield f"log of {len(lines)} lines"
    trouble = trouble_lines(text, most=4, width=max(80, length // 4))
    yield from dict.fromkeys([clip(lines[0], 120), *trouble, clip(lines[-1], 120)])


def _is_page(text: str, data: Any) -> bool:
    headings = len(re.findall(r"(?m)^#{1,3} \S", text[:LOOKED_AT]))
    return data is None and (headings >= 2 or bool(_TAG.search(text[:LOOKED_AT])))


def _page(text: str, _: Any, length: int) -> Iterator[str]:
    titled = _TITLE.search(text)
    title = next((group for group in titled.groups() if group), "") if titled else ""
    most = max(80, length // 2)
    yield clip(f"page: {title}" if title else "page", min(106, most))
    yield clip(_MARKUP.sub(" ", text[: 40 * length]), max(80, length // 3))
    headings = [next(group for group in match if group) for match in _HEADING.findall(text) if any(match)]
    if headings:
        yield clip("sections: " + "; ".join(dict.fromkeys(clip(_MARKUP.sub(" ", h), 60) for h in headings)), most)
    if links := list(dict.fromkeys(_LINK.findall(text))):
        yield clip(f"{len(links)} links: " + " ".join(links[:3]), most)


def _file(text: str, _: Any, length: int) -> Iterator[str]:
    lines = text.split("\n")
    first = next((clip(line, 100) for line in lines if line.strip()), "")
    yield f"{len(lines)} lines; begins: {first}"
    for number, line in enumerate(lines, 1):
        if match := _DEFINITION.match(line):
            told = f"{match[1] or number}: {clip(match[2], 80)}"
            yield told
            length -= len(told)
            if length < 0:
                return  # the rest of a long file need not be looked at


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
