"""Durability tests: power cuts and kills, seeded and repeatable.

``repertory torture`` plays the scenarios; see ``docs/durability.md`` for what they test.
"""

from repertory.torture.frame import Case, Outcome, Report, Scenario, ScenarioReport, choose, run_torture

__all__ = ["Case", "Outcome", "Report", "Scenario", "ScenarioReport", "choose", "run_torture"]
