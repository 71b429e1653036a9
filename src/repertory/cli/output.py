"""The output of the process: consoles, JSON, error lines and exit codes, without terminal control sequences."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO

from repertory import errors
from repertory.cli.signals import drawn_on

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment
    from rich.text import Text

OK = 0
FAILED = 1
USAGE = 2
NOT_FOUND = 4
BUSY = 75
STORE = 78
INTERRUPTED = 130  # 128 + SIGINT

COLOURS = {  # of the states of a run, and of how an entry is shown
    "running": "cyan",
    "waiting": "blue",
    "paused": "yellow",
    "queued": "dim",
    "done": "green",
    "failed": "red",
    "stopped": "yellow",
    "interrupted": "magenta",
    "shaped": "cyan",
    "stub": "yellow",
    "covered": "blue",
    "removed": "red",
    "expanded": "green",
}
REFRESH = 8.0  # times a second; more would not be noticed, and each redraw costs a millisecond
_ORDINALS = ("position", "iteration", "change")  # which are typed again, so they have no commas
_LONG = re.compile(r"\S{400,}")  # too long for the id of a run or for a likely path
_SIZES = {"COLUMNS": range(20, 1001), "LINES": range(1, 1001)}  # allowed terminal sizes: tables are padded to the width


class NothingThere(errors.RepertoryError):
    """The run, database or other thing that the command was asked for does not exist."""


class CannotWrite(errors.RepertoryError):
    """Standard output cannot be written to any more."""


class Interrupted(errors.RepertoryError):
    """A signal ended the command; ``exit_code`` says which."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


_EXIT_CODES: dict[type[errors.RepertoryError], int] = {  # the first class that matches counts
    NothingThere: NOT_FOUND,
    errors.RunNotFound: NOT_FOUND,
    errors.ScopeNotFound: NOT_FOUND,
    errors.ItemNotFound: NOT_FOUND,
    errors.ConfigurationError: USAGE,
    errors.JournalLocked: BUSY,
    errors.AddressInUse: BUSY,
    errors.ServiceUnavailable: BUSY,
    errors.QueueFull: BUSY,
    errors.JournalSchemaTooNew: STORE,
    errors.JournalUnreadable: STORE,
}


def exit_code_of(error: errors.RepertoryError) -> int:
    """The exit code for an error."""
    if isinstance(error, Interrupted):
        return error.exit_code
    return next((code for kind, code in _EXIT_CODES.items() if isinstance(error, kind)), FAILED)


def words_of(error: errors.RepertoryError) -> str:
    """The message of an error for a person at a shell. The library's own messages are for Python programmers."""
    if not isinstance(error, errors.JournalLocked) or not error.path:
        return _LONG.sub(lambda found: f"{found[0][:100]}…", str(error))
    from repertory.service.places import service_of

    where = f"--db {shlex.quote(error.path)}"
    owner = f"process {error.owner}" if error.owner else "another process"
    end = f"end it cleanly with `kill {error.owner}`" if error.owner else ""
    place = service_of(error.path)
    if place is not None:
        return (
            f"{error.path} is served by {owner} at {place}: use it with `repertory start`, `attach`, `send` or "
            f"`resume` ({where}){end and f', or {end}'}"
        )
    choices = f"wait for it{end and f', {end}'}, or read meanwhile with `repertory ps {where}`"
    return f"{error.path} is in use by {owner}: {choices}"


# --- untrusted text ---------------------------------------------------------------------------------------


def _dangerous() -> Iterable[int]:
    yield from (code for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t")
    yield from (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))  # change the reading order
    yield from (0x2028, 0x2029, 0xFEFF, *range(0xFFF9, 0xFFFC))  # break lines, mark, annotate
    yield from range(0xE0000, 0xE1000)  # tags and selectors: invisible text
    yield from range(0xD800, 0xE000)  # lone surrogates, which no encoding can write


_ESCAPES = {code: chr(code).encode("unicode_escape").decode() for code in _dangerous()}
_ONE_LINE = {**_ESCAPES, 10: " ", 9: " "}


def clean(text: object) -> str:
    """Make text from a model, a tool or a file safe to show: characters that control the terminal are escaped.

    Escape sequences, C1 controls and marks that change the reading order become visible as ``\\x1b`` and the like;
    line breaks and tabs stay.
    """
    return str(text).replace("\r\n", "\n").translate(_ESCAPES)


def one_line(text: object, width: int = 0) -> str:
    """The same on one line, cut to ``width`` characters; 0 for no limit."""
    line = " ".join(str(text).replace("\r\n", "\n").translate(_ONE_LINE).split())
    return f"{line[: width - 1]}…" if width and len(line) > width else line


# --- writing ----------------------------------------------------------------------------------------


