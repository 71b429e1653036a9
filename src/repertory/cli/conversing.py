"""The terminal of a conversation: a screen for answers, the lines typed, and questions about calls that wait."""

from __future__ import annotations

import getpass
import os
import sys
import termios
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from typing import Any

import anyio
import msgspec

from repertory.cli import output
from repertory.cli.output import one_line
from repertory.cli.reading import asked_line, awaited_line, call_line
from repertory.cli.signals import at_last
from repertory.errors import ConfigurationError, RunError
from repertory.record.waiting import Waiter, wake_all
from repertory.runs import events, streaming
from repertory.runs.events import ApprovalRequested
from repertory.supervisor import Run

KEYS = "y: allow, n REASON: deny, e: change the arguments"


class Screen:
    """Shows answers while they are streamed. A thread writes, so that a blocked terminal does not delay a run."""

    def __init__(self) -> None:
        self._iteration, self._text = 0, ""  # of the newest answer, and what was shown of it
        self._writing = anyio.Lock()
        self._column = 0
        self._dim, self._plain = ("\x1b[2m", "\x1b[0m") if output.console().color_system else ("", "")

    async def show_text(self, pieces: AsyncIterator[streaming.Piece]) -> None:
        """Show the text of a model until its turn ends; of what is streamed again, only what is new."""
        said = ""
        async for piece in pieces:
            if piece.iteration < self._iteration:
                continue
            if piece.iteration > self._iteration:
                self._iteration, self._text, said = piece.iteration, "", ""
                await self.end_line()
            if isinstance(piece, streaming.StreamRestarted):
                said = ""
                await self._void(piece.reason)
            elif isinstance(piece, streaming.TextStreamed):
                said += piece.text
                if not said.startswith(self._text[: len(said)]):
                    await self._void("the run was resumed")  # and answers anew
                if rest := said[len(self._text) :]:
                    self._text = said
                    await self.show(rest)

    async def _void(self, reason: str) -> None:
        self._text = ""
        await self.remark(f"[ignore the text above: {output.one_line(reason, 120)}]")

    def has_shown(self, answer: str, iteration: int = 0) -> bool:
        """Whether the newest text is an answer, which was given in an iteration."""
        return iteration <= self._iteration and self._text.strip().endswith(answer.strip())

    async def show_call(self, event: events.Event | None, root: str) -> None:
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
        async with self._writing:
            if self._column:
                await self._put("\n")

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
            await self._put(text)

    async def _put(self, text: str) -> None:
        def put() -> None:
            output.put(text)
            self._column = 0 if text.endswith("\n") else 1  # only now: the wait may be cancelled before this begins

        await anyio.to_thread.run_sync(put, abandon_on_cancel=True)


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
def terminal_kept() -> Generator[None]:
    """Restore the terminal afterwards, even if a thread is still reading a line from it."""
    try:
        before = termios.tcgetattr(sys.stdin.fileno())
    except (OSError, ValueError, termios.error):  # no terminal
        yield
        return

    def restore() -> None:
        with suppress(termios.error):
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, before)

    with at_last(restore):
        try:
            yield
        finally:
            restore()


# --- calls that wait for a person -------------------------------------------------------------------------


def who_decides() -> str:
    """The user's name, for the record; the user id if the user has no name, as in many containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # OSError from Python 3.13 on
        return f"user {os.getuid()}"


def arguments_in(text: str) -> dict[str, Any]:
    """The arguments of a call, as a person wrote them. Raises ``ConfigurationError`` unless they are a JSON object."""
    arguments: dict[str, Any] = json_in(text, dict[str, Any], "the arguments must be one JSON object")
    return arguments


def json_in(text: str, kind: Any, needed: str) -> Any:
    """A value of a type, as a person wrote it in JSON. Raises ``ConfigurationError``, which says what is ``needed``."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ConfigurationError(f"{needed}: {error}") from None


