"""Errors as texts, also foreign ones whose ``__str__`` is broken; and our own ones as JSON, to be raised elsewhere."""

from __future__ import annotations

import inspect
import math
from typing import Any, cast

from repertory import errors
from repertory.errors import RepertoryError, remade


def leaves_of(error: BaseException) -> list[BaseException]:
    """The errors in a tree of exception groups, without the groups."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    parts = cast("BaseExceptionGroup[BaseException]", error).exceptions
    return [leaf for part in parts for leaf in leaves_of(part)]


def safe_str(error: Any) -> str:
    """An error's text, even where its ``__str__`` is broken."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - foreign code: an error whose text fails must not hide the error itself
        return f"<{type(error).__name__} without a readable text>"


def telling(error: BaseException) -> BaseException:
    """The error itself or, if it has no text, the nearest that led to it and has one.

    On trio the HTTP client wraps what is wrong with a certificate in errors without a word.
    """
    told: BaseException | None = error
    while told is not None and not safe_str(told):
        told = told.__cause__ or told.__context__
    return error if told is None else told


def name_error(error: BaseException) -> str:
    """``TypeName: message``, or the name alone; for an exception group that of each error in it, not of the group."""
    return "; ".join(f"{type(leaf).__name__}: {safe_str(leaf)}".removesuffix(": ") for leaf in leaves_of(error))


def encode_error(error: RepertoryError) -> dict[str, Any]:
    """An error as JSON: the nearest type that every process knows, its message and the attributes of that type."""
    kind = next(kind for kind in type(error).__mro__ if getattr(errors, kind.__name__, None) is kind)
    known = inspect.signature(kind.__init__).parameters  # other attributes, of an application's type, may be secret
    plain = {
        name: value
        for name, value in vars(error).items()
        if name in known
        and (isinstance(value, str | int | None) or (isinstance(value, float) and math.isfinite(value)))
    }
    return {"type": kind.__name__, "message": safe_str(error), "attributes": plain}


def decode_error(encoded: dict[str, Any]) -> RepertoryError:
    """Decode what ``encode_error`` encoded. A type that only a newer version knows becomes a ``RepertoryError``."""
    error = remade(getattr(errors, encoded["type"], RepertoryError), encoded["message"])
    vars(error).update(encoded["attributes"])
    return error
