"""Traces and metrics by the GenAI conventions of OpenTelemetry. Needs the extra ``repertory[otel]``."""

from __future__ import annotations

from repertory.otel.spans import OpenTelemetry

__all__ = ["OpenTelemetry"]
