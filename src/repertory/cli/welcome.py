"""Bare ``repertory``: what one may want to do next, by what has been done so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import anyio

from repertory._version import __version__
from repertory.cli import output
from repertory.cli.databases import data_dir, databases_to_read, named_database, open_to_read
from repertory.errors import RepertoryError
from repertory.record.sqlite_file import is_owned
from repertory.service.reports import read_runs

if TYPE_CHECKING:
    from repertory.llm.messages import Json

_LISTED = 3  # runs that did not finish
_BEGIN = (
    ("repertory demo", "watch a team of agents answer a question"),
    ('repertory run "TASK" --root DIR', "have a team read a folder of yours"),
)
_LOOK = (
    ("repertory ps -a", "every run"),
    ("repertory stats --tree", "what the newest one saw and cost"),
    ("repertory inspect", "what its model saw last, beside the record"),
)
_ALWAYS = (
    ("repertory doctor", "check this machine and its settings"),
    ("repertory --help", "every command"),
)


def welcome() -> None:
    """See what there is, and say what to do with it. Nothing is written, and nothing that is there is an error."""
    try:
        paths = databases_to_read(None)
    except output.NothingThere:
        where = named_database(None) or data_dir()
        _print(f"No runs yet in {where}. Begin:", _BEGIN, _ALWAYS)
        return
    owned = is_owned(paths[0])

    async def read() -> list[Json]:
        async with open_to_read(paths[0]) as journal:
            return await read_runs(journal, live=owned)

    try:
        roots = [run for run in anyio.run(read) if run["parent_id"] is None]
    except RepertoryError as error:
        _print(f"The newest database cannot be read: {error}", _ALWAYS)
        return
    left = [run for run in roots if run["resumable"]]
    going = sum(run["state"] != "done" for run in roots) - len(left)
    more = f", {_count(len(paths) - 1, 'older database')} beside it" if len(paths) > 1 else ""
    facts = f"{paths[0]}: {_count(len(roots), 'run')}, {going} under way, {len(left)} not finished{more}."
    if going:
        _print(facts, (("repertory ps", "the runs under way"), *_LOOK[1:]), _ALWAYS)
    elif left:
        newest = left[: -_LISTED - 1 : -1]
        resuming = [(f"repertory resume {run['run_id']}", output.one_line(run["task"], 40)) for run in newest]
        _print(f"{facts} Go on:", resuming, _LOOK, _ALWAYS)
    else:
        _print(facts, _LOOK, _BEGIN, _ALWAYS)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _print(facts: str, *groups: Sequence[tuple[str, str]]) -> None:
    from rich.text import Text

    screen = output.console()
    output.show(screen, Text(f"repertory {__version__}", style="bold"), Text(output.one_line(facts)))
    widest = max(len(command) for group in groups for command, _ in group)
    for group in groups:
        rows = [(f"  {command.ljust(widest)}", what) for command, what in group]
        output.show(screen, Text(), output.table(("", ""), rows, width=screen.width))
