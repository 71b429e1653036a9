"""Every error can be made again from what it holds: by copy and pickle, and by a machine that is told of it."""

from __future__ import annotations

import copy
import inspect
import math
import pickle
import re

import pytest
import trio

from postgres_server import PostgresServer
from repertory import errors
from repertory.errors import DefinitionError, JournalLocked, QueueFull, RepertoryError
from repertory.machines import open_machines
from repertory.machines.commands import Command, Commands
from repertory.record import open_journal

WITH_MORE: dict[type[RepertoryError], RepertoryError] = {
    DefinitionError: DefinitionError("agents/clerk.md", "unknown tool", field="tools", line=3),
    JournalLocked: JournalLocked("another process owns it", path="runs.db", owner=17),
    QueueFull: QueueFull("ann has 10 runs waiting", retry_after=2.5),
}
EVERY = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, RepertoryError)]


class Refined(QueueFull):
    """Of an application."""


def example(kind: type[RepertoryError]) -> RepertoryError:
    """An error of a class; with a text that a database does not take as it is."""
    return WITH_MORE[kind] if kind in WITH_MORE else kind("it is so: \0\ud800 é")


def same(error: BaseException, other: BaseException) -> bool:
    """Whether two errors say the same."""
    return (type(error), str(error), vars(error)) == (type(other), str(other), vars(other))


def test_the_tree_that_is_drawn_is_the_tree_that_there_is() -> None:
    """Whoever catches a class of errors reads there what else it catches: every class once, below its base."""
    drawn, path = dict[str, str](), ["RepertoryError"]
    for branch, name in re.findall(r"^ {4}((?:[│ ] {3})*[├└]── )(\w+)", errors.__doc__ or "", re.MULTILINE):
        depth = len(branch) // 4
        drawn[name] = path[depth - 1]
        path[depth:] = [name]
    assert drawn == {kind.__name__: kind.__base__.__name__ for kind in EVERY if kind is not RepertoryError}


@pytest.mark.parametrize("kind", EVERY)
def test_an_error_is_copied_and_pickled_with_what_it_holds(kind: type[RepertoryError]) -> None:
    """A pool of processes would break over one that cannot be made again."""
    error = example(kind)
    error.add_note("seen")
    assert same(copy.copy(error), error)
    assert same(pickle.loads(pickle.dumps(error)), error)
    del error.__notes__


async def refused(commands: Commands, command: Command, error: RepertoryError) -> RepertoryError:
    """What a command raises where it was given, once it was answered with an error."""
    raised = list[RepertoryError]()

    async def ask() -> None:
        try:
            await commands.ask("run-1", command.verb, command.body, command_id=command.command_id, within=math.inf)
        except RepertoryError as answer:
            raised.append(answer)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        while not raised:
            await commands.answer(command, error)  # again, since it may come before the command is there
    return raised[0]


async def test_another_machine_raises_every_error_as_it_was(postgres: PostgresServer) -> None:
    """With its attributes; one of an application's own class as the nearest that all know."""
    async with (
        open_journal(postgres.emptied_journal()) as journal,
        open_machines(journal, name=None, labels=(), lease=60.0) as machines,
    ):
        commands = Commands(machines)
        for number, error in enumerate([*map(example, EVERY), Refined("full", retry_after=1.0)]):
            wanted = QueueFull("full", retry_after=1.0) if isinstance(error, Refined) else error
            assert same(await refused(commands, Command(f"cmd-{number}", "run-1", "stop", {}), error), wanted)
