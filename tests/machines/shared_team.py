"""A team that every process finds by its name, and a file that says what its tools did."""

from __future__ import annotations

import os
from pathlib import Path

from repertory.agents import Agent
from repertory.torture.team import effects_team

LEDGER = "REPERTORY_TEST_EFFECTS"
PAUSE = "REPERTORY_TEST_PAUSE"
PLACEMENT = "REPERTORY_TEST_PLACEMENT"
STEPS = 3
FIRED = 2 * STEPS + STEPS // 2  # turns of the lead, the deputy and the helper; each has one unsafe effect
TEAM = "shared_team:make_team"


def tell(effect: str, name: str) -> None:
    """Write down that an effect took place."""
    with Path(os.environ[LEDGER]).open("a", encoding="utf-8") as file:
        file.write(f"{effect} {name}\n")


def make_team() -> Agent:
    """A lead, a deputy and a helper whose tools have effects of all classes."""
    pause, placement = float(os.environ.get(PAUSE, "0.002")), os.environ.get(PLACEMENT, "").split()
    return effects_team(tell, steps=STEPS, pause=pause, levels=3, placement=placement)
