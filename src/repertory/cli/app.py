"""The commands under one roof. They import what they need when they run, so that help is quick."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from repertory.cli import output
from repertory.cli.attaching import attach
from repertory.cli.chat import chat
from repertory.cli.company import down, reload, up
from repertory.cli.contents import content
from repertory.cli.demo import demo
from repertory.cli.doctor import doctor
from repertory.cli.following import logs
from repertory.cli.histories import fork, remove, retry, rewind
from repertory.cli.keeping import backup, migrate, restore, vacuum
from repertory.cli.machines import drain, machines
from repertory.cli.mcp import mcp
from repertory.cli.memories import memory
from repertory.cli.options import option
from repertory.cli.payloads import payload
from repertory.cli.reading import inspect, ledger
from repertory.cli.replay import replay
from repertory.cli.running import resume, run
from repertory.cli.runs import ps, tree, welcome
from repertory.cli.serve import serve
from repertory.cli.service import service
from repertory.cli.stats import stats
from repertory.cli.steering import approvals, approve, deny, kill, pause, send, start, stop
from repertory.cli.top import top
from repertory.cli.torture import stress, torture
from repertory.cli.webhooks import webhooks
from repertory.errors import RepertoryError

# What is used most stands first.
_SECTIONS = {
    "Run agents here": ("demo", "run", "chat", "resume", "replay", "mcp"),
    "Look": ("ps", "top", "tree", "logs", "stats", "inspect", "ledger", "memory", "payload", "content"),
    "Keep agents running": ("up", "down", "reload", "serve", "service", "machines", "drain", "webhooks"),
    "Steer what runs there": ("start", "attach", "send", "approvals", "approve", "deny", "pause", "stop", "kill"),
    "Begin again": ("retry", "fork", "rewind"),
    "Databases": ("backup", "restore", "migrate", "vacuum", "rm"),
    "Check": ("doctor", "stress", "torture"),
}
_ORDER = tuple(name for names in _SECTIONS.values() for name in names)

_UsageError: Any = typer.BadParameter.__bases__[0]  # the base of what typer raises; it exports only the leaves


class _Group(TyperGroup):
    """Turns every error into one line on standard error and an exit code."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The commands in the order of their use; typer would put every group of commands behind them."""
        return sorted(self.commands, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands by what they are for, each with its whole first sentence."""
        for title, names in _SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, _first_sentence(self.commands[name].help or "")) for name in names])

    def main(  # type: ignore[override]  # typer's own options for it ride along in extra
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> Any:
        """Parse the words, run the command, exit with its code."""
        words, debug = _take_debug(sys.argv[1:] if args is None else args)
        extra["standalone_mode"] = False
        output.tolerate_any_terminal()
        try:
            code = self._main(words, debug, prog_name, extra)
            sys.stdout.flush()
        except (BrokenPipeError, output.CannotWrite) as error:
            if isinstance(error, output.CannotWrite):  # while a reader that has enough is not worth a word
                output.say(str(error))
            output.drop(sys.stdout)
            code = output.FAILED
        sys.exit(code)

    def _main(self, words: list[str], debug: bool, prog_name: str | None, extra: dict[str, Any]) -> int:
        try:
            code = super().main(words, prog_name or "repertory", **extra)
            return code if isinstance(code, int) else output.OK
        except _UsageError as error:
            context = error.ctx.command_path if error.ctx is not None else "repertory"
            message: str = error.format_message().rstrip(".?").replace(". Did you mean", "; perhaps")
            output.say(f"{message[:1].lower()}{message[1:].replace('Value error, ', '')}; see {context} --help")
            return output.USAGE
        except (Exception, KeyboardInterrupt, BaseExceptionGroup) as raised:  # noqa: BLE001
            # The outermost frame: whatever it is, a person is at the other end.
            cause = _single(raised)
            if isinstance(cause, (BrokenPipeError, SystemExit, output.CannotWrite)):
                raise cause from None
            if isinstance(cause, KeyboardInterrupt):
                return output.INTERRUPTED
            if debug:
                traceback.print_exception(raised)
            if isinstance(cause, RepertoryError):
                output.say(output.words_of(cause))
                return output.exit_code_of(cause)
            output.say(f"unexpected {type(cause).__name__}: {cause}; --debug shows where")
            return output.FAILED


def _first_sentence(text: str) -> str:
    return " ".join(text.split("\n\n", maxsplit=1)[0].split()).partition(". ")[0].rstrip(".") + "."


def _take_debug(args: Sequence[str]) -> tuple[list[str], bool]:
    """Take ``--debug`` out of the words, wherever it stands before a ``--``."""
    words = list(args)
    end = words.index("--") if "--" in words else len(words)
    kept = [word for word in words[:end] if word != "--debug"]
    return [*kept, *words[end:]], len(kept) < end


def _single(error: BaseException) -> BaseException:
    """What a task group wrapped, where it wrapped one thing only, or one kind of error: that of all its tasks."""
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
    debug: bool = option("--debug", "Show the traceback of an error. May stand anywhere on the line.", False),
) -> None:
    """Options of every command."""
    if ctx.invoked_subcommand is None:
        welcome()


for _command in (
    demo,
    run,
    resume,
    chat,
    up,
    down,
    reload,
    serve,
    start,
    attach,
    send,
    pause,
    stop,
    kill,
    retry,
    fork,
    rewind,
    approvals,
    approve,
    deny,
    mcp,
    ps,
    top,
    tree,
    logs,
    stats,
    inspect,
    ledger,
    replay,
    backup,
    restore,
    vacuum,
    migrate,
    machines,
    drain,
    doctor,
    stress,
    torture,
):
    app.command()(_command)
app.command("rm")(remove)
for _name, _group in (
    ("memory", memory),
    ("payload", payload),
    ("content", content),
    ("service", service),
    ("webhooks", webhooks),
):
    app.add_typer(_group, name=_name)
