"""The texts of foreign errors, including groups of errors and errors whose ``__str__`` is broken."""

from __future__ import annotations

from typing import Any, cast


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


def name_error(error: BaseException) -> str:
    """``TypeName: message``, or the name alone; for an exception group that of each error in it, not of the group."""
    return "; ".join(f"{type(leaf).__name__}: {safe_str(leaf)}".removesuffix(": ") for leaf in leaves_of(error))
