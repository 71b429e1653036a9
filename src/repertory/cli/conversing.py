"""The terminal of a conversation, for ``chat`` and ``attach``: a screen for answers, and the lines typed."""

from __future__ import annotations

import os
import sys
import termios
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress

import anyio

from repertory.cli import output
from repertory.cli.reading import call_line
from repertory.record.waiting import Waiter, wake_all
from repertory.runs import events, streaming


class Screen:
    """Shows an answer while it is streamed. A thread writes, so that a blocked terminal does not delay a run."""

    def __init__(self) -> None:
        self._writing = anyio.Lock()
        self._column = 0
        self._dim, self._plain = ("\x1b[2m", "\x1b[0m") if output.console().color_system else ("", "")

    async def show_text(self, pieces: AsyncIterator[streaming.Piece]) -> str:
        """Show the text of a model until its turn ends; returns the text of its last answer."""
        iteration, text = 0, ""
        async for piece in pieces:
            if piece.iteration != iteration:
                iteration, text = piece.iteration, ""
                await self.end_line()
            if isinstance(piece, streaming.TextStreamed):
                text += piece.text
                await self._write(output.clean(piece.text))
            elif isinstance(piece, streaming.StreamRestarted):
                text = ""
                await self.remark(f"[ignore the text above: {output.one_line(piece.reason, 120)}]")
        return text

    async def show_call(self, event: events.Event, root: str) -> None:
        """Show a line for a tool call that starts; for a sub-agent with its name."""
        if isinstance(event, events.ToolStarted):
            name = "" if event.run_id == root else f"{event.agent}: "
            line = call_line(event.tool, event.arguments)
            await self.remark(output.one_line(f"· {name}{line}", max(20, output.console().width - 4)))

    async def show(self, text: str) -> None:
        """Show a text that was not streamed."""
        await self._write(output.clean(text))

    async def end_line(self) -> None:
        """Start a new line, unless the last one has just ended."""
        if self._column:
            await self._write("\n")

    @asynccontextmanager
    async def aside(self) -> AsyncGenerator[None]:
        """Start a new line for a question that is asked within the block."""
        await self.end_line()
        yield

    async def remark(self, line: str) -> None:
        """Show a line about the run, dimmed. Its text must be clean, see ``output.clean``."""
        await self.end_line()
        await self._write(f"{self._dim}{line}{self._plain}\n")

    async def _write(self, text: str) -> None:
        async with self._writing:
            self._column = 0 if text.endswith("\n") else 1
            await anyio.to_thread.run_sync(output.put, text, abandon_on_cancel=True)


# --- the keyboard -----------------------------------------------------------------------------------------


class Lines:
    """Reads lines from standard input.

    Args:
        prompt: The prompt before a typed line, which can then be edited, and for which nothing else may be read until
            it has come; "" for lines as they are. Then a cancelled read takes nothing.
    """

    def __init__(self, prompt: str) -> None:
        self._prompt = prompt
        self._rest = b""
        if prompt:
            with suppress(ImportError):  # not available everywhere; then the terminal's own line editing is used
                import readline  # noqa: F401  # pyright: ignore[reportUnusedImport] - input() edits lines with it

    async def read(self) -> str | None:
        """The next line; None at the end of the input."""
        if self._prompt:
            return await self._ask()
        # Not through sys.stdin: it would wait for a whole line, in a thread that nobody can cancel.
        while b"\n" not in self._rest:
            try:
                with suppress(PermissionError):  # a file, or the null device, never lets wait
                    await anyio.wait_readable(sys.stdin)
                piece = os.read(sys.stdin.fileno(), 65_536)
            except OSError:
                piece = b""
            if not piece:
                line, self._rest = self._rest, b""
                return line.decode(errors="replace") if line else None
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode(errors="replace")

    async def _ask(self) -> str | None:
        waiter, lines = Waiter(), list[str | None]()

        def ask() -> None:
            try:
                lines.append(input(self._prompt))
            except (EOFError, OSError, UnicodeDecodeError):
                lines.append(None)
            wake_all([waiter])

        # A daemon thread, so that the process can end while it waits for a line.
        threading.Thread(target=ask, name="repertory-chat", daemon=True).start()
        await waiter.wait()
        return lines[0]


@contextmanager
def terminal_kept() -> Generator[Callable[[], None]]:
    """Restore the terminal afterwards, even if a thread is still reading a line from it."""
    try:
        before = termios.tcgetattr(sys.stdin.fileno())
    except (OSError, ValueError, termios.error):  # no terminal
        yield lambda: None
        return

    def restore() -> None:
        with suppress(termios.error):
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, before)

    try:
        yield restore
    finally:
        restore()
