"""What all runs of a supervisor share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from repertory.actors import ActorRef
from repertory.record.journal import Journal
from repertory.runs.accounting import Tallies
from repertory.runs.alerts import AlertThresholds
from repertory.runs.event_hub import EventHub
from repertory.runs.models import OpenModels
from repertory.runs.telemetry import Telemetry
from repertory.runs.tool_sets import ToolSets
from repertory.tools import Approvals

if TYPE_CHECKING:
    from repertory.machines.machine import Machines


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """What all runs of a supervisor share.

    Attributes:
        alerts: The thresholds beyond which a run's figures cause an alert; None for no alerts.
        approvals: Rules for the tool calls of all runs; None for none.
        clock: Returns seconds since 1970.
        machines: This machine, if several share the journal; otherwise None.
        plain_loops: Whether every agent shows its model everything, whatever its ``context`` says.
    """

    journal: Journal
    models: OpenModels
    memory: ActorRef[Any]
    summarizer: ActorRef[Any]
    tallies: Tallies
    hub: EventHub
    tool_sets: ToolSets
    telemetry: Telemetry
    clock: Callable[[], float]
    alerts: AlertThresholds | None = None
    approvals: Approvals | None = None
    machines: Machines | None = None
    plain_loops: bool = False

    async def may_begin_effect(self) -> None:
        """Wait until an effect that cannot be undone may begin: no other machine can own this process's runs.

        Raises:
            LeaseLost: Another machine has taken them over.
        """
        if self.machines is not None:
            await self.machines.lease.wait_fresh()
