"""Several supervisors on one journal: who is alive, and whose each run is. Nothing of this runs with one process.

A machine is a process with a supervisor on a journal that others share, which is one on PostgreSQL. It holds a lease,
by the server's clock. A run has one owner, which alone writes its record; whoever lost its lease writes nothing more.
"""

from repertory.machines.machine import LEASE, Machine, Machines, open_machines

__all__ = ["LEASE", "Machine", "Machines", "open_machines"]
