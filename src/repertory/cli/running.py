"""Runs in the foreground: ``repertory run`` and ``repertory resume``; the demo shares their functions."""

from __future__ import annotations

import os
import re
import sys
import time
import warnings
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import asdict
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import anyio
import msgspec
from rich.table import Table
from rich.text import Text

from repertory._cancelling import cancel_after
from repertory.agents import Agent, load_agent
from repertory.agents.loading import lasting_reference, load_object
from repertory.cli import output
from repertory.cli.attachments import ATTACH, read_attachments
from repertory.cli.commands import Answer, command
from repertory.cli.conversing import decide_at_terminal
from repertory.cli.databases import Database, db_option, read_row, runs_database
from repertory.cli.live import show_progress
from repertory.cli.options import AGENT, CONTEXT, OWN_DATABASE, UNFINISHED_RUN, At, How, Shown, argument, option
from repertory.cli.steering import resume_in_service
from repertory.cli.stopping import stopped_by_signals
from repertory.errors import ConfigurationError, LimitExceeded, RepertoryError, RunError
from repertory.llm import Model
from repertory.llm.messages import Json
from repertory.record import FINAL_STATES, RunStarted
from repertory.record.opening import is_owned
from repertory.runs import open_model
from repertory.service.offers import RESEARCH_REF, look_into
from repertory.supervisor import Run, Supervisor, open_supervisor
from repertory.tools.citations import check_citations

_HEADING = re.compile(r"\*\*([^*]+)\*\*\s*")  # a line that is bold as a whole
_RULE = re.compile(":?-+:?")  # a cell of the line below the headers of a table


@command
def run(
    task: str = argument("TASK", "What to do.", ...),
    *,
    root: Path = option("--root DIR", "The folder to read. Default: the current one.", Path()),
    attach: list[Path] = ATTACH,
    agent: str | None = AGENT,
    context: str | None = CONTEXT,
    db: str | None = OWN_DATABASE,
    how: How,
    shown: Shown,
) -> Coroutine[Any, Any, Answer]:
    """Run an agent on a task.

    The agent is the research team on a folder, or your own. The answer goes to standard output. Ctrl-C stops the run
    after its current model call or tool calls, a second one at once; either way `repertory resume` continues it.
    """
    options = options_with({}, root, how)
    reference = lasting_reference(RESEARCH_REF if agent is None else agent)
    found, handed = find_agent(reference, options), find_object(context, "context")
    attachments = read_attachments(attach)

    async def start(supervisor: Supervisor) -> Run[Any]:
        given: dict[str, Any] = {"agent_ref": reference, "options": options, "context": handed}
        return await supervisor.spawn(found, task, attachments=attachments, **given)

    return execute(start, path=runs_database(db), options=options, how=how, shown=shown)


@command
def resume(
    run_id: str | None = UNFINISHED_RUN,
    *,
    agent: str | None = AGENT,
    context: str | None = CONTEXT,
    root: Path | None = option("--root DIR", "A different folder than before."),
    at: At,
    how: How,
    shown: Shown,
) -> Answer | Coroutine[Any, Any, Answer]:
    """Continue a run that did not finish.

    It may have been interrupted, paused, stopped or failed. No tool call with an unknown effect is made twice. If a
    service has the database, the run continues there and the command returns at once; otherwise it continues here.
    """
    changed = bool(agent or context or root or how.model or how.limit or how.summary_model)
    served = anyio.run(partial(resume_in_service, run_id, at, changed=changed))
    if served is not None:
        return served
    path, row = read_row(run_id, at.db, unfinished=True)
    started = row.started
    if run_id is None and not is_owned(path):  # else it is not continued here
        # The record may still say running; a run that no process works on was interrupted.
        state = "interrupted" if row.state in ("running", "waiting") else row.state
        output.say(f"continuing {started.run_id}, which is {state}: {output.one_line(started.task, 60)}")
    options = options_with(started.options, root, how)
    found, handed = find_agent(reference_for(started, agent), options), find_object(context, "context")

    async def start(supervisor: Supervisor) -> Run[Any]:
        return await supervisor.resume(started.run_id, agent=found, context=handed)

    return execute(start, path=path, options=options, how=how, shown=shown)


