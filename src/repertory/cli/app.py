"""All commands. A command's module is imported only when the command is called, so that help is quick."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from repertory.cli import output
from repertory.cli.options import option
from repertory.cli.sections import COMMANDS, SECTIONS
from repertory.errors import RepertoryError

_UsageError: Any = typer.BadParameter.__bases__[0]  # the base of what typer raises; it exports only the leaves


@cache
def load(name: str) -> Any:
    """Import a command, for typer."""
    found = getattr(import_module(f"repertory.cli.{COMMANDS[name][0]}"), name)
    roof = typer.Typer(rich_markup_mode=None)
    if isinstance(found, typer.Typer):
        roof.add_typer(found, name=name)
    else:
        roof.command(name)(found)
    return typer.main.get_group(roof).commands[name]


class _Group(TyperGroup):
    """Turns every error into one line on standard error and an exit code."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # Stand-ins for lists, such as those for shell completion; nothing is imported for them.
        self.commands = {name: TyperCommand(name, help=sentence) for name, (_, sentence) in COMMANDS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that is called, and import it."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, None if found is None or name is None else load(name), rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands by purpose, each with the first sentence of its help in full."""
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, sentence) for name, (_, sentence) in commands.items()])

    def main(  # type: ignore[override]  # typer's own arguments are in extra
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> Any:
        """Parse the arguments, run the command and exit with its code."""
        words, debug = _take_debug(sys.argv[1:] if args is None else args)
        extra["standalone_mode"] = False
        output.tolerate_any_terminal()
        try:
            code = self._main(words, debug, prog_name, extra)
            sys.stdout.flush()
        except (BrokenPipeError, output.CannotWrite) as error:
            if isinstance(error, output.CannotWrite):  # a reader that closed the pipe needs no message
                output.say(str(error))
            output.drop(sys.stdout)
            code = output.FAILED
        try:
            sys.stderr.flush()
        except OSError:
            output.drop(sys.stderr)
        sys.exit(code)

    def _main(self, words: list[str], debug: bool, prog_name: str | None, extra: dict[str, Any]) -> int:
        try:
            code = super().main(words, prog_name or "repertory", **extra)
            return code if isinstance(code, int) else output.OK
        except _UsageError as error:
            # There is none if the value of an option is missing.
            context = error.ctx.command_path if error.ctx is not None else " ".join(["repertory", *words[:1]])
            message: str = error.format_message().rstrip(".?")
            for theirs, ours in ((". Did you mean", "; perhaps"), ("Value error, ", ""), (": Input ", ": it ")):
                message = message.replace(theirs, ours)
            output.say(f"{message[:1].lower()}{message[1:]}; see {context} --help")
            return output.USAGE
        except (Exception, KeyboardInterrupt, BaseExceptionGroup) as raised:  # noqa: BLE001
            # The outermost frame: every error becomes a message for a person.
            cause = _single(raised)
            if isinstance(cause, (BrokenPipeError, SystemExit, output.CannotWrite)):
                raise cause from None
            if isinstance(cause, KeyboardInterrupt):
                return output.INTERRUPTED
            if debug:
                output.remark(output.clean("".join(traceback.format_exception(raised)).rstrip()))
            if isinstance(cause, RepertoryError):
                output.say(output.words_of(cause))
                return output.exit_code_of(cause)
            output.say(f"unexpected {type(cause).__name__}: {cause}; --debug shows the traceback")
            return output.FAILED


def _take_debug(args: Sequence[str]) -> tuple[list[str], bool]:
    """Remove ``--debug`` from the arguments, wherever it is before a ``--``; and whether it was there."""
    words = list(args)
    end = words.index("--") if "--" in words else len(words)
    kept = [word for word in words[:end] if word != "--debug"]
    return [*kept, *words[end:]], len(kept) < end


def _single(error: BaseException) -> BaseException:
    """Unwrap an exception group if it holds one error, or several of one type; then it is the first of them."""
    parts = [_single(part) for part in getattr(error, "exceptions", ())]
    return parts[0] if len({type(part) for part in parts}) == 1 else error


app = typer.Typer(
    name="repertory",
    cls=_Group,
    help="Run hierarchies of LLM agents, and read what they did.",
    epilog=(
        "Exit codes: 0 done, 1 failed, 2 wrong usage, 4 not found, 75 in use by another process, 78 database "
        "damaged or of a newer version, 130 and 143 ended by Ctrl-C and SIGTERM."
    ),
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from repertory import __version__

        typer.echo(f"repertory {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _repertory(
    ctx: typer.Context,
    show_version: bool = option("--version", "Show the version.", False, callback=_show_version, is_eager=True),
    debug: bool = option("--debug", "Show the traceback of an error. May be given anywhere on the line.", False),
) -> None:
    """Options of every command."""
    if ctx.invoked_subcommand is None:
        from repertory.cli.runs import welcome

        welcome()
