"""The streamed text of a run: kept for the live display, or written line by line."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from repertory.cli import output
from repertory.runs.streaming import (
    Piece,
    StreamRestarted,
    TextStreamed,
    ThinkingStreamed,
    ToolCallStreamed,
)

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from repertory.supervisor import Run

_KEPT: Final = 20_000  # characters of an answer; a terminal shows fewer
_LONGEST: Final = 400  # characters after which an unfinished line is written in part
_THOUGHT_LINES: Final = 3


class Speech:
    """The answer that a run is streaming, or its last one.

    Attributes:
        text: The end of its text.
        thought: The end of the thinking before it; "" once the text begins.
        thought_length: The number of characters of all the thinking.
        calling: The tool whose call the model is writing; "" if none.
    """

    def __init__(self) -> None:
        self._iteration = 0
        self._begin()

    def _begin(self) -> None:
        self.text = self.thought = self.calling = ""
        self.thought_length = 0

    def hear(self, piece: Piece) -> None:
        """Take in a piece; when an answer starts, or starts again, earlier pieces are dropped."""
        if piece.iteration != self._iteration or isinstance(piece, StreamRestarted):
            self._iteration = piece.iteration
            self._begin()
        if isinstance(piece, ThinkingStreamed):
            self.thought = (self.thought + piece.text)[-_KEPT:]
            self.thought_length += len(piece.text)
        elif isinstance(piece, TextStreamed):
            self.text, self.thought = (self.text + piece.text)[-_KEPT:], ""
        elif isinstance(piece, ToolCallStreamed):
            self.calling, self.thought = piece.tool, ""

    def tail(self, length: int) -> str:
        """The end of the text or the thinking, on one line."""
        said = " ".join((self.text or self.thought)[-2 * length :].split())
        return output.one_line(said if len(said) <= length else f"…{said[1 - length :]}", length)

    def draw(self, screen: Console, lines: int) -> list[RenderableType]:
        """Its end, in at most ``lines`` lines of a terminal; thinking is dimmed, and folded once the answer begins."""
        from rich.text import Text

        if not self.text:
            return list(_last_lines(self.thought, screen, min(lines, _THOUGHT_LINES), "dim italic"))
        folded = (
            [Text(f"thought {self.thought_length:,} characters", style="dim italic")] if self.thought_length else []
        )
        return [*folded, *_last_lines(self.text, screen, lines - len(folded), "")]


def _last_lines(text: str, screen: Console, lines: int, style: str) -> list[RenderableType]:
    from rich.text import Text

    end = output.clean(text[-screen.width * lines :]).expandtabs(4).strip("\n")
    return list(Text(end, style=style).wrap(screen, screen.width)[-lines:]) if end and lines > 0 else []


class SpokenLines:
    """Writes the text of a run as whole lines, for logs and plain output.

    Args:
        write: Writes a line.
        hold: Hold an answer back until it is certain not to be the last one, which the command itself writes to the
            same place: it would be there twice.
    """

    def __init__(self, write: Callable[[str], None], *, hold: bool) -> None:
        self._write = write
        self._hold = hold
        self._rest = ""
        self._iteration = 0
        self._begun = self._thinks = False

    def hear(self, piece: Piece) -> None:
        """Take in a piece, and write the lines that are complete."""
        if piece.iteration != self._iteration:
            self.flush()  # the run continued, so it was not the last answer
            self._iteration = piece.iteration
            self._begun = self._thinks = False
        if isinstance(piece, StreamRestarted):
            self._rest = ""
            if self._begun:
                self._write(f"[ignore the text so far: {output.one_line(piece.reason, 120)}]")
            self._begun = False
        elif isinstance(piece, ThinkingStreamed) and not self._thinks:
            self._thinks = True
            self._write("[thinking]")
        elif isinstance(piece, TextStreamed):
            self._rest += piece.text
            if not self._hold:
                self._write_lines()
        elif isinstance(piece, ToolCallStreamed):
            self.flush()

    def end(self, *, is_answered: bool) -> None:
        """The text has ended: write what is left, unless it is the answer, which the command itself writes."""
        if not (self._hold and is_answered):
            self.flush()

    def flush(self) -> None:
        """Write what is left."""
        self._write_lines()
        self._put(self._rest)
        self._rest = ""

    def _write_lines(self) -> None:
        *lines, self._rest = self._rest.split("\n")
        if len(self._rest) > _LONGEST and " " in self._rest:
            line, _, self._rest = self._rest.rpartition(" ")
            lines.append(line)
        for line in lines:
            self._put(line)

    def _put(self, line: str) -> None:
        if line.strip():
            self._begun = True
            self._write(output.clean(line).rstrip())


async def read_along(run: Run[Any], hear: Callable[[Run[Any], Piece | None], None]) -> None:
    """Pass on each piece of the text of a run, and None at its end."""
    async for piece in run.stream():
        hear(run, piece)
    hear(run, None)
