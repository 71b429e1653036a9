"""Agents that delegate: trees of runs, their limits, and how trouble travels."""

from __future__ import annotations

import pytest
import trio
import trio.testing

import repertory as rp
from patience import PATIENCE
from repertory.errors import RunFailed
from repertory.llm.messages import ToolResult, text_of
from repertory.llm.model import ModelRequest
from repertory.testing import FunctionModel, ScriptedModel, call


def team(*, worker_limits: rp.Limits | None = None, **options: object) -> rp.Agent:
    """A lead and a worker."""
    worker = rp.Agent("worker", instructions="You work.", limits=worker_limits or rp.Limits())
    return rp.Agent("lead", instructions="You lead.", team=[worker], **options)  # type: ignore[arg-type]


def is_worker(request: ModelRequest) -> bool:
    """Whether the worker asks."""
    return text_of(request.system) == "You work."


def task_of(request: ModelRequest) -> str:
    """What the asking run was told to do."""
    return text_of(request.messages[0].content).split("\n", 1)[0]


def reports_in(request: ModelRequest) -> list[str]:
    """What the sub-agents reported, in order."""
    return [
        text_of(block) for message in request.messages for block in message.content if isinstance(block, ToolResult)
    ]


async def test_a_lead_delegates_side_by_side_and_reads_the_reports_in_order() -> None:
    """Three sub-agents work at once, each sees its own task only, and the reports come in the order of the calls."""
    at_work = 0
    states: list[str] = []
    all_at_work = trio.Event()

    async def answer(request: ModelRequest) -> object:
        nonlocal at_work
        if is_worker(request):
            at_work += 1
            if at_work == 3:
                states.append(run.state)
                all_at_work.set()
            await all_at_work.wait()
            return f"report on {task_of(request)}"
        if len(request.messages) == 1:
            return [call("delegate", agent="worker", task=f"part {number}") for number in (1, 2, 3)]
        return " / ".join(reports_in(request))

    async with rp.open_supervisor(model=FunctionModel(answer)) as supervisor:
        run = await supervisor.spawn(team(), "Do all of it.")
        with trio.fail_after(PATIENCE):
            answer_text = await run.wait_result()
        assert answer_text == "report on part 1 / report on part 2 / report on part 3"
        assert states == ["waiting"]
        assert {child.state for child in run.children} == {"done"}
        assert run.statistics(tree=True).runs == 4
        rows = await supervisor.runs()
    assert [row.started.parent_id for row in rows] == [None, run.id, run.id, run.id]


async def test_a_failed_sub_agent_is_told_to_the_lead() -> None:
    """The lead hears why, as a tool error, and goes on."""

    def answer(request: ModelRequest) -> object:
        if is_worker(request):
            raise rp.RepertoryError("never") from None
        if len(request.messages) == 1:
            return call("delegate", agent="worker", task="Fail.")
        return reports_in(request)[0]

    lead = team(worker_limits=rp.Limits(iterations=1))

    def loops(request: ModelRequest) -> object:
        return call("nothing") if is_worker(request) else answer(request)

    async with rp.open_supervisor(model=FunctionModel(loops)) as supervisor:
        run = await supervisor.spawn(lead, "Go.")
        assert "worker failed after 1 iteration:" in await run.wait_result()


@pytest.mark.parametrize(
    ("limits", "words"),
    [(rp.Limits(depth=0), "limits.depth"), (rp.Limits(runs=1), "limits.runs")],
)
async def test_depth_and_number_of_runs_are_limited(limits: rp.Limits, words: str) -> None:
    """The lead is told which limit it ran into."""

    def answer(request: ModelRequest) -> object:
        return reports_in(request)[0] if len(request.messages) > 1 else call("delegate", agent="worker", task="x")

    async with rp.open_supervisor(model=FunctionModel(answer)) as supervisor:
        run = await supervisor.spawn(team(limits=limits), "Go.")
        assert words in await run.wait_result()
        assert run.children == ()


async def test_the_cost_of_a_tree_is_limited_at_its_root() -> None:
    """A sub-agent that spends the root's money is ended, and so is the root."""

    def answer(request: ModelRequest) -> object:
        return call("nothing") if is_worker(request) else call("delegate", agent="worker", task="Spend.")

    async with rp.open_supervisor(model=FunctionModel(answer)) as supervisor:
        run = await supervisor.spawn(team(limits=rp.Limits(cost=0.000_5)), "Go.")
        with pytest.raises(RunFailed, match=r"limits\.cost"):
            await run.wait_result()
        assert run.children[0].state == "failed"


