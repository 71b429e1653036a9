"""What a citation costs: a result of 100 kB and one of 10 MB, of each kind, on its way into the record.

Run it with ``python benchmarks/citations.py``. A citation is made of a result that is not shown whole: its excerpt, the
text that stands for it once it is old, and its id. Promised: 1 ms for 100 kB, 10 ms for 10 MB. Reported separately:
making the text safe to keep, and writing its record with a checksum. For results above a million characters all of it
is done in a thread, so the last figure is what the event loop notices: the longest time for which five results of 10 MB
blocked it. That is elapsed time; the other figures are CPU time.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import anyio
import msgspec

import repertory as rp
from repertory.context import ContextPolicy
from repertory.record import ContentStored
from repertory.record.rows import encode_records
from repertory.shortening.shaping import shape_result
from repertory.testing import ScriptedModel, call
from repertory.tools.output import to_output

PROMISED = {100_000: 1.0, 10_000_000: 10.0}  # milliseconds, by characters


def long_text(piece: str, size: int) -> str:
    """A text of a size, made of numbered pieces."""
    pieces, length = list[str](), 0
    while length < size:
        pieces.append(piece.replace("#", str(len(pieces))))
        length += len(pieces[-1])
    return "".join(pieces)[:size]


def rows(size: int) -> str:
    """A list of records as JSON."""
    each = [
        {"id": n, "town": f"Town {n}", "depth": n * 3.5, "about": "some words that tell of it " * 3} for n in range(90)
    ]
    length = len(msgspec.json.encode(each))
    return msgspec.json.encode(each * max(1, size // length)).decode()


KINDS: dict[str, Callable[[int], str]] = {
    "prose": partial(long_text, "The #th tide comes in at noon and goes out at six, as it has always done.\n"),
    "not English": partial(long_text, "Der #. Törn führt über die Förde nach Kürzungen der Flüge.\n"),
    "code": partial(long_text, "def handler_#(request):\n    return look_up(request, #)\n\n"),
    "log": partial(long_text, "2026-11-22 10:00:00 INFO did thing # without any error\n"),
    "page": partial(long_text, "<h2>Part #</h2><p>" + "word " * 60 + "<a href='https://sea.example/#'>x</a></p>"),
    "table": partial(long_text, "#,Kiel,3.5\n"),
    "listing": partial(long_text, "src/lib/module_#.py\n"),
    "rows of JSON": rows,
    "one line": partial(long_text, "x"),
}


def timed(function: Callable[[], object], repeats: int) -> float:
    """Milliseconds of CPU time of one call, the median."""
    took = []
    for _ in range(repeats):
        begun = time.thread_time()
        function()
        took.append((time.thread_time() - begun) * 1e3)
    return statistics.median(took)


def measure(size: int, repeats: int) -> float:
    """Print the costs of each kind at a size; returns the most expensive citation, in milliseconds."""
    rules = ContextPolicy(rhythm="strict").rules("fetch")
    print(f"{size / 1e6:g} MB, milliseconds (median of {repeats})     citation   made safe   written down")
    dearest = 0.0
    for name, make in KINDS.items():
        text = make(size)
        cited = timed(lambda text=text: shape_result(text, rules=rules, content_id="c", tool="fetch"), repeats)  # type: ignore[misc]
        safe = timed(lambda text=text: to_output(text, name="fetch", cap=None), repeats)  # type: ignore[misc]
        record = ContentStored(content_id="c", run_id="r", source_type="web", source="fetch", body=text, at=0.0)
        written = timed(lambda record=record: encode_records([record]), repeats)  # type: ignore[misc]
        dearest = max(dearest, cited)
        print(f"  {name:38} {cited:8.2f}    {safe:8.2f}       {written:8.2f}")
    return dearest


async def longest_hold(size: int) -> float:
    """The longest time in milliseconds for which the event loop was blocked while an agent got five long results."""
    text = KINDS["log"](size)

    @rp.tool(effect="unsafe", output_cap=None)
    async def fetch() -> str:
        """Fetch a log."""
        return text

    agent = rp.Agent("fetcher", tools=[fetch], context=ContextPolicy(rhythm="strict"))
    longest = 0.0
    async with rp.open_supervisor(model=ScriptedModel([*[call("fetch")] * 5, "Done."])) as supervisor:
        run = await supervisor.spawn(agent, "Fetch.")
        async with anyio.create_task_group() as group:

            async def look() -> None:
                nonlocal longest
                while True:
                    before = time.perf_counter()
                    await anyio.sleep(0.0005)
                    longest = max(longest, (time.perf_counter() - before) * 1e3)

            group.start_soon(look)
            await run.wait_result()
            group.cancel_scope.cancel()
    return longest


def main() -> int:
    """Measure and print; returns whether the promise holds, as an exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9)
    repeats = parser.parse_args().repeats
    kept = True
    for size, most in PROMISED.items():
        dearest = measure(size, repeats)
        kept = kept and dearest <= most
        print(f"  the dearest: {dearest:.2f} ms; promised: {most:g} ms\n")
    hold = rp.run(longest_hold, 10_000_000)
    print(f"the event loop was held up for {hold:.1f} ms at most while five results of 10 MB came in")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
