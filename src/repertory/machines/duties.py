"""Duties that one machine at a time does for all that share a journal, such as starting the due runs of a schedule.

A duty passes to another machine only if its holder was lost, so that none of its writes are accepted any more, or has
left, or has given the duty up. So only the holder does a duty, as long as it does it by writing to the journal.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from repertory.machines.machine import Machines

if TYPE_CHECKING:
    from repertory.record.postgres_sql import Connection

# Machines take duties one after the other; otherwise a snapshot could miss that a machine has just begun. A machine
# that finds the lock held tries again in a moment, so that it does not wait for one that hangs.
_ONE: Final = "SELECT pg_try_advisory_xact_lock('duties'::regclass::oid::int4, 0)"
_GIVE_UP: Final = "DELETE FROM duties WHERE machine_id = $1 AND NOT name = ANY($2)"
_TAKE: Final = """INSERT INTO duties SELECT name, $1 FROM unnest($2::text[]) wanted (name)
    ON CONFLICT (name) DO UPDATE SET machine_id = excluded.machine_id
    WHERE NOT EXISTS (SELECT 1 FROM machines m WHERE m.machine_id = duties.machine_id AND m.lost_at IS NULL)"""
_HELD: Final = "SELECT name FROM duties WHERE machine_id = $1"


async def hold_duties(machines: Machines, names: Collection[str]) -> frozenset[str]:
    """Hold those of these duties that no other machine holds, and give up all others.

    Returns the duties that this machine holds now. A draining machine holds none.

    Raises:
        LeaseLost: Another machine has taken this one over.
    """
    wanted = [] if machines.draining else sorted(names)

    def take(connection: Connection) -> frozenset[str]:
        connection.execute(_GIVE_UP, [machines.machine_id, wanted])
        held = frozenset(name for (name,) in connection.execute(_HELD, [machines.machine_id]).fetchall())
        if held.issuperset(wanted) or connection.execute(_ONE).fetchone() != (True,):
            return held
        connection.execute(_TAKE, [machines.machine_id, wanted])
        return frozenset(name for (name,) in connection.execute(_HELD, [machines.machine_id]).fetchall())

    return await machines.guarded("take over duties in", take)
