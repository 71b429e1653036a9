"""Immutable JSON: the dicts and lists in a record.

A frozen struct with a dict in it is not frozen: whoever holds it could change what was recorded, and so the next
request. So records convert such values to ``FrozenDict`` and ``FrozenList``. These are equal to plain ones, are written
as the same JSON, and raise on any change; ``copy.deepcopy`` makes a plain copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import UnionType
from typing import Any, ClassVar, Final, NoReturn, TypeAlias, get_args, get_origin, get_type_hints

import msgspec

from repertory.errors import RecordRefused

Json: TypeAlias = dict[str, Any]

# Levels of nesting in a value. On Python 3.11, readers and writers of JSON take one of 1,000 frames for each level; the
# other frames are left to the code that calls them, which may have more of them when it reads than when it wrote.
_DEEPEST: Final = 500


def _refuse(self: object, *_: object, **__: object) -> NoReturn:
    raise TypeError(
        "what is recorded never changes, and this is part of it; copy.deepcopy(value) gives a copy to change"
    )


class FrozenDict(dict[str, Any]):
    """A dict that raises ``TypeError`` instead of changing."""

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        return dict, (dict(self),)  # copies are plain


class FrozenList(list[Any]):
    """A list that raises ``TypeError`` instead of changing."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse

    def __reduce__(self) -> tuple[type[list[Any]], tuple[list[Any]]]:
        return list, (list(self),)


EMPTY_DICT: Final = FrozenDict()
"""Shared by all empty fields; a struct that has it as the default leaves the field out of its ``repr``."""

_DONE: Final = frozenset({str, int, float, bool, type(None), FrozenDict, FrozenList})  # need no freezing
_EMPTY: Final[dict[type[Any], Any]] = {dict: EMPTY_DICT, list: FrozenList()}


class TooDeep(RecordRefused, RecursionError):
    """A value contains itself or is nested too deep to be stored; both a record error and a recursion error."""


def freeze(value: Any, *, deepest: int = _DEEPEST) -> Any:
    """The same value with every dict, list and set in it replaced by an immutable one; what is frozen is kept.

    A text of a subclass, as libraries return them, becomes a plain one.

    Raises:
        TooDeep: The value contains itself, or is nested more than ``deepest`` levels deep.
    """
    frozen = _shell(value)
    # A loop, not recursion: what a model sends may be nested deeper than the stack allows.
    todo = [(frozen, 1)] if frozen is not value and isinstance(frozen, dict | list) else []
    while todo:
        box, depth = todo.pop()
        if depth > deepest:
            raise TooDeep(f"a value that contains itself, or has more than {deepest:,} levels, cannot be kept")
        put: Any = dict.__setitem__ if isinstance(box, dict) else list.__setitem__
        for key, inner in box.items() if isinstance(box, dict) else enumerate(box):
            if inner.__class__ not in _DONE and (made := _shell(inner)) is not inner:
                put(box, key, made)
                if isinstance(made, dict | list):
                    todo.append((made, depth + 1))
    return frozen


def freeze_fields(struct: msgspec.Struct, *names: str, sequences: Sequence[str] = (), deepest: int = _DEEPEST) -> None:
    """Freeze fields of a struct that is being made; for ``__post_init__``.

    Args:
        struct: The struct.
        names: Fields that hold JSON.
        sequences: Fields that hold a tuple; a list becomes a tuple.
        deepest: How many levels the JSON may have.
    """
    for name in names:
        value = getattr(struct, name)
        kind = value.__class__
        if kind not in _DONE:
            try:
                frozen = freeze(value, deepest=deepest) if value or kind not in _EMPTY else _EMPTY[kind]
            except TooDeep as error:
                raise TooDeep(f"{type(struct).__name__}.{name}: {error}") from None
            msgspec.structs.force_setattr(struct, name, frozen)
    for name in sequences:
        value = getattr(struct, name)
        if value.__class__ is not tuple and isinstance(value, list):
            msgspec.structs.force_setattr(struct, name, tuple(value))


_FIELDS: Final[dict[type[msgspec.Struct], tuple[list[str], list[str]]]] = {}  # those with JSON, and with a tuple


class Frozen(msgspec.Struct, frozen=True, kw_only=True):
    """A struct that freezes every field with JSON (``Json`` or ``Any``) when it is made, and makes lists tuples."""

    deepest: ClassVar[int] = _DEEPEST  # levels that its JSON may have

    def __post_init__(self) -> None:
        kind = type(self)
        if kind not in _FIELDS:
            hints = get_type_hints(kind)
            types = {
                name: get_args(hints[name]) if isinstance(hints[name], UnionType) else (hints[name],)
                for name in kind.__struct_fields__
            }
            _FIELDS[kind] = (
                [name for name, each in types.items() if Json in each or Any in each],
                [name for name, each in types.items() if any(get_origin(arm) is tuple for arm in each)],
            )
        names, sequences = _FIELDS[kind]
        freeze_fields(self, *names, sequences=sequences, deepest=self.deepest)


def thaw(value: Json) -> Json:
    """A plain copy of a JSON object, which may be changed."""
    plain: Json = msgspec.to_builtins(value)
    return plain


def _shell(value: Any) -> Any:
    """A frozen container of the same items, or a plain text; the value itself if it is neither or already frozen."""
    if isinstance(value, FrozenDict | FrozenList):
        return value
    if isinstance(value, dict):
        return FrozenDict(value)
    if isinstance(value, list | tuple):  # the same in JSON
        return FrozenList(value)
    if isinstance(value, str):
        return str.__str__(value)
    return frozenset(value) if isinstance(value, set) else value
