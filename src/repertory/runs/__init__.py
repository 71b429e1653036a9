"""One run as this process knows it while it lives: what it has, what was said to it, and what can be seen of it.

``events`` are what happens in a run, ``streaming`` what its model says while it says it.
"""

from __future__ import annotations

from repertory.runs import events, streaming
from repertory.runs.alerts import AlertThresholds
from repertory.runs.models import open_model
from repertory.runs.telemetry import Telemetry
from repertory.runs.waiting_calls import WaitingCall

__all__ = ["AlertThresholds", "Telemetry", "WaitingCall", "events", "open_model", "streaming"]
