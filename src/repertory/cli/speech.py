"""The streamed text of a run, as the live display shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

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

_KEPT: Final = 20_000  # characters of an answer; a terminal shows fewer
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
