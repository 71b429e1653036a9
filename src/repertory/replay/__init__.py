"""Plays recorded runs through the real loop, to measure what a context policy would have shown and cost.

The recorded turns are played back. Every request that the loop makes is checked, billed by the prompt cache's rules,
and searched for what the next recorded turn uses.
"""

from __future__ import annotations

from repertory.replay.agreement import Agreement, Sample, agree, price_at_most, sample_requests
from repertory.replay.chart import write_chart
from repertory.replay.choices import PRESETS, policy_named, profile_named
from repertory.replay.meaning import Meaning
from repertory.replay.playing import Played, play, play_all
from repertory.replay.reading import read_recordings
from repertory.replay.recording import RecordedRun, Turn
from repertory.replay.reporting import figures, report

__all__ = [
    "PRESETS",
    "Agreement",
    "Meaning",
    "Played",
    "RecordedRun",
    "Sample",
    "Turn",
    "agree",
    "figures",
    "play",
    "play_all",
    "policy_named",
    "price_at_most",
    "profile_named",
    "read_recordings",
    "report",
    "sample_requests",
    "write_chart",
]