async def decide_at_terminal(
    run: Run[Any],
    where: str,
    say: Callable[[str], None],
    aside: Callable[[], AbstractAsyncContextManager[None]],
    leave: Callable[[], None] | None = None,
) -> None:
    """Ask about each waiting call of a run and its sub-agents, until the run ends.

    Without a terminal the calls stay waiting, and a message says how to decide them. It also says how to give a call
    the result that it waits for, which only a service takes.

    Args:
        run: The run.
        where: The ``--db`` option of commands that continue it.
        say: Shows a line to the person.
        aside: Makes room for a question on the screen, within its block.
        leave: Called if the person ends the input (Ctrl-D) in place of an answer; None to say how to decide.
    """
    there = sys.stdin.isatty() and sys.stderr.isatty()
    async for event in run.events(tree=True):
        if isinstance(event, events.ResultAwaited):
            what = awaited_line(event.tool, event.note, 200)
            then = f"repertory serve{where} --resume and repertory give{where}"
            say(f"{what}; to give one, end this command, then {then}")
        if not isinstance(event, ApprovalRequested):
            continue
        if there and all(each.call_id != event.call_id for each in run.waiting(tree=True)):
            continue  # it was decided before the person could be asked
        if there:
            async with aside(), anyio.create_task_group() as asking:
                asking.start_soon(_cancel_once_decided, run, event.call_id, asking.cancel_scope)
                there = await _ask(run, event)
                asking.cancel_scope.cancel()
            if not there and leave is not None:
                output.remark("")
                leave()
                return
        if not there:
            say(
                f"{call_line(event.tool, event.arguments, 80)} waits for approval: end this command, then run "
                f"repertory resume {run.id}{where} at a terminal, or repertory serve{where} --resume and repertory "
                f"approve{where}"
            )


async def _cancel_once_decided(run: Run[Any], call_id: str, asking: anyio.CancelScope) -> None:
    """Take a question back if its call was decided otherwise: it has expired, or the run is stopped."""
    async for _ in run.events(tree=True):
        if all(call.call_id != call_id for call in run.waiting(tree=True)):
            asking.cancel()


async def decide_by(
    line: str, decide: Callable[[str, dict[str, Any]], Awaitable[None]], ask: Callable[[str], Awaitable[str | None]]
) -> bool:
    """Decide a waiting call as a typed line says; whether the line is an answer.

    Args:
        line: ``y``, ``n REASON`` or ``e``, as ``KEYS`` says; nothing that says more than that allows anything.
        decide: Is called with ``approve`` or ``deny`` and the arguments of that method of ``Run``.
        ask: Asks for another line; None at the end of the input.

    Raises:
        RepertoryError: The call was not decided.
    """
    word, _, reason = line.strip().partition(" ")
    match word.lower():
        case "y" | "yes" if not reason:
            await decide("approve", {"by": who_decides()})
        case "n" | "no":
            reason = (reason or await ask("why not? ") or "").strip()
            await decide("deny", {"reason": reason or "denied at the terminal", "by": who_decides()})
        case "e" | "edit" if not reason:
            arguments = arguments_in(await ask("all arguments, as one JSON object: ") or "")
            await decide("approve", {"arguments": arguments, "by": who_decides()})
        case _:
            return False
    return True


async def _ask(run: Run[Any], event: ApprovalRequested) -> bool:
    """Ask until a call is decided; False if nobody answers any more."""

    async def decide(verb: str, said: dict[str, Any]) -> None:
        await getattr(run, verb)(event.call_id, **said)

    output.remark(f"{one_line(event.agent)} wants to call {asked_line(event.tool, event.arguments)}")
    while (line := await _typed(f"{KEYS} ")) is not None:
        try:
            if await decide_by(line, decide, _typed):
                return True
        except (ConfigurationError, RunError) as error:
            output.say(str(error))
    return False


async def _typed(prompt: str) -> str | None:
    """A typed line; None at the end of the input."""
    sys.stderr.write(prompt)
    sys.stderr.flush()
    try:
        return await Lines("").read()
    except anyio.get_cancelled_exc_class():
        output.remark("")  # what comes next does not stand behind the question
        raise
