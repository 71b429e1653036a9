"""Operating machines from outside: which take part, and how to drain one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from repertory._postgres_address import PostgresAddress
from repertory.errors import ConfigurationError
from repertory.machines import ownership
from repertory.machines.machine import Machine, read_machines
from repertory.record.postgres_schema import check_readable
from repertory.record.postgres_sql import connect, driver, explain

if TYPE_CHECKING:
    from repertory.record.postgres_sql import Connection

T = TypeVar("T")


def list_machines(address: PostgresAddress) -> Sequence[Machine]:
    """The machines that share a journal, and those that were lost within the last day; the oldest first. Blocks."""
    return _ask(address, "list the machines of", read_machines)


def list_owners(address: PostgresAddress) -> dict[str, str]:
    """The names of the living machines that own unfinished trees of runs, by root; "" for any other tree. Blocks."""
    return _ask(address, "read whose runs are in", lambda connection: dict(connection.execute(ownership.LIVING_OWNERS)))


def drain_machine(address: PostgresAddress, name: str) -> None:
    """Make a machine take no more runs and release its own at their next boundary, within a second or so. Blocks.

    Raises:
        ConfigurationError: No living machine has this name or id, or several have.
    """

    def write(connection: Connection) -> None:
        there = [each for each in read_machines(connection) if each.lost_at is None]
        chosen = [each for each in there if name in (each.name, each.machine_id)]
        if len(chosen) != 1:
            listed = ", ".join(f"{each.name} ({each.machine_id})" for each in there) or "none"
            wrong = "several machines are" if chosen else "no machine that is alive is"
            raise ConfigurationError(f"{wrong} called {name[:100]!r}; there are {listed}")
        connection.execute(ownership.DRAIN, [chosen[0].machine_id])

    _ask(address, "drain a machine of", write)


def _ask(address: PostgresAddress, doing: str, work: Callable[[Connection], T]) -> T:
    error_type = driver().Error
    try:
        with connect(address) as connection:
            check_readable(connection, address)
            return work(connection)
    except error_type as error:
        raise explain(error, address, doing) from error