def console(*, stderr: bool = False) -> Console:
    """A console that shows text as it is: no markup, no emoji codes, no automatic highlighting.

    Rich itself handles ``NO_COLOR``, ``FORCE_COLOR``, ``TERM=dumb`` and output that is not a terminal.
    """
    from rich.console import Console

    has_width = (sys.stderr if stderr else sys.stdout).isatty() or "COLUMNS" in os.environ
    width = None if has_width else 200  # room for whole ids in a file
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False, soft_wrap=False, width=width)


class Columns:
    """A table in plain columns, line by line: a table of Rich's takes a second for each thousand rows.

    The last column is cut if there is not enough room. If fewer than 8 columns of the terminal would be left for it, it
    is left out, and so are columns before it that do not fit.

    Args:
        headers: The headers of the columns; ``>`` before one aligns its column to the right.
        rows: The cells; in strings, characters that control the terminal are escaped.
    """

    def __init__(self, headers: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> None:
        self._headers = headers
        self.rows = [[cell.translate(_ONE_LINE) if isinstance(cell, str) else cell for cell in row] for row in rows]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[Segment]:
        """Yield the lines."""
        from rich.cells import cell_len
        from rich.segment import Segment
        from rich.text import Text

        heads: list[str | Text] = [Text(header.removeprefix(">"), style="dim") for header in self._headers]
        rows = [heads, *self.rows] if any(self._headers) else self.rows
        widths = [max(cell_len(str(row[index])) for row in rows) for index in range(len(heads))]
        while (left := options.max_width - sum(wide + 2 for wide in widths[:-1])) < min(8, widths[-1]) and widths[1:]:
            widths.pop()
        widths[-1] = min(widths[-1], left)
        for row in rows:
            plain = ""  # a segment for each cell would take three times as long
            for header, cell, width in zip(self._headers, row, widths, strict=False):
                space = " " * (width - cell_len(str(cell)))
                if header.startswith(">"):
                    plain, space = plain + space, ""
                if isinstance(cell, str) and cell_len(cell) <= width:
                    plain += cell
                elif str(cell):
                    part = Text.assemble(cell)
                    part.truncate(width, overflow="ellipsis")
                    yield from (Segment(plain), *part.render(console))
                    plain = ""
                plain += f"{space}  "
            yield Segment(f"{plain.rstrip()}\n")


def coloured_state(state: str) -> Text:
    """A state of a run in its colour."""
    from rich.text import Text

    return Text(state, style=COLOURS.get(state.strip(), ""))


def show(screen: Console, *parts: RenderableType) -> None:
    """Print renderables, each on lines of its own."""
    for part in parts:
        screen.print(part)


def table(columns: str, rows: Iterable[Any], **cells: Callable[[Any], str | Text]) -> Columns:
    """Make a table of structs, or of objects of JSON, with a column for each word of ``columns``.

    Args:
        columns: Such as ``RUN=run_id >LENGTH``: a header, its field if that has another name, ``>`` as in ``Columns``.
        rows: The rows. What a field holds, and so how it is shown, follows from its name: see ``_cell``.
        cells: By their fields, the cells that are made otherwise.
    """
    parts = [word.partition("=") for word in columns.split()]
    heads = [(head.replace("_", " "), field or head.lstrip(">").lower()) for head, _, field in parts]
    lines = [[cells[field](row) if field in cells else _cell(field, row) for _, field in heads] for row in rows]
    return Columns([head for head, _ in heads], lines)


def figures(fields: Mapping[str, object]) -> Columns:
    """Make a table of the fields of an object, a line each."""
    return Columns(("", ""), [(name.replace("_", " "), _cell(name, fields)) for name in fields])


def _cell(field: str, of: Any) -> str | Text:
    def get(name: str, default: Any = None) -> Any:
        return of.get(name, default) if isinstance(of, Mapping) else getattr(of, name, default)

    value = get(field)
    if field in ("state", "shown"):
        return coloured_state(value)
    if field == "at" or field.endswith("_at"):
        return duration(time.time() - value)
    if "tokens" in field:
        return tokens(value)
    if field.startswith(("cost", "saved")):
        return cost(value, get("tokens_seen", get("prompt_tokens", 0)))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return str(value) if field in _ORDINALS else f"{round(value, 1):,}"
    return one_line(", ".join(value) if isinstance(value, list | tuple) else value, 300)


def print_table(screen: Console, columns: Columns, *, gap: bool = True) -> None:
    """Print a table and a blank line; nothing if it has no rows."""
    if columns.rows:
        show(screen, columns, *[""][:gap])


def print_json(value: Any, *, on_one_line: bool = False) -> None:
    """Write one JSON value to standard output at once, indented for a person at a terminal.

    Args:
        value: The value.
        on_one_line: Do not indent it at a terminal either, because more values follow.
    """
    import msgspec

    indent = 2 if sys.stdout.isatty() and not on_one_line else None
    text = json.dumps(msgspec.to_builtins(value), ensure_ascii=True, allow_nan=False, indent=indent)
    put(text.replace("\x7f", "\\u007f") + "\n")


def write(text: str) -> None:
    """Write text to standard output at once, escaped, with a line break at its end."""
    put(f"{clean(text)}\n")


def put(text: str) -> None:
    """Write to standard output at once, as it is."""
    sys.stdout.write(text)
    sys.stdout.flush()


def say(text: str) -> None:
    """Write one line for a person to standard error."""
    remark(f"repertory: {one_line(text)}")


def remark(line: str) -> None:
    """Write a line to standard error as it is. An error in writing is ignored."""
    # The disk is full, or the reader is gone: there is no other place to report it. The log of a service goes on in the
    # same file once there is room again.
    with suppress(OSError):
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def drop(stream: TextIO) -> None:
    """Redirect a stream that cannot be written to the null device, so that the last flush raises nothing."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


# --- progress ---------------------------------------------------------------------------------------------


def has_picture(screen: Console) -> bool:
    """Whether the console can show a live display. FORCE_COLOR colours a pipe, but makes no terminal of it."""
    return screen.file.isatty() and not screen.is_dumb_terminal


@contextmanager
def status_line() -> Generator[Callable[[str], None]]:
    """Show a line that replaces itself, on standard error; nothing without a terminal."""
    screen = console(stderr=True)
    width = screen.width - 1
    if not has_picture(screen):
        yield lambda _: None
        return
    with drawn_on(screen.file.fileno()):
        try:
            yield lambda text: screen.print(f"{one_line(text, width):<{width}}", end="\r")
        finally:
            screen.print(" " * width, end="\r")


@contextmanager
def count_up(total: int, what: str) -> Generator[Callable[[], None]]:
    """Count on a status line how many of a total are done; the yielded function counts one."""
    with status_line() as show:
        done, shown_at = 0, 0.0

        def count() -> None:
            nonlocal done, shown_at
            done += 1
            if time.monotonic() - shown_at > 1 / REFRESH:
                shown_at = time.monotonic()
                show(f"{done:,} of {total:,} {what}")

        show(f"0 of {total:,} {what}")
        yield count


# --- the standard streams --------------------------------------------------------------------


class _Output(io.FileIO):
    """Standard output, with errors that differ from those of other files."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise CannotWrite(f"cannot write to standard output: {error.strerror or error}") from error


def open_standard_streams() -> None:
    """Open the null device for each standard stream that is closed; exit if standard output is.

    Otherwise the next opened file would get its number, and messages for a person would go into a database.
    """
    had_output = sys.__stdout__ is not None
    if had_output:
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(_Output(1, "w", closefd=False)),
            encoding=sys.stdout.encoding,
            line_buffering=sys.stdout.isatty(),
        )
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        stream = open(number, "w" if number else "r", encoding="utf-8")  # noqa: SIM115 - for the life of the process
        setattr(sys, ("stdin", "stdout", "stderr")[number], stream)
    os.close(number)
    if not had_output:
        say("cannot write to standard output: it is closed; redirect it to /dev/null if you do not need it")
        sys.exit(FAILED)


