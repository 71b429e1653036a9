"""Takeover: finds dead machines, and releases their runs so that they wait for any machine."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from repertory._log import Log
from repertory.machines import ownership
from repertory.record.postgres_sql import driver
from repertory.record.postgres_writer import application_name

if TYPE_CHECKING:
    from repertory.record.postgres_sql import Connection

log = Log("repertory.machines")

_WAIT: Final = "500ms"  # how long a takeover waits for a transaction of the machine before the server ends it
_ATTEMPTS: Final = 2  # to take a machine over: the first may have to end one of its transactions


def _kernel() -> str:
    """Identifies the scope in which this process's ids of processes are unique; "" if that cannot be known."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip() + os.readlink(
            "/proc/self/ns/pid"
        )
    except OSError:
        return ""


KERNEL: Final = _kernel()


def take_over(connection: Connection, machine_id: str, *, is_steady: bool) -> list[str]:
    """Release the runs of dead machines, so that they wait for any machine. Blocks.

    Args:
        is_steady: Whether the lease of ``machine_id``, which does this, was renewed without a break, so that other
            machines had time for that too.

    Returns:
        The ids of those machines.

    Raises:
        LeaseLost: Another machine has taken this one over.
    """
    others = connection.execute(ownership.OTHERS, [machine_id, KERNEL]).fetchall()
    dead = [
        (other, gone)
        for other, expired, kernel, pid in others
        if (gone := bool(KERNEL) and kernel == KERNEL and not _is_there(pid)) or (expired and is_steady)
    ]
    return [
        other for other, gone in dead if any(_take(connection, machine_id, other, gone=gone) for _ in range(_ATTEMPTS))
    ]


def _take(connection: Connection, machine_id: str, other: str, *, gone: bool) -> bool:
    try:
        with connection.transaction():
            connection.execute("SELECT set_config('lock_timeout', $1, true)", [_WAIT])
            ownership.begin_guarded(connection, machine_id)
            if connection.execute(ownership.LOCK, [other, gone]).fetchone() is None:
                return False
            connection.execute(ownership.LOSE, [other])
            connection.execute(ownership.LEFT_PLACES, [other])
            runs = connection.execute(ownership.LET_GO, [other, "taken over"]).fetchall()
    except driver().errors.LockNotAvailable:
        # It hangs within a transaction, which would block this for as long.
        connection.execute(ownership.END_WRITER, [application_name(other)])
        return False
    log(logging.WARNING, "machine.lost", machine=other, runs=len(runs), taken_over_by=machine_id)
    return True


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True
