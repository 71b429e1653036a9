"""Compactors: one for each kind of result, to say in a few lines what it was. Short, general, deterministic."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any, Protocol

import msgspec

from repertory.context.cutting import clip, first_chars, kind_of_text
from repertory.context.lines import trouble_lines

_SNIPPET = 200  # characters of a search result's snippet, at most
_FIRST_FIELDS = 5
_LOOKED_AT = 4_000  # characters that decide what kind a text is


def _nobody(name: str, error: Exception) -> None:
    """Tell nobody that a compactor raised."""


_on_failure: ContextVar[Callable[[str, Exception], None]] = ContextVar("on_compactor_failure", default=_nobody)


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


class _Plain(msgspec.Struct, frozen=True):
    """A compactor made of two functions."""

    name: str
    test: Callable[[str, Any], bool]
    make: Callable[[str, Any, int], str]

    def matches(self, text: str, data: Any) -> bool:
        return self.test(text, data)

    def compact(self, text: str, data: Any, length: int) -> str:
        return self.make(text, data, length)


def compact(text: str, length: int, *, tool: str = "", name: str = "") -> str:
    """Say what a result was.

    The first compactor that matches speaks: the one that is named, the one that has the tool's name, then every
    other. One that raises does not; see ``on_compactor_failure``.

    Args:
        text: The result.
        length: Characters that the answer may take.
        tool: The tool's name.
        name: Name of the compactor; "" finds one by the content.

    Returns:
        Its few lines, never longer than ``length``; the beginning of the text where no compactor fits.
    """
    said = said_of(text, length, tool=tool, name=name)
    return beginning(text, length) if said is None else said


def said_of(text: str, length: int, *, tool: str = "", name: str = "") -> str | None:
    """What a compactor says of a result, as ``compact`` does; None where none fits."""
    data = _json(text)
    for known in dict.fromkeys((name, tool, *COMPACTORS)):
        compactor = COMPACTORS.get(known)
        if compactor is None:
            continue
        try:
            if compactor.matches(text, data):
                return first_chars(compactor.compact(text, data, length), length)
        except Exception as error:  # noqa: BLE001 - an application's code, and its result is better said badly than lost
            _on_failure.get()(known, error)
    return None


def beginning(text: str, length: int) -> str:
    """What stands for a text of no known kind: its first words, which leave room for names."""
    return first_chars(" ".join(text[: 4 * length].split()), length // 2)


def on_compactor_failure(tell: Callable[[str, Exception], None]) -> None:
    """From now on, in this task and those that it starts, tell a function which compactor raised what."""
    _on_failure.set(tell)


def register_compactor(compactor: Compactor) -> None:
    """Add a compactor, before all others of other names; one of the same name is replaced."""
    others = {name: other for name, other in COMPACTORS.items() if name != compactor.name}
    COMPACTORS.clear()
    COMPACTORS.update({compactor.name: compactor, **others})


def own_compactor(text: str, *, tool: str = "", name: str = "") -> str:
    """The name of a compactor that the application added, is named or has the tool's name, and matches; "" for none."""
    for known in dict.fromkeys((name, tool)):
        compactor = COMPACTORS.get(known)
        if compactor is None or isinstance(compactor, _Plain):
            continue
        try:
            if compactor.matches(text, _json(text)):
                return known
        except Exception as error:  # noqa: BLE001 - as in ``said_of``
            _on_failure.get()(known, error)
    return ""


def _json(text: str) -> Any:
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None


def _fit(lines: Iterable[str], length: int) -> str:
    """As many whole lines as fit, and how many did not."""
    out: list[str] = []
    every = list(lines)
    for at, line in enumerate(every):
        length -= len(line) + 1
        if length < 0 and out:
            out.append(f"… {len(every) - at} more")
            break
        out.append(line)
    return "\n".join(out)


def _rows(data: Any) -> list[dict[str, Any]]:
    """The records of a JSON value: a list of objects, or the one such list inside an object."""
    if isinstance(data, dict):
        lists: list[Any] = [value for value in data.values() if isinstance(value, list) and value]
        data = lists[0] if len(lists) == 1 else None
    rows: list[Any] = data if isinstance(data, list) else []
    return rows if all(isinstance(row, dict) for row in rows) else []


# --- search results ---------------------------------------------------------------------------------------


def _is_search(_: str, data: Any) -> bool:
    rows = _rows(data)
    return bool(rows) and all(isinstance(_address(row), str) and row.keys() & _TELLING for row in rows)


