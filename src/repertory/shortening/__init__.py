"""Shortens results and old stretches of a run to text, without a model.

``rules`` has the policies for a tool's results, ``shaping`` what a model sees of a result on arrival and later,
``compactors`` describe each kind of result in a few lines, ``pieces`` splits very long lines, ``lines`` chooses the
most telling ones, and ``trail`` writes the log that replaces a stretch. Nothing here knows plans or prices:
``context`` decides when to shorten what.
"""

from __future__ import annotations

from repertory.shortening.compactors import Compactor, register_compactor
from repertory.shortening.rules import ResultPolicy

__all__ = ["Compactor", "ResultPolicy", "register_compactor"]
