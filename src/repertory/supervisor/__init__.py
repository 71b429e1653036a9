"""The supervisor: it starts, queues, finds, controls, resumes and ends runs."""

from __future__ import annotations

from repertory.supervisor.opening import open_supervisor, run, run_sync
from repertory.supervisor.queue import QueuedRun
from repertory.supervisor.quotas import Quota, Quotas
from repertory.supervisor.relay import RemoteRun
from repertory.supervisor.run_handle import Run
from repertory.supervisor.supervisor import Supervisor
from repertory.views.listing import ViewEntry

__all__ = [
    "QueuedRun",
    "Quota",
    "Quotas",
    "RemoteRun",
    "Run",
    "Supervisor",
    "ViewEntry",
    "open_supervisor",
    "run",
    "run_sync",
]