_TELLING = {"title", "snippet", "description", "text", "content"}


def _address(row: dict[str, Any]) -> Any:
    return row.get("url") or row.get("link") or row.get("href")


def _search(_: str, data: Any, length: int) -> str:
    lines: list[str] = []
    for row in _rows(data):
        words = row.get("snippet") or row.get("description") or row.get("text") or row.get("content") or ""
        lines.append(
            f"- {clip(str(row.get('title') or ''), 100)} {_address(row)} {clip(str(words), min(_SNIPPET, length // 4))}"
        )
    return _fit([f"{len(lines)} search results", *lines], length)


# --- schemas, database rows, other JSON -------------------------------------------------------------------

_FIELD_KEYS = ("fields", "columns", "properties", "attributes")


def _is_schema(_: str, data: Any) -> bool:
    entities = _rows(data) or ([data] if isinstance(data, dict) else [])
    return bool(entities) and all(_fields_of(entity) for entity in entities)


def _schema(_: str, data: Any, length: int) -> str:
    entities: list[dict[str, Any]] = _rows(data) or [data]
    return _fit((_entity(entity) for entity in entities), length)


def _fields_of(entity: dict[str, Any]) -> list[Any]:
    lists = (entity.get(key) for key in _FIELD_KEYS)
    return next((list(fields) for fields in lists if isinstance(fields, list | dict) and fields), [])


def _entity(entity: dict[str, Any]) -> str:
    names = [str(f.get("name", f)) if isinstance(f, dict) else str(f) for f in _fields_of(entity)]
    title = entity.get("name") or entity.get("title") or entity.get("table") or "entity"
    key = entity.get("primary_key") or entity.get("primaryKey") or entity.get("key") or entity.get("id")
    related = entity.get("relations") or entity.get("relationships") or entity.get("foreign_keys") or ()
    parts = [f"{title}: {len(names)} fields ({', '.join(names[:_FIRST_FIELDS])}{', …' * (len(names) > _FIRST_FIELDS)})"]
    if key:
        parts.append(f"key {key}")
    if isinstance(related, list | dict) and related:
        parts.append("relations " + ", ".join(clip(_scalar(r), 60) for r in list(related)[:_FIRST_FIELDS]))
    return "; ".join(parts)


def _scalar(value: Any) -> str:
    if isinstance(value, dict):
        named: dict[str, Any] = value
        value = named.get("name") or named.get("target") or named.get("table") or named
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _is_rows(text: str, data: Any) -> bool:
    return bool(_rows(data)) or (data is None and kind_of_text(text) == "table")


def _table(text: str, data: Any, length: int) -> str:
    rows = _rows(data)
    if rows:
        columns = list(dict.fromkeys(name for row in rows[:50] for name in row))
        lines = [", ".join(f"{name}={clip(_scalar(value), 40)}" for name, value in row.items()) for row in rows]
        return _fit([f"{len(rows)} rows; columns {', '.join(columns)}", *lines], length)
    lines = [line for line in text.split("\n") if line.strip(" |-+:\t")]
    return _fit([f"table of {max(0, len(lines) - 1)} rows", *(clip(line, 160) for line in lines)], length)


def _skeleton(_: str, data: Any, length: int) -> str:
    def lines(value: Any, path: str, depth: int) -> Iterable[str]:
        if isinstance(value, dict) and value and depth < 3:
            inside: dict[str, Any] = value
            for name, inner in inside.items():
                yield from lines(inner, f"{path}.{name}" if path else str(name), depth + 1)
        elif isinstance(value, list):
            items: list[Any] = value
            yield f"{path or 'list'}: {len(items)} items, first {clip(_scalar(items[0]), 80) if items else '–'}"
        else:
            yield f"{path}: {clip(_scalar(value), 80)}"

    return _fit(lines(data, "", 0), length)


# --- pages, files, directories, logs ----------------------------------------------------------------------

_TAG = re.compile(r"<(?:!doctype html|html|head|body|title|h1|div|p)\b", re.I)
_TITLE = re.compile(r"<title[^>]*>([^<]*)</title>|^#[ \t]+([^\n]+)|^title:[ \t]*([^\n]+)", re.I | re.M)
_HEADING = re.compile(r"<h[1-3][^>]*>([^<]*)</h[1-3]>|^#{1,3}[ \t]+([^\n]+)", re.I | re.M)
_MARKUP = re.compile(r"(?s)<(?:script|style)\b.*?</(?:script|style)>|<[^>]+>")
_LINK = re.compile(r"https?://[^\s\"'<>)\]]+")


