"""How many pages a PDF has, without a reader of PDFs."""

from __future__ import annotations

import re
import zlib
from contextlib import suppress
from itertools import islice

_PAGE = re.compile(rb"/Type\s*/Page(?![A-Za-z])")
# Since version 1.5 a PDF may have its pages in such compressed streams; most have.
_OBJECTS = re.compile(rb"/ObjStm\b(?:[^>/]*+/){0,8}+[^>/]*+>>\s*+stream\r?\n")
_MOST_STREAMS = 2_000  # each has some hundred objects, and a page a few
_MOST_OF_ONE, _MOST_OF_ALL = 1_000_000, 50_000_000  # bytes that are unpacked: a small stream can be a bomb
_PAGE_BYTES = 50_000  # of one page, if the PDF's list of pages cannot be read; our own rough guess


def count_pages(pdf: bytes) -> int:
    """About how many pages a PDF has; at least 1."""
    pages, left = len(_PAGE.findall(pdf)), _MOST_OF_ALL
    for each in islice(_OBJECTS.finditer(pdf), _MOST_STREAMS):
        with suppress(zlib.error):  # it is damaged, encrypted, or compressed in another way
            packed = pdf[each.end() : each.end() + _MOST_OF_ONE]
            objects = zlib.decompressobj().decompress(packed, _MOST_OF_ONE)
            pages, left = pages + len(_PAGE.findall(objects)), left - len(objects)
        if left <= 0:
            break
    return pages or max(1, len(pdf) // _PAGE_BYTES)
