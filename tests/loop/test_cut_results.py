"""Results that are cut on arrival: what stands for them later speaks of the whole, and of nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

import repertory as rp
from repertory.llm.messages import text_of
from repertory.testing import ScriptedModel, call
from repertory.tools import context_tools


@rp.tool(effect="pure")
async def list_reports(year: int) -> rp.ToolOutput:
    """List the reports of a year."""
    text = "\n".join(f"reports/{year}/report-{year}-{number}.txt" for number in range(300))
    return rp.ToolOutput(text, url=f"https://harbour.example/{year}", facts={"status": 200})


STRICT = rp.ContextPolicy(rhythm="strict", window=2)


@pytest.mark.parametrize("durability", ["memory", "file"])
async def test_a_stub_says_what_the_whole_was_and_where_it_came_from(durability: str, tmp_path: Path) -> None:
    """Strict rhythm shows 500 characters; the stub counts all 300 entries, in a later process too."""
    path = None if durability == "memory" else tmp_path / "runs.db"
    agent = rp.Agent("clerk", tools=[list_reports], context=STRICT, limits=rp.Limits(iterations=2))
    steps = [call("list_reports", year=year) for year in (1990, 1991, 1992, 1993, 1994)]
    model = ScriptedModel([*steps[:2], *steps[2:], "Done."])
    async with rp.open_supervisor(path, model=model) as supervisor:
        run = await supervisor.spawn(
            agent if path else rp.Agent("clerk", tools=[list_reports], context=STRICT), "Read."
        )
        if path is None:
            await run.wait_result()
        else:
            with pytest.raises(rp.RepertoryError):
                await run.wait_result()
    if path is not None:
        async with rp.open_supervisor(path, model=model) as supervisor:
            again = rp.Agent("clerk", tools=[list_reports], context=STRICT)
            await (await supervisor.resume(run.id, agent=again)).wait_result()
    first = text_of(model.requests[-1].messages[2].content)
    head, _, words = first.partition("] ")
    assert head.startswith("[previously viewed: list_reports, iteration 1; retrieve_content(")
    assert words.startswith("300 entries: 300 .txt reports/1990/")
    last = text_of(model.requests[-1].messages[-1].content)
    assert "; https://harbour.example/1994; status: 200" in last, last[-300:]


@pytest.mark.parametrize("policy", [{"cap_chars": 900}, {"cite_on_arrival": True}], ids=["capped", "cited"])
@pytest.mark.parametrize("context", [rp.ContextPolicy(window=2), STRICT], ids=["thrifty", "strict"])
async def test_what_stands_for_old_results_is_the_results_own(
    policy: dict[str, int], context: rp.ContextPolicy
) -> None:
    """Not those of the notes around them."""
    steps = [call("list_reports", year=year) for year in range(1970, 1990)]
    model = ScriptedModel([*steps, "Done."])
    agent = rp.Agent("clerk", tools=[list_reports, *context_tools()], context=context)
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(agent, "Read.", results=rp.ResultPolicy(**policy))  # type: ignore[arg-type]
        await run.wait_result()
        covered = {entry.position for entry in run.view() if entry.representation == "covered"}
        entries = await supervisor.journal.read_entries(run.id)
    assert covered
    trail = text_of(model.requests[-1].messages[2].content)
    assert "1. list_reports(" in trail
    assert ("report-1970-0.txt" in trail) == (context.rhythm == "thrifty")
    assert "retrieve_content" not in trail
    assert "content_id" not in trail
    assert not [e.content_id for e in entries if e.position in covered and e.content_id and e.content_id in trail]
