"""Several supervisors on one journal: which are alive, and which owns each run. Unused if there is only one process.

A machine is a process with a supervisor on a shared journal, which is on PostgreSQL. It holds a lease, by the server's
clock. A run has one owner, and only the owner writes its record; a machine that has lost its lease writes nothing more.
"""

from repertory.machines.machine import LEASE, Machine, Machines, open_machines

__all__ = ["LEASE", "Machine", "Machines", "open_machines"]
