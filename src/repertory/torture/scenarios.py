"""All scenarios, in the order in which they are played."""

from __future__ import annotations

from functools import partial
from typing import Final

from repertory.torture import kills, power_cuts, shim
from repertory.torture.frame import Scenario

_LIE: Final = shim.Rule(on="sync", first=1, last=shim.FOR_EVER, action="lie")  # each is reported, and none is made

SCENARIOS: Final[tuple[Scenario, ...]] = (
    Scenario(
        name="power-cuts",
        play=power_cuts.run_case,
        cases={"short": 6, "full": 600},
        controls={
            "without syncs": partial(power_cuts.believe, kind="writers", durability="power", rules=[_LIE]),
            "in memory": partial(power_cuts.believe, kind="team", durability="memory"),
            "for processes": partial(power_cuts.believe, kind="writers", durability="process"),
        },
        missing=shim.missing,
    ),
    Scenario(
        name="kills",
        play=kills.run_case,
        cases={"short": 6, "full": 400},
        controls={
            # It takes so long that a kill meets it.
            "pure in name": partial(kills.kill_effects, most=8, pause=0.02, unsafe="pure"),
            "early words": partial(kills.kill_appends, most=6, early=True),
        },
        control_cases=4,  # a kill must meet a tool at work, as it does in four of five cases
        on_servers=True,
    ),
    Scenario(
        name="approvals",
        play=kills.kill_approvals,
        cases={"short": 2, "full": 40},
        controls={
            "made unasked": partial(kills.kill_approvals, most=2, lie="unasked"),
            "early decisions": partial(kills.kill_approvals, lie="early"),
        },
        on_servers=True,
    ),
)
