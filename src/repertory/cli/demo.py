"""``repertory demo``: a team answers a question from source code; its figures are compared with a plain loop."""

from __future__ import annotations

import sysconfig
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

from repertory.agents import Agent, research_team
from repertory.agents.loading import with_limits
from repertory.cli import output
from repertory.cli.commands import Answer, command
from repertory.cli.databases import Database, db_option, named_database, runs_database, usual_database
from repertory.cli.options import OWN_DATABASE, How, Shown, argument, option
from repertory.cli.reading import overview
from repertory.cli.running import broken_citation, execute, existing_folder, options_with, print_answer
from repertory.cli.runs import suggest
from repertory.context import ContextPolicy
from repertory.errors import ConfigurationError
from repertory.llm import Model
from repertory.llm.messages import Json
from repertory.offline import OfflineModel
from repertory.record.opening import is_owned
from repertory.runs import open_model
from repertory.supervisor import Run, Supervisor
from repertory.tools import file_tools

QUESTION = (
    "What is deprecated in importlib, in unittest, in threading, in zipimport and in logging, since when, "
    "when is it removed, and what takes its place?"
)
_OTHER_QUESTION = "What is in this folder, which parts does it have, and what does each of them do?"
OFFLINE_STEPS = 34  # turns of searching and reading; 10 are enough for an answer, but the record would be small
_LOOK = ("stats", "inspect", "ledger")  # what shows a run
DEMO = "demo.db"  # its database if another process uses the default one
TEAM = "repertory.cli.demo:demo_team"
# Folders in that of the standard library that hold no source of it, or none that explains it.
NOT_SHOWN = ("site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "ensurepip", "__pycache__")


def demo_team(root: str, *, model: str | None = None, deny: Sequence[str] = ()) -> Agent:
    """Make the team of the demo: ``research_team``, summarized often enough to show summaries in a short run.

    Args:
        root: The folder; nothing outside it can be read.
        model: The model of all agents; None leaves the choice to the supervisor.
        deny: Names in the folder that the agents cannot see.
    """
    lead = research_team(root, model=model, context=ContextPolicy(summarize_every=4, window=1))
    looking = {tool.name: tool for tool in file_tools(root, deny=deny)}
    team = [
        msgspec.structs.replace(member, tools=[looking.get(tool.name, tool) for tool in member.own_tools])
        for member in lead.team
    ]
    return msgspec.structs.replace(lead, team=team)


def _model(name: str | None) -> Model:
    """The model of a name, or the default one; the offline model takes more turns than usual."""
    model = open_model(name)
    return OfflineModel(steps=OFFLINE_STEPS) if isinstance(model, OfflineModel) else model


@command
async def demo(
    question: str | None = argument(
        "QUESTION", "The question. Default: what is deprecated in five modules; for another folder, what is in it."
    ),
    *,
    root: Path | None = option("--root DIR", "The folder to read. Default: this Python's standard library."),
    db: str | None = OWN_DATABASE,
    how: How,
    shown: Shown,
) -> Answer:
    """Watch a team of agents answer a question.

    They read source code on this machine, the standard library by default, and answer with citations, which are then
    checked. Without a key or a server the offline model answers, a small set of rules: everything but the intelligence
    is real.
    """
    library = Path(sysconfig.get_paths()["stdlib"])
    if root is None and not (library / "threading.py").is_file():  # it is zipped, or compiled alone
        raise ConfigurationError(f"this Python has no source of its library in {library}; name a folder: --root DIR")
    folder = existing_folder(root or library)
    chosen = _model(how.model)
    deny = NOT_SHOWN if root is None else ()
    options = options_with({"deny": list(deny)}, folder, how)
    agent = with_limits(demo_team(str(folder), deny=deny), how.limits)
    task = question or (QUESTION if root is None else _OTHER_QUESTION)
    named = named_database(db)
    path = runs_database(db)
    if named is None and is_owned(path):  # as by a service that keeps running
        path = named = usual_database(DEMO)

    async def start(supervisor: Supervisor) -> Run:
        return await supervisor.spawn(agent, task, agent_ref=TEAM, options=options)

    if not (shown.as_json or shown.quiet):
        _print_opening(task, folder, chosen, path)
    answer = await execute(start, path=path, options=options, how=how, shown=shown, model=chosen)
    closing = partial(_print_closing, fields=answer.fields, where=db_option(named))
    return answer if shown.quiet else replace(answer, show=closing)


def _print_opening(task: str, folder: Path, model: Model, path: Database) -> None:
    offline = isinstance(model, OfflineModel)
    answering = "the offline model, a set of rules" if offline else f"{model.name}, whose calls may cost money"
    screen = output.console()
    screen.print(Text(output.clean(task), style="bold"))
    facts = f"from {folder}\nanswered by {answering}\nrecorded in {path}\n"
    screen.print(Text(output.clean(facts), style="dim"), soft_wrap=True)


def _print_closing(screen: Console, *, fields: Json, where: str) -> None:
    output.remark("")  # behind the progress
    if fields["answer"] is not None:
        print_answer(fields["answer"])
        screen.print()
    if fields["iterations"]:
        citations = fields["citations"]
        rows = [
            ("agents", str(fields["agents"]), f"{fields['seconds']:.1f} s"),
            *overview(fields),
            ("citations", str(citations["total"]), f"{citations['resolved']} found in the files"),
        ]
        output.print_table(screen, output.Columns(("", "", ""), rows))
    if fields["model"] == "offline":
        words = "The offline model costs nothing; the costs shown are at the prices of a small model."
        output.show(screen, Text(words, style="dim"), "")
    for citation in fields["citations"]["unresolved"]:
        screen.print(Text(output.clean(broken_citation(citation)), style="red"))
    screen.print(Text("Look at what happened:", style="bold"))
    run_id = fields["run_id"]
    suggest(screen, [f"{words}{where}" for words in ("ps -a", *(f"{name} {run_id}" for name in _LOOK))])
