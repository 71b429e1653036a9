"""What one machine at a time does for all that share a journal, such as starting what a schedule has due.

A duty changes hands only where its machine was lost, so that nothing it writes is kept any more, or has left, or has
given it up itself. So whoever holds one, and does it by what it writes, does it alone.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from repertory.machines.machine import Machines

if TYPE_CHECKING:
    from repertory.record.postgres_sql import Connection

# Those who take duties do so one after the other, or a snapshot could miss that a machine has just begun. Whoever comes
# in between looks again in a moment, and waits for nobody that stands still.
_ONE: Final = "SELECT pg_try_advisory_xact_lock('duties'::regclass::oid::int4, 0)"
_GIVE_UP: Final = "DELETE FROM duties WHERE machine_id = $1 AND NOT name = ANY($2)"
_TAKE: Final = """INSERT INTO duties SELECT name, $1 FROM unnest($2::text[]) wanted (name)
    ON CONFLICT (name) DO UPDATE SET machine_id = excluded.machine_id
    WHERE NOT EXISTS (SELECT 1 FROM machines m WHERE m.machine_id = duties.machine_id AND m.lost_at IS NULL)"""
_HELD: Final = "SELECT name FROM duties WHERE machine_id = $1"


async def hold_duties(machines: Machines, names: Collection[str]) -> frozenset[str]:
    """Hold these duties as far as no other machine does, and no others; those that this machine holds now.

    A machine that drains holds none.

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
