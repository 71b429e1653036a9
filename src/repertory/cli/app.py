"""The commands and their options. Everything else is imported when a command runs, so that help is quick."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from repertory.cli import output, replay, serve, stats, torture
from repertory.errors import RepertoryError

_UsageError: Any = typer.BadParameter.__bases__[0]  # the base of what typer raises; it exports only the leaves


class _Group(TyperGroup):
    """Turns every error into one line on standard error and an exit code."""

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
            output.say(f"{_lower(error.format_message())}; see {context} --help")
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


def _take_debug(args: Sequence[str]) -> tuple[list[str], bool]:
    """Take ``--debug`` out of the words, wherever it stands before a ``--``."""
    words = list(args)
    end = words.index("--") if "--" in words else len(words)
    kept = [word for word in words[:end] if word != "--debug"]
    return [*kept, *words[end:]], len(kept) < end


def _lower(message: str) -> str:
    first, rest = message[:1], message[1:].rstrip(".")
    return first.lower() + rest.replace("\n", " ")


def _single(error: BaseException) -> BaseException:
    """What a task group wrapped, where it wrapped one thing only."""
    parts: Sequence[BaseException] = getattr(error, "exceptions", ())
    return _single(parts[0]) if len(parts) == 1 else error


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


class Backend(StrEnum):
    """The event loops."""

    trio = "trio"
    asyncio = "asyncio"


Database = Annotated[
    Path | None,
    typer.Option("--db", metavar="FILE", help="The database. Default: $REPERTORY_DB, else the newest kept."),
]
OwnDatabase = Annotated[
    Path | None,
    typer.Option("--db", metavar="FILE", help="The database. Default: $REPERTORY_DB, else runs.db of the data folder."),
]
NewDatabase = Annotated[
    Path | None, typer.Option("--db", metavar="FILE", help="The database. Default: a new one in the data folder.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Write one JSON object to standard output, and nothing else.")]
Plain = Annotated[bool, typer.Option("--plain", help="Write plain lines instead of a live picture.")]
ModelName = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="The model. Default: $REPERTORY_MODEL, else Claude if a key or server is set, else offline.",
    ),
]
SummaryModel = Annotated[
    str | None,
    typer.Option(
        "--summary-model",
        metavar="NAME",
        help="The model that writes summaries, such as a small one. Default: none, they are extracted.",
    ),
]
Loop = Annotated[Backend, typer.Option("--backend", metavar="trio|asyncio", help="The event loop.")]
AgentRef = Annotated[
    str | None,
    typer.Option("--agent", metavar="MODULE:NAME", help="An agent of yours, or a function that makes one."),
]
RunId = Annotated[
    str | None,
    typer.Argument(metavar="RUN", help="A run's id, or any part of it that fits one run only. Default: the newest."),
]
UnfinishedRunId = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN",
        help="A run's id, or any part of it that fits one run only. Default: the newest that did not finish.",
    ),
]


def _show_version(wanted: bool) -> None:
    if wanted:
        from repertory import __version__

        typer.echo(f"repertory {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _repertory(
    ctx: typer.Context,
    show_version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error. May stand anywhere on the line.")
    ] = False,
) -> None:
    """Options of every command."""
    if ctx.invoked_subcommand is None:
        from repertory.cli.welcome import welcome

        welcome()


@app.command()
def demo(
    question: Annotated[
        str | None, typer.Argument(metavar="QUESTION", help="What to find out. Default: a question about asyncio.")
    ] = None,
    *,
    root: Annotated[
        Path | None,
        typer.Option("--root", metavar="DIR", help="The folder to read. Default: this Python's standard library."),
    ] = None,
    db: NewDatabase = None,
    model: ModelName = None,
    backend: Loop = Backend.trio,
    as_json: AsJson = False,
    plain: Plain = False,
) -> None:
    """Watch a team of agents answer a question.

    They read source code on this machine, the standard library's unless told otherwise, and answer with citations,
    which are looked up. Without a key or a server the offline model plays, a small set of rules: everything but the
    intelligence is real.
    """
    from repertory.cli.demo import run_demo

    run_demo(question, root=root, db=db, model=model, backend=backend.value, as_json=as_json, plain=plain)


@app.command()
def run(
    task: Annotated[str, typer.Argument(metavar="TASK", help="What to do.")],
    *,
    root: Annotated[
        Path | None, typer.Option("--root", metavar="DIR", help="The folder to read. Default: the current one.")
    ] = None,
    agent: AgentRef = None,
    db: OwnDatabase = None,
    model: ModelName = None,
    summary_model: SummaryModel = None,
    backend: Loop = Backend.trio,
    as_json: AsJson = False,
    plain: Plain = False,
) -> None:
    """Run an agent on a task.

    That is the research team on a folder, or an agent of your own. The answer goes to standard output. Ctrl-C ends
    the run at its next boundary, a second one at once; either way `repertory resume` goes on from there.
    """
    from repertory.cli.running import run_task

    run_task(
        task,
        root=root,
        agent_ref=agent,
        db=db,
        model=model,
        summary_model=summary_model,
        backend=backend.value,
        as_json=as_json,
        plain=plain,
    )


@app.command()
def resume(
    run_id: UnfinishedRunId = None,
    *,
    agent: AgentRef = None,
    root: Annotated[Path | None, typer.Option("--root", metavar="DIR", help="Another folder than before.")] = None,
    db: Database = None,
    model: ModelName = None,
    summary_model: SummaryModel = None,
    backend: Loop = Backend.trio,
    as_json: AsJson = False,
    plain: Plain = False,
) -> None:
    """Go on with a run that did not finish.

    It may have been interrupted, stopped or failed. No tool call with an unknown effect is made twice.
    """
    from repertory.cli.running import resume_run

    resume_run(
        run_id,
        agent_ref=agent,
        root=root,
        db=db,
        model=model,
        summary_model=summary_model,
        backend=backend.value,
        as_json=as_json,
        plain=plain,
    )


@app.command()
def ps(
    db: Database = None,
    everything: Annotated[bool, typer.Option("-a", "--all", help="Show runs that have ended, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """List runs as a tree.

    Tokens are those of all prompts together. A run that no process works on any more is interrupted: resume it.
    """
    from repertory.cli.runs import list_runs

    list_runs(db=db, everything=everything, as_json=as_json)


@app.command()
def inspect(
    run_id: RunId = None,
    *,
    iteration: Annotated[
        int | None, typer.Option("--iteration", "-i", metavar="N", min=1, help="Which one. Default: the newest.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Show every message whole.")] = False,
    db: Database = None,
    as_json: AsJson = False,
) -> None:
    """Show what the model saw at an iteration.

    Beside it stands the record: how each entry was shown, and the decisions that made it so.
    """
    from repertory.cli.inspection import inspect_run

    inspect_run(run_id, iteration=iteration, full=full, db=db, as_json=as_json)


@app.command()
def ledger(
    run_id: RunId = None,
    *,
    content: Annotated[
        str | None, typer.Option("--content", metavar="CITATION", help="Show one stored content whole, instead.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Show every entry whole.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new entries until the run ends.")] = False,
    db: Database = None,
    as_json: AsJson = False,
) -> None:
    """Show the full record of a run."""
    from repertory.cli.ledger import show_content, show_ledger

    if content is not None:
        show_content(content, db=db, as_json=as_json)
    else:
        show_ledger(run_id, full=full, follow=follow, db=db, as_json=as_json)


@app.command()
def doctor(
    db: Database = None,
    model: ModelName = None,
    llm: Annotated[bool, typer.Option("--llm", help="Call the model twice, too; once with a tool.")] = False,
    deep: Annotated[bool, typer.Option("--deep", help="Check every record of the database, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check this machine and its settings."""
    from repertory.cli.doctor import check

    check(db=db, model=model, llm=llm, deep=deep, as_json=as_json)