def _is_page(text: str, data: Any) -> bool:
    return data is None and (
        bool(_TAG.search(text[:2000])) or len(re.findall(r"(?m)^#{1,3} \S", text[:_LOOKED_AT])) >= 2
    )


def _page(text: str, _: Any, length: int) -> str:
    titled = _TITLE.search(text)
    title = next((group for group in titled.groups() if group), "") if titled else ""
    headings = [next(group for group in match if group) for match in _HEADING.findall(text) if any(match)]
    names = list(dict.fromkeys(clip(_MARKUP.sub(" ", heading), 60) for heading in headings))
    words = clip(_MARKUP.sub(" ", text[: 40 * length]), max(80, length // 3))
    links = list(dict.fromkeys(_LINK.findall(text)))
    lines = [f"page: {clip(title, 100)}" if title else "page", words]
    if names:
        lines.append("sections: " + "; ".join(names))
    if links:
        lines.append(f"{len(links)} links: " + " ".join(links[:3]))
    return _fit((clip(line, max(80, length // 2)) for line in lines), length)


_DEFINITION = re.compile(
    r"^\s*(?:(\d+)\s*[\t|:→]\s?)?\s*((?:export |pub |async |static |public |private |default )*"
    r"(?:def|class|func|function|fn|interface|struct|enum|impl|trait|type)\s+[\w.<>()\[\]:*&, ]+)"
)


def _is_file(text: str, data: Any) -> bool:
    return data is None and kind_of_text(text) == "code"


def _file(text: str, _: Any, length: int) -> str:
    lines = text.split("\n")
    found: list[str] = []
    room = length
    for number, line in enumerate(lines, 1):
        match = _DEFINITION.match(line)
        if match:
            found.append(f"{match[1] or number}: {clip(match[2], 80)}")
            room -= len(found[-1])
            if room < 0:
                break
    first = next((clip(line, 100) for line in lines if line.strip()), "")
    return _fit([f"{len(lines)} lines; begins: {first}", *found], length)


_PATH_LINE = re.compile(r"^[\s│├└─|`*+-]*(?:[-dl][rwx-]{9}\S*\s.*\s)?([\w@.~ -]*/?[\w@.~/-]*[\w@.~/-])/?\s*$")


_PATH_MARK = re.compile(r"[./]\w|^[-dl]r")


def _is_listing(text: str, data: Any) -> bool:
    if data is not None:
        paths: list[Any] = data if isinstance(data, list) else []
        return bool(paths) and all(isinstance(path, str) and len(path) < 200 for path in paths)
    lines = [line for line in text.split("\n")[:60] if line.strip()]
    found = [line for line in lines if len(line) < 200 and _PATH_LINE.match(line) and _PATH_MARK.search(line)]
    return len(lines) >= 3 and 10 * len(found) >= 7 * len(lines)


def _listing(text: str, data: Any, length: int) -> str:
    every: list[str] = data if isinstance(data, list) else [line.strip() for line in text.split("\n") if line.strip()]
    kinds = Counter(path.rpartition(".")[2] for path in every if "." in path.rpartition("/")[2])
    counted = ", ".join(f"{count} .{kind}" for kind, count in kinds.most_common(4))
    return _fit([f"{len(every)} entries{': ' * bool(counted)}{counted}", *(clip(path, 120) for path in every)], length)


def _is_log(text: str, data: Any) -> bool:
    return data is None and kind_of_text(text) == "log"


def _log(text: str, _: Any, length: int) -> str:
    lines = [line for line in text.split("\n") if line.strip()]
    trouble = trouble_lines(text, most=4, width=max(80, length // 4))
    ends = [clip(lines[0], 120), *trouble, clip(lines[-1], 120)]
    return _fit([f"log of {len(lines)} lines", *dict.fromkeys(ends)], length)


COMPACTORS: dict[str, Compactor] = {
    compactor.name: compactor
    for compactor in (
        _Plain("search", _is_search, _search),
        _Plain("schema", _is_schema, _schema),
        _Plain("listing", _is_listing, _listing),
        _Plain("rows", _is_rows, _table),
        _Plain("json", lambda _, data: isinstance(data, dict | list), _skeleton),
        _Plain("log", _is_log, _log),
        _Plain("page", _is_page, _page),
        _Plain("file", _is_file, _file),
    )
}
"""Every compactor by name, in the order in which they are tried."""
