"""What all runs of a supervisor share."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
from anyio.lowlevel import EventLoopToken, current_token
from sniffio import current_async_library

from repertory.actors import ActorRef
from repertory.errors import RunError
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


class Home:
    """The event loop in which a supervisor was opened. A call from elsewhere would end all its actors."""

    def __init__(self) -> None:
        self._token = _loop_here()
        self._library = current_async_library()
        self._thread = get_ident()

    def check(self) -> None:
        """Raise ``RunError`` in another event loop or thread; callbacks of this loop, such as signals', may call."""
        here = _loop_here()
        in_callback = here is None and self._library == "asyncio"  # trio's callbacks know their loop
        if (here != self._token and not in_callback) or get_ident() != self._thread:
            raise RunError(
                "the supervisor was opened in another event loop, that of another thread perhaps; make this call "
                "there: asyncio.run_coroutine_threadsafe(…, loop), loop.call_soon_threadsafe(…), or "
                "anyio.from_thread.run(…, token=…)"
            )


def _loop_here() -> EventLoopToken | None:
    try:
        return current_token()
    except anyio.NoEventLoopError:
        return None


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """What all runs of a supervisor share.

    Attributes:
        alerts: The thresholds beyond which a run's figures cause an alert; None for no alerts.
        approvals: Rules for the tool calls of all runs; None for none.
        clock: Returns seconds since 1970.
        home: The event loop that all of it belongs to.
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
    home: Home = msgspec.field(default_factory=Home)

    async def may_begin_effect(self) -> None:
        """Wait until an effect that cannot be undone may begin: no other machine can own this process's runs.

        Raises:
            LeaseLost: Another machine has taken them over.
        """
        if self.machines is not None:
            await self.machines.lease.wait_fresh()
