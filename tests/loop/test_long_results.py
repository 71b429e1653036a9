"""Results of more than a million characters are shaped and written beside the event loop, and never lost by that."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import trio

import repertory as rp
from patience import PATIENCE
from repertory._json_text import canonical_json
from repertory.errors import RunStopped
from repertory.llm.messages import text_of
from repertory.llm.model import encode_request
from repertory.shortening import register_compactor
from repertory.shortening.compactors import COMPACTORS
from repertory.testing import ScriptedModel, call

CUT = rp.ContextPolicy(results=rp.ResultPolicy(cap_chars=500))


class Watching:
    """A compactor that says in which thread it was asked, and waits there if it is told to."""

    name = "watching"

    def __init__(self) -> None:
        self.thread = 0
        self.asked, self.go = threading.Event(), threading.Event()
        self.go.set()

    def matches(self, text: str, data: Any) -> bool:
        """Wait here, if it is told to."""
        self.thread = threading.get_ident()
        self.asked.set()
        assert self.go.wait(PATIENCE)
        return False

    def compact(self, text: str, data: Any, length: int) -> str:
        """Say nothing."""
        raise AssertionError("it never matches")


@pytest.fixture
def watching() -> Iterator[Watching]:
    """A compactor that is asked about every result."""
    before = dict(COMPACTORS)
    compactor = Watching()
    register_compactor(compactor)
    yield compactor
    COMPACTORS.clear()
    COMPACTORS.update(before)


@rp.tool(effect="unsafe", output_cap=None)
async def fetch(size: int) -> str:
    """Fetch something long."""
    return "The tide tables of the north. " * (size // 30)


def fetcher() -> rp.Agent:
    """An agent whose results are cut."""
    return rp.Agent("fetcher", tools=[fetch], context=CUT)


@pytest.mark.parametrize(("size", "beside"), [(900_000, False), (1_200_000, True)])
async def test_a_long_result_is_shaped_beside_the_event_loop(size: int, beside: bool, watching: Watching) -> None:
    """A shorter one in it, as a thread of its own would cost more than that."""
    model = ScriptedModel([call("fetch", size=size), "Done."])
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(fetcher(), "Fetch.")
        assert await run.wait_result() == "Done."
        (stored,) = await supervisor.journal.read_contents(run.id)
    assert (watching.thread != threading.get_ident()) is beside
    assert stored.length == size // 30 * 30
    assert f"of {stored.length:,} characters shown" in text_of(model.requests[1].messages[-1].content)


async def test_results_of_one_turn_keep_their_calls_whichever_is_shaped_first(watching: Watching) -> None:
    """While a long one is being looked at, the loop goes on, and short ones of the same turn are recorded."""
    watching.go.clear()

    @rp.tool(effect="pure")
    async def note() -> str:
        """Let the long one go on once this one's result is on its way."""
        await trio.to_thread.run_sync(watching.asked.wait, 30)
        watching.go.set()
        return "noted"

    both = [call("fetch", size=1_200_000, call_id="long"), call("note", call_id="short")]
    model = ScriptedModel([both, "Done."])
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(rp.Agent("fetcher", tools=[fetch, note], context=CUT), "Fetch.")
        assert await run.wait_result() == "Done."
        entries = await supervisor.journal.read_entries(run.id)
        results = {entry.tool_call_id: entry for entry in entries if entry.tool_call_id}
    assert text_of(results["short"].content) == "noted"
    assert results["long"].original_length == 1_200_000


async def test_a_run_that_is_killed_while_its_result_is_looked_at_has_the_result(watching: Watching) -> None:
    """The tool has done its work; that it is not done twice does not hang on when the run is killed."""
    watching.go.clear()
    model = ScriptedModel([call("fetch", size=1_200_000), "never asked"])
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(fetcher(), "Fetch.")
        await trio.to_thread.run_sync(watching.asked.wait, 30)
        run.kill()
        watching.go.set()
        with pytest.raises(RunStopped):
            await run.wait_result()
        entries = await supervisor.journal.read_entries(run.id)
        (outcome,) = await supervisor.journal.read_outcomes(run.id)
        (stored,) = await supervisor.journal.read_contents(run.id)
    assert outcome.status == "ok"
    assert entries[-1].content_id == stored.content_id
    assert len(model.requests) == 1


@rp.tool(effect="pure")
def fetch_document(number: int) -> str:
    """Fetch a document of 200,000 characters."""
    line = "source {0} says that the tide at mark {1} rises to {2} feet, and falls again\n"
    return "".join(line.format(number, mark, mark * number % 97) for mark in range(3_000))[:200_000]


@pytest.mark.parametrize("rhythm", ["strict", "thrifty"])
async def test_twenty_documents_of_200_kilobytes_keep_the_view_small(rhythm: Any) -> None:
    """Below 50 kB in strict rhythm; by default below what the model's profile says it attends to."""
    steps = [call("fetch_document", number=number) for number in range(1, 22)]
    model = ScriptedModel([*steps, "Read."])
    async with rp.open_supervisor(model=model) as supervisor:
        policy = rp.ContextPolicy(rhythm=rhythm)
        run = await supervisor.spawn(rp.Agent("reader", tools=[fetch_document], context=policy), "Read all.")
        await run.wait_result()
        figures = run.statistics()
    longest = max(len(canonical_json(encode_request(request))) for request in model.requests)
    assert figures.tokens_plain > 21 * 20 / 2 * 40_000
    assert figures.tokens_seen < 0.2 * figures.tokens_plain
    if rhythm == "strict":
        assert longest < 50_000
    else:
        assert figures.largest_prompt <= model.profile.comfort
