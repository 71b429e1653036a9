"""What a process keeps of runs that have ended: next to nothing, however long it goes on."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path
from typing import Any

import repertory as rp
from repertory.llm.model import ModelRequest
from repertory.testing import FunctionModel, call

WARM, MEASURED = 50, 120  # after the first fifty as many events as are kept have passed by


@rp.tool(effect="pure", repeatable=False)
async def look_up(word: str) -> str:
    """Look a word up."""
    return f"{word} has {len(word)} letters. " * 30


async def answer(request: ModelRequest) -> Any:
    """Look a word up, then answer."""
    return call("look_up", word="w" * len(request.messages)) if len(request.messages) < 3 else "It is done."


async def test_an_ended_run_leaves_less_than_half_a_kilobyte(tmp_path: Path) -> None:
    """Of memory: its record, its events and its figures are in the journal. A run that is held is what is left."""
    model = FunctionModel(answer)
    clerk = rp.Agent("clerk", tools=[look_up], model=model)

    async def main() -> tuple[float, float]:
        async with rp.open_supervisor(tmp_path / "a.db", durability="process") as supervisor:
            held = []

            async def run(times: int, *, hold: bool = False) -> float:
                gc.collect()
                before = tracemalloc.get_traced_memory()[0]
                for number in range(times):
                    going = await supervisor.spawn(clerk, "Count.")
                    assert await going.wait_result() == "It is done."
                    if number % 5 == 0:  # to read its result again
                        going = await supervisor.resume(going.id, agent=clerk)
                        assert await going.wait_result() == "It is done."
                    model.requests.clear()
                    if hold:
                        held.append(going)
                del going
                gc.collect()
                return (tracemalloc.get_traced_memory()[0] - before) / times

            await run(WARM)
            return await run(MEASURED), await run(10, hold=True)

    tracemalloc.start()
    try:
        left, held = await main()
    finally:
        tracemalloc.stop()
    assert left < 500, left
    assert held > 5_000, "the measurement must see what is kept"
