"""What the summarizer does for a run that is over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

import repertory as rp
from repertory.errors import ScopeNotFound
from repertory.llm import ModelRequest
from repertory.record.records import ModelCalled, ModelReplied, SummaryStored
from repertory.testing import FunctionModel, ScriptedModel, call

SUMMARIZED = rp.ContextPolicy(results=rp.ResultPolicy(compact_mode="summary", compact_length=40))


@rp.tool(effect="pure")
def measure(pier: int) -> str:
    """Measure the tide at a pier."""
    return "\n".join(f"pier_{pier} at {hour}:00: {pier * hour} cm" for hour in range(24))


@pytest.mark.parametrize("end", ["answer", "kill", "remove"])
def test_nothing_is_summarized_for_a_run_that_was_killed_or_removed(
    run_async: Callable[[Callable[[], Awaitable[None]]], None], end: str
) -> None:
    """The call in progress is cancelled, those that wait are dropped, and a removed run has no record again. For a run
    that has answered, and may be asked again, all is done."""

    async def play() -> None:
        asked, waiting, gate, last = anyio.Event(), anyio.Event(), anyio.Event(), anyio.Event()

        async def summarize(_: ModelRequest) -> str:
            asked.set()
            if len(small.requests) == 4:
                last.set()
            await gate.wait()
            return '{"summary": "pier_1"}'

        @rp.tool
        async def wait() -> str:
            """Wait for a ship that never comes."""
            waiting.set()
            await anyio.sleep_forever()
            return ""

        small = FunctionModel(summarize)
        steps: list[Any] = [call("measure", pier=pier) for pier in range(1, 5)]
        model = ScriptedModel([*steps, call("wait") if end == "kill" else "Done."])
        agent = rp.Agent("clerk", tools=[measure, wait], context=SUMMARIZED)
        async with rp.open_supervisor(model=model, summaries=[small]) as supervisor:
            run = await supervisor.spawn(agent, "Measure.")
            await asked.wait()
            if end == "kill":
                await waiting.wait()
                run.kill()
                await run.wait_ended()
            else:
                await run.wait_result()
            if end == "remove":
                await run.memory.query()
                await supervisor.remove(run.id)
                with pytest.raises(ScopeNotFound):
                    await run.memory.store("Nobody would find this again.")
            gate.set()
            if end == "answer":
                await last.wait()
                return
            await anyio.wait_all_tasks_blocked()
            assert len(small.requests) == 1
            if end == "remove":
                for kind in (ModelCalled, ModelReplied, SummaryStored):
                    assert await supervisor.journal.read_records(kind, run.id) == []

    run_async(play)
