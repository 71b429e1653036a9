"""A run reads the stored contents of its own tree of runs, and of no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from context_scenes import log_of

import repertory as rp
from repertory.errors import ModelUnavailable, RunFailed
from repertory.llm.messages import Block, text_of
from repertory.llm.model import ModelRequest
from repertory.testing import ScriptedModel, call
from repertory.tools import context_tools

CUT = rp.ContextPolicy(results=rp.ResultPolicy(cap_chars=500))


@rp.tool(effect="pure")
def read_log(day: int) -> str:
    """Read the log of a day."""
    return log_of(day, 150)


def clerk(name: str = "clerk", **options: object) -> rp.Agent:
    """An agent whose results are stored whole and shown cut."""
    return rp.Agent(name, tools=[read_log, *context_tools()], context=CUT, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["other", "owner2", "owne"])
async def test_the_content_of_another_tree_is_not_found_though_its_id_is_known(name: str) -> None:
    """However the two ids are spelled; the answer is the one that an invented id gets."""
    async with rp.open_supervisor(model=ScriptedModel([call("read_log", day=3), "Read."])) as supervisor:
        owner = await supervisor.spawn(clerk(), "Read.", run_id="owner")
        await owner.wait_result()
        (stored,) = await supervisor.journal.read_contents("owner")
        thief = ScriptedModel([call("retrieve_content", content_id=stored.content_id), "Done."])
        run = await supervisor.spawn(clerk(model=thief), "Read what is not yours.", run_id=name)
        await run.wait_result()
    answer = text_of(thief.requests[-1].messages[-1].content)
    assert answer.startswith(f"there is no content '{stored.content_id}'")
    assert "ship" not in answer


async def test_runs_of_one_tree_read_each_others_contents_after_a_restart_too(tmp_path: Path) -> None:
    """A sub-agent reads what its parent stored; the parent, in a later process, what its sub-agent did."""
    lead = clerk("lead", team=[clerk("helper")])

    def delegate(request: ModelRequest) -> Block:
        return call("delegate", agent="helper", task=f"Look at {_cited(request)}")

    def look(request: ModelRequest) -> Block:
        return call("retrieve_content", content_id=text_of(request.messages[0].content)[-12:])

    def report(request: ModelRequest) -> str:
        return f"Mine is {_cited(request)}"

    steps = [call("read_log", day=3), delegate, look, call("read_log", day=4), report, ModelUnavailable("down")]
    model = ScriptedModel(steps)
    async with rp.open_supervisor(tmp_path / "runs.db", model=model) as supervisor:
        run = await supervisor.spawn(lead, "Lead.", run_id="lead")
        with pytest.raises(RunFailed):
            await run.wait_result()
    assert "day 3, hour 149: ship 449 at berth 2" in text_of(model.requests[3].messages[-1].content)

    def look_below(request: ModelRequest) -> Block:
        return call("retrieve_content", content_id=text_of(request.messages[-1].content)[-12:])

    model = ScriptedModel([look_below, "Done."])
    async with rp.open_supervisor(tmp_path / "runs.db", model=model) as supervisor:
        run = await supervisor.resume("lead", agent=lead)
        assert await run.wait_result() == "Done."
    assert "day 4, hour 149: ship 549 at berth 2" in text_of(model.requests[1].messages[-1].content)


def _cited(request: ModelRequest) -> str:
    """The newest citation id that a request shows."""
    return re.findall(r"c-[0-9a-f]{10}", text_of(request.messages[-1].content))[-1]
