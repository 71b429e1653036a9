"""A run reads the stored contents of its own tree of runs, and of no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import repertory as rp
from context_scenes import log_of
from repertory.errors import ContentNotFound, ModelUnavailable, RunFailed
from repertory.llm.messages import Block, text_of
from repertory.llm.model import ModelRequest
from repertory.record import ContentStored
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


@rp.tool(effect="pure")
async def peek(content_id: str, context: rp.ToolContext) -> str:
    """Read a content as a tool of the application would."""
    stored = await context.need_contents().read_content(content_id)
    return "nothing" if stored is None else f"read {len(stored.body)}"


async def test_no_way_in_leads_to_the_content_of_another_tree() -> None:
    """By its id, its call or its tool, or through what a tool is handed; the operator alone reads everything."""
    steps = [call("read_log", day=3, call_id="call-of-the-owner"), "Read."]
    async with rp.open_supervisor(model=ScriptedModel(steps)) as supervisor:
        owner = await supervisor.spawn(clerk(), "Read.", run_id="owner")
        await owner.wait_result()
        (stored,) = await supervisor.journal.read_contents("owner")
        thief = ScriptedModel(
            [
                call("retrieve_content", content_id=stored.content_id, search="ship"),
                call("context_retrieve", tool_call_id="call-of-the-owner"),
                call("context_retrieve", topic="ship at berth"),
                call("context_retrieve", run="owner", topic="ship at berth"),
                call("peek", content_id=stored.content_id),
                "Done.",
            ]
        )
        agent = rp.Agent("thief", tools=[peek, *context_tools()], context=CUT, model=thief)
        run = await supervisor.spawn(agent, "Read what is not yours.", run_id="thief")
        await run.wait_result()
        everything = await supervisor.journal.read_content(stored.content_id)
    said = [text_of(request.messages[-1].content) for request in thief.requests[1:]]
    assert said[0].startswith(f"there is no content '{stored.content_id}'")
    assert all(answer.startswith("no earlier message fits") for answer in said[1:3])
    assert said[3].startswith("there is no run 'owner' that you may look into")
    assert said[4] == "nothing"
    assert not any("day 3" in answer for answer in said)
    assert everything is not None
    assert everything.body == log_of(3, 150)


async def test_a_content_of_the_same_id_in_another_tree_hides_nothing() -> None:
    """An id is made of few characters, and a tool may give any: each tree reads its own."""

    @rp.tool(effect="transactional")
    def forge(content_id: str, context: rp.ToolContext) -> str:
        """Store something under the id of another tree's content."""
        forged = ContentStored(
            content_id=content_id, run_id=context.run_id, source_type="web", source="forge", body="forged", at=1.0
        )
        context.commit([forged])
        return "stored"

    async with rp.open_supervisor(model=ScriptedModel([call("read_log", day=3), "Read."])) as supervisor:
        owner = await supervisor.spawn(clerk(), "Read.", run_id="owner")
        await owner.wait_result()
        (stored,) = await supervisor.journal.read_contents("owner")
        forger = ScriptedModel([call("forge", content_id=stored.content_id), "Done."])
        other = await supervisor.spawn(rp.Agent("forger", tools=[forge], model=forger), "Forge.", run_id="other")
        await other.wait_result()
        mine = await supervisor.journal.read_content(stored.content_id, root="owner")
        theirs = await supervisor.journal.read_content(stored.content_id, root="other")
    assert (mine and mine.body, theirs and theirs.body) == (log_of(3, 150), "forged")


async def test_what_is_shared_on_purpose_is_read_by_the_tree_that_it_was_shared_with_alone() -> None:
    """Under the same citation, by its sub-agents too, and also once the one that it was copied from is gone."""
    model = ScriptedModel([call("read_log", day=3), "Read."])
    async with rp.open_supervisor(model=model) as supervisor:
        owner = await supervisor.spawn(clerk(), "Read.", run_id="owner")
        await owner.wait_result()
        (stored,) = await supervisor.journal.read_contents("owner")
        with pytest.raises(ContentNotFound, match="there is no content 'c-nothing'"):
            await supervisor.share_content("c-nothing", "owner")

        async def share(_: ModelRequest) -> Block:
            await supervisor.share_content(stored.content_id, "friend")
            assert await supervisor.clean("owner") == 1
            return call("peek", content_id=stored.content_id)

        for name, model in (
            ("friend", ScriptedModel([share, call("delegate", agent="helper", task="Read it."), "Done."])),
            ("stranger", ScriptedModel([call("peek", content_id=stored.content_id), "Done."])),
        ):
            helper = rp.Agent(
                "helper", tools=[peek], model=ScriptedModel([call("peek", content_id=stored.content_id), "."])
            )
            agent = rp.Agent("reader", tools=[peek], team=[helper], model=model)
            run = await supervisor.spawn(agent, "Read.", run_id=name)
            await run.wait_result()
            answers = [text_of(request.messages[-1].content) for request in model.requests[1:]]
            assert answers[0] == (f"read {stored.length}" if name == "friend" else "nothing")
            if name == "friend":
                (child,) = run.children
                (entry,) = [e for e in await supervisor.journal.read_entries(child.id) if e.tool == "peek"]
                assert text_of(entry.content) == f"read {stored.length}"
        with pytest.raises(ContentNotFound, match=r"characters\) was cleaned up and is gone"):
            await supervisor.clean("friend")
            await supervisor.share_content(stored.content_id, "stranger")


def _cited(request: ModelRequest) -> str:
    """The newest citation id that a request shows."""
    return re.findall(r"c-[0-9a-f]{10}", text_of(request.messages[-1].content))[-1]
