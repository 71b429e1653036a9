"""A terminal that renders the output of a program, as a person would see it, and keeps every line."""

from __future__ import annotations

import re

_PARTS = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|(\r)|(\n)|(\x08)|([^\x1b\r\n\x08]+)|(\x1b)")


class Screen:
    """A terminal without colours.

    Args:
        width: Its columns.
        height: Its lines; lines that scroll away are kept, but the cursor cannot go back there.

    Attributes:
        cursor_shown: Whether the cursor is visible.
    """

    def __init__(self, width: int = 80, height: int = 24) -> None:
        self.width = width
        self.height = height
        self.cursor_shown = True
        self._lines: list[str] = [""]
        self._row = 0
        self._column = 0

    @property
    def lines(self) -> list[str]:
        """Everything that was shown and not overwritten, from the first line on."""
        return [line.rstrip() for line in self._lines]

    def write(self, text: str) -> None:
        """Render the output of a program."""
        for found in _PARTS.finditer(text):
            values, command, back, down, left, words, _ = found.groups()
            if command:
                self._obey(command, values)
            elif back:
                self._column = 0
            elif down:
                self._next_line()
            elif left:
                self._column = max(0, self._column - 1)
            elif words:
                self._put(words)

    def _put(self, words: str) -> None:
        for character in words:
            if self._column == self.width:
                self._column = 0
                self._next_line()
            line = self._lines[self._row].ljust(self._column)
            self._lines[self._row] = line[: self._column] + character + line[self._column + 1 :]
            self._column += 1

    def _next_line(self) -> None:
        self._row += 1
        if self._row == len(self._lines):
            self._lines.append("")

    def _obey(self, command: str, values: str) -> None:
        first = values.split(";", maxsplit=1)[0]
        count = int(first) if first.isdigit() else 0
        match command:
            case "h" | "l" if values == "?25":
                self.cursor_shown = command == "h"
            case "A":
                self._row = max(0, len(self._lines) - self.height, self._row - max(1, count))
            case "B":
                self._row = min(len(self._lines) - 1, self._row + max(1, count))
            case "C":
                self._column = min(self.width - 1, self._column + max(1, count))
            case "D":
                self._column = max(0, self._column - max(1, count))
            case "G":
                self._column = max(0, count - 1)
            case "K":
                line = self._lines[self._row]
                self._lines[self._row] = "" if count == 2 else line[: self._column]
            case _:  # colours, titles, and sequences that no command here writes
                pass
