"""JSON as text: how it is read, from models and servers too, and how it is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence, Set, ValuesView
from datetime import date, time
from decimal import Decimal
from operator import methodcaller
from pathlib import PurePath
from typing import Any, Final

import msgspec

from repertory._constraints import is_pydantic_model

_sorted = msgspec.json.Encoder(order="sorted")
# msgspec writes most of these by itself, but not values of derived classes, as numpy and pandas have.
_PLAIN: Final[tuple[tuple[Any, Callable[[Any], Any]], ...]] = (
    (str, str.__str__),
    (bytes, bytes.__bytes__),
    (int, int.__int__),
    (float, float.__float__),
    ((Decimal, PurePath), str),
    ((date, time), methodcaller("isoformat")),
    (Mapping, dict),
    ((Sequence, Set, ValuesView), list),
)


def decode_text(text: str | bytes) -> Any:
    """Read a JSON text. Half a surrogate pair stays what it is.

    Raises:
        ValueError: It is not JSON.
    """
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        try:
            return json.loads(text, parse_constant=_refuse_constant)  # takes lone surrogates
        except (ValueError, RecursionError):
            raise ValueError(f"it is not JSON: {str(error).removeprefix('JSON is malformed: ')}") from None
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def decode_received(text: str | bytes) -> Any:
    """Read a JSON text from elsewhere, as ``decode_text``; half a surrogate pair becomes U+FFFD.

    Raises:
        ValueError: It is not JSON.
    """
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return msgspec.json.decode(_whole(decode_text(text)))


def is_half_a_pair(text: str | bytes) -> bool:
    """Whether a text that is no JSON for others is one but for half a surrogate pair, which no text can have."""
    try:
        json.dumps(decode_text(text), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    except ValueError:
        pass
    return False


def json_bytes(value: object) -> bytes:
    """Write JSON in UTF-8. Half a surrogate pair, as a cut in JavaScript leaves it, becomes U+FFFD.

    Raises:
        TypeError: Something in it cannot be written as JSON.
    """
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return _whole(msgspec.to_builtins(value)).encode()


def encode_other(value: Any) -> Any:
    """A pydantic model, a path, a collection, or a value of a derived class or of numpy as JSON; for ``enc_hook``."""
    if is_pydantic_model(type(value)):
        return value.model_dump(mode="json", by_alias=True)
    for kinds, plain in _PLAIN:
        if isinstance(value, kinds):
            return plain(value)
    if hasattr(type(value), "tolist"):  # an array or a number of numpy, an array.array
        return value.tolist()
    raise TypeError(f"a value of type {type(value).__name__} cannot be written as JSON")


def json_text(value: object) -> str:
    """A value as JSON, with null for numbers that JSON lacks; the same value always gives the same text.

    Raises:
        TypeError: Something in it cannot be written as JSON; also ``ValueError``.
        RecursionError: It contains itself, or is nested too deep.
    """
    try:
        return msgspec.json.encode(value, enc_hook=encode_other, order="deterministic").decode()
    except TypeError:  # a dict's keys may be enums, dates and the like; what cannot be written raises again
        plain = msgspec.to_builtins(value, enc_hook=encode_other, str_keys=True)
        return msgspec.json.encode(plain, order="deterministic").decode()
    except UnicodeEncodeError:  # lone surrogates inside: written as \\udcXX they are plain ASCII
        text = json.dumps(msgspec.to_builtins(value, enc_hook=encode_other, str_keys=True), sort_keys=True)
        plain = json.loads(text, parse_constant=lambda _: None)
        return json.dumps(plain, separators=(",", ":"))


def canonical_json(value: object) -> bytes:
    """Encode as JSON with sorted keys: the same value always gives the same bytes.

    Lone surrogates, which JSON from a model may contain and which UTF-8 cannot encode, are escaped.
    """
    try:
        return _sorted.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value), sort_keys=True, separators=(",", ":")).encode()


def _whole(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is a number that JSON does not have")
