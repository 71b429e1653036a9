"""All scenarios, in the order in which they are played."""

from __future__ import annotations

from typing import Final

from repertory.torture import kills, power_cuts, shim
from repertory.torture.frame import Scenario

SCENARIOS: Final[tuple[Scenario, ...]] = (
    Scenario(
        name="power-cuts",
        about="what a power cut could leave of the journal's files, with faults and restarts before it",
        play=power_cuts.run_case,
        cases={"short": 6, "full": 300},
        controls={
            "without syncs": power_cuts.without_syncs,
            "in memory": power_cuts.in_memory,
            "for processes": power_cuts.for_processes,
        },
        missing=shim.missing,
    ),
    Scenario(
        name="kills",
        about="processes killed and stopped at random instants, their effects counted outside of them",
        play=kills.run_case,
        cases={"short": 8, "full": 300},
        controls={"pure in name": kills.pure_in_name, "early words": kills.early_words},
    ),
)