def options_with(saved: Json, root: Path | None, how: How) -> Json:
    """The saved options of a run, overridden by those of the command line."""
    options = dict(saved)
    if root is not None:
        options["root"] = str(existing_folder(root))
    if how.model is not None:
        options["model"] = how.model
    if how.limits:
        options["limits"] = options.get("limits", {}) | how.limits
    return options


def existing_folder(path: Path) -> Path:
    """The folder as an absolute path. Raises ``ConfigurationError`` if it does not exist."""
    if not os.path.isdir(path):
        raise ConfigurationError(f"--root: there is no folder {path}")
    try:
        return path.resolve()
    except FileNotFoundError as error:
        raise ConfigurationError("the current folder is gone; change to another one") from error


def reference_for(started: RunStarted, agent: str | None) -> str:
    """Where the agent is defined that continues a run: as ``--agent`` says, else the record.

    Raises ``ConfigurationError`` if neither does.
    """
    reference = started.agent_ref if agent is None else lasting_reference(agent)
    if not reference:
        raise ConfigurationError(
            f"run {started.run_id} does not say where its agent {started.agent!r} is defined; name it with --agent"
        )
    return reference


def find_agent(reference: str, options: Json) -> Agent[Any]:
    """Import an agent, also from the current folder, and check its model before anything is written."""
    look_into("")  # as ``python -m`` does
    model = options.get("model")
    open_model(model)
    with warnings.catch_warnings(record=True) as odd:
        warnings.simplefilter("always", UserWarning)
        agent = load_agent(reference, **options)
    for warning in odd:
        output.say(str(warning.message))
    return agent if model is None else msgspec.structs.replace(agent, model=model)


def find_object(reference: str | None, what: str) -> Any:
    """Import an object of the application, such as the context, also from here; None if none is named."""
    look_into("")
    return None if reference is None else load_object(reference, what)


# --- one run in the foreground ----------------------------------------------------------------------------


async def execute(
    start: Callable[[Supervisor], Awaitable[Run[Any]]],
    *,
    path: Database,
    options: Json,
    how: How,
    shown: Shown,
    model: Model | None = None,
) -> Answer:
    """Run one run to its end, or until a signal stops it, and show its progress. It can be resumed from its record.

    Args:
        start: Starts or resumes the run.
        path: The database.
        options: The options of the run. Citations in the answer are checked in the folder ``root``, if it is given.
        how: The settings of the run.
        shown: What to show of it.
        model: The model of agents that name none, instead of the one in the options.
    """
    begun = time.monotonic()
    begun_runs: list[tuple[Run[Any], str]] = []
    with show_progress(shown) as progress:
        async with (
            stopped_by_signals(orderly=True) as stop,
            open_supervisor(path, model=model or options.get("model"), summaries=how.summaries) as supervisor,
        ):
            run = await start(supervisor)
            begun_runs.append((run, (await supervisor.journal.read_run(run.id)).started.model))
            async with anyio.create_task_group() as watching:
                watching.start_soon(cancel_after, stop.asked.wait, watching.cancel_scope)
                watching.start_soon(decide_at_terminal, run, db_option(path), progress.announce, progress.aside)
                async for event in run.events(tree=True):
                    is_new = event.run_id not in progress.agents
                    progress.add(event)
                    if is_new and progress.is_drawn:
                        watching.start_soon(progress.read_along, supervisor.run(event.run_id))
                watching.cancel_scope.cancel()
            if stop.asked.is_set():
                progress.announce("stopping at the next boundary; Ctrl-C again stops at once")
        if not begun_runs:
            raise stop.interrupted(f"stopped at once; repertory ps{db_option(path)} lists the runs to resume")
        ((run, name),) = begun_runs  # only now, when nothing runs any more, is its end certain
        go_on = f"continue with: repertory resume {run.id}{db_option(path)}"
        interrupted = stop.interrupted(f"interrupted, nothing is lost; {go_on}")
        fields, error = await _outcome(run, name, path, go_on, interrupted)
    answer = fields["answer"]
    root = options.get("root")
    citations = [] if answer is None or root is None else check_citations(answer, Path(root))
    unresolved = [asdict(citation) for citation in citations if not citation.resolved]
    counts = {"total": len(citations), "resolved": len(citations) - len(unresolved), "unresolved": unresolved}
    fields |= {"seconds": round(time.monotonic() - begun, 3), "citations": counts}
    return Answer(fields, lambda _: _print_outcome(fields), error)


