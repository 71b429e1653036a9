"""How good the estimate of a prompt's tokens is, on recorded runs that have the provider's counts.

Run it with ``python benchmarks/estimates.py RUNS.jsonl.gz …``. Each prompt but the first is estimated from the real
count of the previous one and what was added since, as in the loop. Prompts that have shrunk are left out, since the
recorder's own compaction is not in the record.
"""

from __future__ import annotations

import sys
from pathlib import Path

from repertory.llm.estimate import Calibration, estimate_tokens
from repertory.llm.messages import Text
from repertory.replay import RecordedRun, read_recordings


def errors(run: RecordedRun) -> list[float]:
    """The error of each prompt's estimate, as a share of the real count."""
    found: list[float] = []
    calibration, before = Calibration(), 0
    estimate = estimate_tokens((Text(run.system), Text(run.task)))
    for turn in run.turns:
        real = turn.usage.prompt_tokens if turn.usage is not None else 0
        if real > before > 0:
            found.append(abs(calibration.real_tokens(estimate) - real) / real)
        if real:
            calibration, before = calibration.observe(estimate=estimate, real=real), real
        estimate += estimate_tokens((*turn.content, *turn.results.values(), *map(Text, turn.said)))
    return found


def main() -> int:
    """Measure and print."""
    if not sys.argv[1:]:
        print("nothing to measure: name recorded runs, as in python benchmarks/estimates.py RUNS.jsonl.gz")
        return 0
    runs = [run for name in sys.argv[1:] for run in read_recordings(Path(name)) if isinstance(run, RecordedRun)]
    for least, what in ((0, "all runs"), (40, "runs of 40 iterations and more")):
        off = sorted(error for run in runs if len(run.turns) >= least for error in errors(run))
        if off:
            middle, late = off[len(off) // 2], off[int(len(off) * 0.95)]
            print(f"{what}: {len(off):,} prompts, off by {middle:.1%} at the median, {late:.1%} at the 95th percentile")
        else:
            print(f"{what}: none that says what was billed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
