"""Bare ``repertory``: what one may want to do next, by what has been done so far."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from repertory._version import __version__
from repertory.cli import output
from repertory.cli.databases import data_dir, databases_to_read, is_owned, named_database, open_to_read
from repertory.errors import RepertoryError
from repertory.service.views import run_view

if TYPE_CHECKING:
    from repertory.record import RunRow

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
    try:
        rows = anyio.run(_read, paths[0])
    except RepertoryError as error:
        _print(f"The newest database cannot be read: {error}", _ALWAYS)
        return
    owned = is_owned(paths[0])
    roots = [row for row in rows if row.started.parent_id is None]
    states = [run_view(row, live=owned).state for row in roots]
    left = [row for row, state in zip(roots, states, strict=True) if state in ("interrupted", "failed", "stopped")]
    going = sum(state not in ("done", "interrupted", "failed", "stopped") for state in states)
    more = f", {_count(len(paths) - 1, 'older database')} beside it" if len(paths) > 1 else ""
    facts = f"{paths[0]}: {_count(len(roots), 'run')}, {going} under way, {len(left)} not finished{more}."
    if going:
        _print(facts, (("repertory ps", "the runs under way"), *_LOOK[1:]), _ALWAYS)
    elif left:
        _print(f"{facts} Go on:", _resuming(left), _LOOK, _ALWAYS)
    else:
        _print(facts, _LOOK, _BEGIN, _ALWAYS)


async def _read(path: Path) -> list[RunRow]:
    async with open_to_read(path) as journal:
        return await journal.read_runs()


def _resuming(left: Sequence[RunRow]) -> list[tuple[str, str]]:
    newest = list(reversed(left))[:_LISTED]
    return [
        (f"repertory resume {output.one_line(row.started.run_id)}", output.one_line(row.started.task, 40))
        for row in newest
    ]


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
