"""Recorded runs played through the real loop, and what a context policy would have made of them.

A policy is judged by runs that happened: the recorded turns are played back, every request that the loop makes is
checked, billed by the prompt cache's rules and searched for what the next recorded turn goes on to use.
"""

from __future__ import annotations

from repertory.replay.chart import bars, svg, write_chart
from repertory.replay.choices import PRESETS, policy_named, profile_named
from repertory.replay.meaning import Meaning, Meter
from repertory.replay.model import ReplayModel, replay_tools
from repertory.replay.needs import Need, Needs, needs_of
from repertory.replay.playing import Played, play
from repertory.replay.reading import read_recordings
from repertory.replay.recording import RecordedRun, Turn
from repertory.replay.reporting import LONG, figures, report

__all__ = [
    "LONG",
    "PRESETS",
    "Meaning",
    "Meter",
    "Need",
    "Needs",
    "Played",
    "RecordedRun",
    "ReplayModel",
    "Turn",
    "bars",
    "figures",
    "needs_of",
    "play",
    "policy_named",
    "profile_named",
    "read_recordings",
    "replay_tools",
    "report",
    "svg",
    "write_chart",
]