def tolerate_any_terminal() -> None:
    """Escape characters that the encoding lacks, and ignore impossible terminal sizes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    for name, sizes in _SIZES.items():
        value = os.environ.get(name, "")
        if not (value.isascii() and value.isdigit() and len(value) < 10 and int(value) in sizes):
            os.environ.pop(name, None)


# --- units ------------------------------------------------------------------------------------------------


def tokens(count: int) -> str:
    """``950``, ``12.3k``, ``1.24M``."""
    if count < 1000:
        return str(count)
    return f"{count / 1000:.1f}k" if count < 999_950 else f"{count / 1_000_000:.2f}M"


def dollars(amount: float) -> str:
    """``$0.0123`` below a dollar, ``$1.23`` above, ``-$0.0123`` for a loss."""
    sign, amount = "-" * (amount < 0), abs(amount)
    return f"{sign}${amount:.4f}" if amount < 1 else f"{sign}${amount:,.2f}"


def cost(amount: float, tokens: int) -> str:
    """Dollars; ``unknown`` if tokens were used whose price is not known."""
    return "unknown" if tokens and not amount else dollars(amount)


def duration(seconds: float) -> str:
    """``8s``, ``3m``, ``2h``, ``5d``."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(0, int(seconds))}s"


def ratio(seen: float, plain: float) -> str:
    """How much less was seen than in a plain loop: ``3.2 times less``, ``4.3% more``, ``the same``."""
    if seen <= 0 or plain <= 0:
        return "–"
    times = max(seen, plain) / min(seen, plain)
    word = "less" if seen < plain else "more"
    if times >= 1.5:
        return f"{times:.1f} times {word}"
    share = f"{abs(1 - seen / plain):.1%}"
    return "the same" if share == "0.0%" else f"{share} {word}"


def timestamp(at: float) -> str:
    """Local date and time, to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
