"""What stream readers cost a run: answers of many pieces with no reader, one, and a thousand slow ones.

    python benchmarks/streaming.py [--rounds 9] [--json]

Each figure is CPU time compared with the same run whose model passes on no events: the best round of each, with
alternating rounds. The model is ``AnthropicModel`` on Anthropic's SDK; it reads pieces of 4 to 20 characters, as the
real server sends them, from ``open_messages_server`` in a process of its own, whose CPU time does not count.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Callable
from time import process_time
from typing import Any

import anyio

import repertory as rp
from repertory.llm import ModelRequest, ModelResponse, Text
from repertory.llm.model import StreamEvent
from repertory.testing import FunctionModel, call, open_messages_server, wire

CHARACTERS = 8_000  # per answer, some 700 pieces
ANSWERS = 12
ROUNDS = 9
_SILENT = "without events"
WORDS = "The tide turns at six in the morning, and the harbour is dry until noon. "


def cut(text: str) -> list[str]:
    """A text in pieces of 4 to 20 characters, always the same."""
    chance, pieces = random.Random(1), list[str]()
    while text:
        length = chance.randint(4, 20)
        pieces.append(text[:length])
        text = text[length:]
    return pieces


async def serve() -> None:
    """Serve the Messages API: long texts, each with a call, and no end until the run asks for none."""
    wire._pieces = cut  # as many pieces as a real server sends; the test server's own are larger
    text = Text((WORDS * (CHARACTERS // len(WORDS) + 1))[:CHARACTERS])

    def answer(request: ModelRequest) -> Any:
        made = sum(message.role == "assistant" for message in request.messages)
        return text if made + 1 == ANSWERS else [text, call("nothing")]

    async with open_messages_server(FunctionModel(answer)) as server:
        print(server.url, flush=True)
        await anyio.sleep_forever()


class Deaf(rp.AnthropicModel):
    """Passes on no events while it reads."""

    async def complete(
        self, request: ModelRequest, *, on_event: Callable[[StreamEvent], Any] | None = None
    ) -> ModelResponse:
        """The same answer, without its events."""
        return await super().complete(request)


@rp.tool(effect="pure")
async def nothing() -> str:
    """Do nothing."""
    return "nothing"


async def measure(url: str, kind: type[rp.AnthropicModel], readers: int = 0, reads: bool = False) -> float:
    """CPU seconds of one run with ``readers`` readers: one that reads all, or some that never read."""
    model = kind("claude-haiku-4-5", base_url=url, api_key="none")
    async with rp.open_supervisor(model=model) as supervisor:
        begun = process_time()
        run = await supervisor.spawn(rp.Agent("talker", tools=[nothing], context=None), "Talk")
        open_readers = [run.stream() for _ in range(readers)]
        if reads:
            async for _ in run.stream():
                pass
        await run.wait_result()
        took = process_time() - begun
        del open_readers
    await model.aclose()
    return took


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        rp.run(serve)
        return
    variants = {"nobody": (0, False), "one reader": (0, True), "1,000 slow readers": (1_000, False)}
    best = dict.fromkeys((_SILENT, *variants), float("inf"))
    with subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        try:
            rp.run(measure, url, Deaf)  # warm
            for _ in range(options.rounds):
                best[_SILENT] = min(best[_SILENT], rp.run(measure, url, Deaf))
                for name, variant in variants.items():
                    best[name] = min(best[name], rp.run(measure, url, rp.AnthropicModel, *variant))
        finally:
            server.kill()
    figures = {name: round(best[name] / best[_SILENT], 3) for name in variants}
    pieces = ANSWERS * len(cut("x" * CHARACTERS))
    if options.json:
        print(json.dumps({"pieces": pieces, "cpu_seconds": round(best[_SILENT], 2), "cpu_ratio": figures}))
        return
    print(f"{pieces:,} pieces, {best[_SILENT]:.2f} s; CPU time beside the same run without events:")
    for name, ratio in figures.items():
        print(f"  {name:20} {ratio:.3f}")


if __name__ == "__main__":
    main()
