"""What one iteration of a run costs: calls into our own code, CPU time, and bytes in the journal.

    python benchmarks/iteration.py [--iterations 60] [--rounds 3] [--by file|room|function] [--top 100] [--json]

An iteration is one answer of a model that costs nothing and one call of a tool that does nothing, in a durable run: a
journal on disk, one commit for the answer and one for the result. Measured is what happens between an answer and the
next request, in a process that an earlier run has warmed up. Calls are calls and resumptions of Python functions in
``src/repertory``, in all threads (``sys.setprofile``), for the iteration with the median number. CPU time is that of
the process with all threads, without the profiler: the mean of the best round. Bytes are the difference between the
closed files of a long and a short run.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import repertory as rp
from repertory.llm.estimate import estimate_tokens
from repertory.llm.messages import Block, Text, ToolUse
from repertory.llm.model import ModelRequest, ModelResponse, Usage
from repertory.llm.profiles import profile_for

HERE = Path(rp.__file__).parent
SMALL = 40  # characters of the result whose calls are counted
LARGE = 2_000  # characters of the result whose time and bytes are measured

Counts = Counter[tuple[str, str]]  # calls, by file below src/repertory and name of the function


class Meter:
    """Is told when the model is asked and when it has answered: an iteration is the time between, without the model."""

    def answered(self) -> None:
        """The model gives its answer; what follows is ours."""

    def asked(self) -> None:
        """The model is asked again."""


class CallMeter(Meter):
    """Counts calls into our own code, in all threads that begin while it watches."""

    def __init__(self) -> None:
        self.parts: list[Counts] = []
        self._counts: Counts | None = None
        self._ours: dict[CodeType, tuple[str, str] | None] = {}

    def watch(self) -> None:
        """Watch this thread and all that begin from now on."""
        sys.setprofile(self._count)
        threading.setprofile(self._count)

    def answered(self) -> None:
        """Count from now on."""
        self._counts = Counter()

    def asked(self) -> None:
        """Count no more."""
        counts, self._counts = self._counts, None
        if counts is not None:
            self.parts.append(counts)

    def _count(self, frame: FrameType, event: str, _: Any) -> None:
        counts = self._counts
        if counts is None or event != "call":
            return
        code = frame.f_code
        if code not in self._ours:
            self._ours[code] = _place(code)
        place = self._ours[code]
        if place is not None:
            counts[place] += 1


class TimeMeter(Meter):
    """Milliseconds of CPU time of each iteration."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self._begun: float | None = None

    def answered(self) -> None:
        """Time from now on."""
        self._begun = time.process_time()

    def asked(self) -> None:
        """Time no more."""
        if self._begun is not None:
            self.times.append(1_000 * (time.process_time() - self._begun))


class GaugeReader:
    """A model that calls one tool again and again, and bills the estimate of the prompt."""

    name = "gauge-reader"
    profile = profile_for("claude-sonnet-4-5")

    def __init__(self, iterations: int, meter: Meter) -> None:
        self._iterations = iterations
        self._meter = meter
        self._asked = 0

    async def complete(self, request: ModelRequest, *, on_event: Any = None) -> ModelResponse:
        """Call the tool, or end."""
        self._meter.asked()
        self._asked += 1
        number = self._asked
        usage = Usage(
            input_tokens=sum(estimate_tokens(message.content) for message in request.messages), output_tokens=40
        )
        content: tuple[Block, ...] = (Text("That was all of them."),)
        if number <= self._iterations:
            content = (Text(f"Next is gauge {number}."), ToolUse(f"call_{number}", "gauge", {"number": number}))
        reason = "tool_use" if len(content) == 2 else "end_turn"
        answer = ModelResponse(content=content, stop_reason=reason, usage=usage)
        self._meter.answered()
        return answer

    async def aclose(self) -> None:
        """Nothing to release."""


