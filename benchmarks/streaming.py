"""What reading along costs a run: answers of many pieces with no reader, one, and a thousand that are slow.

``python benchmarks/streaming.py [--json]``. Each figure is CPU time beside that of the same run without a stream at
all, in rounds that alternate; the median of the ratios. The model does the least that a client of a real one does: it
reads each piece's event from a line of JSON, as the standard library does that.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from time import process_time
from typing import Any

import anyio

import repertory as rp
from repertory.agents.streaming import Stream
from repertory.llm.messages import Text
from repertory.llm.model import ModelRequest, ModelResponse, StreamEvent, TextDelta
from repertory.llm.profiles import OFFLINE
from repertory.testing import call

PIECES = 2_000  # of an answer, as a long one has
ANSWERS = 20
ROUNDS = 9
LINE = '{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"word "}}'


class Talker:
    """A model whose answers come in pieces."""

    name = "talker"
    profile = OFFLINE

    def __init__(self) -> None:
        self.left = ANSWERS

    async def complete(
        self, request: ModelRequest, *, on_event: Callable[[StreamEvent], Any] | None = None
    ) -> ModelResponse:
        """One answer; the last is without a call."""
        assert on_event is not None
        for number in range(PIECES):
            on_event(TextDelta(json.loads(LINE)["delta"]["text"]))
            if number % 20 == 0:
                await anyio.lowlevel.checkpoint()
        self.left -= 1
        text = Text("word " * PIECES)
        return ModelResponse(content=(text, call("nothing", call_id=f"c{self.left}")) if self.left else (text,))

    async def aclose(self) -> None:
        """Nothing is open."""


@rp.tool(effect="pure")
async def nothing() -> str:
    """Do nothing."""
    return "nothing"


async def measure(readers: int) -> float:
    """CPU seconds of one run with so many readers that have read one piece each and then look away."""
    async with rp.open_supervisor(model=Talker()) as supervisor:
        begun = process_time()
        run = await supervisor.spawn(rp.Agent("talker", tools=[nothing], context=None), "Talk")
        open_readers = [run.stream() for _ in range(readers)]
        await run.wait_result()
        took = process_time() - begun
        del open_readers
        return took


async def watched() -> float:
    """The same with one reader who reads all."""
    async with rp.open_supervisor(model=Talker()) as supervisor:
        begun = process_time()
        run = await supervisor.spawn(rp.Agent("talker", tools=[nothing], context=None), "Talk")
        async for _ in run.stream():
            pass
        await run.wait_result()
        return process_time() - begun


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    take = Stream.take
    ratios: dict[str, list[float]] = {"nobody": [], "one reader": [], "1,000 slow readers": []}
    for _ in range(ROUNDS):
        Stream.take = lambda self, event: None  # type: ignore[method-assign]
        without = rp.run(measure, 0)
        Stream.take = take  # type: ignore[method-assign]
        ratios["nobody"].append(rp.run(measure, 0) / without)
        ratios["one reader"].append(rp.run(watched) / without)
        ratios["1,000 slow readers"].append(rp.run(measure, 1000) / without)
    figures = {name: round(statistics.median(values), 3) for name, values in ratios.items()}
    if as_json:
        print(json.dumps({"pieces": PIECES * ANSWERS, "cpu_ratio": figures}))
    else:
        print(f"{PIECES * ANSWERS:,} pieces; CPU time beside the same run without a stream (median of {ROUNDS}):")
        for name, ratio in figures.items():
            print(f"  {name:20} {ratio:.3f}")


if __name__ == "__main__":
    main()
