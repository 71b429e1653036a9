"""How many examples the property tests of this room try."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "context", max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile("context")