def _place(code: CodeType) -> tuple[str, str] | None:
    path = Path(code.co_filename)
    if not path.is_relative_to(HERE):
        return None
    return str(path.relative_to(HERE)), code.co_qualname


def result(number: int, length: int) -> str:
    """A result that differs from all others."""
    lines = (
        f"{number:04d}.{line:03d}: gauge {number * 31 + line * 7} is at rest\n" for line in range(length // 20 + 1)
    )
    return "".join(lines)[:length]


async def run_once(supervisor: rp.Supervisor, iterations: int, length: int, meter: Meter) -> None:
    """One run of ``iterations`` iterations."""

    @rp.tool(effect="pure")
    async def gauge(number: int) -> str:
        """Read a gauge."""
        return result(number, length)

    agent = rp.Agent(
        "reader",
        instructions="Read all gauges.",
        tools=[gauge],
        model=GaugeReader(iterations, meter),
        limits=rp.Limits(iterations=iterations + 1),
    )
    run = await supervisor.spawn(agent, "Read every gauge once.")
    await run.wait_result()


async def count_calls(folder: Path, iterations: int) -> list[Counts]:
    """The calls of each iteration of a run."""
    meter = CallMeter()
    meter.watch()
    try:
        async with rp.open_supervisor(folder / "calls.db") as supervisor:
            await run_once(supervisor, iterations, SMALL, Meter())
            await run_once(supervisor, iterations, SMALL, meter)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return meter.parts


async def time_iterations(path: Path, iterations: int) -> list[float]:
    """Milliseconds of CPU time of each iteration of a run."""
    meter = TimeMeter()
    async with rp.open_supervisor(path) as supervisor:
        await run_once(supervisor, iterations, LARGE, Meter())
        gc.collect()
        await run_once(supervisor, iterations, LARGE, meter)
    return meter.times


async def weigh_run(path: Path, iterations: int) -> int:
    """Bytes of the journal of one run, closed and checkpointed."""
    async with rp.open_supervisor(path) as supervisor:
        await run_once(supervisor, iterations, LARGE, Meter())
    return path.stat().st_size


def median_part(parts: list[Counts]) -> Counts:
    """The iteration with the median number of calls."""
    return sorted(parts, key=Counter.total)[len(parts) // 2]


def table(counts: Counts, by: str, top: int) -> str:
    """Calls by file, by room, or by function, most first."""
    grouped: Counter[str] = Counter()
    for (file, function), number in counts.items():
        room = file.partition("/")[0] if "/" in file else "(root)"
        grouped[{"file": file, "room": room}.get(by, f"{file} {function}")] += number
    return "\n".join(f"{number:7,}  {name}" for name, number in grouped.most_common(top))


def main() -> None:
    """Measure, and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3, help="of the timing; the best one counts")
    parser.add_argument("--by", choices=["file", "room", "function"], default="file")
    parser.add_argument("--top", type=int, default=100, help="lines of the table")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    count = options.iterations
    with tempfile.TemporaryDirectory(prefix="repertory-iteration-") as name:
        folder = Path(name)
        rounds = [rp.run(time_iterations, folder / f"times-{n}.db", count) for n in range(options.rounds)]
        sizes = [rp.run(weigh_run, folder / f"bytes-{most}.db", most) for most in (count, 5 * count)]
        counted = median_part(rp.run(count_calls, folder, count))
    figures = {
        "calls": counted.total(),
        "files": len({file for file, _ in counted}),
        "cpu_ms": round(min(map(statistics.fmean, rounds)), 2),
        "journal_bytes": round((sizes[1] - sizes[0]) / (4 * count)),
    }
    if options.json:
        print(json.dumps(figures))
        return
    print(table(counted, options.by, options.top))
    print(
        f"\n{figures['calls']:,} calls in {figures['files']} files; {figures['cpu_ms']} ms of CPU time and "
        f"{figures['journal_bytes']:,} bytes in the journal with a result of {LARGE:,} characters"
    )


if __name__ == "__main__":
    main()
