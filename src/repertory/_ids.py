"""Identifiers: short, readable, sortable by time. A sub-agent's run has its parent's id, a dot, and a suffix."""

from __future__ import annotations

import re
import secrets
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: no i, l, o, u
_MADE = re.compile(rf"\w+-[{_ALPHABET}]{{10}}-[{_ALPHABET}]{{6}}")


def _base32(value: int, width: int) -> str:
    digits = []
    for _ in range(width):
        value, digit = divmod(value, 32)
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))


def new_id(prefix: str) -> str:
    """Make an identifier such as ``run-01kb3v8x2c-9f4t7q``.

    Args:
        prefix: What the identifier names.

    Returns:
        The prefix, ten characters of milliseconds since 1970, and 30 random bits. Two identifiers made in
        the same millisecond collide once in a thousand million.
    """
    return f"{prefix}-{_base32(time.time_ns() // 1_000_000, 10)}-{_base32(secrets.randbits(30), 6)}"


def is_made(run_id: str) -> bool:
    """Whether ``new_id`` makes such ids for the run or the run at the top of its tree; others are an application's."""
    return _MADE.fullmatch(root_of(run_id)) is not None


def root_of(run_id: str) -> str:
    """The run at the top of a run's tree."""
    return run_id.partition(".")[0]


def parent_of(run_id: str) -> str:
    """The run that delegated to a run; "" for a root."""
    return run_id.rpartition(".")[0]


def unit_of(run_id: str) -> str:
    """The topmost run that works on the same machine as a run: the nearest placed run, itself or above it, or the root.

    The id of a placed run, which may work on another machine, has a last part that begins with ``@``.
    """
    above, placed, below = run_id.rpartition(".@")
    return f"{above}.@{root_of(below)}" if placed else root_of(run_id)


def is_below(run_id: str, above: str) -> bool:
    """Whether a run is somewhere below another."""
    return run_id.startswith(f"{above}.")


def is_in_tree(run_id: str, top: str) -> bool:
    """Whether a run is ``top`` itself or somewhere below it."""
    return run_id == top or is_below(run_id, top)
