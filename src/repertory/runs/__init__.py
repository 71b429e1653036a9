"""The state that this process keeps of a run that is under way, and what can be observed of it.

``events`` has what happens in a run, ``streaming`` what its model says while it says it.
"""

from __future__ import annotations

from repertory.runs import events, streaming
from repertory.runs.alerts import AlertThresholds
from repertory.runs.models import open_model
from repertory.runs.telemetry import Telemetry
from repertory.runs.waiting_calls import WaitingCall

__all__ = ["AlertThresholds", "Telemetry", "WaitingCall", "events", "open_model", "streaming"]
