"""All scenarios, in the order in which they are played."""

from __future__ import annotations

from typing import Final

from repertory.torture import kills, power_cuts, shim
from repertory.torture.frame import Scenario

SCENARIOS: Final[tuple[Scenario, ...]] = (
    Scenario(
        name="power-cuts",
        play=power_cuts.run_case,
        cases={"short": 6, "full": 600},
        controls={
            "without syncs": power_cuts.without_syncs,
            "in memory": power_cuts.in_memory,
            "for processes": power_cuts.for_processes,
        },
        missing=shim.missing,
    ),
    Scenario(
        name="kills",
        play=kills.run_case,
        cases={"short": 6, "full": 400},
        controls={"pure in name": kills.pure_in_name, "early words": kills.early_words},
        control_cases=4,  # a kill must meet a tool at work, as it does in four of five cases
        on_servers=True,
    ),
    Scenario(
        name="approvals",
        play=kills.kill_approvals,
        cases={"short": 2, "full": 40},
        controls={"made unasked": kills.made_unasked, "early decisions": kills.early_decisions},
        on_servers=True,
    ),
)
