"""Runs in the foreground: ``repertory run``, ``repertory resume``, and what the demo shares with them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from repertory.cli import output
from repertory.cli.citations import Citation, check_citations
from repertory.cli.databases import read_run, runs_database
from repertory.cli.options import (
    AgentRef,
    AsJson,
    Backend,
    Database,
    Loop,
    ModelName,
    OwnDatabase,
    Plain,
    SummaryModel,
    UnfinishedRunId,
)
from repertory.errors import ConfigurationError, RunError

if TYPE_CHECKING:
    from repertory.agents import Agent, Run, Supervisor
    from repertory.llm import Model
    from repertory.llm.messages import Json
    from repertory.record import Journal, RunRow, RunStatistics
    from repertory.summarizer import Strategy

RESEARCH = "repertory.agents:research_team"


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
    folder = existing_folder(root or Path())
    options: Json = {"root": str(folder)} | ({"model": model} if model is not None else {})
    reference = agent or RESEARCH
    found = find_agent(reference, options, model)
    path = runs_database(db)

    async def start(supervisor: Supervisor) -> Run:
        return await supervisor.spawn(found, task, agent_ref=reference, options=options)

    outcome = execute(
        start,
        path=path,
        root=folder,
        model=model,
        summary_model=summary_model,
        backend=backend,
        as_json=as_json,
        plain=plain,
    )
    report(outcome, as_json=as_json)


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

    async def read(path: Path, journal: Journal, row: RunRow) -> tuple[Path, RunRow]:
        return path, row

    path, row = read_run(run_id, db, read, unfinished=True)
    started = row.started
    options: Json = dict(started.options)
    if root is not None:
        options["root"] = str(existing_folder(root))
    if model is not None:
        options["model"] = model
    reference = agent or started.agent_ref
    if not reference:
        raise ConfigurationError(
            f"run {started.run_id} does not say where its agent {started.agent!r} is defined; "
            "name it with --agent module:name"
        )
    found = find_agent(reference, options, options.get("model"))

    async def start(supervisor: Supervisor) -> Run:
        return await supervisor.resume(started.run_id, agent=found)

    folder = Path(options["root"]) if "root" in options else None
    outcome = execute(
        start,
        path=path,
        root=folder,
        model=options.get("model"),
        summary_model=summary_model,
        backend=backend,
        as_json=as_json,
        plain=plain,
    )
    report(outcome, as_json=as_json)


def existing_folder(path: Path) -> Path:
    """The folder, made absolute.

    Raises:
        ConfigurationError: It is not there.
    """
    if not os.path.isdir(path):
        raise ConfigurationError(f"--root: there is no folder {path}")
    try:
        return path.resolve()
    except FileNotFoundError as error:
        raise ConfigurationError("the current folder is gone; go to another one") from error


def find_agent(reference: str, options: Json, model: str | None) -> Agent:
    """Import an agent, from the current folder too, and see that its model makes sense before anything is written.

    Raises:
        ConfigurationError: There is no such agent or model.
    """
    import msgspec

    from repertory.agents import load_agent
    from repertory.llm import open_model

    if "" not in sys.path:
        sys.path.insert(0, "")
    open_model(model)
    agent = load_agent(reference, **options)
    return agent if model is None else msgspec.structs.replace(agent, model=model)


# --- one run in the foreground ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended in this process."""

    run_id: str
    agent: str
    task: str
    model: str
    state: str
    database: Path
    seconds: float
    statistics: RunStatistics
    answer: str | None = None
    citations: tuple[Citation, ...] = ()
    error: RunError | None = None
    signal: int = 0

    def to_json(self) -> Json:
        """What ``--json`` gives."""
        import msgspec

        figures = msgspec.to_builtins(self.statistics)
        return {
            "run_id": self.run_id,
            "agent": self.agent,
            "task": self.task,
            "model": self.model,
            "state": self.state,
            "answer": self.answer,
            "error": None if self.error is None else str(self.error),
            "database": str(self.database),
            "seconds": round(self.seconds, 3),
            "agents": figures.pop("runs"),
            **figures,
            "citations": {
                "total": len(self.citations),
                "resolved": len(self.citations) - len(self.unresolved),
                "unresolved": [asdict(citation) for citation in self.unresolved],
            },
        }

    @property
    def unresolved(self) -> list[Citation]:
        """The citations that do not hold."""
        return [citation for citation in self.citations if not citation.resolved]


