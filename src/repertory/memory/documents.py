"""Payloads as JSON documents: looking up a path, comparing two documents, and applying a change.

A document is never changed in place: a change makes a new one, which shares the unchanged parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias, TypeVar, cast

from repertory._choices import show
from repertory._json_values import Misfit
from repertory.errors import PayloadInvalid
from repertory.record.memory_records import PathParts, PayloadChange, PayloadChanged

Path: TypeAlias = str | Sequence[str | int]
"""A place in a document: ``"author.name"``, ``"findings.0"``, or a tuple of the parts if a name has a dot in it."""

MISSING: Final = object()
_MOST_DIGITS: Final = 19  # of a list index; Python refuses to parse a number of thousands of digits
_LONGEST_SHOWN: Final = 200  # characters of a part of a path in an error, which the tool's model is shown
T = TypeVar("T")


def parts_of(path: Path) -> PathParts:
    """The parts of a path; () for the whole.

    Raises:
        PayloadInvalid: It is not a path.
    """
    given: Any = (path.split(".") if path else ()) if isinstance(path, str) else path
    if not isinstance(given, list | tuple) or not all(map(_is_part, given)):
        raise PayloadInvalid(f"a path in a payload is 'author.name' or ('author', 'name'), got {show(path)}")
    return tuple(given)


def _is_part(part: object) -> bool:
    return part != "" if isinstance(part, str) else isinstance(part, int) and abs(part) < 10**_MOST_DIGITS


def show_path(path: Sequence[str | int]) -> str:
    """A path as it is written in error messages."""
    shown = (
        part if isinstance(part, int) or len(part) <= _LONGEST_SHOWN else f"{part[:_LONGEST_SHOWN]}…" for part in path
    )
    return "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in shown)


def resolve(document: Any, path: Path, *, last: bool = True) -> PathParts:
    """The parts of a path into a document, with list indexes as integers; a last part that is a name may be missing
    unless ``last``.

    Raises:
        PayloadInvalid: A part does not exist. The message says where the path ends, and what is there.
    """
    parts, done = parts_of(path), list[str | int]()
    for number, part in enumerate(parts, start=1):
        if isinstance(document, list):
            length = len(document)
            is_number = isinstance(part, int) or (part.isdecimal() and len(part) < _MOST_DIGITS)
            index = int(part) if is_number else -1
            if not 0 <= index < length:
                raise PayloadInvalid(f"the payload has no item {show(part)} at {show_path(done)}, a list of {length}")
            document, part = document[index], index  # noqa: PLW2901
        elif isinstance(document, dict):
            part = str(part)  # noqa: PLW2901 - JSON keys are strings
            if part not in document and (last or number < len(parts)):
                there = ", ".join(map(str, document)) or "nothing"  # pyright: ignore[reportUnknownArgumentType]
                raise PayloadInvalid(f"the payload has no {show(part)} at {show_path(done)}; there is {there:.300}")
            document = document.get(part)
        else:
            raise PayloadInvalid(f"the payload has {document!r:.60} at {show_path(done)}, which has no {show(part)}")
        done.append(part)
    return tuple(done)


def find(document: Any, parts: PathParts) -> Any:
    """The value at a place; ``MISSING`` if there is none."""
    for part in parts:
        if isinstance(document, str):  # has characters, which are no places
            return MISSING
        try:
            document = document[part]
        except (LookupError, TypeError):
            return MISSING
    return document


def changed(document: Any, *changes: PayloadChange) -> Any:
    """The document with changes applied, in order. Missing fields and lists on a path are created.

    Raises:
        Misfit: A value at a change's place, or on the path to it, cannot hold what is to be there.
    """
    made: dict[int, Any] = {}  # copies of dicts and lists, by id: each is made once, however many changes are in it
    for change in changes:
        document = _changed(document, change.path, change, made)
    return document


def _changed(document: Any, path: PathParts, change: PayloadChange, made: dict[int, Any]) -> Any:
    if not path and change.op == "set":
        return change.value
    if not path:
        grown = _copy(list, [] if document is None else document, change, made)
        grown.extend(change.value)
        return grown
    part, rest = path[0], path[1:]
    if isinstance(part, int):
        items: list[Any] = _copy(list, document, change, made)
        if part >= len(items):
            raise Misfit(f"there is no item {part} for {show_path(change.path)}, but a list of {len(items)}")
        items[part] = _changed(items[part], rest, change, made)
        return items
    fields: dict[str, Any] = _copy(dict, {} if document is None else document, change, made)
    if not rest and change.op == "remove":
        fields.pop(part, None)
    else:
        fields[part] = _changed(fields.get(part), rest, change, made)
    return fields


def _copy(kind: type[T], document: Any, change: PayloadChange, made: dict[int, Any]) -> T:
    """A copy of what a change applies to, which must be of this type; the same one if it is such a copy already."""
    if not isinstance(document, kind):
        raise Misfit(f"{show_path(change.path)} cannot be changed where there is {document!r:.60}")
    if id(document) in made:
        return document
    fresh: T = kind(document)  # type: ignore[call-arg]
    made[id(fresh)] = fresh
    return fresh


def document_of(records: Iterable[PayloadChanged]) -> Any:
    """The document that results from the versions of a payload, beginning with the first."""
    return changed(None, *(change for record in records for change in record.changes))


def changes_between(old: Any, new: Any, path: PathParts = ()) -> Iterator[PayloadChange]:
    """The changes that turn ``old`` into ``new``, each at the innermost place.

    A list that is new or only grew is appended to, so that others may append to it too. A list in which something moved
    is set as a whole.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        was, now = cast("dict[str, Any]", old), cast("dict[str, Any]", new)
        for name, value in now.items():
            if name in was:
                yield from changes_between(was[name], value, (*path, name))
            else:
                yield PayloadChange(path=(*path, name), op="append" if isinstance(value, list) else "set", value=value)
        for name in was:
            if name not in now:
                yield PayloadChange(path=(*path, name), op="remove")
    elif isinstance(old, list) and isinstance(new, list):
        yield from _changes_of_list(old, new, path)
    elif type(old) is not type(new) or old != new:
        yield PayloadChange(path=path, value=new)


def _changes_of_list(old: list[Any], new: list[Any], path: PathParts) -> Iterator[PayloadChange]:
    if len(new) == len(old):
        for index, (was, now) in enumerate(zip(old, new, strict=True)):
            yield from changes_between(was, now, (*path, index))
    elif len(new) > len(old) and is_same(old, new[: len(old)]):
        yield PayloadChange(path=path, op="append", value=new[len(old) :])
    else:
        yield PayloadChange(path=path, value=new)


def is_same(one: Any, other: Any) -> bool:
    """Whether two documents are equal; 1 and true differ."""
    return next(changes_between(one, other), None) is None


def overlaps(one: PathParts, other: PathParts) -> bool:
    """Whether two places are the same, or one is within the other."""
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]


def collide(one: PayloadChange, other: PayloadChange) -> bool:
    """Whether two changes of the same document conflict: the second would undo or misplace the first."""
    if not overlaps(one.path, other.path):
        return False
    # An append moves nothing: neither what others append, nor what they change in existing items.
    appended, else_where = (one, other) if one.op == "append" else (other, one)
    return not (appended.op == "append" and (else_where.op == "append" or len(else_where.path) > len(appended.path)))
