"""Runs as a tree: each below its parent, with the lines that join them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar


class HasParent(Protocol):
    """What has an id and the id of what it is below."""

    @property
    def run_id(self) -> str:
        """Its id."""
        ...

    @property
    def parent_id(self) -> str | None:
        """The id of what it is below; None for a root."""
        ...


T = TypeVar("T", bound=HasParent)


def in_tree(runs: Sequence[T]) -> Iterator[tuple[str, T]]:
    """Each run after its parent, with what to draw before it. Whose parent is not among them is a root."""
    known = {run.run_id for run in runs}
    children: dict[str | None, list[T]] = {}
    for run in runs:
        children.setdefault(run.parent_id if run.parent_id in known else None, []).append(run)

    def below(run: T, indent: str) -> Iterator[tuple[str, T]]:
        siblings = children.get(run.run_id, [])
        for child in siblings:
            last = child is siblings[-1]
            yield indent + ("└ " if last else "├ "), child
            yield from below(child, indent + ("  " if last else "│ "))

    for root in children.get(None, []):
        yield "", root
        yield from below(root, "")
