"""All scenarios, in the order in which they are played."""

from __future__ import annotations

from typing import Final

from repertory.torture import kills, power_cuts, shim, storms
from repertory.torture.frame import Scenario

SCENARIOS: Final[tuple[Scenario, ...]] = (
    Scenario(
        name="power-cuts",
        about="what a power cut could leave of the journal's files, with faults and restarts before it",
        play=power_cuts.run_case,
        cases={"short": 6, "full": 320},
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
        cases={"short": 6, "full": 250},
        controls={"pure in name": kills.pure_in_name, "early words": kills.early_words},
        control_cases=4,  # a kill must meet a tool at work, as it does in four of five cases
    ),
    Scenario(
        name="answers",
        about="answers made by a grammar that goes wrong on purpose",
        play=storms.answers,
        cases={"short": 6, "full": 250},
        controls={"as they came": storms.answers_as_they_came},
    ),
    Scenario(
        name="runs",
        about="spawn and send, cancelled at random, and limits of trees that are cut off at random",
        play=storms.runs,
        cases={"short": 3, "full": 100},
        controls={"half begun": storms.half_begun},
    ),
    Scenario(
        name="cli",
        about="Ctrl-C and SIGTERM to commands on a terminal",
        play=storms.interrupts,
        cases={"short": 1, "full": 30},
        controls={"careless": storms.careless},
    ),
)
