"""Splitting long answers into pages that need not be cut."""

from __future__ import annotations

from typing import Final

from repertory.errors import ToolRetry

PAGE: Final = 24_000  # characters: some 6,000 tokens, less than any result may have without being cut


def page_bounds(text: str, size: int = PAGE) -> list[tuple[int, int]]:
    """Where the pages of a text begin and end: at most ``size`` characters each, broken between lines if possible."""
    bounds: list[tuple[int, int]] = []
    start = 0
    while len(text) - start > size:
        end = text.rfind("\n", start + size // 2, start + size) + 1 or start + size
        bounds.append((start, end))
        start = end
    return [*bounds, (start, len(text))]


def take_page(text: str, page: int) -> tuple[int, int, int]:
    """Bounds of one page of a text, and the number of pages.

    Raises:
        ToolRetry: There is no such page.
    """
    bounds = page_bounds(text)
    if page > len(bounds):
        raise ToolRetry(f"there is no page {page}: the answer has {len(bounds)}")
    return *bounds[page - 1], len(bounds)


def page_note(page: int, pages: int) -> str:
    """The note below a page; "" if it is the only one."""
    if pages == 1:
        return ""
    if page == pages:
        return f"\n[page {page} of {pages}, the last]"
    return f"\n[page {page} of {pages}; for the next one make the same call with page={page + 1}]"
