"""Whether a long-lived service leaks: memory, tasks, threads and files over many finished runs.

::

    python benchmarks/soak.py --hours 24          # simulated, on trio's virtual clock: some minutes
    python benchmarks/soak.py --minutes 30        # real: the service is a process of its own, at work all the time

Either way 1,500 runs come and go (``--runs``): clerks that call tools, every tenth a lead with two of them. The state
after the first sixth of the runs is the baseline.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import runpy
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import trio
import trio.testing

import repertory as rp
from repertory.llm.messages import ToolResult
from repertory.llm.model import ModelRequest
from repertory.service import Control, Offers
from repertory.testing import FunctionModel, call

ME = Path(__file__).resolve()
_PACE = float(os.environ.get("SOAK_PACE", "0"))  # seconds that each tool takes


@rp.tool(effect="pure", repeatable=False)
async def look(number: int) -> str:
    """Look something up."""
    await anyio.sleep(_PACE)
    return f"{number}: " + "jar " * 400


@rp.tool(effect="idempotent")
async def put(number: int) -> str:
    """Put something somewhere."""
    await anyio.sleep(_PACE)
    return f"put {number}"


def _steps(request: ModelRequest) -> int:
    return sum(isinstance(block, ToolResult) for message in request.messages for block in message.content)


async def _work(request: ModelRequest) -> Any:
    steps = _steps(request)
    return "All is done." if steps >= 6 else [call("look", number=steps), call("put", number=steps)]


async def _lead(request: ModelRequest) -> Any:
    if _steps(request):
        return "The team is done."
    return [call("delegate", agent="clerk", task=f"Count shelf {number}.") for number in range(2)]


class _Forgetful(list[Any]):
    def append(self, _request: object) -> None:
        """Keep nothing: the requests that a test model keeps would be all that grows here."""


def _model(function: Any) -> FunctionModel:
    model = FunctionModel(function)
    model.requests = _Forgetful()
    return model


clerk = rp.Agent("clerk", tools=[look, put], model=_model(_work))
lead = rp.Agent("lead", team=[clerk], model=_model(_lead))


def memory_of(pid: int) -> int:
    """Bytes of a process that are in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def count_of(pid: int, what: str) -> int:
    """How many threads (``task``) or open files (``fd``) a process has."""
    return len(os.listdir(f"/proc/{pid}/{what}"))


def show(name: str, pid: int, runs: int, tasks: int | None = None) -> int:
    """Print one line of figures; returns the memory."""
    memory = memory_of(pid)
    loop = "" if tasks is None else f", {tasks} tasks"
    threads, files = count_of(pid, "task"), count_of(pid, "fd")
    print(f"{name}: {runs} runs, {memory / 2**20:.1f} MiB, {threads} threads, {files} files{loop}", flush=True)
    return memory


# --- simulated --------------------------------------------------------------------------------------------


async def simulate(hours: float, runs: int, database: str, objects: bool) -> None:
    """Run for ``hours`` hours on a clock that jumps over every wait."""
    async with rp.open_supervisor(database, model="offline", durability="process") as supervisor:
        control = Control(supervisor, Offers(["soak:clerk", "soak:lead"]))
        async with anyio.create_task_group() as tasks:
            # Without the monitor, which ticks ten times a second: each wait is one jump of the clock.
            tasks.start_soon(control.feed.run)
            begun, baseline, counted = trio.current_time(), 0, Counter[str]()
            for number in range(runs):
                agent = "lead" if number % 10 == 9 else "clerk"
                run_id = await control.start(agent, f"Count the jars of {number}.")
                with anyio.move_on_after(60):
                    await supervisor.run(run_id).wait_result()
                await anyio.sleep_until(begun + hours * 3600 * (number + 1) / runs)
                if number + 1 in (runs // 6, runs):
                    gc.collect()
                    living = trio.lowlevel.current_statistics().tasks_living
                    passed = (trio.current_time() - begun) / 3600
                    memory = show(f"after {passed:.1f} h", os.getpid(), number + 1, living)
                    now = Counter(type(each).__name__ for each in gc.get_objects())
                    if not baseline:
                        baseline, counted = memory, now
                    else:
                        print(f"memory grew by {memory / baseline - 1:.1%}")
                        if objects:
                            print("more objects:", (now - counted).most_common(20))
            control.feed.close()


# --- real -------------------------------------------------------------------------------------------------


def work_for(minutes: float, runs: int, watchers: int) -> None:
    """Run a service under load for ``minutes`` minutes, with watchers."""
    bench = runpy.run_path(str(ME.with_name("watchers.py")))
    ask = bench["ask"]
    with tempfile.TemporaryDirectory(prefix="rp") as folder:
        address = Path(folder) / "s"
        command = [sys.executable, "-m", "repertory", "serve", "--db", f"{folder}/a.db", "--socket", str(address)]
        command += ["--agent", "soak:clerk", "--agent", "soak:lead", "--model", "offline"]
        environment = {**os.environ, "PYTHONPATH": str(ME.parent)}
        with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as process:
            assert process.stderr is not None
            process.stderr.readline()
            drain = threading.Thread(target=process.stderr.read)
            drain.start()
            reading = bench["Watchers"](address)
            for _ in range(watchers):
                reading.add("/events")
            reader = threading.Thread(target=reading.run)
            reader.start()
            begun, baseline = time.monotonic(), 0
            for number in range(runs):
                agent = "lead" if number % 10 == 9 else "clerk"
                run_id = ask(address, "POST", "/runs", {"agent": agent, "task": f"Count the jars of {number}."})["id"]
                while ask(address, "GET", f"/runs/{run_id}")["run"]["live"]:
                    time.sleep(0.02)
                time.sleep(max(0.0, begun + minutes * 60 * (number + 1) / runs - time.monotonic()))
                if (number + 1) % (runs // 6) == 0:
                    passed = (time.monotonic() - begun) / 60
                    memory = show(f"after {passed:.1f} min", process.pid, number + 1)
                    baseline = baseline or memory
            print(f"memory grew by {memory / baseline - 1:.1%}")
            reading.close()
            reader.join()
            process.terminate()
            drain.join()


def main() -> None:
    """Simulate, or work."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=0.0)
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--runs", type=int, default=1500)
    parser.add_argument("--watchers", type=int, default=20)
    parser.add_argument("--objects", action="store_true", help="Show of which types there are more objects.")
    options = parser.parse_args()
    if options.minutes:
        work_for(options.minutes, options.runs, options.watchers)
        return
    sys.path.insert(0, str(ME.parent))
    with tempfile.TemporaryDirectory(prefix="rp") as folder:
        # A commit takes some milliseconds in another thread; during that time the clock must not jump.
        clock = trio.testing.MockClock(autojump_threshold=0.05)
        trio.run(simulate, options.hours or 24.0, options.runs, f"{folder}/a.db", options.objects, clock=clock)


if __name__ == "__main__":
    main()