async def _outcome(
    run: Run[Any], model: str, path: Database, go_on: str, interrupted: output.Interrupted
) -> tuple[Json, RepertoryError | None]:
    answer, words, result = None, None, None
    error: RepertoryError | None = interrupted
    if run.state in FINAL_STATES:  # if a signal came, it came too late to matter
        try:
            (answer, result), error = told(run, await run.wait_result()), None
        except RunError as raised:
            wider = " --limit NAME=VALUE, with a higher value" if isinstance(raised.__cause__, LimitExceeded) else ""
            words, error = str(raised), type(raised)(f"{raised}; {go_on}{wider}")
            error.__cause__ = raised.__cause__
    figures = msgspec.to_builtins(run.statistics(tree=True))
    fields = {
        "run_id": run.id,
        "agent": run.agent.name,
        "task": run.task,
        "model": model,
        "state": "interrupted" if error is interrupted else run.state,
        "answer": answer,
        "result": result,
        "error": words,
        "database": str(path),
        "agents": figures.pop("runs"),
        **figures,
    }
    return fields, error


def told(run: Run[Any], answer: Any) -> tuple[str, Any]:
    """An answer as text, and as a value if the agent has an output type."""
    kind = run.agent.output_type
    if kind is None:
        return str(answer), None
    written = kind.write(answer)
    return msgspec.json.format(written, indent=2), msgspec.json.decode(written)


# --- the outcome --------------------------------------------------------------------------------------


def _print_outcome(fields: Json) -> None:
    """Write the answer, if there is one, and say which of its citations do not hold."""
    if fields["answer"] is not None:
        print_answer(fields["answer"])
    for citation in fields["citations"]["unresolved"]:
        output.say(broken_citation(citation))


def broken_citation(citation: Json) -> str:
    """The message for a citation that does not hold."""
    return f"citation {citation['path']}:{citation['first']} does not hold: {citation['problem']}"


def print_answer(answer: str) -> None:
    """Write an answer for a person: wrapped on a terminal, unchanged elsewhere."""
    text = output.clean(answer).rstrip("\n")
    if not sys.stdout.isatty():
        output.write(text)
        return
    screen = output.console()
    for is_table, lines in groupby(text.split("\n"), key=lambda line: line.startswith("|")):
        if is_table:
            cells = [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines]
            headers, *rows = [row for row in cells if not all(map(_RULE.fullmatch, row))] or [[""]]
            table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
            for header in headers:
                table.add_column(header, overflow="fold")
            for row in rows:
                table.add_row(*map(Text, row[: len(headers)]))
            screen.print(table)
            continue
        for line in lines:
            if line.startswith("- "):  # wrapped under its own first word
                item = Table.grid()
                item.add_row("• ", Text(line[2:], overflow="fold"))  # or Rich cuts wide letters at the edge
                screen.print(item)
            else:
                # No more Markdown than this: its underscores would remove those of file names.
                heading = _HEADING.fullmatch(line)
                screen.print(Text(line) if heading is None else Text(heading[1], style="bold"))
