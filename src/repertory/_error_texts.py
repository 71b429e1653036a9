"""What an error of somebody else's says: also where several came together, or where its text cannot be made."""

from __future__ import annotations

from typing import Any, cast


def leaves_of(error: BaseException) -> list[BaseException]:
    """The errors in a tree of groups that are no groups themselves."""
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
    """``TypeName: message``; of errors that came together each one's, and not that of the group around them."""
    return "; ".join(f"{type(leaf).__name__}: {safe_str(leaf)}" for leaf in leaves_of(error))