async def test_stopping_a_lead_stops_its_sub_agents() -> None:
    """Nothing goes on in the background once the lead has been stopped."""

    def answer(request: ModelRequest) -> object:
        return call("nothing") if is_worker(request) else call("delegate", agent="worker", task="Go on.")

    async with rp.open_supervisor(model=FunctionModel(answer)) as supervisor:
        run = await supervisor.spawn(team(worker_limits=rp.Limits(iterations=10_000)), "Go.")
        async for event in run.events(tree=True):
            if event.agent == "worker" and event.iteration == 3:
                run.stop()
        assert run.state == "stopped"
        assert [child.state for child in run.children] == ["stopped"]


async def test_a_closed_supervisor_leaves_runs_that_can_be_resumed() -> None:
    """What was delegated goes on from its own record: no delegation is made twice."""
    journal_of: list[str] = []
    worker_calls = 0
    hold = trio.Event()

    async def answer(request: ModelRequest) -> object:
        nonlocal worker_calls
        if is_worker(request):
            worker_calls += 1
            if worker_calls == 1:
                return call("nothing")
            if not hold.is_set():
                await hold.wait()
            return f"report with {len(reports_in(request))} results"
        return reports_in(request)[0] if len(request.messages) > 1 else call("delegate", agent="worker", task="x")

    async with rp.open_journal() as journal:
        async with rp.open_supervisor(journal=journal, model=FunctionModel(answer), drain_timeout=0) as supervisor:
            run = await supervisor.spawn(team(), "Go.")
            journal_of.append(run.id)
            while worker_calls < 2:
                await trio.testing.wait_all_tasks_blocked()
        hold.set()
        async with rp.open_supervisor(journal=journal, model=FunctionModel(answer)) as supervisor:
            again = await supervisor.resume(run.id, agent=team())
            with trio.fail_after(PATIENCE):
                assert await again.wait_result() == "report with 1 results"
            assert len(await supervisor.runs()) == 2


async def test_a_crashed_run_is_restarted_from_its_last_durable_iteration() -> None:
    """A bug under the loop costs one iteration, not the run; what was acknowledged is not asked for again."""
    crashes = iter([RuntimeError("a bug"), None, None])

    @rp.tool(effect="pure")
    def work() -> str:
        """Work."""
        return "worked"

    def answer(request: ModelRequest) -> object:
        if len(request.messages) == 1:
            return call("work")
        crash = next(crashes)
        if crash is not None:
            raise crash
        return f"after {len(request.messages)} messages"

    model = FunctionModel(answer)
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(rp.Agent("a", tools=[work]), "Go.")
        with trio.fail_after(PATIENCE):
            assert await run.wait_result() == "after 3 messages"
    assert len(model.requests) == 3


async def test_a_run_that_keeps_crashing_fails_and_its_neighbours_go_on(autojump_clock: trio.testing.MockClock) -> None:
    """The restart intensity bounds a crash loop, and the supervisor survives it."""

    def crash(request: ModelRequest) -> object:
        raise RuntimeError("a bug that stays")

    async with rp.open_supervisor(model=FunctionModel(crash)) as supervisor:
        bad = await supervisor.spawn(rp.Agent("bad"), "Crash.")
        good = await supervisor.spawn(rp.Agent("good", model=ScriptedModel(["Fine."])), "Go.")
        assert await good.wait_result() == "Fine."
        with pytest.raises(RunFailed, match="a bug that stays"):
            await bad.wait_result()


async def test_an_error_in_the_body_comes_out_as_itself() -> None:
    """Whoever writes ``except RunFailed`` around the block catches it: no group is wrapped around it."""
    model = FunctionModel(lambda request: call("nothing"))
    with pytest.raises(RunFailed, match="no answer after 2 iterations"):
        async with rp.open_supervisor(model=model) as supervisor:
            run = await supervisor.spawn(rp.Agent("a", limits=rp.Limits(iterations=2)), "Go.")
            await run.wait_result()
