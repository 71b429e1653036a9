"""``repertory machines`` and ``repertory drain``: machines that share a journal on PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repertory._postgres_address import PostgresAddress
from repertory.cli import output
from repertory.cli.commands import Answer, command
from repertory.cli.databases import VARIABLE, locate
from repertory.cli.options import DATABASE, argument
from repertory.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.console import Console

    from repertory.machines import Machine


@command
def machines(*, db: str | None = DATABASE) -> Answer:
    """List the machines that share a database, and their runs."""
    from repertory.machines.operating import list_machines

    database = _shared(db)
    found = list_machines(database)

    def show(screen: Console) -> None:
        if not found:
            output.say("no machine shares this database; start one with repertory serve --db postgresql://…")
        headers = ("NAME", "STATE", "LABELS", ">RUNS", "LEASE LEFT", "VERSION", "ID")
        output.print_table(screen, headers, list(map(_row, found)))

    return Answer({"database": str(database), "machines": found}, show)


def drain(
    machine: str = argument("MACHINE", "The name or id of a machine, as repertory machines shows it.", ...),
    *,
    db: str | None = DATABASE,
) -> None:
    """Make a machine take no more runs and hand its own over to others.

    Each run moves at its next boundary. End the process when repertory machines shows that it has no runs any more.
    """
    from repertory.machines.operating import drain_machine

    drain_machine(_shared(db), machine)
    output.say(f"{machine} is draining; repertory machines shows when it has no runs left")


def _shared(db: str | None) -> PostgresAddress:
    found, _ = locate(db)
    if not isinstance(found, PostgresAddress):
        raise ConfigurationError(
            f"only a database on PostgreSQL is shared by several machines, and {found} is a file; name one with --db "
            f"postgresql://… or ${VARIABLE}"
        )
    return found


def _row(machine: Machine) -> list[str]:
    lost, expired = machine.lost_at is not None, machine.left < 0
    state = "lost" if lost else "silent" if expired else "draining" if machine.draining else "up"
    left = "" if lost else f"{max(machine.left, 0):.0f} of {machine.lease:g} s"
    labels = ", ".join(machine.labels)
    return [machine.name, state, labels, str(machine.runs), left, machine.version, machine.machine_id]
