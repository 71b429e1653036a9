"""Read the Markdown pages: their code blocks, in order, with the line each begins at."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

_FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^`\n]*)\n(?P<body>.*?)^(?P=indent)```[ \t]*$", re.M | re.S)
_TITLE = re.compile(r'title="([^"]+)"')


class Block(NamedTuple):
    """A fenced block of code.

    Attributes:
        language: What stands behind the fence first; "" for nothing.
        title: The file that it is shown as; "" for none.
        line: The line of the page that it begins at, from 1.
        source: What is in it.
        follows: Whether nothing but blank lines stand between it and the block before.
    """

    language: str
    title: str
    line: int
    source: str
    follows: bool


def blocks_of(text: str) -> list[Block]:
    """The fenced blocks of a page."""
    found: list[Block] = []
    end = 0
    for match in _FENCE.finditer(text):
        indent, info = match["indent"], match["info"].strip()
        body = "".join(line.removeprefix(indent) for line in match["body"].splitlines(keepends=True))
        title = _TITLE.search(info)
        found.append(
            Block(
                language=info.split(" ")[0],
                title=title[1] if title else "",
                line=text.count("\n", 0, match.start("body")) + 1,
                source=body,
                follows=bool(found) and not text[end : match.start()].strip(),
            )
        )
        end = match.end()
    return found


def run_page(page: Path) -> None:
    """Run a page's Python blocks in the current folder, and print a mark after each. For a process of its own."""
    import runpy

    namespace = {"__name__": "__main__"}
    for block in blocks_of(page.read_text(encoding="utf-8")):
        if block.language != "python":
            continue
        source = "\n" * (block.line - 1) + block.source  # so that a traceback names the page's own lines
        if block.title:
            Path(block.title).write_text(source, encoding="utf-8")
            runpy.run_path(block.title, run_name="__main__")
        else:
            exec(compile(source, str(page), "exec", dont_inherit=True), namespace)
        print(END_OF_BLOCK, flush=True)


END_OF_BLOCK = "--- end of block ---"

if __name__ == "__main__":
    import sys

    sys.path.insert(0, "")
    run_page(Path(sys.argv[1]))
