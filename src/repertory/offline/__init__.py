"""A stand-in for a language model: rules, not intelligence. It is used if no key is set, and in the demo."""

from __future__ import annotations

from repertory.offline.model import OfflineModel

__all__ = ["OfflineModel"]
