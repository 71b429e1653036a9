"""Words of which there are a few: a wrong one is refused where it is written, with those that there are."""

from __future__ import annotations

from typing import Any, get_args

from repertory.errors import ConfigurationError


def choices(literal: Any) -> str:
    """The words of a ``Literal``, spelled out."""
    return " or ".join(map(repr, get_args(literal)))


def check_choice(where: str, value: object, literal: Any) -> None:
    """See that a value is one of the words of a ``Literal``.

    Raises:
        ConfigurationError: It is not.
    """
    if value not in get_args(literal):
        raise ConfigurationError(f"{where} is {value!r}; expected {choices(literal)}")