def execute(
    start: Callable[[Supervisor], Awaitable[Run]],
    *,
    path: Path,
    root: Path | None,
    model: Model | str | None,
    backend: Backend,
    as_json: bool,
    plain: bool,
    summary_model: str | None = None,
    is_shown: bool = False,
) -> Outcome:
    """Run one run to its end, or until a signal asks to stop, and show how it goes. Its record says how to go on.

    Args:
        start: Starts or resumes it.
        path: The database.
        root: The folder that citations in the answer are about; None leaves them unchecked.
        model: For agents that name none.
        backend: The event loop.
        as_json: Standard output is kept for the one object.
        plain: Lines instead of a picture.
        summary_model: Writes summaries; None extracts them without a model.
        is_shown: What goes on belongs to standard output, beside the answer.
    """
    import anyio

    from repertory.agents import open_supervisor
    from repertory.cli.live import show_progress
    from repertory.cli.stopping import stopped_by_signals

    outcomes: list[Outcome] = []
    begun = time.monotonic()

    async def main() -> None:
        async with (
            stopped_by_signals(progress.announce) as stop,
            summaries_by(summary_model) as summaries,
            open_supervisor(path, model=model, summaries=summaries) as supervisor,
        ):
            started = await start(supervisor)
            async with anyio.create_task_group() as watching:
                watching.start_soon(stop.cancel_when_asked, watching.cancel_scope)
                async for event in started.events(tree=True):
                    progress.add(event)
                watching.cancel_scope.cancel()
            outcomes.append(await _outcome(supervisor, started, path, stop.signal, time.monotonic() - begun))
        if not outcomes:  # a second signal came before the supervisor was closed in order, or before there was a run
            raise stop.interrupted(f"stopped at once; repertory ps --db {path} shows what there is to resume")

    with show_progress(as_json=as_json, plain=plain, stderr=not is_shown) as progress:
        anyio.run(main, backend=backend.value)
    outcome = outcomes[0]
    if outcome.answer is None or root is None:
        return outcome
    return replace(outcome, citations=tuple(check_citations(outcome.answer, root)))


async def _outcome(supervisor: Supervisor, run: Run, path: Path, signal_number: int, seconds: float) -> Outcome:
    from repertory.record import FINAL_STATES

    answer, error = None, None
    if run.state in FINAL_STATES:
        signal_number = 0  # it came too late to matter
        try:
            answer = await run.wait_result()
        except RunError as raised:
            error = raised
    return Outcome(
        run_id=run.id,
        agent=run.agent.name,
        task=run.task,
        model=(await supervisor.journal.read_run(run.id)).started.model,
        state=run.state if error is not None or answer is not None else "interrupted",
        database=path,
        seconds=seconds,
        statistics=run.statistics(tree=True),
        answer=answer,
        error=error,
        signal=signal_number,
    )


@asynccontextmanager
async def summaries_by(name: str | None) -> AsyncGenerator[Strategy | None]:
    """Open the model that writes summaries, for as long as the block lasts; without a name there is none."""
    if name is None:
        yield None
        return
    import anyio

    from repertory.llm import open_model
    from repertory.summarizer import ModelStrategy

    model = open_model(name)
    try:
        yield ModelStrategy(model)
    finally:
        with anyio.CancelScope(shield=True):
            await model.aclose()


# --- what came of it --------------------------------------------------------------------------------------


def report(outcome: Outcome, *, as_json: bool) -> None:
    """Write the answer, or the one object, to standard output; raise what kept the run from its answer."""
    if as_json:
        output.print_json(outcome.to_json())
    elif outcome.answer is not None:
        print_answer(outcome.answer)
        for citation in outcome.unresolved:
            output.say(f"citation {citation.path}:{citation.first} does not hold: {citation.problem}")
    raise_for(outcome)


def raise_for(outcome: Outcome) -> None:
    """Raise what kept the run from its answer.

    Raises:
        Interrupted: A signal ended it.
        RunError: It failed.
    """
    go_on = f"go on with: repertory resume {outcome.run_id} --db {outcome.database}"
    if outcome.signal:
        raise output.Interrupted(f"interrupted, nothing is lost; {go_on}", 128 + outcome.signal)
    if outcome.error is not None:
        raise type(outcome.error)(f"{outcome.error}; {go_on}") from outcome.error.__cause__


def print_answer(answer: str) -> None:
    """Write an answer for a person: wrapped on a terminal, as it is elsewhere."""
    text = output.clean(answer).rstrip("\n")
    if not sys.stdout.isatty():
        sys.stdout.write(f"{text}\n")
        return
    from rich.table import Table
    from rich.text import Text

    screen = output.console()
    for line in text.split("\n"):
        if line.startswith("- "):  # wrapped under its own first word
            item = Table.grid()
            item.add_row("• ", Text(line[2:]))
            screen.print(item)
        else:
            # Not more of Markdown than this: its underscores would eat those of file names.
            screen.print(Text(line.strip("*"), style="bold") if line.startswith("**") else Text(line))