@app.command()
def version(as_json: AsJson = False) -> None:
    """Show the versions of what is installed."""
    from repertory.cli.doctor import show_versions

    show_versions(as_json=as_json)


class Workload(StrEnum):
    """What can be stressed."""

    appends = "appends"


@app.command()
def stress(
    workload: Annotated[
        Workload, typer.Argument(metavar="WORKLOAD", help="What to stress: appends.")
    ] = Workload.appends,
    *,
    writers: Annotated[
        int, typer.Option("--writers", min=1, max=10_000, metavar="N", help="How many append at once.")
    ] = 50,
    appends: Annotated[
        int, typer.Option("--appends", min=1, max=1_000_000, metavar="N", help="Appends of each writer.")
    ] = 2000,
    threads: Annotated[
        int, typer.Option("--threads", min=0, max=1000, metavar="N", help="How many of the writers are OS threads.")
    ] = 8,
    durable: Annotated[
        bool, typer.Option("--durable", help="Acknowledge what survives a loss of power, not just of the process.")
    ] = False,
    db: Annotated[
        Path | None,
        typer.Option("--db", metavar="FILE", help="Write to this database. Default: one that is thrown away."),
    ] = None,
    backend: Loop = Backend.trio,
    as_json: AsJson = False,
) -> None:
    """Append from many tasks at once, and check.

    Nothing may be lost, doubled or out of order, and no snapshot may show what came after it.
    """
    from repertory.cli.stress import stress_appends

    engines = {Workload.appends: stress_appends}
    engines[workload](
        writers=writers,
        appends=appends,
        threads=threads,
        durable=durable,
        db=db,
        backend=backend.value,
        as_json=as_json,
    )


stats.register(app)
replay.register(app)
serve.register(app)
torture.register(app)
