"""What a process keeps of runs that have ended, next to nothing, and what it knows of those of an earlier process."""

from __future__ import annotations

import gc
import math
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

import repertory as rp
from repertory.errors import ModelUnavailable, RunFailed
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


class OutOfInk(ModelUnavailable):
    """An application's own error, with what may be secret or no JSON."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.key, self.retry_after = "sesame-sesame", math.inf


OURS = ModelUnavailable("no ink")
OURS.number, OURS.delay = 2**80, math.inf  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("error", "kind"), [(OutOfInk("no ink"), ModelUnavailable), (OURS, ModelUnavailable), (ValueError("no"), None)]
)
async def test_a_failed_run_names_its_cause_after_a_restart(tmp_path: Path, error: Exception, kind: Any) -> None:
    """As the nearest type of ``repertory.errors``, with its message; other types another process may not have."""

    def fail(_: ModelRequest) -> str:
        raise error

    causes = list[BaseException | None]()
    for _ in range(2):
        async with rp.open_supervisor(tmp_path / "a.db", model=FunctionModel(fail)) as supervisor:
            run = await supervisor.spawn(rp.Agent("clerk"), "Write.", run_id="letter")
            with pytest.raises(RunFailed, match=r"letter of clerk failed: .*: no") as caught:
                await run.wait_result()
            causes.append(caught.value.__cause__)
    first, restored = causes
    assert first is error
    assert type(restored) is (kind or type(None))
    assert kind is None or str(restored) == "no ink"
    assert b"sesame" not in (tmp_path / "a.db").read_bytes()
