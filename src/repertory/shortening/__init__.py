"""What is left of results and of old stretches when they are made shorter: text, without a model.

What an application says of a tool's results (``rules``), what a model sees of one on arrival and later (``shaping``),
what each kind of result comes down to (``compactors``), the lines that tell most (``lines``), and the log that stands
for a stretch (``trail``). Nothing here knows of plans or prices; when something is made shorter, ``context`` decides.
"""

from __future__ import annotations

from repertory.shortening.compactors import Compactor, register_compactor
from repertory.shortening.rules import ResultPolicy

__all__ = ["Compactor", "ResultPolicy", "register_compactor"]
