"""A number with its noun, in sentences for people and models."""

from __future__ import annotations


def counted(number: float, one: str, many: str = "") -> str:
    """``1 run``, ``2,000 runs``, ``0.5 seconds``; ``many`` is a plural that is not made with an s."""
    amount = f"{number:,}" if isinstance(number, int) else f"{number:,.10g}"
    return f"{amount} {one if number == 1 else many or f'{one}s'}"
